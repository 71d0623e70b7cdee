"""Real networks in one process for the vectors of proofs: replicas that agree, with fixed keys and a clock of their own.

The same code gives the same bytes. What a broker would show of its store is made into proof files here.
"""

from __future__ import annotations

from msgspec.msgpack import decode
from msgspec.structs import replace
from tests.application.world import (
    ADMINS,
    ORGANISATIONS,
    START,
    Signed,
    World,
    actor,
    make_genesis,
)
from tests.replica.driver import Cluster, Committee, MemoryStore

from parley.application.tables import K, R, Table
from parley.applications import DATA_SHARD
from parley.client.proofs import EntryProof, OperationProof
from parley.consensus.types import QC, Header
from parley.crypto import merkle
from parley.crypto.ed25519 import SecretKey
from parley.crypto.qc import Ed25519List, Ed25519Signer
from parley.ledger import history, layout, state_map
from parley.ledger.layout import StateView
from parley.ledger.proofs import Anchor, BlockProof, StateEntry
from parley.model import leaves as leaf_tree
from parley.model.batches import Batch
from parley.model.genesis import Broker, Genesis, Organisation, encode_genesis, one_shard, sign_genesis
from parley.model.receipts import BatchReceipt, receipt_of
from parley.modules.publishing.proof import MessageProof, PublicationProof
from parley.replica.chain import Chain

NAMES = (*ORGANISATIONS, "registry", "university", "ministry")  # of organisations with one broker each


class Keys:
    """The signers of a committee, as `Cluster` wants them."""

    def __init__(self, keys: list[SecretKey]) -> None:
        self._keys = keys

    def signer(self, index: int) -> Ed25519Signer:
        return Ed25519Signer(index, self._keys[index])

    def scheme(self) -> Ed25519List:
        return Ed25519List([key.public for key in self._keys])


class RealCommittee(Committee):
    """The brokers of a genesis file."""

    def __init__(self, genesis: Genesis, keys: list[SecretKey]) -> None:
        super().__init__(size=len(keys), chain=genesis.chain, version=genesis.application)
        self.authority = Keys(keys)  # type: ignore[assignment]


