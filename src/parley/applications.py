"""The applications of Parley, each a list of modules: what a ledger does is on this page.

The order of the list is the order in which modules begin and end a block and in which hooks are called.
"""

from __future__ import annotations

import os
from importlib import import_module

from parley.application.application import OWN_VERSIONS, Application
from parley.application.module import Module
from parley.application.work import Budget
from parley.model.genesis import Genesis
from parley.modules.advertisements import rules as advertisements
from parley.modules.publishing import rules as publishing
from parley.modules.registry import rules as registry
from parley.modules.retention import rules as retention
from parley.modules.staging import rules as staging
from parley.modules.subscriptions import rules as subscriptions
from parley.modules.topics import rules as topics

# Names another application as module:name, for networks whose genesis file allows faults.
VARIABLE = "PARLEY_APPLICATION"
VERSION = 6

MODULES: tuple[Module, ...] = (
    registry.MODULE,
    # Which settings policies may have is decided by brokers alike: another one is another version.
    topics.module(matching=("clear",), payload=("plain",)),
    subscriptions.MODULE,
    publishing.MODULE,
    retention.MODULE,
    staging.MODULE,
    advertisements.MODULE,
)

DATA_SHARD = Application("data shard", VERSION, MODULES)


def data_shard(numbered_bytes: int, budget: Budget | None = None) -> Application:
    """The data shard, but a block numbers so many bytes of staged batches, and may do so much: in simulations both are
    small, so that a little takes several blocks.
    """
    cramped = staging.module(numbered_bytes)
    modules = tuple(cramped if one is staging.MODULE else one for one in MODULES)
    return Application("data shard", VERSION, modules, budget)


class ApplicationError(ValueError):
    """The application that the environment names cannot be used."""


def application_of(genesis: Genesis) -> Application:
    """The application of a network. Raises `ApplicationError`."""
    return chosen_application(allow_faults=genesis.allow_faults)


def chosen_application(*, allow_faults: bool) -> Application:
    """The application that a network gets if it is made here. Raises `ApplicationError`."""
    named = os.environ.get(VARIABLE, "")
    if not named or not allow_faults:
        return DATA_SHARD
    module, _, name = named.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ApplicationError(
            f"{VARIABLE} is {named!r}, which cannot be loaded: {error}; it names a value as MODULE:NAME, and PYTHONPATH "
            "leads to the module"
        ) from None
    if not isinstance(found, Application):
        raise ApplicationError(f"{VARIABLE} is {named!r}, which is not an Application")
    if found.version < OWN_VERSIONS:
        raise ApplicationError(
            f"{VARIABLE} is {named!r}, of version {found.version}; those below {OWN_VERSIONS} are Parley's, so choose a "
            "higher one"
        )
    return found
