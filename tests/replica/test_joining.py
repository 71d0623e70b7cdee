"""A broker that cannot go on by blocks, or from its own disk, comes back by a certified snapshot, whoever lies to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest
from tests.application.world import ADMINS, ORGANISATIONS, registration
from tests.ledger.shard import ALICE, GENESIS, Shard
from tests.replica.driver import Cluster, Committee, Member, MemoryStore, counting

from parley.applications import DATA_SHARD
from parley.consensus.errors import Reason, SafetyRecordError
from parley.consensus.types import Block
from parley.crypto.encoding import u64
from parley.crypto.merkle import MountainRange
from parley.ledger import layout
from parley.ledger.layout import Joins, StoredBlock
from parley.mempool.pool import Limits
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import CreateTopic, Policy
from parley.replica import fetching, snapshots, wire
from parley.replica.beginning import provision
from parley.replica.chain import Chain, StoreError
from parley.replica.joining import FEW_OFFERS_MS, MISSES, Joiner, _Purge, _Search, _Sources
from parley.replica.memory import Overlay
from parley.replica.ports import (
    Broadcast,
    Effect,
    Found,
    Halt,
    Mounted,
    Refused,
    Restart,
    Results,
    Send,
    SetTimer,
    Write,
)
from parley.replica.rejoining import Patience
from parley.sim.counter import Counter, encode_batch
from parley.store.interface import KeyValue
from parley.sync.messages import (
    BlocksRequest,
    BlocksResponse,
    EntriesRequest,
    NodesRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
    SnapshotRequest,
)

ME = 3
IMPATIENT = Patience(views=16, heights=8, stuck=400, joins=3, apart=40)
BY_BLOCKS = Patience(views=100_000, heights=8, stuck=400, joins=3, apart=40)
AUTHORS = 60


@pytest.fixture(autouse=True)
def _small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small state comes in many pieces."""
    monkeypatch.setattr(snapshots, "MAX_ANSWER", 400)
    monkeypatch.setattr(fetching, "MAX_PATHS", 4)


class Network(Cluster):
    """Members with a state of many entries. Member 3 is the one that has to join, and is away at first."""

    def __init__(
        self,
        patience: Patience = IMPATIENT,
        applications: dict[int, Mounted] | None = None,
        depth: int = 2,
        size: int = 4,
    ) -> None:
        committee = Committee(size, depth, limits=Limits(), patience=patience)
        super().__init__(committee, dict(applications or {}))
        self.start()

    @property
    def me(self) -> Member:
        return self.members[ME]

    def load(self, first: int = 0) -> None:
        """Every author publishes one more batch."""
        for author in range(AUTHORS):
            self.submit(author % 3, encode_batch(author, first, bytes(4)))
            if author % 20 == 0:
                self.round()

    def without_me(self, heights: int) -> Network:
        self.absent = {ME}
        self.load()
        goal = max(self.heights()) + heights
        self.run_until(lambda: min(self.heights()[:ME]) >= goal)
        self.absent = set()
        return self

    def lose_blocks(self) -> Network:
        """No block reaches member 3 while it is a replica: far behind, it would need too many."""
        joined = joins(self.me)

        def carries(_sender: int, to: int, data: bytes) -> bool:
            late = to == ME and joins(self.me) == joined and not joining(self.me)
            return not (late and isinstance(wire.decode(data), BlocksResponse))

        self.outbox.carries = carries
        return self

    def until_joined(self, times: int = 1, rounds: int = 3_000) -> Network:
        self.run_until(lambda: joins(self.me) >= times and not joining(self.me), rounds)
        return self

    def until_level(self) -> Network:
        self.run_until(lambda: self.heights()[ME] == self.heights()[0] == self.heights()[1])
        return self


def joining(member: Member) -> bool:
    return isinstance(member.replica, Joiner)


def joins(member: Member) -> int:
    """Snapshots that it has taken."""
    return sum("is here" in restart.why for restart in member.restarts)


def state(member: Member) -> dict[bytes, bytes]:
    return {**dict(member.store.scan(layout.STATE)), **dict(member.store.scan(layout.NODE))}


def is_like(member: Member, other: Member) -> bool:
    """Whether all that it has of the chain and the state is what the other has. Both are at one height."""
    blocks = dict(other.store.scan(b"c/"))
    roots = dict(other.store.scan(b"r/"))
    return (
        Chain(member.store).head() == Chain(other.store).head()
        and state(member) == state(other)
        and all(blocks[key] == value for key, value in member.store.scan(b"c/"))
        and all(roots[key] == value for key, value in member.store.scan(b"r/"))
    )


def came_back(network: Network) -> None:
    """It has joined, goes on like the others, and votes."""
    network.until_joined().until_level()
    me = network.me
    assert is_like(me, network.members[0])
    voted = me.record()[1].last_voted_view
    network.run_until(lambda: me.record()[1].last_voted_view > voted + 2)
    network.until_level()
    assert is_like(me, network.members[0])
    assert not me.halts
    assert me.store.get(layout.JOINING) is None


def sent_while_joining(member: Member) -> list[msgspec.Struct]:
    """What left between a restart that begins a join and the one that ends it."""
    inside = False
    found: list[msgspec.Struct] = []
    for effect in member.history:
        match effect:
            case Restart():
                inside = "is here" not in effect.why
            case Send() | Broadcast() if inside:
                found.append(wire.decode(effect.data))
            case _:
                pass
    return found


# -- coming back -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "size"), [(2, 4), (3, 4), (2, 7)])
def test_a_new_member_joins_by_snapshot_while_the_others_go_on(depth: int, size: int) -> None:
    network = Network(depth=depth, size=size).without_me(heights=40).lose_blocks()
    assert network.me.replica.executed_height == 0
    came_back(network)
    assert joins(network.me) == 1
    assert network.me.applied[0].block.height > 30  # it did not come by blocks


