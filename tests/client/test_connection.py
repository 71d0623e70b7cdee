"""Connections: only to the broker that was meant, and never more in memory than credit allows."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from msgspec.structs import replace
from tests.application.world import actor
from tests.client.ledger import Ledger, note, place_of
from tests.client.stage import Stage, on_stage

from parley.client.client import Client, _preference
from parley.client.connection import MAX_QUEUED, Connection, Declined, Gone, Stream
from parley.client.contexts import Context
from parley.client.errors import NotSubscribed, PermissionDenied, Unreachable
from parley.consensus.committee import committee_of
from parley.ledger.proofs import ProofError
from parley.net.messages import Delivery, Failure, Fetch, Head, Listed

FIRST, SECOND = "broker-hospital-a", "broker-hospital-b"


@on_stage
async def test_a_broker_behind_anothers_address_is_not_talked_to(stage: Stage) -> None:
    alice = stage.registered("alice")
    swapped = {FIRST: stage[SECOND].address, SECOND: stage[FIRST].address}
    context = Context(stage.ledger.genesis, stage.identity(alice), swapped)
    with pytest.raises(Unreachable) as caught:
        await Client(context).__aenter__()
    assert all("certificate" in reason for reason in caught.value.tried.values())
    assert sum(broker.asked.total() for broker in stage.brokers) == 0


@on_stage
async def test_a_broker_of_another_network_is_not_talked_to(stage: Stage) -> None:
    """Its certificates are in order, and yet it started from another genesis file."""
    alice = stage.registered("alice")
    other = replace(stage.ledger.genesis, network="other")
    context = Context(other, stage.identity(alice), {FIRST: stage[FIRST].address})
    with pytest.raises(Unreachable, match="it belongs to another network; compare the genesis files"):
        await Client(context).__aenter__()


@on_stage
async def test_a_broker_that_comes_back_is_used_again(stage: Stage) -> None:
    alice = stage.registered("alice")
    async with stage.client(alice, first=FIRST) as client:
        address = stage[FIRST].address
        await stage[FIRST].stop()
        await client.publish("notes", "one", partition=0)
        stage[FIRST].start(address)
        for other in stage.brokers:
            if other.name != FIRST:
                await other.stop()
        await client.publish("notes", "two", partition=0)
        assert len(stage[FIRST].batches) == 1


@on_stage
async def test_a_brokers_words_do_not_steer_the_terminal_on_which_they_end_up(stage: Stage) -> None:
    alice = stage.registered("alice")
    stage.apply(stage.ledger.publication(alice, "notes", note("one")))
    async with stage.client(alice, first=FIRST) as client:
        stage[FIRST].lie = lambda question, answer: (
            Failure(question.id, PermissionDenied.code, "no\x1b]0;yours\x07\n\x9b2J", ())
            if isinstance(question, Fetch)
            else answer
        )
        assert (await client.read("notes", 0)).text() == "one"
        said = str(client.misbehaviour[0])  # and in the log
    assert r"no\x1b]0;yours\x07" in said
    assert not {"\x1b", "\x07", "\x9b"} & set(said)


def test_ones_own_organisation_comes_first_and_the_others_take_turns() -> None:
    genesis = Ledger().genesis
    names = [broker.name for broker in genesis.brokers]
    identity, committee = object(), committee_of(genesis, None)
    orders = set()
    for first in range(8):
        context = Context(genesis, identity, dict.fromkeys(names))  # type: ignore[arg-type]
        order = _preference(context, committee, "insurer", lambda _, first=first: bytes([first]))  # type: ignore[misc]
        assert sorted(order) == sorted(names)
        assert order[0] == "broker-insurer"
        orders.add(tuple(order))
    assert len(orders) == 3
    chosen = Context(genesis, identity, dict.fromkeys(names[::-1]), chosen=True)  # type: ignore[arg-type]
    assert _preference(chosen, committee, "insurer", bytes) == names[::-1]


# -- streams -----------------------------------------------------------------------------------------------------------


def pieces() -> tuple[Delivery, Head]:
    """A delivery of two messages, and a head."""
    ledger = Ledger()
    alice = ledger.client("alice")
    ledger.topic("notes")
    (start,) = ledger.subscribe(alice, "notes")
    ledger.publish(alice, "notes", note("one"), note("two"))
    delivery = ledger.delivery(actor("alice"), "notes", "", place_of(start))
    assert delivery is not None
    return delivery, ledger.head("notes", "")


def stream(credit: int) -> Stream:
    return Stream(cast("Connection", None), 1, credit, lambda: 0)


def test_the_last_delivery_may_overdraw_the_credit_and_the_next_may_not() -> None:
    async def story() -> None:
        delivery, _ = pieces()
        pushed = stream(credit=3)
        pushed.put(delivery)
        pushed.put(delivery)
        assert pushed.outstanding == -1
        with pytest.raises(ProofError, match="without credit"):
            pushed.put(delivery)

    asyncio.run(story())


def test_heads_do_not_pile_up() -> None:
    async def story() -> None:
        delivery, head = pieces()
        pushed = stream(credit=10)
        for number in range(MAX_QUEUED * 2):
            pushed.put(replace(head, id=number))
        pushed.put(delivery)
        pushed.put(head)
        assert [(await pushed.next())[0].id for _ in range(3)] == [MAX_QUEUED * 2 - 1, delivery.id, head.id]

    asyncio.run(story())


def test_a_stream_of_nothing_is_cut_off() -> None:
    async def story() -> None:
        delivery, _ = pieces()
        empty = replace(delivery, blocks=(replace(delivery.blocks[0], contents=()),))
        pushed = stream(credit=10)
        for _ in range(MAX_QUEUED):
            pushed.put(empty)
        with pytest.raises(ProofError, match="more than any credit allows"):
            pushed.put(empty)

    asyncio.run(story())


def test_what_came_before_the_end_of_a_stream_is_still_there() -> None:
    async def story() -> None:
        delivery, _ = pieces()
        pushed = stream(credit=10)
        pushed.put(delivery)
        pushed.put(Failure(1, NotSubscribed.code, "over", ()))
        pushed.lose(Gone("the connection broke"))
        assert (await pushed.next())[0] == delivery
        with pytest.raises(Declined, match="over"):
            await pushed.next()
        with pytest.raises(ProofError, match="sent a Listed"):
            pushed.put(Listed(1, (), more=False))

    asyncio.run(story())
