"""The offline verifier accepts what replicas stored and names the first entry that somebody changed."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from tests.application.world import make_genesis
from tests.ledger.shard import GENESIS, staged, told
from tests.replica.driver import MemoryStore

from parley.application.keeping import RECEIPTS, TO_ERASE, Keeper
from parley.application.machine import Machine
from parley.application.quotas import COUNTS
from parley.applications import DATA_SHARD
from parley.crypto.encoding import u64
from parley.ledger import layout
from parley.ledger.application import Indexing, Mounted
from parley.ledger.audit import verify_store
from parley.ledger.erasure import remains_of
from parley.ledger.layout import StoredBlock
from parley.model.batches import PUBLISH, open_batch
from parley.model.receipts import BatchReceipt, Done, encode_leaf
from parley.modules.publishing.receipts import Published, published
from parley.modules.retention.tables import LOGS_TO_ERASE
from parley.modules.staging.tables import CONTENTS, STAGED, STAGES, STAGING
from parley.modules.topics.tables import TOPICS
from parley.sim.counter import NoIndices
from parley.store.interface import KeyValue

decode_leaf = DATA_SHARD.decode_leaf


def mounted() -> Mounted[Machine]:
    return DATA_SHARD.mount(GENESIS)


def kept_by(keeper: type[Keeper]) -> Mounted:
    machine = mounted().machine
    return Mounted(machine, keeper(DATA_SHARD, machine))


class Unindexed(Keeper):
    """It expects no entries of indices."""

    def indexing(self, height: int, state: KeyValue, first: int = 0) -> Indexing:
        del height, state, first
        return NoIndices()


def unindexed() -> Mounted:
    return kept_by(Unindexed)


def index_of_receipt(digest: bytes) -> bytes:
    return layout.APPLICATION + RECEIPTS.place(digest)


def copy() -> MemoryStore:
    return MemoryStore(told().store.entries.items())


@pytest.mark.parametrize("replayed", [False, True])
def test_an_untouched_store_is_valid(replayed: bool) -> None:
    seen: list[tuple[int, int]] = []
    verdict = verify_store(
        copy(), GENESIS, mounted(), lambda *step: seen.append(step), replay=replayed, shard=0
    )
    assert verdict.first_fault is None
    assert verdict.valid
    assert verdict.publications == 15
    assert verdict.replayed is replayed
    assert verdict.heights > 8
    assert seen[-1] == (verdict.heights, verdict.heights)


def test_a_store_of_another_network_is_not_valid() -> None:
    verdict = verify_store(copy(), make_genesis(), DATA_SHARD.mount(make_genesis()), shard=0)
    assert verdict.first_fault is not None
    assert "genesis file" in verdict.first_fault


def kinds() -> list[bytes]:
    return [b"c/", b"r/", b"e/", b"h/", b"b/", b"m/", b"s/k", b"s/n", b"s/i"]


@pytest.mark.parametrize("kind", [*kinds(), b"u/"], ids=lambda kind: kind.decode())
@pytest.mark.parametrize("replay", [True, False])
def test_a_changed_byte_in_any_kind_of_entry_is_found_and_the_entry_is_named(
    kind: bytes, replay: bool
) -> None:
    entries = [(key, value) for key, value in copy().scan(kind) if value]
    for key, value in entries[:3] + entries[len(entries) // 2 :][:1]:
        for at in (0, len(value) // 2, len(value) - 1):
            store = copy()
            store.entries[key] = value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
            verdict = verify_store(store, GENESIS, mounted(), replay=replay, shard=0)
            assert verdict.first_fault is not None, (key, at)
            assert verdict.first_fault.startswith(f"entry {layout.name(key)} "), (key, at)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.decode())
def test_a_missing_entry_of_any_kind_is_found(kind: bytes) -> None:
    store = copy()
    keys = [key for key, _ in store.scan(kind)]
    del store.entries[keys[len(keys) // 2]]
    assert not verify_store(store, GENESIS, mounted(), shard=0).valid


def test_an_entry_that_should_not_be_there_is_found() -> None:
    store = copy()
    store.entries[layout.state(b"topic/ghost")] = b"boo"
    assert not verify_store(store, GENESIS, mounted(), replay=False, shard=0).valid


def test_receipts_of_another_block_are_found_without_executing_anything() -> None:
    store = copy()
    head = len([key for key, _ in store.scan(b"c/")]) - 1
    assert verify_store(store, GENESIS, mounted(), replay=False, shard=0).heights == head
    for height in range(1, head + 1):
        key = layout.receipts(height)
        if layout.decode_receipts(store.entries[key]):
            store.entries[key] = store.entries[layout.receipts(head)]  # the receipts of an empty block
            break
    verdict = verify_store(store, GENESIS, mounted(), replay=False, shard=0)
    assert verdict.first_fault is not None
    assert verdict.first_fault.startswith("entry e/")


def test_heights_are_named_as_numbers() -> None:
    store = copy()
    del store.entries[b"c/" + u64(3)]
    fault = verify_store(store, GENESIS, mounted(), replay=False, shard=0).first_fault
    assert fault == "entry c/3 is missing"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"version": GENESIS.application + 1},
            f"was made by version {GENESIS.application + 1} of the application, not by {GENESIS.application}",
        ),
        ({"chain": bytes(32)}, "belongs to another network"),
        ({"shard": 1}, "belongs to another network"),
        ({"epoch": 1}, "belongs to another network"),
    ],
    ids=["version", "chain", "shard", "epoch"],
)
def test_a_block_of_another_version_or_network_is_found(change: dict[str, object], what: str) -> None:
    store = copy()
    stored = msgspec.msgpack.decode(store.entries[layout.committed(3)], type=StoredBlock)
    foreign = replace(stored, header=replace(stored.header, **change))
    store.entries[layout.committed(3)] = msgspec.msgpack.encode(foreign)
    fault = verify_store(store, GENESIS, mounted(), replay=False, shard=0).first_fault
    assert fault == f"entry c/3 {what}"


# -- staged batches ------------------------------------------------------------------------------------------------------


def stages() -> MemoryStore:
    return MemoryStore(staged().store.entries.items())


def numbering_block(store: MemoryStore) -> tuple[bytes, list[bytes], int]:
    """The receipts of a block that numbers staged batches and holds none itself, and the place of the first of these."""
    for key, value in store.scan(b"e/"):
        leaves = list(layout.decode_receipts(value))
        found = [at for at, leaf in enumerate(leaves) if isinstance(decode_leaf(leaf), BatchReceipt)]
        if found and not msgspec.msgpack.decode(store.entries[b"c/" + key[2:]], type=StoredBlock).batches:
            return key, leaves, found[0]
    raise AssertionError("no block numbers what earlier ones have committed")


@pytest.mark.parametrize("replayed", [False, True])
def test_a_store_with_stages_is_valid_and_counts_what_was_numbered(replayed: bool) -> None:
    numbering_block(stages())
    verdict = verify_store(stages(), GENESIS, mounted(), replay=replayed, shard=0)
    assert verdict.first_fault is None
    assert (verdict.publications, verdict.replayed) == (3 * 2 + 1 + 6, replayed)


def test_a_batch_that_was_not_staged_cannot_be_numbered() -> None:
    store = stages()
    key, leaves, at = numbering_block(store)
    right = decode_leaf(leaves[at])
    assert isinstance(right, BatchReceipt)
    for wrong in (
        replace(right, digest=bytes(32), outcome=Done()),
        replace(right, count=right.count + 1),
        replace(right, partition=1),
        replace(right, publisher=bytes(32)),
        replace(right, digest=next(key[2:] for key, value in store.scan(b"b/") if _is_publication(value))),
    ):
        forged = [encode_leaf(wrong) if place == at else leaf for place, leaf in enumerate(leaves)]
        damaged = MemoryStore({**store.entries, key: msgspec.msgpack.encode(forged)}.items())
        what = "numbers a batch that is neither its own nor was staged like this"
        fault = verify_store(damaged, GENESIS, unindexed(), replay=False, shard=0).first_fault
        assert fault == f"entry {layout.name(key)} {what}"
        # With indices the block that staged it comes first: its index leads to a receipt that is not there.
        fault = verify_store(damaged, GENESIS, mounted(), replay=False, shard=0).first_fault
        assert fault in {
            f"entry {layout.name(key)} {what}",
            *(
                f"entry {layout.name(index_of_receipt(right.digest))} does not lead to the receipt in block {height}"
                for height in range(1, int.from_bytes(key[2:], "big"))
            ),
        }


def _is_publication(body: bytes) -> bool:
    return open_batch(body, GENESIS.chain, 0)[1].header.kind == PUBLISH


@pytest.mark.parametrize("replay", [True, False])
def test_what_is_changed_in_a_store_with_stages_is_found(replay: bool) -> None:
    store = stages()
    of_stages = [
        STAGES.prefix(),
        STAGED.prefix(),
        CONTENTS.prefix(),
        STAGING.prefix(),
        COUNTS.prefix("staged"),
    ]
    found = [list(store.scan(layout.state(prefix))) for prefix in of_stages]
    assert all(found)
    entries = [key for table in found for key, value in table if value]
    assert len(entries) >= len(of_stages)
    for entry in entries:
        value = store.entries[entry]
        damaged = MemoryStore({**store.entries, entry: value[:-1] + bytes([value[-1] ^ 1])}.items())
        fault = verify_store(damaged, GENESIS, mounted(), replay=replay, shard=0).first_fault
        assert fault is not None
        assert fault.startswith(f"entry {layout.name(entry)} ")


@pytest.mark.parametrize("replay", [True, False])
def test_receipts_that_number_something_else_are_found(replay: bool) -> None:
    store = stages()
    key, leaves, at = numbering_block(store)
    right = decode_leaf(leaves[at])
    assert isinstance(right, BatchReceipt)
    leaves[at] = encode_leaf(replace(right, outcome=Published(0)))
    store.entries[key] = msgspec.msgpack.encode(leaves)
    fault = verify_store(store, GENESIS, mounted(), replay=replay, shard=0).first_fault
    # The block that staged it comes first, and its index leads to a receipt that is not there.
    named = (layout.name(key), layout.name(index_of_receipt(right.digest)))
    assert fault is not None
    assert fault.startswith(tuple(f"entry {name} " for name in named))


def test_a_numbered_batch_may_not_be_missing() -> None:
    store = stages()
    _, leaves, at = numbering_block(store)
    receipt = decode_leaf(leaves[at])
    assert isinstance(receipt, BatchReceipt)
    del store.entries[layout.batch(receipt.digest)]
    fault = verify_store(store, GENESIS, mounted(), shard=0).first_fault
    assert fault == f"entry {layout.name(layout.batch(receipt.digest))} is missing"


# -- what is rightly not there -----------------------------------------------------------------------------------------


class Forgetful(Keeper):
    """Whatever was published is over."""

    def keeps(self, leaf: bytes, state: KeyValue) -> bool:
        return super().keeps(leaf, state) and published(decode_leaf(leaf)) is None


def erased(*, remains: bool) -> tuple[MemoryStore, list[bytes]]:
    """A store without the bodies of what was published, and their names."""
    store = copy()
    names = []
    for key, value in list(store.scan(b"b/")):
        digest, batch = open_batch(value, GENESIS.chain, 0)
        if batch.header.kind == PUBLISH:
            names.append(digest)
            del store.entries[key]
            if remains:
                store.entries[layout.erased(digest)] = remains_of(value)
    return store, names


@pytest.mark.parametrize("remains", [False, True])
def test_bodies_that_are_over_may_be_gone_and_are_not_executed_again(remains: bool) -> None:
    store, names = erased(remains=remains)
    assert len(names) == 5
    verdict = verify_store(store, GENESIS, kept_by(Forgetful), shard=0)
    assert verdict.first_fault is None
    assert (verdict.publications, verdict.replayed) == (15, False)


class Oblivious(Keeper):
    """Everything is over."""

    def keeps(self, leaf: bytes, state: KeyValue) -> bool:
        del leaf, state
        return False


class Blind(Unindexed, Oblivious):
    """And without indices."""


@pytest.mark.parametrize("remains", [False, True])
def test_a_numbered_batch_that_is_over_may_be_gone_and_what_stayed_of_it_is_compared(remains: bool) -> None:
    store = stages()
    key, leaves, at = numbering_block(store)
    right = decode_leaf(leaves[at])
    assert isinstance(right, BatchReceipt)
    body = store.entries.pop(layout.batch(right.digest))
    if remains:
        store.entries[layout.erased(right.digest)] = remains_of(body)
    assert verify_store(store, GENESIS, kept_by(Oblivious), shard=0).first_fault is None
    leaves[at] = encode_leaf(replace(right, count=right.count + 1))
    store.entries[key] = msgspec.msgpack.encode(leaves)
    fault = verify_store(store, GENESIS, kept_by(Blind), replay=False, shard=0).first_fault
    assert fault is not None
    assert fault.startswith(f"entry {layout.name(key)} numbers a batch") == remains


@pytest.mark.parametrize("remains", [False, True])
def test_bodies_that_are_still_to_be_kept_may_not_be_gone(remains: bool) -> None:
    store, names = erased(remains=remains)
    for replay in (False, True):
        fault = verify_store(store, GENESIS, mounted(), replay=replay, shard=0).first_fault
        assert fault in {f"entry {layout.name(layout.batch(name))} is missing" for name in names}


def test_what_stayed_of_an_erased_body_must_be_of_it_and_signed() -> None:
    store, names = erased(remains=True)
    key = layout.erased(names[2])
    for wrong in (
        store.entries[layout.erased(names[1])],
        store.entries[key][:-1] + bytes([store.entries[key][-1] ^ 1]),
    ):
        damaged = MemoryStore({**store.entries, key: wrong}.items())
        fault = verify_store(damaged, GENESIS, kept_by(Forgetful), shard=0).first_fault
        assert fault is not None
        assert fault.startswith(f"entry {layout.name(key)} is not what stayed of the batch")


def test_roots_that_no_header_names_may_be_gone_and_others_may_not() -> None:
    named = {block.header.executed_height for block in told().cluster.members[0].blocks()}
    head = max(int.from_bytes(key[2:], "big") for key, _ in copy().scan(b"c/"))
    for height in range(1, head):
        store = copy()
        del store.entries[layout.roots(height)]
        fault = verify_store(store, GENESIS, mounted(), replay=False, shard=0).first_fault
        assert fault == (f"entry r/{height} is missing" if height in named else None)


def test_a_broker_that_is_not_whole_yet_is_not_valid_and_says_why() -> None:
    for entry, value, said in [
        (layout.JOINING, u64(0), "still fetching a snapshot"),
        (layout.BACKFILL, u64(7), "history below height 7 is not filled in yet"),
    ]:
        store = copy()
        store.entries[entry] = value
        fault = verify_store(store, GENESIS, mounted(), replay=False, shard=0).first_fault
        assert fault is not None
        assert said in fault


@pytest.mark.parametrize(
    "entry",
    [
        layout.waiting(bytes(32)),
        layout.erased(bytes(32)),
        layout.evidence(1, 2),
        layout.uncommitted(bytes(32)),
        layout.batch(bytes(32)),
        layout.JOINS,
        layout.APPLICATION + LOGS_TO_ERASE.place("topic", 0),
        layout.APPLICATION + TO_ERASE.place(bytes(32)),
        layout.APPLICATION + RECEIPTS.place(bytes(32)),
        layout.INDEX + b"x",
        layout.INDEX + TOPICS.key("topic"),  # a table, but no index
        layout.state_node(b"\x01\x02\x03\x04\x05\x06"),
    ],
    ids=layout.name,
)
def test_garbage_under_any_name_is_found(entry: bytes) -> None:
    store = copy()
    store.entries[entry] = b"garbage"
    fault = verify_store(store, GENESIS, mounted(), shard=0).first_fault
    assert fault is not None
    assert fault.startswith(f"entry {layout.name(entry)} ")


def test_a_mark_without_its_batch_is_found() -> None:
    store = copy()
    store.entries[layout.waiting(bytes(32))] = b"\x93\x00\x00\xc4\x00"
    fault = verify_store(store, GENESIS, mounted(), shard=0).first_fault
    assert fault is not None
    assert fault.endswith("marks a batch that is not here")
