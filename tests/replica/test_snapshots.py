"""A broker freezes its state when somebody asks for it, offers what a quorum has certified, and lets go of it again."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.replica.driver import Cluster, Committee, MemoryStore, submitted

from parley.consensus.types import QC, Header
from parley.crypto.encoding import u64
from parley.ledger import layout, state_map
from parley.ledger.layout import Head, StateNodes
from parley.replica import snapshots, wire
from parley.replica.ports import Certified, Send
from parley.replica.snapshots import FORGOTTEN, IN_USE, LIFETIME, MAX_AGE, MAX_PENDING, Snapshots
from parley.sync.messages import (
    EntriesRequest,
    NodesRequest,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
    SnapshotRequest,
)

ASKER, OTHER = 3, 2


def certificate() -> Certified:
    """Some header with its QC, to be changed at will: nothing is checked here but at the joiner's."""
    cluster = Cluster().start()
    return cluster.run_until(lambda: bool(cluster.members[0].certified)).members[0].certified[0]


SOME = certificate()


def header_of(height: int) -> Header:
    return msgspec.structs.replace(SOME.header, executed_height=height)


def view_of(height: int) -> MemoryStore:
    head = msgspec.msgpack.encode(Head(height, b"history of %d" % height))
    return MemoryStore({layout.HEAD: head, layout.state(b"a"): u64(height)}.items())


class Server:
    """A broker that executes one height after the other; a header names each of them two heights later."""

    def __init__(self) -> None:
        self.snapshots = Snapshots()
        self.height = 0
        self.now = 0
        self.frozen: list[int] = []

    def execute(self, heights: int, *, certified: bool = True) -> Server:
        for _ in range(heights):
            self.height += 1
            self.step()
            if certified and self.height > 2:
                self.snapshots.certified(header_of(self.height - 2), SOME.qc)
        return self

    def step(self, ms: int = 0) -> None:
        self.now += ms
        if self.snapshots.wants(self.height, self.now):
            self.frozen.append(self.height)
            self.snapshots.freeze(self.height, view_of(self.height))

    def offer(self, above: int = 0, member: int = ASKER) -> int | None:
        offer = self.snapshots.offer(member, SnapshotRequest(above), self.now)
        return None if offer is None else offer.header.executed_height

    def kept(self) -> tuple[int, ...]:
        return self.snapshots.kept

    def has(self, height: int, member: int = ASKER) -> bool:
        return self.snapshots.entries(member, EntriesRequest(height, b""), self.now) is not None


def test_nothing_is_frozen_until_somebody_asks() -> None:
    server = Server().execute(20)
    assert not server.frozen
    assert server.offer() is None


def test_who_asks_is_offered_a_certified_height_soon() -> None:
    server = Server().execute(9)
    assert server.offer() is None
    server.execute(3)
    assert server.frozen == [12]
    assert server.offer() is None  # not certified yet
    server.execute(2)
    assert server.offer() == 12
    server.execute(20)
    assert server.frozen == [12]


def test_brokers_that_are_asked_at_about_the_same_time_freeze_the_same_height() -> None:
    servers = [Server().execute(height) for height in (9, 10, 11)]
    for server in servers:
        server.offer()
        server.execute(10)
    assert {server.offer() for server in servers} == {12}


def test_blocks_that_are_executed_two_at_a_time_skip_no_snapshot() -> None:
    """With one silent member of four that can go on for ever, and every step ends at an odd height."""
    servers = [Server().execute(height) for height in (9, 11)]
    for server in servers:
        server.offer()
        while server.height < 21:
            server.height += 2
            server.step()
        assert server.frozen == [13, 17, 21]
        server.snapshots.certified(header_of(17), SOME.qc)
    assert {server.offer() for server in servers} == {17}


def test_an_offer_has_the_history_of_its_height() -> None:
    server = Server().execute(9)
    server.offer()
    server.execute(10)
    offer = server.snapshots.offer(ASKER, SnapshotRequest(0), 0)
    assert offer == SnapshotOffer(header_of(12), SOME.qc, b"history of 12")


def test_a_height_that_is_certified_late_gives_way_to_a_higher_one() -> None:
    server = Server().execute(9)
    server.offer()
    server.execute(8, certified=False)
    assert server.kept() == (12, 16)
    server.snapshots.certified(header_of(14), SOME.qc)
    assert server.kept() == (16,)
    server.snapshots.certified(header_of(16), SOME.qc)
    assert server.offer() == 16


