"""Many messages at once: one future per batch, several batches in flight, receipts that come together checked together."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from tests.application.world import Signed
from tests.client.stage import Stage, on_stage, on_stage_with
from tests.client.test_publishing import FIRST, HASTY, published

from parley.applications import DATA_SHARD
from parley.client import connection
from parley.client.client import Client
from parley.client.errors import ClientClosed, Oversized, UnknownPartition
from parley.client.messages import Receipt
from parley.model.batches import open_batch
from parley.model.receipts import BatchReceipt, encode_leaf
from parley.modules.publishing.receipts import Published
from parley.net.messages import Question, Receipted, Submit, encode


@on_stage
async def test_many_values_go_in_batches_and_every_message_has_its_receipt(stage: Stage) -> None:
    values = [str(number) for number in range(250)]
    async with (
        stage.client(stage.registered("alice")) as client,
        client.publisher("notes", batch_size=100) as publisher,
    ):
        receipts = await publisher.publish_many(values, tags={"ward": "er"}, partition=0)
        assert [(one.offset, len(one)) for one in receipts] == [(0, 100), (100, 100), (200, 50)]
        assert [one.offset for batch in receipts for one in batch] == list(range(250))
        last = receipts[2][-1]
        assert (last.offset, last.publisher, last.verified) == (249, "hospital-a/alice", "certified")
        proof = last.proof()
        assert proof.offset == 249
        assert proof.message is not None
        assert proof.message.message.payload == b"249"
        with pytest.raises(IndexError):
            receipts[2][50]
    assert len(stage[FIRST].batches) == 3
    assert published(stage) == [value.encode() for value in values]


@on_stage
async def test_many_values_stay_within_the_bytes_of_a_batch(stage: Stage) -> None:
    async with (
        stage.client(stage.registered("alice")) as client,
        client.publisher("notes", max_bytes=1_000) as publisher,
    ):
        sizes = [300, 300, 300, 900, 2_000, 10]
        receipts = await publisher.publish_many(map(bytes, sizes), partition=0)
        assert [len(one) for one in receipts] == [2, 1, 1, 1, 1]
        with pytest.raises(Oversized):
            await publisher.publish_many([bytes(2**20)])
    assert published(stage) == [bytes(size) for size in sizes]


@on_stage
async def test_many_values_come_after_what_was_sent_before_and_with_their_key(stage: Stage) -> None:
    async with (
        stage.client(stage.registered("alice")) as client,
        client.publisher("notes", linger=60) as publisher,
    ):
        before = await publisher.send("before", key="patient-7")
        (after,) = await publisher.publish_many([b"after", "after that"], key="patient-7")
        assert (await before).partition == after.partition
        assert [(await before).offset, after.offset] == [0, 1]
        keys = [message.key async for message in client.fetch("notes", partition=after.partition)]
    assert keys == [b"patient-7"] * 3
    assert published(stage) == [b"before", b"after", b"after that"]


@on_stage
async def test_several_may_publish_many_at_a_time_through_one_publisher(stage: Stage) -> None:
    async with (
        stage.client(stage.registered("alice")) as client,
        client.publisher("notes", batch_size=2, in_flight=2) as publisher,
    ):
        found = await asyncio.gather(
            *(publisher.publish_many([str(number)] * 5, partition=0) for number in range(4))
        )
    assert [[len(one) for one in receipts] for receipts in found] == [[2, 2, 1]] * 4
    assert sorted(published(stage)) == sorted(str(number).encode() for number in range(4) for _ in range(5))


@on_stage
async def test_why_many_were_not_published_is_raised(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        async with client.publisher("notes") as publisher:
            assert await publisher.publish_many([]) == []
            with pytest.raises(UnknownPartition):
                await publisher.publish_many(["one"], partition=9)
            for one in ("text", b"bytes"):
                with pytest.raises(TypeError, match="several values"):
                    await publisher.publish_many(one)  # type: ignore[arg-type]
        with pytest.raises(ClientClosed):
            await publisher.publish_many(["two"])


class Withholding:
    """A broker that takes batches in and answers nothing, until the test answers for it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._broker = stage[FIRST]
        self._broker.deaf = self._hear
        self._ids: list[int] = []

    def _hear(self, question: Question) -> bool:
        if isinstance(question, Submit):
            self._ids.append(question.id)
        return isinstance(question, Submit)

    async def together(self, count: int) -> Receipted:
        """The batches are in one block; the answer that shows all their receipts."""
        await self._broker.sent(count)
        ledger, bodies = self._stage.ledger, self._broker.batches
        self._stage.apply(*(Signed(ledger.machine.admit(body).digest, body) for body in bodies))
        first, *others = self._ids
        return Receipted(first, ledger.anchor(), ledger.proof(ledger.height, range(count)), tuple(others))

    def say(self, answer: Receipted) -> None:
        self._broker.deaf = lambda _: False
        for stream in self._broker._streams:
            stream.write(encode(answer))


