"""Why a measurement cannot be made."""

from __future__ import annotations


class Unavailable(Exception):  # noqa: N818 - it names the condition
    """Brokers that did not start, a load that did not run, or a tool that is missing; the message is for a person."""
