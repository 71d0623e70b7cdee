"""Text that others wrote, for people: it must not steer the terminal that shows it."""

from __future__ import annotations

import re

# Control characters other than tabs and ends of lines, other ends of lines, and what changes the direction of writing.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def unsteering(text: str) -> str:
    """The same, with whatever moves a cursor, hides what stands there or sets the clipboard made visible."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def unsteering_json(text: str) -> str:
    """JSON text with these characters as JSON escapes; parsing it gives the original text."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