def test_few_uncertified_heights_are_kept_the_newest_ones() -> None:
    server = Server()
    server.execute(1).offer()
    server.execute(4 * (MAX_PENDING + 5), certified=False)
    assert len(server.kept()) == MAX_PENDING
    assert max(server.kept()) == server.frozen[-1]
    assert server.kept() == tuple(server.frozen[-MAX_PENDING:])


def test_a_snapshot_that_is_too_low_or_too_old_makes_way_for_a_new_one() -> None:
    server = Server().execute(9)
    server.offer()
    server.execute(10)
    assert server.offer(above=12) is None
    server.execute(6)
    assert server.offer(above=12) == 20
    server.execute(MAX_AGE + 1)
    assert server.offer() is None
    server.execute(8)
    assert server.offer() == server.frozen[-1] > MAX_AGE


def test_what_cannot_be_had_yet_freezes_nothing() -> None:
    server = Server().execute(9)
    for above in (9, 10, 2**64 - 1):
        assert server.offer(above) is None
    server.execute(20)
    assert not server.frozen


def test_an_older_snapshot_is_kept_while_a_member_fetches_it_whatever_others_ask_for() -> None:
    server = Server().execute(9)
    server.offer()
    server.execute(10)
    for _ in range(20):
        assert server.has(12)
        server.offer(above=server.height - 1, member=OTHER)
        server.execute(8)
        server.step(ms=1_000)
    assert len(server.kept()) <= 3
    server.step(ms=IN_USE + 1)
    assert not server.has(12)
    assert server.kept() == (server.frozen[-1],)


def test_what_nobody_asks_for_any_more_is_dropped() -> None:
    server = Server().execute(9)
    server.offer()
    server.execute(10)
    server.step(ms=FORGOTTEN)
    assert server.kept() == (12,)
    server.step(ms=1)
    assert server.kept() == ()
    server.offer()
    server.execute(2, certified=False)
    assert server.kept()
    server.step(ms=FORGOTTEN + 1)
    assert server.kept() == ()
    server.execute(20)
    assert server.kept() == ()


