"""Every checker of publications speaks when its property is broken and is silent when it holds."""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import msgspec
import pytest
from msgspec.structs import replace
from tests.sim.test_checkers import GENESIS, verdicts

from parley.application.keeping import RECEIPTS
from parley.application.operations import Operation, encode_operation
from parley.application.tables import encode_value
from parley.consensus.types import Block
from parley.ledger import layout
from parley.ledger.erasure import remains_of
from parley.ledger.layout import StoredBlock
from parley.model.batches import CONTROL, STAGED, Message, MessageHeader, encode
from parley.model.receipts import BatchReceipt, Done, Leaf, Outcome, Rejected, encode_leaf
from parley.model.refusals import Revoked
from parley.modules.publishing.receipts import Published, first_offset
from parley.modules.publishing.tables import OFFSETS
from parley.modules.registry.operations import RevokeClient
from parley.modules.staging.operations import CommitStage
from parley.modules.staging.receipts import Staged
from parley.modules.staging.tables import STAGED as STAGED_BATCHES
from parley.modules.subscriptions.receipts import Closed, Match
from parley.modules.subscriptions.tables import ORDER_LEAVES
from parley.modules.topics.operations import DeleteTopic
from parley.modules.topics.tables import HEADS, PartitionRecord
from parley.sim.chance import stream
from parley.sim.network import Network
from parley.sim.observations import (
    Applied,
    Certified,
    Observation,
    Opened,
    Resumed,
    Started,
    Submitted,
    Wiped,
)
from parley.sim.pubsub.author import Author
from parley.sim.pubsub.checkers import Agreed, NothingLost, PublicationOrder, Revocation, WholeStages
from parley.sim.pubsub.disks import SoundDisks
from parley.sim.pubsub.people import People, Person
from parley.sim.pubsub.post import Post
from parley.sim.scenario import Simulation
from parley.sim.world import World
from parley.store.memory import MemoryStore

KEY, CONSTRAINT, LEAF = b"k" * 32, b"c" * 32, b"l" * 32
BEGUN = (1, 0)
CREATED = (1, 0)  # the id of a topic
WRITER = b"w" * 16


def name(number: int) -> bytes:
    return bytes([number]) * 32


def applied(height: int, *leaves: Leaf, replica: int = 0, numbered: Iterable[Leaf] = ()) -> Applied:
    """`numbered`: what earlier blocks have staged and this one gave offsets."""
    results = msgspec.msgpack.encode(tuple(map(encode_leaf, (*leaves, *numbered))))
    own = tuple(leaf.digest for leaf in leaves if isinstance(leaf, BatchReceipt))
    return Applied(replica, Block(replace(GENESIS.header, height=height), own), (), results)


def published(number: int, first: int, count: int = 1, topic: str = "t") -> BatchReceipt:
    return BatchReceipt(name(number), KEY, "org/client", topic, CREATED, 0, count, Published(first))


def matched(first_ps: int, *offsets: int) -> Match:
    return Match("t", 0, CONSTRAINT, BEGUN, first_ps, tuple((offset, LEAF) for offset in offsets))


def closed(final_ps: int) -> Closed:
    return Closed("t", 0, CONSTRAINT, BEGUN, final_ps)


# -- publication order ----------------------------------------------------------------------------------------


def test_publication_order_holds_while_offsets_and_ps_follow_each_other() -> None:
    history: list[Observation] = [
        applied(1, published(1, 0, 2), published(2, 0, topic="u"), matched(0, 0, 1)),
        applied(1, published(1, 0, 2), published(2, 0, topic="u"), matched(0, 0, 1), replica=1),
        applied(2, published(3, 2), matched(2, 2), closed(3)),
    ]
    assert verdicts(PublicationOrder(Agreed()), history) == []


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ((published(2, 2),), "offset 2 of t/0 follows 0"),
        ((published(2, 0),), "offset 0 of t/0 follows 0"),
        ((published(1, 1),), "was placed at (1, 0) already"),
        ((published(2, 1), matched(2, 1)), "ps 2 of the order"),
        ((published(2, 1), matched(0, 1)), "ps 0 of the order"),
        ((published(2, 1), matched(1, 2)), "has offsets [2]"),
        ((published(2, 1, 2), matched(1, 2, 1)), "has offsets [2, 1]"),
        ((closed(2),), "ends at ps 2, but had come to 1"),
        ((closed(1), published(2, 1), matched(1, 1)), "goes on after its end"),
    ],
)
def test_a_gap_a_repetition_or_a_wrong_end_is_seen(second: tuple[Leaf, ...], words: str) -> None:
    history = [applied(1, published(1, 0), matched(0, 0)), applied(2, *second)]
    (evidence,) = verdicts(PublicationOrder(Agreed()), history)
    assert words in evidence


