"""Every table says what bounds it: one that a later module forgets is refused before it runs anywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.application.reservations import APPLICATION, MODULE, RESERVATIONS
from tests.application.world import World, make_genesis

from parley.application.application import OWN_VERSIONS, Application
from parley.application.bounds import Bound, Most, counted, fixed, following, ledger, number
from parley.application.quotas import COUNTS, Quota
from parley.application.tables import TEXT, AnyTable, Table
from parley.applications import DATA_SHARD, MODULES
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.tables import HEADS, TOPICS

COUNTED = [table for table in APPLICATION.tables.values() if table.bound and table.bound.quota]


def extended(bound: Bound | None, *, index: bool = False) -> Application:
    """An application with one table more."""
    notes: Table[bytes, str] = Table(
        "notes", bytes, TEXT, about="Notes.", bound=bound, index=index, passing=index
    )
    module = replace(MODULE, tables=(*MODULE.tables, notes))
    return Application("with notes", OWN_VERSIONS, (*MODULES, module))


def test_a_table_without_a_bound_is_refused() -> None:
    with pytest.raises(AssertionError, match="table notes has no bound: say what limits"):
        extended(None)


def test_what_is_part_of_the_state_does_not_grow_with_the_ledger() -> None:
    with pytest.raises(AssertionError, match="table notes of the state grows without limit"):
        extended(ledger("note"))
    assert "notes" in extended(ledger("note"), index=True).tables


def test_a_table_that_follows_one_of_another_application_is_refused() -> None:
    foreign: Table[bytes, str] = Table("foreign", bytes, TEXT, about="Foreign.", bound=fixed(1))
    with pytest.raises(AssertionError, match="table notes follows foreign"):
        extended(following(1, foreign))
    assert "notes" in extended(following(1, RESERVATIONS)).tables


@pytest.mark.parametrize("table", DATA_SHARD.tables.values(), ids=lambda table: table.name)
def test_every_table_has_a_bound_that_a_person_can_read(table: AnyTable) -> None:
    assert table.bound is not None
    assert table.bound.about
    assert (table.bound.most is None) == table.bound.about.startswith("grows with the ledger")
    if table.bound.most is not None:
        assert 0 < Most(make_genesis(), DATA_SHARD.tables.values()).of(table) < 2**40


def test_the_highest_number_of_entries_follows_from_the_limits_of_the_genesis_file() -> None:
    genesis = make_genesis()
    most = Most(genesis, DATA_SHARD.tables.values())
    limits = genesis.limits
    assert most.of(TOPICS) == limits.topics
    assert most.of(HEADS) == 64 * limits.topics
    assert most.of(SUBSCRIPTIONS) == limits.clients * limits.subscriptions_per_client
    assert most.of(ORDER_HEADS) == 64 * most.of(SUBSCRIPTIONS)


@pytest.mark.parametrize("table", COUNTED, ids=lambda table: table.name)
def test_the_quota_that_a_table_names_refuses_one_organisation_and_not_the_others(table: AnyTable) -> None:
    assert table.bound is not None
    quota, limit = table.bound.quota, table.bound.limit
    assert quota is not None
    world = World()
    block = world.machine._begin(world.next_block([]), world.store)
    most = number(limit, world.genesis)
    share = -(-most // len(world.genesis.organisations))
    COUNTS.put(block.state, quota.what, "hospital-a", record=share)
    COUNTS.put(block.state, quota.what, "", record=share)
    with pytest.raises(quota.refusal) as of_organisation:
        quota.require(block, "hospital-a", most)
    assert of_organisation.value.reason == f"{quota.reason or quota.what}_of_organisation"
    quota.require(block, "hospital-b", most)
    COUNTS.put(block.state, quota.what, "", record=most)
    with pytest.raises(quota.refusal) as of_network:
        quota.require(block, "hospital-b", most)
    assert of_network.value.reason == f"{quota.reason or quota.what}_of_network"


def test_a_bound_reads_as_a_sentence() -> None:
    notes: Table[bytes, str] = Table("notes", bytes, TEXT, about="Notes.")
    equal = "in the network, of which each organisation has an equal share"
    assert counted(Quota("notes"), "clients").about == f"`limits.clients` of the genesis file {equal}"
    assert counted(Quota("notes"), 5_000, each=1_000, unit="bytes").about == (
        f"5 000 bytes {equal}; an entry counts for 1 000 or more"
    )
    assert following(1, notes).about == "one for each entry of `notes`"
    assert following(64, notes, TOPICS).about == "64 for each entry of `notes` and `topic`"
    assert fixed(1).about == "one in the network"
    assert fixed(4_096).about == "4 096 in the network"
