"""What things may be called."""

from __future__ import annotations

import msgspec
import pytest

from parley.model.names import Name, PairName, TopicName, is_name, is_topic


@pytest.mark.parametrize("kind", [Name, TopicName, PairName])
@pytest.mark.parametrize("text", ["bob\n", "\nbob", "bo\nb", "bob\r\n", "bob ", ""])
def test_no_name_has_a_line_break_or_blank(kind: type, text: str) -> None:
    assert msgspec.convert("bob", kind) == "bob"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, kind)
    assert not is_name(text)
    assert not is_topic(text)
