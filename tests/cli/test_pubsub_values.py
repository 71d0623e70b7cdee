import asyncio
import os
import sys
import threading

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.commands import reading

from parley.cli.pubsub_values import (
    CHUNK,
    check_constraint,
    check_rule,
    choice,
    parse_headers,
    parse_start,
    parse_tags,
    require_stdin,
    stdin_lines,
)
from parley.cli.topics import parse_retention
from parley.cli.verify import _read
from parley.model.batches import MAX_BATCH_BYTES


def test_tags_get_the_type_that_they_look_like() -> None:
    given_texts = ["ward=er", "level=3", "cold=-4", "open=true", "shut=false", "room=x=y", "none="]
    assert parse_tags(given_texts) == {
        "ward": "er",
        "level": 3,
        "cold": -4,
        "open": True,
        "shut": False,
        "room": "x=y",
        "none": "",
    }


@pytest.mark.parametrize("text", ["3", "true", "false", "-1", 'a"b', ""])
def test_quotes_keep_a_tag_a_text(text: str) -> None:
    assert parse_tags([f'name="{text}"']) == {"name": text}


@pytest.mark.parametrize("text", [str(2**63), str(-(2**63) - 1), "9" * 5_000, "-" + "9" * 5_000])
def test_an_integer_that_no_tag_can_hold_does_not_become_a_text_silently(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"-2\*\*63 to 2\*\*63-1.*double quotes"):
        parse_tags([f"big={text}"])
    text = text[:200]
    assert parse_tags([f'big="{text}"']) == {"big": text}
    assert parse_tags([f"least={-(2**63)}", f"most={2**63 - 1}"]) == {"least": -(2**63), "most": 2**63 - 1}


@pytest.mark.parametrize("text", ["True", "FALSE"])
def test_a_truth_value_in_another_case_does_not_become_a_text_silently(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=f"write {text.lower()} in lower case"):
        parse_tags([f"urgent={text}"])
    assert parse_tags([f'urgent="{text}"']) == {"urgent": text}


def test_any_number_of_leading_zeros_changes_no_number() -> None:
    zeros = "0" * 5_000  # Python reads at most 4300 digits
    tags = [f"a={zeros}5", f"b=-{zeros}5", f"c={zeros}", "d=+7"]
    assert parse_tags(tags) == {"a": 5, "b": -5, "c": 0, "d": 7}
    assert parse_start(f"{zeros}5") == 5


@pytest.mark.parametrize(
    "texts",
    [["ward"], ["=er"], ["9ward=er"], ["wa rd=er"], ["a=1", "a=2"], ["and=1"], ["NOT=x"], ["a=\udcff"]],
)
def test_what_is_no_tag_is_refused_with_the_option(texts: list[str]) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse_tags(texts)
    assert refused.value.param_hint == "--tag"


def test_headers_are_bytes_up_to_the_first_equals_sign() -> None:
    assert parse_headers(["v=1", "e==", "raw=\udcff"]) == {"v": b"1", "e": b"=", "raw": b"\xff"}
    with pytest.raises(typer.BadParameter, match="name=value"):
        parse_headers(["nothing"])
    with pytest.raises(typer.BadParameter, match="v is given twice"):
        parse_headers(["v=1", "v=2"])


@given(st.integers(min_value=0, max_value=2**62 - 1))
def test_a_position_is_a_word_or_an_offset(offset: int) -> None:
    assert parse_start(str(offset)) == offset
    assert (parse_start("earliest"), parse_start("latest")) == ("earliest", "latest")


@pytest.mark.parametrize(("text", "meant"), [("erliest", "earliest"), ("last", "latest"), ("-5", "offset")])
def test_a_wrong_position_says_what_was_meant(text: str, meant: str) -> None:
    with pytest.raises(typer.BadParameter, match=meant):
        parse_start(text)


def test_a_wrong_word_says_what_was_meant() -> None:
    parse = choice("certified", "quorum", "trusted")
    assert parse("quorum") == "quorum"
    with pytest.raises(typer.BadParameter, match="did you mean certified"):
        parse("certifed")
    with pytest.raises(typer.BadParameter, match="certified, quorum, trusted"):
        parse("zzz")


def test_expressions_are_checked_before_anything_is_sent() -> None:
    assert check_rule("", "--rule") == ""
    assert check_rule('role=="nurse"', "--rule") == 'role == "nurse"'
    assert check_constraint("") == ""
    with pytest.raises(typer.BadParameter) as refused:
        check_rule("role = nurse", "--publish")
    assert refused.value.param_hint == "--publish"
    with pytest.raises(typer.BadParameter):
        check_constraint("ward ==")


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("forever", 0), ("5ms", 5), ("30m", 1_800_000), ("7d", 604_800_000)]
)
def test_retention_has_a_unit(text: str, milliseconds: int) -> None:
    assert parse_retention(text) == milliseconds


@pytest.mark.parametrize("text", ["", "7", "0d", "d", "7 days", "-1d", "9999999999d"])
def test_retention_without_a_sensible_unit_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="forever"):
        parse_retention(text)


def collected() -> list[bytes]:
    async def collect() -> list[bytes]:
        return [line async for line in stdin_lines()]

    return asyncio.run(collect())


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"long" * 100_000 + b"\nend", [b"long" * 100_000, b"end"]),
    ],
)
def test_files_and_pipes_are_read_line_by_line(data: bytes, lines: list[bytes]) -> None:
    with reading(data):
        assert collected() == lines
    sink, source = os.pipe()

    def write() -> None:
        with os.fdopen(source, "wb") as pipe:
            pipe.write(data)

    writer = threading.Thread(target=write)
    writer.start()
    with reading(b""):
        os.dup2(sink, 0)
        os.close(sink)
        assert collected() == lines
    writer.join()


def test_a_line_that_no_message_can_hold_is_refused_before_memory_is_full() -> None:
    with reading(b"x" * (MAX_BATCH_BYTES + 2 * CHUNK)), pytest.raises(typer.BadParameter, match="longer"):
        collected()


def test_a_closed_stdin_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `<&-`: the descriptor 0 may be anything by now."""
    monkeypatch.setattr(sys, "stdin", None)
    for read in (lambda: _read("-"), lambda: require_stdin("VALUE")):
        with pytest.raises(typer.BadParameter, match="stdin is closed"):
            read()
