"""The offline verifier accepts what replicas stored and names the first entry that somebody changed."""

from __future__ import annotations

import pytest
from tests.ledger.shard import GENESIS, told
from tests.pubsub.world import make_genesis
from tests.replica.driver import MemoryStore

from parley.crypto.encoding import u64
from parley.ledger import layout
from parley.ledger.audit import verify_store
from parley.pubsub.application import PubSub


def copy() -> MemoryStore:
    return MemoryStore(told().store.entries.items())


@pytest.mark.parametrize("replayed", [False, True])
def test_an_untouched_store_is_valid(replayed: bool) -> None:
    seen: list[tuple[int, int]] = []
    verdict = verify_store(
        copy(), GENESIS, PubSub(GENESIS) if replayed else None, lambda *step: seen.append(step)
    )
    assert verdict.first_fault is None
    assert verdict.valid
    assert verdict.publications == 15
    assert verdict.heights > 8
    assert seen[-1] == (verdict.heights, verdict.heights)


def test_a_store_of_another_network_is_not_valid() -> None:
    verdict = verify_store(copy(), make_genesis())
    assert verdict.first_fault is not None
    assert "genesis file" in verdict.first_fault


def kinds() -> list[bytes]:
    return [b"c/", b"r/", b"e/", b"h/", b"b/", b"m/", b"s/k", b"s/n", b"s/i"]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.decode())
def test_a_changed_byte_in_any_kind_of_entry_is_found_and_the_entry_is_named(kind: bytes) -> None:
    for key, value in list(copy().scan(kind))[:3] + list(copy().scan(kind))[-3:]:
        for at in (0, len(value) // 2, len(value) - 1):
            store = copy()
            store.entries[key] = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
            verdict = verify_store(store, GENESIS, PubSub(GENESIS))
            assert verdict.first_fault is not None, (key, at)
            assert verdict.first_fault.startswith("entry ")


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.decode())
def test_a_missing_entry_of_any_kind_is_found(kind: bytes) -> None:
    store = copy()
    keys = [key for key, _ in store.scan(kind)]
    del store.entries[keys[len(keys) // 2]]
    assert not verify_store(store, GENESIS, PubSub(GENESIS)).valid


def test_an_entry_that_should_not_be_there_is_found() -> None:
    store = copy()
    store.entries[layout.state(b"topic/ghost")] = b"boo"
    assert not verify_store(store, GENESIS).valid


def test_receipts_of_another_block_are_found_without_executing_anything() -> None:
    store = copy()
    head = len([key for key, _ in store.scan(b"c/")]) - 1
    assert verify_store(store, GENESIS).heights == head
    for height in range(1, head + 1):
        key = layout.receipts(height)
        if layout.decode_receipts(store.entries[key]):
            store.entries[key] = store.entries[layout.receipts(head)]  # the receipts of an empty block
            break
    verdict = verify_store(store, GENESIS)
    assert verdict.first_fault is not None
    assert verdict.first_fault.startswith("entry e/")


def test_heights_are_named_as_numbers() -> None:
    store = copy()
    del store.entries[b"c/" + u64(3)]
    fault = verify_store(store, GENESIS).first_fault
    assert fault == "entry c/3 is missing"
