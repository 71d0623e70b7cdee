"""`parley status`: what each broker says of itself, asked of all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer
from msgspec import Struct
from msgspec.structs import asdict
from rich.console import Group, RenderableType

from parley.cli import output
from parley.cli.contexts import As, Chosen, ContextName, Directory, find
from parley.cli.network import DAY, observing, run, starting
from parley.client.administration import BrokerStatus
from parley.client.contexts import read_genesis
from parley.client.readers import ReaderStatus
from parley.consensus.committee import faults, quorum
from parley.model.genesis import Genesis
from parley.net.messages import Status
from parley.net.tls import authority_end
from parley.node.processes import local_brokers

POLL_SECONDS = 0.25
MAX_SHOWN = 3  # proofs against one broker, or damages of one, in the table for people
DATA, SHARD = "data", "0"  # until there is governance, a network is one shard (P26)


class Proof(Struct):
    """That a broker signed two contradicting things of one kind in a view."""

    broker: str
    kind: str
    view: int


class Member(Struct):
    """One broker; `height` and what follows only if it answers, `pid` only if it runs from this folder.

    `misbehaviour` is what it can prove of others, `damage` what it found wrong in its own store. The days are those left
    of its certificate, if it was seen, and of its organisation's authority.
    """

    name: str
    org: str
    address: str
    state: str
    height: int | None
    pid: int | None
    note: str
    misbehaviour: list[Proof]
    damage: list[str]
    certificate_days: int | None = None
    authority_days: int | None = None


class Query(Struct):
    """What a reader says of one of its queries, `seconds` ago by its clock; no broker vouches for it.

    In each partition: the next offset that it wants, and the end that it knew of.
    """

    query: str
    reader: str
    run: str
    topic: str
    lag: int
    seconds: int
    partitions: list[dict[str, int]]


class Shard(Struct):
    """`quorum`: whether enough brokers answer for the shard to go on. Epoch, view and height are null if none does."""

    epoch: int | None
    view: int | None
    height: int | None
    leader: str | None
    governance_pin: int
    quorum: bool
    brokers: list[Member]


def status(
    *,
    wait: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, max=3_600, help="Wait until every broker is ready and has caught up."
        ),
    ] = 0,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Show how the network is: view, height, leader, and the state of every broker.

    Ends with 1 if too few brokers answer for a quorum; with 3 if none does, or with --wait, if not all are ready in time.
    """
    chosen = find(directory, context)
    genesis = read_genesis(chosen.file.genesis)

    async def command() -> tuple[list[BrokerStatus], dict[str, str], list[ReaderStatus]]:
        async with observing(chosen, who) as client:
            deadline = asyncio.get_running_loop().time() + wait
            answers = await client.status()
            begin = _reached(answers)
            while (unready := _unready(answers, begin)) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(POLL_SECONDS)
                answers = await client.status()
            return answers, unready, client.readers(answers)

    found, unready, readers = run(command())
    pids = {broker.name: broker.pid() for broker in local_brokers(chosen.directory, genesis)}
    shard = _shard(found, pids, genesis)
    queries = [_query(one) for one in readers]
    output.emit(
        {"network": genesis.network, "layers": {DATA: {"shards": {SHARD: shard}}}, "readers": queries},
        lambda: _table(genesis, shard, queries),
        as_json=json,
    )
    late = bool(wait and unready)
    if late:
        waiting = ", ".join(f"{name} ({why})" for name, why in unready.items())
        output.note(f"parley: not ready within {wait:g} s: {waiting}")
    _conclude(chosen, found, late=late)


def _conclude(chosen: Chosen, found: list[BrokerStatus], *, late: bool) -> None:
    """End with an exit code that tells a script how the network is, and say what to do if it is not well."""
    answering, needed = sum(one.status is not None for one in found), quorum(len(found))
    if answering < needed:
        output.note(
            f"parley: no quorum: {answering} of {len(found)} brokers answer, {needed} are needed to go on"
        )
    elif not late:
        return
    if remedy := starting(chosen):
        output.note(f"parley: {remedy}")
    raise typer.Exit(output.ExitCode.UNREACHABLE if late or not answering else output.ExitCode.DOES_NOT_HOLD)


def _unready(found: list[BrokerStatus], height: int) -> dict[str, str]:
    """Who cannot do without another yet: each has to be ready, speak with all, and have what they had at the beginning."""
    down = {one.name for one in found if one.status is None}
    return {one.name: why for one in found if (why := _why_unready(one.status, height, down))}