def test_a_replica_with_other_results_is_seen() -> None:
    history = [applied(1, published(1, 0)), applied(1, published(2, 0), replica=3)]
    (evidence,) = verdicts(PublicationOrder(Agreed()), history)
    assert "replica 3 has other results of height 1" in evidence


# -- revocation -----------------------------------------------------------------------------------------------

PEOPLE = People(7, 4)
ADMIN = PEOPLE.administrators[0]
CLIENT = PEOPLE.person("client", ADMIN.organisation)


def operation(by: Person, what: Operation) -> Submitted:
    author = Author(Post(World((), Network(1, 1), lambda _time, _event: None)), PEOPLE.chain, by, stream(1))
    message = Message(bytes(16), encode(MessageHeader()), "", encode_operation(what))
    return Submitted(*author.sign((CONTROL, "", 0), (message,), 0))


def control(batch: Submitted, by: Person) -> BatchReceipt:
    return BatchReceipt(batch.batch, by.key, "", "", (0, 0), 0, 1, Done())


def use(number: int, outcome: Outcome) -> BatchReceipt:
    return BatchReceipt(name(number), CLIENT.key, "org-0/client", "t", CREATED, 0, 1, outcome)


def revocation(*after: BatchReceipt, numbered: Iterable[BatchReceipt] = ()) -> list[str]:
    register, revoke = (
        operation(ADMIN, PEOPLE.registration(CLIENT, ())),
        operation(ADMIN, RevokeClient(CLIENT.name)),
    )
    history: list[Observation] = [
        register,
        revoke,
        applied(1, control(register, ADMIN), use(1, Published(0))),
        applied(2, use(2, Published(1)), control(revoke, ADMIN), *after, numbered=numbered),
    ]
    administrators = {admin.key: admin.organisation for admin in PEOPLE.administrators}
    return verdicts(Revocation(Agreed(), administrators), history)


def test_revocation_holds_when_the_key_is_refused_from_then_on() -> None:
    assert revocation(use(3, Rejected.of(Revoked(), 0))) == []


def test_a_revoked_key_that_is_accepted_is_seen() -> None:
    (evidence,) = revocation(use(3, Published(2)))
    assert "of org-0/client, which was revoked at height 2" in evidence


def test_a_revoked_key_keeps_what_it_had_committed() -> None:
    assert revocation(numbered=[use(3, Published(2))]) == []


# -- stages ---------------------------------------------------------------------------------------------------


def staged(number: int, by: Person = CLIENT, kind: int = STAGED) -> tuple[Submitted, BatchReceipt]:
    author = Author(
        Post(World((), Network(1, 1), lambda _time, _event: None)), PEOPLE.chain, by, stream(number)
    )
    message = Message(bytes(16), encode(MessageHeader()), "", b"%d" % number)
    batch = Submitted(*author.sign((kind, "t", 0), (message,), 0, session=WRITER))
    return batch, BatchReceipt(batch.batch, by.key, "", "t", CREATED, 0, 1, Staged(9))


def numbered(receipt: BatchReceipt, first: int) -> BatchReceipt:
    return replace(receipt, outcome=Published(first))


def stages(*blocks: Callable[[list[BatchReceipt]], Applied]) -> list[str]:
    """Three batches are staged in block 1 and the first two committed in block 2; then come these blocks."""
    batches, receipts = map(list, zip(*(staged(number) for number in range(3)), strict=True))
    commit = operation(CLIENT, CommitStage("t", WRITER, 4, tuple(one.digest for one in receipts[:2])))
    again = operation(CLIENT, CommitStage("t", WRITER, 4, ()))
    delete = operation(ADMIN, DeleteTopic("t"))
    history = [*batches, commit, again, delete, applied(1, *receipts), applied(2, control(commit, CLIENT))]
    receipts += [control(again, CLIENT), control(delete, ADMIN)]
    return verdicts(WholeStages(Agreed()), [*history, *(make(receipts) for make in blocks)])


