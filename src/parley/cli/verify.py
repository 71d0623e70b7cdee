"""`parley verify`: what a third party checks of a proof file, offline, with the genesis file alone (P7)."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from parley.applications import application_of
from parley.cli import output
from parley.cli.contexts import ContextName, Directory, find_genesis
from parley.cli.pubsub_format import visible
from parley.client.contexts import read_genesis
from parley.client.proofs import EntryProof, OperationProof, Proof, decode_proof
from parley.crypto.qc import voters
from parley.ledger.proofs import ProofError, Trust
from parley.model.batches import decode_message_header
from parley.model.genesis import Genesis
from parley.model.refusals import DUPLICATE, is_final
from parley.modules.publishing.proof import (
    MAX_PROOF,
    PublicationProof,
    check_publication,
)

MAX_SHOWN = 200  # bytes of a payload


class Verdict(Struct, omit_defaults=True):
    """What `verify` prints; the fields after `reason` only if the file is valid."""

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
    signers: list[str] | None = None
    operation: str | None = None
    code: str | None = None
    table: str | None = None
    key: list[object] | None = None
    found: bool | None = None


def verify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A receipt or proof file; - reads stdin.")],
    genesis: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The genesis file to trust; if not said, the context's."),
    ] = None,
    directory: Directory = None,
    context: ContextName = None,
    json: output.Json = False,
) -> None:
    """Check a receipt or proof file offline, against the genesis file and nothing else.

    Ends with 0 if it proves what it says, with 1 if it does not.
    """
    path = genesis or find_genesis(directory, context)
    trusted = read_genesis(path)
    verdict, proof = judge(_read(file), trusted, str(path))
    output.emit(verdict, lambda: _tell(verdict, proof), as_json=json, holds=verdict.valid)


def judge(data: bytes, genesis: Genesis, path: str) -> tuple[Verdict, Proof | None]:
    """Whether the bytes prove a publication, an operation or an entry in the network of this genesis file."""
    application = application_of(genesis)
    application.require_version(genesis)
    trust = Trust(genesis, application.decode_leaf)
    what = "publication"
    try:
        proof = decode_proof(data)
        if isinstance(proof, PublicationProof):
            check_publication(proof, trust)
        else:
            what = "operation" if isinstance(proof, OperationProof) else "entry"
            proof.check(trust, application)
    except ProofError as error:
        return Verdict(False, what, None, str(error), path, genesis.network), None
    bitmap = proof.anchor.qc.votes.bitmap
    verdict = Verdict(
        valid=True,
        what=what,
        height=proof.height,
        reason=None,
        genesis=path,
        network=genesis.network,
        time=proof.time,
        certified_height=proof.anchor.header.executed_height,
        signers=[genesis.brokers[index].name for index in voters(bitmap, len(genesis.brokers)) or ()],
    )
    return _with_summary(verdict, proof), proof


def _with_summary(verdict: Verdict, proof: Proof) -> Verdict:
    match proof:
        case PublicationProof():
            verdict.topic, verdict.partition = proof.topic, proof.partition
            verdict.offset, verdict.count, verdict.publisher = proof.offset, proof.count, proof.publisher
        case OperationProof():
            verdict.operation, verdict.code, verdict.publisher = proof.operation, proof.code, proof.client
        case EntryProof():
            verdict.table, verdict.key, verdict.found = proof.table, list(proof.key), proof.found
    return verdict


def _read(file: str) -> bytes:
    """At most one byte more than a proof may have: the decoder then says that it is too long."""
    if file == "-":
        return sys.stdin.buffer.read(MAX_PROOF + 1)
    with Path(file).open("rb") as stream:
        return stream.read(MAX_PROOF + 1)


def _tell(verdict: Verdict, proof: Proof | None) -> str:
    used = f"Checked against {verdict.genesis}, the genesis file of network {verdict.network}."
    if proof is None or verdict.signers is None:
        return f"NOT VALID: {verdict.reason}\n{used}"
    certified = f"Certified up to block {verdict.certified_height} by a quorum: {', '.join(verdict.signers)}."
    content = _content(proof) if isinstance(proof, PublicationProof) else []
    return "\n".join([*_said(proof), certified, *content, used])


def _said(proof: Proof) -> list[str]:
    moment = f"{datetime.fromtimestamp(proof.time / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    match proof:
        case PublicationProof():
            last = proof.offset + proof.count - 1
            what = f"message {proof.offset}" if proof.count == 1 else f"messages {proof.offset} to {last}"
            return [
                f"Valid: {proof.publisher} published {what} of topic {proof.topic}, partition {proof.partition}.",
                f"It stands in block {proof.height} of {moment}, signed by its publisher.",
            ]
        case OperationProof():
            # A key that is no client's is an administrator's or a stranger's: the receipt does not say which.
            who = proof.client or f"key {proof.batch.publisher.hex()[:16]}"
            said = [
                f"Valid: {who} asked for {proof.operation}, and the outcome was {proof.code}.",
                f"It stands in block {proof.height} of {moment}, signed by the key that asked for it.",
            ]
            if proof.code == DUPLICATE or not is_final(proof.code):
                said.append(
                    "This outcome decides nothing: the operation may have taken effect in another block."
                )
            return said
        case EntryProof():
            there = "holds this entry" if proof.found else "has no such entry"
            key = visible(" ".join(map(str, proof.key)).encode())
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
    lines = [f"Content ({len(message.payload)} bytes): {visible(message.payload[:MAX_SHOWN])}{more}"]
    if header.tags:
        lines.append("Tags: " + visible(", ".join(f"{name}={value}" for name, value in header.tags).encode()))
    if message.rule:
        lines.append(f"Access rule: {message.rule}")
    return lines
