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

from parley.model.batches import CONTROL, PUBLISH, STAGED

RECORD = Path(__file__).parents[1] / "vectors" / "codes.json"


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


def record() -> None:
    """Once, on the code whose codes are to stay: what is recorded is never recorded again."""
    entries = [
        f"{json.dumps(name)}: {json.dumps(shortened(code for _, code in case()), separators=(',', ':'))}"
        for name, case in CASES.items()
    ]
    with RECORD.open("x") as file:
        file.write("{\n" + ",\n".join(entries) + "\n}\n")
