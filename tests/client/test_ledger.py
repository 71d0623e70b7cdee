"""Whole blocks, proofs of misbehaviour and advisories, with brokers any of which may lie."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.application.world import Actor, actor
from tests.client.ledger import BROKER_KEYS, note
from tests.client.stage import Stage, on_stage

from parley.client import connection
from parley.client.administration import BrokerStatus
from parley.client.errors import Malformed, PermissionDenied, Stalled, Unreachable
from parley.client.ledger import VerifiedBlock
from parley.client.readers import readers_of
from parley.consensus.types import Vote
from parley.ledger.erasure import Remains, remains_of
from parley.model.advisories import Advisory, Standpoint, open_advisory, sign_advisory
from parley.model.batches import Batch, encode
from parley.model.receipts import BatchReceipt
from parley.modules.publishing.receipts import Published
from parley.net.messages import (
    Answer,
    Blocks,
    Bodies,
    EvidenceList,
    Failure,
    Question,
    RawBlock,
    SignedAdvisory,
    Status,
)
from parley.replica import evidence

FIRST = "broker-hospital-a"  # of the reader's organisation, so it is asked first


def story(stage: Stage) -> Actor:
    """Five blocks or so; in the last one Bob publishes two batches."""
    stage.registered("bob")
    for text in ("one", "two"):
        stage.apply(stage.ledger.publication(actor("bob"), "notes", note(text)))
    three = stage.ledger.publication(actor("bob"), "notes", note("three"))
    four = stage.ledger.publication(actor("bob"), "notes", note("four"), partition=1)
    stage.apply(three, four)
    return stage.registered("alice")


def facts(blocks: list[VerifiedBlock]) -> list[tuple[bytes, tuple[bytes, ...], tuple[bytes | None, ...]]]:
    return [(block.id, block.raw_leaves, block.bodies) for block in blocks]


def truth(stage: Stage, first: int = 1) -> list[tuple[bytes, tuple[bytes, ...], tuple[bytes | None, ...]]]:
    ledger = stage.ledger
    return [
        (block.id, tuple(outcome.leaves), tuple(batch.body for batch in batches))
        for (block, batches), outcome in zip(ledger.blocks, ledger.outcomes, strict=True)
        if block.height >= first
    ]


# -- blocks ----------------------------------------------------------------------------------------------------------------


@on_stage
async def test_blocks_are_read_with_their_receipts_and_bodies(stage: Stage) -> None:
    alice = story(stage)
    async with stage.client(alice) as client:
        blocks = await client.blocks(1)
        assert facts(blocks) == truth(stage)
        assert [block.height for block in blocks] == list(range(1, stage.ledger.height + 1))
        receipts = [leaf for leaf in blocks[4].leaves if isinstance(leaf, BatchReceipt)]
        assert [receipt.outcome for receipt in receipts] == [Published(2), Published(0)]
        opened = [batch.messages[0].payload for batch in blocks[4].opened if batch is not None]
        assert opened == [b"three", b"four"]
        assert facts(await client.blocks(4)) == truth(stage, 4)
        assert stage.asked("ReadBodies") == 0


@on_stage
async def test_a_block_is_read_that_is_larger_than_any_other_answer(stage: Stage) -> None:
    """Whatever clients do with a block, it must not be one that nobody can audit."""
    alice = story(stage)
    stage.apply(stage.ledger.publication(actor("bob"), "notes", note("x" * 200_000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "MAX_FRAME", 100_000)
        async with stage.client(alice) as client:
            assert facts(await client.blocks(stage.ledger.height)) == truth(stage, stage.ledger.height)


@on_stage
async def test_bodies_that_were_not_asked_for_are_not_looked_for(stage: Stage) -> None:
    alice = story(stage)
    async with stage.client(alice) as client:
        blocks = await client.blocks(1, bodies=False)
        assert [body for block in blocks for body in block.bodies] == [None] * len(
            [batch for block in blocks for batch in block.batches]
        )
        assert stage.asked("ReadBodies") == 0


@on_stage
async def test_beyond_the_certified_height_there_is_nothing_yet(stage: Stage) -> None:
    alice = story(stage)
    async with stage.client(alice) as client:
        assert await client.blocks(stage.ledger.height + 1) == []
        assert await client.blocks(2**61) == []


@on_stage
async def test_a_question_that_no_broker_would_take_is_not_asked(stage: Stage) -> None:
    alice = story(stage)
    async with stage.client(alice) as client:
        for height, size in ((0, 1), (-1, 1), (2**62, 1), (1, 0), (1, 2**40)):
            with pytest.raises(Malformed):
                await client.blocks(height, max_bytes=size)
        assert stage.asked("ReadBlocks") == 0


@on_stage
async def test_the_certified_height_is_that_of_a_certified_header(stage: Stage) -> None:
    alice = story(stage)
    async with stage.client(alice) as client:
        header = stage.ledger.anchor().header
        assert await client.certified_height() == (stage.ledger.height, header.id(), header.time)


Change = Callable[[RawBlock], RawBlock]


def last(change: Change) -> Callable[[Blocks], Blocks]:
    return lambda answer: replace(answer, blocks=(*answer.blocks[:-1], change(answer.blocks[-1])))


def bodies(change: Callable[[bytes], bytes | Remains | None]) -> Callable[[Blocks], Blocks]:
    def changed(block: RawBlock) -> RawBlock:
        shown = (change(body) if isinstance(body, bytes) else body for body in block.bodies)
        return replace(block, bodies=tuple(shown))

    return lambda answer: replace(answer, blocks=tuple(map(changed, answer.blocks)))


def resigned(body: bytes) -> bytes:
    """The digest of a batch does not cover its signature."""
    batch = msgspec.msgpack.decode(body, type=Batch)
    return encode(replace(batch, signature=batch.signature[::-1]))


def other_remains(body: bytes) -> Remains:
    remains = msgspec.msgpack.decode(remains_of(body), type=Remains)
    return replace(remains, root=remains.root[::-1])


def header(**changes: object) -> Change:
    return lambda raw: replace(
        raw,
        block=replace(raw.block, header=replace(raw.block.header, **changes)),
    )


LIES: dict[str, Callable[[Blocks], Blocks]] = {
    "another time": last(header(time=1)),
    "another proposer": last(header(proposer=3)),
    "another height": last(header(height=99)),
    "a batch more": last(
        lambda raw: replace(raw, block=replace(raw.block, batches=(bytes(32),)), bodies=(None,))
    ),
    "a batch less": last(lambda raw: replace(raw, block=replace(raw.block, batches=()), bodies=())),
    "a body less": last(lambda raw: replace(raw, bodies=())),
    "a receipt less": last(lambda raw: replace(raw, leaves=raw.leaves[:-1])),
    "a receipt twice": last(lambda raw: replace(raw, leaves=raw.leaves * 2)),
    "a receipt altered": last(lambda raw: replace(raw, leaves=(raw.leaves[0][:-1] + b"\0",))),
    "a block left out": lambda answer: replace(answer, blocks=(answer.blocks[0], *answer.blocks[2:])),
    "blocks in another order": lambda answer: replace(answer, blocks=answer.blocks[::-1]),
    "the wrong first block": lambda answer: replace(answer, blocks=answer.blocks[1:]),
    "no block": lambda answer: replace(answer, blocks=(), history=None),
    "no proof": lambda answer: replace(answer, history=None),
    "a proof of another size": lambda answer: replace(
        answer, history=answer.history and replace(answer.history, size=answer.history.size + 1)
    ),
    "another signature of a publisher": bodies(resigned),
    "the body of another batch": bodies(lambda _: b"garbage"),
    "what stays of another batch": bodies(other_remains),
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES.keys())
def test_a_broker_that_alters_blocks_is_caught_and_others_are_asked(
    change: Callable[[Blocks], Blocks], tmp_path: Path
) -> None:
    def lie(_: Question, answer: Answer) -> Answer:
        return change(answer) if isinstance(answer, Blocks) else answer

    async def play(stage: Stage) -> None:
        alice = story(stage)
        stage[FIRST].lie = lie
        async with stage.client(alice, first=FIRST) as client:
            assert facts(await client.blocks(1)) == truth(stage)
            assert [caught.broker for caught in client.misbehaviour] == [FIRST]

    on_stage(play)(tmp_path)


@on_stage
async def test_nothing_is_believed_when_all_lie(stage: Stage) -> None:
    alice = story(stage)
    for broker in stage.brokers:
        broker.lie = lambda _, answer: LIES["another time"](answer) if isinstance(answer, Blocks) else answer
    async with stage.client(alice, patience=0.5) as client:
        with pytest.raises(Stalled, match="not the certified ones"):
            await client.blocks(1)


@on_stage
async def test_proofs_are_checked_at_every_level(stage: Stage) -> None:
    alice = story(stage)
    for broker in stage.brokers:
        broker.lie = lambda _, answer: LIES["another time"](answer) if isinstance(answer, Blocks) else answer
    async with stage.client(alice, verify="quorum", patience=0.5) as client:
        with pytest.raises(Stalled, match="not the certified ones"):
            await client.blocks(1)


@on_stage
async def test_a_broker_that_is_behind_does_not_hide_blocks_that_were_seen(stage: Stage) -> None:
    alice = story(stage)
    old = stage.ledger.anchor()

    def behind(_: Question, answer: Answer) -> Answer:
        return Blocks(answer.id, old, (), None) if isinstance(answer, Blocks) else answer

    stage[FIRST].lie = behind
    async with stage.client(alice, first=FIRST) as client:
        stage.apply()
        height = stage.ledger.height
        assert await client.blocks(height) == []  # as far as this client can know
        assert (await client.certified_height()).height == height
        assert facts(await client.blocks(height)) == truth(stage, height)
        assert client.misbehaviour == ()


@on_stage
async def test_whoever_has_no_right_is_told_so(stage: Stage) -> None:
    alice = story(stage)
    for broker in stage.brokers:
        broker.lie = lambda question, answer: (
            Failure(question.id, PermissionDenied.code, "no auditor", ())
            if isinstance(answer, Blocks | EvidenceList)
            else answer
        )
    async with stage.client(alice) as client:
        with pytest.raises(PermissionDenied, match="no auditor"):
            await client.blocks(1)
        with pytest.raises(PermissionDenied, match="no auditor"):
            await client.evidence()


# -- bodies ----------------------------------------------------------------------------------------------------------------


@on_stage
async def test_a_body_that_one_broker_does_not_show_comes_from_another(stage: Stage) -> None:
    alice = story(stage)
    everything = {name for block, _ in stage.ledger.blocks for name in block.batches}
    stage[FIRST].erased = everything
    async with stage.client(alice, first=FIRST) as client:
        assert facts(await client.blocks(1)) == truth(stage)
        assert client.misbehaviour == ()


@on_stage
async def test_a_broker_that_withholds_bodies_hides_nothing(stage: Stage) -> None:
    alice = story(stage)

    def withheld(_: Question, answer: Answer) -> Answer:
        match answer:
            case Blocks():
                return bodies(lambda _: None)(answer)
            case Bodies():
                return replace(answer, bodies=tuple(None for _ in answer.bodies))
            case _:
                return answer

    stage[FIRST].lie = withheld
    async with stage.client(alice, first=FIRST) as client:
        assert facts(await client.blocks(1)) == truth(stage)


@on_stage
async def test_an_erased_body_is_none_and_what_stays_of_it_is_shown(stage: Stage) -> None:
    alice = story(stage)
    name = stage.ledger.blocks[4][0].batches[0]
    for broker in stage.brokers:
        broker.erased = {name}
    async with stage.client(alice) as client:
        (block,) = [one for one in await client.blocks(5, bodies=True) if name in one.batches]
        assert [body is None for body in block.bodies] == [True, False]
        left = block.remains[0]
        assert left is not None
        assert (left.header.publisher, left.header.count) == (actor("bob").key, 1)
        assert block.remains[1] is None
        asked = {broker.name: broker.asked["ReadBodies"] for broker in stage.brokers}
        assert sorted(asked.values()) == [0, 0, 1, 1]  # f+1


@on_stage
async def test_a_false_body_is_caught_also_when_it_is_asked_for_by_itself(stage: Stage) -> None:
    alice = story(stage)
    stage[FIRST].erased = {name for block, _ in stage.ledger.blocks for name in block.batches}
    liar = stage["broker-hospital-b"]  # the second that is asked

    def lie(_: Question, answer: Answer) -> Answer:
        return replace(answer, bodies=(b"garbage",)) if isinstance(answer, Bodies) else answer

    liar.lie = lie
    async with stage.client(alice, first=FIRST) as client:
        assert facts(await client.blocks(1)) == truth(stage)
        assert [caught.broker for caught in client.misbehaviour] == [liar.name]


# -- proofs of misbehaviour ------------------------------------------------------------------------------------------------


def double_vote(stage: Stage, member: int, view: int) -> bytes:
    def vote(block: bytes) -> Vote:
        message = stage.ledger.instance.vote_message(view, block)
        return Vote(0, view, block, member, BROKER_KEYS[member].sign(message))

    return evidence.encode(evidence.Record("votes", vote(bytes(32)), vote(b"x" * 32)))


@on_stage
async def test_proofs_of_misbehaviour_are_joined_from_all_brokers(stage: Stage) -> None:
    alice = story(stage)
    one, two = double_vote(stage, 1, 7), double_vote(stage, 3, 9)
    stage.brokers[0].evidence = (one, two)
    stage.brokers[2].evidence = (one,)
    async with stage.client(alice) as client:
        found = await client.evidence()
    names = [broker.name for broker in stage.ledger.genesis.brokers]
    assert [(proof.broker, proof.kind, proof.view) for proof in found] == sorted(
        [(names[1], "votes", 7), (names[3], "votes", 9)]
    )
    (shared,) = [proof for proof in found if proof.view == 7]
    assert (shared.record, set(shared.held_by)) == (one, {names[0], names[2]})


@on_stage
async def test_a_proof_that_proves_nothing_falls_back_on_who_shows_it(stage: Stage) -> None:
    alice = story(stage)
    record = evidence.decode(double_vote(stage, 1, 7))
    stage[FIRST].evidence = (evidence.encode(replace(record, second=record.first)),)
    stage["broker-insurer"].evidence = (b"garbage",)
    async with stage.client(alice) as client:
        assert await client.evidence() == []
        assert {caught.broker for caught in client.misbehaviour} == {FIRST, "broker-insurer"}


@on_stage
async def test_a_broker_that_never_ends_is_left(stage: Stage) -> None:
    alice = story(stage)
    stage[FIRST].lie = lambda _, answer: (
        replace(answer, entries=(), more=True) if isinstance(answer, EvidenceList) else answer
    )
    async with stage.client(alice) as client:
        assert await client.evidence() == []
        assert [caught.broker for caught in client.misbehaviour] == [FIRST]


# -- advisories ------------------------------------------------------------------------------------------------------------


@on_stage
async def test_an_advisory_goes_to_enough_brokers_and_is_signed(stage: Stage) -> None:
    alice = story(stage)
    async with stage.client(alice) as client:
        await client.advise("vitals per ward", "notes", {1: (4, 10), 0: (2, 2)}, run="r1")
        now = stage.ledger.time
    told = [said for broker in stage.brokers for said in broker.advisories]
    assert len(told) == 2  # f+1
    advisory = open_advisory(told[0].advisory, told[0].signature, stage.ledger.genesis, now)
    assert (advisory.reader, advisory.query, advisory.run) == ("hospital-a/alice", "vitals per ward", "r1")
    assert (advisory.topic, advisory.time) == ("notes", now)
    assert advisory.positions == (Standpoint(0, 2, 2), Standpoint(1, 4, 10))
    assert advisory.lag == 6


@on_stage
async def test_one_broker_that_takes_an_advisory_is_enough(stage: Stage) -> None:
    alice = story(stage)
    async with stage.client(alice, first=FIRST) as client:
        await stage[FIRST].stop()
        await client.advise("query", "notes", {0: (1, 1)})
    assert sum(len(broker.advisories) for broker in stage.brokers) == 1


@on_stage
async def test_that_nobody_takes_an_advisory_is_told(stage: Stage) -> None:
    alice = story(stage)
    async with stage.client(alice) as client:
        await asyncio.gather(*(broker.stop() for broker in stage.brokers))
        with pytest.raises(Unreachable):
            await client.advise("query", "notes", {0: (1, 1)})


@on_stage
async def test_of_what_brokers_tell_of_readers_only_the_newest_that_was_signed_counts(stage: Stage) -> None:
    alice = story(stage)
    genesis, identity = stage.ledger.genesis, stage.identity(alice)

    def said(lag: int, time: int) -> SignedAdvisory:
        advisory = Advisory(identity.credential, "query", "", "notes", (Standpoint(0, 0, lag),), time)
        return SignedAdvisory(*sign_advisory(advisory, identity.key()))

    def told(name: str, *readers: SignedAdvisory) -> BrokerStatus:
        status = Status(
            1, name, "o", 0, "1", "ready", "", 0, 0, 1, 1, 1, "b", 1, 0, (), (), (), readers=readers
        )
        return BrokerStatus(name, "o", "here", status, "")

    silent = BrokerStatus("down", "o", "here", None, "it does not answer")
    forged = replace(said(99, 3), signature=bytes(64))
    found = readers_of([told("a", said(5, 1)), told("b", said(7, 2), forged), silent], genesis, 0)
    assert [(one.reader, one.lag, one.time) for one in found] == [("hospital-a/alice", 7, 2)]