def _why_unready(status: Status | None, height: int, down: set[str]) -> str:
    """Empty if it is ready. Whom it misses because they are down is told of those."""
    if status is None:
        return "down"
    if status.state != "ready":
        return status.state
    if status.height < height:
        return f"at height {status.height} of {height}"
    missed = [peer.name for peer in status.peers if not peer.connected and peer.name not in down]
    return f"not connected to {', '.join(missed)}" if missed else ""


def _reached(found: list[BrokerStatus]) -> int:
    """The highest height that an honest broker must have reached: f may say what they like."""
    heights = sorted((0 if one.status is None else one.status.height for one in found), reverse=True)
    return heights[faults(len(found))]


def _days_left(ends: int) -> int:
    return (ends - time.time_ns() // 1_000_000) // DAY


def _shard(found: list[BrokerStatus], pids: Mapping[str, int | None], genesis: Genesis) -> Shard:
    authorities = {one.name: _days_left(authority_end(one.tls_ca)) for one in genesis.organisations}
    answers = [one.status for one in found if one.status is not None]
    newest = max(answers, key=lambda answer: (answer.height, answer.view), default=None)
    members = [
        Member(
            one.name,
            one.organisation,
            one.address,
            "down" if one.status is None else one.status.state,
            None if one.status is None else one.status.height,
            pids.get(one.name),
            one.problem if one.status is None else one.status.note,
            []
            if one.status is None
            else [Proof(said.broker, said.kind, said.view) for said in one.status.misbehaviour],
            [] if one.status is None else list(one.status.damage),
            None if one.certificate_ends is None else _days_left(one.certificate_ends),
            authorities[one.organisation],
        )
        for one in found
    ]
    return Shard(
        epoch=None if newest is None else newest.epoch,
        view=None if newest is None else newest.view,
        height=None if newest is None else newest.height,
        leader=None if newest is None else newest.leader or None,
        governance_pin=0,
        quorum=len(answers) >= quorum(len(found)),
        brokers=members,
    )


def _query(said: ReaderStatus) -> Query:
    places = [asdict(one) for one in said.positions]
    age = max(0, time.time_ns() // 1_000_000 - said.time) // 1_000
    return Query(said.query, said.reader, said.run, said.topic, said.lag, age, places)


def _lags(queries: Sequence[Query]) -> list[RenderableType]:
    if not queries:
        return []
    rows = ((one.query, one.reader, one.topic, str(one.lag), f"{one.seconds} s ago") for one in queries)
    table = output.table(("query", "reader", "topic", "lag", "said"), rows)
    return ["", "Readers, by their own word:", table]


def _table(genesis: Genesis, shard: Shard, queries: Sequence[Query]) -> RenderableType:
    height, view = (_shown(number) for number in (shard.height, shard.view))
    title = f"network {genesis.network}: height {height}, view {view}, leader {shard.leader or '-'}"
    table = output.table(
        ("broker", "organisation", "address", "state", "height", "process", ""),
        (
            (one.name, one.org, one.address, one.state, _shown(one.height), _shown(one.pid), one.note)
            for one in shard.brokers
        ),
    )
    found = [*_proofs(shard.brokers), *_damage(shard.brokers)]
    return Group(title, "", table, *([""] if found else []), *found, *_lags(queries))


def _shown(number: int | None) -> str:
    return "-" if number is None else str(number)


def _proofs(members: Sequence[Member]) -> list[str]:
    """A sentence for each proof of misbehaviour, with all who hold it; of a broker that goes on and on, the last ones."""
    holders: dict[tuple[str, str, int], list[str]] = {}
    known = {member.name for member in members}
    for member in members:
        for proof in member.misbehaviour:
            if proof.broker not in known:  # whoever says that knows nothing
                continue
            holders.setdefault((proof.broker, proof.kind, proof.view), []).append(member.name)
    said: dict[str, list[str]] = {}
    for (broker, kind, view), names in sorted(holders.items()):
        sentence = f"{broker} signed two {kind} in view {view} (proof held by {', '.join(names)})"
        said.setdefault(broker, []).append(sentence)
    lines: list[str] = []
    for broker, sentences in said.items():
        if len(sentences) > MAX_SHOWN:
            lines.append(f"{broker} contradicted itself in {len(sentences)} views; the last:")
        lines += sentences[-MAX_SHOWN:]
    return lines


def _damage(members: Iterable[Member]) -> list[str]:
    return [
        f"{member.name} found damage: {what}" for member in members for what in member.damage[-MAX_SHOWN:]
    ]
