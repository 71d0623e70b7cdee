"""Looking at the certified state as of one block, and naming that block: for readers that write down where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parley.client.beliefs import VerifiedView, check_entries
from parley.client.quorum import QuorumClient, Request
from parley.crypto import merkle
from parley.ledger.proofs import ProofError, history_leaf
from parley.net.messages import Prove, Proven, ReadHeader, ShownHeader


@dataclass(frozen=True, slots=True)
class Observation:
    """The values under some keys, None where there is none, all as of one height."""

    height: int
    values: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class BlockName:
    """A block of the certified history."""

    height: int
    id: bytes
    time: int
    shard: int
    epoch: int


@dataclass(frozen=True, repr=False)
class Observer:
    """Everything it says was certified, and was so a moment ago."""

    _quorum: QuorumClient

    async def entries(self, keys: Sequence[bytes], floor: int = 0, *, skip: int = 0) -> Observation:
        """As of a fresh header whose results reach up to `floor` at least.

        Who asks again and again should `skip` another number of brokers each time: one that stands still, and is fresh
        for a while yet, is found out by what the others show.
        """
        floor = max(floor, self._quorum.height)

        def read(view: VerifiedView, answer: Proven) -> Observation:
            values = check_entries(view, answer, keys, floor)
            self._quorum.require_fresh(view)
            return Observation(view.height, values)

        return await self._quorum.ask(
            Request("looking at the state", Prove(0, tuple(keys)), Proven, read, _lowest), skip=skip
        )

    async def block(self, height: int = 0) -> BlockName | None:
        """The block at this height, by default the newest certified one.

        None: f+1 brokers, one of which is honest, do not reach so far; a single one may just be behind.
        """

        def read(view: VerifiedView, answer: ShownHeader) -> tuple[BlockName | None]:
            found = _checked(view, answer, height, proven=self._quorum.reader.level == "certified")
            if height == 0 or found is None:
                self._quorum.require_fresh(view)
            return (found,)

        def combine(
            answers: Sequence[tuple[BlockName | None]], needed: int
        ) -> tuple[BlockName | None] | None:
            for answer in answers:
                if answers.count(answer) >= (
                    max(needed, self._quorum.faults + 1) if answer == (None,) else needed
                ):
                    return answer
            return None

        request = Request("looking at a block's header", ReadHeader(0, height), ShownHeader, read, combine)
        return (await self._quorum.ask(request))[0]


def _checked(view: VerifiedView, answer: ShownHeader, height: int, *, proven: bool) -> BlockName | None:
    if answer.block is None:
        if height <= view.height:
            raise ProofError(f"block {height} is certified, and the broker says that there is none")
        return None
    header, receipts_root, receipts, place = answer.block
    if header.height != (height or view.height) or header.height > view.height:
        raise ProofError("the broker showed another block than the one asked for")
    name = header.id()
    if proven:
        leaf = history_leaf(header.height, name, receipts_root, receipts)
        if (place.index, place.size) != (header.height - 1, view.height):
            raise ProofError(f"the history proof of block {height} is for another place or another size")
        if not merkle.verify(view.anchor.header.history_root, leaf, place):
            raise ProofError(f"block {height} is not in the certified history")
    return BlockName(header.height, name, header.time, header.shard, header.epoch)


def _lowest(answers: Sequence[Observation], needed: int) -> Observation | None:
    """Brokers may be unequally far: values that enough of them show, as of the lowest height at which they do."""
    for values in {answer.values for answer in answers}:
        backing = sorted(answer.height for answer in answers if answer.values == values)
        if len(backing) >= needed:
            return Observation(backing[0], values)
    return None