class Network:
    """Some brokers that agree on what is ordered, and the proofs that any of them can make of it."""

    def __init__(self, brokers: int) -> None:
        self.names = NAMES[:brokers]
        self.keys = [actor("broker", name).secret for name in self.names]
        self.genesis = self._genesis()
        self.maker = World()  # signs batches and keeps their sequences
        self.maker.chain = self.genesis.chain
        committee = RealCommittee(self.genesis, self.keys)
        self.cluster = Cluster(committee, {index: DATA_SHARD.mount(self.genesis) for index in range(brokers)})
        self.cluster.outbox.now = START
        self.cluster.start()
        self.maker.ids_from = StateView(self.cluster.members[0].store)

    def _genesis(self) -> Genesis:
        organisations = tuple(
            Organisation(name, actor("anchor", name).key, b"ca of " + name.encode(), (self._admin(name),))
            for name in self.names
        )
        brokers = tuple(
            Broker(f"broker-{name}", name, key.public, f"{name}.example:7001")
            for name, key in zip(self.names, self.keys, strict=True)
        )
        network = f"vectors-{len(self.names)}"
        return replace(
            make_genesis(),
            network=network,
            organisations=organisations,
            brokers=brokers,
            shards=one_shard(brokers),
        )

    @staticmethod
    def _admin(organisation: str) -> bytes:
        return (ADMINS.get(organisation) or actor("admin", organisation)).key

    def genesis_file(self) -> bytes:
        anchors = [actor("anchor", name).secret for name in self.names]
        return encode_genesis(self.genesis, tuple(sign_genesis(self.genesis, anchor) for anchor in anchors))

    # -- what happens ------------------------------------------------------------------------------------------------

    def order(self, *batches: Signed) -> None:
        """Batches that come to all brokers at once, so that they stand in one block, and then some quiet."""
        for batch in batches:
            for member in self.cluster.members:
                if member.index not in self.cluster.absent:
                    self.cluster.submit(member.index, batch.body)
        self.cluster.run(40)

    @property
    def store(self) -> MemoryStore:
        return self.cluster.members[0].store

    # -- what a broker shows -----------------------------------------------------------------------------------------

    def anchors(self) -> list[Anchor]:
        """Certified headers, the oldest first."""
        return [Anchor(one.header, one.qc) for one in self.cluster.members[0].certified]

    def covering(self, height: int) -> Anchor:
        """The first certified header whose results include a block."""
        return next(one for one in self.anchors() if one.header.executed_height >= height)

    def header(self, height: int) -> Header:
        block = Chain(self.store).block(height)
        assert block is not None
        return block.header

    def leaves(self, height: int) -> tuple[bytes, ...]:
        return layout.decode_receipts(self.store.entries[layout.receipts(height)])

    def proof(self, anchor: Anchor, height: int, *places: int) -> BlockProof:
        leaves = self.leaves(height)
        nodes = layout.history_nodes(self.store)
        path = history.prove(nodes, height - 1, anchor.header.executed_height)
        shown = tuple(leaves[place] for place in places)
        return BlockProof(
            self.header(height), merkle.root(leaves), path, shown, merkle.prove_many(leaves, places)
        )

    def receipts(self, batch: Signed) -> list[tuple[int, int, BatchReceipt]]:
        """Height, place and receipt of a batch, for each time that it got one."""
        found: list[tuple[int, int, BatchReceipt]] = []
        for height in range(1, self.anchors()[-1].header.executed_height + 1):
            for place, leaf in enumerate(self.leaves(height)):
                receipt = receipt_of(DATA_SHARD.decode_leaf(leaf))
                if receipt is not None and receipt.digest == batch.digest:
                    found.append((height, place, receipt))
        return found

    def certify(self, header: Header) -> Anchor:
        """With the votes of all brokers, whatever the header says."""
        message = self.cluster.committee.instance.vote_message(header.view, header.id())
        votes = {index: key.sign(message) for index, key in enumerate(self.keys)}
        aggregate = Ed25519List([key.public for key in self.keys]).aggregate(votes)
        return Anchor(header, QC(0, header.view, header.id(), aggregate))

    # -- proof files -------------------------------------------------------------------------------------------------

    def publication(
        self, signed: Signed, index: int | None = None, anchor: Anchor | None = None
    ) -> PublicationProof:
        """Of a message of a batch, or of the whole batch."""
        height, place, receipt = self.receipts(signed)[-1]
        anchor = anchor or self.covering(height)
        batch = decode(signed.body, type=Batch)
        leaves = leaf_tree.leaves_of(batch.messages)
        message = (
            None if index is None else MessageProof(batch.messages[index], leaf_tree.prove(leaves, index))
        )
        return PublicationProof.of(
            (receipt, self.proof(anchor, height, place), anchor),
            (batch.header, leaf_tree.root(leaves), batch.signature),
            message,
        )

    def operation(self, signed: Signed) -> OperationProof:
        """Of what an operation did the first time that it was ordered."""
        height, place, receipt = self.receipts(signed)[0]
        anchor = self.covering(height)
        batch = decode(signed.body, type=Batch)
        (message,) = batch.messages
        return OperationProof.of(
            (receipt, self.proof(anchor, height, place), anchor),
            (batch.header, message, batch.signature),
            DATA_SHARD.decode_operation(message.payload),
        )

    def first(self, table: Table[R, *K]) -> tuple[*K]:
        """The key of the first entry of a table in the newest state."""
        start = layout.state(table.prefix())
        key, _ = next(self.store.scan(start))
        return table.unpack(table.prefix() + key.removeprefix(start))

    def entry(self, table: Table[R, *K], *key: *K) -> EntryProof:
        """Of an entry of the newest state, or of there being none."""
        anchor = self.anchors()[-1]
        nodes, packed = layout.StateNodes(self.store), table.key(*key)
        assert anchor.header.state_root == state_map.root(nodes), "nothing has changed since the header"
        value = self.store.get(layout.state(packed))
        return EntryProof.of(table, StateEntry(packed, value, state_map.prove(nodes, packed)), anchor)