def publish(client: Client) -> list[asyncio.Task[Receipt]]:
    return [
        asyncio.create_task(client.publish("notes", text, partition=0)) for text in ("one", "two", "three")
    ]


@on_stage
async def test_receipts_of_one_block_may_come_together(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        broker = Withholding(stage)
        publishing = publish(client)
        broker.say(await broker.together(3))
        receipts = [await one for one in publishing]
        assert [receipt.offset for receipt in receipts] == [0, 1, 2]
        # Each proof is of one receipt and shows nothing of the others.
        proofs = [receipt.proof() for receipt in receipts]
        assert [(proof.offset, len(proof.receipt.leaves)) for proof in proofs] == [(0, 1), (1, 1), (2, 1)]
        assert client.misbehaviour == ()
    assert stage.asked("Submit") == 3  # nobody else had to be asked


@on_stage
async def test_a_forged_receipt_among_true_ones_is_noticed(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        broker = Withholding(stage)
        publishing = publish(client)
        answer = await broker.together(3)
        leaf = DATA_SHARD.decode_leaf(answer.proof.leaves[1])
        assert isinstance(leaf, BatchReceipt)
        forged = encode_leaf(replace(leaf, outcome=Published(7)))
        leaves = (answer.proof.leaves[0], forged, answer.proof.leaves[2])
        broker.say(replace(answer, proof=replace(answer.proof, leaves=leaves)))
        assert [(await one).offset for one in publishing] == [0, 1, 2]
        (lie,) = client.misbehaviour
        assert (lie.broker, "not those of block" in lie.problem) == (FIRST, True)


@on_stage
async def test_receipts_that_are_fewer_than_the_batches_they_answer_are_noticed(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        broker = Withholding(stage)
        publishing = publish(client)
        answer = await broker.together(3)
        broker.say(replace(answer, proof=stage.ledger.proof(stage.ledger.height, [0, 1])))
        assert [(await one).offset for one in publishing] == [0, 1, 2]
        (lie,) = client.misbehaviour
        assert lie.problem == "the answer to a batch is not one receipt"


@on_stage
async def test_an_answer_of_another_kind_to_a_batch_is_a_lie(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = lambda question, answer: (
            replace(stage.ledger.proven(b"topic/notes"), id=question.id)
            if isinstance(question, Submit)
            else answer
        )
        assert (await client.publish("notes", "one", partition=0)).offset == 0
        (lie,) = client.misbehaviour
        assert "answered a Submit with a Proven" in lie.problem


@on_stage
async def test_batches_reach_the_broker_in_their_order_also_when_a_connection_has_no_room(
    stage: Stage,
) -> None:
    """One that overtook another would be ordered out of sequence, and again, and again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "MAX_IN_FLIGHT", 2)
        async with (
            stage.client(stage.registered("alice")) as client,
            client.publisher("notes", batch_size=1, in_flight=6) as publisher,
        ):
            receipts = await publisher.publish_many([str(number) for number in range(40)], partition=0)
    assert [one.offset for one in receipts] == list(range(40))
    chain = stage.ledger.genesis.chain
    sequences = [open_batch(body, chain, 0)[1].header.sequence for body in stage[FIRST].batches]
    assert sequences == list(range(40))


@on_stage_with(HASTY)
async def test_a_broker_that_is_silent_about_batches_does_not_hold_up_each_of_them(stage: Stage) -> None:
    """What it never answers fills its connection; batches would then wait for it one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "MAX_IN_FLIGHT", 2)
        async with (
            stage.client(stage.registered("alice"), first=FIRST) as client,
            client.publisher("notes", batch_size=1, in_flight=6) as publisher,
        ):
            stage[FIRST].deaf = lambda question: isinstance(question, Submit)
            receipts = await publisher.publish_many([str(number) for number in range(40)], partition=0)
            assert client.misbehaviour == ()
    assert [one.offset for one in receipts] == list(range(40))
    assert len(stage[FIRST].batches) < 20
