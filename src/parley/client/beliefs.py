"""What a client believes of one answer (P7), before it looks at what the answer says.

`Certified` believes what a quorum's certificate covers. `Unproven` takes an answer at its word, for readers that compare
the answers of several brokers instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from msgspec import Struct

from parley.client.messages import Level
from parley.ledger.proofs import Anchor, BlockProof, ProofError, StateEntry, Trust
from parley.model.batches import Withheld
from parley.model.codec import DECODE_ERRORS
from parley.model.expressions import ExpressionError, parse_rule
from parley.model.names import Value
from parley.model.receipts import BatchReceipt, Leaf, decode_leaf
from parley.model.records import ClientRecord, client_key, decode_record
from parley.net.messages import Proven, Receipted

__all__ = [
    "Belief",
    "Ordered",
    "Reader",
    "Stale",
    "Unproven",
    "check_entries",
    "check_receipt",
    "check_receipts",
    "is_fresh",
    "receipt_of",
    "record_of",
    "require_hidden",
    "require_recent",
]

T = TypeVar("T", bound=Struct)


class Stale(Exception):  # noqa: N818 - it names the condition
    """What the broker shows may be true but is old; another one may be further on."""


class Belief(Protocol):
    """What one answer is taken to show; `Certified` is one."""

    @property
    def anchor(self) -> Anchor: ...

    @property
    def height(self) -> int: ...

    @property
    def time(self) -> int: ...

    def leaves(self, proof: BlockProof) -> tuple[Leaf, ...]: ...

    def value(self, entry: StateEntry, key: bytes) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Unproven:
    """An answer at its word."""

    anchor: Anchor

    @property
    def height(self) -> int:
        return self.anchor.header.executed_height

    @property
    def time(self) -> int:
        return self.anchor.header.time

    def leaves(self, proof: BlockProof) -> tuple[Leaf, ...]:
        try:
            return tuple(map(decode_leaf, proof.leaves))
        except ValueError as error:
            raise ProofError(f"a receipt of block {proof.header.height} cannot be read: {error}") from None

    def value(self, entry: StateEntry, key: bytes) -> bytes | None:
        if entry.key != key:
            raise ProofError("the broker showed another entry than the one asked for")
        return entry.value


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads, and what it takes for it to believe: `certified` checks every proof, the others compare answers."""

    trust: Trust
    key: bytes
    level: Level

    def believe(self, anchor: Anchor) -> Belief:
        return self.trust.certified(anchor) if self.level == "certified" else Unproven(anchor)

    def attributes(self, belief: Belief, entry: StateEntry | None, floor: int) -> Mapping[str, Value] | None:
        """What rules see of this reader, None if it is no live client; judged no earlier than `floor` (P7)."""
        if entry is None:
            raise ProofError("messages are withheld without a proof of what this reader may see")
        require_recent(belief, floor)
        record = record_of(ClientRecord, belief.value(entry, client_key(self.key)))
        return None if record is None or record.revoked else record.readable()


def require_hidden(content: Withheld, attributes: Mapping[str, Value] | None) -> None:
    """That the rule of an empty hides it from this reader indeed."""
    try:
        rule = parse_rule(content.rule)
    except ExpressionError as error:
        raise ProofError(f"a withheld message has a rule that cannot be read: {error}") from None
    if attributes is not None and rule.allows(attributes):
        raise ProofError(
            f"a message is withheld although its rule {rule.text!r} allows this reader to see it"
        )


def is_fresh(belief: Belief, now: int, freshness: int) -> bool:
    """Whether the header is new. One ahead of the clock is: no quorum signs times that are far ahead of theirs (P5)."""
    return now - belief.time <= freshness


def require_recent(belief: Belief, floor: int) -> None:
    if belief.height < floor:
        raise Stale(f"it is at height {belief.height}, and height {floor} was certified before")


@dataclass(frozen=True, slots=True)
class Ordered:
    """A batch's receipt and its block; brokers differ in the proof of them, and only in that."""

    receipt: BatchReceipt
    height: int
    time: int
    block: BlockProof = field(compare=False, repr=False)
    anchor: Anchor = field(compare=False, repr=False)
    at: int = field(default=0, compare=False, repr=False)  # which leaf of the proof it is


def check_receipts(belief: Belief, answer: Receipted) -> dict[bytes, Ordered]:
    """The receipts that an answer shows, by the digests of their batches."""
    leaves = belief.leaves(answer.proof)
    if len(leaves) != 1 + len(answer.others):
        raise ProofError("the answer to a batch is not one receipt")
    header, proof, anchor = answer.proof.header, answer.proof, answer.anchor
    found: dict[bytes, Ordered] = {}
    for at, leaf in enumerate(leaves):
        if not isinstance(leaf, BatchReceipt):
            raise ProofError("the answer to a batch is not one receipt")
        found[leaf.digest] = Ordered(leaf, header.height, header.time, proof, anchor, at)
    return found


def check_receipt(belief: Belief, answer: Receipted, name: bytes) -> Ordered:
    """The receipt of the batch whose digest is `name`."""
    return receipt_of(check_receipts(belief, answer), name)


def receipt_of(receipts: Mapping[bytes, Ordered], name: bytes) -> Ordered:
    if (found := receipts.get(name)) is None:
        raise ProofError("the receipt is that of another batch")
    return found


def check_entries(
    belief: Belief, answer: Proven, keys: Sequence[bytes], floor: int
) -> tuple[bytes | None, ...]:
    """The values under these keys, None where there is none; never from before what was seen already."""
    require_recent(belief, floor)
    if len(answer.entries) != len(keys):
        raise ProofError(f"{len(answer.entries)} entries were shown where {len(keys)} were asked for")
    return tuple(belief.value(entry, key) for entry, key in zip(answer.entries, keys, strict=True))


def record_of(kind: type[T], value: bytes | None) -> T | None:
    """An entry's record; that it cannot be read is the fault of whoever showed it."""
    try:
        return None if value is None else decode_record(kind, value)
    except DECODE_ERRORS as error:
        raise ProofError(f"a {kind.__name__} cannot be read: {error}") from None
