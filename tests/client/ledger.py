"""A real ledger in one process: the application, four brokers' keys, headers with certificates, and honest answers from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

import msgspec
from msgspec.structs import replace
from tests.application.world import ORGANISATIONS, Actor, Signed, World, actor, mount

from parley.application.keeping import RECEIPTS, ReceiptPlace
from parley.application.tables import encode_value
from parley.applications import DATA_SHARD
from parley.client.beliefs import Reader, VerifiedView
from parley.client.messages import Level
from parley.client.verification import Order, Place
from parley.consensus.types import QC, Block, Header, Instance, genesis_block
from parley.crypto import merkle
from parley.crypto.qc import Ed25519List
from parley.ledger import state_map
from parley.ledger.erasure import Remains, remains_of
from parley.ledger.layout import StoredBlock
from parley.ledger.proofs import Anchor, BlockProof, StateEntry, Trust, history_leaf_of
from parley.model.batches import Batch, Message, MessageHeader, Withheld, encode
from parley.model.expressions import parse_constraint, parse_rule
from parley.model.genesis import Timeouts
from parley.model.names import Value, sorted_pairs
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.receipts import Published
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.subscriptions.receipts import Match, PartitionStart, Subscribed
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.tables import HEADS
from parley.net.messages import (
    Blocks,
    Bodies,
    Content,
    DeliveredBlock,
    Delivery,
    Fetched,
    FetchedBatch,
    FetchedBlock,
    Head,
    Proven,
    RawBlock,
    Receipted,
    Skipped,
)

BROKER_KEYS = [actor("broker", name).secret for name in ORGANISATIONS]
FULL = (0, 1, 2)  # a quorum of four


def note(text: str, rule: str = "", **tags: Value) -> Message:
    """A message with a salt that depends on it, so that no two are equal."""
    header = encode(MessageHeader(tags=sorted_pairs(tags)))
    return Message(text.encode().ljust(16, b".")[:16], header, rule, text.encode())


class Ledger(World):
    """What an honest broker would show of a `World`, as of its newest block, under a header that a quorum signed."""

    def __init__(
        self, timeouts: Timeouts | None = None, authorities: Mapping[str, bytes] | None = None
    ) -> None:
        super().__init__(timeouts=timeouts)
        if authorities is not None:
            organisations = tuple(
                replace(one, tls_ca=authorities[one.name]) for one in self.genesis.organisations
            )
            self.genesis = replace(self.genesis, organisations=organisations)
            self.chain = self.genesis.chain
            self.machine, self.keeper = mount(self.genesis)
        self._first = genesis_block(self.instance, self.root, self.time).header

    @property
    def instance(self) -> Instance:
        return Instance(self.chain, 0, 0, len(BROKER_KEYS), self.genesis.application)

    @property
    def trust(self) -> Trust:
        return Trust(self.genesis, DATA_SHARD.decode_leaf)

    def reader(self, who: Actor, level: Level = "certified") -> Reader:
        return Reader(self.trust, who.key, level)

    def _learn(self, receipt: BatchReceipt) -> None:
        if receipt.digest in self._headers:  # others were made by a real client
            super()._learn(receipt)

    # -- certificates --------------------------------------------------------------------------------------------

    def anchor(self, time: int | None = None) -> Anchor:
        header = replace(
            self._first,
            height=self.height + 2,
            view=self.height + 2,
            time=self.time if time is None else time,
            executed_height=self.height,
            state_root=self.root,
            history_root=merkle.root(self._history()),
        )
        return self.certify(header)

    def certify(self, header: Header, signers: Sequence[int] = FULL) -> Anchor:
        message = self.instance.vote_message(header.view, header.id())
        scheme = Ed25519List([key.public for key in BROKER_KEYS])
        votes = scheme.aggregate({index: BROKER_KEYS[index].sign(message) for index in signers})
        return Anchor(header, QC(0, header.view, header.id(), votes))

    def _history(self) -> list[bytes]:
        return [
            history_leaf_of(block.height, block.id, outcome.leaves)
            for (block, _), outcome in zip(self.blocks, self.outcomes, strict=True)
        ]

    def shown_block(self, height: int) -> tuple[Header, bytes, int, merkle.Proof]:
        """Its header, root and number of receipts, and place in the history."""
        leaves = self.outcomes[height - 1].leaves
        history = merkle.prove(self._history(), height - 1)
        return self.blocks[height - 1][0].header, merkle.root(leaves), len(leaves), history

    def proof(self, height: int, positions: Iterable[int]) -> BlockProof:
        """These leaves of a block."""
        wanted = sorted(positions)
        leaves = self.outcomes[height - 1].leaves
        header, root, _, history = self.shown_block(height)
        return BlockProof(
            header,
            root,
            history,
            tuple(leaves[position] for position in wanted),
            merkle.prove_many(leaves, wanted),
        )

    def entry(self, key: bytes) -> StateEntry:
        return StateEntry(key, self.store.get(b"k" + key), state_map.prove(_Nodes(self), key))

    # -- answers -------------------------------------------------------------------------------------------------

    def next_block(self, batches: Sequence[Signed], time: int | None = None) -> Block:
        block = super().next_block(batches, time)
        return Block(replace(block.header, batches_root=merkle.root(block.batches)), block.batches)

    def raw_blocks(self, first: int, *, bodies: bool, erased: Collection[bytes] = ()) -> Blocks:
        """All blocks from a height on; of those in `erased` only what stays."""
        heights = range(first, self.height + 1)
        shown = tuple(self._raw_block(height, erased if bodies else None) for height in heights)
        places = [height - 1 for height in heights]
        proof = merkle.prove_many(self._history(), places) if shown else None
        return Blocks(1, self.anchor(), shown, proof)

    def _raw_block(self, height: int, erased: Collection[bytes] | None) -> RawBlock:
        block, batches = self.blocks[height - 1]
        shown = [None if erased is None else raw_body(batch, erased) for batch in batches]
        return RawBlock(StoredBlock.of(block), tuple(self.outcomes[height - 1].leaves), tuple(shown))

    def raw_bodies(self, names: Sequence[bytes], erased: Collection[bytes] = ()) -> Bodies:
        known = {batch.digest: batch for _, batches in self.blocks for batch in batches}
        return Bodies(1, self.anchor(), tuple(raw_body(known[name], erased) for name in names))

    def place(self, name: bytes) -> ReceiptPlace | None:
        return RECEIPTS.stored(self.store, name)

    def receipted(self, name: bytes) -> Receipted:
        place = self.place(name)
        assert place is not None
        return Receipted(1, self.anchor(), self.proof(place.height, [place.position]))

    def proven(self, *keys: bytes) -> Proven:
        return Proven(1, self.anchor(), tuple(map(self.entry, keys)))

    def fetched(self, who: Actor, topic: str, offset: int = 0, partition: int = 0) -> Fetched:
        """All that there is from an offset on."""
        contents = _Contents(self, who)
        blocks = [
            FetchedBlock(
                self.proof(height, [position for _, position, _ in found]),
                tuple(
                    contents.batch(self.body(leaf.digest), offset - first) for _, _, (leaf, first) in found
                ),
            )
            for height, group in groupby(self._published(topic, partition, offset), key=lambda one: one[0])
            if (found := list(group))
        ]
        head = self.entry(HEADS.key(topic, partition))
        return Fetched(1, self.anchor(), head, contents.reader(), tuple(blocks))

    def delivery(self, who: Actor, topic: str, where: str, place: Place) -> Delivery | None:
        """All that the order has from a place on."""
        contents = _Contents(self, who)
        constraint = parse_constraint(where).id
        blocks: list[DeliveredBlock] = []
        for height in range(1, self.height + 1):
            for position, leaf in enumerate(self.leaves(height)):
                if not isinstance(leaf, Match):
                    continue
                ours = (topic, place.partition, constraint, place.incarnation)
                if (leaf.topic, leaf.partition, leaf.constraint, leaf.incarnation) != ours:
                    continue
                if leaf.first_ps + len(leaf.items) > place.next_ps:
                    blocks.append(self._delivered(contents, height, position, leaf))
        return Delivery(1, self.anchor(), contents.reader(), tuple(blocks)) if blocks else None

    def head(self, topic: str, where: str, partitions: int = 1, time: int | None = None) -> Head:
        constraint = parse_constraint(where).id
        keys = [ORDER_HEADS.key(topic, partition, constraint) for partition in range(partitions)]
        return Head(1, self.anchor(time), tuple(map(self.entry, keys)))

    def own_subscription(self, who: Actor, topic: str, where: str, time: int | None = None) -> Head:
        """What a stream shows to a client without a subscription instead of the heads of the order."""
        key = SUBSCRIPTIONS.key(topic, parse_constraint(where).id, who.key)
        return Head(1, self.anchor(time), (self.entry(key),))

    def body(self, name: bytes) -> Batch:
        bodies = {batch.digest: batch.body for _, batches in self.blocks for batch in batches}
        return msgspec.msgpack.decode(bodies[name], type=Batch)

    def _published(
        self, topic: str, partition: int, offset: int
    ) -> Iterable[tuple[int, int, tuple[BatchReceipt, int]]]:
        """Height, position, receipt and first offset of the batches that reach beyond an offset."""
        for height in range(1, self.height + 1):
            for position, leaf in enumerate(self.leaves(height)):
                if not isinstance(leaf, BatchReceipt) or not isinstance(leaf.outcome, Published):
                    continue
                first = leaf.outcome.first_offset
                if (leaf.topic, leaf.partition) == (topic, partition) and first + leaf.count > offset:
                    yield height, position, (leaf, first)

    def _delivered(self, contents: _Contents, height: int, position: int, match: Match) -> DeliveredBlock:
        needed: list[int] = []
        shown: list[Message | Withheld] = []
        for offset, _ in match.items:
            for at, leaf in enumerate(self.leaves(height)):
                if not isinstance(leaf, BatchReceipt) or not isinstance(leaf.outcome, Published):
                    continue
                inside = offset - leaf.outcome.first_offset
                if (leaf.topic, leaf.partition) == (
                    match.topic,
                    match.partition,
                ) and 0 <= inside < leaf.count:
                    needed.append(at)
                    shown.append(contents.show(self.body(leaf.digest).messages[inside]))
        return DeliveredBlock(self.proof(height, {*needed, position}), tuple(shown))

    def prune(self, topic: str, partition: int, log_start: int) -> None:
        """As when the retention of all that lies before is over."""
        key = HEADS.key(topic, partition)
        head = self.record(HEADS, topic, partition)
        assert head is not None
        value = encode_value(replace(head, log_start_offset=log_start))
        self.root, nodes = state_map.update(_Nodes(self), {key: value})
        self.store.write([(b"k" + key, value), *((b"n" + path, node) for path, node in nodes.items())])
        self.apply()

    # -- stories -------------------------------------------------------------------------------------------------

    def subscribe(self, who: Actor, topic: str, where: str = "") -> tuple[PartitionStart, ...]:
        receipt = self.do(who, Subscribe(topic, parse_constraint(where).text))
        assert isinstance(receipt.outcome, Subscribed)
        return receipt.outcome.partitions

    def follow(
        self, who: Actor, topic: str, where: str, starts: Iterable[PartitionStart], floor: int = 0
    ) -> Order:
        return Order(self.reader(who), topic, parse_constraint(where), map(place_of, starts), floor)


def raw_body(batch: Signed, erased: Collection[bytes]) -> bytes | Remains:
    if batch.digest not in erased:
        return batch.body
    return msgspec.msgpack.decode(remains_of(batch.body), type=Remains)


def place_of(start: PartitionStart) -> Place:
    return Place(start.partition, start.incarnation, start.next_ps, start.next_offset)


def believe(ledger: Ledger, anchor: Anchor) -> VerifiedView:
    return ledger.trust.certified(anchor)


class _Nodes:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def get(self, path: bytes, /) -> bytes | None:
        return self._ledger.store.get(b"n" + path)


class _Contents:
    """One reader's view of messages."""

    def __init__(self, ledger: Ledger, who: Actor) -> None:
        self._ledger = ledger
        self._who = who
        record = ledger.record(CLIENTS, who.key)
        assert record is not None
        self._attributes = record.readable()
        self._withheld = False

    def show(self, message: Message) -> Message | Withheld:
        if parse_rule(message.rule).allows(self._attributes):
            return message
        self._withheld = True
        return message.withheld()

    def batch(self, batch: Batch, skip: int) -> FetchedBatch:
        contents: list[Content] = [
            Skipped(message.leaf()) if index < skip else self.show(message)
            for index, message in enumerate(batch.messages)
        ]
        return FetchedBatch(batch.header, batch.signature, tuple(contents))

    def reader(self) -> StateEntry | None:
        return self._ledger.entry(CLIENTS.key(self._who.key)) if self._withheld else None
