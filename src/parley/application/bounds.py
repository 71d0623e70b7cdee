"""What bounds the number of a table's entries: without a limit, one client could fill the state of all brokers.

A table counts its entries by a quota, holds a fixed number, or follows tables that do. `Bound.about` is for people; from
`Bound.most` follows the highest number of entries in a network, and a test compares it with what the state holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from parley.model.genesis import Genesis

if TYPE_CHECKING:
    from parley.application.quotas import Quota
    from parley.application.tables import AnyTable

# A number, or the name of one in the genesis file's limits.
Limit = int | Literal["clients", "topics", "subscriptions_per_client"]

KINDS = 32  # of things that applications count: `COUNTS` and `HELD` have entries for each of them


class Extent(Protocol):
    """How many entries the tables of one network have, or may have."""

    @property
    def genesis(self) -> Genesis: ...

    def of(self, table: AnyTable) -> int: ...

    def expiring(self) -> Collection[AnyTable]: ...


@dataclass(frozen=True, slots=True)
class Bound:
    """How many entries a table may have. `most` is None for indices that grow with the ledger, and for them alone.

    `quota` and `limit` are those that refuse one more, where entries are counted; each counts for at least `each`.
    """

    about: str
    most: Callable[[Extent], int] | None
    follows: tuple[AnyTable, ...] = ()
    quota: Quota | None = None
    limit: Limit = 0
    each: int = 1


def counted(quota: Quota, limit: Limit, *, each: int = 1, unit: str = "") -> Bound:
    """As many as a quota lets the network have, of which every organisation has an equal share."""
    kept = f"{_text(limit)}{unit and ' '}{unit} in the network, of which each organisation has an equal share"
    about = kept if each == 1 else f"{kept}; an entry counts for {_text(each)} or more"
    return Bound(about, lambda extent: number(limit, extent.genesis) // each, (), quota, limit, each)


def following(times: Limit, *tables: AnyTable) -> Bound:
    """So many for each entry of these tables."""
    names = " and ".join(f"`{table.name}`" for table in tables)
    return Bound(
        f"{'one' if times == 1 else _text(times)} for each entry of {names}",
        lambda extent: number(times, extent.genesis) * sum(map(extent.of, tables)),
        follows=tables,
    )


def fixed(limit: int, note: str = "") -> Bound:
    """So many in the network, without shares."""
    return Bound(f"{'one' if limit == 1 else _text(limit)} in the network{note}", lambda _: limit)


def ledger(each: str) -> Bound:
    """An index, which is no part of the state: it grows with the ledger that it leads to."""
    return Bound(f"grows with the ledger: one for each {each}", None)


def number(limit: Limit, genesis: Genesis) -> int:
    if isinstance(limit, int):
        return limit
    found: int = getattr(genesis.limits, limit)
    return found


def _text(limit: Limit) -> str:
    if isinstance(limit, int):
        return f"{limit:,}".replace(",", " ")
    return f"`limits.{limit}` of the genesis file"


# For entries that are counters, and lists of the host.
PER_ORGANISATION = Bound(
    "one for each organisation and kind of thing that is counted, and one for the network",
    lambda extent: KINDS * (1 + len(extent.genesis.organisations)),
)
PER_PRINCIPAL = Bound(
    "one for each kind of thing that is counted and each client or administrator that holds some of it",
    lambda extent: KINDS * (extent.genesis.limits.clients + _administrators(extent.genesis)),
)
PER_EXPIRING_ENTRY = Bound(
    "one for each entry of a table that expires", lambda extent: sum(map(extent.of, extent.expiring()))
)


def _administrators(genesis: Genesis) -> int:
    return sum(len(organisation.admins) for organisation in genesis.organisations)


@dataclass(frozen=True, slots=True)
class Most:
    """The highest number of entries that each table can have in a network."""

    genesis: Genesis
    tables: Collection[AnyTable]

    def of(self, table: AnyTable) -> int:
        """Tables follow only such as were declared before, so this ends."""
        assert table.bound is not None
        assert table.bound.most is not None, "nothing follows what grows with the ledger"
        return table.bound.most(self)

    def expiring(self) -> Collection[AnyTable]:
        return [table for table in self.tables if table.expires]
