"""Chapter 2 of the demo: four hospitals share records through real brokers, and one of the brokers is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from rich.console import Group
from rich.text import Text

import parley
from parley.applications import application_of
from parley.cli.demo_stage import Say, Stage, all_ready, listed, running, staged
from parley.cli.local_setup import enrol
from parley.client import Client, Message, Receipt
from parley.ledger.proofs import Trust
from parley.model.genesis import Genesis, Timeouts
from parley.modules.publishing.proof import check_publication
from parley.node.processes import LocalBroker

PEOPLE = {
    "north": ("anna", "doctor"),
    "south": ("ben", "nurse"),
    "east": ("eva", "pharmacist"),
    "west": ("walter", "doctor"),
}
PUBLISHERS = ("north", "west")
READERS = ("south", "east", "west")
KILLED = "south"
TOPIC = "records"
WARD = 'ward == "cardiology"'
HOSPITALS = 'org in ["north", "south", "east", "west"]'  # whose word on who is a doctor counts
PUBLISH = f'{HOSPITALS} and role == "doctor"'
RULE = f'{HOSPITALS} and role in ["doctor", "nurse"]'
RECORDS = 24  # of each publisher
TOGETHER = 4  # records that a publisher sends before it waits
CONFIDENTIAL = 4  # every so many records
KILL_AFTER = 12  # certified records
PATIENCE = 55.0  # seconds for everything
STEPS = 4  # that `say` hears of
TIMEOUTS = Timeouts(view=500, longest_view=4_000, heartbeat=200, ack=2_000)


class Outcome(Struct):
    """What was published and what arrived; scripts read it with `--json`."""

    published: int
    expected: int
    delivered: dict[str, int]
    empties: dict[str, int]
    lost: int
    doubled: int
    equal_order: bool
    wrong_empties: int
    proof_verified: bool
    caught_up: bool
    seconds: float

    @property
    def holds(self) -> bool:
        return (
            self.lost == self.doubled == self.wrong_empties == 0
            and self.equal_order
            and self.proof_verified
            and self.caught_up
        )


@dataclass
class _Told:
    """Everything that the clients saw, to be judged at the end."""

    receipts: dict[str, Receipt] = field(default_factory=dict)  # by value
    seen: dict[str, list[Message]] = field(default_factory=dict)  # by reader
    under_way: asyncio.Event = field(default_factory=asyncio.Event)


def play(say: Say) -> Outcome:
    """Run the story on brokers of its own; `say` hears of each step."""
    people = {hospital: person for hospital, (person, _) in PEOPLE.items()}
    with staged("health", people, say, TIMEOUTS) as stage:
        say("starting four brokers")
        with running(stage.brokers) as processes:
            return asyncio.run(_story(stage, processes))


async def _story(stage: Stage, processes: list[subprocess.Popen[bytes]]) -> Outcome:
    told, directory = _Told(), stage.directory
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        await all_ready(directory)
        stage.say("registering four people and a topic")
        for hospital, (person, role) in PEOPLE.items():
            topic = TOPIC if hospital == "north" else None
            await enrol(directory, hospital, person, {"role": role}, topic=topic, publish=PUBLISH)
        clients = {
            hospital: await stack.enter_async_context(_client(directory, hospital)) for hospital in PEOPLE
        }
        expected = len(PUBLISHERS) * sum(_in_ward(number) for number in range(RECORDS))
        stage.say("publishing and subscribing; one broker will be killed")
        listening = [asyncio.Event() for _ in READERS]
        readers = [
            asyncio.create_task(_listen(clients[reader], told.seen.setdefault(reader, []), expected, ready))
            for reader, ready in zip(READERS, listening, strict=True)
        ]
        await asyncio.gather(*(ready.wait() for ready in listening))
        victim = next(broker for broker in stage.brokers if broker.organisation == KILLED)
        await asyncio.gather(
            *(_publish(clients[hospital], hospital, told) for hospital in PUBLISHERS), _kill(victim, told)
        )
        await asyncio.gather(*readers)
        stage.say("starting the killed broker again")
        processes.append(victim.start())
        await all_ready(directory)
        return _judge(told, stage.genesis, expected, caught_up=True, seconds=stage.seconds)


def _client(directory: Path, hospital: str) -> Client:
    identity = directory / "identities" / f"{hospital}-{PEOPLE[hospital][0]}.json"
    return parley.connect(genesis=directory / "genesis.json", identity=identity)


async def _listen(client: Client, seen: list[Message], expected: int, ready: asyncio.Event) -> None:
    async with client.subscribe(TOPIC, where=WARD, withheld="yield") as subscription:
        ready.set()
        async for message in subscription:
            seen.append(message)
            if len(seen) >= expected:
                return


async def _publish(client: Client, hospital: str, told: _Told) -> None:
    for first in range(0, RECORDS, TOGETHER):
        numbers = range(first, min(first + TOGETHER, RECORDS))
        await asyncio.gather(*(_publish_one(client, hospital, number, told) for number in numbers))
        if len(told.receipts) >= KILL_AFTER:
            told.under_way.set()


async def _publish_one(client: Client, hospital: str, number: int, told: _Told) -> None:
    value = f"record {number} of {hospital}"
    ward = "cardiology" if _in_ward(number) else "radiology"
    rule = RULE if number % CONFIDENTIAL == 0 else ""
    told.receipts[value] = await client.publish(TOPIC, value, tags={"ward": ward}, rule=rule)


async def _kill(victim: LocalBroker, told: _Told) -> None:
    """In the middle of it all, without warning."""
    await told.under_way.wait()
    pid = victim.pid()
    assert pid is not None, "the broker was started by us"
    os.kill(pid, signal.SIGKILL)


def _in_ward(number: int) -> bool:
    return number % 3 != 2


def _judge(told: _Told, genesis: Genesis, expected: int, *, caught_up: bool, seconds: float) -> Outcome:
    orders = {reader: [(m.ps, m.offset) for m in messages] for reader, messages in told.seen.items()}
    offsets = {receipt.offset for value, receipt in told.receipts.items() if _in_ward(_number(value))}
    lost = sum(len(offsets - {offset for _, offset in order}) for order in orders.values())
    doubled = sum(count - 1 for order in orders.values() for count in Counter(order).values())
    return Outcome(
        published=len(told.receipts),
        expected=expected,
        delivered={PEOPLE[reader][0]: sum(not m.empty for m in told.seen[reader]) for reader in READERS},
        empties={PEOPLE[reader][0]: sum(m.empty for m in told.seen[reader]) for reader in READERS},
        lost=lost,
        doubled=doubled,
        equal_order=len({tuple(order) for order in orders.values()}) == 1,
        wrong_empties=sum(
            m.empty != (reader == "east" and m.rule != "") for reader in READERS for m in told.seen[reader]
        ),
        proof_verified=_proves(next(iter(told.receipts.values())), genesis),
        caught_up=caught_up,
        seconds=round(seconds, 1),
    )


def _number(value: str) -> int:
    return int(value.split()[1])


def _proves(receipt: Receipt, genesis: Genesis) -> bool:
    trust = Trust(genesis, application_of(genesis).decode_leaf)
    check_publication(receipt.proof(), trust)  # raises if it does not
    return True


def tell(outcome: Outcome) -> Group:
    readers = ", ".join(
        f"{name} {outcome.delivered[name]} records and {outcome.empties[name]} empties"
        for name in outcome.delivered
    )
    proof = "it holds" if outcome.proof_verified else "IT DOES NOT HOLD"
    sentences = [
        f"{outcome.published} records were published, and a quorum of hospitals signed for each of them",
        f"One of these receipts was checked with the genesis file alone: {proof}",
        f"{outcome.expected} of them were of the ward that all three readers asked for: {readers}",
        f"Lost: {outcome.lost}. Doubled: {outcome.doubled}. Same order for everybody: {'yes' if outcome.equal_order else 'NO'}",
        "Eva's client checked every empty: the rule really excludes a pharmacist, so nobody can drop a record by calling it hidden",
        f"The killed broker is back and has {'caught up' if outcome.caught_up else 'NOT caught up'}",
    ]
    return Group(
        Text("\nChapter 2: four hospitals, one broker each\n", style="bold"),
        "North, South, East and West share health records. Anna and Walter are doctors and publish at the same time; Ben is a "
        "nurse, Eva a pharmacist. Ben, Eva and Walter subscribe to the cardiology ward. Some records may be read by doctors and "
        "nurses only. These are real processes, sockets and disks; in the middle of it South's broker, the one that Ben is "
        "connected to, is killed with kill -9. This is what happened:\n",
        listed(("*", f"{sentence}.") for sentence in sentences),
        Text(f"\n{outcome.seconds:.0f} seconds. To try it yourself: ./parley up --detach", style="dim"),
    )
