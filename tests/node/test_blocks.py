"""What auditors are shown of a broker's store: everything that is certified, within limits, and nobody else anything."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from tests.application.world import ADMIN, ADMINS, Actor, actor
from tests.client.ledger import Ledger, note
from tests.node.answering import audited, block_name, work

from parley.applications import DATA_SHARD
from parley.consensus.types import Vote
from parley.crypto import merkle
from parley.crypto.merkle import MountainRange
from parley.ledger import layout
from parley.ledger.erasure import Remains, remains_of
from parley.ledger.layout import StoredBlock
from parley.ledger.proofs import history_leaf_of
from parley.model.refusals import NotFound, PermissionDenied, Refused, UnknownClient
from parley.net.messages import (
    MAX_ANSWER,
    MAX_BLOCKS,
    MAX_TOLD,
    Blocks,
    Bodies,
    EvidenceList,
    ReadBlocks,
    ReadBodies,
    ReadEvidence,
    ReadHeader,
)
from parley.node.access import Caller
from parley.node.archive import Archive
from parley.node.services import auditing
from parley.node.services.auditing import BLOCK_COST, MAX_RAW_BYTES
from parley.node.view import View
from parley.replica import evidence
from parley.replica.evidence import Record
from parley.store.memory import MemoryStore

encode = msgspec.msgpack.encode


class Broker:
    """The store of a broker that has executed a ledger, and the view of its newest certified header."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.store = MemoryStore()
        self.archive = Archive(self.store, DATA_SHARD)
        history = MountainRange()
        for (block, batches), outcome in zip(ledger.blocks, ledger.outcomes, strict=True):
            nodes = history.append(history_leaf_of(block.height, block.id, outcome.leaves))
            self.store.write(
                [
                    (layout.committed(block.height), encode(StoredBlock.of(block))),
                    (layout.receipts(block.height), encode(tuple(outcome.leaves))),
                    *((layout.history_node(level, index), node) for level, index, node in nodes),
                    *((layout.batch(batch.digest), batch.body) for batch in batches),
                ]
            )
        self.anchor = ledger.anchor()
        self.height = ledger.height
        self.read = ledger.record

    @property
    def view(self) -> View:
        return cast("View", self)

    def blocks(self, height: int = 1, max_bytes: int = MAX_ANSWER, *, bodies: bool = True) -> Blocks:
        answer = audited(self.view, AUDITOR, ReadBlocks(7, height, max_bytes, bodies))
        assert isinstance(answer, Blocks)
        assert answer.id == 7
        return answer

    def bodies(self, *names: bytes) -> Bodies:
        answer = audited(self.view, AUDITOR, ReadBodies(7, names))
        assert isinstance(answer, Bodies)
        return answer

    def evidence(self, skip: int = 0) -> EvidenceList:
        answer = audited(self.view, AUDITOR, ReadEvidence(7, skip))
        assert isinstance(answer, EvidenceList)
        return answer


def asking(who: Actor, *, admin: bool = False, auditor: bool = False) -> Caller:
    administers = who.organisation if admin else None
    return Caller(who.key, who.organisation, who.name, administers, not_after=0, auditor=auditor)


AUDITOR = asking(ADMIN, admin=True, auditor=True)


def ledger(*texts: str) -> Ledger:
    """Each text in a block of its own."""
    made = Ledger()
    alice = made.client("alice")
    made.topic("notes")
    for text in texts:
        made.apply(made.publication(alice, "notes", note(text)))
    return made


def digests(made: Ledger) -> list[bytes]:
    return [name for block, _ in made.blocks for name in block.batches]


def is_proven(broker: Broker, answer: Blocks) -> bool:
    leaves = [
        history_leaf_of(raw.block.header.height, raw.block.header.id(), raw.leaves) for raw in answer.blocks
    ]
    assert answer.history is not None
    return merkle.verify_many(broker.anchor.header.history_root, leaves, answer.history)


def test_an_auditor_is_shown_whole_blocks_and_one_proof_of_them() -> None:
    made = ledger("one", "two")
    broker = Broker(made)
    for first in range(1, made.height + 1):
        answer = broker.blocks(first)
        assert [raw.block.header.height for raw in answer.blocks] == list(range(first, made.height + 1))
        assert is_proven(broker, answer)
        assert [raw.bodies for raw in answer.blocks] == [
            tuple(batch.body for batch in batches) for _, batches in made.blocks[first - 1 :]
        ]
    bare = broker.blocks(bodies=False)
    assert {body for raw in bare.blocks for body in raw.bodies} == {None}


@pytest.mark.parametrize(
    ("asker", "allowed"),
    [
        (asking(ADMIN, admin=True, auditor=True), True),
        (asking(ADMINS["insurer"], admin=True), False),
        (asking(actor("alice")), False),
        (asking(actor("mallory")), False),
    ],
)
def test_nobody_else_is_shown_anything(asker: Caller, allowed: bool) -> None:
    broker = Broker(ledger("one"))
    for question in (ReadBlocks(1, 1, 1, True), ReadBodies(1, (bytes(32),)), ReadEvidence(1, 0)):
        if allowed:
            assert audited(broker.view, asker, question).id == 1
            continue
        with pytest.raises(Refused) as refused:
            audited(broker.view, asker, question)
        assert refused.value.code in {PermissionDenied.code, UnknownClient.code}


