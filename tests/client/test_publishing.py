"""Publishing through brokers that die, lie, censor and forget: every message is published once, or its fate is told."""

from __future__ import annotations

import asyncio
from itertools import count

import msgspec
import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, Signed, actor
from tests.client.ledger import note
from tests.client.stage import TIMEOUTS, Lie, Stage, StagedBroker, on_stage, on_stage_with

from parley.application import sequences as kept_sequences
from parley.applications import DATA_SHARD
from parley.client import sequences
from parley.client.compose import partition_of
from parley.client.errors import (
    Busy,
    ClientClosed,
    InvalidMessage,
    InvalidRule,
    LimitExceeded,
    Malformed,
    OutOfSequence,
    Overloaded,
    Oversized,
    ParleyError,
    PermissionDenied,
    PutOff,
    SequenceReused,
    Stalled,
    TopicReplaced,
    UnknownClient,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)
from parley.client.messages import Level
from parley.client.quorum import QuorumClient
from parley.model.batches import MAX_RULES, Batch
from parley.model.names import sorted_pairs
from parley.model.receipts import Duplicate, encode_leaf, receipt_of
from parley.modules.publishing import budget
from parley.modules.publishing.receipts import Published
from parley.modules.registry.operations import AlterClient
from parley.modules.subscriptions.matching import HEAD, LEAST
from parley.modules.topics.operations import CreateTopic, DeleteTopic, Policy
from parley.net.messages import Answer, Failure, Prove, Question, Receipted, Submit

FIRST, SECOND = "broker-hospital-a", "broker-hospital-b"
HASTY = replace(TIMEOUTS, ack=50)


def published(stage: Stage, topic: str = "notes", partitions: int = 3) -> list[bytes]:
    """The payloads in the log, partition by partition."""
    found: list[bytes] = []
    for partition in range(partitions):
        answer = stage.ledger.fetched(actor("alice"), topic, partition=partition)
        for block in answer.blocks:
            for batch in block.batches:
                found += [
                    message.payload for message in stage.ledger.body(_digest(stage, batch.signature)).messages
                ]
    return found


def _digest(stage: Stage, signature: bytes) -> bytes:
    bodies = {batch.digest: batch.body for _, batches in stage.ledger.blocks for batch in batches}
    return next(name for name, body in bodies.items() if body.endswith(signature))


def sessions(bodies: list[bytes]) -> list[bytes]:
    return [msgspec.msgpack.decode(body, type=Batch).header.session for body in bodies]


def failing(code: str) -> Lie:
    """Refuse every batch, and nothing else."""

    def lie(question: Question, answer: Answer) -> Answer:
        return Failure(question.id, code, "so it says", ()) if isinstance(question, Submit) else answer

    return lie


# -- brokers that fail -----------------------------------------------------------------------------------------------


@on_stage
async def test_a_forged_receipt_leads_to_another_broker(stage: Stage) -> None:
    def forged(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Receipted):
            return answer
        moved = replace(DATA_SHARD.decode_leaf(answer.proof.leaves[0]), outcome=Published(77))
        return replace(answer, proof=replace(answer.proof, leaves=(encode_leaf(moved),)))

    async with stage.client(stage.registered("alice")) as client:
        stage[FIRST].lie = forged
        receipt = await client.publish("notes", "one", partition=1)
        assert (receipt.offset, receipt.partition, receipt.publisher) == (0, 1, "hospital-a/alice")
        assert [lie.broker for lie in client.misbehaviour] == [FIRST]
        await client.publish("notes", "two", partition=0)
        assert len(stage[FIRST].batches) == 1  # liars are asked last
    assert published(stage) == [b"two", b"one"]


@on_stage
async def test_a_lost_connection_leads_to_another_broker_with_the_same_bytes(stage: Stage) -> None:
    def die(question: Question, answer: Answer) -> Answer | None:
        if isinstance(question, Submit):
            stage[FIRST].cut()
            return None
        return answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = die
        receipt = await client.publish("notes", "one", partition=0)
        assert receipt.offset == 0
        assert client.misbehaviour == ()
    everywhere = [body for broker in stage.brokers for body in broker.batches]
    assert len(everywhere) == 2
    assert len(set(everywhere)) == 1
    assert published(stage) == [b"one"]


@on_stage_with(HASTY)
async def test_a_censored_batch_goes_to_f_more_brokers(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].deaf = lambda question: isinstance(question, Submit)
        await client.publish("notes", "one", partition=0)
        assert client.misbehaviour == ()
    assert published(stage) == [b"one"]


