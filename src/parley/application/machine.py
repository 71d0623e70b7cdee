"""The state machine of an application: every ordered batch, once, in sequence, by those who may (P3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from parley.application import exceeding, expiry, jobs, keeping, strangers
from parley.application.admission import Admission, OpenedBatch
from parley.application.block import BlockContext, Derived
from parley.application.executed import Executed
from parley.application.first_keys import FirstKeys
from parley.application.sequences import ProducerSequence
from parley.application.state import State
from parley.application.work import STRANGER, NoRoom, Pass, Sender, Shares, of_expression
from parley.consensus.types import Block
from parley.ledger import layout, state_map
from parley.ledger.application import Receipt, Results
from parley.model.batches import MAX_NOT_AFTER, BatchHeader, is_timely
from parley.model.genesis import Genesis
from parley.model.names import Position
from parley.model.principals import Principal
from parley.model.receipts import BatchReceipt, Duplicate, Leaf, Outcome, Rejected, encode_leaf
from parley.model.refusals import Busy, Expired, OutOfSequence, Refused, SequenceReused, class_of
from parley.store.interface import KeyValue

if TYPE_CHECKING:
    from parley.application.application import Application

Session = tuple[bytes, bytes, int, str, Position, int]


class Machine:
    """One application in one ledger of a network. Its memory between blocks is derived from the state."""

    def __init__(self, application: Application, genesis: Genesis, shard: int) -> None:
        self._application = application
        self._genesis = genesis
        self._chain = genesis.chain
        ledger = (self._chain, shard)
        self._admission = Admission(ledger, application.decode_operation, application.batch_kinds)
        self._principal = application.principals(genesis)
        self._derived: dict[Derived[Any], Any] = {}
        self._first_keys = FirstKeys((expiry.EXPIRY, *application.jobs))
        self._height: int | None = None  # of the state that these are derived from
        self.executed = Executed()

    @property
    def derived(self) -> dict[Derived[Any], Any] | None:
        """What is kept between blocks; None until the first block since this start has been executed."""
        return None if self._height is None else self._derived

    def genesis(self) -> Results:
        """The empty state: organisations and administrators are those of the genesis file (P26)."""
        return Results((), state_map.EMPTY_ROOT, (), frozenset())

    def admit(self, body: bytes) -> OpenedBatch:
        """A batch that may be ordered. Raises `Refused`."""
        return self._admission.admit(body)

    def vouch(self, body: bytes, digest: bytes) -> None:
        """Note that a worker of this broker has checked this very body, for this network, and found this digest."""
        self._admission.vouch(body, digest)

    def is_body(self, body: bytes, digest: bytes) -> bool:
        return self._admission.is_body(body, digest)

    def apply(self, block: Block, batches: Sequence[tuple[bytes, bytes]], state: KeyValue) -> Results:
        context = self._begin(block, state)
        application = self._application
        expiry.sweep(context, application.expiring, self._first_keys)
        for module in application.modules:
            if module.begin_block is not None:
                module.begin_block(context)
        jobs.carry_out(context, application.jobs, self._first_keys)
        opened = in_turn([self._admission.recall(digest, body) for digest, body in batches])
        context.room -= sum(len(body) for _, body in batches)
        receipts = self._execute_all(context, opened)
        for module in application.modules:
            if module.end_block is not None:
                module.end_block(context)
        leaves: list[Leaf] = [*receipts, *context.late]
        for module in application.modules:
            if module.certify is not None:
                leaves += module.certify(context)
        codes = [receipt.outcome.code for receipt in receipts]
        unsettled = {code for code in set(codes) if not class_of(code).settles}
        settled = frozenset(
            one.digest for one, code in zip(receipts, codes, strict=True) if code not in unsettled
        )
        self._admission.forget(settled)
        self.executed.batches.update(codes)
        self._first_keys.follow(context.state)
        return self._results(context, state, receipts, leaves, settled)

    def repaired(self, keys: Collection[bytes]) -> None:
        """Forget the first keys. What is derived stays: it is mostly older than the damage, and right."""
        if any(key.startswith(layout.ENTRIES) for key in keys):
            self._first_keys.forget()

    def _begin(self, block: Block, state: KeyValue) -> BlockContext:
        if self._height is None or self._height != block.height - 1:
            self._derived = {one: one.load(state) for one in self._application.derived}
            self._first_keys.forget()
        self._height = None  # until this block is done
        return BlockContext(
            height=block.height,
            time=block.header.time,
            genesis=self._genesis,
            chain=self._chain,
            state=State(state),
            executed=self.executed,
            hooks=self._application.hooks,
            derived=self._derived,
            principals=self._principal,
            budget=self._application.budget,
            room=self._genesis.limits.block_bytes,
        )

    def _results(
        self,
        context: BlockContext,
        store: KeyValue,
        receipts: Sequence[BatchReceipt],
        leaves: Sequence[Leaf],
        settled: frozenset[bytes],
    ) -> Results:
        changes = dict(context.state.changes())
        root, nodes = state_map.update(_Nodes(store), changes)
        self._height = context.height
        return Results(
            writes=(
                *((layout.ENTRIES + key, value) for key, value in changes.items()),
                *((layout.NODES + path, node) for path, node in nodes.items()),
                *keeping.places(self._application, context.height, leaves, store),
                *keeping.to_erase(self._application, context, receipts, store),
            ),
            state_root=root,
            receipts=tuple(Receipt(r.digest, r.code, at) for at, r in enumerate(receipts)),
            settled=settled,
            leaves=tuple(map(encode_leaf, leaves)),
            urgent=bool(context.late) or context.urgent,
        )

    def _execute_all(self, block: BlockContext, batches: Sequence[OpenedBatch]) -> list[BatchReceipt]:
        """The receipts in the order in which the batches were executed: those within their senders' shares come first.

        Once a batch of a session is put off, so are its later ones.
        """
        senders = {key: self._sender(block, key) for key in dict.fromkeys(one.author for one in batches)}
        left = block.budget.left(block.work - block.taken_from_batches)
        allowed_from = exceeding.allowed_from(block, (name for name, _ in senders.values()))
        may_exceed = [name for name, height in allowed_from.items() if height <= block.height]
        block.shares = shares = Shares(left, senders.values(), may_exceed)
        receipts: list[BatchReceipt] = []
        waiting = [(one, 0) for one in batches]  # with the least that each takes
        for number in Pass:
            if number is Pass.REST:  # of larger batches one fits: that of who had its last one longest ago
                waiting.sort(key=lambda one: allowed_from[senders[one[0].author][0]])
            put_off: list[tuple[OpenedBatch, int]] = []
            sessions: set[Session] = set()
            for one, least in waiting:
                if sessions and session_of(one) in sessions:
                    put_off.append((one, least))
                    continue
                try:
                    shares.turn(senders[one.author], number, least)
                    receipts.append(self._execute(block, one, len(receipts)))
                except NoRoom as full:
                    sessions.add(session_of(one))
                    put_off.append((one, full.work))
            waiting = put_off
        if shares.exceeding is not None:
            share = block.budget.batches // len(block.genesis.organisations)
            exceeding.note(block, *shares.exceeding, share)
        return [*receipts, *(self._put_off(block, one) for one, _ in waiting)]

    def _sender(self, block: BlockContext, key: bytes) -> Sender:
        return self._principal(block.state, key).member_of, key

    def _execute(self, block: BlockContext, opened: OpenedBatch, position: int) -> BatchReceipt:
        """The receipt will be the block's leaf at `position`. Raises `NoRoom`."""
        header = opened.batch.header
        by = self._principal(block.state, header.publisher)
        decide = self._decide if self._is_sequenced(header) else self._decide_unsequenced
        return _receipt(opened, by, decide(block, by, opened, (block.height, position)))

    def _put_off(self, block: BlockContext, opened: OpenedBatch) -> BatchReceipt:
        """Nothing is decided: it is ordered again."""
        header = opened.batch.header
        by = self._principal(block.state, header.publisher)
        following = ProducerSequence(block, by, header).next if self._is_sequenced(header) else 0
        return _receipt(opened, by, Rejected.of(Busy("block_full"), following))

    def _is_sequenced(self, header: BatchHeader) -> bool:
        kind = self._application.batch_kinds.get(header.kind)
        return kind is None or kind.sequence  # operations have no kind of their own

    def _decide(self, block: BlockContext, by: Principal, opened: OpenedBatch, at: Position) -> Outcome:
        """The outcome of a batch with a sequence. What is too late for its topic takes no turn in it: no later one can either."""
        state, header, digest = block.state, opened.batch.header, opened.digest
        sequence = ProducerSequence(block, by, header)
        if (expired := _untimely(header, block.height)) is not None:
            return Rejected.of(expired, sequence.next)
        known = sequence.original(header.sequence, digest) or strangers.original(state, digest)
        if known is not None:
            return Duplicate(known)
        if not sequence.exists and not by.is_live:
            block.spend(STRANGER)
            return _turn_away(state, by, opened, at)
        if (too_late := self._too_late(block, by, header)) is not None:
            return Rejected.of(too_late, sequence.next)
        if header.sequence < sequence.next:
            sequence.hold(header.not_after)
            return Rejected.of(SequenceReused(sequence=header.sequence), sequence.next)
        if header.sequence > sequence.next:
            early = OutOfSequence(sequence=header.sequence, expected=sequence.next)
            return Rejected.of(early, sequence.next)
        try:
            sequence.require_room(header)
            if (more := sequence.work) > 0:
                block.spend(more)
            outcome = self._apply(block, by, opened, at)
        except Refused as refused:
            if not refused.settles:  # nothing is decided: it waits for another block
                return Rejected.of(refused, sequence.next)
            outcome = Rejected.of(refused, header.sequence + header.count)
        sequence.take(header, digest, at)
        return outcome

    def _too_late(self, block: BlockContext, by: Principal, header: BatchHeader) -> Refused | None:
        kind = self._application.batch_kinds.get(header.kind)
        return None if kind is None or kind.too_late is None else kind.too_late(block, by, header)

    def _decide_unsequenced(
        self, block: BlockContext, by: Principal, opened: OpenedBatch, at: Position
    ) -> Outcome:
        """The outcome of a batch without a sequence; the next sequence that its refusal names is 0."""
        if (expired := _untimely(opened.batch.header, block.height)) is not None:
            return Rejected.of(expired, 0)
        try:
            return self._apply(block, by, opened, at)
        except Refused as refused:
            return Rejected.of(refused, 0)

    def _apply(self, block: BlockContext, by: Principal, opened: OpenedBatch, at: Position) -> Outcome:
        operation = opened.operation
        if operation is not None:
            block.spend(sum(map(of_expression, operation.expressions())), done=True)
            block.spend(self._application.cost_of(block.state, by, operation))
            return self._application.apply_operation[type(operation)](block, by, operation, at)
        return self._application.batch_kinds[opened.batch.header.kind].apply(block, by, opened, at)


