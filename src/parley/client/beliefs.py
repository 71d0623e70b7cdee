"""What a client takes one answer to show (P7), before it looks at what the answer says.

`Certified` shows what a quorum's certificate covers. `UnverifiedView` takes an answer at its word, for readers that
compare the answers of several brokers instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from parley.application.tables import K, R, Table
from parley.client.messages import Level
from parley.ledger.proofs import Anchor, BlockProof, Certified, ProofError, StateEntry, Trust
from parley.model.batches import Withheld
from parley.model.codec import DECODE_ERRORS
from parley.model.expressions import ExpressionError, parse_rule
from parley.model.names import Value
from parley.model.principals import ClientRecord, Principal
from parley.model.receipts import BatchReceipt, Leaf, receipt_of
from parley.modules.registry.tables import CLIENTS
from parley.net.messages import Proven, Receipted


class Stale(Exception):  # noqa: N818 - it names the condition
    """What the broker shows may be true but is old; another one may be further on."""


class Behind(Stale):
    """The broker is some blocks behind what was seen elsewhere, as any of them is for a moment."""


@dataclass(frozen=True, slots=True)
class UnverifiedView:
    """An answer at its word."""

    anchor: Anchor
    decode_leaf: Callable[[bytes], Leaf] = field(compare=False, repr=False)

    @property
    def height(self) -> int:
        return self.anchor.header.executed_height

    @property
    def time(self) -> int:
        return self.anchor.header.time

    def leaves(self, proof: BlockProof) -> tuple[Leaf, ...]:
        try:
            return tuple(map(self.decode_leaf, proof.leaves))
        except ValueError as error:
            raise ProofError(f"a receipt of block {proof.header.height} cannot be read: {error}") from None

    def value(self, entry: StateEntry, key: bytes) -> bytes | None:
        if entry.key != key:
            raise ProofError("the broker showed another entry than the one asked for")
        return entry.value


VerifiedView = Certified | UnverifiedView  # what one answer is taken to show


@dataclass(frozen=True, slots=True)
class Reader:
    """The client that reads, and what it takes for it to believe an answer.

    `certified` checks every proof, the other levels compare answers. `organisation` and `name` are those of the
    credential.
    """

    trust: Trust
    key: bytes
    level: Level
    organisation: str = ""
    name: str = ""

    def view(self, anchor: Anchor) -> VerifiedView:
        """What an answer with this header shows. Raises `ProofError`."""
        if self.level == "certified":
            return self.trust.certified(anchor)
        return UnverifiedView(anchor, self.trust.decode_leaf)

    def principal(self, client: ClientRecord | None) -> Principal:
        """This reader as those see it who decide what it may read; `client` is its record in the registry."""
        return Principal(self.key, None, client, self.organisation, self.name)

    def attributes(
        self, view: VerifiedView, entry: StateEntry | None, floor: int
    ) -> Mapping[str, Value] | None:
        """What rules see of this reader, None if it is no live client; judged no earlier than `floor` (P7)."""
        if entry is None:
            raise ProofError("messages are withheld without a proof of what this reader may see")
        require_recent(view, floor)
        return self.principal(record_of(CLIENTS, view.value(entry, CLIENTS.key(self.key)))).attributes


def require_hidden(content: Withheld, attributes: Mapping[str, Value] | None) -> None:
    """That the rule of a redacted message hides it from this reader indeed."""
    try:
        rule = parse_rule(content.rule)
    except ExpressionError as error:
        raise ProofError(f"a withheld message has a rule that cannot be read: {error}") from None
    if attributes is not None and rule.allows(attributes):
        raise ProofError(
            f"a message is withheld although its rule {rule.text!r} allows this reader to see it"
        )


def is_fresh(view: VerifiedView, now: int, freshness: int) -> bool:
    """Whether the header is new. One ahead of the clock is: no quorum signs times that are far ahead of theirs (P5)."""
    return now - view.time <= freshness


def require_recent(view: VerifiedView, floor: int) -> None:
    if view.height < floor:
        raise Behind(f"it is at height {view.height}, and height {floor} was certified before")


@dataclass(frozen=True, slots=True)
class Ordered:
    """A batch's receipt and its block; brokers differ in the proof of them, and only in that."""

    receipt: BatchReceipt
    height: int
    time: int
    block: BlockProof = field(compare=False, repr=False)
    anchor: Anchor = field(compare=False, repr=False)
    at: int = field(default=0, compare=False, repr=False)  # which leaf of the proof it is


def check_receipts(view: VerifiedView, answer: Receipted) -> dict[bytes, Ordered]:
    """The receipts that an answer shows, by the digests of their batches."""
    leaves = view.leaves(answer.proof)
    if len(leaves) != 1 + len(answer.others):
        raise ProofError("the answer to a batch is not one receipt")
    header, proof, anchor = answer.proof.header, answer.proof, answer.anchor
    found: dict[bytes, Ordered] = {}
    for at, leaf in enumerate(leaves):
        if (receipt := receipt_of(leaf)) is None:
            raise ProofError("the answer to a batch is not one receipt")
        found[receipt.digest] = Ordered(receipt, header.height, header.time, proof, anchor, at)
    return found


def check_receipt(view: VerifiedView, answer: Receipted, digest: bytes) -> Ordered:
    """The receipt of the batch with this digest."""
    return shown_receipt(check_receipts(view, answer), digest)


def shown_receipt(receipts: Mapping[bytes, Ordered], digest: bytes) -> Ordered:
    """The receipt of the batch with this digest, which must be among those that were shown."""
    if (found := receipts.get(digest)) is None:
        raise ProofError("the receipt is that of another batch")
    return found


def check_entries(
    view: VerifiedView, answer: Proven, keys: Sequence[bytes], floor: int
) -> tuple[bytes | None, ...]:
    """The values under these keys, None where there is none; never from before what was seen already."""
    require_recent(view, floor)
    if len(answer.entries) != len(keys):
        raise ProofError(f"{len(answer.entries)} entries were shown where {len(keys)} were asked for")
    return tuple(view.value(entry, key) for entry, key in zip(answer.entries, keys, strict=True))


def record_of(table: Table[R, *K], value: bytes | None) -> R | None:
    """An entry's record; that it cannot be read is the fault of the broker that showed it."""
    try:
        return None if value is None else table.decode(value)
    except DECODE_ERRORS as error:
        raise ProofError(f"a {table.record.__name__} cannot be read: {error}") from None
