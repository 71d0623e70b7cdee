"""All cases by their names, and their record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, groupby
from pathlib import Path

from tests.application.almost import (
    applied,
    expressions,
    faults,
    flips,
    lists,
    message_headers,
    operations,
    wrappings,
)
from tests.application.asking import ASKERS, answers
from tests.application.codes import Said
from tests.application.crowds import crowd
from tests.application.stories import (
    OPERATIONS,
    advertising,
    clients,
    costs,
    history,
    interests,
    publishing,
    quotas,
    rights,
    sequences,
    staged_bytes,
    stages,
    standings,
    topics,
    writers,
)

from parley.applications import VERSION
from parley.model.batches import CONTROL, PUBLISH, STAGED

VECTORS = Path(__file__).parents[1] / "vectors"
RECORD = VECTORS / "codes.json"  # of version 2


def _cases() -> Iterator[tuple[str, Callable[[], list[Said]]]]:
    for seed in range(60):
        yield f"history {seed}", partial(history, seed)
    stories = (
        clients,
        rights,
        quotas,
        topics,
        interests,
        advertising,
        publishing,
        sequences,
        stages,
        staged_bytes,
        writers,
        costs,
        lists,
    )
    for story in stories:
        yield story.__name__.replace("_", " "), story
    for seed in range(60):
        yield f"crowd {seed}", partial(crowd, seed)
    for one in OPERATIONS:
        yield f"standings {one}", partial(standings, one)
        yield f"operations {one}", partial(operations, one)
        yield f"applied {one}", partial(applied, one)
    for kind in (PUBLISH, CONTROL, STAGED):
        yield f"faults {kind}", partial(faults, kind)
        yield f"wrappings {kind}", partial(wrappings, kind)
        for seed in range(3):
            yield f"flips {kind} {seed}", partial(flips, kind, seed)
    for seed in range(3):
        yield f"message headers {seed}", partial(message_headers, seed)
        yield f"expressions {seed}", partial(expressions, seed)
    for name in ASKERS:
        yield f"answers to {name}", partial(answers, name)


CASES: dict[str, Callable[[], list[Said]]] = dict(_cases())


def shortened(codes: Iterable[str]) -> list[str]:
    """Runs of the same code as one word."""
    runs = [(code, len(list(run))) for code, run in groupby(codes)]
    return [code if count == 1 else f"{code}*{count}" for code, count in runs]


def lengthened(words: Iterable[str]) -> list[str]:
    runs = [word.partition("*") for word in words]
    return list(chain.from_iterable([code] * int(count or 1) for code, _, count in runs))


def recorded(version: int = VERSION) -> dict[str, list[str]]:
    """The codes of all cases: those of the first record, and what later versions decide otherwise."""
    codes: dict[str, list[str]] = json.loads(RECORD.read_text())
    for later in range(3, version + 1):
        changed = _changes(later)
        codes |= json.loads(changed.read_text()) if changed.exists() else {}
    return codes


def record(version: int = VERSION) -> None:
    """Once for a new version: what it decides otherwise than those before. What is recorded is never recorded again."""
    before = recorded(version - 1)
    codes = {name: shortened(code for _, code in case()) for name, case in CASES.items()}
    entries = [
        f"{json.dumps(name)}: {json.dumps(words, separators=(',', ':'))}"
        for name, words in codes.items()
        if words != before.get(name)
    ]
    with _changes(version).open("x") as file:
        file.write("{\n" + ",\n".join(entries) + "\n}\n")


def _changes(version: int) -> Path:
    return VECTORS / f"codes-{version}.json"
