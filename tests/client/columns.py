"""One answer looked at message by message and column by column: the two must come to the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from parley.client.beliefs import Reader, Stale, VerifiedView
from parley.client.columns import ColumnPage, check_packed
from parley.client.verification import Page, Question, check_fetched
from parley.ledger.proofs import ProofError
from parley.net.messages import Fetched, PackedFetched, decode_packed, encode

__all__ = ["checked_both_ways", "packed", "rows_of"]

P = TypeVar("P")


def packed(answer: Fetched) -> PackedFetched:
    found = decode_packed(encode(answer))
    assert isinstance(found, PackedFetched)
    return found


def checked_both_ways(view: VerifiedView, answer: Fetched, reader: Reader, question: Question) -> Page:
    page = _outcome(lambda: check_fetched(view, answer, reader, question))
    columns = _outcome(lambda: check_packed(view, packed(answer), reader, question))
    # Each was asked by itself: what one refuses must not hide that the other believes it.
    if isinstance(page, ProofError | Stale):
        assert type(columns) is type(page)
        raise page
    assert isinstance(columns, ColumnPage)
    assert columns.head == page.head
    assert rows_of(columns) == [
        (one.offset, one.empty, one.rule, one.publisher, one.height, one.time)
        + (() if one.empty else (one.key, one.value, dict(one.tags), dict(one.headers)))
        for one in page.messages
    ]
    return page


def _outcome(check: Callable[[], P]) -> P | ProofError | Stale:
    try:
        return check()
    except (ProofError, Stale) as error:
        return error


def rows_of(page: ColumnPage) -> list[tuple[object, ...]]:
    """Everything that columns say, in the order of offsets."""
    found: list[tuple[object, ...]] = []
    for batch in page.batches:
        origin = (batch.publisher, batch.height, batch.time)
        found += [(offset, True, rule, *origin) for offset, rule in batch.hidden]
        for at, offset in enumerate(batch.offsets):
            header = page.headers[batch.headers[at]]
            said = (header.key, batch.payloads[at], dict(header.tags), dict(header.headers))
            found.append((offset, False, batch.rules[at], *origin, *said))
    return sorted(found, key=lambda row: row[:1])