@pytest.mark.parametrize("asks", ["for its entries", "for more than there is"])
def test_nobody_keeps_a_view_for_ever_by_asking(asks: str) -> None:
    """A view holds the space of all that is overwritten since."""
    server = Server().execute(9)
    server.offer()
    server.execute(10)
    for _ in range(0, LIFETIME, IN_USE // 2):
        assert server.kept() == (12,)
        assert server.has(12) if asks == "for its entries" else server.offer(above=2**64 - 1) is None
        server.step(ms=IN_USE // 2)
    server.step(ms=1)
    assert server.kept() == ()
    assert server.offer() is None
    server.execute(10)
    assert server.offer() == 20


def test_everything_is_let_go_of_before_a_restart() -> None:
    server = Server().execute(9)
    server.offer()
    server.execute(10)
    server.snapshots.drop()
    assert server.kept() == ()
    assert server.offer() is None


# -- what is in it ---------------------------------------------------------------------------------------------------------

ENTRIES = {b"key %04d" % number: b"value %d" % number for number in range(300)}


@pytest.fixture(scope="module")
def served() -> Snapshots:
    """With 300 entries and their map."""
    _, nodes = state_map.update(StateNodes(MemoryStore()), ENTRIES)
    store = view_of(4)
    del store.entries[layout.state(b"a")]
    store.entries.update((layout.state(key), value) for key, value in ENTRIES.items())
    store.entries.update((layout.state_node(path), node) for path, node in nodes.items() if node is not None)
    store.entries[b"s/l"] = b"behind the state"
    served = Snapshots()
    served.wants(3, 0)
    served.offer(ASKER, SnapshotRequest(0), 0)
    assert served.wants(4, 0)
    served.freeze(4, store)
    served.certified(header_of(4), SOME.qc)
    return served


def pages(served: Snapshots) -> Iterator[SnapshotEntries]:
    after = b""
    while True:
        page = served.entries(ASKER, EntriesRequest(4, after), 0)
        assert page is not None
        assert page.after == after
        assert all(key > after for key, _ in page.entries)
        yield page
        if not page.more:
            return
        after = page.entries[-1][0]


@pytest.mark.parametrize("room", [1, 100, 1_000, 512 * 1024])
def test_entries_come_in_key_order_in_bounded_answers_each_once(
    served: Snapshots, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_ANSWER", room)
    found = list(pages(served))
    assert [entry for page in found for entry in page.entries] == sorted(ENTRIES.items())
    for page in found:
        size = sum(len(layout.state(key)) + len(value) for key, value in page.entries)
        assert len(page.entries) == 1 or size <= room
        assert not page.more or size >= snapshots.least()


def test_an_answer_with_more_to_come_is_never_small_whatever_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the asker takes who sends it for a liar that keeps it waiting, entry by entry."""
    monkeypatch.setattr(snapshots, "MAX_ANSWER", 800)
    server = Server().execute(3)
    server.offer()
    server.execute(4)
    store = view(server.snapshots)
    store.entries.update({layout.state(b"b"): bytes(2_000), layout.state(b"c"): bytes(800)})
    first = server.snapshots.entries(ASKER, EntriesRequest(4, b""), 0)
    assert first is not None
    assert [key for key, _ in first.entries] == [b"a", b"b"]
    assert first.more


def test_nodes_come_in_the_order_of_the_question_and_leaves_by_their_entries(served: Snapshots) -> None:
    root = served.nodes(ASKER, NodesRequest(4, (b"",)), 0)
    assert root is not None
    contents = state_map.check(b"", state_map.root(StateNodes(view(served))), root.nodes[0])
    assert contents is not None
    paths = tuple(bytes([nibble]) for nibble in range(16))
    answer = served.nodes(ASKER, NodesRequest(4, paths), 0)
    assert answer == SnapshotNodes(
        4, paths[0], tuple(state_map.standing(StateNodes(view(served)), p) or b"" for p in paths)
    )
    assert all(answer.nodes)
    leaf = next(path for path in deeper(view(served)) if len(path) > 1)
    (entry,) = served.nodes(ASKER, NodesRequest(4, (leaf,)), 0).nodes  # type: ignore[union-attr]
    assert state_map.is_leaf(entry)


def view(served: Snapshots) -> MemoryStore:
    found = served._ready[4].view
    assert isinstance(found, MemoryStore)
    return found


def deeper(store: MemoryStore) -> Iterator[bytes]:
    """Paths of leaves."""
    for key, _ in store.scan(layout.NODE):
        for nibble in range(16):
            path = key[len(layout.NODE) :] + bytes([nibble])
            if store.get(layout.state_node(path)) is None and state_map.standing(StateNodes(store), path):
                yield path


def test_there_is_nothing_at_a_path_that_is_none(served: Snapshots) -> None:
    answer = served.nodes(ASKER, NodesRequest(4, (bytes(64), b"\xff", b"\x00\xff", b"\x10")), 0)
    assert answer is not None
    assert answer.nodes == (b"",) * 4


def test_a_damaged_node_is_not_served() -> None:
    server = Server().execute(3)
    server.offer()
    server.execute(4)
    store = view(server.snapshots)
    store.entries[layout.state_node(b"")] = b"no node"
    store.entries[layout.state_node(b"\x01")] = bytes(10_000)
    answer = server.snapshots.nodes(ASKER, NodesRequest(4, (b"\x02", b"\x01")), 0)
    assert answer is not None
    assert answer.nodes == (b"", b"")


@pytest.mark.parametrize("head", [None, b"", b"\xc1", msgspec.msgpack.encode(Head(3, b""))])
def test_a_view_without_its_head_is_not_offered(head: bytes | None) -> None:
    served = Snapshots()
    served.wants(3, 0)
    served.offer(ASKER, SnapshotRequest(0), 0)
    store = view_of(4)
    store.write(((layout.HEAD, head),))
    served.freeze(4, store)
    served.certified(header_of(4), SOME.qc)
    assert served.offer(ASKER, SnapshotRequest(0), 0) is None


# -- in a replica ----------------------------------------------------------------------------------------------------------


def test_a_replica_offers_what_it_has_frozen_and_its_answers_are_those_of_that_height() -> None:
    cluster = Cluster(Committee()).start()
    submitted(cluster)
    request = wire.encode(SnapshotRequest(0))
    offers: list[SnapshotOffer] = []

    def offered() -> bool:
        sent = [effect for effect in cluster.deliver(3, 0, request) if isinstance(effect, Send)]
        offers.extend(
            m for m in (wire.decode(effect.data) for effect in sent) if isinstance(m, SnapshotOffer)
        )
        return bool(offers)

    cluster.run_until(offered)
    header = offers[0].header
    assert isinstance(offers[0].qc, QC)
    assert offers[0].qc.block == header.id()
    assert header.executed_height % 4 == 0
    submitted(cluster, count=12)
    cluster.run(100)
    (effect,) = cluster.deliver(3, 0, wire.encode(NodesRequest(header.executed_height, (b"",))))
    assert isinstance(effect, Send)
    answer = wire.decode(effect.data)
    assert isinstance(answer, SnapshotNodes)
    assert state_map.check(b"", header.state_root, answer.nodes[0]) is not None
