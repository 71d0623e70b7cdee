"""Chapter 3 of the demo: the broker that a subscriber is connected to lies, and what becomes of that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from msgspec import Struct
from rich.console import Group
from rich.text import Text

import parley
from parley.applications import application_of
from parley.cli.demo_stage import POLL_SECONDS, Say, Stage, all_ready, listed, running, staged
from parley.cli.local_setup import enrol
from parley.client import Client, Subscription
from parley.consensus.errors import Refused
from parley.ledger import layout
from parley.ledger.proofs import Trust
from parley.model.genesis import Timeouts
from parley.node.admin.client import switch_faults
from parley.replica import evidence

PEOPLE = {"north": "anna", "south": "ben", "east": "eva", "west": "walter"}
PUBLISHER, READER = "north", "south"
LIAR = f"{READER}-1"  # the reader's own organisation runs it, and somebody has paid for it
TOPIC = "rates"
EACH = 3  # messages of an act
MAX_MESSAGES = 40  # of the last one, which ends when the others hold a proof
PATIENCE = 90.0  # seconds for everything
STEPS = 6  # that `say` hears of
TIMEOUTS = Timeouts(view=500, longest_view=4_000, heartbeat=200, ack=2_000, freshness=3_000)


class Act(Struct):
    """One kind of lie: what the reader's client noticed, and who served it then."""

    fault: str
    published: int
    delivered: int
    wrong: int  # messages that were not the next ones that were published
    noticed: str  # in the client's words; empty if there was nothing for it to notice
    served_by: str
    seconds: float  # from the first false word to the truth


class Proof(Struct):
    """What the other brokers hold against the liar; `verified`: with the genesis file alone, after the fact."""

    broker: str
    view: int
    held_by: list[str]
    verified: bool


class Outcome(Struct):
    """Scripts read it with `--json`."""

    liar: str
    acts: list[Act]
    proof: Proof | None
    seconds: float

    @property
    def holds(self) -> bool:
        complete = all(act.delivered == act.published and not act.wrong for act in self.acts)
        left = all(act.noticed and act.served_by != self.liar for act in self.acts if act.fault != EQUIVOCATE)
        return complete and left and self.proof is not None and self.proof.verified


FORGE, WITHHOLD, EQUIVOCATE = "forge", "withhold", "equivocate"


def play(say: Say) -> Outcome:
    """Run the story on brokers of its own; `say` hears of each step."""
    # Other schemes soon pass over a leader that fails, and this story needs it to lead.
    network = staged("rates", PEOPLE, say, TIMEOUTS, leaders="round-robin", allow_faults=True)
    with _quiet(), network as stage:
        say("starting four brokers")
        with running(stage.brokers):
            acts = asyncio.run(_story(stage))
        say("checking the proof")
        return Outcome(LIAR, acts, _proof(stage), round(stage.seconds, 1))


@contextmanager
def _quiet() -> Iterator[None]:
    """The client warns of every lie; here the story tells of them."""
    log = logging.getLogger("parley.client")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def _story(stage: Stage) -> list[Act]:
    async with asyncio.timeout(PATIENCE):
        await all_ready(stage.directory)
        stage.say("registering a publisher, a reader and a topic")
        await enrol(stage.directory, PUBLISHER, PEOPLE[PUBLISHER], {}, topic=TOPIC)
        await enrol(stage.directory, READER, PEOPLE[READER], {})
        async with _client(stage, PUBLISHER) as publisher:
            acts = [await _lie(stage, publisher, FORGE), await _lie(stage, publisher, WITHHOLD)]
            acts.append(await _contradict(stage, publisher))
        return acts


