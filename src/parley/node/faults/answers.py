"""What a lying broker makes of its answers to clients, and of what they submit.

Everything here starts from the true answer, so each lie is as good as it can be: certificates and proofs are real, and
only what the liar cares about is false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from parley.application.tables import encode_value
from parley.ledger.proofs import BlockProof, StateEntry
from parley.model.batches import Batch, Message, Withheld
from parley.model.batches import encode as encode_batch
from parley.model.receipts import Leaf, encode_leaf
from parley.model.refusals import Refused
from parley.modules.publishing.receipts import Published, published
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.tables import HEADS
from parley.net.messages import (
    Answer,
    Blocks,
    Bodies,
    Body,
    Content,
    DeliveredBlock,
    Delivery,
    EvidenceList,
    Fetched,
    FetchedBlock,
    Proven,
    RawBlock,
    Receipted,
    Skipped,
)
from parley.node.access import Caller
from parley.node.faults.switches import DELAY, DROP, FORGE, LIE, WITHHOLD, Switches
from parley.node.view import Ledger

LATER_MS = 2_000  # beyond `freshness`
NOTHING = b"\xc0"  # what is shown where there is nothing

B = TypeVar("B", DeliveredBlock, FetchedBlock)


class Faults:
    """One for all clients of a broker. Whoever answers asks `active` first, and nothing else while it is false."""

    def __init__(self, switches: Switches, ledger: Ledger, freshness: int) -> None:
        self._switches = switches
        self._ledger = ledger
        self._delay = (freshness + LATER_MS) / 1_000
        self._blocks = count()

    @property
    def active(self) -> bool:
        return self._switches.active

    def swallows(self, caller: Caller) -> bool:
        """Whether a batch of this client is taken without a word and thrown away."""
        return caller.title in self._switches.censored

    def send(self, answer: Answer, caller: Caller, write: Callable[[Answer], None]) -> None:
        """Write what is made of the answer, if anything is, when it suits."""
        if (told := self._told(answer, caller)) is None:
            return
        if self._switches.has(DELAY):
            asyncio.get_running_loop().call_later(self._delay, write, told)
        else:
            write(told)

    def _told(self, answer: Answer, caller: Caller) -> Answer | None:
        has = self._switches.has
        told = _withheld(answer) if has(WITHHOLD) else answer
        if has(DROP) and told is not None:
            told = self._thinned(told)
        if has(FORGE) and told is not None:
            told = _forged(told, self._ledger.archive.application.decode_leaf)
        if has(LIE) and told is not None:
            told = self._false(told, caller)
        return told

    def _thinned(self, answer: Answer) -> Answer | None:
        match answer:
            case Delivery():
                blocks = self._every_second(answer.blocks)
                return replace(answer, blocks=blocks) if blocks else None
            case Fetched():
                return replace(answer, blocks=self._every_second(answer.blocks))
            case _:
                return answer

    def _every_second(self, blocks: tuple[B, ...]) -> tuple[B, ...]:
        return tuple(block for block in blocks if next(self._blocks) % 2 == 0)

    def _false(self, answer: Answer, caller: Caller) -> Answer:
        match answer:
            case Proven():
                return replace(answer, entries=tuple(map(_other_value, answer.entries)))
            case Fetched():
                return replace(
                    _changed_pages(answer, _hidden),
                    head=_other_end(answer.head),
                    reader=self._reader(answer, caller),
                )
            case Delivery():
                return replace(_changed_delivery(answer, _hidden), reader=self._reader(answer, caller))
            case Blocks():
                # Without what became of the last batch of each.
                return replace(
                    answer, blocks=tuple(replace(block, leaves=block.leaves[:-1]) for block in answer.blocks)
                )
            case _:
                return answer

    def _reader(self, answer: Fetched | Delivery, caller: Caller) -> StateEntry | None:
        """The true proof of what the client may see: the lie is that its attributes are not enough."""
        try:
            view = self._ledger.view()
        except Refused:
            return answer.reader
        return view.entry(CLIENTS.key(caller.key)) if view.anchor == answer.anchor else answer.reader


def _withheld(answer: Answer) -> Answer | None:
    match answer:
        case Delivery():
            return None
        case Fetched():
            return replace(answer, blocks=())
        case Blocks():
            return replace(answer, blocks=(), history=None)
        case Bodies():
            return replace(answer, bodies=tuple(None for _ in answer.bodies))
        case EvidenceList():
            return replace(answer, entries=(), more=False)
        case _:
            return answer


def _forged(answer: Answer, decode_leaf: Callable[[bytes], Leaf]) -> Answer:
    match answer:
        case Delivery():
            return _changed_delivery(answer, _altered)
        case Fetched():
            return _changed_pages(answer, _altered)
        case Receipted():
            return replace(answer, proof=_moved(answer.proof, decode_leaf))
        case Blocks():
            return replace(answer, blocks=tuple(map(_forged_block, answer.blocks)))
        case Bodies():
            return replace(answer, bodies=tuple(map(_forged_body, answer.bodies)))
        case _:
            return answer


def _forged_block(block: RawBlock) -> RawBlock:
    return replace(block, bodies=tuple(map(_forged_body, block.bodies)))


def _forged_body(body: Body) -> Body:
    """The publisher's messages with another signature, which the batch's digest does not cover."""
    if not isinstance(body, bytes):
        return body
    batch = msgspec.msgpack.decode(body, type=Batch)
    return encode_batch(replace(batch, signature=batch.signature[::-1]))


def _changed_delivery(
    answer: Delivery, change: Callable[[Message | Withheld], Message | Withheld]
) -> Delivery:
    return replace(
        answer,
        blocks=tuple(replace(block, contents=tuple(map(change, block.contents))) for block in answer.blocks),
    )


def _changed_pages(answer: Fetched, change: Callable[[Message | Withheld], Message | Withheld]) -> Fetched:
    def changed(content: Content) -> Content:
        return content if isinstance(content, Skipped) else change(content)

    blocks = tuple(
        replace(
            block,
            batches=tuple(
                replace(batch, contents=tuple(map(changed, batch.contents))) for batch in block.batches
            ),
        )
        for block in answer.blocks
    )
    return replace(answer, blocks=blocks)


def _altered(content: Message | Withheld) -> Message | Withheld:
    """Also of an empty, whose payload is a hash."""
    if isinstance(content, Withheld):
        return replace(content, payload=content.payload[::-1])
    return replace(content, payload=b"forged: " + content.payload)


def _hidden(content: Message | Withheld) -> Withheld:
    return content if isinstance(content, Withheld) else content.withheld()


def _moved(proof: BlockProof, decode_leaf: Callable[[bytes], Leaf]) -> BlockProof:
    """A receipt that puts the batch one offset further on."""
    first, *rest = proof.leaves
    if (found := published(decode_leaf(first))) is not None:
        receipt, offset = found
        first = encode_leaf(replace(receipt, outcome=Published(offset + 1)))
    return replace(proof, leaves=(first, *rest))


def _other_value(entry: StateEntry) -> StateEntry:
    return replace(entry, value=NOTHING if entry.value is None else None)


def _other_end(entry: StateEntry) -> StateEntry:
    if entry.value is None:
        return _other_value(entry)
    record = HEADS.decode(entry.value)
    return replace(entry, value=encode_value(replace(record, next_offset=record.next_offset + 1)))