def test_stages_are_whole_when_they_are_numbered_in_order_over_any_blocks() -> None:
    def one_by_one(at: int) -> Callable[[list[BatchReceipt]], Applied]:
        return lambda receipts: applied(3 + at, numbered=[numbered(receipts[at], at)])

    assert stages(one_by_one(0), one_by_one(1)) == []


def test_what_a_deleted_topic_takes_with_it_is_not_numbered() -> None:
    def deletes(receipts: list[BatchReceipt]) -> Applied:
        return applied(3, receipts[4])

    def numbers(receipts: list[BatchReceipt]) -> Applied:
        return applied(4, numbered=[numbered(receipts[0], 0)])

    assert stages(deletes) == []
    (evidence,) = stages(deletes, numbers)
    assert "not the next one" in evidence


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda receipts: applied(3, numbered=[numbered(receipts[1], 0)]), "not the next one"),
        (
            lambda receipts: applied(3, numbered=[numbered(one, 0) for one in receipts[:3]]),
            "not the next one",
        ),
        (lambda receipts: applied(3, numbered=[receipts[0]]), "was not published"),
        (lambda receipts: applied(3, numbered(receipts[2], 0)), "published instead of staged"),
        (lambda receipts: applied(3, receipts[3]), "stage 4 was committed after stage 4"),
    ],
    ids=["out of order", "never committed", "not published", "without a commit", "twice"],
)
def test_a_stage_that_is_not_whole_is_seen(
    wrong: Callable[[list[BatchReceipt]], Applied], words: str
) -> None:
    (evidence,) = stages(wrong)
    assert words in evidence


@pytest.mark.parametrize("kept", [True, False])
def test_the_body_of_a_staged_batch_may_go_when_it_is_not_staged_any_more(kept: bool) -> None:
    batch, receipt = staged(1)
    history: list[Observation] = [batch, applied(1, receipt), Certified(0, 1)]
    block = history[1].block  # type: ignore[union-attr]
    disk = MemoryStore()
    disk.write([(layout.committed(1), msgspec.msgpack.encode(StoredBlock.of(block)))])
    if kept:
        disk.write([(layout.state(STAGED_BATCHES.key(batch.batch)), b"")])
    assert bool(verdicts(NothingLost(Agreed()), [*history, Opened(0, disk)])) == kept


# -- disks ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """A short run without faults: what was seen, and the disk of replica 0."""

    history: tuple[Observation, ...]
    disk: MemoryStore


@cache
def told() -> Told:
    seen: list[Observation] = []
    simulation = Simulation(4, 0, 3, application="pubsub", observer=lambda _time, event: seen.append(event))
    simulation.start()
    simulation.world.run(5_000)
    assert simulation.violations == ()
    return Told(tuple(seen), simulation.world.hosts[0].disk.frozen())


def judged(checker: SoundDisks | NothingLost, disk: MemoryStore) -> list[str]:
    return verdicts(checker, [*told().history, Opened(0, disk)])


