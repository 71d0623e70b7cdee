"""An answer fits its limits and comes with a certificate for its last block."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace
from tests.sync.laggard import recorded

from parley.consensus.types import MAX_BATCHES, Block
from parley.consensus.verify import Verifier
from parley.crypto import merkle
from parley.ledger.layout import StoredBlock
from parley.replica import wire
from parley.sync.blocks import MAX_DIGESTS, answer
from parley.sync.messages import MAX_BLOCKS, BlocksRequest, BlocksResponse


def ask(above: int, target: int, last: int) -> BlocksResponse:
    """An answer of a member whose newest certified block is `last`."""
    chain = recorded()
    request = BlocksRequest(chain.qc(target).block, above)
    return answer(request, chain.blocks[above + 1 : last + 1], chain.qc(last))


def check(response: BlocksResponse, target: int) -> list[int]:
    """The heights in an answer that a verifier accepts."""
    chain = recorded()
    qc = chain.qc(target) if response.qc is None else response.qc
    verifier = Verifier(chain.committee.instance, chain.committee.authority.scheme(), chain.blocks[0])
    return [block.height for block in verifier.chain(tuple(b.block() for b in response.blocks), qc).blocks]


def test_an_answer_up_to_the_target_needs_no_certificate() -> None:
    response = ask(above=10, target=20, last=20)
    assert response.qc is None
    assert check(response, 20) == list(range(11, 21))


def test_a_long_chain_is_cut_and_the_newest_block_gives_its_certificate() -> None:
    response = ask(above=0, target=200, last=200)
    assert response.qc == recorded().qc(MAX_BLOCKS - 1)
    assert check(response, 200) == list(range(1, MAX_BLOCKS))


def test_exactly_as_many_as_fit_reach_the_target() -> None:
    assert check(ask(above=0, target=MAX_BLOCKS, last=MAX_BLOCKS), MAX_BLOCKS) == list(
        range(1, MAX_BLOCKS + 1)
    )


def test_a_member_that_lacks_the_target_sends_what_it_has_with_its_own_tip() -> None:
    response = ask(above=0, target=200, last=30)
    assert response.qc == recorded().qc(30)
    assert check(response, 200) == list(range(1, 31))


def test_a_member_that_knows_of_a_tip_elsewhere_gives_up_its_last_block() -> None:
    chain = recorded()
    request = BlocksRequest(chain.qc(200).block, 0)
    response = answer(request, chain.blocks[1:31], chain.qc(100))
    assert check(response, 200) == list(range(1, 30))


def test_a_member_with_nothing_answers_with_nothing() -> None:
    response = ask(above=30, target=200, last=30)
    assert response.blocks == ()
    assert response.qc is None


def test_a_single_block_without_a_certificate_is_not_sent() -> None:
    chain = recorded()
    response = answer(BlocksRequest(chain.qc(200).block, 0), chain.blocks[1:2], chain.qc(100))
    assert response.blocks == ()


def test_the_number_of_digests_is_limited_so_that_an_answer_fits_a_message() -> None:
    names = tuple(number.to_bytes(32, "big") for number in range(MAX_BATCHES))
    first = recorded().blocks[1]
    full = [
        Block(replace(first.header, height=height, batches_root=merkle.root(names)), names)
        for height in range(1, 10)
    ]
    response = answer(BlocksRequest(bytes(32), 0), full, recorded().qc(100))
    assert sum(len(stored.batches) for stored in response.blocks) <= MAX_DIGESTS
    assert len(response.blocks) == MAX_DIGESTS // MAX_BATCHES - 1
    assert response.qc == full[MAX_DIGESTS // MAX_BATCHES - 1].header.justify
    assert len(wire.encode(response)) <= wire.MAX_MESSAGE


def test_reading_stops_at_the_limit() -> None:
    read = 0

    def endless() -> Iterator[Block]:
        nonlocal read
        for block in recorded().blocks[1:]:
            read += 1
            yield block

    answer(BlocksRequest(bytes(32), 0), endless(), recorded().qc(100))
    assert read == MAX_BLOCKS


def test_a_stored_block_computes_its_id_and_keeps_its_batches() -> None:
    for block in recorded().blocks[:20]:
        assert StoredBlock.of(block).block() == block
        assert StoredBlock.of(block).block().id == block.id