@on_stage
async def test_bytes_that_are_no_answer_lead_to_another_broker(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = lambda *_: b"\xc1\xc1"
        await client.publish("notes", "one", partition=0)
        assert "no answer" in client.misbehaviour[0].problem


@on_stage
async def test_an_answer_of_another_kind_leads_to_another_broker(stage: Stage) -> None:
    def other(question: Question, answer: Answer) -> Answer:
        return (
            replace(stage.ledger.proven(b"topic/notes"), id=question.id)
            if isinstance(question, Submit)
            else answer
        )

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = other
        await client.publish("notes", "one", partition=0)
        assert client.misbehaviour[0].problem == "it answered a Submit with a Proven"


@on_stage
async def test_a_busy_broker_leads_to_another(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = failing(Busy.code)
        await client.publish("notes", "one", partition=0)
        assert client.misbehaviour == ()


@on_stage
async def test_when_all_brokers_are_busy_the_same_bytes_are_sent_again_until_one_takes_them(
    stage: Stage,
) -> None:
    async with stage.client(stage.registered("alice"), patience=None) as client:
        for broker in stage.brokers:
            broker.lie = failing(Busy.code)
            broker.deaf = lambda _: False
        publishing = asyncio.create_task(client.publish("notes", "one", partition=0))
        for broker in stage.brokers:
            await broker.sent(2)
        for broker in stage.brokers:
            broker.lie = None
        assert (await publishing).offset == 0
    assert len({body for broker in stage.brokers for body in broker.batches}) == 1
    assert published(stage) == [b"one"]


def full(question: Question) -> bool:
    """As when a broker refuses a batch before it is ordered."""
    return isinstance(question, Submit)


@on_stage
async def test_a_publisher_that_waits_too_long_for_busy_brokers_is_told_what_they_say(stage: Stage) -> None:
    def lie(question: Question, answer: Answer) -> Answer:
        return Failure(question.id, Busy.code, "its disk is nearly full", ()) if full(question) else answer

    alice = stage.registered("alice")
    async with stage.client(alice, patience=0.5) as client:
        for broker in stage.brokers:
            broker.lie = lie
        await stage[SECOND].stop()  # who cannot be reached changes nothing
        with pytest.raises(Overloaded, match="its disk is nearly full") as caught:
            await client.publish("notes", "one", partition=0)
        assert isinstance(caught.value, Stalled)
        assert caught.value.reasons[FIRST] == "Busy: its disk is nearly full"
        publisher = client.publisher("notes", in_flight=1, batch_size=1)
        await publisher.send("two", partition=1)
        with pytest.raises(Overloaded, match="publishing 1 batches to notes"):
            await publisher.send("three", partition=1)
        with pytest.raises(Overloaded, match="publishing 1 batches to notes"):
            await publisher.flush()
        with pytest.raises(Overloaded, match="the operation 'delete topic notes'"):
            await client.delete_topic("notes")


@on_stage
async def test_the_only_broker_that_answers_cannot_say_that_all_are_overloaded(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice, patience=0.5) as client:
        for broker in stage.brokers:
            if broker.name != FIRST:
                await broker.stop()
        stage[FIRST].lie = lambda question, _: Failure(question.id, Busy.code, "its disk is nearly full", ())
        with pytest.raises(Stalled, match="its disk is nearly full") as caught:
            await client.publish("notes", "one", partition=0)
        assert not isinstance(caught.value, Overloaded)


@on_stage
async def test_a_batch_that_costs_too_much_is_refused_and_smaller_ones_follow(
    stage: Stage,
) -> None:
    alice = stage.registered("alice")
    stage.ledger.subscribe(alice, "notes", "a == 1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "MAX_COMPARED", HEAD + 4 * LEAST)  # four messages
        async with (
            stage.client(alice) as client,
            client.publisher("notes", batch_size=8, linger=60) as publisher,
        ):
            refused = [await publisher.send(str(at), tags={"a": 1}, partition=0) for at in range(8)]
            with pytest.raises(LimitExceeded, match="split the batch"):
                await refused[0]
            later = [await publisher.send(str(at), tags={"a": 1}, partition=0) for at in range(8)]
            assert [(await one).offset for one in later] == list(range(8))


@on_stage
async def test_one_brokers_refusal_before_order_is_not_believed(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = failing(Malformed.code)
        assert (await client.publish("notes", "one", partition=0)).offset == 0


@on_stage
async def test_one_brokers_refusal_is_not_believed_because_the_others_are_busy(stage: Stage) -> None:
    def busy_at_first(broker: StagedBroker) -> Lie:
        return lambda question, answer: (
            failing(Busy.code)(question, answer) if len(broker.batches) < 3 else answer
        )

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        for broker in stage.brokers:
            broker.lie = failing(Malformed.code) if broker.name == FIRST else busy_at_first(broker)
        await client.publish("notes", "one", partition=0)
    assert published(stage) == [b"one"]


@on_stage
async def test_the_refusal_of_f_plus_one_brokers_is_believed_and_the_line_goes_on(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        for broker in stage.brokers:
            broker.deaf = lambda question: isinstance(question, Submit)
        waiting = asyncio.create_task(client.publish("notes", "refused", partition=0))
        for broker in stage.brokers:
            broker.deaf = lambda _: False
            broker.lie = failing(Malformed.code)
        with pytest.raises(Malformed, match="so it says"):
            await waiting
        for broker in stage.brokers:
            broker.lie = None
        await client.publish("notes", "two", partition=0)


@on_stage
async def test_without_brokers_the_error_names_all_that_were_tried(stage: Stage) -> None:
    alice = stage.registered("alice")
    await asyncio.gather(*(broker.stop() for broker in stage.brokers))
    with pytest.raises(Unreachable) as caught:
        async with stage.client(alice):
            pass
    assert isinstance(caught.value, ConnectionError)
    assert set(caught.value.tried) == {broker.name for broker in stage.brokers}
    assert all("cannot be reached" in reason for reason in caught.value.tried.values())
    assert str(caught.value).count("cannot be reached") == 1
    assert all(f"{broker.name} at {broker.address}" in str(caught.value) for broker in stage.brokers)


@on_stage
async def test_a_stalled_network_is_waited_for_no_longer_than_asked_and_nothing_is_lost(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), patience=0.2) as client:
        for broker in stage.brokers:
            broker.deaf = lambda question: isinstance(question, Submit)
        with pytest.raises(Stalled, match="may still be published"):
            await client.publish("notes", "one", partition=0)
        for broker in stage.brokers:
            broker.deaf = lambda _: False
            broker.cut()
        await client.publish("notes", "two", partition=0)
    assert published(stage) == [b"one", b"two"]


@on_stage
async def test_a_publisher_without_brokers_is_told_and_its_message_goes_out_when_they_are_back(
    stage: Stage,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "PATIENCE", 0.2)
        async with stage.client(stage.registered("alice"), patience=None) as client:
            await client.publish("notes", "zero", partition=0)
            addresses = [broker.address for broker in stage.brokers]
            for broker in stage.brokers:
                await broker.stop()
            with pytest.raises(Unreachable) as caught:
                await client.publish("notes", "one", partition=0)
            assert "may still take effect" in caught.value.__notes__[0]
            for broker, address in zip(stage.brokers, addresses, strict=True):
                broker.start(address)
            await client.publish("notes", "two", partition=0)
    assert published(stage) == [b"zero", b"one", b"two"]


@on_stage
async def test_closing_tells_those_who_wait(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        stage[FIRST].deaf = lambda question: isinstance(question, Submit)
        waiting = asyncio.create_task(client.publish("notes", "one", partition=0))
        await stage[FIRST].sent(1)
    with pytest.raises(ClientClosed):
        await waiting
    with pytest.raises(ClientClosed):
        await client.publish("notes", "two", partition=0)


@on_stage
async def test_a_quorum_of_answers_outvotes_a_liar(stage: Stage) -> None:
    def forged(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Receipted):
            return answer
        moved = replace(DATA_SHARD.decode_leaf(answer.proof.leaves[0]), outcome=Published(77))
        return replace(answer, proof=replace(answer.proof, leaves=(encode_leaf(moved),)))

    async with stage.client(stage.registered("alice"), first=FIRST, verify="quorum") as client:
        stage[FIRST].lie = forged
        receipt = await client.publish("notes", "one", partition=0)
        assert (receipt.offset, receipt.verified) == (0, "quorum")


# -- sequence ----------------------------------------------------------------------------------------------------------


@on_stage
async def test_a_duplicate_leads_to_the_original_receipt(stage: Stage) -> None:
    def doubled(question: Question, answer: Answer) -> Answer:
        return stage.order_again(question) if isinstance(question, Submit) else answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = doubled
        receipt = await client.publish("notes", "one", partition=0)
        assert receipt.offset == 0
        assert receipt.proof().height == receipt.height < stage.ledger.height
    assert published(stage) == [b"one"]


@on_stage_with(HASTY)
async def test_a_batch_that_is_ordered_too_early_is_sent_again(stage: Stage) -> None:
    first_heard = count()
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        # The first batch is lost at first, so the second is out of sequence.
        stage[FIRST].deaf = lambda question: isinstance(question, Submit) and next(first_heard) == 0
        await asyncio.gather(*(client.publish("notes", text, partition=0) for text in ("one", "two")))
    assert published(stage) == [b"one", b"two"]
    assert len(set(sessions([body for broker in stage.brokers for body in broker.batches]))) == 1


@on_stage_with(HASTY)
async def test_an_old_receipt_that_a_batch_was_too_early_is_not_believed_again(stage: Stage) -> None:
    """The second batch was ordered too early, then applied; a liar shows the old receipt. It must not be signed anew."""
    first_heard = count()
    old: list[Receipted] = []

    def replay(question: Question, answer: Answer) -> Answer:
        if isinstance(answer, Receipted) and not old:
            receipt = receipt_of(DATA_SHARD.decode_leaf(answer.proof.leaves[0]))
            assert receipt is not None
            assert receipt.code == OutOfSequence.code
            old.append(answer)
        if isinstance(question, Submit) and question.batch == stage[FIRST].batches[1]:
            height = old[0].proof.header.height
            return Receipted(question.id, stage.ledger.anchor(), stage.ledger.proof(height, [0]))
        return answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].deaf = lambda question: isinstance(question, Submit) and next(first_heard) == 0
        stage[FIRST].lie = replay
        await asyncio.gather(*(client.publish("notes", text, partition=0) for text in ("one", "two")))
    assert old
    assert published(stage) == [b"one", b"two"]
    assert len(set(sessions([body for broker in stage.brokers for body in broker.batches]))) == 1


@on_stage
async def test_an_expired_batch_is_signed_anew(stage: Stage) -> None:
    slow = count()

    def late(question: Question) -> bool:
        if isinstance(question, Submit) and next(slow) == 0:
            stage.ledger.wait(5)
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "VALID", 3)
        async with stage.client(stage.registered("alice"), first=FIRST) as client:
            stage[FIRST].deaf = late
            assert (await client.publish("notes", "one", partition=0)).offset == 0
            assert (await client.publish("notes", "two", partition=0)).offset == 1
    assert published(stage) == [b"one", b"two"]


def forgetting(stage: Stage) -> Lie:
    """Order every batch again when it has expired and its line is forgotten, and show that receipt."""

    def forget(question: Question, answer: Answer) -> Answer:
        if not isinstance(question, Submit):
            return answer
        stage.ledger.wait(10)
        return stage.order_again(question)

    return forget


@on_stage
async def test_a_batch_that_was_applied_is_not_signed_anew_when_a_liar_lets_it_expire(stage: Stage) -> None:
    """Ordered again after its line was forgotten, it is certified to have expired, and as if it had never been."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "VALID", 3)
        async with stage.client(stage.registered("alice"), first=FIRST) as client:
            stage[FIRST].lie = forgetting(stage)
            assert (await client.publish("notes", "one", partition=0)).offset == 0
    assert published(stage) == [b"one"]
    assert len(set(sessions([body for broker in stage.brokers for body in broker.batches]))) == 1


@on_stage_with(replace(TIMEOUTS, freshness=100))
async def test_one_liar_beside_brokers_that_fill_in_their_history_gets_no_batch_published_twice(
    stage: Stage,
) -> None:
    """The batch was applied and its line forgotten: the others say that they cannot know, until they have the receipt."""
    told: asyncio.Queue[ParleyError] = asyncio.Queue()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "VALID", 3)
        alice = stage.registered("alice")
        async with (
            asyncio.timeout(20),
            stage.client(alice, patience=None, first=FIRST, on_stalled=told.put_nowait) as client,
        ):
            stage[FIRST].lie = forgetting(stage)
            for broker in stage.brokers:
                broker.whole = broker.name == FIRST
            waiting = asyncio.create_task(client.publish("notes", "one", partition=0))
            stalled = str(await told.get())
            assert "whether it was applied before is not known yet" in stalled
            assert "filling in its history" in stalled
            for broker in stage.brokers:
                broker.whole = True
            assert (await waiting).offset == 0
            assert client.misbehaviour == ()
    assert published(stage) == [b"one"]
    assert len({body for broker in stage.brokers for body in broker.batches}) == 1


@on_stage_with(replace(TIMEOUTS, freshness=100))
async def test_who_waits_no_longer_for_a_batch_that_may_have_been_applied_is_told_that(stage: Stage) -> None:
    """It has expired at those who forgot it. So it is not said to be undecided, nor refused."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "VALID", 3)
        alice = stage.registered("alice")
        async with asyncio.timeout(20), stage.client(alice, patience=1, first=FIRST) as client:
            stage[FIRST].lie = forgetting(stage)
            for broker in stage.brokers:
                broker.whole = broker.name == FIRST
            with pytest.raises(Stalled, match="whether it was applied before is not known yet"):
                await client.publish("notes", "one", partition=0)
    assert published(stage) == [b"one"]


@on_stage
async def test_an_old_receipt_that_decided_nothing_keeps_no_expired_batch_from_being_signed_again(
    stage: Stage,
) -> None:
    """One liar shows the certified `Busy` of before, when no receipt but `Expired` can follow."""
    shown, old = asyncio.Event(), [0]

    def replay(question: Question, answer: Answer) -> Answer:
        if not isinstance(question, Submit):
            return answer
        if not shown.is_set():
            old[0] = stage.ledger.height
            shown.set()
        return Receipted(question.id, stage.ledger.anchor(), stage.ledger.proof(old[0], [0]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "VALID", 3)
        async with (
            asyncio.timeout(20),
            stage.client(stage.registered("alice"), patience=None, first=FIRST) as client,
        ):
            patch.setattr(kept_sequences, "MAX_SESSIONS", 0)
            stage[FIRST].lie = replay
            waiting = asyncio.create_task(client.publish("notes", "one", partition=0))
            await shown.wait()
            stage.ledger.wait(20)
            patch.setattr(kept_sequences, "MAX_SESSIONS", 1_000)
            patch.setattr(sequences, "VALID", 1_000)
            assert (await waiting).offset == 0
    assert published(stage) == [b"one"]


@on_stage
async def test_one_unproven_answer_keeps_no_expired_batch_from_being_signed_again(stage: Stage) -> None:
    """With `verify="quorum"` receipts are not checked: a liar makes one of its own, which decides."""

    def order_once(body: bytes) -> bytes:  # all brokers show what was ordered first
        name = stage.ledger.machine.admit(body).digest
        if stage.ledger.place(name) is None:
            stage.apply(Signed(name, body))
        return name

    def forge(question: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Receipted):
            return answer
        receipt = receipt_of(DATA_SHARD.decode_leaf(answer.proof.leaves[0]))
        assert receipt is not None
        leaf = encode_leaf(replace(receipt, outcome=Duplicate((1, 0))))
        return replace(answer, proof=replace(answer.proof, leaves=(leaf,)))

    stage.order = order_once  # type: ignore[method-assign]
    alice = stage.registered("alice")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "VALID", 3)
        async with asyncio.timeout(20), stage.client(alice, first=FIRST, verify="quorum") as client:
            stage.ledger.wait(10)
            stage[FIRST].lie = forge
            await client.publish("notes", "one", partition=0)
    assert published(stage) == [b"one"]


@on_stage
async def test_a_refusal_of_a_later_batch_signs_none_before_it_again(stage: Stage) -> None:
    """A liar has it refused before the client is registered, and the batch before it applied afterwards."""
    withheld: list[bytes] = []
    applied: list[bytes] = []

    def withhold(question: Question) -> bool:
        if isinstance(question, Submit) and not withheld:
            withheld.append(question.batch)
            return True
        return False

    def apply(question: Question, answer: Answer) -> Answer:
        if isinstance(question, Submit) and not applied:
            stage.registered("mallory")
            applied.extend(withheld)
            stage.apply(*(Signed(stage.ledger.machine.admit(body).digest, body) for body in applied))
        return answer

    stage.registered("alice")
    async with asyncio.timeout(20), stage.client(stage.known(actor("mallory")), first=FIRST) as client:
        stage[FIRST].deaf, stage[FIRST].lie = withhold, apply
        one, two = await asyncio.gather(
            client.publish("notes", "one", partition=0),
            client.publish("notes", "two", partition=0),
            return_exceptions=True,
        )
    assert not isinstance(one, BaseException)
    assert isinstance(two, UnknownClient)
    assert published(stage) == [b"one"]


@on_stage
async def test_an_expired_batch_of_a_line_that_lives_on_is_signed_anew(stage: Stage) -> None:
    slow = count()

    def late(question: Question) -> bool:
        if isinstance(question, Submit) and next(slow) == 0:
            stage.ledger.wait(5)
        return False

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        await client.publish("notes", "one", partition=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sequences, "VALID", 3)
            stage[FIRST].deaf = late
            assert (await client.publish("notes", "two", partition=0)).offset == 1
    assert published(stage) == [b"one", b"two"]
    assert sum(len(broker.batches) for broker in stage.brokers) == 3  # nobody else had to be asked


@on_stage
async def test_a_batch_that_was_applied_is_not_signed_anew_although_it_has_expired_since(
    stage: Stage,
) -> None:
    def doubled(question: Question, answer: Answer) -> Answer:
        if not isinstance(question, Submit):
            return answer
        name = stage.ledger.machine.admit(question.batch).digest
        stage.ledger.wait(5)
        stage.apply(Signed(name, question.batch))
        return Receipted(question.id, stage.ledger.anchor(), stage.ledger.proof(stage.ledger.height, [0]))

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        await client.publish("notes", "one", partition=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sequences, "VALID", 3)
            stage[FIRST].lie = doubled
            assert (await client.publish("notes", "two", partition=0)).offset == 1
    assert published(stage) == [b"one", b"two"]


@pytest.mark.parametrize("level", ["certified", "trusted"])
@pytest.mark.parametrize("informed", [True, False])
def test_a_client_that_was_idle_for_long_goes_on(informed: bool, level: Level, tmp_path: object) -> None:
    """The network has forgotten its line: a batch is out of sequence, or expired if the client missed the heights."""

    async def play(stage: Stage) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sequences, "VALID", 3)
            async with stage.client(stage.registered("alice"), verify=level) as client:
                await client.publish("notes", "one", partition=0)
                stage.ledger.wait(10)
                if informed:
                    await client.topic("notes")
                    patch.setattr(sequences, "VALID", 1_000)  # so that nothing expires
                await asyncio.gather(
                    *(client.publish("notes", text, partition=0) for text in ("two", "three"))
                )
                await client.publish("notes", "four", partition=0)
        assert published(stage) == [b"one", b"two", b"three", b"four"]

    on_stage(play)(tmp_path)  # type: ignore[arg-type]


@on_stage
async def test_a_batch_of_an_idle_client_does_not_expire_where_blocks_come_fast(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        await client.publish("notes", "one", partition=0)
        known = client.height
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(QuorumClient, "idle", 30.0)
            await client.publish("notes", "two", partition=0)
    header = msgspec.msgpack.decode(stage[FIRST].batches[-1], type=Batch).header
    assert header.not_after == known + sequences.VALID + 30 * sequences.MOST_BLOCKS_PER_SECOND


# -- batches that are put off ------------------------------------------------------------------------------------------------


@on_stage
async def test_who_has_too_many_sequences_is_told_so_and_its_batch_is_sent_unchanged_until_there_is_room(
    stage: Stage,
) -> None:
    """The receipts are certified, so that it is neither the quorum nor the clock."""
    with pytest.MonkeyPatch.context() as patch:
        async with stage.client(stage.registered("alice"), patience=2, first=FIRST) as client:
            patch.setattr(kept_sequences, "MAX_SESSIONS", 0)
            with pytest.raises(PutOff, match="Busy: the key has the 0 sessions that it may have") as caught:
                await client.publish("notes", "one", partition=0)
            assert isinstance(caught.value, Stalled)
            assert isinstance(caught.value.refusal, Busy)
            assert caught.value.refusal.reason == "sessions"
            assert "clock" not in str(caught.value)
            with pytest.raises(PutOff, match=r"the operation 'delete topic notes'.*Busy"):
                await client.delete_topic("notes")
            patch.undo()
            assert (await client.publish("notes", "two", partition=0)).offset == 1
    assert published(stage) == [b"one", b"two"]
    bodies = {body for broker in stage.brokers for body in broker.batches if b"one" in body}
    assert len(bodies) == 1


@on_stage
async def test_the_newest_refusal_is_shown_and_an_older_one_of_a_liar_is_not(stage: Stage) -> None:
    old: list[int] = []

    def replay(question: Question, answer: Answer) -> Answer:
        if not isinstance(question, Submit):
            return answer
        old.append(stage.ledger.height)
        return Receipted(question.id, stage.ledger.anchor(), stage.ledger.proof(old[0], [0]))

    with pytest.MonkeyPatch.context() as patch:
        async with stage.client(stage.registered("alice"), patience=1.0, first=FIRST) as client:
            patch.setattr(kept_sequences, "MAX_SEQUENCES", 0)
            stage[FIRST].lie = replay
            with pytest.raises(PutOff) as caught:
                await client.publish("notes", "one", partition=0)
            assert caught.value.height > old[0]


@on_stage_with(HASTY)
async def test_a_batch_that_brokers_gave_up_is_sent_unchanged_and_never_signed_anew_before_it_has_expired(
    stage: Stage,
) -> None:
    """The first batch is lost on its way again and again, so that the second one is ordered too early each time."""
    lost = 3

    def censor(question: Question) -> bool:
        nonlocal lost
        if isinstance(question, Submit) and b"one" in question.batch and lost:
            lost -= 1
            return True
        return False

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        for broker in stage.brokers:
            broker.deaf = censor
        receipts = await asyncio.gather(
            *(client.publish("notes", text, partition=0) for text in ("one", "two"))
        )
    assert [receipt.offset for receipt in receipts] == [0, 1]
    assert lost == 0
    assert len({body for broker in stage.brokers for body in broker.batches}) == 2
    assert published(stage) == [b"one", b"two"]


@on_stage
async def test_a_batch_is_valid_for_as_long_as_its_receipt_is_waited_for_and_not_much_longer(
    stage: Stage,
) -> None:
    alice = stage.registered("alice")

    async def given(patience: float | None) -> int:
        async with stage.client(alice, patience=patience, first=FIRST) as client:
            await client.publish("notes", "one", partition=0)
            header = msgspec.msgpack.decode(stage[FIRST].batches[-1], type=Batch).header
            return header.not_after - stage.ledger.height

    for patience in (None, 30.0):
        assert 500 < await given(patience) <= sequences.VALID
    assert 10 * 500 < await given(500.0) < 10_000


@on_stage
async def test_a_client_that_has_heard_nothing_for_long_signs_for_the_heights_that_may_have_passed(
    stage: Stage,
) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        client._quorum._heard = asyncio.get_running_loop().time() - 200
        stage.ledger.wait(sequences.VALID + 100)
        await client.publish("notes", "one", partition=0)
        assert len(stage[FIRST].batches) == 1  # it has not expired


@on_stage
async def test_a_refusal_uses_its_sequence_and_the_line_goes_on(stage: Stage) -> None:
    alice = stage.registered("alice", role="clerk")
    stage.ledger.do(ADMIN, CreateTopic("orders", 1, Policy(), 'role == "nurse"', ""))
    async with stage.client(alice) as client:
        with pytest.raises(PermissionDenied) as caught:
            await client.publish("orders", "one")
        assert caught.value.rule == 'role == "nurse"'
        stage.ledger.do(ADMIN, AlterClient("alice", sorted_pairs({"role": "nurse"}), ()))
        receipt = await client.publish("orders", "two")
        assert receipt.offset == 0
    assert len(set(sessions(stage[FIRST].batches))) == 1
    assert published(stage, "orders", 1) == [b"two"]


@on_stage
async def test_an_attribute_that_no_rule_can_name_or_compare_is_refused_before_it_is_sent(
    stage: Stage,
) -> None:
    async with stage.client(stage.registered("alice")) as client:
        for attributes in ({"not": 1}, {"In": "x"}, {"level": 2**63}, {"role": "\udcff"}, {"a b": 1}):
            (name,) = attributes
            with pytest.raises(
                InvalidMessage, match=f"^('{name}' cannot be the name|Attribute '{name}' must be)"
            ):
                await client.alter_client("alice", set=attributes)
            with pytest.raises(InvalidMessage, match=f"'{name}'"):
                await client.register_client("bob", bytes(32), attributes, proof=bytes(64))
    assert stage[FIRST].batches == []


@on_stage
async def test_who_is_not_registered_is_told_so_and_may_publish_once_it_is(stage: Stage) -> None:
    mallory = stage.known(actor("mallory"))
    async with stage.client(mallory) as client:
        with pytest.raises(UnknownClient):
            await client.publish("notes", "one", partition=0)
        stage.registered("mallory")
        assert (await client.publish("notes", "two", partition=0)).offset == 0


@on_stage
async def test_a_session_that_somebody_else_uses_is_an_error(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice) as client:
        await client.publish("notes", "one", partition=0)
        line = client._sequence(await client._topics.record("notes"), 0)
        line._next = 0
        with pytest.raises(SequenceReused):
            await client.publish("notes", "two", partition=0)


@on_stage
async def test_what_does_not_exist_is_refused(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        with pytest.raises(UnknownTopic):
            await client.publish("nowhere", "one")
        with pytest.raises(UnknownTopic):
            await client.publish("nowhere", "one", partition=0)
        with pytest.raises(UnknownPartition):
            await client.publish("notes", "one", partition=3)


@on_stage
async def test_what_no_broker_would_take_is_refused_before_it_is_sent(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        with pytest.raises(InvalidRule) as caught:
            await client.publish("notes", "one", rule="role ==")
        assert caught.value.position == 7
        with pytest.raises(InvalidMessage, match="'0 bad'"):
            await client.publish("notes", "one", tags={"0 bad": 1})
        with pytest.raises(Oversized, match="at most 1047552 can be published"):
            await client.publish("notes", bytes(1024 * 1024))
        with pytest.raises(Malformed):
            await client.create_topic("no spaces allowed")
        assert (await client.publish("notes", bytes(1_047_000))).offset == 0
    assert len(stage[FIRST].batches) == 1


# -- publishers ----------------------------------------------------------------------------------------------------------


@on_stage
async def test_messages_are_gathered_into_batches_in_their_order(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        async with client.publisher("notes", batch_size=100, linger=5) as publisher:
            pending = [await publisher.send(str(number), partition=0) for number in range(250)]
            receipts = []
            await publisher.flush()
            receipts = [await one for one in pending]
        assert [receipt.offset for receipt in receipts] == list(range(250))
        assert receipts[249].proof().offset == 249
    assert len(stage[FIRST].batches) == 3
    assert published(stage) == [str(number).encode() for number in range(250)]


@on_stage
async def test_a_batch_is_sent_when_it_has_lingered(stage: Stage) -> None:
    async with (
        stage.client(stage.registered("alice")) as client,
        client.publisher("notes", linger=0) as publisher,
    ):
        pending = await publisher.send("one", partition=0)
        assert (await pending).offset == 0


@on_stage
async def test_a_batch_stays_within_its_bytes(stage: Stage) -> None:
    async with (
        stage.client(stage.registered("alice")) as client,
        client.publisher("notes", max_bytes=1_000, linger=5) as publisher,
    ):
        for _ in range(10):
            await publisher.send(bytes(400), partition=0)
    assert len(stage[FIRST].batches) == 5


@on_stage
async def test_sending_waits_while_too_much_is_in_flight(stage: Stage) -> None:
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].deaf = lambda question: isinstance(question, Submit)
        async with client.publisher("notes", batch_size=1, in_flight=2) as publisher:
            for text in ("one", "two"):
                await publisher.send(text, partition=0)
            third = asyncio.create_task(publisher.send("three", partition=0))
            await stage[FIRST].sent(2)
            assert not third.done()
            stage[FIRST].deaf = lambda _: False
            stage[FIRST].cut()
            await third
    assert published(stage) == [b"one", b"two", b"three"]


@on_stage
async def test_messages_with_a_key_stay_together_and_others_take_turns(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        async with client.publisher("notes", batch_size=1) as publisher:
            keyed = [await publisher.send("x", key="patient-7") for _ in range(5)]
            others = [await publisher.send("x") for _ in range(6)]
            assert len({(await one).partition for one in keyed}) == 1
            turns = [(await one).partition for one in others]
            assert sorted(turns[:3]) == [0, 1, 2]  # whichever comes first
            assert turns[:3] == turns[3:]
        assert (await client.publish("notes", "x", key="patient-7")).partition == (await keyed[0]).partition


@on_stage
async def test_a_failure_that_nobody_waited_for_is_raised_at_the_end(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        with pytest.raises(UnknownPartition):
            async with client.publisher("notes") as publisher:
                await publisher.send("one", partition=9)
        async with client.publisher("notes") as publisher:
            pending = await publisher.send("one", partition=9)
            with pytest.raises(UnknownPartition):
                await pending
        with pytest.raises(ClientClosed):
            await publisher.send("two")


@on_stage
async def test_what_was_gathered_goes_out_even_if_its_publisher_is_left_by_an_error(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        publisher = client.publisher("notes", linger=60)
        await publisher.__aenter__()
        pending = await publisher.send("one", partition=0)
        await publisher.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        assert (await pending).offset == 0


@on_stage
async def test_settings_that_make_no_sense_are_refused(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        for options in ({"batch_size": 0}, {"max_bytes": 2**30}, {"in_flight": 0}, {"linger": -1}):
            with pytest.raises(ValueError, match=next(iter(options))):
                client.publisher("notes", **options)


@on_stage
async def test_more_rules_than_a_batch_may_have_go_in_several(stage: Stage) -> None:
    rules = [f"level == {number}" for number in range(MAX_RULES + 6)]
    async with (
        stage.client(stage.registered("alice"), first=FIRST) as client,
        client.publisher("notes", linger=5) as publisher,
    ):
        for rule in rules:
            await publisher.send(rule, rule=rule, partition=0)
    assert published(stage) == [rule.encode() for rule in rules]


@on_stage
async def test_what_brokers_say_of_a_client_now_does_not_get_its_open_batches_signed_anew(
    stage: Stage,
) -> None:
    """Two brokers call it unknown; one of the open batches was applied all the same, so none may be sent again as new."""

    def unknown(question: Question, answer: Answer) -> Answer:
        return (
            Failure(question.id, UnknownClient.code, "nobody", ()) if isinstance(question, Submit) else answer
        )

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        for broker in stage.brokers:
            broker.lie = unknown
        for one in await asyncio.gather(
            *(client.publish("notes", text, partition=0) for text in ("one", "two")), return_exceptions=True
        ):
            assert isinstance(one, UnknownClient)
            assert "may have been applied" in one.__notes__[0]
    sent = {body for broker in stage.brokers for body in broker.batches}
    assert len(set(sessions(list(sent)))) == 1
    assert len(sent) == 2


# Of three partitions each goes to the first; of two, one goes to the first and one to the second.
MOVING = [
    key
    for key in map(str, range(100))
    if partition_of(key.encode(), 3) == 0 and partition_of(key.encode(), 2) == 1
][:2]
LAST = next(key for key in map(str, count()) if partition_of(key.encode(), 3) == 2)


@on_stage
async def test_a_key_stays_in_one_partition_of_a_topic_that_was_made_again_with_fewer(stage: Stage) -> None:
    """The client learns of it by a refusal; what it remembered would serve for a minute, and send keys elsewhere."""
    async with stage.client(stage.registered("alice")) as client:
        assert (await client.publish("notes", "before", key=MOVING[0])).partition == 0
        stage.remake(2)
        with pytest.raises(TopicReplaced):
            await client.publish("notes", "for the old one", partition=2)
        for key in MOVING:
            assert (await client.publish("notes", "after", key=key)).partition == 1


@on_stage
async def test_a_key_goes_to_its_partition_also_if_brokers_do_not_know_the_client_yet(stage: Stage) -> None:
    """They are behind those that registered it, and cannot say how many partitions there are."""
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        for broker in stage.brokers:
            broker.lie = behind_for(2)
        for _ in range(2):
            assert (await client.publish("notes", "after", key=LAST)).partition == 2


@on_stage_with(replace(TIMEOUTS, freshness=200))
async def test_a_client_that_stays_unknown_is_told_so_also_if_it_names_no_partition(stage: Stage) -> None:
    async with stage.client(stage.known(actor("mallory")), first=FIRST) as client:
        for broker in stage.brokers:
            broker.lie = behind_for(1_000_000)
        with pytest.raises(UnknownClient):
            await asyncio.wait_for(client.publish("notes", "one", key="k"), 10)


def behind_for(questions: int) -> Lie:
    """The client is unknown in the answers to so many questions about the state."""
    left = iter(range(questions))

    def unknown(question: Question, answer: Answer) -> Answer:
        if isinstance(question, Prove) and next(left, None) is not None:
            return Failure(question.id, UnknownClient.code, "key", ())
        return answer

    return unknown


@on_stage
async def test_a_message_for_a_topic_that_was_made_again_is_not_sent_again_by_itself(stage: Stage) -> None:
    async with stage.client(stage.registered("alice")) as client:
        await client.publish("notes", "before", key=LAST)
        stage.remake(2)
        with pytest.raises(TopicReplaced, match="deleted and made again"):
            await client.publish("notes", "after", key=LAST)
        assert published(stage, partitions=2).count(b"after") == 0
        assert (await client.publish("notes", "after", key=LAST)).partition == partition_of(LAST.encode(), 2)
    assert published(stage, partitions=2).count(b"after") == 1


@on_stage
async def test_a_publisher_forgets_the_topic_with_the_first_refusal(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice) as client, client.publisher("notes", batch_size=1) as publisher:
        await (await publisher.send("before", key=MOVING[0]))
        stage.remake(2)
        with pytest.raises(TopicReplaced):
            await (await publisher.send("for the old one", key=LAST))
        for key in MOVING:
            assert (await (await publisher.send("after", key=key))).partition == 1


@on_stage
async def test_the_record_of_a_topic_is_asked_for_once_until_a_refusal_says_that_it_is_old(
    stage: Stage,
) -> None:
    async with stage.client(stage.registered("alice")) as client:
        writer = client.writer("notes", "query")
        await client.publish("notes", "one", partition=0)
        asked = stage.asked("Prove")
        await client.publish("notes", "two", partition=1)
        await client.stage("notes", 0, [note("three")], writer, 1)
        async with client.publisher("notes", batch_size=1) as publisher:
            await (await publisher.send("four", partition=2))
        assert stage.asked("Prove") == asked
        stage.remake(1)
        with pytest.raises(TopicReplaced):
            await client.stage("notes", 2, [note("five")], writer, 1)
        assert await client.partitions("notes") == 1
        stage.ledger.do(ADMIN, DeleteTopic("notes"))
        with pytest.raises(UnknownTopic):
            await client.publish("notes", "six", partition=0)
        assert stage.asked("Prove") > asked
        with pytest.raises(UnknownTopic):
            await client.partitions("notes")
