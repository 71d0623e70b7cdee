"""An application as a value: a version, and a list of modules from which everything else follows.

It is handed to nodes, clients, audits and Spark; what runs on a broker is what `mount` makes of it for one network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from parley.application import keeping, quotas, sequences, strangers
from parley.application.block import Hook
from parley.application.exceeding import EXCEEDED
from parley.application.expiry import BEHIND, EXPIRY
from parley.application.jobs import Job
from parley.application.keeping import Keeper
from parley.application.machine import Machine
from parley.application.module import Apply, Cost, Index, Module
from parley.application.operations import Operation, OperationDecoder
from parley.application.rows import EVIDENCE, LEDGER_TABLES
from parley.application.state import State
from parley.application.tables import AnyTable, Reader
from parley.application.texts import TEXTS
from parley.application.work import OPERATION, Budget
from parley.ledger.application import Mounted
from parley.model.genesis import Genesis
from parley.model.principals import Principal
from parley.model.receipts import HOST_OUTCOMES, Leaf, LeafDecoder, Outcome
from parley.model.texts import add_texts

K = TypeVar("K")
V = TypeVar("V")


# Versions from here on belong to applications that are not Parley's, so that the two cannot be confused.
OWN_VERSIONS = 1_000


class VersionError(ValueError):
    """The network runs another version of the application than this program has."""


class Application:
    """`version` is raised with every change of what the modules decide: all brokers of a network have the same (P24)."""

    def __init__(
        self, name: str, version: int, modules: tuple[Module, ...], budget: Budget | None = None
    ) -> None:
        self.name = name
        self.version = version
        self.budget = budget or Budget()  # of a block
        self.modules = every = (HOST, *modules)
        self.apply_operation: Mapping[type[Operation], Apply] = _joined(one.operations for one in every)
        self.costs: Mapping[type[Operation], Cost] = _joined(one.costs for one in every)
        self.jobs: Mapping[AnyTable, Job] = _joined(one.jobs for one in every)
        self.settings: Mapping[str, tuple[str, ...]] = _joined(one.settings for one in every)
        self.operations = {kind.name_of(): kind for kind in self.apply_operation}
        self.outcomes = (*HOST_OUTCOMES, *(outcome for one in every for outcome in one.outcomes))
        # Besides receipts of batches.
        self.leaf_kinds = tuple(leaf for one in every for leaf in one.leaves)
        # By the number in a batch's header.
        self.batch_kinds = {kind.kind: kind for one in every for kind in one.batches}
        # By name, those of the indices besides those of the state.
        self.tables = {table.name: table for one in every for table in one.tables}
        self.changes = {table.name: table for one in every for table in one.changes}
        hooks = dict.fromkeys(hook for one in every for hook in one.hooks)
        # The handlers of each hook, in the order of the modules.
        self.hooks: Mapping[Hook[Any], tuple[Callable[..., None], ...]] = {
            hook: tuple(one.hooks[hook] for one in every if hook in one.hooks) for hook in hooks
        }
        self.derived = tuple(derived for one in every for derived in one.derived)
        # What happens to entries whose height has come, by the name of their table.
        self.expiring = {table.name: (table, expire) for one in every for table, expire in one.expire.items()}
        self.index: Mapping[type[Leaf | Outcome], Index] = _joined(one.index for one in every)
        # Whether a batch will never be read again, by the name of its outcome.
        self.over = {
            str(outcome.__struct_config__.tag): over for one in every for outcome, over in one.over.items()
        }
        self.texts: Mapping[str, str] = _joined(one.texts for one in every)
        self.decode_leaf = LeafDecoder(self.outcomes, self.leaf_kinds)
        self.decode_operation = OperationDecoder(self.operations.values())
        self._require_consistent()
        add_texts(self.texts)

    def mount(self, genesis: Genesis, shard: int = 0) -> Mounted[Machine]:
        """The application on one broker of a network, for the ledger of this shard. Raises `VersionError`."""
        self.require_version(genesis)
        machine = Machine(self, genesis, shard)
        return Mounted(machine, Keeper(self, machine))

    def require_version(self, genesis: Genesis) -> None:
        if genesis.application != self.version:
            remedy = f"install a release of Parley with version {genesis.application}"
            if genesis.application >= OWN_VERSIONS:
                remedy = "name the network's own application with PARLEY_APPLICATION, as its brokers do"
            raise VersionError(
                f"network {genesis.network} runs version {genesis.application} of its application, and this program has "
                f"version {self.version}; {remedy}"
            )

    def principals(self, genesis: Genesis) -> Callable[[State, bytes], Principal]:
        """Which principal a key is, in one network."""
        (known,) = [module.principals for module in self.modules if module.principals is not None]
        return known(genesis)

    def cost_of(self, reader: Reader, by: Principal, operation: Operation) -> int:
        """What carrying out the operation will touch, as far as that is done in its own block."""
        cost = self.costs.get(type(operation))
        return OPERATION if cost is None else OPERATION + cost(reader, by, operation)

    def table_of(self, key: bytes) -> AnyTable | None:
        """The table of an entry, by its key or a prefix that names the table."""
        name, slash, _ = key.partition(b"/")
        return self.tables.get(name.decode(errors="replace")) if slash else None

    def _require_consistent(self) -> None:
        """That no module uses a name of another, and that nothing that must be declared was forgotten."""
        for what, names in (
            ("table", [table.name for module in self.modules for table in module.tables]),
            ("operation", [kind.name_of() for module in self.modules for kind in module.operations]),
            ("module", [module.name for module in self.modules]),
            ("kind of batch", [str(kind.kind) for module in self.modules for kind in module.batches]),
            (
                "ledger table",
                [
                    *LEDGER_TABLES,
                    EVIDENCE,
                    *(table.name for module in self.modules for table in module.changes),
                ],
            ),
        ):
            twice = {name for name in names if names.count(name) > 1}
            assert not twice, f"{what} {min(twice)} is declared twice"
        for refusal in (refusal for module in self.modules for refusal in module.refusals):
            said = any(key.partition(".")[0] == refusal.code for key in self.texts)
            assert said, f"refusal {refusal.code} has no text"
        for table in self.tables.values():
            self._require_bound(table)
            leads = not table.index or table.passing or hasattr(table.record, "height")
            assert leads, f"entries of index {table.name} lead to a block, so that their record has a height"
        expiring = {table.name for table in self.tables.values() if table.expires}
        assert expiring == set(self.expiring), (
            "every table that expires says what happens then, and no other does"
        )

    def _require_bound(self, table: AnyTable) -> None:
        bound = table.bound
        assert bound is not None, (
            f"table {table.name} has no bound: say what limits the number of its entries, "
            "with a quota (`counted`), by another table (`following`), or `fixed`"
        )
        assert table.index or bound.most is not None, f"table {table.name} of the state grows without limit"
        strange = [one.name for one in bound.follows if one is not self.tables.get(one.name)]
        assert not strange, f"table {table.name} follows {strange[0]}, which this application does not have"


def _joined(parts: Iterable[Mapping[K, V]]) -> dict[K, V]:
    return {key: value for part in parts for key, value in part.items()}


# What every application keeps, declared as modules declare theirs.
HOST = Module(
    name="host",
    tables=(
        BEHIND,
        EXCEEDED,
        EXPIRY,
        keeping.RECEIPTS,
        keeping.TO_ERASE,
        quotas.COUNTS,
        quotas.HELD,
        sequences.CHUNKS,
        sequences.SEQUENCES,
        sequences.SESSIONS,
        strangers.REMEMBERED,
        strangers.STRANGERS,
    ),
    expire={
        sequences.CHUNKS: sequences.expire_chunk,
        sequences.SEQUENCES: sequences.expire_sequence,
        strangers.STRANGERS: strangers.expire,
    },
    texts=TEXTS,
)