def test_a_header_is_paid_for_by_the_receipts_that_its_proof_takes() -> None:
    made = ledger("one")
    alice = asking(actor("alice"))
    charged: list[int] = []
    for count in (1, 30):
        made.apply(*(made.publication(actor("alice"), "notes", note(str(n))) for n in range(count)))
        broker = Broker(made)
        found = block_name(broker.view, alice, ReadHeader(7, made.height), charged.append)
        assert found.block is not None
        assert found.block[1] == merkle.root(made.outcomes[-1].leaves)
        assert charged[-1] >= sum(map(len, made.outcomes[-1].leaves))
    assert charged[1] > 10 * charged[0]


def test_what_is_not_certified_yet_is_not_shown() -> None:
    broker = Broker(ledger("one", "two"))
    broker.height -= 1
    broker.anchor = broker.ledger.certify(
        msgspec.structs.replace(broker.anchor.header, executed_height=broker.height)
    )
    assert [raw.block.header.height for raw in broker.blocks().blocks][-1] == broker.height
    for height in (broker.height + 1, 2**62 - 1):
        assert broker.blocks(height) == Blocks(7, broker.anchor, (), None)


def test_an_answer_ends_with_the_block_that_is_too_much_but_has_one() -> None:
    broker = Broker(ledger("one", "two", "three"))
    assert len(broker.blocks(max_bytes=1).blocks) == 1
    two = sum(BLOCK_COST + 4_000 for _ in range(2))
    assert 1 < len(broker.blocks(max_bytes=two).blocks) < broker.height
    large = Broker(ledger(*("x" * 900_000 for _ in range(8))))
    answer = large.blocks(max_bytes=MAX_ANSWER)
    assert 4 < len(answer.blocks) < large.height
    assert len(encode(answer)) < MAX_RAW_BYTES + 1024 * 1024
    assert is_proven(large, answer)


def test_many_small_blocks_are_shown_in_pieces() -> None:
    made = ledger()
    for _ in range(MAX_BLOCKS + 10):
        made.apply()
    broker = Broker(made)
    answer = broker.blocks()
    assert MAX_BLOCKS // 2 < len(answer.blocks) <= MAX_BLOCKS
    assert work(answer) > BLOCK_COST * len(answer.blocks)


def test_a_block_that_is_too_large_comes_without_its_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ledger("one", "x" * 10_000)
    broker = Broker(made)
    monkeypatch.setattr(auditing, "MAX_INLINE", BLOCK_COST + 9_000)
    assert broker.blocks(made.height).blocks[0].bodies == (None,)
    body = broker.bodies(*made.blocks[-1][0].batches).bodies[0]
    assert body == made.blocks[-1][1][0].body


def test_what_stays_of_an_erased_batch_is_shown_and_nothing_of_a_lost_one() -> None:
    made = ledger("one", "two")
    broker = Broker(made)
    *_, erased, lost = digests(made)
    body = made.blocks[-2][1][0].body
    broker.store.write(
        [
            (layout.erased(erased), remains_of(body)),
            (layout.batch(erased), None),
            (layout.batch(lost), None),
        ]
    )
    remains = msgspec.msgpack.decode(remains_of(body), type=Remains)
    assert [raw.bodies for raw in broker.blocks().blocks][-2:] == [(remains,), (None,)]
    assert broker.bodies(lost, erased, bytes(32)).bodies == (None, remains, None)
    broker.store.write([(layout.erased(erased), b"damaged")])
    assert broker.bodies(erased).bodies == (None,)


def test_bodies_come_as_many_as_fit_and_at_least_one() -> None:
    made = ledger(*("x" * 900_000 for _ in range(8)))
    names = digests(made)[-8:]
    found = Broker(made).bodies(*names)
    assert 1 < len(found.bodies) < 8
    assert sum(len(body) for body in found.bodies if isinstance(body, bytes)) <= MAX_RAW_BYTES


@pytest.mark.parametrize(
    "damage",
    [
        (layout.committed(2), None),
        (layout.committed(2), b"damaged"),
        (layout.receipts(2), None),
        (layout.receipts(2), b"\xff"),
        (layout.history_node(0, 0), None),
    ],
)
def test_a_broker_with_a_damaged_store_sends_the_auditor_elsewhere(
    damage: tuple[bytes, bytes | None],
) -> None:
    broker = Broker(ledger("one", "two"))
    broker.store.write([damage])
    with pytest.raises(Refused) as refused:
        broker.blocks(2)
    assert refused.value.code == NotFound.code


def test_proofs_of_misbehaviour_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(ledger())
    assert broker.evidence() == EvidenceList(7, (), more=False)
    vote = Vote(0, 1, bytes(32), 1, bytes(64))
    record = evidence.encode(Record("votes", vote, vote))
    broker.store.write([(layout.evidence(member, 5), record) for member in range(5)])
    assert broker.evidence() == EvidenceList(7, (record,) * 5, more=False)
    assert broker.evidence(3) == EvidenceList(7, (record,) * 2, more=False)
    assert broker.evidence(MAX_TOLD) == EvidenceList(7, (), more=False)
    monkeypatch.setattr(auditing, "MAX_RAW_BYTES", 2 * len(record))
    assert broker.evidence() == EvidenceList(7, (record,) * 2, more=True)
    assert broker.evidence(4) == EvidenceList(7, (record,), more=False)


def test_the_work_of_an_answer_grows_with_what_was_looked_up() -> None:
    broker = Broker(ledger("one", "two"))
    answers: list[Any] = [broker.blocks(), broker.bodies(bytes(32)), broker.evidence()]
    assert all(work(answer) >= BLOCK_COST for answer in answers)
    assert work(broker.bodies(bytes(32), bytes(32))) > work(broker.bodies(bytes(32)))