def test_a_long_absent_member_joins_by_snapshot_under_load() -> None:
    network = Network()
    network.run(100)
    network.without_me(heights=40).lose_blocks()
    for sequence in range(1, 4):
        network.load(sequence)
    came_back(network)


def test_a_member_that_is_a_little_behind_catches_up_by_blocks() -> None:
    network = Network(Patience()).without_me(heights=40)
    network.until_level()
    assert not network.me.restarts
    assert is_like(network.me, network.members[0])


def test_a_member_comes_back_when_bodies_are_erased_everywhere() -> None:
    network = Network(BY_BLOCKS).without_me(heights=10)
    for member in network.members[:ME]:
        for key, _ in list(member.store.scan(b"b/")):
            del member.store.entries[key]
    came_back(network)


def test_a_joiner_signs_nothing_and_asks_only_for_the_snapshot() -> None:
    network = Network().without_me(heights=40).lose_blocks().until_joined()
    sent = sent_while_joining(network.me)
    kinds = {type(message) for message in sent}
    assert kinds == {SnapshotRequest, NodesRequest, EntriesRequest, BlocksRequest}


def test_a_joiner_takes_no_batches_and_answers_nobody() -> None:
    network = Network().without_me(heights=40).lose_blocks()
    network.run_until(lambda: joining(network.me))
    (refused,) = network.submit(ME, encode_batch(0, 1, b""))
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.HALTED
    assert not network.deliver(0, ME, wire.encode(BlocksRequest(bytes(32), 0)))
    assert not network.deliver(0, ME, wire.encode(SnapshotRequest(0)))
    (refused,) = network.deliver(0, ME, b"garbage")
    assert isinstance(refused, Refused)


def test_what_is_missing_below_the_snapshot_is_marked_and_not_served() -> None:
    network = Network().without_me(heights=40).lose_blocks().until_joined()
    me = network.me
    height = int.from_bytes(me.store.get(layout.BACKFILL) or b"", "big") - 1
    assert Chain(me.store).head().height >= height > 30
    assert me.store.get(layout.receipts(height)) is None
    network.until_level()
    (effect,) = network.deliver(0, ME, wire.encode(BlocksRequest(bytes(32), 3)))
    assert isinstance(effect, Send)
    answer = wire.decode(effect.data)
    assert isinstance(answer, BlocksResponse)
    assert answer.blocks == ()


def test_old_blocks_and_batches_stay_on_the_disk() -> None:
    network = Network()
    network.load()
    network.run(200)
    before = {**dict(network.me.store.scan(b"c/")), **dict(network.me.store.scan(b"b/"))}
    network.without_me(heights=40).lose_blocks().until_joined()
    assert before
    assert before.items() <= network.me.store.entries.items()


# -- a wrong state ---------------------------------------------------------------------------------------------------------


