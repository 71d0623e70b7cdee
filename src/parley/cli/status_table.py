"""How `parley status` shows a network to people: without colour, because it is also read in logs and mails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from rich.console import Group, RenderableType

from parley.cli import output
from parley.cli.status_summary import DOWN, WAITING, Member, Peer, Shard
from parley.consensus.committee import faults

MAX_SHOWN = 3  # proofs against one broker, or damages of one
MAX_NAMED = 8  # brokers whose names head the columns of the matrix; of more, their numbers do
UP, SLOW, LOST, UNKNOWN, ITSELF = "+", "~", "x", "?", "."
LEGEND = f"Connections, as each broker reports them ({UP} up, {SLOW} slow, {LOST} down, {UNKNOWN} no answer):"


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


def page(network: str, shard: Shard, queries: Sequence[Query]) -> RenderableType:
    """The whole picture: the network, each broker, who reaches whom, and what is wrong."""
    height, view = (_shown(number) for number in (shard.height, shard.view))
    title = f"network {network}: height {height}, view {view}, leader {shard.leader or '-'}"
    found = [
        *_notes(shard.brokers),
        *_others_say(shard.brokers),
        *proofs(shard.brokers),
        *damage(shard.brokers),
    ]
    matrix = ["", LEGEND, _matrix(shard.brokers)] if len(shard.brokers) > 1 else []
    return Group(
        title,
        margin(shard),
        "",
        _brokers(shard.brokers),
        *matrix,
        *([""] if found else []),
        *found,
        *_lags(queries),
    )


def margin(shard: Shard) -> str:
    """How many more brokers may fail, in words."""
    if not shard.quorum:
        return f"too few vote: nothing is ordered. {missing(shard)}"
    match shard.tolerable_failures:
        case 0:
            return f"no more broker may fail: {_voters(shard)}"
        case 1:
            return f"one more broker may fail: {_voters(shard)}"
        case more:
            return f"{more} more brokers may fail: {_voters(shard)}"


def missing(shard: Shard) -> str:
    """Who does not vote, and why."""
    said = [_voters(shard)]
    for state, words in ((DOWN, "not answering"), (WAITING, "waiting for others")):
        if names := [one.name for one in shard.brokers if one.state == state]:
            said.append(f"{words}: {', '.join(names)}")
    return "; ".join(said)


def _voters(shard: Shard) -> str:
    return f"{shard.voting} of {len(shard.brokers)} brokers vote, {shard.needed} are needed"


def _brokers(members: Sequence[Member]) -> RenderableType:
    columns = ("broker", "organisation", "address", "state", "height", "version", "votes")
    return output.table(
        (*columns, "round trip", "failed views", "process"),
        (
            (
                one.name,
                one.org,
                one.address,
                one.state,
                _shown(one.height),
                one.version or "-",
                "-" if one.votes is None else f"{one.votes}/{one.blocks}",
                "-" if one.round_trip_ms is None else f"{one.round_trip_ms} ms",
                _shown(one.failed_views),
                _shown(one.pid),
            )
            for one in members
        ),
    )


def _matrix(members: Sequence[Member]) -> RenderableType:
    """A row for each broker that says something, a column for each that it is said of."""
    named = len(members) <= MAX_NAMED
    heads = [one.name if named else str(number) for number, one in enumerate(members, 1)]
    rows = [one.name if named else f"{number} {one.name}" for number, one in enumerate(members, 1)]
    return output.table(
        ("says of", *heads),
        ((row, *_marks(one, members)) for row, one in zip(rows, members, strict=True)),
    )


def _marks(member: Member, members: Sequence[Member]) -> list[str]:
    said = {peer.name: peer for peer in member.peers}
    return [ITSELF if one.name == member.name else _mark(said.get(one.name)) for one in members]


def _mark(peer: Peer | None) -> str:
    if peer is None:
        return UNKNOWN
    if not peer.connected:
        return LOST
    return SLOW if peer.slow else UP


def _notes(members: Sequence[Member]) -> list[str]:
    """What brokers say of themselves, or why they do not answer; what several have in common is said once."""
    groups: dict[str, list[str]] = {}
    for one in members:
        if one.note:
            groups.setdefault(one.note, []).append(one.name)
    return [f"{', '.join(names)}: {note}" for note, names in groups.items()]


def _others_say(members: Sequence[Member]) -> list[str]:
    """Who is down or slow for more brokers than may lie, so that an honest one says it."""
    enough = faults(len(members)) + 1
    lines: list[str] = []
    for one in members:
        for words, names in (("down", one.down_to), ("slow", one.slow_to)):
            if len(names) >= enough:
                lines.append(f"{one.name} is {words} for {', '.join(names)}")
    return lines


def proofs(members: Sequence[Member]) -> list[str]:
    """A sentence for each proof of misbehaviour, with all who hold it; of a broker that goes on and on, the last ones."""
    holders: dict[tuple[str, str, int], list[str]] = {}
    known = {member.name for member in members}
    for member in members:
        for proof in member.misbehaviour:
            if proof.broker not in known:  # there is no such broker
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


def damage(members: Iterable[Member]) -> list[str]:
    """What brokers found wrong in their own stores."""
    return [
        f"{member.name} found damage: {what}" for member in members for what in member.damage[-MAX_SHOWN:]
    ]


def _lags(queries: Sequence[Query]) -> list[RenderableType]:
    if not queries:
        return []
    rows = ((one.query, one.reader, one.topic, str(one.lag), f"{one.seconds} s ago") for one in queries)
    table = output.table(("query", "reader", "topic", "lag", "said"), rows)
    return ["", "Readers, by their own word:", table]


def _shown(number: int | None) -> str:
    return "-" if number is None else str(number)