def _receipt(opened: OpenedBatch, by: Principal, outcome: Outcome) -> BatchReceipt:
    header = opened.batch.header
    return BatchReceipt(
        opened.digest,
        header.publisher,
        by.title,
        header.topic,
        header.topic_id,
        header.partition,
        header.count,
        outcome,
    )


def session_of(opened: OpenedBatch) -> Session:
    header = opened.batch.header
    return header.publisher, header.session, header.kind, header.topic, header.topic_id, header.partition


def in_turn(batches: list[OpenedBatch]) -> list[OpenedBatch]:
    """The leader's order, but a session's batches by sequence within the places that the session holds (P3)."""
    sessions: dict[Session, list[int]] = {}
    for place, opened in enumerate(batches):
        sessions.setdefault(session_of(opened), []).append(place)
    ordered = list(batches)
    for places in sessions.values():
        if len(places) == 1:
            continue
        in_sequence = sorted((batches[place] for place in places), key=_sequence)
        for place, opened in zip(places, in_sequence, strict=True):
            ordered[place] = opened
    return ordered


def _sequence(opened: OpenedBatch) -> int:
    return opened.batch.header.sequence


def _untimely(header: BatchHeader, height: int) -> Refused | None:
    if is_timely(header, height):
        return None
    if height > header.not_after:
        return Expired("late", not_after=header.not_after, height=height)
    return Expired("too_far_ahead", not_after=header.not_after, height=height, limit=MAX_NOT_AFTER)


def _turn_away(state: State, by: Principal, opened: OpenedBatch, at: Position) -> Rejected:
    """Refuse a batch of a key that is not live. It gets no sequence: such keys could fill the state (decision 9).

    What is refused of a revoked key need not be remembered: it is refused for ever.
    """
    header = opened.batch.header
    if by.client is None and not strangers.remember(state, opened.digest, header.not_after, at):
        return Rejected.of(Busy("stranger", not_after=header.not_after), 0)
    refused = by.reason_to_refuse()
    assert refused is not None, "only keys that are not live are turned away"
    return Rejected.of(refused, 0)


class _Nodes:
    """The map's nodes as they were before this block."""

    def __init__(self, store: KeyValue) -> None:
        self._get: Callable[[bytes], bytes | None] = store.get

    def get(self, path: bytes, /) -> bytes | None:
        return self._get(layout.NODES + path)
