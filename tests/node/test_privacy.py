"""What each kind of client is told of the interests of another one, by every question that there is.

Dora subscribes to `ward` with a constraint that the others guess, and nobody else does. The questions are derived from the
union of messages and from the declared tables, so that a new one without a case fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import get_args

import pytest
from tests.node.network import LocalNetwork
from tests.node.raw_client import RawClient, authenticated, client, message, reach, registration

from parley.application.tables import HASH, LARGE, NUMBER, POSITION, REST, SESSION, TEXT, AnyTable, Part
from parley.applications import DATA_SHARD
from parley.model.advisories import Advisory, Standpoint, sign_advisory
from parley.model.credentials import Identity
from parley.model.expressions import parse_constraint
from parley.model.names import Position
from parley.model.receipts import Done
from parley.model.refusals import PermissionDenied
from parley.modules.advertisements.operations import Advertise
from parley.modules.registry.operations import GrantRight, RevokeClient
from parley.modules.subscriptions.operations import Subscribe, Unsubscribe
from parley.modules.subscriptions.receipts import Subscribed
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import messages as net

TOPIC = "ward"
INTEREST = 'diagnosis == "needle-in-the-haystack"'
DECOY = 'diagnosis == "that-nobody-asks-for"'
MATCHED = 2_311  # a number that nothing else has
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
NAMES = ("dora", "writer", "reader", "former", "stranger")


@dataclass(frozen=True)
class Scene:
    network: LocalNetwork
    dora: Identity
    incarnation: Position
    counter: bytes  # the record of the head of her order

    @property
    def traces(self) -> tuple[bytes, ...]:
        """What tells of her interest, and that it is hers."""
        interest = parse_constraint(INTEREST)
        key = self.dora.credential.key
        texts = (interest.text, interest.id.hex(), key.hex(), "dora")
        return (interest.id, key, self.counter, *(text.encode() for text in texts))


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
        ("alpha", ("dora", "reader", "former")),
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
                ward = CreateTopic(TOPIC, 1, Policy(), "", 'not role == "writer"')
                assert (await admin.operate(ward)).outcome == Done()
    async with (
        client(network, "alpha-1", "alpha", "dora") as dora,
        client(network, "alpha-1", "alpha", "former") as former,
        client(network, "alpha-1", "alpha", "reader") as reader,
        client(network, "alpha-1", "beta", "writer") as writer,
        client(network, "alpha-1", "beta", "admin") as admin,
    ):
        _, start = await dora.subscribe(TOPIC, INTEREST)
        await former.subscribe(TOPIC, INTEREST)
        await reader.subscribe(TOPIC, "a = 1")
        assert (await former.operate(Unsubscribe(TOPIC, INTEREST))).outcome == Done()
        assert (await admin.operate(RevokeClient("former"))).outcome == Done()
        for first in range(0, MATCHED, 800):
            some = [
                message(b"", diagnosis="needle-in-the-haystack")
                for _ in range(first, min(MATCHED, first + 800))
            ]
            await writer.submit(writer.publication(TOPIC, *some))
        await writer.submit(writer.publication(TOPIC, message(b"", a=1)))
        key = ORDER_HEADS.key(TOPIC, 0, parse_constraint(INTEREST).id)
        shown = await dora.ask(net.Prove(dora.new_id(), (key,)), net.Proven)
        counter = shown.entries[0].value
        assert counter is not None
        assert dora.record(ORDER_HEADS, shown.entries[0], key, shown.anchor).next_ps == MATCHED  # type: ignore[union-attr]
        return Scene(network, network.identity("alpha", "dora"), start.incarnation, counter)


# -- every question ------------------------------------------------------------------------------------------------------

Asked = Callable[[Scene, RawClient, str], list[net.Question]]  # with a constraint that is guessed


def values_of(part: Part, scene: Scene, guess: str) -> tuple[object, ...]:
    """What somebody who guesses would put into a key."""
    values: dict[int, tuple[object, ...]] = {
        id(TEXT): (TOPIC, "alpha", "dora", "subscriptions"),
        id(HASH): (parse_constraint(guess).id, scene.dora.credential.key),
        id(NUMBER): (0, 1),
        id(LARGE): (0, MATCHED),
        id(POSITION): (scene.incarnation,),
        id(SESSION): (bytes(16),),
        id(REST): (b"", scene.dora.credential.key),
    }
    assert id(part) in values, "keys of a new kind need values to guess"
    return values[id(part)]


def guessed(table: AnyTable, scene: Scene, guess: str, parts: int) -> Iterator[tuple[object, ...]]:
    return product(*(values_of(part, scene, guess) for part in table.parts[:parts]))


def prove(scene: Scene, asker: RawClient, guess: str) -> list[net.Question]:
    return [
        net.Prove(asker.new_id(), (table.key(*key),))
        for table in DATA_SHARD.tables.values()
        for key in guessed(table, scene, guess, len(table.parts))
    ]


def list_keys(scene: Scene, asker: RawClient, guess: str) -> list[net.Question]:
    return [
        net.ListKeys(asker.new_id(), table.prefix(*leading), b"")
        for table in DATA_SHARD.tables.values()
        for parts in range(len(table.parts) + 1)
        for leading in guessed(table, scene, guess, parts)
    ]


def open_streams(scene: Scene, asker: RawClient, guess: str) -> list[net.Question]:
    constraint = parse_constraint(guess).id
    incarnation, (height, position) = scene.incarnation, scene.incarnation
    return [
        net.OpenStream(asker.new_id(), TOPIC, constraint, (net.StreamPosition(0, began, ps),), 1_000)
        for began in (incarnation, (height, position + 1), (2**40, 0))
        for ps in (0, MATCHED)
    ]


def submit(_scene: Scene, asker: RawClient, guess: str) -> list[net.Question]:
    batches = (
        asker.control(Unsubscribe(TOPIC, guess)),
        asker.control(Advertise(TOPIC, "")),
        asker.control(CreateTopic(TOPIC, 1, Policy(), "", "")),
        asker.control(Subscribe(TOPIC, "b = 2")),
        asker.publication(TOPIC, message(b"", diagnosis="needle-in-the-haystack")),
    )
    return [net.Submit(asker.new_id(), body) for _, body in batches]


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
    assert set(QUESTIONS) == set(get_args(net.Question))


# -- what is answered ----------------------------------------------------------------------------------------------------


async def answers(
    asker: RawClient, questions: Sequence[net.Question]
) -> list[tuple[net.Question, net.Answer]]:
    """Each question and its first answer, one after the other."""
    found: list[tuple[net.Question, net.Answer]] = []
    for question in questions:
        asker.send(question)
        if isinstance(question, UNANSWERED):
            continue
        while (answer := await asker.receive(object)).id != question.id or is_passing(answer):  # type: ignore[attr-defined]
            if answer.id == question.id:  # type: ignore[attr-defined]
                asker.send(question)  # what else comes is another word of an earlier stream
        if isinstance(question, net.OpenStream):
            asker.send(net.CloseStream(question.id))
        found.append((question, answer))  # type: ignore[arg-type]
    return found


def is_passing(answer: object) -> bool:
    """Whether the broker says that it was too busy to keep up."""
    return isinstance(answer, net.Failure) and answer.reason in ("moved_on", "not_fresh", "catching_up")


def told(scene: Scene, question: net.Question, answer: net.Answer) -> list[bytes]:
    """The traces that an answer bears. What was asked may be repeated once."""
    asked, data = net.encode(question), net.encode(answer)
    repeated = [trace for trace in scene.traces if trace in asked]
    for trace in repeated:
        data = data.replace(trace, b"", 1)
    return [trace for trace in scene.traces if trace in data]


def is_about_her(scene: Scene, question: net.Question, kind: str, found: list[bytes]) -> bool:
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
        for asked, answer in await answers(asker, QUESTIONS[question](scene, asker, INTEREST)):
            if "audit" in kind and question in AUDITED:  # they see all that brokers see (P22)
                continue
            found = told(scene, asked, answer)
            assert not found or is_about_her(scene, asked, kind, found), (kind, asked, answer)
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
        for (asked, first), (_, second) in zip(right, wrong, strict=True):
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
            return len(answer.keys)
        case _:
            return type(answer)


def test_she_is_shown_what_others_are_not(scene: Scene) -> None:
    """Or the tests above would find nothing wherever they look."""

    async def story() -> None:
        async with client(scene.network, "alpha-1", "alpha", "dora") as dora:
            own = set()
            for asked, answer in await answers(dora, prove(scene, dora, INTEREST)):
                assert isinstance(asked, net.Prove)
                if isinstance(answer, net.Proven) and answer.entries[0].value is not None:
                    own.add(asked.keys[0].partition(b"/")[0])
            assert {b"ps", b"sub", b"client", b"name"} <= own
            ((_, first), *_) = await answers(dora, open_streams(scene, dora, INTEREST))
            assert isinstance(first, net.Delivery)

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
            joined = (await guesser.operate(Subscribe(TOPIC, INTEREST))).outcome
            assert isinstance(joined, Subscribed)
            assert joined.partitions[0].incarnation == scene.incarnation
            assert (await guesser.operate(Unsubscribe(TOPIC, INTEREST))).outcome == Done()

    asyncio.run(story())
