"""One Twins scenario: who leads each view, who can talk to whom in it, who loses power; and its file form for people.

Seats 0 to n-1 are the members; seat n+i is the second copy of member i, for as many members as there are twins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import ascii_uppercase

import msgspec
from msgspec import UNSET, Struct, UnsetType

MIN_NODES = 2  # one alone never waits for a message, so its time would not pass
MAX_NODES = 10
MAX_SEATS = 14  # the ways to split them are listed
MAX_VIEWS = 64
MAX_FILE = 1024 * 1024

Partition = tuple[int, ...]  # the group of each seat; groups are numbered in the order of their first seats


class ScenarioError(ValueError):
    """A scenario file cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True)
class View:
    """What happens in one view. Timeouts travel under a partition of their own: a QC may be hidden and a TC still form."""

    leader: int
    propose: Partition
    timeout: Partition
    restart: tuple[int, ...] = ()  # seats that lose power right after they first sign in this view
    leap: bool = False  # the leader proposes for a view far in the future instead
    late: bool = (
        False  # proposals and votes reach the other groups too, when everybody has given up on the view
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A script. After its views all links work and leaders take turns."""

    nodes: int
    twins: int
    depth: int
    views: tuple[View, ...]
    crashed: tuple[int, ...] = ()  # members that never run

    @property
    def members(self) -> tuple[int, ...]:
        """The member of each seat."""
        return (*range(self.nodes), *range(self.twins))

    @property
    def honest(self) -> tuple[int, ...]:
        """The seats for which everything is promised."""
        return tuple(seat for seat in range(self.twins, self.nodes) if seat not in self.crashed)


@cache
def whole(seats: int) -> Partition:
    """Everybody can talk to everybody."""
    return (0,) * seats


def name(seat: int, nodes: int) -> str:
    """A, B, C; the second copy of A is A'."""
    return ascii_uppercase[seat] if seat < nodes else ascii_uppercase[seat - nodes] + "'"


# -- files ----------------------------------------------------------------------------------------------------------


class _ViewFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    leader: str
    propose: list[str] | UnsetType = UNSET
    timeout: list[str] | UnsetType = UNSET
    restart: str = ""
    leap: bool = False
    late: bool = False


class _File(Struct, forbid_unknown_fields=True, omit_defaults=True):
    nodes: int
    twins: int
    chain: int
    views: list[_ViewFile]
    crashed: str = ""
    story: str = ""
    mutant: str | None = None


def save(path: Path, scenario: Scenario, *, story: str = "", mutant: str | None = None) -> None:
    """Write a scenario, and under which mutant it fails, if under one."""
    nodes = scenario.nodes
    views = [
        _ViewFile(
            name(view.leader, nodes),
            UNSET if not any(view.propose) else _groups(view.propose, nodes),
            UNSET if view.timeout == view.propose else _groups(view.timeout, nodes),
            _names(view.restart, nodes),
            view.leap,
            view.late,
        )
        for view in scenario.views
    ]
    file = _File(nodes, scenario.twins, scenario.depth, views, _names(scenario.crashed, nodes), story, mutant)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n")


def load(path: Path) -> tuple[Scenario, str, str | None]:
    """A scenario with its story and the mutant that it was saved for."""
    with path.open("rb") as opened:
        data = opened.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise ScenarioError(f"{path} is larger than {MAX_FILE} bytes, so it is no scenario.")
    try:
        file = msgspec.json.decode(data, type=_File)
        story = "".join(sign for sign in file.story if sign.isprintable() or sign == "\n")
        return _scenario(file), story, file.mutant
    except (msgspec.MsgspecError, ScenarioError) as error:
        raise ScenarioError(f"{path} is no Twins scenario: {error}") from None


def _scenario(file: _File) -> Scenario:
    if not (MIN_NODES <= file.nodes <= MAX_NODES and 0 <= file.twins < file.nodes and file.chain in (2, 3)):
        raise ScenarioError(f"nodes must be {MIN_NODES} to {MAX_NODES}, twins fewer, chain 2 or 3")
    if len(file.views) > MAX_VIEWS:
        raise ScenarioError(f"{len(file.views)} views; {MAX_VIEWS} are allowed")
    seats = {name(seat, file.nodes): seat for seat in range(file.nodes + file.twins)}
    views = tuple(_view(number, view, seats, file.nodes) for number, view in enumerate(file.views, 1))
    crashed = _seats(file.crashed, seats, "crashed")
    if any(seat >= file.nodes for seat in crashed):
        raise ScenarioError("crashed: name members, not second copies")
    if len(seats) > MAX_SEATS or set(range(file.twins, file.nodes)) <= set(crashed):
        raise ScenarioError(
            f"at most {MAX_SEATS} seats, and at least one member that is neither a twin nor crashed"
        )
    return Scenario(file.nodes, file.twins, file.chain, views, crashed)


def _view(number: int, view: _ViewFile, seats: dict[str, int], nodes: int) -> View:
    where = f"view {number}"
    leader = seats.get(view.leader)
    if leader is None or leader >= nodes:
        raise ScenarioError(f"{where}: there is no member {view.leader!r} to lead")
    propose = whole(len(seats)) if view.propose is UNSET else _partition(view.propose, seats, where)
    timeout = propose if view.timeout is UNSET else _partition(view.timeout, seats, where)
    return View(leader, propose, timeout, _seats(view.restart, seats, where), view.leap, view.late)


def _partition(groups: list[str], seats: dict[str, int], where: str) -> Partition:
    found = {seat: number for number, group in enumerate(groups) for seat in _seats(group, seats, where)}
    if sorted(found) != list(range(len(seats))) or sum(len(group.split()) for group in groups) != len(seats):
        raise ScenarioError(f"{where}: a partition names every seat once, out of {' '.join(seats)}")
    return normal(tuple(found[seat] for seat in range(len(seats))))


def normal(groups: tuple[int, ...]) -> Partition:
    """The same partition with its groups numbered in the order of their first seats."""
    order = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return tuple(order[group] for group in groups)


def _seats(text: str, seats: dict[str, int], where: str) -> tuple[int, ...]:
    unknown = [word for word in text.split() if word not in seats]
    if unknown:
        raise ScenarioError(f"{where}: there is no seat {unknown[0]!r}; there are {' '.join(seats)}")
    return tuple(sorted(seats[word] for word in text.split()))


def _groups(partition: Partition, nodes: int) -> list[str]:
    return [
        _names(tuple(seat for seat, at in enumerate(partition) if at == group), nodes)
        for group in sorted(set(partition))
    ]


def _names(seats: tuple[int, ...], nodes: int) -> str:
    return " ".join(name(seat, nodes) for seat in seats)