def changed(prefix: bytes, change: Callable[[bytes], bytes | None]) -> MemoryStore:
    """The disk with one entry of this kind altered, in the middle of them."""
    disk = told().disk.frozen()
    found = [(key, value) for key, value in disk.scan(prefix) if value]
    key, value = found[len(found) // 2]
    disk.write([(key, change(value))])
    return disk


def flipped(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


def gone(value: bytes) -> None:
    del value


def test_a_sound_disk_is_found_to_be_sound() -> None:
    assert judged(SoundDisks(Agreed()), told().disk) == []
    assert judged(NothingLost(Agreed()), told().disk) == []


@pytest.mark.parametrize(
    "kind",
    [
        b"c/",
        b"e/",
        b"r/",
        b"h/",
        b"s/k",
        b"s/n",
        *(layout.INDEX + table.prefix() for table in (OFFSETS, ORDER_LEAVES, RECEIPTS)),
    ],
)
@pytest.mark.parametrize("change", [flipped, gone])
def test_a_damaged_or_missing_record_is_seen(kind: bytes, change: Callable[[bytes], bytes | None]) -> None:
    assert len(judged(SoundDisks(Agreed()), changed(kind, change))) == 1


@pytest.mark.parametrize("mark", [layout.JOINING, layout.BACKFILL])
def test_a_disk_that_is_not_complete_yet_is_seen(mark: bytes) -> None:
    disk = told().disk.frozen()
    disk.write([(mark, b"1")])
    (evidence,) = judged(SoundDisks(Agreed()), disk)
    assert "older records are still missing" in evidence


def accepted() -> Iterable[BatchReceipt]:
    agreed = Agreed()
    for event in told().history:
        agreed.see(event)
    highest = max(event.height for event in told().history if isinstance(event, Certified))
    for height in range(1, highest + 1):
        for leaf in agreed.leaves(height):
            if isinstance(leaf, BatchReceipt) and first_offset(leaf) is not None:
                yield leaf


@pytest.mark.parametrize("body", [None, b"something else"])
def test_a_lost_or_changed_body_is_seen(body: bytes | None) -> None:
    disk = told().disk.frozen()
    disk.write([(layout.batch(next(iter(accepted())).digest), body)])
    (evidence,) = judged(NothingLost(Agreed()), disk)
    assert "has no body of batch" in evidence


@pytest.mark.parametrize("over", [True, False])
def test_a_body_may_go_only_when_retention_has_ended_it(over: bool) -> None:
    receipt, disk = next(iter(accepted())), told().disk.frozen()
    first = first_offset(receipt)
    assert first is not None
    body = disk.get(layout.batch(receipt.digest))
    assert body is not None
    start = first + receipt.count - (not over)
    head = encode_value(PartitionRecord(100, start))
    disk.write(
        [
            (layout.batch(receipt.digest), None),
            (layout.erased(receipt.digest), remains_of(body)),
            (layout.state(HEADS.key(receipt.topic, receipt.partition)), head),
        ]
    )
    assert bool(judged(NothingLost(Agreed()), disk)) == (not over)


def test_a_stub_that_is_not_of_the_erased_batch_is_seen() -> None:
    receipt, disk = next(iter(accepted())), told().disk.frozen()
    head = encode_value(PartitionRecord(100, 100))
    disk.write(
        [
            (layout.batch(receipt.digest), None),
            (layout.erased(receipt.digest), b"something else"),
            (layout.state(HEADS.key(receipt.topic, receipt.partition)), head),
        ]
    )
    assert len(judged(NothingLost(Agreed()), disk)) == 1


def test_a_lost_block_is_seen() -> None:
    disk = told().disk.frozen()
    disk.write([(layout.committed(1), None)])
    (evidence,) = judged(NothingLost(Agreed()), disk)
    assert "does not have block 1" in evidence


def test_a_replica_that_comes_back_below_what_it_answered_for_is_seen() -> None:
    history: list[Observation] = [Certified(2, 9), Started(2, 8), Resumed(2, 9), Started(2, 8), Resumed(2, 8)]
    (evidence,) = verdicts(NothingLost(Agreed()), history)
    assert "replica 2 came back at height 8 although it had answered for height 9" in evidence


@pytest.mark.parametrize("lost", [Wiped(2), Started(2, 9, joining=True)])
def test_a_replica_that_gave_its_disk_or_state_up_may_come_back_with_less(lost: Observation) -> None:
    history: list[Observation] = [Certified(2, 9), lost, Started(2, 0), Resumed(2, 0)]
    assert verdicts(NothingLost(Agreed()), history) == []


def test_what_a_replica_with_a_damaged_disk_says_is_not_taken_for_the_chain() -> None:
    wrong = dataclasses.replace(applied(1, published(9, 5), replica=3), suspect=True)
    history: list[Observation] = [wrong, applied(1, published(1, 0)), applied(2, published(2, 1))]
    assert verdicts(PublicationOrder(Agreed()), history) == []
