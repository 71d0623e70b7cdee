"""Any operation and any table of the application through the client, and files that prove both to third parties."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, actor, make_genesis
from tests.client.ledger import Ledger, note
from tests.client.stage import Lie, Stage, on_stage

from parley.application.application import Application
from parley.application.keeping import RECEIPTS
from parley.application.operations import Operation
from parley.applications import DATA_SHARD
from parley.client.client import Client
from parley.client.connection import A, Connection
from parley.client.contexts import Context
from parley.client.errors import ContextError, Malformed, TopicExists, UnknownTopic
from parley.client.messages import OperationReceipt
from parley.client.proofs import EntryProof, OperationProof, decode_proof, encode_proof
from parley.ledger import state_map
from parley.ledger.proofs import ProofError, StateEntry, Trust
from parley.ledger.state_map import StateProof
from parley.model.batches import leaves_of
from parley.model.receipts import Done
from parley.modules.publishing.proof import MAX_PROOF, PublicationProof, check_publication
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.subscriptions.receipts import Subscribed
from parley.modules.subscriptions.tables import SUBSCRIPTIONS
from parley.modules.topics.operations import CreateTopic, Policy
from parley.modules.topics.tables import GROWING, HEADS, TOPICS, TopicRecord
from parley.net.messages import MAX_KEYS, Answer, Failure, Listed, ListKeys, Prove, Proven, Question

FIRST, SECOND = "broker-hospital-a", "broker-hospital-b"


def creation(name: str) -> CreateTopic:
    return CreateTopic(name, 2, Policy(), "", 'role == "nurse"')


# -- through the client ------------------------------------------------------------------------------------------------


@on_stage
async def test_an_operation_gives_its_certified_outcome(stage: Stage) -> None:
    async with stage.client(ADMIN) as client:
        receipt = await client.operate(creation("wards"))
        assert (receipt.outcome, receipt.height, receipt.verified) == (
            Done(),
            stage.ledger.height,
            "certified",
        )
        assert receipt.given(Subscribed) is None
        with pytest.raises(TopicExists, match="there is a topic wards already"):
            await client.operate(creation("wards"))
    async with stage.client(stage.registered("alice")) as client:
        subscribed = await client.operate(Subscribe("notes", "true", await client.topic_id("notes")))
        outcome = subscribed.given(Subscribed)
        assert outcome is not None
        assert [start.partition for start in outcome.partitions] == [0, 1, 2]
        assert subscribed.client == "hospital-a/alice"


class Unheard(Operation, frozen=True):
    """Of no module."""

    text: str


@on_stage
async def test_what_is_no_operation_of_the_application_is_not_sent(stage: Stage) -> None:
    async with stage.client(ADMIN) as client:
        with pytest.raises(Malformed, match="not an operation"):
            await client.operate(Unheard("x"))
        with pytest.raises(Malformed):
            await client.operate(creation("no topic is called this"))
    assert not any(broker.batches for broker in stage.brokers)


@on_stage
async def test_entries_are_read_by_their_table(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice) as client:
        topic = await client.entry(TOPICS, "notes")
        assert topic is not None
        assert (topic.name, topic.partitions) == ("notes", 3)
        with pytest.raises(UnknownTopic):
            await client.entry(TOPICS, "nothing")
        assert await client.entry(SUBSCRIPTIONS, "notes", bytes(32), alice.key) is None
        heads = await client.entries(HEADS, "notes")
        assert [key for key, _ in heads] == [("notes", 0), ("notes", 1), ("notes", 2)]
        assert await client.entries(HEADS, "nothing") == []
        me = await client.entry(CLIENTS, alice.key)
        assert me is not None
        assert me.name == "alice"


@on_stage
async def test_a_name_that_no_topic_can_have_is_unknown_without_asking(stage: Stage) -> None:
    """A broker would refuse to show the key that a zero byte makes."""
    asked: list[Question] = []

    def listen(question: Question, answer: Answer) -> Answer:
        asked.append(question)
        return answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = listen
        for name in ("notes\0", "\0", "", "notes "):
            with pytest.raises(UnknownTopic):
                await client.topic(name)
        assert asked == []


@on_stage
async def test_a_list_is_joined_and_nothing_in_it_can_be_invented(stage: Stage) -> None:
    def invent(_: Question, answer: Answer) -> Answer:
        garbage = (b"head/notes\0\0", HEADS.key("notes", 7))
        return replace(answer, keys=garbage) if isinstance(answer, Listed) else answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = invent
        assert [key for key, _ in await client.entries(HEADS, "notes")] == [("notes", at) for at in range(3)]
        # Honest brokers would refuse to prove such a key, and the keys of all others with it.
        assert {lie.broker for lie in client.misbehaviour} == {FIRST}


@on_stage
async def test_a_key_that_is_not_shown_does_not_hide_the_others_of_a_list(stage: Stage) -> None:
    """A liar may list what does not exist, or what is hidden: brokers refuse to prove it, and all that is asked with it."""

    def invent(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Listed):
            return answer
        return replace(answer, keys=(TOPICS.key("a"), *answer.keys, TOPICS.key("z")))

    stage.ledger.topic("wards")
    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = invent
        assert [record.name for _, record in await client.entries(TOPICS)] == ["notes", "wards"]


@on_stage
async def test_a_broker_that_lists_much_that_is_not_shown_is_left(stage: Stage) -> None:
    """Each such key is asked for alone, of several brokers: a long list of them would never be done."""
    inventions = tuple(TOPICS.key(f"invented-{number:04}") for number in range(MAX_KEYS))

    def invent(_: Question, answer: Answer) -> Answer:
        return replace(answer, keys=inventions) if isinstance(answer, Listed) else answer

    async with stage.client(stage.registered("alice"), first=FIRST) as client:
        stage[FIRST].lie = invent
        assert [record.name for _, record in await client.entries(TOPICS)] == ["notes"]
        assert [doubt.broker for doubt in client.doubts] == [FIRST]
    assert sum(broker.asked["Prove"] for broker in stage.brokers) < len(inventions)


@on_stage
async def test_brokers_that_are_behind_do_not_deny_a_topic(stage: Stage) -> None:
    """The refusal has no proof, but it names the height: f+1 brokers that have not seen the topic yet prove nothing."""
    behind = stage.ledger.height

    def lag(question: Question, answer: Answer) -> Answer:
        if isinstance(question, Prove) and TOPICS.key("wards") in question.keys:
            return Failure.of(question.id, UnknownTopic(topic="wards", judged=behind))
        return answer

    async with stage.client(ADMIN, first=FIRST) as client:
        await client.operate(creation("wards"))
        stage[FIRST].lie = stage[SECOND].lie = lag
        assert await client.entry(TOPICS, "wards") is not None
    assert client.misbehaviour == ()


def denying_lists(behind: int) -> Lie:
    """A broker that has come to that height, and knows of no topic there."""

    def lag(question: Question, answer: Answer) -> Answer:
        if isinstance(question, ListKeys):
            return Failure.of(question.id, UnknownTopic(topic="wards", judged=behind))
        return answer

    return lag


@on_stage
async def test_brokers_that_are_behind_do_not_deny_the_list_of_a_topic(stage: Stage) -> None:
    lag = denying_lists(stage.ledger.height)
    async with stage.client(ADMIN, first=FIRST) as client:
        await client.operate(creation("wards"))
        stage[FIRST].lie = stage[SECOND].lie = lag
        assert [key for key, _ in await client.entries(HEADS, "wards")] == [("wards", 0), ("wards", 1)]
    assert client.misbehaviour == ()


@on_stage
async def test_one_liar_makes_no_list_while_the_others_are_behind(stage: Stage) -> None:
    lag = denying_lists(stage.ledger.height)
    async with stage.client(ADMIN, first=FIRST) as client:
        await client.operate(creation("wards"))
        for broker in stage.brokers:
            broker.lie = lag
        stage[FIRST].lie = lambda _, answer: (
            replace(answer, keys=(), more=False) if isinstance(answer, Listed) else answer
        )
        with pytest.raises(UnknownTopic):
            await client.entries(HEADS, "wards")


@on_stage
async def test_a_topic_is_denied_also_if_blocks_are_certified_while_the_answer_comes(stage: Stage) -> None:
    """With a slow connection and a busy network that is so each time."""
    ask = Connection.ask

    async def slow(connection: Connection, question: Question, kind: type[A]) -> A:
        try:
            return await ask(connection, question, kind)
        finally:
            stage.apply()
            client._quorum.saw(stage.ledger.height)  # as a subscription does

    async with asyncio.timeout(20), stage.client(ADMIN, patience=None, first=FIRST) as client:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Connection, "ask", slow)
            with pytest.raises(UnknownTopic):
                await client.entry(TOPICS, "wards")


@on_stage
async def test_proof_files_are_written_at_every_level(stage: Stage) -> None:
    trust = stage.ledger.trust
    async with stage.client(ADMIN, verify="quorum") as client:
        receipt = await client.operate(creation("wards"))
        assert receipt.verified == "quorum"
        assert receipt.proof().check(trust, DATA_SHARD)[0] == creation("wards")
        record = (await client.entry_proof(TOPICS, "wards")).check(trust, DATA_SHARD)
        assert isinstance(record, TopicRecord)
        assert record.subscribe == 'role == "nurse"'
        absent = await client.entry_proof(SUBSCRIPTIONS, "notes", bytes(32), ADMIN.key)
        assert absent.check(trust, DATA_SHARD) is None


@on_stage
async def test_only_what_is_certified_is_proved_to_others(stage: Stage) -> None:
    """Whatever the level: a client that compares answers must not hand on what nobody certified."""

    def forge(_: Question, answer: Answer) -> Answer:
        if not isinstance(answer, Proven):
            return answer
        return replace(answer, entries=tuple(replace(entry, value=None) for entry in answer.entries))

    async with stage.client(stage.registered("alice"), first=FIRST, verify="quorum") as client:
        stage[FIRST].lie = stage[SECOND].lie = forge
        proof = await client.entry_proof(TOPICS, "notes")
        assert proof.found
        assert {lie.broker for lie in client.misbehaviour} == {FIRST, SECOND}


def test_a_network_of_another_version_is_refused_at_once() -> None:
    stage_genesis = make_genesis()
    context = Context(replace(stage_genesis, application=DATA_SHARD.version + 1), None, {})  # type: ignore[arg-type]
    for application in (None, Application("toy", DATA_SHARD.version, DATA_SHARD.modules[1:])):
        with pytest.raises(ContextError, match="install a release of Parley with version"):
            Client(context, application=application)


# -- proof files -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    made = Ledger()
    alice = made.client("alice")
    made.topic("notes")
    made.publish(alice, "notes", note("one"))
    return made


def operation_proof(ledger: Ledger) -> OperationProof:
    signed = ledger.control(ADMIN, creation(f"wards/{ledger.height}"))
    other = ledger.publication(actor("alice"), "notes", note("two"))
    first, _ = ledger.order(signed, other)
    batch = ledger.body(signed.digest)
    proof = ledger.proof(ledger.height, [0])
    operation = DATA_SHARD.decode_operation(batch.messages[0].payload)
    return OperationProof.of(
        (first, proof, ledger.anchor()), (batch.header, batch.messages[0], batch.signature), operation
    )


def entry_proof(ledger: Ledger, name: str = "notes") -> EntryProof:
    return EntryProof.of(TOPICS, ledger.entry(TOPICS.key(name)), ledger.anchor())


def check(data: bytes, trust: Trust) -> None:
    proof = decode_proof(data)
    if isinstance(proof, PublicationProof):
        check_publication(proof, trust)
    else:
        proof.check(trust, DATA_SHARD)


def test_proofs_hold_with_the_genesis_file_alone(ledger: Ledger, tmp_path: Path) -> None:
    made = operation_proof(ledger)
    assert (made.operation, made.code, made.height) == ("create_topic", "Ok", ledger.height)
    operation, receipt = made.check(ledger.trust, DATA_SHARD)
    assert operation == creation(f"wards/{ledger.height - 1}")
    assert receipt.is_done
    entry = entry_proof(ledger)
    assert (entry.table, entry.key, entry.found, entry.height) == ("topic", ("notes",), True, ledger.height)
    assert entry.check(ledger.trust, DATA_SHARD) == ledger.record(TOPICS, "notes")
    assert entry_proof(ledger, "nothing").check(ledger.trust, DATA_SHARD) is None
    for proof in (made, entry):
        assert decode_proof(encode_proof(proof)) == proof
    saved = tmp_path / "entry.json"
    entry.save(saved)
    assert decode_proof(saved.read_bytes()) == entry
    assert saved.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        entry.save(saved)


def test_bytes_in_keys_are_shown_as_digits(ledger: Ledger) -> None:
    key = actor("alice").key
    proof = EntryProof.of(CLIENTS, ledger.entry(CLIENTS.key(key)), ledger.anchor())
    assert proof.key == (key.hex(),)
    proof.check(ledger.trust, DATA_SHARD)


@pytest.mark.parametrize("kind", ["operation", "entry"])
def test_no_single_byte_can_be_changed(kind: str, ledger: Ledger) -> None:
    trust = ledger.trust
    data = bytearray(encode_proof(operation_proof(ledger) if kind == "operation" else entry_proof(ledger)))
    check(bytes(data), trust)
    for at in range(len(data)):
        for flip in (0x01, 0x20, 0x80):
            data[at] ^= flip
            with pytest.raises(ProofError):
                check(bytes(data), trust)
            data[at] ^= flip


def test_a_proof_is_worth_nothing_in_another_network(ledger: Ledger) -> None:
    other = Trust(replace(make_genesis(), network="other"), DATA_SHARD.decode_leaf)
    for proof in (operation_proof(ledger), entry_proof(ledger)):
        with pytest.raises(ProofError, match="another network"):
            proof.check(other, DATA_SHARD)


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "delete_topic"},
        {"client": "hospital-a/alice"},
        {"code": "Duplicate"},
        {"height": 1},
        {"time": 1},
        {"signature": bytes(64)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_nothing_of_an_operation_is_taken_at_its_word(change: dict[str, object], ledger: Ledger) -> None:
    with pytest.raises(ProofError):
        replace(operation_proof(ledger), **change).check(ledger.trust, DATA_SHARD)


@pytest.mark.parametrize(
    "change",
    [{"table": "head"}, {"key": ("other",)}, {"found": False}, {"height": 1}, {"time": 1}],
    ids=lambda change: next(iter(change)),
)
def test_nothing_of_an_entry_is_taken_at_its_word(change: dict[str, object], ledger: Ledger) -> None:
    with pytest.raises(ProofError, match="do not agree with what the rest"):
        replace(entry_proof(ledger), **change).check(ledger.trust, DATA_SHARD)


def test_an_entry_of_no_table_proves_nothing(ledger: Ledger) -> None:
    proof = replace(entry_proof(ledger), entry=ledger.entry(b"unheard/of"), found=False)
    with pytest.raises(ProofError, match="a table that this network does not have"):
        proof.check(ledger.trust, DATA_SHARD)
    proof = replace(entry_proof(ledger), entry=ledger.entry(b"topic/cut"), found=False)
    with pytest.raises(ProofError, match="cannot be read"):
        proof.check(ledger.trust, DATA_SHARD)


def test_a_count_of_another_length_proves_nothing(ledger: Ledger) -> None:
    """Only liars certify one; a number of thousands of digits could not be shown either."""

    def counted(value: bytes) -> EntryProof:
        """In a state with this entry alone."""
        key = GROWING.key("hospital-a", "notes")
        header = replace(ledger.anchor().header, state_root=state_map.update({}, {key: value})[0])
        entry = StateEntry(key, value, StateProof((), None))
        return EntryProof.of(GROWING, entry, ledger.certify(header))

    assert counted(bytes([0] * 7 + [3])).check(ledger.trust, DATA_SHARD) == 3
    for size in (0, 7, 9, 2_000):
        with pytest.raises(ProofError, match="cannot be read: it is not as long"):
            counted(b"\x01" * size).check(ledger.trust, DATA_SHARD)


def test_that_an_index_is_not_in_the_state_proves_nothing(ledger: Ledger) -> None:
    """A batch that has its receipt must not be proved to have none."""
    digest = ledger.order_one(ledger.publication(actor("alice"), "notes", note("three"))).digest
    proof = EntryProof.of(RECEIPTS, ledger.entry(RECEIPTS.key(digest)), ledger.anchor())
    assert not proof.found
    with pytest.raises(ProofError, match="no part of the certified state"):
        proof.check(ledger.trust, DATA_SHARD)


def test_a_publication_that_reads_like_an_operation_is_none(ledger: Ledger) -> None:
    made = operation_proof(ledger)
    said = replace(note("x"), payload=made.message.payload)
    signed = ledger.publication(actor("alice"), "notes", said)
    receipt = ledger.order_one(signed)
    batch = ledger.body(signed.digest)
    assert leaves_of(batch.messages) == [said.leaf()]
    forged = OperationProof.of(
        (receipt, ledger.proof(ledger.height, [0]), ledger.anchor()),
        (batch.header, said, batch.signature),
        DATA_SHARD.decode_operation(said.payload),
    )
    with pytest.raises(ProofError, match="not that of one operation"):
        forged.check(ledger.trust, DATA_SHARD)


def test_a_proof_of_another_operation_is_noticed(ledger: Ledger) -> None:
    one, other = operation_proof(ledger), operation_proof(ledger)
    with pytest.raises(ProofError, match="not the one that the receipt names"):
        replace(one, message=other.message).check(ledger.trust, DATA_SHARD)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"format":"parley entry proof 1"}', b" " * (MAX_PROOF + 1)]
)
def test_what_is_no_proof_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ProofError):
        decode_proof(data)


def test_a_receipt_hides_how_it_was_proved(ledger: Ledger) -> None:
    proof = operation_proof(ledger)
    operation, receipt = proof.check(ledger.trust, DATA_SHARD)
    shown = OperationReceipt(operation, 1, 2, receipt.client, "certified", receipt, lambda: proof)
    assert shown.proof() is proof
    assert "BlockProof" not in repr(shown)
