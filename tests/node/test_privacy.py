"""What each kind of client is told of the interests of another one, by every question that there is.

Dora subscribes to `ward` with a constraint that the others guess. The questions are derived from the union of
messages and from the declared tables and operations, so that a new one without a case fails.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import pytest
from tests.node.guessing import Guesses
from tests.node.network import LocalNetwork
from tests.node.raw_client import RawClient, authenticated, client, id_of, message, reach, registration

from parley.application.operations import Operation
from parley.application.tables import encode_value
from parley.applications import DATA_SHARD
from parley.crypto.encoding import u32, u64
from parley.ledger import layout
from parley.model.advisories import Advisory, Standpoint, sign_advisory
from parley.model.batches import STAGED, Message
from parley.model.codec import DECODE_ERRORS
from parley.model.credentials import Identity
from parley.model.expressions import parse_constraint
from parley.model.names import Position
from parley.model.receipts import Done
from parley.model.refusals import PermissionDenied
from parley.modules.advertisements.operations import Advertise
from parley.modules.registry.operations import (
    AlterClient,
    GrantRight,
    RegisterClient,
    RevokeClient,
    RevokeRight,
)
from parley.modules.staging.operations import CommitStage
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Subscribed
from parley.modules.subscriptions.tables import ORDER_HEADS, ORDER_LEAVES, SUBSCRIPTIONS, OrderHead
from parley.modules.topics.operations import AlterTopic, CreateTopic, DeleteTopic, Policy
from parley.net import messages as net

TOPIC = "ward"
INTEREST = 'diagnosis == "needle-in-the-haystack"'
DECOY = 'diagnosis == "that-nobody-asks-for"'
CLOSING = "ward/closing"  # she subscribes to it as well, and it may be deleted
MATCHED = 2_311  # a number that nothing else has, and neither have those after it:
NUMBERS = range(MATCHED, MATCHED + 90)  # how many have matched, some of them while the questions are asked
OTHERS = 100  # messages of the topic that do not match, so that offsets are other numbers
AUDITED = (net.ReadBlocks, net.ReadBodies, net.ReadEvidence)

KINDS = {
    "publishes only": ("beta", "writer"),
    "subscribes to something else": ("alpha", "reader"),
    "of another organisation": ("beta", "reader"),
    "lapsed": ("alpha", "former"),
    "revoked": ("beta", "former"),
    "not registered": ("beta", "stranger"),
    "administrator of its organisation and of the topic's": ("alpha", "admin"),
    "administrator of another organisation": ("beta", "admin"),
    "auditor": ("gamma", "reader"),
    "administrator of an auditing organisation": ("gamma", "admin"),
}
NAMES = ("dora", "writer", "reader", "former", "stranger", "leaver")


@dataclass(frozen=True)
class Scene:
    network: LocalNetwork
    dora: Identity
    incarnation: Position

    @cached_property
    def traces(self) -> dict[bytes, bytes]:
        """What tells of her interest, or that it is hers, as it is and as entries are shown to people."""
        interest, key = parse_constraint(INTEREST), self.dora.credential.key
        height, position = self.incarnation
        texts = (interest.text, interest.id.hex(), key.hex(), "dora")
        parts = (u64(height) + u32(position), *map(u64, NUMBERS))  # of keys
        found = (interest.id, key, *parts, *(text.encode() for text in texts))
        return {form: one for one in found for form in (one, layout.name(one).encode())}

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(map(re.escape, self.traces)))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    network = LocalNetwork(
        tmp_path_factory.mktemp("privacy") / "net",
        organisations=("alpha", "beta", "gamma"),
        clients=NAMES,
        auditors=("gamma",),
        settings="[limits]\nrequests_per_second = 100000\n",
    )
    with network:
        network.start()
        yield asyncio.run(furnish(network))


async def furnish(network: LocalNetwork) -> Scene:
    for organisation, names in (
        ("alpha", ("dora", "reader", "former", "leaver")),
        ("beta", ("writer", "reader", "former")),
        ("gamma", ("reader",)),
    ):
        async with client(network, "alpha-1", organisation, "admin") as admin:
            for name in names:
                known = registration(network.identity(organisation, name), role=name)
                assert (await admin.operate(known)).outcome == Done()
            if organisation == "gamma":
                assert (await admin.operate(GrantRight("reader", "auditor"))).outcome == Done()
            if organisation == "alpha":
                for topic in (TOPIC, CLOSING):
                    made = CreateTopic(topic, 1, Policy(), "", 'not role == "writer"')
                    assert (await admin.operate(made)).outcome == Done()
    async with (
        client(network, "alpha-1", "alpha", "dora") as dora,
        client(network, "alpha-1", "alpha", "former") as former,
        client(network, "alpha-1", "alpha", "reader") as reader,
        client(network, "alpha-1", "alpha", "leaver") as leaver,
        client(network, "alpha-1", "beta", "writer") as writer,
        client(network, "alpha-1", "beta", "admin") as admin,
    ):
        _, start = await dora.subscribe(TOPIC, INTEREST)
        await dora.subscribe(CLOSING, INTEREST)
        await former.subscribe(TOPIC, INTEREST)
        await leaver.subscribe(TOPIC, INTEREST)
        await reader.subscribe(TOPIC, "a = 1")
        assert (await former.operate(Unsubscribe(TOPIC, INTEREST, former.topic_id(TOPIC)))).outcome == Done()
        assert (await admin.operate(RevokeClient("former"))).outcome == Done()
        await writer.submit(writer.publication(TOPIC, *(message(b"", a=1) for _ in range(OTHERS))))
        for first in range(0, MATCHED, 800):
            some = [needle() for _ in range(first, min(MATCHED, first + 800))]
            await writer.submit(writer.publication(TOPIC, *some))
        key = ORDER_HEADS.key(TOPIC, 0, parse_constraint(INTEREST).id)
        shown = await dora.ask(net.Prove(dora.new_id(), (key,)), net.Proven)
        assert dora.record(ORDER_HEADS, shown.entries[0], key, shown.anchor).next_ps == MATCHED  # type: ignore[union-attr]
        return Scene(network, network.identity("alpha", "dora"), start.incarnation)


def needle() -> Message:
    return message(b"", diagnosis="needle-in-the-haystack")


# -- every question ------------------------------------------------------------------------------------------------------

Asked = Callable[[Scene, RawClient, str], list[net.Question]]  # with a constraint that is guessed


def guesses(scene: Scene, guess: str) -> Guesses:
    """What somebody who guesses would put into a key."""
    key = scene.dora.credential.key
    return Guesses(
        texts=(TOPIC, "alpha", "dora", "subscriptions"),
        hashes=(parse_constraint(guess).id, key),
        numbers=(0, 1),
        larges=(0, MATCHED),
        positions=(scene.incarnation,),
        rests=(b"", key),
    )


def prove(scene: Scene, asker: RawClient, guess: str) -> list[net.Question]:
    return [net.Prove(asker.new_id(), (key,)) for key in guesses(scene, guess).entries()]


def list_keys(scene: Scene, asker: RawClient, guess: str) -> list[net.Question]:
    return [net.ListKeys(asker.new_id(), prefix, after) for prefix, after in guesses(scene, guess).lists()]


def open_streams(scene: Scene, asker: RawClient, guess: str) -> list[net.Question]:
    constraint = parse_constraint(guess).id
    incarnation, (height, position) = scene.incarnation, scene.incarnation
    return [
        net.OpenStream(asker.new_id(), TOPIC, constraint, (net.StreamPosition(0, began, ps),), 1_000)
        for began in (incarnation, (height, position + 1), (2**40, 0))
        for ps in (0, MATCHED)
    ]


def _id(scene: Scene) -> Position:
    return id_of(scene.network.genesis.chain, TOPIC)


Example = Callable[[Scene, str], Operation]  # that changes nothing for the questions that follow
OPERATIONS: dict[type[Operation], Example] = {
    RegisterClient: lambda scene, _: registration(scene.dora, role="dora"),
    AlterClient: lambda _, __: AlterClient("dora", (), ()),
    RevokeClient: lambda _, __: RevokeClient("leaver"),
    GrantRight: lambda _, __: GrantRight("dora", "auditor"),
    RevokeRight: lambda _, __: RevokeRight("dora", "auditor"),
    CreateTopic: lambda _, __: CreateTopic(TOPIC, 1, Policy(), "", ""),
    AlterTopic: lambda _, __: AlterTopic(TOPIC, None, None, None, None),
    DeleteTopic: lambda _, __: DeleteTopic(CLOSING),
    Subscribe: lambda scene, _: Subscribe(TOPIC, "b = 2", _id(scene)),
    Unsubscribe: lambda scene, guess: Unsubscribe(TOPIC, guess, _id(scene)),
    CommitStage: lambda scene, _: CommitStage(TOPIC, bytes(16), 0, (bytes(32),), topic_id=_id(scene)),
    Advertise: lambda _, __: Advertise(TOPIC, ""),
}


def submit(scene: Scene, asker: RawClient, guess: str) -> list[net.Question]:
    """An operation of each kind, and a message that matches in a batch of each kind."""
    operations = [asker.control(example(scene, guess)) for example in OPERATIONS.values()]
    batches = {kind: asker.batch(kind, TOPIC, 0, (needle(),)) for kind in DATA_SHARD.batch_kinds}
    staged, _ = batches[STAGED]
    commit = asker.control(CommitStage(TOPIC, asker._session, 0, (staged,), topic_id=_id(scene)))
    return [net.Submit(asker.new_id(), body) for _, body in (*operations, *batches.values(), commit)]


def advise(scene: Scene, asker: RawClient, _guess: str) -> list[net.Question]:
    credential = asker.identity.credential
    told = Advisory(
        credential, "query", "run", TOPIC, (Standpoint(0, 0, 1),), scene.network.genesis.start_time
    )
    data, signature = sign_advisory(told, asker.identity.key())
    return [net.Advise(asker.new_id(), data, signature)]


QUESTIONS: dict[type, Asked] = {
    net.Submit: submit,
    net.Fetch: lambda _, asker, __: [
        net.Fetch(asker.new_id(), TOPIC, one, 0, 1_000_000, 0) for one in (0, 1)
    ],
    net.OpenStream: open_streams,
    net.Credit: lambda _, __, ___: [net.Credit(9_999_999, 1)],
    net.CloseStream: lambda _, __, ___: [net.CloseStream(9_999_999)],
    net.Prove: prove,
    net.ListKeys: list_keys,
    net.StatusRequest: lambda _, asker, __: [net.StatusRequest(asker.new_id())],
    net.ReadBlocks: lambda _, asker, __: [net.ReadBlocks(asker.new_id(), 1, 8_000_000, bodies=True)],
    net.ReadBodies: lambda _, asker, __: [net.ReadBodies(asker.new_id(), (bytes(32),))],
    net.ReadEvidence: lambda _, asker, __: [net.ReadEvidence(asker.new_id(), 0)],
    net.Advise: advise,
    net.ReadHeader: lambda scene, asker, __: [
        net.ReadHeader(asker.new_id(), height) for height in (0, scene.incarnation[0])
    ],
}
UNANSWERED = (net.Credit, net.CloseStream)


def test_every_question_has_a_case() -> None:
    assert set(QUESTIONS) == set(net.EXCHANGES)


def test_every_operation_has_an_example() -> None:
    assert set(OPERATIONS) == set(DATA_SHARD.operations.values())


# -- what is answered ----------------------------------------------------------------------------------------------------


async def answers(
    asker: RawClient, questions: Sequence[net.Question]
) -> list[tuple[net.Question, list[net.Answer]]]:
    """Each question and its answers. Streams stay open, and push until the last question is answered."""
    found: dict[int, tuple[net.Question, list[net.Answer]]] = {}
    for question in questions:
        asker.send(question)
        if isinstance(question, UNANSWERED):
            continue
        found[question.id] = (question, [])
        while not found[question.id][1]:
            answer = await received(asker)
            if is_passing(answer):
                if answer.id == question.id:
                    asker.send(question)
            elif answer.id in found:  # and not of a stream of earlier questions
                found[answer.id][1].append(answer)
    return list(found.values())


async def received(asker: RawClient) -> net.Answer:
    return await asker.receive(object)  # type: ignore[arg-type]


async def pushed(scene: Scene, asker: RawClient) -> list[net.Answer]:
    """What the streams push when another message matches."""
    async with client(scene.network, "alpha-1", "beta", "writer") as writer:
        await writer.submit(writer.publication(TOPIC, needle()))
    asker.send(net.StatusRequest(asker.new_id()))
    found: list[net.Answer] = []
    while not isinstance(answer := await received(asker), net.Status):
        found.append(answer)
    return found


def is_passing(answer: object) -> bool:
    """Whether the broker says that it was too busy to keep up."""
    return isinstance(answer, net.Failure) and answer.reason in ("moved_on", "not_fresh", "catching_up")


Trace = bytes | int | Position


def told(scene: Scene, question: net.Question, answer: net.Answer) -> list[Trace]:
    """The traces that an answer bears. What was asked may be repeated once."""
    asked, found = borne(scene, question), borne(scene, answer)
    return [trace for trace, times in found.items() if times > min(asked[trace], 1)]


def borne(scene: Scene, said: net.Question | net.Answer) -> Counter[Trace]:
    """The traces in what was sent, and how often each: in all forms of `traces`, and as numbers."""
    data = net.encode(said)
    found: Counter[Trace] = Counter(scene.traces[form] for form in scene.pattern.findall(data))
    for value in values(msgspec.msgpack.decode(data)):
        match value:
            case int() if value in NUMBERS:
                found[value] += 1
            case str():
                found.update(
                    number for word in re.findall(r"\b\d+\b", value) if (number := int(word)) in NUMBERS
                )
            case [int() as height, int() as position] if (height, position) == scene.incarnation:
                found[scene.incarnation] += 1
    if isinstance(said, net.Failure):
        # Elsewhere a height alone says nothing of an order.
        height, _ = scene.incarnation
        found[height] += sum(value == height for _, value in said.fields)
    return found


def values(value: object) -> Iterator[object]:
    """All that a decoded message holds, and the records of entries and receipts in it."""
    yield value
    if isinstance(value, list):
        for one in value:
            yield from values(one)
    elif isinstance(value, bytes):
        try:
            record = msgspec.msgpack.decode(value)
        except DECODE_ERRORS:
            return
        if isinstance(record, list):
            yield from values(record)


def is_about_her(scene: Scene, question: net.Question, kind: str, found: list[Trace]) -> bool:
    """Whether administrators of her organisation may see it: who its clients are, which is no interest."""
    asked = question.keys[0] if isinstance(question, net.Prove) else getattr(question, "prefix", b"")
    return (
        kind == "administrator of its organisation and of the topic's"
        and asked.startswith((b"client/", b"name/"))
        and set(found) <= {b"dora", scene.dora.credential.key}
    )


async def connected(scene: Scene, kind: str) -> RawClient:
    stream = await reach(scene.network, "alpha-1")
    return await authenticated(scene.network, "alpha-1", stream, scene.network.identity(*KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.__name__)
def test_no_answer_tells_of_the_interests_of_others(scene: Scene, question: type, kind: str) -> None:
    async def story() -> None:
        asker = await connected(scene, kind)
        questions = QUESTIONS[question](scene, asker, INTEREST)
        if question is net.Submit and kind == "not registered":
            questions = questions[::4]  # the broker waits two seconds for each: it may hear of the client yet
        answered = await answers(asker, questions)
        if question is net.OpenStream:
            by_id = {asked.id: more for asked, more in answered}
            for answer in await pushed(scene, asker):
                by_id[answer.id].append(answer)
        for asked, several in answered:
            if "audit" in kind and question in AUDITED:  # they see all that brokers see (P22)
                continue
            for answer in several:
                found = told(scene, asked, answer)
                assert not found or is_about_her(scene, asked, kind, found), (kind, found, asked, answer)
        await asker.stream.wait_closed()

    asyncio.run(story())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", [net.Prove, net.ListKeys, net.OpenStream], ids=lambda one: one.__name__)
def test_a_guess_is_answered_like_what_nobody_asks_for(scene: Scene, question: type, kind: str) -> None:
    """Neither that an order exists nor that there is none is told to those who do not hold it."""

    async def story() -> None:
        asker = await connected(scene, kind)
        right, wrong = [
            await answers(asker, QUESTIONS[question](scene, asker, guess)) for guess in (INTEREST, DECOY)
        ]
        for (asked, (first, *_)), (_, (second, *_)) in zip(right, wrong, strict=True):
            assert shape(first) == shape(second), (kind, asked, first, second)
        await asker.stream.wait_closed()

    asyncio.run(story())


def shape(answer: net.Answer) -> object:
    """What an answer says, but for its proofs and as of when."""
    match answer:
        case net.Failure():
            return (answer.code, answer.reason, [one for one in answer.fields if one[0] != "judged"])
        case net.Proven() | net.Head():
            return [entry.value for entry in answer.entries]
        case net.Listed():
            return (len(answer.keys), answer.more)
        case _:
            return type(answer)


def leaks(scene: Scene) -> dict[str, net.Answer]:
    """Answers that bear one trace each."""
    height, position = scene.incarnation
    interest, key = parse_constraint(INTEREST), scene.dora.credential.key
    fields: dict[str, tuple[str, int | str]] = {
        "number": ("ps", MATCHED),
        "number in a text": ("ps", f"up to {MATCHED}"),
        "height": ("began", height),
        "name": ("by", "alpha/dora"),
        "interest": ("constraint", interest.text),
    }
    keys = {
        "number": ORDER_LEAVES.key(TOPIC, 0, bytes(32), (0, 0), MATCHED),
        "incarnation": ORDER_LEAVES.key(TOPIC, 0, bytes(32), scene.incarnation, 0),
        "interest": SUBSCRIPTIONS.key(TOPIC, interest.id, bytes(32)),
        "client": SUBSCRIPTIONS.key(TOPIC, bytes(32), key),
    }
    records = {
        "number": OrderHead("", (0, 0), MATCHED),
        "incarnation": OrderHead("", (height, position), 0),
        "interest": OrderHead(interest.text, (0, 0), 0),
    }
    return {
        **{f"{one} in a refusal": net.Failure(1, "X", "", (field,)) for one, field in fields.items()},
        **{f"{one} in a key": net.Listed(1, (found,), more=False) for one, found in keys.items()},
        **{
            f"{one} in a key as it is shown": net.Failure(1, "X", "", (("entry", layout.name(found)),))
            for one, found in keys.items()
        },
        **{
            f"{one} in a record": net.EvidenceList(1, (encode_value(record),), more=False)
            for one, record in records.items()
        },
    }


def test_each_trace_is_noticed_by_itself_in_whatever_form(scene: Scene) -> None:
    asked = net.StatusRequest(1)
    unnoticed = [one for one, answer in leaks(scene).items() if len(told(scene, asked, answer)) != 1]
    assert not unnoticed


def test_what_was_asked_may_be_repeated_once(scene: Scene) -> None:
    key = SUBSCRIPTIONS.key(TOPIC, parse_constraint(INTEREST).id, scene.dora.credential.key)
    asked = net.Prove(1, (key,))
    assert not told(scene, asked, net.Listed(1, (key,), more=False))
    assert told(scene, asked, net.Listed(1, (key, key), more=False))


def test_she_is_shown_what_others_are_not(scene: Scene) -> None:
    """Or the tests above would find nothing wherever they look."""

    async def story() -> None:
        async with client(scene.network, "alpha-1", "alpha", "dora") as dora:
            own = set()
            for asked, (answer, *_) in await answers(dora, prove(scene, dora, INTEREST)):
                assert isinstance(asked, net.Prove)
                if isinstance(answer, net.Proven) and answer.entries[0].value is not None:
                    own.add(asked.keys[0].partition(b"/")[0])
            assert {b"ps", b"sub", b"client", b"name"} <= own
            streams = await answers(dora, open_streams(scene, dora, INTEREST))
            _, (first, *_) = streams[0]
            assert isinstance(first, net.Delivery)
            ended = {asked.id for asked, more in streams if isinstance(more[-1], net.Failure)}
            more = await pushed(scene, dora)
            assert any(isinstance(one, net.Delivery) and one.id not in ended for one in more)

    asyncio.run(story())


def test_an_order_is_not_listed_even_for_its_subscriber(scene: Scene) -> None:
    async def story() -> None:
        async with client(scene.network, "alpha-1", "alpha", "dora") as dora:
            question = net.ListKeys(dora.new_id(), ORDER_HEADS.prefix(TOPIC), b"")
            assert (await dora.ask(question, net.Failure)).code == PermissionDenied.code

    asyncio.run(story())


def test_a_client_whose_subscription_ended_is_shown_that_and_nothing_of_the_order(scene: Scene) -> None:
    async def story() -> None:
        async with client(scene.network, "alpha-1", "alpha", "former") as former:
            constraint = parse_constraint(INTEREST).id
            own = SUBSCRIPTIONS.key(TOPIC, constraint, former.identity.credential.key)
            position = net.StreamPosition(0, scene.incarnation, 0)
            question = net.OpenStream(former.new_id(), TOPIC, constraint, (position,), 1_000)
            head = await former.ask(question, net.Head)
            assert [
                (entry.key, former.record(SUBSCRIPTIONS, entry, own, head.anchor)) for entry in head.entries
            ] == [(own, None)]

    asyncio.run(story())


def test_who_guesses_a_constraint_and_subscribes_with_it_joins_its_order(scene: Scene) -> None:
    """This cannot be hidden: everybody with a constraint has the same order (P6). docs/privacy.md says so."""

    async def story() -> None:
        async with client(scene.network, "alpha-1", "gamma", "reader") as guesser:
            joined = (await guesser.operate(Subscribe(TOPIC, INTEREST, guesser.topic_id(TOPIC)))).outcome
            assert isinstance(joined, Subscribed)
            assert joined.partitions[0].incarnation == scene.incarnation
            assert (
                await guesser.operate(Unsubscribe(TOPIC, INTEREST, guesser.topic_id(TOPIC)))
            ).outcome == Done()

    asyncio.run(story())