class Miscounting(Counter):
    """Computes another state from some height on, the first `times` times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        outcome = super().apply(block, batches, state)
        if block.height < 5 or not self.times:
            return outcome
        self.times -= 1
        return Results(outcome.writes, bytes(32), outcome.receipts, outcome.settled)


def test_a_diverged_replica_reports_it_and_comes_back_by_itself_without_a_vote_in_between() -> None:
    application = Miscounting(1)
    network = Network(applications={ME: counting(application)})
    network.run_until(lambda: bool(network.me.restarts))
    (found,) = network.me.found
    assert found.entry.startswith("the state of height")
    assert not found.mended
    last_vote = network.me.record()[1].last_voted_view
    network.until_joined()
    assert network.me.record()[1].last_voted_view == last_vote
    came_back(network)
    assert not application.times


def test_a_replica_that_gives_its_state_up_has_noted_it_on_the_disk_before_it_ends() -> None:
    """Or it could begin again, and vote, on what it knows to be wrong."""
    network = Network(applications={ME: counting(Miscounting(1))})
    network.run_until(lambda: bool(network.me.restarts))
    writes = [effect for effect in network.me.history if isinstance(effect, Write)]
    marked = next(write for write in writes if layout.JOINING in dict(write.entries))
    assert marked.sync
    assert network.me.history.index(marked) < network.me.history.index(network.me.restarts[0])


def test_a_changed_entry_of_the_state_is_noticed_and_the_state_fetched_again() -> None:
    network = Network()
    network.load()
    network.run(100)
    key = layout.state(b"next/" + bytes(4))
    assert network.me.store.entries[key]
    network.me.store.entries[key] = u64(77)
    network.load(1)
    came_back(network)
    assert network.me.found


@pytest.mark.parametrize("damage", [None, b"", b"\x00\x01garbage"])
def test_a_damaged_state_map_is_noticed_when_it_is_read_and_the_state_fetched_again(
    damage: bytes | None,
) -> None:
    network = Network()
    network.load()
    network.run(100)
    for key in [key for key, _ in network.me.store.scan(layout.NODE)]:
        if damage is None and key != layout.NODE:
            del network.me.store.entries[key]
        elif damage is not None:
            network.me.store.entries[key] = damage
    network.load(1)
    came_back(network)
    assert network.me.found[0].entry == "s/"


class Broken(Counter):
    """A fault of the program: every member meets it at the same block."""

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        if block.height == 5:
            raise ValueError("a fault of the program")
        return super().apply(block, batches, state)


def test_a_fault_of_the_program_does_not_make_all_members_give_their_state_up() -> None:
    """Then there would be nobody left to offer a snapshot."""
    network = Network(applications={index: counting(Broken()) for index in range(4)})
    with pytest.raises(ValueError, match="a fault of the program"):
        network.run(100)
    assert not any(member.restarts for member in network.members)
    assert all(member.store.get(layout.JOINING) is None for member in network.members)


def test_a_replica_that_diverges_again_and_again_stops_for_good_with_advice() -> None:
    network = Network(applications={ME: counting(Miscounting(1_000))})
    network.run_until(lambda: bool(network.me.halts), rounds=6_000)
    assert joins(network.me) == IMPATIENT.joins
    assert "state is wrong" in network.me.halts[0].why
    voted = network.me.record()[1].last_voted_view
    network.run(300)
    assert network.me.record()[1].last_voted_view == voted
    assert not joining(network.me)


def test_a_state_that_is_damaged_again_and_again_stops_the_replica_with_advice() -> None:
    network = Network()
    network.load()
    network.run(100)
    joined = Joins(IMPATIENT.joins, network.me.replica.executed_height)
    network.me.store.entries[layout.JOINS] = msgspec.msgpack.encode(joined)
    network.me.store.entries[layout.NODE] = b"damaged"
    network.load(1)
    network.run_until(lambda: bool(network.me.halts))
    assert "Repair the disk" in network.me.halts[0].why
    assert not network.me.restarts


def test_a_replica_that_is_always_behind_goes_on_by_blocks_after_some_snapshots() -> None:
    network = Network()
    joined = Joins(IMPATIENT.joins, 20)
    network.me.store.entries[layout.JOINS] = msgspec.msgpack.encode(joined)
    network.without_me(heights=30).lose_blocks()
    network.run(200)
    assert not network.me.restarts
    network.outbox.carries = lambda _sender, _to, _data: True
    network.until_level()
    assert is_like(network.me, network.members[0])


def test_joins_that_lie_far_apart_do_not_count_together() -> None:
    network = Network()
    for times in range(1, 6):
        network.without_me(heights=IMPATIENT.apart + 10).lose_blocks().until_joined(times).until_level()
    joined = msgspec.msgpack.decode(network.me.store.entries[layout.JOINS], type=Joins)
    assert joined.count == 1
    assert is_like(network.me, network.members[0])


# -- a damaged disk --------------------------------------------------------------------------------------------------------


def settled() -> Network:
    """All are level."""
    network = Network()
    network.load()
    network.run(100)
    network.until_level()
    network.absent = {ME}
    return network


def flipped(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


@pytest.mark.parametrize(
    "damage", [lambda _: None, lambda _: b"", flipped], ids=["missing", "empty", "flipped"]
)
@pytest.mark.parametrize("kind", ["m/head", "c/head", "c/below", "c/0", "r/head"])
def test_a_record_without_which_no_replica_can_start_is_named_and_the_state_fetched_again(
    kind: str, damage: Callable[[bytes], bytes | None]
) -> None:
    network = settled()
    store, height = network.me.store, Chain(network.me.store).head().height
    key = {
        "m/head": layout.HEAD,
        "c/head": layout.committed(height),
        "c/below": layout.committed(height - 1),
        "c/0": layout.committed(0),
        "r/head": layout.roots(height),
    }[kind]
    store.write(((key, damage(store.entries[key])),))
    network.absent = set()
    network.restart(ME)
    assert joining(network.me)
    found = network.me.found[-1]
    assert found.entry.startswith(("m/", "r/") if kind in {"m/head", "r/head"} else "c/")
    assert not found.mended
    came_back(network)


def test_an_empty_store_is_filled_again() -> None:
    network = settled()
    network.me.store.entries.clear()
    network.absent = set()
    network.restart(ME)
    came_back(network)


def test_a_store_of_another_network_is_not_overwritten() -> None:
    network = settled()
    _, genesis = provision(Committee(chain=bytes(32)).config(ME), Counter())
    network.me.store = MemoryStore()
    network.me.store.write(genesis.entries)
    with pytest.raises(StoreError, match="another genesis file"):
        network.me.awaken()


def test_damage_without_another_broker_to_ask_is_refused_with_advice() -> None:
    member = Cluster(Committee(1)).start().run(50).members[0]
    del member.store.entries[layout.HEAD]
    with pytest.raises(StoreError, match="Repair the disk"):
        member.awaken()


def test_a_foreign_safety_record_stops_a_joiner_too() -> None:
    network = settled()
    network.me.store.entries[layout.JOINING] = u64(0)
    network.me.slots = network.members[0].slots
    with pytest.raises(SafetyRecordError):
        network.me.awaken()


# -- lies ------------------------------------------------------------------------------------------------------------------

LIAR = 0
Change = Callable[[Any], msgspec.Struct | None]


@dataclass(frozen=True)
class Lie:
    """What member 0 says instead; None: nothing. Nobody else says anything of this kind before it has."""

    kind: type[msgspec.Struct]
    change: Change


def lying(network: Network, lie: Lie) -> list[msgspec.Struct]:
    """Returns what member 0 would have said to member 3 while that was joining."""
    send: Callable[[int, int, bytes], None] = network.outbox.send
    told: list[msgspec.Struct] = []

    def sends(sender: int, to: int, data: bytes) -> None:
        said = wire.decode(data)
        if to != ME or not joining(network.me) or not isinstance(said, lie.kind):
            send(sender, to, data)
        elif sender == LIAR:
            instead = lie.change(said)
            if instead != said:
                told.append(said)
            if instead is not None:
                send(sender, to, wire.encode(instead))
        elif told:
            send(sender, to, data)

    network.outbox.send = sends  # type: ignore[method-assign]
    return told


S = TypeVar("S", bound=msgspec.Struct)


def replace(struct: S, **changes: object) -> S:
    return msgspec.structs.replace(struct, **changes)


def offers(change: Callable[[SnapshotOffer], msgspec.Struct | None]) -> Lie:
    return Lie(SnapshotOffer, change)


def nodes(change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> Lie:
    return Lie(SnapshotNodes, lambda said: replace(said, nodes=change(said.nodes)))


def entries(change: Callable[[SnapshotEntries], msgspec.Struct | None]) -> Lie:
    return Lie(SnapshotEntries, change)


def blocks(change: Callable[[BlocksResponse], msgspec.Struct | None]) -> Lie:
    return Lie(BlocksResponse, change)


def repeated(kind: type[msgspec.Struct]) -> Lie:
    """Every answer is the first one of its kind again."""
    first: list[msgspec.Struct] = []

    def change(said: msgspec.Struct) -> msgspec.Struct:
        first.append(said)
        return first[0]

    return Lie(kind, change)


def leaves_as_branches(found: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The hash of a branch does not show which of its children are leaves."""

    def bare(node: bytes) -> bytes:
        present = int.from_bytes(node[:2], "big")
        return node[: 2 + 32 * present.bit_count()] + bytes(2) if len(node) > 64 else node

    return tuple(bare(node) for node in found)


