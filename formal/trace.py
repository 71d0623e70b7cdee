"""What the model prints, as steps with the members' own names: the input of `tests/formal`, kept in `formal/traces`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = [
    "Certified",
    "MayTimeout",
    "MayVote",
    "Proposed",
    "Step",
    "TimedOut",
    "Trace",
    "Voted",
    "parse",
    "resolve",
]

QUORUM = 3
_WORDS = re.compile(
    r"^\s*(propose|vote|timeout|qc|commit|may vote|may timeout|swap|end)((?: \w+=[\d,-]*)+)\s*$"
)


@dataclass(frozen=True, slots=True)
class Proposed:
    """A block appears; `by` signed the TC in its header, if it has one (tc: its view, or 0)."""

    block: int
    view: int
    parent: int
    tc: int
    by: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Voted:
    member: int
    block: int


@dataclass(frozen=True, slots=True)
class TimedOut:
    member: int
    view: int
    qc: int


@dataclass(frozen=True, slots=True)
class Certified:
    """A block has a quorum of votes; `final` heads the run that ends in it, 0: none."""

    block: int
    final: int


@dataclass(frozen=True, slots=True)
class MayVote:
    member: int
    block: int


@dataclass(frozen=True, slots=True)
class MayTimeout:
    member: int
    view: int
    qc: int
    tc: int


Step = Proposed | Voted | TimedOut | Certified


@dataclass(slots=True)
class Trace:
    """A run of the model. If `complete`, `may` is all that the rules of the model allow after the last step."""

    parameters: dict[str, str]
    steps: list[Step] = field(default_factory=list)
    may: set[MayVote | MayTimeout] = field(default_factory=set)
    complete: bool = False
    violated: int = 0

    @property
    def depth(self) -> int:
        return int(self.parameters.get("DEPTH", "2"))

    @property
    def views(self) -> int:
        return int(self.parameters["V"])

    @property
    def honest(self) -> range:
        return range(4 - int(self.parameters.get("BYZ", "1")))


def resolve(output: str, macros: dict[str, str], **notes: object) -> str:
    """The model's own output as a trace file: exchanged members get their names back, TCs their signers."""
    literal = "LITERAL" in macros
    names = list(range(4))
    claims: dict[tuple[int, int], int] = {}
    parameters = " ".join(f"{key}={value}" for key, value in {**macros, **notes}.items())
    lines = [f"# voting.pml {parameters}"]
    for verb, words in _words(output.splitlines()):
        if "r" in words and verb != "swap":
            words["r"] = str(names[int(words["r"])])
        match verb:
            case "swap":
                a, z = int(words["r"]), int(words["with"])
                names[a], names[z] = names[z], names[a]
                continue
            case "timeout":
                claims[int(words["view"]), int(words["r"])] = int(words["qc"])
            case "propose":
                mask = int(words["by"])
                tc = int(words["tc"])
                signers = [i for i in range(4) if mask >> i & 1] if literal else _lowest(claims, tc)
                words["by"] = ",".join(map(str, signers)) if tc else "-"
            case _:
                pass
        lines.append(" ".join([verb, *(f"{key}={value}" for key, value in words.items())]))
    if literal:
        lines.append("complete")
    return "\n".join(lines) + "\n"


def parse(text: str) -> Trace:
    """A trace file. `commit` belongs to the `qc` before it."""
    first, *lines = text.splitlines()
    trace = Trace(dict(word.partition("=")[::2] for word in first.split()[2:]), complete="complete" in lines)
    for verb, words in _words(lines):
        number = {key: int(value) for key, value in words.items() if key != "by"}
        match verb:
            case "propose":
                by = tuple(int(i) for i in words["by"].split(",") if i != "-")
                trace.steps.append(Proposed(number["b"], number["view"], number["parent"], number["tc"], by))
            case "vote":
                trace.steps.append(Voted(number["r"], number["b"]))
            case "timeout":
                trace.steps.append(TimedOut(number["r"], number["view"], number["qc"]))
            case "qc":
                trace.steps.append(Certified(number["b"], 0))
            case "commit":
                last = trace.steps[-1]
                assert isinstance(last, Certified)
                trace.steps[-1] = Certified(last.block, number["b"])
            case "may vote":
                trace.may.add(MayVote(number["r"], number["b"]))
            case "may timeout":
                trace.may.add(MayTimeout(number["r"], number["view"], number["qc"], number["tc"]))
            case _:
                trace.violated = number["violated"]
    return trace


def _words(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, str]]]:
    for line in lines:
        if found := _WORDS.match(line):
            yield found[1], dict(word.partition("=")[::2] for word in found[2].split())


def _lowest(claims: dict[tuple[int, int], int], view: int) -> list[int]:
    """The signers of the TC that helps the adversary most."""
    signers = [member for of, member in claims if of == view]
    return sorted(sorted(signers, key=lambda member: claims[view, member])[:QUORUM])
