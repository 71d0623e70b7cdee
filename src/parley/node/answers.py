"""Answers with their proofs, built from the local store for one view of the ledger; no answer is without a bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, takewhile

from parley.ledger.proofs import StateEntry
from parley.model.batches import Batch, Message, Withheld
from parley.model.names import Position
from parley.model.principals import ClientRecord, Principal
from parley.model.refusals import LimitExceeded, Refused
from parley.modules.publishing.tables import BatchPlace
from parley.modules.registry.tables import CLIENTS
from parley.modules.retention.refusals import Pruned
from parley.modules.topics.access import allows
from parley.modules.topics.tables import HEADS, TOPICS, TopicRecord
from parley.net.messages import (
    MAX_KEYS,
    MAX_RECEIPTS,
    Answer,
    Blocks,
    Bodies,
    Content,
    Delivery,
    EvidenceList,
    Fetch,
    Fetched,
    FetchedBatch,
    Head,
    Listed,
    ListKeys,
    PackedBatch,
    Prove,
    Proven,
    ReadHeader,
    Receipted,
    ShownHeader,
    Skipped,
    SplicedBlock,
    SplicedFetched,
)
from parley.node.access import Caller, require_listable, require_provable, require_readable
from parley.node.blocks import BLOCK_COST, BODY_COST
from parley.node.view import View

Judged = tuple[ClientRecord | None, TopicRecord | None]

# Everybody else waits while an answer is built; only what cannot be divided may go above these.
MAX_SHOWN_BYTES = 1024 * 1024
MAX_SHOWN_MESSAGES = 2_000  # of a stream
MAX_SHOWN_WORK = 1024 * 1024  # of a fetch, as it is counted below: a few milliseconds
MAX_EXAMINED = 20_000  # entries that one list may pass over
EXAMINED_AT_ONCE = 32  # in one turn: each may have two rules that are read for the first time
PROOF_COST = 6 * 1024  # bytes of a block's header and paths, about
MESSAGE_COST = 64  # bytes of a message besides its parts, about
RULE_COST = 16 * 1024  # bytes that take as long as a rule that is read for the first time

# What building an answer takes, in bytes of what its client may use besides the answer's own.
MESSAGE_WORK = 2 * 1024
BATCH_WORK = 2 * 1024  # a batch that is sent as it is stored, and
SPLICED_WORK = 64  # each of its messages
PROOF_WORK = 24 * 1024  # a block that something is shown of, and
LEAF_WORK = 1024  # each of its receipts, shown or not: a proof needs the tree of all of them
RULE_WORK = 256 * 1024
KEY_WORK = 128 * 1024  # a proof
ENTRY_WORK = 16 * 1024  # an entry that a list passes over
JUDGED_WORK = 64 * 1024  # one that it has to judge by rules


@dataclass
class Reading:
    """Which messages one reader may see, and whether any was withheld from it."""

    view: View
    principal: Principal
    withheld: bool = False
    verdicts: dict[str, bool] = field(default_factory=dict)  # by rule, for this view and this reader

    def shows_all(self, rules: Iterable[str]) -> bool:
        """Whether nothing with these rules is withheld."""
        return all(map(self._allows, rules))

    def show(self, message: Message) -> Message | Withheld:
        if message.rule and not self._allows(message.rule):
            self.withheld = True
            return message.withheld()
        return message

    def _allows(self, rule: str) -> bool:
        verdict = self.verdicts.get(rule)
        if verdict is None:
            verdict = self.verdicts[rule] = allows(rule, self.principal)
        return verdict

    def reader(self) -> StateEntry | None:
        """The proof of the attributes that something was withheld for."""
        return self.view.entry(CLIENTS.key(self.principal.key)) if self.withheld else None


Ready = tuple[int, Position]  # a question, and the place of the receipt that answers it


def by_block(ready: Iterable[Ready]) -> Iterator[list[Ready]]:
    """What one answer can show together: receipts of one block, no position twice, not too many."""
    group: list[Ready] = []
    for one in sorted(ready, key=lambda one: one[1]):
        last = group[-1][1] if group else one[1]
        if group and (one[1][0] != last[0] or one[1] == last or len(group) == MAX_RECEIPTS):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def receipted(view: View, group: list[Ready]) -> Receipted:
    (first, (height, _)), *others = group
    return Receipted(
        first,
        view.anchor,
        view.leaves(height, [position for _, (_, position) in group]),
        tuple(id_ for id_, _ in others),
    )


def proven(view: View, caller: Caller, question: Prove) -> Proven:
    principal = caller.principal(view)
    for key in question.keys:
        require_provable(view, key, principal)
    return Proven(question.id, view.anchor, tuple(map(view.entry, question.keys)))


class Listing:
    """A page of a list, made in several turns, because others wait meanwhile.

    Every entry that is looked at is charged, shown or not.
    """

    def __init__(self, view: View, caller: Caller, question: ListKeys, charge: Callable[[int], None]) -> None:
        """Raises `Refused` if the caller gets no such list."""
        self.question = question
        self._is_shown = require_listable(view, question.prefix, question.after, caller.principal(view))
        self._work = ENTRY_WORK if self._is_shown is None else JUDGED_WORK
        self._archive, self._charge = view.archive, charge
        self._after = question.after
        self._examined = 0
        self._found: list[bytes] = []

    def step(self) -> Listed | None:
        """The page, or None if another turn is needed. Raises `Refused`."""
        before = self._examined
        try:
            for key in self._archive.keys_after(self.question.prefix, self._after):
                if self._examined == before + EXAMINED_AT_ONCE:
                    return None
                if self._examined >= MAX_EXAMINED:
                    raise LimitExceeded("examined", limit=MAX_EXAMINED)
                self._examined += 1
                self._after = key
                if self._is_shown is not None and not self._is_shown(key):
                    continue
                if len(self._found) == MAX_KEYS:
                    return Listed(self.question.id, tuple(self._found), more=True)
                self._found.append(key)
        finally:
            self._charge((self._examined - before) * self._work)
        return Listed(self.question.id, tuple(self._found), more=False)


def block_name(
    view: View, caller: Caller, question: ReadHeader, charge: Callable[[int], None]
) -> ShownHeader:
    """Live clients and administrators may know which block stands where (P22). docs/privacy.md says what it tells of others."""
    if caller.administers is None:
        try:
            caller.principal(view).require_client()
        except Refused:
            if question.height:
                raise
            # Everybody may know what time it is. Without it, a client whose clock is behind could not tell that a proven
            # refusal is new, and would ask for ever.
            return ShownHeader(question.id, view.anchor, None)
    height = question.height or view.height
    if height > view.height:
        return ShownHeader(question.id, view.anchor, None)
    header, root, receipts, work = view.archive.header(height)
    charge(work)
    return ShownHeader(
        question.id, view.anchor, (header, root, receipts, view.archive.history(height, view.height))
    )


def judged_by(view: View, caller: Caller, question: Fetch) -> Judged:
    """The records that decide whether the reader may read. While they stay, its right need not be judged again."""
    return view.read(CLIENTS, caller.key), view.read(TOPICS, question.topic)


def has_arrived(view: View, question: Fetch) -> bool:
    """Whether something stands at the asked-for offset now."""
    head = view.read(HEADS, question.topic, question.partition)
    return head is not None and question.offset < head.next_offset


def fetched(view: View, caller: Caller, question: Fetch, charge: Callable[[int], None]) -> SplicedFetched:
    """Whole batches from the offset on, at least one if there is one, as far as `max_bytes` and the work of one answer go.

    Every rule that is asked is charged, whether it hides something or not.
    """
    principal = caller.principal(view)
    require_readable(view, principal, question.topic, question.partition)
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


def require_kept(view: View, topic: str, partition: int, offset: int) -> None:
    """Raises `Pruned` if the retention of the messages at this offset is over."""
    head = view.read(HEADS, topic, partition)
    if head is not None and offset < head.log_start_offset:
        raise Pruned(topic=topic, partition=partition, start=head.log_start_offset)


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


def work(answer: Answer) -> int:
    """What it took to build the answer, in bytes."""
    match answer:
        case SplicedFetched():
            batches = [batch for block in answer.blocks for batch in block.batches]
            shown = [batch for batch in batches if isinstance(batch, FetchedBatch)]
            spliced = [batch.header.count for batch in batches if isinstance(batch, PackedBatch)]
            work = BATCH_WORK * len(spliced) + SPLICED_WORK * sum(spliced) + PROOF_WORK * len(answer.blocks)
            work += LEAF_WORK * sum(block.proof.receipts.size for block in answer.blocks)
            return work + MESSAGE_WORK * sum(len(batch.contents) for batch in shown)
        case Fetched():
            return _shown_work(
                one for block in answer.blocks for batch in block.batches for one in batch.contents
            )
        case Delivery():
            return _shown_work(one for block in answer.blocks for one in block.contents)
        case Proven() | Head():
            return KEY_WORK * len(answer.entries)
        case Blocks():
            bodies = sum(len(block.bodies) for block in answer.blocks)
            return BLOCK_COST * (1 + len(answer.blocks)) + BODY_COST * bodies
        case Bodies():
            return BLOCK_COST + BODY_COST * len(answer.bodies)
        case EvidenceList():
            return BLOCK_COST + BODY_COST * len(answer.entries)
        case ShownHeader():
            return KEY_WORK
        case _:
            return 0


def _shown_work(contents: Iterable[Content]) -> int:
    shown = list(contents)
    rules = {content.rule for content in shown if not isinstance(content, Skipped)} - {""}
    return MESSAGE_WORK * len(shown) + RULE_WORK * len(rules)