def other_header(offer: SnapshotOffer) -> msgspec.Struct:
    header = replace(offer.header, state_root=bytes(32))
    return replace(offer, header=header)


def other_certificate(offer: SnapshotOffer) -> msgspec.Struct:
    header = msgspec.structs.replace(offer.header, state_root=bytes(32))
    return replace(offer, header=header, qc=replace(offer.qc, block=header.id()))


def other_size(offer: SnapshotOffer) -> msgspec.Struct:
    """With as many peaks, so that the history can be read and its root is the same."""
    size = offer.header.executed_height
    others = (other for other in range(size + 1, 4 * size) if other.bit_count() == size.bit_count())
    forged = replace(offer, history=u64(next(others)) + offer.history[8:])
    assert MountainRange.decode(forged.history).root() == offer.header.history_root
    return forged


def one_block(said: BlocksResponse) -> msgspec.Struct:
    following = said.blocks[1].header.justify if len(said.blocks) > 1 else said.qc
    return replace(said, blocks=said.blocks[:1], qc=following)


LIES: dict[str, Callable[[], Lie]] = {
    "an offer with another state": lambda: offers(other_header),
    "an offer that nobody certified": lambda: offers(other_certificate),
    "an offer of another chain": lambda: offers(
        lambda o: replace(o, header=replace(o.header, chain=bytes(32)))
    ),
    "an offer of another version": lambda: offers(lambda o: replace(o, header=replace(o.header, version=9))),
    "an offer without a history": lambda: offers(lambda o: replace(o, history=b"")),
    "an offer of another height": lambda: offers(
        lambda o: replace(o, history=u64(o.header.executed_height - 1) + o.history[8:])
    ),
    "an offer of another history": lambda: offers(lambda o: replace(o, history=o.history[:-1] + b"\0")),
    "an offer with a history of another size": lambda: offers(other_size),
    "an offer of another view": lambda: offers(lambda o: replace(o, qc=replace(o.qc, view=o.qc.view + 1))),
    "an offer of the parent": lambda: offers(lambda o: replace(o, qc=o.header.justify)),
    "no offer": lambda: offers(lambda _: None),
    "no answer about nodes": lambda: Lie(SnapshotNodes, lambda _: None),
    "no answer about entries": lambda: entries(lambda _: None),
    "no answer about blocks": lambda: blocks(lambda _: None),
    "nodes with a flipped bit": lambda: nodes(lambda found: tuple(flipped(node) for node in found)),
    "no nodes": lambda: nodes(lambda found: tuple(b"" for _ in found)),
    "fewer nodes": lambda: nodes(lambda found: found[1:]),
    "nodes in another order": lambda: nodes(lambda found: found[::-1] if len(found) > 1 else (b"",)),
    "larger nodes": lambda: nodes(lambda found: tuple(node + bytes(10_000) for node in found)),
    "leaves as branches": lambda: nodes(leaves_as_branches),
    "an entry left out": lambda: entries(
        lambda said: replace(said, entries=said.entries[1:] or said.entries)
    ),
    "the last entry left out": lambda: entries(
        lambda said: replace(said, entries=said.entries[:-1] or said.entries)
    ),
    "an early end": lambda: entries(lambda said: replace(said, more=False)),
    "no entries": lambda: entries(lambda said: replace(said, entries=(), more=False)),
    "one entry at a time": lambda: entries(
        lambda said: replace(said, entries=said.entries[:1], more=len(said.entries) > 1 or said.more)
    ),
    "no entries, for ever": lambda: entries(lambda said: replace(said, entries=(), more=True)),
    "a foreign entry": lambda: entries(
        lambda said: replace(said, entries=(*said.entries, (said.entries[-1][0] + b"x", b"1")))
    ),
    "another value": lambda: entries(lambda said: replace(said, entries=((said.entries[0][0], b"7" * 8),))),
    "entries backwards": lambda: entries(lambda said: replace(said, entries=said.entries[::-1] * 2)),
    "an entry left out while another comes twice": lambda: entries(
        lambda said: replace(said, entries=(*said.entries[:-2], *said.entries[-1:] * 2)[-len(said.entries) :])
    ),
    "entries twice": lambda: entries(lambda said: replace(said, entries=said.entries * 2)),
    "no blocks": lambda: blocks(lambda said: replace(said, blocks=(), qc=None)),
    "later blocks": lambda: blocks(lambda said: replace(said, blocks=said.blocks[1:])),
    "fewer blocks": lambda: blocks(lambda said: replace(said, blocks=said.blocks[:-1])),
    "blocks without a certificate": lambda: blocks(lambda said: replace(said, qc=None)),
    "one block at a time": lambda: blocks(one_block),
    "blocks with other batches": lambda: blocks(
        lambda said: replace(said, blocks=tuple(StoredBlock(b.header, (bytes(32),)) for b in said.blocks))
    ),
    "blocks with other headers": lambda: blocks(
        lambda said: replace(
            said, blocks=tuple(StoredBlock(replace(b.header, time=1), b.batches) for b in said.blocks)
        )
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_only_costs_time(lie: str) -> None:
    network = Network().without_me(heights=40).lose_blocks()
    network.run_until(lambda: joining(network.me))
    told = lying(network, LIES[lie]())
    came_back(network)
    assert told
    assert joins(network.me) == 1


@pytest.mark.parametrize("kind", [SnapshotNodes, SnapshotEntries])
def test_an_answer_that_comes_again_is_not_taken_for_another(kind: type[msgspec.Struct]) -> None:
    network = Network().without_me(heights=40).lose_blocks()
    network.run_until(lambda: joining(network.me))
    told = lying(network, repeated(kind))
    came_back(network)
    assert told


def test_a_liar_that_offers_first_and_serves_nothing_does_not_hold_the_join_up_for_ever() -> None:
    """It is the only one whose offer arrives in time."""
    network = Network().without_me(heights=40).lose_blocks()
    network.run_until(lambda: joining(network.me))
    carries, until = network.outbox.carries, network.now + 4_000

    def late(sender: int, to: int, data: bytes) -> bool:
        about = isinstance(wire.decode(data), SnapshotOffer | SnapshotNodes)
        if to == ME and about and network.now < until:
            return sender == LIAR and isinstance(wire.decode(data), SnapshotOffer)
        return carries(sender, to, data)

    network.outbox.carries = late
    came_back(network)


def test_a_joiner_starts_again_when_nobody_has_the_snapshot_any_more() -> None:
    network = Network().without_me(heights=40).lose_blocks()
    network.run_until(lambda: joining(network.me) and bool(dict(network.me.store.scan(layout.NODE))))
    network.run_until(lambda: Chain(network.me.store).head().height == 0 and asked(network.me, NodesRequest))
    for index in range(3):
        network.restart(index)
    came_back(network)
    heights = {
        request.height for request in sent_while_joining(network.me) if isinstance(request, NodesRequest)
    }
    assert len(heights) == 2


def test_a_liar_cannot_have_one_snapshot_of_its_own_after_the_other_begun_in_vain() -> None:
    """Honest members offer different heights, the liar the highest of all, and then it is silent."""
    alone = Alone()
    low, middle, high = alone.three_offers()
    chosen: list[int] = []
    for _ in range(3):
        alone.sent.clear()
        for sender, offer in ((1, low), (2, middle), (LIAR, high)):
            alone.tell(sender, offer)
        while not alone.sent:
            alone.wait(1)
        (to, question) = alone.sent[-1]
        assert isinstance(question, NodesRequest)
        chosen.append(question.height)
        if to != LIAR:
            break
        *_, effects = [alone.wait(1_000) for _ in range(3)]
        assert isinstance(effects[0], Broadcast)
    assert chosen == [high.header.executed_height, middle.header.executed_height]


def test_an_old_snapshot_is_not_taken_before_another_member_had_its_say() -> None:
    """It is certified, too: a liar that is quick could throw a broker back as far as it likes."""
    alone = Alone()
    low, _, high = alone.three_offers()
    alone.tell(LIAR, low)
    for _ in range(10):
        effects = alone.wait(1_000)
        assert isinstance(effects[0], Broadcast)
    alone.tell(1, high)
    alone.wait(1_000)
    while not alone.sent:
        alone.wait(1)
    ((_, question),) = alone.sent
    assert isinstance(question, NodesRequest)
    assert question.height == high.header.executed_height


def test_one_offer_is_taken_at_last_when_no_other_member_makes_one() -> None:
    """While this broker does not vote the others may stand still, and then they can make none."""
    alone = Alone()
    low, _, _ = alone.three_offers()
    alone.tell(1, low)
    for _ in range(FEW_OFFERS_MS // 1_000 - 1):
        alone.wait(1_000)
    assert not alone.sent
    for _ in range(1_100):
        if not alone.sent:
            alone.wait(1)
    ((to, question),) = alone.sent
    assert isinstance(question, NodesRequest)
    assert (to, question.height) == (1, low.header.executed_height)


def test_an_old_snapshot_is_not_taken_for_the_number_of_liars_that_offer_it() -> None:
    alone = Alone()
    low, _, high = alone.three_offers()
    far = replace(high, header=replace(high.header, executed_height=low.header.executed_height + 1_000))
    search = _Search()
    for sender, offer in ((0, low), (1, low), (2, far)):
        search.add(0, sender, offer)
    assert search.best({}) == (far, [2])
    search.add(0, 2, high)
    assert search.best({}) == (low, [0, 1])


def asked(member: Member, kind: type[msgspec.Struct]) -> bool:
    return any(isinstance(message, kind) for message in sent_while_joining(member))


# -- one joiner alone ----------------------------------------------------------------------------------------------------


class Alone:
    """A joiner whose questions the test answers with what the others hold."""

    def __init__(self, above: int = 0, joined: Joins | None = None) -> None:
        self.network = Network().without_me(heights=12)
        me = self.network.me
        me.store.entries[layout.JOINING] = u64(above)
        if joined is not None:
            me.store.entries[layout.JOINS] = msgspec.msgpack.encode(joined)
        me.awaken()
        self.now = 0
        self.sent: list[tuple[int, msgspec.Struct]] = []
        self.effects: list[Effect] = []
        self.do(me.replica.start(0))

    def do(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            match effect:
                case Write():
                    self.network.me.store.write(effect.entries)
                case Send():
                    self.sent.append((effect.to, wire.decode(effect.data)))
                case SetTimer():
                    self.timer = effect.timer
                case _:
                    pass
        self.effects += effects
        return effects

    def tell(self, sender: int, message: msgspec.Struct) -> list[Effect]:
        return self.do(self.network.me.replica.receive(self.now, sender, wire.encode(message)))

    def wait(self, ms: int) -> list[Effect]:
        self.now += ms
        return self.do(self.network.me.replica.fire(self.now, self.timer))

    def offers(self, *members: int) -> SnapshotOffer:
        """All have the same snapshot."""
        others = self.network
        ask = wire.encode(SnapshotRequest(0))
        for index in members:
            others.deliver(ME, index, ask)
        height = others.heights()[0]
        others.absent = {ME}
        others.run_until(lambda: min(others.heights()[:ME]) > height + 8)
        found = [answer_of(others, index, SnapshotRequest(0)) for index in members]
        offers = [offer for offer in found if isinstance(offer, SnapshotOffer)]
        for index, offer in zip(members, offers, strict=True):
            self.tell(index, offer)
        return offers[0]

    def three_offers(self) -> list[SnapshotOffer]:
        """Of three heights, lowest first."""
        others = self.network
        others.absent = {ME}
        found: list[SnapshotOffer] = []
        for _ in range(3):
            above = found[-1].header.executed_height if found else 0
            ask = wire.encode(SnapshotRequest(above))
            others.deliver(ME, 0, ask)
            height = others.heights()[0]
            others.run_until(lambda height=height: others.heights()[0] > height + 8)  # type: ignore[misc]
            offer = answer_of(others, 0, SnapshotRequest(above))
            assert isinstance(offer, SnapshotOffer)
            found.append(offer)
        return found

    def answer(self, until: type[msgspec.Struct]) -> tuple[int, msgspec.Struct]:
        """Let the old state go, and the others answer until such a question comes."""
        while not self.sent:
            self.wait(1)
        while not isinstance(self.sent[-1][1], until):
            to, question = self.sent[-1]
            self.tell(to, answer_of(self.network, to, question))
        return self.sent[-1]


def answer_of(network: Network, member: int, question: msgspec.Struct) -> msgspec.Struct:
    sent = network.members[member].replica.receive(network.now, ME, wire.encode(question))
    (data,) = [effect.data for effect in sent if isinstance(effect, Send)]
    return wire.decode(data)


def test_nothing_is_destroyed_before_a_checked_offer_is_at_hand() -> None:
    alone = Alone()
    before = dict(alone.network.me.store.entries)
    for _ in range(5):
        alone.wait(1_000)
    assert alone.network.me.store.entries == before
    alone.offers(0, 1)
    assert alone.network.me.store.entries == before  # the third may still come
    alone.wait(2_000)
    assert not dict(alone.network.me.store.scan(b"s/"))


def test_the_height_that_was_not_enough_before_is_not_enough_again() -> None:
    height = Alone().offers(0, 1, 2).header.executed_height
    again, below = Alone(above=height), Alone(above=height - 1)
    for alone in (again, below):
        assert alone.offers(0, 1, 2).header.executed_height == height
    assert [effect.reason for effect in again.effects if isinstance(effect, Refused)] == [
        Reason.BAD_ANSWER
    ] * 3
    assert not any(isinstance(effect, Refused) for effect in below.effects)


def test_a_joiner_does_not_hear_itself() -> None:
    alone = Alone()
    offer = alone.offers(0)
    (refused,) = alone.tell(ME, offer)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.UNKNOWN_SIGNER


def test_who_answers_wrongly_is_not_asked_again() -> None:
    alone = Alone()
    offer = alone.offers(0, 1, 2)
    to, question = alone.answer(NodesRequest)
    assert isinstance(question, NodesRequest)
    wrong = SnapshotNodes(offer.header.executed_height, question.paths[0], (b"",) * len(question.paths))
    alone.tell(to, wrong)
    asked = len(alone.sent)
    alone.answer(BlocksRequest)
    assert {member for member, _ in alone.sent[asked - 1 :]} == {0, 1, 2} - {to}


def test_a_timer_of_an_earlier_question_says_nothing_of_this_one() -> None:
    alone = Alone()
    alone.offers(0, 1, 2)
    to, question = alone.answer(NodesRequest)
    earlier = alone.timer
    alone.tell(to, answer_of(alone.network, to, question))
    assert alone.timer != earlier
    assert alone.network.me.replica.fire(alone.now + 1_000, earlier) == []
    assert alone.wait(1_000)


def test_a_member_that_left_entries_out_is_not_asked_for_all_of_them_again() -> None:
    """Who did is not known after the first time: from then on one member at a time gives all, or is out."""
    alone = Alone()
    alone.offers(0, 1, 2)
    alone.answer(EntriesRequest)
    passes: list[list[int]] = []
    while isinstance(question := alone.sent[-1][1], EntriesRequest) and len(passes) < 10:
        to = alone.sent[-1][0]
        passes = [*passes, []] if question.after == b"" else passes
        passes[-1].append(to)
        said = answer_of(alone.network, to, question)
        assert isinstance(said, SnapshotEntries)
        alone.tell(to, said if to == 2 else replace(said, entries=said.entries[:-1] or said.entries))
    assert set(passes[0]) == {0, 1, 2}
    sources = [set(asked) for asked in passes[1:]]
    assert all(len(asked) == 1 for asked in sources)
    assert len(set.union(*sources)) == len(sources)
    assert sources[-1] == {2}
    assert isinstance(alone.sent[-1][1], BlocksRequest)


def test_when_all_sources_left_entries_out_a_new_search_begins() -> None:
    alone = Alone()
    alone.offers(0, 1)
    alone.wait(2_000)
    alone.answer(EntriesRequest)
    begun = len(alone.effects)
    passes = 0
    while not any(isinstance(effect, Broadcast) for effect in alone.effects[begun:]):
        to, question = alone.sent[-1]
        assert isinstance(question, EntriesRequest)
        passes += question.after == b""
        assert passes <= 3
        said = answer_of(alone.network, to, question)
        assert isinstance(said, SnapshotEntries)
        alone.tell(to, replace(said, entries=said.entries[:-1] or said.entries))
    assert passes == 3


def test_entries_of_one_source_are_not_continued_by_the_next() -> None:
    alone = Alone()
    alone.offers(0, 1, 2)
    to, question = alone.answer(EntriesRequest)
    said = answer_of(alone.network, to, question)
    assert isinstance(said, SnapshotEntries)
    alone.tell(to, replace(said, entries=said.entries[:1], more=False))
    (first, question) = alone.sent[-1]
    alone.tell(first, answer_of(alone.network, first, question))
    (again, question) = alone.sent[-1]
    assert isinstance(question, EntriesRequest)
    assert (again, question.after != b"") == (first, True)
    alone.wait(1_000)  # it is silent now
    (then, question) = alone.sent[-1]
    assert isinstance(question, EntriesRequest)
    assert (then != first, question.after) == (True, b"")


def test_blocks_of_one_member_are_not_continued_by_the_next() -> None:
    """The first may have sent a branch that was abandoned: nothing that honest members have would follow."""
    alone = Alone()
    alone.offers(0, 1, 2)
    to, question = alone.answer(BlocksRequest)
    assert isinstance(question, BlocksRequest)
    said = answer_of(alone.network, to, question)
    assert isinstance(said, BlocksResponse)
    alone.tell(to, one_block(said))
    assert alone.sent[-1] == (to, BlocksRequest(question.target, question.above + 1))
    alone.wait(1_000)  # it is silent now
    (then, again) = alone.sent[-1]
    assert (then != to, again) == (True, question)


def test_a_good_answer_makes_up_for_the_questions_left_without_one() -> None:
    sources = _Sources((0, 1))
    for _ in range(3):
        for _ in range(MISSES - 1):
            sources.missed(0)
        sources.answered(0)
    assert 0 in sources.members
    for _ in range(MISSES):
        sources.missed(0)
    assert 0 not in sources.members


def test_all_that_the_snapshot_replaces_goes_and_nothing_else() -> None:
    kept = [
        layout.committed(0),
        layout.committed(7),
        layout.receipts(7),
        layout.batch(bytes(32)),
        layout.waiting(bytes(32)),
        layout.history_node(0, 9),
        layout.JOINING,
    ]
    gone = [
        layout.state(b""),
        layout.state(b"\xff" * 40),
        layout.state_node(b""),
        layout.roots(0),
        layout.roots(7),
        layout.committed(8),
        layout.committed(2**40),
        layout.receipts(8),
    ]
    store = Overlay(MemoryStore((key, b"value") for key in kept + gone))
    purge = _Purge(store, 7)
    found: list[bytes] = []
    while keys := purge.some():
        found += keys
    assert sorted(found) == sorted(gone)


def test_a_join_is_marked_on_the_disk_before_anything_is_asked_and_its_end_is_synced() -> None:
    """Half purged, a store may look whole at the next start; half written, a replica may have answered for it already."""
    network = settled()
    del network.me.store.entries[layout.committed(0)]
    network.absent = set()
    network.restart(ME)
    first, second, third = network.me.history[-4:-1]
    assert isinstance(first, Found)
    assert second == Write(((layout.JOINING, u64(0)),), sync=True)
    assert isinstance(third, Broadcast)
    network.until_joined()
    ends = [index for index, effect in enumerate(network.me.history) if isinstance(effect, Restart)]
    last = network.me.history[ends[-1] - 1]
    assert isinstance(last, Write)
    assert last.sync
    assert last.entries[-1] == (layout.JOINING, None)


def test_a_snapshot_that_is_older_than_needed_is_refused() -> None:
    alone = Alone(above=1_000)
    alone.offers(0, 1, 2)
    assert not alone.sent
    assert sum(isinstance(effect, Refused) for effect in alone.effects) == 3


def test_an_offer_or_an_answer_out_of_turn_is_refused() -> None:
    alone = Alone()
    offer = alone.offers(0, 1, 2)
    to, question = alone.answer(NodesRequest)
    (refused,) = alone.tell(0, offer)
    assert isinstance(refused, Refused)
    answer = answer_of(alone.network, to, question)
    for sender in {0, 1, 2} - {to}:
        (refused,) = alone.tell(sender, answer)
        assert isinstance(refused, Refused)
    (refused,) = alone.tell(to, SnapshotEntries(offer.header.executed_height, b"", (), False))
    assert isinstance(refused, Refused)
    assert alone.sent[-1] == (to, question)
    for sender in (ME, 4, 2**31):
        (refused,) = alone.network.me.replica.receive(alone.now, sender, wire.encode(answer))
        assert isinstance(refused, Refused)


def with_one_source() -> tuple[Alone, Joiner, int]:
    """A joiner that has asked for the first nodes and will put all its questions to the same member."""
    alone = Alone()
    alone.offers(0, 1, 2)
    to, _ = alone.answer(NodesRequest)
    joiner = alone.network.me.replica
    assert isinstance(joiner, Joiner)
    joiner._sources = _Sources([to])
    return alone, joiner, to


@pytest.mark.parametrize("nodes", [tuple, leaves_as_branches])
def test_answers_that_come_in_one_parcel_are_taken_like_those_that_come_one_by_one(
    nodes: Callable[[tuple[bytes, ...]], tuple[bytes, ...]],
) -> None:
    """A member may guess the next questions, and each answer builds on what the one before has only just brought."""
    single, _, to = with_one_source()
    told: list[bytes] = []
    while not any(isinstance(effect, Restart) for effect in single.effects):
        answer = answer_of(single.network, *single.sent[-1])
        if isinstance(answer, SnapshotNodes):
            answer = replace(answer, nodes=nodes(answer.nodes))
        told.append(wire.encode(answer))
        single.tell(to, answer)
    assert len(told) > 10
    together, joiner, again = with_one_source()
    assert again == to
    before = len(together.effects)
    together.do(joiner.receive(together.now, to, *told[:2], b"no message", *told[2:], *told[:2]))
    effects = together.effects[before:]
    assert [effect.reason for effect in effects if isinstance(effect, Refused)] == [Reason.MALFORMED]
    assert [type(effect) for effect in effects].count(Send) == len(told) - 1
    assert isinstance(effects[-1], Restart)
    assert together.network.me.store.entries == single.network.me.store.entries


def test_too_many_joins_in_a_row_stop_it_with_advice_and_destroy_nothing() -> None:
    alone = Alone(joined=Joins(IMPATIENT.joins, 5))
    before = dict(alone.network.me.store.entries)
    alone.offers(0, 1, 2)
    (halt,) = [effect for effect in alone.effects if isinstance(effect, Halt)]
    assert "Check the disk" in halt.why
    assert alone.network.me.store.entries == before
    assert not alone.wait(1_000)
    assert not alone.tell(0, SnapshotRequest(0))


def test_a_disk_that_loses_what_was_fetched_makes_it_start_again() -> None:
    alone = Alone()
    alone.offers(0, 1, 2)
    to, question = alone.answer(EntriesRequest)
    for key, _ in list(alone.network.me.store.scan(layout.NODE)):
        if key != layout.NODE:
            del alone.network.me.store.entries[key]
    effects = alone.tell(to, answer_of(alone.network, to, question))
    assert [type(effect) for effect in effects] == [Broadcast, SetTimer]


def test_a_member_that_sends_blocks_too_slowly_loses_its_turn() -> None:
    alone = Alone()
    alone.offers(0, 1, 2)
    to, question = alone.answer(BlocksRequest)
    answer = answer_of(alone.network, to, question)
    assert isinstance(answer, BlocksResponse)
    alone.now += 20_000
    alone.tell(to, one_block(answer))
    again, repeated_ = alone.sent[-1]
    assert again != to
    assert repeated_ == question


def test_members_that_each_leave_entries_out_are_passed_over_one_by_one() -> None:
    alone = Alone()
    alone.offers(0, 1, 2)
    alone.answer(EntriesRequest)
    tried: list[int] = []
    effects = alone.effects
    while any(isinstance(effect, Send) for effect in effects):
        to, question = alone.sent[-1]
        assert isinstance(question, EntriesRequest)
        tried.append(to)
        effects = alone.tell(to, SnapshotEntries(question.height, question.after, (), False))
    assert sorted(tried[1:]) == [0, 1, 2]  # after the one that showed that something is missing
    assert [type(effect) for effect in effects] == [Broadcast, SetTimer]  # for new offers


# -- crashes ---------------------------------------------------------------------------------------------------------------


class Crash(Exception):  # noqa: N818 - what happens to the machine
    pass


class Fragile(MemoryStore):
    """Loses what was not synced when the machine crashes, which it does in the middle of a chosen effect."""

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        super().__init__(entries)
        self.durable = dict(entries)

    def write(self, entries: Iterable[tuple[bytes, bytes | None]], *, sync: bool = True) -> None:
        super().write(entries)
        if sync:
            self.durable = dict(self.entries)

    def crash(self) -> None:
        self.reset(self.durable)


class Mortal(Member):
    """Dies before the effect of which `left` says how many come first."""

    left: int | None = None

    def execute(self, effects: list[Effect], outbox: object) -> None:
        for effect in effects:
            if self.left == 0:
                raise Crash
            if self.left is not None:
                self.left -= 1
            super().execute([effect], outbox)  # type: ignore[arg-type]


@pytest.mark.parametrize("keeps", [True, False], ids=["unsynced kept", "unsynced lost"])
def test_a_crash_at_any_effect_of_a_join_leads_to_a_finished_join_later(keeps: bool) -> None:
    network = Network().without_me(heights=40).lose_blocks()
    network.run_until(lambda: joining(network.me))
    me = network.me
    me.__class__ = Mortal
    assert isinstance(me, Mortal)
    store = me.store = Fragile(me.store.entries)
    me.awaken()
    crashes = 0
    while not crashes or joining(me):
        me.left = crashes
        try:
            network.restart(ME)
            network.run_until(lambda: not joining(me), rounds=6_000)
        except Crash:
            crashes += 1
            if not keeps:
                store.crash()
            assert store.get(layout.JOINING) is not None or Chain(store).head().height > 30
            me.awaken()
    me.left = None
    assert crashes > 40
    network.restart(ME)
    network.until_level()
    assert is_like(me, network.members[0])


# -- with the pub/sub application ------------------------------------------------------------------------------------------


def test_a_broker_joins_with_the_state_of_topics_and_subscriptions_and_goes_on_numbering() -> None:
    shard = Shard()
    cluster, control = shard.cluster, shard.maker.control
    admin = ADMINS[ORGANISATIONS[0]]
    shard.order(control(admin, registration(shard.maker.chain, ALICE, ())))
    shard.order(control(admin, CreateTopic("wards", 1, Policy(), "", "")))
    shard.order(control(ALICE, Subscribe("wards", "n == 3")))
    shard.publish(ALICE, "wards", b"one", b"three")
    me, other = cluster.members[ME], cluster.members[0]
    me.store.entries.clear()
    me.application = DATA_SHARD.mount(GENESIS)
    cluster.restart(ME)
    shard.publish(ALICE, "wards", b"one", b"three")
    cluster.run_until(lambda: joins(me) == 1)
    me.application = DATA_SHARD.mount(GENESIS)  # a new life has a new one
    cluster.restart(ME)
    shard.publish(ALICE, "wards", b"one", b"three")
    cluster.run_until(
        lambda: (
            cluster.heights()[ME] == cluster.heights()[0] and me.applied[-1].block == other.applied[-1].block
        )
    )
    assert is_like(me, other)
    assert me.applied[-1].receipts == other.applied[-1].receipts
