"""One changed byte in any entry of a broker's store is found, named and mended, and no liar can make it worse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest
from tests.application.world import World, tagged
from tests.ledger.shard import ALICE, GENESIS, KEYS, Shard, told
from tests.replica.care import audit, care, copied, flipped, names, passes, running
from tests.replica.driver import Cluster, Member

from parley.application.keeping import RECEIPTS, TO_ERASE
from parley.application.machine import Machine
from parley.application.tables import AnyTable
from parley.applications import DATA_SHARD
from parley.consensus.types import Block, Vote
from parley.crypto.encoding import u64
from parley.crypto.qc import Ed25519Signer
from parley.ledger import layout
from parley.ledger.application import Results
from parley.ledger.erasure import remains_of
from parley.model.batches import open_batch
from parley.modules.publishing.tables import OFFSETS
from parley.modules.registry.tables import CLIENTS
from parley.modules.retention.tables import LOGS_TO_ERASE
from parley.modules.subscriptions.tables import ORDER_LEAVES
from parley.modules.topics.tables import GROWING
from parley.replica import evidence, wire
from parley.replica.ports import Send
from parley.replica.records import MAX_ANSWER
from parley.store.interface import KeyValue
from parley.sync.messages import Records, RecordsRequest, Values, ValuesRequest

Keys = Callable[[Member], list[bytes]]


def under(prefix: bytes) -> Keys:
    return lambda member: [key for key, _ in member.store.scan(prefix)]


def within(table: AnyTable) -> Keys:
    """The entries of one table, whether it is of the state or an index."""
    return under(layout.APPLICATION + table.places())


def level(least: int, most: int) -> Keys:
    return lambda member: [key for key in under(b"h/")(member) if least <= key[2] <= most]


def named_roots(member: Member) -> list[bytes]:
    """Of heights that a header names: what others are is known to nobody."""
    return [layout.roots(block.header.executed_height) for block in member.blocks()[5:]]


KINDS: dict[str, Keys] = {
    "committed block": lambda member: under(b"c/")(member)[1:],
    "first block": lambda _: [layout.committed(0)],
    "receipts": under(b"e/"),
    "leaf of the history": level(0, 0),
    "node of the history": level(1, 9),
    "roots": named_roots,
    "first roots": lambda _: [layout.roots(0)],
    "body": under(b"b/"),
    "state entry": under(b"s/k"),
    "node of the state map": under(b"s/n"),
    "index of offsets": within(OFFSETS),
    "index of orders": within(ORDER_LEAVES),
    "index of receipts": within(RECEIPTS),
    "head": lambda _: [layout.HEAD],
}


def some(keys: list[bytes]) -> list[bytes]:
    return sorted({keys[0], keys[len(keys) // 2], keys[-1]})


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_byte_is_found_named_and_mended(kind: str) -> None:
    cluster = running()
    member = cluster.members[0]
    full = [key for key in KINDS[kind](member) if member.store.entries[key]]
    for key in some(full):
        right = member.store.entries[key]
        for at in (0, len(right) // 2, -1):
            member.found.clear()
            member.store.entries[key] = flipped(right, at)
            care(cluster, 0, lambda key=key: layout.name(key) in names(member, mended=True))  # type: ignore[misc]
            assert member.store.entries[key] == right, (key, at)
            assert layout.name(key) in names(member, mended=False)
    care(cluster, 0, passes(member, 2))
    assert names(member, mended=False) == names(member, mended=True)
    assert audit(member).first_fault is None
    assert not member.restarts


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "state entry"])
def test_a_missing_entry_comes_back(kind: str) -> None:
    cluster = running()
    member = cluster.members[0]
    for key in some(KINDS[kind](member)):
        right = member.store.entries.pop(key)
        care(cluster, 0, lambda key=key: key in member.store.entries)  # type: ignore[misc]
        assert member.store.entries[key] == right
    assert audit(member).first_fault is None


def test_roots_that_were_damaged_before_a_start_are_found_if_the_last_block_names_them() -> None:
    """The search for damage believes what is in memory, and these are read into it at the start."""
    cluster = copied()
    member = cluster.members[0]
    key = layout.roots(member.blocks()[-1].header.executed_height)
    right = member.store.entries[key]
    member.store.entries[key] = flipped(right, len(right) // 4)
    member.boot()
    cluster.start()
    care(cluster, 0, lambda: layout.name(key) in names(member, mended=True))
    assert member.store.entries[key] == right
    assert not member.restarts


def test_an_invented_job_is_not_looked_for_after_a_repair_removed_it() -> None:
    cluster = copied()
    member = cluster.members[0]
    key = layout.state(GROWING.key("no organisation", "wards"))
    member.store.entries[key] = b""
    member.boot()
    cluster.start()

    def first_job() -> bytes | None:
        """The first job that the next block starts from."""
        height = member.replica.executed_height
        cluster.run_until(lambda: member.replica.executed_height > height)
        machine = member.application.machine
        assert isinstance(machine, Machine)
        return machine._first_keys.known[GROWING]

    assert first_job() is not None
    care(cluster, 0, lambda: key not in member.store.entries)
    assert first_job() is None


def test_an_undamaged_store_is_left_alone() -> None:
    cluster = running()
    member = cluster.members[0]
    before = dict(member.store.entries)
    care(cluster, 0, passes(member, 3))
    assert not member.found
    assert member.store.entries == before


def test_many_damaged_entries_are_mended_a_few_at_a_time() -> None:
    cluster = running()
    member = cluster.members[0]
    right = dict(member.store.entries)
    damaged = [key for kind in (b"c/", b"e/") for key in under(kind)(member) if key != layout.committed(0)]
    for key in damaged:
        member.store.entries[key] = flipped(right[key], -1)
    assert len(damaged) > 32
    assert member.replica.damaged == 0  # it has not looked yet
    care(cluster, 0, lambda: member.replica.damaged > 0)
    care(cluster, 0, lambda: member.store.entries == right)
    care(cluster, 0, passes(member))
    assert member.replica.damaged == 0
    assert audit(member).first_fault is None


# -- what only this broker has -----------------------------------------------------------------------------------------


def waiting(cluster: Cluster) -> bytes:
    """The digest of a batch that waits at the first broker, and at no other."""
    cluster.absent = {1, 2, 3}
    maker = World()
    maker.chain = GENESIS.chain
    batch = maker.publication(ALICE, "wards", tagged(payload=b"late"))
    cluster.submit(0, batch.body)
    cluster.outbox.messages.clear()
    return batch.digest


def test_the_mark_of_a_waiting_batch_is_made_again() -> None:
    cluster = running()
    member, name = cluster.members[0], waiting(cluster)
    key = layout.waiting(name)
    member.store.entries[key] = flipped(member.store.entries[key], 0)
    care(cluster, 0, lambda: layout.name(key) in names(member, mended=True))
    cluster.restart(0)
    assert member.replica._pool.body(name) is not None


def test_the_body_of_a_waiting_batch_comes_back_from_memory() -> None:
    cluster = running()
    member, name = cluster.members[0], waiting(cluster)
    key = layout.batch(name)
    right = member.store.entries[key]
    member.store.entries[key] = flipped(right, len(right) // 2)
    care(cluster, 0, lambda: layout.name(key) in names(member, mended=True))
    assert member.store.entries[key] == right


def test_a_waiting_batch_that_is_damaged_on_disk_is_not_taken_up_at_start_and_goes() -> None:
    cluster = running()
    member, name = cluster.members[0], waiting(cluster)
    right = member.store.entries[layout.batch(name)]
    member.store.entries[layout.batch(name)] = flipped(right, len(right) // 2)
    cluster.restart(0)
    assert member.replica._pool.body(name) is None
    care(cluster, 0, lambda: layout.waiting(name) not in member.store.entries)
    assert layout.batch(name) not in member.store.entries


@pytest.mark.parametrize("at", [0, -1])
def test_an_uncommitted_block_comes_back_from_memory_or_goes(at: int) -> None:
    cluster = running()
    member = cluster.members[0]
    keys = under(layout.UNCOMMITTED)(member)
    right = dict(member.store.entries)
    assert keys
    for key in keys:
        member.store.entries[key] = flipped(right[key], at)
    care(cluster, 0, passes(member, 2))
    assert {layout.name(key) for key in keys} <= names(member, mended=True)
    assert all(member.store.entries.get(key, right[key]) == right[key] for key in keys)


def test_a_broker_starts_with_damaged_uncommitted_blocks_and_catches_up() -> None:
    cluster = copied()
    member = cluster.members[0]
    for key in under(layout.UNCOMMITTED)(member):
        member.store.entries[key] = flipped(member.store.entries[key], -1)
    member.boot()
    cluster.start()
    height = member.replica.executed_height
    cluster.run_until(lambda: member.replica.executed_height > height + 3)
    assert not member.halts


def test_what_stayed_of_an_erased_batch_is_checked() -> None:
    cluster = running()
    member = cluster.members[0]
    body_key = under(b"b/")(member)[0]
    key = layout.erased(body_key[2:])
    sound = remains_of(member.store.entries[body_key])
    member.store.entries[key] = sound
    care(cluster, 0, passes(member))
    assert member.store.entries[key] == sound
    member.store.entries[key] = flipped(sound, len(sound) // 2)
    care(cluster, 0, lambda: layout.name(key) in names(member, mended=True))
    assert key not in member.store.entries


@pytest.mark.parametrize(
    "entry",
    [
        TO_ERASE.place(bytes(32)),
        TO_ERASE.places() + b"no digest",
        LOGS_TO_ERASE.place("wards", 0),
        LOGS_TO_ERASE.places() + b"no partition",
    ],
    ids=layout.name,
)
def test_what_cannot_be_read_of_the_lists_of_what_is_to_be_erased_goes(entry: bytes) -> None:
    cluster = running()
    member = cluster.members[0]
    key = layout.APPLICATION + entry
    member.store.entries[key] = b"garbage"
    care(cluster, 0, lambda: key not in member.store.entries)
    assert names(member, mended=False) == names(member, mended=True) <= {layout.name(key)}
    assert audit(member).first_fault is None


def test_a_sound_entry_of_the_lists_of_what_is_to_be_erased_stays() -> None:
    cluster = running()
    member = cluster.members[0]
    key = layout.APPLICATION + TO_ERASE.place(bytes(32))
    member.store.entries[key] = u64(2**40)
    care(cluster, 0, passes(member, 2))
    assert member.store.entries[key] == u64(2**40)
    assert not member.found


def test_evidence_that_proves_nothing_goes_and_the_rest_stays() -> None:
    cluster = running()
    member = cluster.members[0]
    record = double_vote(member)
    sound, damaged = layout.evidence(2, 7), layout.evidence(2, 8)
    member.store.entries[sound] = record
    member.store.entries[damaged] = flipped(record, -1)
    care(cluster, 0, lambda: layout.name(damaged) in names(member, mended=True))
    care(cluster, 0, passes(member))
    assert damaged not in member.store.entries
    assert member.store.entries[sound] == record


def double_vote(member: Member) -> bytes:
    """Two votes of member 2 in view 7."""
    instance, signer = member.committee.instance, Ed25519Signer(2, KEYS[2])
    first, second = (
        Vote(instance.epoch, 7, block, 2, signer.sign(instance.vote_message(7, block)))
        for block in (bytes(32), bytes([1] * 32))
    )
    return evidence.encode(evidence.Record("votes", first, second))


# -- liars and losses --------------------------------------------------------------------------------------------------


def tampering(cluster: Cluster, liars: Iterable[int], change: Callable[[object], object]) -> None:
    """What these members send is changed on the way to the first one."""
    inner, liars = cluster.outbox.send, set(liars)

    def send(sender: int, to: int, data: bytes) -> None:
        message = wire.decode(data)
        if sender in liars and to == 0 and isinstance(message, Records | Values):
            data = wire.encode(change(message))  # type: ignore[arg-type]
        inner(sender, to, data)

    cluster.outbox.send = send  # type: ignore[method-assign]


def lie(message: object) -> object:
    match message:
        case Records():
            record = message.records[0]
            other = msgspec.structs.replace(record, receipts=(flipped(b"".join(record.receipts), -1),))
            return msgspec.structs.replace(message, records=(other,))
        case Values():
            return msgspec.structs.replace(message, values=tuple(b"a lie" for _ in message.values))
        case _:
            raise AssertionError


@pytest.mark.parametrize("prefix", [b"e/", layout.APPLICATION + CLIENTS.places()])
def test_what_liars_send_is_refused_and_the_next_member_is_asked(prefix: bytes) -> None:
    cluster = running()
    member = cluster.members[0]
    tampering(cluster, {1, 2}, lie)
    key = under(prefix)(member)[-1]
    right = member.store.entries[key]
    member.store.entries[key] = flipped(right, -1)
    care(cluster, 0, lambda: layout.name(key) in names(member, mended=True))
    assert member.store.entries[key] == right
    assert [refused.sender for refused in member.refused] == [1, 2]


def test_an_entry_that_nobody_has_makes_the_broker_rejoin_and_silence_does_not() -> None:
    cluster = running()
    member = cluster.members[0]
    key = within(CLIENTS)(member)[0]
    member.store.entries[key] = flipped(member.store.entries[key], -1)
    cluster.absent = {1, 2, 3}
    steps = iter(range(400))
    care(cluster, 0, lambda: next(steps, None) is None)
    assert not member.restarts
    cluster.absent = set()
    tampering(cluster, {1, 2, 3}, lie)
    care(cluster, 0, lambda: bool(member.restarts))
    assert layout.name(key) in names(member, mended=False)


def test_who_does_not_answer_is_passed_over() -> None:
    cluster = running()
    member = cluster.members[0]
    cluster.absent = {1, 2}
    key = under(b"c/")(member)[3]
    right = member.store.entries[key]
    member.store.entries[key] = right[:-1]
    care(cluster, 0, lambda: member.store.entries[key] == right)


def test_records_and_values_that_nobody_asked_for_are_refused() -> None:
    cluster = running()
    member = cluster.members[0]
    for message in (Records(1, ()), Values((b"k",), (None,))):
        cluster.deliver(2, 0, wire.encode(message))
    assert [refused.reason.name for refused in member.refused] == ["UNSOLICITED", "UNSOLICITED"]


def test_a_damaged_record_is_not_shown_to_others_but_mended() -> None:
    cluster = running()
    member = cluster.members[0]
    size = member.replica.executed_height
    for key in (layout.committed(2), layout.receipts(3)):
        member.store.entries[key] = b"\xc1"  # no value begins with this byte
    effects = cluster.deliver(1, 0, wire.encode(RecordsRequest(size, (1, 2, 3, 4, size + 1), 0)))
    answer = wire.decode(next(effect.data for effect in effects if isinstance(effect, Send)))
    assert isinstance(answer, Records)
    assert [record.block.header.height for record in answer.records] == [1, 4]
    assert names(member, mended=False) == {"c/2", "e/3"}
    care(cluster, 0, lambda: names(member, mended=True) == {"c/2", "e/3"})


def test_a_damaged_block_is_not_served_and_does_not_stop_the_server() -> None:
    cluster = running()
    member = cluster.members[0]
    member.store.entries[layout.committed(2)] = b"\xc1"
    blocks = list(member.replica._serving.committed_above(0))
    assert [block.height for block in blocks][:1] == [1]
    assert len(blocks) == 1


def test_values_are_those_of_now_and_absent_ones_are_none() -> None:
    cluster = running()
    member = cluster.members[0]
    key = under(b"s/k")(member)[0]
    request = ValuesRequest((key[3:], b"nothing"))
    assert member.replica._caretaker.answer_values(request).values == (member.store.entries[key], None)


def test_damage_of_the_map_that_cannot_be_mended_makes_the_broker_rejoin() -> None:
    cluster = running()
    member = cluster.members[0]
    nodes = under(b"s/n")(member)
    assert len(nodes) > 2
    for key in nodes:
        del member.store.entries[key]
    care(cluster, 0, lambda: bool(member.restarts))
    assert member.store.entries[layout.JOINING] == u64(0)


class Broken(Machine):
    """It fails at the next block."""

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        del block, batches, state
        raise ZeroDivisionError


def failing(cluster: Cluster) -> Member:
    member = cluster.members[0]
    member.application = member.application._replace(machine=Broken(DATA_SHARD, GENESIS, 0))
    member.replica._state_machine = member.application.machine
    return member


def test_an_application_that_fails_on_a_damaged_state_makes_the_broker_rejoin() -> None:
    cluster = running()
    member = failing(cluster)
    cluster.outbox.carries = lambda _sender, _to, data: not isinstance(wire.decode(data), Values)
    key = under(b"s/k")(member)[0]
    member.store.entries[key] = flipped(member.store.entries[key], -1)
    cluster.run_until(lambda: bool(member.restarts))
    assert names(member, mended=False) == {layout.name(key)}


def test_an_application_that_fails_on_a_sound_state_is_not_hidden() -> None:
    cluster = running()
    failing(cluster)
    with pytest.raises(ZeroDivisionError):
        cluster.run(200)


def test_an_entry_that_belongs_to_no_state_is_taken_away() -> None:
    cluster = running()
    member = cluster.members[0]
    member.store.entries[layout.state(b"topic/ghost")] = b"boo"
    care(cluster, 0, lambda: layout.state(b"topic/ghost") not in member.store.entries)
    assert audit(member).first_fault is None


# -- bodies ------------------------------------------------------------------------------------------------------------


def test_a_body_that_is_damaged_before_it_is_executed_is_fetched_again() -> None:
    shard = Shard()
    cluster = shard.cluster
    batch = shard.maker.publication(ALICE, "wards", tagged(payload=b"first"))
    cluster.absent = {0}
    cluster.submit(1, batch.body)
    cluster.run_until(lambda: any(batch.digest in block.batches for block in cluster.members[1].blocks()))
    cluster.absent = set()
    member = cluster.members[0]
    member.store.entries[layout.batch(batch.digest)] = flipped(batch.body, len(batch.body) // 2)
    cluster.run_until(lambda: any(batch.digest in block.batches for block in member.blocks()))
    assert member.store.entries[layout.batch(batch.digest)] == batch.body
    assert layout.name(layout.batch(batch.digest)) in names(member, mended=False)
    assert not member.halts


def test_a_body_that_no_block_names_goes_after_a_while_and_not_before() -> None:
    cluster = running()
    member = cluster.members[0]
    maker = World()
    maker.chain = GENESIS.chain
    batch = maker.publication(ALICE, "wards", tagged(payload=b"of an abandoned block"))
    key = layout.batch(batch.digest)
    member.store.entries[key] = batch.body
    started = cluster.now
    care(cluster, 0, lambda: key not in member.store.entries, steps=2_000)
    assert cluster.now - started >= 600_000
    assert audit(member).first_fault is None


# -- serving -----------------------------------------------------------------------------------------------------------


def test_every_record_that_is_here_is_shown_with_its_proof() -> None:
    cluster = running()
    member = cluster.members[0]
    size = member.replica.executed_height
    answer, found = member.replica._caretaker.answer_records(
        RecordsRequest(size, tuple(range(1, size + 1)), 0)
    )
    assert [record.block.header.height for record in answer.records] == list(range(1, size + 1))
    assert all(record.count == len(b"".join(record.receipts)) for record in answer.records)
    assert len(wire.encode(answer)) < MAX_ANSWER
    assert not found


def test_the_test_shard_has_entries_of_every_kind() -> None:
    member = told().cluster.members[0]
    for kind, keys in KINDS.items():
        assert keys(member), kind
    bodies = [member.store.entries[key] for key in KINDS["body"](member)]
    assert all(open_batch(body, GENESIS.chain, 0) for body in bodies)