async def _lie(stage: Stage, publisher: Client, fault: str) -> Act:
    """The broker that serves the reader begins to lie, and the reader reads on until it has everything."""
    stage.say(f"the broker lies: {fault}")
    async with _served(stage, publisher) as (reader, subscription):
        await _switch(stage, publisher, fault)
        sent = [f"{fault} {number}" for number in range(EACH)]
        await publisher.publish(TOPIC, sent[0])
        begin = time.monotonic()
        seen = [(await anext(subscription)).text()]
        seconds = time.monotonic() - begin
        for text in sent[1:]:
            await publisher.publish(TOPIC, text)
        seen += [(await anext(subscription)).text() for _ in sent[1:]]
        noticed = reader.misbehaviour[0].problem if reader.misbehaviour else "it proves nothing fresh"
        served_by = ", ".join(subscription.brokers)
    await _switch(stage, publisher, "")
    return Act(fault, EACH, len(seen), _wrong(sent, seen), noticed, served_by, round(seconds, 1))


async def _contradict(stage: Stage, publisher: Client) -> Act:
    """The broker signs two proposals whenever it leads, until all the others can prove it."""
    stage.say(f"the broker lies: {EQUIVOCATE}")
    sent: list[str] = []
    async with _served(stage, publisher) as (_, subscription):
        await _switch(stage, publisher, EQUIVOCATE)
        begin = time.monotonic()
        while len(sent) < EACH or (len(sent) < MAX_MESSAGES and not await _is_proven(publisher)):
            sent.append(f"{EQUIVOCATE} {len(sent)}")
            await publisher.publish(TOPIC, sent[-1])
        seconds = time.monotonic() - begin
        seen = [(await anext(subscription)).text() for _ in sent]
        served_by = ", ".join(subscription.brokers)
    return Act(EQUIVOCATE, len(sent), len(seen), _wrong(sent, seen), "", served_by, round(seconds, 1))


@asynccontextmanager
async def _served(stage: Stage, publisher: Client) -> AsyncIterator[tuple[Client, Subscription]]:
    """The reader, once the broker that will lie is the only one that serves it; a busy machine may take two attempts."""
    while True:
        async with _client(stage, READER) as reader, reader.subscribe(TOPIC) as subscription:
            await publisher.publish(TOPIC, "a first rate")
            await anext(subscription)
            if subscription.brokers == (LIAR,):
                yield reader, subscription
                return


def _wrong(sent: list[str], seen: list[str]) -> int:
    return sum(one != other for one, other in zip(sent, seen, strict=True))


async def _switch(stage: Stage, client: Client, fault: str) -> None:
    """Tell the liar, and wait until it says so itself."""
    switch_faults(next(one for one in stage.brokers if one.name == LIAR), [fault] if fault else [])
    while fault not in (note := await _note(client)) or (not fault and "Faults" in note):  # noqa: ASYNC110 - it calls nobody
        await asyncio.sleep(POLL_SECONDS)


async def _note(client: Client) -> str:
    found = (one.status.note for one in await client.status() if one.name == LIAR and one.status is not None)
    return next(found, "")


async def _is_proven(client: Client) -> bool:
    others = [one.status for one in await client.status() if one.name != LIAR]
    return all(status is not None and status.misbehaviour for status in others)


def _proof(stage: Stage) -> Proof | None:
    """What lies in the stores of the others, checked as a stranger would who has the genesis file only."""
    from parley.store.disk import open_store  # noqa: PLC0415 - needs the extra `node`

    trust = Trust(stage.genesis, application_of(stage.genesis).decode_leaf)
    held_by: dict[int, list[str]] = {}
    verified = True
    for broker in stage.brokers:
        if broker.name == LIAR:
            continue
        with open_store(broker.folder / "data", create=False) as store:
            records = [evidence.decode(value) for _, value in store.scan(layout.EVIDENCE)]
        for record in records:
            try:
                proven = evidence.verify(record, trust.verifier)
            except Refused:
                verified = False
                continue
            verified &= trust.committee.names[proven.member] == LIAR
            held_by.setdefault(proven.view, []).append(broker.name)
    if not held_by:
        return None
    view = max(held_by, key=lambda one: (len(held_by[one]), -one))
    return Proof(LIAR, view, held_by[view], verified)


