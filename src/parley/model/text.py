"""Text that others wrote, for people: it must not steer the terminal that shows it."""

from __future__ import annotations

import re

# Control characters other than tabs and ends of lines, and those that change the direction of writing.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def unsteering(text: str) -> str:
    """The same, with whatever moves a cursor, hides what stands there or sets the clipboard made visible."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
