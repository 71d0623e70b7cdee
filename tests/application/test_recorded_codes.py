"""Everything that was refused is refused with the same code, and what was done is done: as it was recorded."""

from __future__ import annotations

import pytest
from tests.application.corpus import CASES, lengthened, recorded

_RECORDED = recorded()


def test_every_case_was_recorded_and_no_other() -> None:
    assert _RECORDED.keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_codes_are_those_that_were_recorded(name: str) -> None:
    said, recorded = CASES[name](), lengthened(_RECORDED[name])
    assert len(said) == len(recorded)
    different = [
        f"{at}: {what}: was {then}, is {now}"
        for at, ((what, now), then) in enumerate(zip(said, recorded, strict=True))
        if now != then
    ]
    assert not different
