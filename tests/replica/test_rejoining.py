"""What a snapshot must show before it is fetched, and when a replica asks for one at all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.consensus.chains import Committee
from tests.replica.driver import MemoryStore

from parley.consensus.errors import Reason, Refused
from parley.consensus.types import QC, Block
from parley.crypto.merkle import MountainRange
from parley.ledger import layout
from parley.replica.rejoining import (
    ASK_AGAIN,
    STILL_FAR,
    Lag,
    Patience,
    joins_after,
    require_certified,
    too_often,
)
from parley.sync.messages import SnapshotOffer, SnapshotRequest

COMMITTEE = Committee()
HEIGHT = 12  # two peaks


def history(height: int = HEIGHT) -> MountainRange:
    made = MountainRange()
    for number in range(height):
        made.append(b"leaf %d" % number)
    return made


def named(executed_height: int = HEIGHT, **fields: object) -> Block:
    """A block whose header names the state of this height."""
    root = history(executed_height).root()
    return COMMITTEE.block(executed_height=executed_height, history_root=root, **fields)  # type: ignore[arg-type]


def offered(block: Block, shown: MountainRange | None = None, qc: QC | None = None) -> SnapshotOffer:
    return SnapshotOffer(block.header, qc or COMMITTEE.qc(block), (shown or history()).encode())


def refusal(offer: SnapshotOffer) -> Reason:
    with pytest.raises(Refused) as refused:
        require_certified(offer, COMMITTEE.instance, COMMITTEE.verifier())
    return refused.value.reason


# -- offers ----------------------------------------------------------------------------------------------------------------


def test_an_offer_with_the_header_of_a_quorum_and_its_history_is_taken() -> None:
    require_certified(offered(named()), COMMITTEE.instance, COMMITTEE.verifier())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"version": 2}, Reason.WRONG_VERSION),
        ({"chain": bytes(32)}, Reason.WRONG_CHAIN),
        ({"shard": 1}, Reason.WRONG_CHAIN),
        ({"epoch": 1}, Reason.WRONG_CHAIN),
    ],
)
def test_a_header_of_something_else_is_refused_although_a_quorum_signed_it(
    fields: dict[str, object], expected: Reason
) -> None:
    assert refusal(offered(named(HEIGHT, **fields))) is expected


def test_the_certificate_of_another_block_or_view_is_refused() -> None:
    block, other = named(), named(time=77)
    assert refusal(offered(block, qc=COMMITTEE.qc(other))) is Reason.BAD_CERTIFICATE
    assert refusal(offered(block, qc=COMMITTEE.qc(block, view=2))) is Reason.BAD_CERTIFICATE


def test_a_certificate_that_no_quorum_signed_is_refused() -> None:
    block = named()
    assert refusal(offered(block, qc=COMMITTEE.qc(block, (0, 1)))) is Reason.TOO_FEW_SIGNERS
    forged = replace(COMMITTEE.qc(block), votes=COMMITTEE.qc(named(time=77)).votes)
    assert refusal(offered(block, qc=forged)) is Reason.BAD_SIGNATURE


def test_a_history_of_another_size_is_refused_although_its_root_is_the_headers() -> None:
    """The root does not bind the size: 20 leaves have two peaks as well."""
    shown = MountainRange.decode((20).to_bytes(8, "big") + history().encode()[8:])
    assert (shown.size, shown.root()) == (20, history().root())
    assert refusal(offered(named(), shown)) is Reason.BAD_ANSWER


def test_another_history_of_the_same_size_is_refused() -> None:
    shown = MountainRange()
    for number in range(HEIGHT):
        shown.append(b"other %d" % number)
    assert refusal(offered(named(), shown)) is Reason.BAD_ANSWER


def test_a_history_that_cannot_be_read_is_refused() -> None:
    assert refusal(replace(offered(named()), history=b"\xff")) is Reason.BAD_ANSWER


def test_the_state_before_any_block_is_no_snapshot() -> None:
    assert refusal(offered(named(0), MountainRange())) is Reason.BAD_ANSWER


# -- asking ----------------------------------------------------------------------------------------------------------------

PATIENCE = Patience(views=16, heights=8, stuck=400, joins=3, apart=40)


def test_who_sees_a_certificate_from_far_ahead_asks_for_a_snapshot_that_is_worth_it() -> None:
    lag = Lag(PATIENCE)
    lag.saw(PATIENCE.views, 0)
    assert lag.ask(0, 5, None) is None
    lag.saw(PATIENCE.views + 1, 0)
    assert lag.ask(0, 5, None) == SnapshotRequest(5 + PATIENCE.heights - 1)


def test_it_asks_again_after_a_pause_and_no_sooner() -> None:
    lag = Lag(PATIENCE)
    lag.saw(1_000, 0)
    assert lag.ask(0, 5, None) is not None
    assert lag.ask(ASK_AGAIN - 1, 5, None) is None
    assert lag.ask(ASK_AGAIN, 5, None) is not None


def test_who_has_seen_no_certificate_from_far_ahead_for_a_while_asks_no_more() -> None:
    lag = Lag(PATIENCE)
    lag.saw(1_000, 0)
    assert lag.ask(STILL_FAR, 5, None) is not None
    assert lag.ask(STILL_FAR + ASK_AGAIN, 5, None) is None


def test_who_waits_for_the_batches_of_one_block_asks_for_a_snapshot_of_it_or_above() -> None:
    lag = Lag(PATIENCE)
    assert lag.ask(0, 5, 6) is None
    assert lag.ask(PATIENCE.stuck - 1, 5, 6) is None
    assert lag.ask(PATIENCE.stuck, 5, 6) == SnapshotRequest(5)


def test_every_block_has_its_own_time_in_which_its_batches_may_come() -> None:
    lag = Lag(PATIENCE)
    assert lag.ask(0, 5, 6) is None
    assert lag.ask(PATIENCE.stuck - 1, 6, 7) is None
    assert lag.ask(PATIENCE.stuck, 6, 7) is None
    assert lag.ask(2 * PATIENCE.stuck - 1, 6, 7) == SnapshotRequest(6)


# -- counting --------------------------------------------------------------------------------------------------------------


def joined(*heights: int) -> MemoryStore:
    store = MemoryStore()
    for height in heights:
        store.entries[layout.JOINS] = joins_after(store, PATIENCE, height)
    return store


def test_after_some_snapshots_in_a_row_one_more_is_too_often() -> None:
    assert not too_often(joined(), PATIENCE, 10)
    assert not too_often(joined(10, 20), PATIENCE, 30)
    assert too_often(joined(10, 20, 30), PATIENCE, 30 + PATIENCE.apart - 1)


def test_snapshots_that_lie_apart_are_not_in_a_row() -> None:
    apart = PATIENCE.apart
    assert not too_often(joined(10, 20, 30), PATIENCE, 30 + apart)
    assert not too_often(joined(10, 20, 20 + apart), PATIENCE, 20 + apart)
    assert not too_often(joined(*range(10, 10 + 5 * apart, apart)), PATIENCE, 10 + 4 * apart)
