"""Reading a partition from an offset on: at once, or when something has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, takewhile

from parley.ledger.proofs import Anchor
from parley.model.batches import Batch
from parley.model.principals import ClientRecord, Principal
from parley.model.refusals import Refused
from parley.modules.publishing.tables import BatchPlace
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.tables import HEADS, TOPICS, TopicRecord
from parley.net.messages import (
    Content,
    Fetch,
    Fetched,
    FetchedBatch,
    PackedBatch,
    Skipped,
    SplicedBlock,
    SplicedFetched,
)
from parley.node.access import Caller, require_readable
from parley.node.answers import (
    LEAF_WORK,
    MAX_SHOWN_BYTES,
    MESSAGE_WORK,
    PROOF_COST,
    PROOF_WORK,
    RULE_COST,
    RULE_WORK,
    Reading,
    require_kept,
    shown_work,
)
from parley.node.services.asking import Asking
from parley.node.services.service import Cost, Judged, Showing
from parley.node.view import View

MAX_SHOWN_WORK = 1024 * 1024  # of an answer, as it is counted below: a few milliseconds
BATCH_WORK = 2 * 1024  # bytes that take as long as a batch that is sent as it is stored, and
SPLICED_WORK = 64  # each of its messages

# The records that decide whether a reader may read. While they stay, its right need not be judged again.
_Records = tuple[ClientRecord | None, TopicRecord | None]


@dataclass(slots=True)
class Poll:
    """A question that is answered when something has come, or when its time is over."""

    question: Fetch
    until: int
    judged_by: _Records
    seen: Anchor | None = None  # the header under which it was looked at last


def _readable(view: View, caller: Caller, question: Fetch) -> Principal:
    principal = caller.principal(view)
    require_readable(view, principal, question.topic, question.partition)
    return principal


def _fetch(asking: Asking, view: View, question: Fetch, principal: Principal) -> SplicedFetched | None:
    answer = fetched(view, question, principal, asking.charge)
    held = asking.held
    if answer.blocks or not question.wait or held is None:
        return answer
    until = asking.services.ticks() + question.wait
    held.polls[question.id] = Poll(question, until, _judged_by(view, asking.caller, question))
    held.wake.set()
    return None


def fetch_again(asking: Asking, question: Fetch) -> SplicedFetched:
    """The answer to a question that has waited, by the newest view. Raises `Refused`."""
    view = asking.services.fresh_view()
    return fetched(view, question, _readable(view, asking.caller, question), asking.charge)


def has_answer(asking: Asking, poll: Poll) -> bool:
    """Whether a header that came since says that there is something to answer.

    That is also so when the reader's right has to be judged again: if it is lost, the moment of the refusal must not
    tell what is published later.
    """
    try:
        view = asking.services.fresh_view()
        if view.anchor is poll.seen:
            return False
        poll.seen = view.anchor
        if _judged_by(view, asking.caller, poll.question) != poll.judged_by:
            return True
        return has_arrived(view, poll.question)
    except Refused:  # there is nothing to show now
        return False


def _judged_by(view: View, caller: Caller, question: Fetch) -> _Records:
    return view.read(CLIENTS, caller.key), view.read(TOPICS, question.topic)


def has_arrived(view: View, question: Fetch) -> bool:
    """Whether something stands at the asked-for offset now."""
    head = view.read(HEADS, question.topic, question.partition)
    return head is not None and question.offset < head.next_offset


def fetched(
    view: View, question: Fetch, principal: Principal, charge: Callable[[int], None]
) -> SplicedFetched:
    """Whole batches from the offset on, at least one if there is one, as far as `max_bytes` and the work of one answer go.

    Every rule that is asked is charged, whether it hides something or not.
    """
    require_kept(view, question.topic, question.partition, question.offset)
    reading = Reading(view, principal)
    try:
        blocks = tuple(_blocks(reading, question))
    finally:
        charge(RULE_WORK * len(reading.verdicts))
    return SplicedFetched(
        question.id,
        view.encoded_anchor,
        view.entry(HEADS.key(question.topic, question.partition)),
        reading.reader(),
        blocks,
    )


_Placed = tuple[int, BatchPlace]  # the batch's first offset, and where it stands
_Shown = tuple[BatchPlace, PackedBatch | FetchedBatch]


@dataclass
class _Room:
    """What there is still room for in an answer. The first batch is shown whatever it takes."""

    size: int  # bytes
    work: int = MAX_SHOWN_WORK
    rules: set[str] = field(default_factory=set)
    begun: bool = False
    full: bool = False

    def takes(self, size: int, work: int) -> bool:
        """Whether this still goes in. If not, the answer ends here: it has no gaps."""
        if self.begun and (size > self.size or work > self.work):
            self.full = True
            return False
        self.size -= size
        self.work -= work
        return True


def _blocks(reading: Reading, question: Fetch) -> Iterator[SplicedBlock]:
    """The certified batches from the offset on, until the answer is large enough or has taken long enough.

    How many receipts a block has is known only once it has been read, so the last block may go above the limit.
    """
    view = reading.view
    room = _Room(min(question.max_bytes, MAX_SHOWN_BYTES))
    placed = view.archive.batches_from(question.topic, question.partition, question.offset)
    certified = takewhile(lambda one: one[1].height <= view.height, placed)
    asked = (one for one in certified if one[0] + one[1].count > question.offset)
    for height, group in groupby(asked, key=lambda one: one[1].height):
        if not room.takes(PROOF_COST, PROOF_WORK):
            return
        here = list(_affordable(reading, group, question.offset, room))
        if here:
            proof = view.leaves(height, [place.position for place, _ in here])
            room.work -= LEAF_WORK * proof.receipts.size
            yield SplicedBlock(proof, tuple(batch for _, batch in here))
        if room.full:
            return


def _affordable(reading: Reading, placed: Iterable[_Placed], offset: int, room: _Room) -> Iterator[_Shown]:
    """The batches of one block that there is room for.

    A batch of which nothing is hidden or left out is sent as it is stored.
    """
    archive = reading.view.archive
    for first, place in placed:
        # Before the batch is read, which takes long if it has many messages.
        if not room.takes(0, BATCH_WORK + SPLICED_WORK * place.count):
            return
        batch = archive.stored(place.digest)
        new = batch.rules - room.rules
        if not room.takes(batch.size + RULE_COST * len(new), 0):
            return
        whole = first >= offset and reading.shows_all(batch.rules)
        if not whole and not room.takes(0, MESSAGE_WORK * place.count):
            return
        room.begun = True
        room.rules |= new
        if whole:
            yield place, PackedBatch(batch.header, batch.signature, batch.messages)
        else:
            yield place, _shown(reading, archive.batch(place.digest), offset - first)


def _shown(reading: Reading, batch: Batch, skip: int) -> FetchedBatch:
    contents: list[Content] = [Skipped(message.leaf()) for message in batch.messages[: max(skip, 0)]]
    contents += [reading.show(message) for message in batch.messages[max(skip, 0) :]]
    return FetchedBatch(batch.header, batch.signature, tuple(contents))


def _work(answer: SplicedFetched | Fetched) -> int:
    """What it took to build the answer; a `Fetched` is one that was decoded and encoded again."""
    if isinstance(answer, Fetched):
        return shown_work(one for block in answer.blocks for batch in block.batches for one in batch.contents)
    batches = [batch for block in answer.blocks for batch in block.batches]
    shown = [batch for batch in batches if isinstance(batch, FetchedBatch)]
    spliced = [batch.header.count for batch in batches if isinstance(batch, PackedBatch)]
    work = BATCH_WORK * len(spliced) + SPLICED_WORK * sum(spliced) + PROOF_WORK * len(answer.blocks)
    work += LEAF_WORK * sum(block.proof.receipts.size for block in answer.blocks)
    return work + MESSAGE_WORK * sum(len(batch.contents) for batch in shown)


SERVICES = (
    Showing(
        question=Fetch,
        answers=(Fetched, SplicedFetched),
        right=Judged("readers of the topic", _readable),
        cost=Cost(
            f"{PROOF_WORK // 1024} KiB for each block, {LEAF_WORK // 1024} KiB for each of its receipts, "
            f"{BATCH_WORK // 1024} KiB for each batch with {SPLICED_WORK} bytes for each of its messages, "
            f"{MESSAGE_WORK // 1024} KiB for each message of a batch that is not shown whole, "
            f"{RULE_WORK // 1024} KiB for each rule that is asked",
            within=True,
            after=_work,
        ),
        stays=True,
        whole=True,
        fresh=True,
        show=_fetch,
    ),
)
