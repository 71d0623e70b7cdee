"""What the answers of all brokers say together: one of them alone, which may lie, does not change what is shown of the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median_low

from msgspec import Struct

from parley.cli.network import DAY
from parley.client.administration import BrokerStatus
from parley.consensus.committee import Committee, faults
from parley.model.genesis import Genesis
from parley.net.messages import PeerStatus, Status
from parley.net.tls import authority_end

READY, WAITING, DOWN = "ready", "waiting", "down"


class Proof(Struct):
    """That a broker signed two contradicting things of one kind in a view."""

    broker: str
    kind: str
    view: int


class Peer(Struct):
    """What one broker says of its connection to another; `round_trip_ms` is null if it has not measured it."""

    name: str
    connected: bool
    slow: bool
    round_trip_ms: int | None


class Member(Struct):
    """One broker; `height` and what follows only if it answers, `pid` only if it runs from this folder.

    `misbehaviour` is what it can prove of others, `damage` what it found wrong in its own store, `peers` what it says of
    its connections. The days are those left of its certificate, if it was seen, and of its organisation's authority.

    What the others say of it: `votes` are those in the certificates of the last `blocks` blocks, `failed_views` the views
    that ended without a block of its, `round_trip_ms` how long it takes to answer another broker. Each is the median over
    the brokers that answer. `down_to` and `slow_to` name those that say so.
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
    version: str | None = None
    votes: int | None = None
    blocks: int | None = None
    failed_views: int | None = None
    round_trip_ms: int | None = None
    peers: list[Peer] = []
    down_to: list[str] = []
    slow_to: list[str] = []


class Shard(Struct):
    """`quorum`: whether enough brokers vote for the shard to go on; `tolerable_failures` how many more of them may fail.

    Epoch, view and height are null if no broker answers, else what an honest one of them has reached.
    """

    epoch: int | None
    view: int | None
    height: int | None
    leader: str | None
    governance_pin: int
    quorum: bool
    voting: int
    needed: int
    tolerable_failures: int
    brokers: list[Member]


def summary(
    found: Sequence[BrokerStatus], pids: Mapping[str, int | None], genesis: Genesis, committee: Committee
) -> Shard:
    """All that is shown of the brokers."""
    order = {name: index for index, name in enumerate(committee.names)}
    authorities = {one.name: _days_left(authority_end(one.tls_ca)) for one in genesis.organisations}
    answers = {one.name: one.status for one in found if one.status is not None}
    members = [
        _member(one, order[one.name], answers, pids.get(one.name), authorities[one.organisation])
        for one in found
    ]
    voting, needed = sum(_is_voting(one, committee) for one in members), committee.quorum
    f = committee.faults
    return Shard(
        epoch=_honest((one.epoch for one in answers.values()), f),
        view=_honest((one.view for one in answers.values()), f),
        height=_honest((one.height for one in answers.values()), f),
        leader=_leader(answers, f),
        governance_pin=0,
        quorum=voting >= needed,
        voting=voting,
        needed=needed,
        tolerable_failures=max(0, voting - needed),
        brokers=members,
    )


def _is_voting(member: Member, committee: Committee) -> bool:
    """Whether a broker takes part in ordering: it says so, and enough others are connected to it.

    If more than f others are not, it cannot reach a quorum, and f liars alone cannot make it look so.
    """
    return member.state == READY and len(member.down_to) <= committee.size - committee.quorum


def _member(
    one: BrokerStatus, index: int, answers: Mapping[str, Status], pid: int | None, authority_days: int
) -> Member:
    status = one.status
    said = {name: peer for name, answer in answers.items() for peer in answer.peers if peer.name == one.name}
    counted = _counted(index, answers.values())
    return Member(
        one.name,
        one.organisation,
        one.address,
        DOWN if status is None else status.state,
        None if status is None else status.height,
        pid,
        one.problem if status is None else status.note,
        [] if status is None else [Proof(said.broker, said.kind, said.view) for said in status.misbehaviour],
        [] if status is None else list(status.damage),
        None if one.certificate_ends is None else _days_left(one.certificate_ends),
        authority_days,
        version=None if status is None else status.version,
        votes=None if counted is None else counted[0],
        blocks=None if counted is None else counted[1],
        failed_views=_median(
            answer.failed_views[index] for answer in answers.values() if index < len(answer.failed_views)
        ),
        round_trip_ms=_median(
            peer.round_trip_ms for peer in said.values() if peer.connected and peer.round_trip_ms is not None
        ),
        peers=[] if status is None else list(map(_peer, status.peers)),
        down_to=[name for name, peer in said.items() if not peer.connected],
        slow_to=[name for name, peer in said.items() if peer.connected and peer.slow],
    )


def _counted(index: int, answers: Iterable[Status]) -> tuple[int, int] | None:
    """Of how many of the last blocks certificates have the broker's vote: the answer with the middle share of them."""
    said = [
        (answer.votes[index] / answer.blocks, answer.votes[index], answer.blocks)
        for answer in answers
        if answer.blocks and index < len(answer.votes)
    ]
    return median_low(said)[1:] if said else None


def _median(numbers: Iterable[int]) -> int | None:
    """What an honest broker says, or what lies between two of them, as long as most of those that answer are honest."""
    found = list(numbers)
    return median_low(found) if found else None


def _honest(numbers: Iterable[int], f: int) -> int | None:
    """The (f+1)-th highest number: at least one honest broker has reached it, if more than f answer."""
    ordered = sorted(numbers, reverse=True)
    return ordered[min(f, len(ordered) - 1)] if ordered else None


def _leader(answers: Mapping[str, Status], f: int) -> str | None:
    """Who led last, by most of the brokers that are furthest. None if it does not answer: it leads no more."""
    newest = _honest((one.view for one in answers.values()), f)
    if newest is None:
        return None
    said = Counter(one.leader for one in answers.values() if one.view >= newest)
    leader = said.most_common(1)[0][0]
    return leader if leader in answers else None


def _peer(said: PeerStatus) -> Peer:
    return Peer(said.name, said.connected, said.slow, said.round_trip_ms)


def _days_left(ends: int) -> int:
    return (ends - time.time_ns() // 1_000_000) // DAY


# -- waiting -------------------------------------------------------------------------------------------------------


def unready(found: Sequence[BrokerStatus], height: int) -> dict[str, str]:
    """Who cannot do without another yet: each has to be ready, speak with all, and have what they had at the beginning."""
    down = {one.name for one in found if one.status is None}
    return {one.name: why for one in found if (why := _why_unready(one.status, height, down))}


def _why_unready(status: Status | None, height: int, down: set[str]) -> str:
    """Empty if it is ready. Brokers that are down have a reason of their own, so they are left out here."""
    if status is None:
        return DOWN
    if status.state != READY:
        return status.state
    if status.height < height:
        return f"at height {status.height} of {height}"
    missed = [peer.name for peer in status.peers if not peer.connected and peer.name not in down]
    return f"not connected to {', '.join(missed)}" if missed else ""


def reached(found: Sequence[BrokerStatus]) -> int:
    """The highest height that an honest broker must have reached, with those that are down at 0."""
    heights = (0 if one.status is None else one.status.height for one in found)
    return _honest(heights, faults(len(found))) or 0
