"""Files that a verifier has to refuse, each made of a valid one, with the class of the refusal that the page gives."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from parley.consensus.committee import committees_of
from parley.consensus.types import genesis_qc
from parley.crypto.hashing import digest
from parley.ledger.proofs import Anchor
from parley.ledger.state_map import EMPTY_ROOT
from parley.model.genesis import Genesis

GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
Path = tuple[str | int, ...]
Forged = Iterator[tuple[str, str, bytes, str]]  # name, what was done, the file, the class of the refusal


def compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def at(data: bytes, path: Path) -> Any:  # noqa: ANN401 - JSON
    value = json.loads(data)
    for step in path:
        value = value[step]
    return value


def put(data: bytes, path: Path, new: object) -> bytes:
    """The file with another value at a place."""
    value = json.loads(data)
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return compact(value)


def flipped(text: str, place: int = 0) -> str:
    """Base64 of bytes, one of which has another lowest bit."""
    raw = bytearray(base64.b64decode(text))
    raw[place] ^= 1
    return base64.b64encode(raw).decode()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def in_form(data: bytes) -> Forged:
    """The same content in other bytes, and what is no file of this format at all."""
    return ((name, about, changed, "form") for name, about, changed in _in_form(data))


def _in_form(data: bytes) -> Iterator[tuple[str, str, bytes]]:
    text = data.decode()
    yield "no-line-feed", "without the line feed at the end", data[:-1]
    yield "two-line-feeds", "with another line feed at the end", data + b"\n"
    yield "carriage-return", "with CR LF at the end", data[:-1] + b"\r\n"
    yield "byte-order-mark", "with a byte order mark", b"\xef\xbb\xbf" + data
    yield "space", "with a space after a comma", text.replace(",", ", ", 1).encode()
    yield "unknown-field", "with a field more", data[:-2] + b',"more":1}\n'
    yield "duplicate-field", "with a field twice", data[:-2] + b',"time":0}\n'
    yield "missing-field", "without `epochs`", text.replace(',"epochs":[]', "").encode()
    value = json.loads(data)
    yield "other-order", "with the last field first", compact(dict(reversed(value.items())))
    yield "fraction", "with the partition as 0.0", text.replace('"partition":0', '"partition":0.0').encode()
    yield "minus-zero", "with the partition as -0", text.replace('"partition":0', '"partition":-0').encode()
    yield "number-as-text", "with a number as text", put(data, ("height",), str(value["height"]))
    yield "boolean-as-number", "with a boolean as a number", put(data, ("partition",), False)
    yield (
        "escaped-letter",
        "with a letter as an escape",
        text.replace("wards/er", "\\u0077ards/er", 1).encode(),
    )
    yield "escaped-slash", "with a slash as an escape", text.replace("wards/er", "wards\\/er", 1).encode()
    yield "surrogate", "with half a surrogate pair", text.replace("wards/er", "\\ud800", 1).encode()
    yield "not-utf-8", "with a byte that is no UTF-8", text.encode().replace(b"wards/er", b"wards\xff", 1)
    root = value["root"]
    last = root[:-2] + chr(ord(root[-2]) + 1) + "="
    yield "base64-bits", "with an unused bit of Base64 set", put(data, ("root",), last)
    yield "base64-padding", "with Base64 without padding", put(data, ("root",), root.rstrip("="))
    yield "base64-space", "with a line feed within Base64", put(data, ("root",), root + "\n")
    yield "short-hash", "with a hash of 31 bytes", put(data, ("root",), b64(bytes(31)))
    yield "old-format", "of an older format", put(data, ("format",), "parley publication proof 2")
    yield "other-kind", "with the format of another kind", put(data, ("format",), "parley operation proof 2")
    yield "null", "null", b"null\n"
    yield "nothing", "an empty file", b""
    yield "too-large-number", "with a number of 2^62", put(data, ("time",), 2**62)
    yield "withheld", "with the commitments in place of the message", _withheld(data)


def in_spelling(data: bytes) -> Forged:
    """The same content of any file in other bytes."""
    yield "no-line-feed", "without the line feed at the end", data[:-1], "form"
    yield "two-line-feeds", "with another line feed at the end", data + b"\n", "form"
    yield "space", "with a space after a comma", data.replace(b",", b", ", 1), "form"
    yield "duplicate-field", "with a field twice", data[:-2] + b',"time":0}\n', "form"
    other = compact(dict(reversed(json.loads(data).items())))
    yield "other-order", "with the last field first", other, "form"


def _withheld(data: bytes) -> bytes:
    return put(data, ("message", "message"), [1, b64(bytes(32)), "", b64(bytes(32))])


def in_anchor(data: bytes) -> Forged:
    """What is wrong with the certified header."""
    qc, header = ("anchor", 1), ("anchor", 0)
    yield "chain", "a header of another chain", put(data, (*header, 1), b64(bytes(32))), "network"
    yield "shard", "a header of shard 1", put(data, (*header, 2), 1), "network"
    yield "epoch", "a header of epoch 1", put(data, (*header, 3), 1), "network"
    version = at(data, (*header, 0)) + 1
    yield "version", "a header of the next version", put(data, (*header, 0), version), "version"
    names = "version chain shard epoch height view parent proposer time governance batches_root executed_height state_root"
    for place in (4, 5, 7, 8, 11):
        field = names.split()[place]
        changed = put(data, (*header, place), at(data, (*header, place)) + 1)
        yield f"header-{field}", f"another {field} of the header", changed, "certificate"
    for place, field in ((6, "parent"), (10, "batches_root"), (12, "state_root"), (13, "history_root")):
        changed = put(data, (*header, place), flipped(at(data, (*header, place))))
        yield f"header-{field}", f"another {field} of the header", changed, "certificate"
    pin = (*header, 9, 0)
    yield "header-governance", "another governance height", put(data, pin, 1), "certificate"
    justify = (*header, 14, 3, 0)
    changed = put(data, justify, flipped(at(data, justify)))
    yield "header-justify", "other signers in the header's own QC", changed, "certificate"
    tc = [0, 1, [0], [at(data, justify), at(data, (*header, 14, 3, 1))]]
    yield "header-tc", "a TC that the header did not have", put(data, (*header, 15), tc), "certificate"
    yield "qc-epoch", "a certificate of epoch 1", put(data, (*qc, 0), 1), "certificate"
    view = at(data, (*qc, 1)) + 1
    yield "qc-view", "a certificate of another view", put(data, (*qc, 1), view), "certificate"
    block = flipped(at(data, (*qc, 2)))
    yield "qc-block", "a certificate of another block", put(data, (*qc, 2), block), "certificate"


def in_certificate(data: bytes, size: int) -> Forged:
    """What is wrong with the votes for the certified header."""
    votes: Path = ("anchor", 1, 3)
    bitmap, signatures = (base64.b64decode(at(data, (*votes, part))) for part in (0, 1))
    for name, about, signers, joined in (
        ("no-signers", "a certificate of nobody", bytes(1), b""),
        ("too-few", "one signer less than a quorum", *_without_first(bitmap, signatures)),
        ("unknown-signer", "a signer that is not in the committee", _with_bit(bitmap, size), signatures),
        ("long-bitmap", "a bitmap with a byte more", bitmap + b"\0", signatures),
        ("empty-bitmap", "a bitmap without bytes", b"", signatures),
        ("signature-more", "a signature more than signers", bitmap, signatures + signatures[:64]),
        ("signature-cut", "signatures without the last byte", bitmap, signatures[:-1]),
        ("malleated", "S + L in place of S", bitmap, malleated(signatures)),
        ("forged", "a signature with another bit", bitmap, bytes([signatures[0] ^ 1]) + signatures[1:]),
        ("swapped", "signatures in another order", bitmap, signatures[64:] + signatures[:64]),
    ):
        if name == "swapped" and len(signatures) == 64:
            continue
        yield name, about, put(data, votes, [b64(signers), b64(joined)]), "certificate"
    if size > 1:
        moved = 1 << size - 1 if not bitmap[0] >> size - 1 & 1 else 0
        other = bytes([bitmap[0] & bitmap[0] - 1 | moved])
        if moved:
            changed = put(data, (*votes, 0), b64(other))
            yield "other-signer", "another signer named for a signature", changed, "certificate"
        doubled = b64(signatures[:64] * (len(signatures) // 64))
        yield "one-signer", "one signature as often as needed", put(data, (*votes, 1), doubled), "certificate"


def _without_first(bitmap: bytes, signatures: bytes) -> tuple[bytes, bytes]:
    return bytes([bitmap[0] & bitmap[0] - 1]), signatures[64:]


def _with_bit(bitmap: bytes, bit: int) -> bytes:
    return bytes([bitmap[0] | 1 << bit])


def malleated(signatures: bytes) -> bytes:
    scalar = int.from_bytes(signatures[32:64], "little") + GROUP_ORDER
    return signatures[:32] + scalar.to_bytes(32, "little") + signatures[64:]


def in_block(data: bytes) -> Forged:
    """What is wrong with the block and its receipts; the block has several."""
    block = ("receipt",)
    for place, field in ((4, "height"), (8, "time"), (11, "executed_height")):
        changed = put(data, (*block, 0, place), at(data, (*block, 0, place)) + 1)
        yield f"block-{field}", f"another {field} of the block", changed, "history"
    root, chain = (*block, 1), (*block, 0, 1)
    yield "block-chain", "a block of another chain", put(data, chain, flipped(at(data, chain))), "history"
    yield "receipts-root", "another root of the receipts", put(data, root, flipped(at(data, root))), "history"
    for place, field in ((0, "index"), (1, "size")):
        for step in (-1, 1):
            path = (*block, 2, place)
            changed = put(data, path, at(data, path) + step)
            yield f"history-{field}{step:+}", f"another {field} in the history", changed, "history"
    nodes = at(data, (*block, 2, 2))
    path = (*block, 2, 2)
    yield "history-node", "another node of the history", put(data, (*path, 0), flipped(nodes[0])), "history"
    yield "history-long", "a node more", put(data, path, [*nodes, nodes[0]]), "history"
    yield "history-short", "a node less", put(data, path, nodes[:-1]), "history"
    yield "history-width", "a node of 31 bytes", put(data, (*path, 0), b64(bytes(31))), "history"
    size = at(data, (*block, 4, 0))
    for other in (0, size - 1, size + 1, 2 * size, 2**32):
        changed = put(data, (*block, 4, 0), other)
        yield f"receipts-size-{other}", f"{other} receipts in a block of {size}", changed, "history"
    leaf, index = (*block, 3, 0), (*block, 4, 1)
    changed = put(data, leaf, flipped(at(data, leaf), -1))
    yield "receipt-leaf", "another receipt", changed, "receipts"
    yield (
        "receipt-index",
        "another place in the block",
        put(data, (*index, 0), at(data, index)[0] + 1),
        "receipts",
    )
    yield "receipt-index-beyond", "a place beyond the block", put(data, (*index, 0), size), "receipts"
    yield "receipt-indices", "two places for one receipt", put(data, index, [0, 1]), "receipts"
    siblings = at(data, (*block, 4, 2))
    path = (*block, 4, 2)
    yield "receipt-long", "a sibling more", put(data, path, [*siblings, siblings[0]]), "receipts"
    yield "receipt-short", "a sibling less", put(data, path, siblings[:-1]), "receipts"


def in_batch(data: bytes) -> Forged:
    """What is wrong with the batch that the receipt names, or with its signature."""
    names = [
        "format",
        "chain",
        "shard",
        "kind",
        "topic",
        "topic_id",
        "partition",
        "publisher",
        "session",
        "sequence",
        "count",
        "not_after",
    ]
    batch: Path = ("batch",)
    for place in (2, 3, 6, 9, 10, 11):
        changed = put(data, (*batch, place), at(data, (*batch, place)) + 1)
        yield f"batch-{names[place]}", f"another {names[place]} of the batch", changed, "digest"
    for place in (1, 7, 8):
        changed = put(data, (*batch, place), flipped(at(data, (*batch, place))))
        yield f"batch-{names[place]}", f"another {names[place]} of the batch", changed, "digest"
    yield "batch-topic", "another topic of the batch", put(data, (*batch, 4), "wards/es"), "digest"
    for place, what in enumerate(("height", "position")):
        changed = put(data, (*batch, 5, place), at(data, (*batch, 5, place)) + 1)
        yield f"batch-topic-id-{what}", f"another {what} of the topic's id", changed, "digest"
    yield (
        "batch-root",
        "another root of the batch",
        put(data, ("root",), flipped(at(data, ("root",)))),
        "digest",
    )
    signature = base64.b64decode(at(data, ("signature",)))
    for name, about, other in (
        ("signature", "another signature of the publisher", bytes([signature[0] ^ 1]) + signature[1:]),
        ("signature-malleated", "S + L in the publisher's signature", malleated(signature)),
        ("signature-zero", "a signature of zeros", bytes(64)),
    ):
        yield name, about, put(data, ("signature",), b64(other)), "signature"


def in_message(data: bytes) -> Forged:
    """What is wrong with the message or its place; its batch has forty."""
    message: Path = ("message", "message")
    for place, field in ((1, "salt"), (2, "header"), (4, "payload")):
        changed = put(data, (*message, place), flipped(at(data, (*message, place))))
        yield f"message-{field}", f"another {field} of the message", changed, "message"
    yield "message-rule", "an access rule that was not there", put(data, (*message, 3), "a == 1"), "message"
    leaf: Path = ("message", "path")
    for index in (17, 32, 40, 2**32 - 1):
        changed = put(data, (*leaf, 0), index)
        yield f"message-index-{index}", f"a message said to be number {index}", changed, "message"
    changed = put(data, (*leaf, 1), flipped(at(data, (*leaf, 1))))
    yield "message-group", "another leaf in the group", changed, "message"
    group = base64.b64decode(at(data, (*leaf, 1)))
    yield (
        "message-group-cut",
        "a group without its last leaf",
        put(data, (*leaf, 1), b64(group[:-32])),
        "message",
    )
    for part, field in ((0, "index"), (1, "size")):
        path = (*leaf, 2, part)
        changed = put(data, path, at(data, path) + 1)
        yield f"message-path-{field}", f"another {field} of the group", changed, "message"
    path = (*leaf, 2, 2, 0)
    yield "message-path-node", "another node of the path", put(data, path, flipped(at(data, path))), "message"


def in_summary(data: bytes) -> Forged:
    """What the first fields say in words, of a message of a batch."""
    yield "epochs", "governance epochs, of which there are none", put(data, ("epochs",), [""]), "epochs"
    for field, other in (
        ("topic", "wards/es"),
        ("partition", 1),
        ("offset", at(data, ("offset",)) + 1),
        ("count", 2),
        ("publisher", "hospital-b/alice"),
        ("height", at(data, ("height",)) + 1),
        ("time", at(data, ("time",)) + 1),
    ):
        yield f"summary-{field}", f"another {field} in the summary", put(data, (field,), other), "summary"
    whole = put(data, ("message",), None)
    yield "summary-whole", "without the message, and said to be of it still", whole, "summary"


# -- operations and entries --------------------------------------------------------------------------------------------


def in_operation(data: bytes) -> Forged:
    for field, value in (
        ("operation", "revoke_client"),
        ("client", "hospital-b/alice"),
        ("code", "Ok"),
        ("height", at(data, ("height",)) + 1),
        ("time", at(data, ("time",)) + 1),
    ):
        yield f"summary-{field}", f"another {field} in the summary", put(data, (field,), value), "summary"
    path = ("message", 4)
    yield "payload", "another operation", put(data, path, flipped(at(data, path), -1)), "digest"
    yield "kind", "a batch of another kind", put(data, ("batch", 3), 0), "receipt"
    yield "last-height", "another last height", put(data, ("batch", 11), 0), "digest"
    signature = flipped(at(data, ("signature",)))
    yield "signature", "another signature", put(data, ("signature",), signature), "signature"


def in_entry(data: bytes) -> Forged:
    entry = ("entry",)
    for field, value in (
        ("table", "name"),
        ("key", ["wards/es"]),
        ("found", False),
        ("height", at(data, ("height",)) + 1),
        ("time", at(data, ("time",)) + 1),
    ):
        yield f"summary-{field}", f"another {field} in the summary", put(data, (field,), value), "summary"
    value = at(data, (*entry, 1))
    yield "value", "another value", put(data, (*entry, 1), flipped(value, -1)), "state"
    yield "value-none", "said to be absent", put(data, (*entry, 1), None), "state"
    key = at(data, (*entry, 0))
    yield "key", "another key", put(data, (*entry, 0), flipped(key, -2)), "state"
    levels = (*entry, 2, 0)
    below = at(data, levels)
    yield "level", "another bitmap", put(data, (*levels, 0), flipped(below[0], 1)), "state"
    yield "level-node", "another node", put(data, (*levels, 0), flipped(below[0], 2)), "state"
    yield "level-less", "a level less", put(data, levels, below[:-1]), "state"
    yield "level-more", "a level more", put(data, levels, [*below, below[0]]), "state"
    yield "other", "another leaf beside the value", put(data, (*entry, 2, 1), b64(bytes(64))), "state"


def in_absence(data: bytes, genesis: Genesis) -> Forged:
    """What is wrong with an absence, where another leaf is in the way."""
    other = at(data, ("entry", 2, 1))
    yield "absent-other", "another leaf in the way", put(data, ("entry", 2, 1), flipped(other, -1)), "state"
    yield "absent-none", "no leaf in the way", put(data, ("entry", 2, 1), None), "state"
    yield "absent-value", "a value that is not there", put(data, ("entry", 1), b64(b"x")), "state"
    yield "absent-key", "another key", put(data, ("entry", 0), b64(b"topic/none\0")), "state"
    yield "uncertified", "the empty certificate of block 0", _uncertified(data, genesis), "certificate"


def in_presence(data: bytes) -> Forged:
    """An entry that there is, shown as absent: by what hides it on the way, and nothing else is wrong."""
    key, value = (base64.b64decode(at(data, ("entry", part))) for part in (0, 1))
    hashed = digest("state/key", key)
    own = hashed + digest("state/value", value)
    data = put(put(data, ("found",), False), ("entry", 1), None)
    yield "own-leaf", "an entry's own leaf in its way", put(data, ("entry", 2, 1), b64(own)), "state"
    last = len(at(data, ("entry", 2, 0))) - 1
    level = base64.b64decode(at(data, ("entry", 2, 0, last)))
    bit = 1 << int(hashed.hex()[last], 16)
    place = 2 + 32 * (int.from_bytes(level[:2], "big") & bit - 1).bit_count()
    whole = level[:place] + digest("state/leaf", hashed, own[32:]) + level[place:]
    made = put(data, ("entry", 2, 0, last), b64(whole))
    yield "whole-branch", "a branch with all its children, as if none were on the way", made, "state"


def _uncertified(data: bytes, genesis: Genesis) -> bytes:
    """The absence as of block 0, in whose empty state it is true, under the certificate that nobody signed."""
    (committee,) = committees_of(genesis)
    first = committee.first_block(EMPTY_ROOT, genesis.start_time)
    anchor = as_json(Anchor(first.header, genesis_qc(committee.instance, first)))
    for path, value in (
        (("anchor",), anchor),
        (("entry", 2), [[], None]),
        (("height",), 0),
        (("time",), first.header.time),
    ):
        data = put(data, path, value)
    return data


def as_json(value: object) -> Any:  # noqa: ANN401 - JSON
    return json.loads(msgspec.json.encode(value))
