import base64
import json

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from parley.cli.pubsub_format import as_json, compile_format, visible
from parley.client.messages import Message, Origin
from parley.model import batches
from parley.model.batches import MessageHeader, Withheld, encode
from parley.model.names import Pairs


def message(
    value: bytes = b"hello", key: bytes | None = b"k1", *, empty: bool = False, level: str = "certified"
) -> Message:
    tags: Pairs = (("ward", "er"), ("level", 3), ("open", True))
    header = MessageHeader(key, tags, (("v", b"1"), ("raw", b"\xff")))
    rule = 'role == "nurse"'
    origin = Origin("demo", 2, "alpha/alice", 42, 1_700_000_000_000, level)  # type: ignore[arg-type]
    if empty:
        return Message(7, 3, b"", bytes(32), origin, MessageHeader(), Withheld(bytes(32), rule, bytes(32)))
    content = batches.Message(bytes(16), encode(header), rule, value)
    return Message(7, 3, value, bytes(32), origin, header, content)


def test_json_has_the_keys_that_scripts_rely_on() -> None:
    line = as_json(message())
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "demo",
        "partition": 2,
        "offset": 7,
        "ps": 3,
        "publisher": "alpha/alice",
        "tags": {"ward": "er", "level": 3, "open": True},
        "value": "hello",
        "encoding": "utf-8",
        "key": "k1",
        "headers": {"v": "1", "raw": {"base64": "/w=="}},
        "rule": 'role == "nurse"',
        "height": 42,
        "time": 1_700_000_000_000,
        "verified": True,
        "level": "certified",
        "empty": False,
    }


@given(st.binary(max_size=40))
def test_any_value_survives_json(value: bytes) -> None:
    shown = json.loads(as_json(message(value)))
    back = shown["value"].encode() if shown["encoding"] == "utf-8" else base64.b64decode(shown["value"])
    assert back == value


def test_an_empty_has_a_place_and_no_value() -> None:
    shown = json.loads(as_json(message(empty=True)))
    assert (shown["offset"], shown["ps"], shown["empty"], shown["value"]) == (7, 3, True, None)


def test_a_broker_s_word_is_not_called_verified() -> None:
    assert json.loads(as_json(message(level="trusted")))["verified"] is False
    assert json.loads(as_json(message(level="quorum")))["verified"] is True


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("%s", b"hello"),
        (r"%t/%p@%o ps=%n\n", b"demo/2@7 ps=3\n"),
        (r"%k\t%S\t%P\t%T", b"k1\t5\talpha/alice\t1700000000000"),
        ("%h %g", b'v=1,raw=\xff ward="er",level=3,open=true'),
        (r"100%% \x41\\", b"100% A\\"),
        ("", b""),
    ],
)
def test_formats_are_those_of_kcat(form: str, shown: bytes) -> None:
    assert compile_format(form)(message()) == shown


def test_a_message_without_a_key_prints_none() -> None:
    assert compile_format("[%k]")(message(key=None)) == b"[]"


@pytest.mark.parametrize("form", ["%z", "%", r"\q", "\\", r"\x4", "x" * 5_000])
def test_a_wrong_format_says_what_there_is(form: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        compile_format(form)
    assert refused.value.param_hint == "--format"


@given(st.binary(max_size=60))
def test_a_publisher_cannot_control_the_terminal(value: bytes) -> None:
    assert all(
        character.isprintable() or character in "\t\xa0" or ord(character) > 0x9F
        for character in visible(value)
    )


@pytest.mark.parametrize("trick", [b"\x1b[2J", b"\r", b"\n", b"\x07", "\u202e".encode(), b"\xff", b"\x9b"])
def test_tricks_are_shown_as_text(trick: bytes) -> None:
    assert visible(b"a" + trick + b"b").startswith("a\\")
    assert visible("naïve – 漢字".encode()) == "naïve – 漢字"
