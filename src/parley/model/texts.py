"""The catalogue: texts of refusals for people, by code and reason. No replicated rule reads it (P27).

A text may name fields of its refusal in braces, and how many of their characters are shown: `{key:.16}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

Texts = Mapping[str, str]  # by "Code.reason", or "Code" for a refusal without a reason


def add_texts(texts: Texts) -> None:
    """Add the texts of one application or package to the catalogue."""
    _texts.update(texts)


@contextmanager
def swapped(texts: Texts) -> Iterator[None]:
    """Other texts for a while, as in another language; what is not among them stays."""
    before = dict(_texts)
    _texts.update(texts)
    try:
        yield
    finally:
        _texts.clear()
        _texts.update(before)


def known_texts() -> dict[str, str]:
    return dict(_texts)


def key_of(code: str, reason: str) -> str:
    return f"{code}.{reason}" if reason else code


def render(code: str, reason: str, fields: Mapping[str, int | str]) -> str:
    """The text of a refusal for a person. Without a text of its own the reason and the fields are shown as they are."""
    shown = {name: str(value) for name, value in fields.items()}
    template = _texts.get(key_of(code, reason))
    if template is not None:
        try:
            return template.format_map(shown)
        except (KeyError, IndexError, ValueError):
            pass  # a broker of another version left a field out
    said = ", ".join(f"{name} {value}" for name, value in shown.items())
    return f"{reason or 'refused'} ({said})" if said else reason or "refused"


_texts: dict[str, str] = {}
