"""Writes the vectors of proofs and the example in docs/proof-format.md; the same code writes the same bytes.

python -m tests.verifier.vectors --write
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.application.world import Signed
from tests.verifier.forgeries import (
    Forged,
    in_absence,
    in_anchor,
    in_batch,
    in_block,
    in_certificate,
    in_entry,
    in_form,
    in_message,
    in_operation,
    in_presence,
    in_spelling,
    in_summary,
)
from tests.verifier.geneses import in_genesis
from tests.verifier.liars import Liars, published_as_operation, strange_entries
from tests.verifier.stories import Story

from parley.applications import VERSION
from parley.client.proofs import EntryProof, OperationProof, Proof, encode_proof
from parley.consensus.committee import faults, quorum
from parley.consensus.types import Header, Instance
from parley.crypto import merkle
from parley.crypto.encoding import enc
from parley.crypto.hashing import digest
from parley.crypto.qc import voters
from parley.ledger.proofs import history_leaf
from parley.model import leaves as leaf_tree
from parley.model.batches import Message, decode_message_header, digest_of
from parley.modules.publishing.proof import PublicationProof

COMMAND = ".venv/bin/python -m tests.verifier.vectors --write"
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "vectors" / "proofs"
PAGE = ROOT / "docs" / "proof-format.md"
SIZES = (1, 4, 7)
EXAMPLE = "message"  # of the network of one broker
HEADING = "## A worked example\n"
WIDTH = 96  # characters of a line of the example
RUN = re.compile(rb'(AAAA|,\n +"auditor")\1{99,}')  # what is described instead of stored


@cache
def story(brokers: int) -> Story:
    return Story(brokers)


def file_of(brokers: int) -> Path:
    return FOLDER / f"{brokers}-brokers.json"


# -- what a valid file shows, and the values on the way ----------------------------------------------------------------


def shown(network: Story, proof: Proof) -> dict[str, Any]:
    """What a verifier shows of it; bytes are hexadecimal digits."""
    brokers = network.network.genesis.brokers
    signers = voters(proof.anchor.qc.votes.bitmap, len(brokers)) or ()
    found: dict[str, Any] = {
        "certified_height": proof.anchor.header.executed_height,
        "signers": [brokers[index].name for index in signers],
        "height": proof.height,
        "time": proof.time,
    }
    match proof:
        case PublicationProof():
            found |= {
                name: getattr(proof, name) for name in ("topic", "partition", "offset", "count", "publisher")
            }
            if proof.message is not None:
                found |= _content(proof.message.message)
        case OperationProof():
            found |= {name: getattr(proof, name) for name in ("operation", "client", "code")}
            found["payload"] = proof.message.payload.hex()
        case EntryProof():
            value = proof.entry.value
            found |= {"table": proof.table, "key": list(proof.key), "found": proof.found}
            found["value"] = None if value is None else value.hex()
    if not isinstance(proof, EntryProof):
        found["publisher_key"] = proof.batch.publisher.hex()
    return found


def _content(message: Message) -> dict[str, Any]:
    header = decode_message_header(message.header)
    return {
        "payload": message.payload.hex(),
        "rule": message.rule,
        "key": None if header.key is None else header.key.hex(),
        "tags": [list(tag) for tag in header.tags],
        "headers": [[name, value.hex()] for name, value in header.headers],
    }


def steps(proof: Proof) -> dict[str, str]:
    """Intermediate values, in hexadecimal digits."""
    header = proof.anchor.header
    instance = Instance(header.chain, header.shard, header.epoch, 0, header.version)
    found = {
        "certified_header_bytes": header_bytes(header),
        "certified_id": header.id(),
        "vote_signed": instance.vote_message(header.view, header.id()),
    }
    if isinstance(proof, EntryProof):
        found |= {"state_key": digest("state/key", proof.entry.key), "state_root": header.state_root}
        if proof.entry.value is not None:
            found["state_value"] = digest("state/value", proof.entry.value)
    else:
        found |= _block_steps(proof) | _batch_steps(proof)
    return {name: value.hex() for name, value in found.items()}


def header_bytes(header: Header) -> bytes:
    """What the id of a block is the hash of, after the domain."""
    governance, tc = header.governance, header.tc
    numbers = {"version": 2, "shard": 4, "proposer": 2}
    items: list[bytes] = []
    for name in header.__struct_fields__:
        value = getattr(header, name)
        if isinstance(value, int):
            items.append(value.to_bytes(numbers.get(name, 8), "big"))
        elif isinstance(value, bytes):
            items.append(value)
    pin = [governance.height.to_bytes(8, "big"), governance.id]
    items = [*items[:9], *pin, *items[9:], header.justify.encode(), tc.encode() if tc else b""]
    assert digest("block/id", *items) == header.id()
    return enc(*items)


def _block_steps(proof: PublicationProof | OperationProof) -> dict[str, bytes]:
    shown = proof.receipt
    identity = shown.header.id()
    leaf = history_leaf(shown.header.height, identity, shown.receipts_root, shown.receipts.size)
    (receipt,) = shown.leaves
    return {
        "receipt": receipt,
        "receipt_node": merkle.leaf_hash(receipt),
        "receipts_root": shown.receipts_root,
        "block_header_bytes": header_bytes(shown.header),
        "block_id": identity,
        "history_leaf": leaf,
        "history_leaf_node": merkle.leaf_hash(leaf),
        "history_root": proof.anchor.header.history_root,
    }


def _batch_steps(proof: PublicationProof | OperationProof) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    held = proof.message
    message = held if isinstance(held, Message) else held.message if held else None
    if message is not None:
        withheld = message.withheld()
        found |= {
            "header_commitment": withheld.header,
            "payload_commitment": withheld.payload,
            "message_leaf": message.leaf(),
        }
    if isinstance(proof, PublicationProof):
        root = proof.root
        if proof.message is not None:
            found["group_node"] = merkle.leaf_hash(proof.message.path.group)
    else:
        root = leaf_tree.root([proof.message.leaf()])
    name = digest_of(proof.batch, root)
    return found | {
        "batch_header_bytes": proof.batch.encode(),
        "batch_root": root,
        "digest": name,
        "batch_signed": enc(b"PSB1/sig/batch", proof.batch.chain, name),
    }


# -- files of vectors --------------------------------------------------------------------------------------------------


def forged(brokers: int, files: dict[str, bytes]) -> Iterator[tuple[str, Forged]]:
    """The refused files of a network, by the valid one that they were made of."""
    told = story(brokers)
    yield "odd", in_anchor(files["odd"])
    yield "odd", in_certificate(files["odd"], brokers)
    yield "absent", in_absence(files["absent"], told.network.genesis)
    yield "topic", in_presence(files["topic"])
    if brokers != 4:
        return
    yield "message", in_form(files["message"])
    yield "odd", in_block(files["odd"])
    for forgeries in (in_batch, in_message, in_summary):
        yield "many-16", forgeries(files["many-16"])
    liars = Liars(told)
    yield "message", liars.forge(told.network.publication(told.plain, 0))
    yield "message", liars.outcomes(told.network.publication(told.plain, 0))
    yield "message", liars.too_large(told.network.publication(told.plain, 0))
    yield "refused", in_operation(files["refused"])
    yield "refused", in_spelling(files["refused"])
    yield "subscribe", liars.operations(told.network.operation(told.subscribed))
    yield "subscribe", liars.outcomes(told.network.operation(told.subscribed))
    yield "message", _as_operation(told, told.plain)
    yield "topic", in_entry(files["topic"])
    yield "topic", in_spelling(files["topic"])
    yield "absent", strange_entries(told.network, files["absent"])


def _as_operation(told: Story, signed: Signed) -> Forged:
    made = published_as_operation(told.network.publication(signed, 0))
    yield "as-operation", "a publication in the form of an operation", made, "receipt"


def splice(base: bytes, data: bytes) -> list[object]:
    """Offset, how many bytes go, and which come in their place, in hexadecimal digits."""
    most = min(len(base), len(data))
    first = next((at for at in range(most) if base[at] != data[at]), most)
    behind = next((at for at in range(most - first) if base[-1 - at] != data[-1 - at]), most - first)
    return [first, len(base) - behind - first, data[first : len(data) - behind].hex()]


def spliced(base: bytes, change: list[Any]) -> bytes:
    first, gone, come = change
    return base[:first] + bytes.fromhex(come) + base[first + gone :]


def change(base: bytes, data: bytes) -> dict[str, Any]:
    """How a file is made of another one; a long run of the same bytes is described, not stored."""
    found = RUN.search(data)
    if found is None:
        return {"splice": splice(base, data)}
    once, times = found[1], len(found[0]) // len(found[1])
    short = data[: found.start()] + once + data[found.end() :]
    return {"splice": splice(base, short), "repeat": [found.start(), len(once), times]}


def made_of(base: bytes, one: dict[str, Any]) -> bytes:
    """The refused file that a file of vectors describes."""
    data = spliced(base, one["splice"])
    if "repeat" not in one:
        return data
    first, length, times = map(int, one["repeat"])
    return data[:first] + data[first : first + length] * times + data[first + length :]


def made(brokers: int) -> dict[str, Any]:
    """The vectors of one network."""
    told = story(brokers)
    genesis = told.network.genesis
    valid = list(told.valid())
    files = {one.name: encode_proof(one.proof) for one in valid}
    invalid = [
        {
            "name": f"{base}/{name}",
            "about": about,
            "base": base,
            **change(files[base], data),
            "refusal": refusal,
        }
        for base, forgeries in forged(brokers, files)
        for name, about, data, refusal in forgeries
    ]
    other = SIZES[(SIZES.index(brokers) + 1) % len(SIZES)]
    invalid.append(
        {
            "name": "message/foreign",
            "about": "a file of another network",
            "base": "message",
            "splice": [0, 0, ""],
            "refusal": "network",
            "genesis": file_of(other).name,
        }
    )
    whole = told.network.genesis_file()
    geneses = in_genesis(whole) if brokers == 4 else ()
    return {
        "about": "Vectors of docs/proof-format.md, which says what the fields are.",
        "application": VERSION,
        "brokers": brokers,
        "allowed_faults": faults(brokers),
        "quorum": quorum(brokers),
        "genesis": whole.decode(),
        "chain": genesis.chain.hex(),
        "genesis_signed": enc(b"PSB1/sig/genesis", genesis.chain).hex(),
        "valid": [
            {
                "name": one.name,
                "about": one.about,
                "file": files[one.name].decode(),
                "shows": shown(told, one.proof),
                "steps": steps(one.proof),
            }
            for one in valid
        ],
        "invalid": invalid,
        "invalid_genesis": [
            {"name": name, "about": about, **change(whole, data)} for name, about, data in geneses
        ],
    }


def written(brokers: int) -> str:
    return json.dumps(made(brokers), ensure_ascii=False, indent=1) + "\n"


# -- the example on the page -------------------------------------------------------------------------------------------


def example(vectors: dict[str, Any]) -> str:
    """The section of the page that follows one file through all its hashes."""
    one = next(found for found in vectors["valid"] if found["name"] == EXAMPLE)
    lines = [
        HEADING,
        f"The file `{EXAMPLE}` of `{file_of(1).name}`: a network of one broker, in which `hello` was",
        "published. The names are explained [above](#intermediate-values). A value that is longer",
        "than a line goes on in the next.",
        "",
        "```",
        *_wrapped("chain", vectors["chain"]),
    ]
    for name in one["steps"]:
        lines += _wrapped(name, one["steps"][name])
    return "\n".join([*lines, "```", ""])


def _wrapped(name: str, value: str) -> list[str]:
    return [name, *("    " + value[at : at + WIDTH - 4] for at in range(0, len(value), WIDTH - 4))]


def page(text: str, vectors: dict[str, Any]) -> str:
    """The page with the example and the version of these vectors."""
    text = re.sub(r"(?m)^\| `APPLICATION` \| \d+ \|", f"| `APPLICATION` | {VERSION} |", text)
    return text[: text.index(HEADING)] + example(vectors)


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for brokers in SIZES:
        file_of(brokers).write_text(written(brokers), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page(text, json.loads(written(1))), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {COMMAND}")
    write()
