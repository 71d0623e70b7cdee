"""`parley verify`: what a third party checks of a proof file, offline, with the genesis file alone (P7)."""

from __future__ import annotations

import os
import re
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from parley.applications import application_of
from parley.cli import output
from parley.cli.contexts import ContextName, find_trust_root
from parley.cli.pubsub_format import text_of
from parley.cli.pubsub_values import require_stdin
from parley.client.contexts import read_genesis
from parley.client.proofs import EntryProof, OperationProof, Proof, decode_proof, kind_of
from parley.crypto.qc import voters
from parley.ledger.proofs import ProofError, Trust
from parley.model.batches import Message, decode_message_header
from parley.model.codec import by_name
from parley.model.genesis import Genesis
from parley.model.names import Value
from parley.model.refusals import DUPLICATE, is_final
from parley.modules.publishing.proof import (
    MAX_PROOF,
    PublicationProof,
    check_publication,
)

MAX_SHOWN = 200  # bytes of a payload
MAX_HELD = 1_000  # characters of an operation or a record
MAX_LINE = 300  # characters that others wrote, on each other line
MAX_LINES = 20  # on a screen; after more, the verdict is repeated
_ALWAYS = "that the time is exact; and nothing at all if more brokers lie than are allowed"
NOT_PROVED = {
    "publication": "that the content is true; that a named person holds the key of the publisher; that nothing else was "
    f"published; {_ALWAYS}",
    "operation": "that a named person holds the key that asked for it; what other operations did before or after it; "
    f"{_ALWAYS}",
    "entry": f"what the table holds under other keys, or held at other heights; {_ALWAYS}",
}
PLAIN = ("plain",)
# A proof is of bytes and does not say how they were made: where topics may seal, it cannot be told from the file.
SEALED = "these are the bytes as they were published: sealed, if the topic's payload setting is not plain"
# Letters and marks that show nothing, besides what Python calls not printable.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
_PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?", re.ASCII)  # all names are
_WORD = re.compile(r"(?!(?:true|false)\Z)[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)


class Content(Struct):
    """The message that a file holds. `encoding` is that of `value`; keys and headers of messages are base64."""

    value: str
    encoding: str
    tags: dict[str, Value]
    rule: str
    key: bytes | None
    headers: list[tuple[str, bytes]]


class Verdict(Struct, omit_defaults=True):
    """What `verify` prints; the fields after `network` only if the file is valid."""

    valid: bool
    what: str
    height: int | None
    reason: str | None
    genesis: str
    network: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    count: int | None = None
    publisher: str | None = None
    time: int | None = None
    certified_height: int | None = None
    shard: int | None = None
    epoch: int | None = None
    signers: list[str] | None = None
    operation: str | None = None
    code: str | None = None
    asked: object = None  # the operation
    table: str | None = None
    key: list[object] | None = None
    found: bool | None = None
    record: object = None  # if it was found
    chain: str | None = None
    brokers: int | None = None
    allowed_faults: int | None = None
    publisher_key: str | None = None
    content: Content | None = None
    content_absent: str | None = None
    content_note: str | None = None
    not_proved: str | None = None


def verify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A receipt or proof file; - reads stdin.")],
    genesis: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The genesis file to trust. By default that of $PARLEY_CONTEXT or the current context; never ./.parley by itself.",
        ),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option("--dir", metavar="DIR", help="The folder of the network whose genesis file to trust."),
    ] = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Check a receipt or proof file offline, against the genesis file and nothing else.

    Ends with 0 if it proves what it says, with 1 if it does not, with 2 if it could not be checked.
    """
    if genesis is not None and (directory is not None or context is not None):
        raise typer.BadParameter(
            "say --genesis, --dir or --context, not several of them.", param_hint="--genesis"
        )
    if directory == "":  # as from a variable that is not set: it would be the working folder
        raise typer.BadParameter("it names no folder.", param_hint="--dir")
    home = None if directory is None else Path(directory)
    path, source = (genesis, "--genesis") if genesis is not None else find_trust_root(home, context)
    trusted = read_genesis(path)
    verdict, proof = judge(_read(file), trusted, os.fsencode(path).decode(errors="backslashreplace"))
    output.emit(verdict, lambda: _on_screen(verdict, proof, source), as_json=json, holds=verdict.valid)


def judge(data: bytes, genesis: Genesis, path: str) -> tuple[Verdict, Proof | None]:
    """Whether the bytes prove a publication, an operation or an entry in the network of this genesis file."""
    application = application_of(genesis)
    application.require_version(genesis)
    trust = Trust(genesis, application.decode_leaf)
    what, asked, record = kind_of(data), None, None
    try:
        proof = decode_proof(data)
        if isinstance(proof, PublicationProof):
            check_publication(proof, trust)
        elif isinstance(proof, OperationProof):
            asked = proof.check(trust, application)[0]
        else:
            record = proof.check(trust, application)
    except ProofError as error:
        return Verdict(False, what, None, str(error), path, genesis.network), None
    bitmap, committee = proof.anchor.qc.votes.bitmap, trust.committee_of(proof.anchor.header)
    verdict = Verdict(
        valid=True,
        what=what,
        height=proof.height,
        reason=None,
        genesis=path,
        network=genesis.network,
        time=proof.time,
        certified_height=proof.anchor.header.executed_height,
        shard=committee.shard,
        epoch=committee.epoch,
        signers=[committee.names[index] for index in voters(bitmap, committee.size) or ()],
        asked=by_name(asked),
        record=by_name(record),
        chain=genesis.chain.hex(),
        brokers=committee.size,
        allowed_faults=committee.faults,
        not_proved=NOT_PROVED[what],
    )
    verdict = _with_summary(verdict, proof)
    if verdict.content is not None and application.settings.get("payload", PLAIN) != PLAIN:
        verdict.content_note = SEALED
    return verdict, proof


def _with_summary(verdict: Verdict, proof: Proof) -> Verdict:
    match proof:
        case PublicationProof():
            verdict.topic, verdict.partition = proof.topic, proof.partition
            verdict.offset, verdict.count, verdict.publisher = proof.offset, proof.count, proof.publisher
            verdict.publisher_key = proof.batch.publisher.hex()
            if proof.message is None:
                verdict.content_absent = (
                    "the file proves the batch by its hash and does not hold the messages"
                )
            else:
                verdict.content = _content_of(proof.message.message)
        case OperationProof():
            verdict.publisher_key = proof.batch.publisher.hex()
            verdict.operation, verdict.code, verdict.publisher = proof.operation, proof.code, proof.client
        case EntryProof():
            verdict.table, verdict.key, verdict.found = proof.table, list(proof.key), proof.found
    return verdict


def _read(file: str) -> bytes:
    """At most one byte more than a proof may have: the decoder then says that it is too long."""
    if file == "-":
        require_stdin("FILE")
    try:
        with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            return stream.read(MAX_PROOF + 1)
    except OSError as error:
        output.fail(f"{file}: {error.strerror}", output.ExitCode.WRONG_USE)


def _on_screen(verdict: Verdict, proof: Proof | None, source: str) -> str:
    """The result as text for a terminal, with the verdict on its last screen."""
    told = output.folded(_tell(verdict, proof, source))
    if told.count("\n") < MAX_LINES:
        return told
    return f"{told}\n{'Valid' if verdict.valid else 'NOT VALID'}: see the first line."


def _tell(verdict: Verdict, proof: Proof | None, source: str) -> str:
    used = _one_line(
        f"Checked against {verdict.genesis} ({source}), the genesis file of network {verdict.network}."
    )
    if proof is None or verdict.signers is None:
        return f"NOT VALID: {_cut(_one_line(str(verdict.reason)[: MAX_LINE + 1]))}\n{used}"
    certified = (
        f"Certified up to block {verdict.certified_height} of shard {verdict.shard} by a quorum: {', '.join(verdict.signers)}. "
        f"These are {len(verdict.signers)} of {verdict.brokers} brokers; of the {verdict.brokers}, {verdict.allowed_faults} may be "
        f"faulty."
    )
    whose = "Key of the publisher" if isinstance(proof, PublicationProof) else "Key that signed the operation"
    key = [] if verdict.publisher_key is None else [f"{whose}: {verdict.publisher_key}"]
    content = _content(proof) if isinstance(proof, PublicationProof) else _held(verdict)
    if verdict.content_note is not None:
        content.append(f"Of the content: {verdict.content_note}.")
    chain = f"Fingerprint of the chain: {verdict.chain}"
    return "\n".join(
        [*_said(proof), *key, certified, *content, used, chain, f"Not proved: {verdict.not_proved}."]
    )


def _said(proof: Proof) -> list[str]:
    moment = _moment(proof.time)
    match proof:
        case PublicationProof():
            last = proof.offset + proof.count - 1
            what = f"message {proof.offset}" if proof.count == 1 else f"messages {proof.offset} to {last}"
            who, topic = _line(proof.publisher) or "a key without a name", _line(proof.topic)
            return [
                f"Valid: {who} published {what} of topic {topic}, partition {proof.partition}.",
                f"It stands in block {proof.height} of {moment}, signed by its publisher.",
            ]
        case OperationProof():
            # A key that is no client's is an administrator's or a stranger's: the receipt does not say which.
            who = _line(proof.client) or f"key {proof.batch.publisher.hex()[:16]}"
            said = [
                f"Valid: {who} asked for {_line(proof.operation)}, and the outcome was {_line(proof.code)}.",
                f"It stands in block {proof.height} of {moment}, signed by the key that asked for it.",
            ]
            if proof.code == DUPLICATE or not is_final(proof.code):
                said.append(
                    "This outcome decides nothing: the operation may have taken effect in another block."
                )
            return said
        case EntryProof():
            there = "holds this entry" if proof.found else "has no such entry"
            key = _cut(" ".join(map(_part, proof.key)))
            return [
                f"Valid: table {proof.table} {there}: {key}.",
                f"So it was at height {proof.height}, {moment}.",
            ]


def _content(proof: PublicationProof) -> list[str]:
    """What was said, as far as it can be shown on one line of any terminal."""
    if proof.message is None:
        return ["The file proves the whole batch by its hash; it does not hold the messages."]
    message = proof.message.message
    header = decode_message_header(message.header)
    more = " ..." if len(message.payload) > MAX_SHOWN else ""
    shown = _one_line(message.payload[:MAX_SHOWN].decode(errors="surrogateescape"))
    lines = [f"Content ({len(message.payload)} bytes): {shown}{more}"]
    if header.key is not None:
        lines.append(f"Key of the message: {_cut(_one_line(header.key.decode(errors='surrogateescape')))}")
    if header.headers:
        told = ", ".join(
            f"{_quoted(name)}={_quoted(data.decode(errors='surrogateescape'))}"
            for name, data in header.headers
        )
        lines.append(f"Headers: {_cut(told)}")
    if header.tags:
        tags = ", ".join(f"{name}={_value(value)}" for name, value in header.tags)
        lines.append(f"Tags: {_cut(tags)}")
    if message.rule:
        lines.append(f"Access rule: {_cut(_one_line(message.rule))}")
    return lines


def _held(verdict: Verdict) -> list[str]:
    """What an operation asked for, or what an entry holds."""
    told = [("Asked for", verdict.asked), ("Record", verdict.record)]
    return [f"{what}: {_short(output.json_line(held).decode())}" for what, held in told if held is not None]


def _short(text: str) -> str:
    return _cut(_one_line(text.rstrip("\n")[: MAX_HELD + 1]), MAX_HELD)


def _line(text: str) -> str:
    """Text of others on one line, and no more of it than fits."""
    return _cut(_one_line(text[: MAX_LINE + 1]))


def _cut(line: str, limit: int = MAX_LINE) -> str:
    """The beginning of a line, so that it does not push the others off the screen."""
    return line if len(line) <= limit else line[:limit] + " ..."


def _content_of(message: Message) -> Content:
    header = decode_message_header(message.header)
    value, encoding = text_of(message.payload)
    return Content(value, encoding, dict(header.tags), message.rule, header.key, list(header.headers))


def _moment(time: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        # A calendar ends with the year 9999, a certified number need not.
        return f"{time} ms after 1970"


def _value(value: Value) -> str:
    """A tag's value; text that is more than a word stands in quotes, so that one value cannot look like two tags."""
    if not isinstance(value, str):
        return str(value).lower()
    return value if _WORD.fullmatch(value) else _quoted(value)


def _quoted(text: str) -> str:
    return '"' + _one_line(text).replace('"', '\\"') + '"'


def _part(part: int | str) -> str:
    """A part of a key; text that is no plain name stands in quotes and escaped, however much it looks like a name."""
    if isinstance(part, int) or _PLAIN.fullmatch(part):
        return str(part)
    return '"' + part.encode("unicode_escape").decode().replace('"', '\\"') + '"'


def _one_line(text: str) -> str:
    """Text of others with all that breaks lines, turns them or cannot be seen made visible."""
    return "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter == "\\":
        return letter * 2
    if "\udc80" <= letter <= "\udcff":  # a byte that is no text
        return f"\\x{ord(letter) - 0xDC00:02x}"
    plain = letter.isprintable() and not _BLANK.match(letter)
    return letter if plain else letter.encode("unicode_escape").decode()
