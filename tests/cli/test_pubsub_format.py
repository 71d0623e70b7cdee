import base64
import io
import json
import sys

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from parley.cli.pubsub import _Printer
from parley.cli.pubsub_format import as_json, compile_format, visible
from parley.client.messages import Message, Origin
from parley.model import batches
from parley.model.batches import MessageHeader, Withheld, encode
from parley.model.names import Pairs


def message(
    value: bytes = b"hello",
    key: bytes | None = b"k1",
    *,
    empty: bool = False,
    level: str = "certified",
    publisher: str = "alpha/alice",
) -> Message:
    tags: Pairs = (("ward", "er"), ("level", 3), ("open", True))
    header = MessageHeader(key, tags, (("v", b"1"), ("raw", b"\xff")))
    rule = 'role == "nurse"'
    origin = Origin("demo", (1, 0), 2, publisher, 42, 1_700_000_000_000, level)  # type: ignore[arg-type]
    if empty:
        return Message(7, 3, bytes(32), origin, MessageHeader(), Withheld(bytes(32), rule, bytes(32)))
    content = batches.Message(bytes(16), encode(header), rule, value)
    return Message(7, 3, bytes(32), origin, header, content)


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


def _steering(text: str) -> str:
    return text + "\x1b[2J\r\n\x9b2J\u202e"


def test_a_format_lets_no_publisher_control_a_terminal() -> None:
    trick = _steering("x").encode()
    header = MessageHeader(trick, (("tag", _steering("x")),), ((_steering("h"), trick),))
    origin = Origin("demo", (1, 0), 2, "alpha/alice", 42, 1_700_000_000_000, "certified")
    content = batches.Message(bytes(16), encode(header), "", trick)
    tricky = Message(7, 3, bytes(32), origin, header, content)
    for token in ("%s", "%k", "%h", "%g"):
        shown = compile_format(rf"{token}\x1b[0m\n", terminal=True)(tricky)
        assert shown.endswith(b"\x1b[0m\n"), "what the reader's own format says is kept"
        assert shown[:-5].decode().isprintable(), token
    assert compile_format("%s", terminal=False)(tricky) == trick, "into a pipe the bytes stay as they are"


def test_json_holds_nothing_that_steers_a_terminal_and_says_the_same() -> None:
    text = _steering("x") + "\x7f"
    line = as_json(message(text.encode()))
    assert line[:-1].decode().isprintable()
    assert json.loads(line)["value"] == text


def test_a_format_may_hold_bytes_that_are_no_text() -> None:
    assert compile_format("\udcff%s")(message()) == b"\xffhello"


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("form", [None, r"%s\n"])
def test_what_is_printed_on_a_terminal_is_shown_for_one(
    form: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", _Terminal(held))
    _Printer(form, show_empty=False, json=False).print(message(b"x\x1b]0;y\x07"))
    assert b"x\\x1b]0;y\\x07\n" in held.getvalue()


def test_a_broker_cannot_steer_a_terminal_by_the_name_of_a_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", _Terminal(held))
    _Printer(None, show_empty=False, json=False).print(message(publisher="a\x1b[2J"))
    assert b"a\\x1b[2J" in held.getvalue()
