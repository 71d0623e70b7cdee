"""An application as a value: a version, and a list of modules from which everything else follows.

It is handed to nodes, clients, audits and Spark; what runs on a broker is what `mount` makes of it for one network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from parley.application import keeping, quotas, sequences, strangers
from parley.application.block import BlockContext, Derived, Hook
from parley.application.expiry import BEHIND, EXPIRY, Expire
from parley.application.keeping import Keeper
from parley.application.machine import Machine
from parley.application.module import AnyTable, Apply, BatchKind, Index, Module
from parley.application.operations import Operation, OperationDecoder
from parley.application.rows import EVIDENCE, LEDGER_TABLES, ChangeTable
from parley.application.state import State
from parley.application.texts import TEXTS
from parley.ledger.application import KeyValue, Mounted
from parley.model.genesis import Genesis
from parley.model.principals import Principal
from parley.model.receipts import HOST_OUTCOMES, BatchReceipt, Leaf, LeafDecoder, Outcome
from parley.model.texts import Texts, add_texts


class VersionError(ValueError):
    """The network runs another version of the application than this program has."""


class Application:
    """`version` is raised with every change of what the modules decide: all brokers of a network have the same (P24)."""

    def __init__(self, name: str, version: int, modules: tuple[Module, ...]) -> None:
        self.name = name
        self.version = version
        self.modules = (HOST, *modules)
        self.decode_leaf = LeafDecoder(self.outcomes, self.leaf_kinds)
        self.decode_operation = OperationDecoder(self.operations.values())
        self._require_consistent()
        add_texts(self.texts)

    def mount(self, genesis: Genesis) -> Mounted[Machine]:
        """The application on one broker of a network. Raises `VersionError`."""
        self.require_version(genesis)
        machine = Machine(self, genesis)
        return Mounted(machine, Keeper(self, machine))

    def require_version(self, genesis: Genesis) -> None:
        if genesis.application != self.version:
            raise VersionError(
                f"network {genesis.network} runs version {genesis.application} of its application, and this program has "
                f"version {self.version}; install a release of Parley with version {genesis.application}"
            )

    # -- what follows from the modules ------------------------------------------------------------------------------

    @cached_property
    def operations(self) -> Mapping[str, type[Operation]]:
        """By name."""
        return {kind.name_of(): kind for kind in self.apply_operation}

    @cached_property
    def apply_operation(self) -> Mapping[type[Operation], Apply]:
        return {kind: apply for module in self.modules for kind, apply in module.operations.items()}

    @cached_property
    def outcomes(self) -> tuple[type[Outcome], ...]:
        return (*HOST_OUTCOMES, *(outcome for module in self.modules for outcome in module.outcomes))

    @cached_property
    def leaf_kinds(self) -> tuple[type[Leaf], ...]:
        """Besides receipts of batches."""
        return tuple(leaf for module in self.modules for leaf in module.leaves)

    @cached_property
    def batch_kinds(self) -> Mapping[int, BatchKind]:
        """By the number in a batch's header."""
        return {kind.kind: kind for module in self.modules for kind in module.batches}

    @cached_property
    def tables(self) -> Mapping[str, AnyTable]:
        """By name, those of the indices besides those of the state."""
        return {table.name: table for module in self.modules for table in module.tables}

    @cached_property
    def changes(self) -> Mapping[str, ChangeTable]:
        return {table.name: table for module in self.modules for table in module.changes}

    @cached_property
    def hooks(self) -> Mapping[Hook[Any], tuple[Callable[..., None], ...]]:
        found: dict[Hook[Any], tuple[Callable[..., None], ...]] = {}
        for module in self.modules:
            for hook, handle in module.hooks.items():
                found[hook] = (*found.get(hook, ()), handle)
        return found

    @cached_property
    def derived(self) -> tuple[Derived[Any], ...]:
        return tuple(one for module in self.modules for one in module.derived)

    @cached_property
    def expiring(self) -> Mapping[str, tuple[AnyTable, Expire]]:
        """What happens to entries whose height has come, by the name of their table."""
        return {
            table.name: (table, expire) for module in self.modules for table, expire in module.expire.items()
        }

    @cached_property
    def index(self) -> Mapping[type[Leaf | Outcome], Index]:
        return {kind: index for module in self.modules for kind, index in module.index.items()}

    @cached_property
    def over(self) -> Mapping[str, Callable[[BatchReceipt, int | None, KeyValue], bool]]:
        """Whether a batch will never be read again, by the name of its outcome."""
        return {
            str(outcome.__struct_config__.tag): over
            for module in self.modules
            for outcome, over in module.over.items()
        }

    @cached_property
    def texts(self) -> Texts:
        return {key: text for module in self.modules for key, text in module.texts.items()}

    def principals(self, genesis: Genesis) -> Callable[[State, bytes], Principal]:
        """Which principal a key is, in one network."""
        (known,) = [module.principals for module in self.modules if module.principals is not None]
        return known(genesis)

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
        for table in self.tables.values():
            leads = not table.index or table.passing or hasattr(table.record, "height")
            assert leads, f"entries of index {table.name} lead to a block, so that their record has a height"
        expiring = {table.name for table in self.tables.values() if table.expires}
        assert expiring == set(self.expiring), (
            "every table that expires says what happens then, and no other does"
        )


def _delete_chunk(block: BlockContext, key: tuple[bytes, int], _listed: int) -> int:
    sequences.CHUNKS.delete(block.state, *key)
    return 1


# What every application keeps, declared as modules declare theirs.
HOST = Module(
    name="host",
    tables=(
        BEHIND,
        EXPIRY,
        keeping.RECEIPTS,
        keeping.TO_ERASE,
        quotas.COUNTS,
        quotas.HELD,
        sequences.CHUNKS,
        sequences.SEQUENCES,
        sequences.SEQUENCES_OF,
        strangers.REMEMBERED,
        strangers.STRANGERS,
    ),
    expire={
        sequences.CHUNKS: _delete_chunk,
        sequences.SEQUENCES: sequences.expire_sequence,
        strangers.STRANGERS: strangers.expire,
    },
    texts=TEXTS,
)