def _client(stage: Stage, organisation: str) -> Client:
    """Of its own organisation's broker first, as always; of the publisher's last, so that the picture is clear."""
    names = sorted(
        (broker.name for broker in stage.brokers),
        key=lambda name: (name != f"{organisation}-1", name == f"{PUBLISHER}-1"),
    )
    identity = stage.directory / "identities" / f"{organisation}-{PEOPLE[organisation]}.json"
    return parley.connect(genesis=stage.directory / "genesis.json", identity=identity, brokers=names)


# -- words -------------------------------------------------------------------------------------------------------------

_DEEDS = {
    FORGE: "alters what it delivers",
    WITHHOLD: "delivers nothing, and goes on saying how far the ledger is",
    EQUIVOCATE: "signs two blocks for the same view, one for half of the others and one for the rest",
}


def tell(outcome: Outcome) -> Group:
    published = sum(act.published for act in outcome.acts)
    delivered = sum(act.delivered for act in outcome.acts)
    wrong = sum(act.wrong for act in outcome.acts)
    sentences = [
        *(_sentences(outcome.liar, act) for act in outcome.acts),
        f"Published: {published}. Delivered: {delivered}. Wrong, lost or doubled: {wrong}.",
    ]
    return Group(
        Text("\nChapter 3: the broker that you trust is the one that lies\n", style="bold"),
        f"Anna publishes rates through North's broker. Ben reads them, and the only broker that he is connected to is his "
        f"own organisation's, {outcome.liar}. Somebody has paid for that broker to lie. Three times Ben connects to it and "
        f"it serves him well, until it begins. This is what happened:\n",
        listed(("*", sentence) for sentence in sentences),
        "",
        Text(_picture(outcome)),
        _verdict(outcome),
        Text(
            f"\n{outcome.seconds:.0f} seconds. To let a broker of your own lie: "
            "./parley up --allow-faults --detach --dir lab, ./parley fault set alpha-1 forge --dir lab",
            style="dim",
        ),
    )


def _sentences(liar: str, act: Act) -> str:
    deed = f"{liar} {_DEEDS[act.fault]}"
    came = f"{act.delivered} of {act.published} messages came, as they were published"
    if act.fault == EQUIVOCATE:
        return f"{deed}. The others compare what they were sent, and certify at most one. Ben notices nothing: {came}."
    when = "At once" if act.seconds < 1 else f"After {act.seconds:.1f} s"
    return (
        f"{deed}. Ben's client noticed: {act.noticed}. {when} it had the truth from {act.served_by}: {came}."
    )


def _picture(outcome: Outcome) -> str:
    """Who speaks with whom in the end: the reader with its helper, the publisher with its own broker."""
    helper, own = outcome.acts[0].served_by, f"{PUBLISHER}-1"
    arms = {helper: "      └──────", own: "    anna ────" if own != helper else "anna ─┴──────"}
    one, two, three = [helper, *(f"{name}-1" for name in PEOPLE if f"{name}-1" not in {outcome.liar, helper})]
    return (
        f"    ben ──x── {outcome.liar}, which lies\n"
        f"      │\n"
        f"{arms.get(one, ''):13} {one:8} ┐\n"
        f"{arms.get(two, ''):13} {two:8} ┼── one order, signed by three of four\n"
        f"{arms.get(three, ''):13} {three:8} ┘\n"
    )


def _verdict(outcome: Outcome) -> str:
    proof = outcome.proof
    if proof is None:
        return "NOBODY HOLDS A PROOF of the two blocks."
    checked = "it holds" if proof.verified else "IT DOES NOT HOLD"
    return (
        f"The proof says: {proof.broker} signed two proposals in view {proof.view}. {', '.join(proof.held_by)} each hold "
        f"both, with signatures that only {proof.broker}'s key can make. It was checked with the genesis file alone, after "
        f"the brokers were stopped: {checked}. No honest broker ever signs two, so this one cannot talk its way out; and "
        f"while no more than one of four lies, lies cost time, never a message."
    )
