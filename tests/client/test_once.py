"""Nothing takes effect twice and nothing is signed again without need: sessions, late answers, stages, proofs at the end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from tests.application.world import Signed, actor
from tests.client.ledger import note
from tests.client.stage import Stage, on_stage
from tests.client.test_publishing import FIRST, failing, published

from parley.client import sequences
from parley.client.compose import MAX_CONTENT, Composer
from parley.client.errors import NotStaged, ParleyError, StageOver, UnknownClient, UnknownTopic
from parley.client.sequences import MAX_EXTRA, VALID
from parley.model.batches import Batch, BatchHeader
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net.messages import Answer, Question, Receipted, Submit


def headers(stage: Stage) -> list[BatchHeader]:
    """Of all different batches that were sent, in the order of their numbers."""
    bodies = {body for broker in stage.brokers for body in broker.batches}
    found = [msgspec.msgpack.decode(body, type=Batch).header for body in bodies]
    return sorted(found, key=lambda header: header.sequence)


# -- sessions ----------------------------------------------------------------------------------------------------------


@on_stage
async def test_two_clients_of_one_identity_do_not_take_each_others_numbers(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice) as one, stage.client(alice) as other:
        await one.publish("notes", "one", partition=0)
        await other.publish("notes", "two", partition=0)
        await one.publish("notes", "three", partition=0)
    assert published(stage) == [b"one", b"two", b"three"]
    assert len({header.session for header in headers(stage)}) == 2


@on_stage
async def test_after_a_refusal_before_order_the_next_batch_is_in_order_at_once(stage: Stage) -> None:
    """The numbers of what was refused are not used up, so another session begins."""
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        for broker in stage.brokers:
            broker.lie = failing(UnknownClient.code)
        with pytest.raises(UnknownClient):
            await client.publish("notes", "one", partition=0)
        for broker in stage.brokers:
            broker.lie = None
            broker.batches.clear()
        await client.publish("notes", "two", partition=0)
    assert [header.sequence for header in headers(stage)] == [0]


@on_stage
async def test_after_a_certified_refusal_that_used_no_number_up_the_next_batch_is_in_order_at_once(
    stage: Stage,
) -> None:
    mallory = stage.known(actor("mallory"))
    async with stage.client(mallory, first=FIRST) as client:
        with pytest.raises(UnknownClient):
            await client.publish("notes", "one", partition=0)
        stage.registered("mallory")
        for broker in stage.brokers:
            broker.batches.clear()
        await client.publish("notes", "two", partition=0)
    assert [header.sequence for header in headers(stage)] == [0]


@on_stage
async def test_a_batch_is_never_valid_for_longer_than_sequences_are_remembered(stage: Stage) -> None:
    """However long the client has heard nothing."""
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        await client.partitions("notes")  # so that nothing more is heard before the batch is signed
        client._quorum._heard = asyncio.get_running_loop().time() - 1_000_000
        known = client.height
        await client.publish("notes", "one", partition=0)
    assert [header.not_after for header in headers(stage)] == [known + VALID + MAX_EXTRA]


@on_stage
async def test_a_late_answer_to_what_was_signed_again_since_decides_nothing(stage: Stage) -> None:
    """A broker shows at last that the first batch has expired; the second one is on its way, and is not touched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "VALID", 3)
        async with stage.client(stage.registered("alice"), first=FIRST) as client:
            stage[FIRST].deaf = lambda question: isinstance(question, Submit)
            waiting = asyncio.create_task(client.publish("notes", "one", partition=0))
            await stage[FIRST].sent(1)
            line = client._sequence(await client._topics.record("notes"), 0)
            (entry,) = line._entries
            body, name = entry.data, entry.digest
            stage.ledger.wait(10)
            stage.apply(Signed(name, body))
            patch.setattr(sequences, "VALID", 1_000)
            line._renew()
            again, sent = entry.digest, entry.data
            line._on_answer(entry, name, FIRST, stage.ledger.receipted(name))
            assert entry.task is None, "nothing was made of it"
            assert again != name
            stage[FIRST].cut()
            stage[FIRST].deaf = lambda _: False
            await waiting
    everywhere = {one for broker in stage.brokers for one in broker.batches}
    assert everywhere == {body, sent}
    assert published(stage) == [b"one"]


def test_no_two_messages_have_the_same_salt() -> None:
    """Or equal messages of a batch could be told by their hashes, also by those who may not read them."""
    composer = Composer(key=None, tags=None, headers=None, rule="", rng=os.urandom)
    messages = [one for group in composer.groups([b"yes"] * 50, lambda: 20, MAX_CONTENT) for one in group]
    assert len(messages) == 50
    assert len({one.leaf() for one in messages}) == 50


# -- stages ------------------------------------------------------------------------------------------------------------


def twice(stage: Stage) -> None:
    """Whatever is submitted from now on is ordered twice, and the second receipt is shown."""

    def lie(question: Question, answer: Answer) -> Answer:
        return stage.order_again(question) if isinstance(question, Submit) else answer

    for broker in stage.brokers:
        broker.lie = lie


@pytest.mark.parametrize(("number", "refused"), [(4, StageOver), (5, StageOver), (6, NotStaged)])
def test_a_duplicate_of_a_refused_commit_is_no_commit(
    number: int, refused: type[ParleyError], tmp_path: Path
) -> None:
    """Its first receipt was lost. Stage 5 was committed by another: neither other batches nor another stage count as said."""

    async def play(stage: Stage) -> None:
        alice = stage.registered("alice")
        async with stage.client(alice) as client, stage.client(alice) as restarted:
            writer = client.writer("notes", "query")
            mine = await client.stage("notes", 0, [note("mine")], writer, 5)
            other = await restarted.stage("notes", 0, [note("other")], writer, 5)
            await client.commit_stage("notes", writer, 5, [mine.digest])
            twice(stage)
            said = other.digest if number == 5 else mine.digest
            with pytest.raises(refused):
                await restarted.commit_stage("notes", writer, number, [said])
        assert published(stage) == [b"mine"]

    on_stage(play)(tmp_path)


@on_stage
async def test_a_stager_takes_no_more_once_a_batch_was_refused(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        stager = client.stager("nowhere", client.writer("nowhere", "query"), 1, in_flight=1)
        await stager.send(0, [note("one")])
        with pytest.raises(UnknownTopic):  # the next one waits for room, and by then it is known
            await stager.send(0, [note("two")])


# -- proofs ------------------------------------------------------------------------------------------------------------


@on_stage
async def test_a_proof_of_an_operation_that_does_not_hold_is_not_handed_out(stage: Stage) -> None:
    """A client that trusts its own organisation's brokers did not look at it before."""

    def later(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Receipted):
            return answer
        header = msgspec.structs.replace(answer.proof.header, time=answer.proof.header.time + 1)
        return msgspec.structs.replace(answer, proof=msgspec.structs.replace(answer.proof, header=header))

    admin = stage.known(actor("admin"))
    async with stage.client(admin, verify="trusted") as client:
        stage[FIRST].lie = later
        receipt = await client.operate(CreateTopic("more", 1, Policy(), "", ""))
        with pytest.raises(ParleyError, match="proves nothing"):
            receipt.proof()
        stage[FIRST].lie = None
        receipt = await client.operate(CreateTopic("even-more", 1, Policy(), "", ""))
        receipt.proof().check(stage.ledger.trust, client.application)
