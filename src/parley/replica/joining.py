"""A broker whose state is missing, wrong or too old gets a certified one from the others, and becomes a replica again.

It takes the place of the replica on the same disk and never signs anything. In this order: offers, the old state goes,
nodes and entries of the state map, blocks, one write that makes it all valid. Until a checked offer is at hand nothing
is destroyed; until the last write the mark `m/joining` stays, so that whoever is interrupted starts over. Sans-IO.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from itertools import islice

from parley.consensus.committee import faults
from parley.consensus.errors import Reason
from parley.consensus.errors import Refused as Refusal
from parley.consensus.leader import schemes
from parley.consensus.record import SafetyState
from parley.consensus.verify import Verifier
from parley.crypto.encoding import u64
from parley.crypto.qc import QCScheme
from parley.ledger import layout
from parley.ledger.application import AdmittedBatch, StateMachine
from parley.ledger.state_map import DamagedMap
from parley.mempool.pool import Intake
from parley.replica import wire
from parley.replica.beginning import ReplicaConfig, genesis_of
from parley.replica.chain import Chain, Entries, Unusable, joined_entries
from parley.replica.fetching import BlocksFetch, EntriesFetch, NodesFetch
from parley.replica.memory import Overlay
from parley.replica.ports import (
    Broadcast,
    Effect,
    Found,
    Halt,
    Refused,
    Restart,
    Send,
    SetTimer,
    Submission,
    Timer,
    Write,
)
from parley.replica.rejoining import joins_after, require_certified, too_often
from parley.replica.snapshots import MAX_AGE
from parley.store.interface import StoreReader
from parley.sync.messages import (
    BlocksResponse,
    SnapshotEntries,
    SnapshotNodes,
    SnapshotOffer,
    SnapshotRequest,
)
from parley.sync.timers import JoinTimer

ANSWER_MS = 1_000  # before the next member is asked, or all are asked for offers again
OFFERS_MS = 2_000  # from the first offer on, in which the others may come
# After this time from the first offer, fewer than f+1 are enough: without this broker's vote the others may stand still,
# and then they make no more snapshots.
FEW_OFFERS_MS = 20_000
BLOCKS_MS = 10_000  # in which one member has to send all blocks that are needed
PURGED = 2_048  # old entries that go in one write
MISSES = 3  # questions in a row that a member leaves without an answer before it is not asked any more

Fetch = NodesFetch | EntriesFetch | BlocksFetch


class Joiner:
    """A `Participant`: like a replica it is driven by inputs and answers with effects, but it takes no part."""

    def __init__(
        self,
        config: ReplicaConfig,
        scheme: QCScheme,
        state_machine: StateMachine,
        *,
        record: tuple[int, SafetyState],
        store: StoreReader,
        reason: Unusable,
    ) -> None:
        """`reason`: why there is no replica on this disk."""
        self._config = config
        self._store = Overlay(store)
        self._reason = reason
        self._genesis = genesis_of(config, state_machine)
        self._verifier = Verifier(config.instance, scheme, self._genesis)
        self._memory = schemes.make(config.leaders, config.instance.size).memory
        self.view = record[1].high_qc.view
        self.committed_height = self.executed_height = _height(store)
        self._above = _above(store)
        self._search = _Search()
        self._failed: Counter[int] = (
            Counter()
        )  # snapshots that came to nothing, by the members that offered them
        self._purge: _Purge | None = None
        self._fetch: Fetch | None = None
        self._sources = _Sources(())
        self._offer: SnapshotOffer | None = None
        self._asked = -1  # the member whose answer is awaited
        self._since = 0  # when that member's turn began
        self._now = 0
        self._leaves = 0
        self._one_source = False  # entries of several members did not add up
        self._attempt = 0
        self._halted = False
        self.counters: Counter[Reason] = Counter()

    # -- inputs --------------------------------------------------------------------------------------------------------

    def start(self, now: int) -> list[Effect]:
        self._now = now
        effects: list[Effect] = []
        if self._store.get(layout.JOINING) is None:
            effects.append(Found(self._reason.entry, self._reason.what, mended=False))
            effects.append(Write(((layout.JOINING, u64(0)),), sync=True))
        return effects + self._seek()

    def receive(self, now: int, sender: int, *messages: bytes) -> list[Effect]:
        """Whatever is not about the snapshot is ignored: others ask each other, or again later."""
        effects: list[Effect] = []
        for data in messages:
            found = self._receive(now, sender, data)
            for effect in found:
                if isinstance(effect, Write):  # the next message may be about what this one brought
                    self._store.write(effect.entries)
            effects += found
        self._store.clear()
        return effects

    def _receive(self, now: int, sender: int, data: bytes) -> list[Effect]:
        self._now = now
        if self._halted:
            return []
        try:
            self._require_other(sender)
            match wire.decode(data):
                case SnapshotOffer() as offer:
                    return self._on_offer(sender, offer)
                case SnapshotNodes() | SnapshotEntries() | BlocksResponse() as answer:
                    return self._on_answer(sender, answer)
                case _:
                    return []
        except Refusal as refusal:
            return [self._refused(sender, refusal)]

    def submit(self, now: int, batch: AdmittedBatch) -> Submission:
        del now, batch
        why = "this broker fetches a certified snapshot and takes no batches until it has one"
        return Submission(Intake.HALTED, [self._refused(None, Refusal(Reason.HALTED, why))])

    def connected(self, now: int, member: int, *, up: bool) -> list[Effect]:  # noqa: ARG002 - it waits for no leader
        return []

    def fire(self, now: int, timer: Timer) -> list[Effect]:
        self._now = now
        if self._halted or timer != JoinTimer(self._attempt):
            return []
        if self._purge is not None:
            return self._go_on_purging(self._purge)
        if self._fetch is not None:
            return self._missed()
        enough = faults(self._config.instance.size) + 1  # or all of them may be liars'
        return self._choose() if self._search.waited(now, enough) else self._ask_for_offers()

    # -- offers --------------------------------------------------------------------------------------------------------

    def _seek(self) -> list[Effect]:
        """Begin, or begin again: what was fetched is of no use any more."""
        self._search = _Search()
        self._purge = self._fetch = self._offer = None
        self._one_source = False
        return self._ask_for_offers()

    def _ask_for_offers(self) -> list[Effect]:
        return [Broadcast(wire.encode(SnapshotRequest(self._above))), self._timer(ANSWER_MS)]

    def _on_offer(self, sender: int, offer: SnapshotOffer) -> list[Effect]:
        if self._offer is not None:
            raise Refusal(Reason.UNSOLICITED, f"a snapshot from member {sender}")
        if offer.header.executed_height <= self._above:
            raise Refusal(Reason.BAD_ANSWER, f"member {sender} offers an older snapshot than was asked for")
        require_certified(offer, self._config.instance, self._verifier)
        self._search.add(self._now, sender, offer)
        return self._choose() if len(self._search.offers) == self._config.instance.size - 1 else []

    def _choose(self) -> list[Effect]:
        offer, members = self._search.best(self._failed)
        height = offer.header.executed_height
        if too_often(self._store, self._config.patience, height):
            self._halted = True
            return [Halt(_hopeless(self._reason))]
        self._offer = offer
        self._sources = _Sources(members)
        self._purge = _Purge(self._store, height)
        return self._go_on_purging(self._purge)

    def _go_on_purging(self, purge: _Purge) -> list[Effect]:
        """A bounded step, and then the next: the old state may be large."""
        assert self._offer is not None
        if keys := purge.some():
            return [Write(tuple((key, None) for key in keys), sync=False), self._timer(1)]
        self._purge = None
        return self._go_on(NodesFetch(self._offer, self._store))

    # -- the snapshot --------------------------------------------------------------------------------------------------

    def _go_on(self, fetch: Fetch) -> list[Effect]:
        """Ask for the next piece, or take the next step when there is none."""
        self._fetch = fetch
        assert self._offer is not None
        match fetch:
            case NodesFetch(done=True):
                self._leaves = fetch.leaves
                return self._go_on(EntriesFetch(self._offer, self._store, self._leaves))
            case EntriesFetch(done=True, complete=True):
                depth, self._asked = self._config.depth, -1
                return self._go_on(BlocksFetch(self._offer, self._verifier, depth, self._memory))
            case EntriesFetch(done=True):
                return self._fetch_from_one()
            case BlocksFetch(done=True):
                return self._finish(self._offer, fetch)
            case _:
                return self._ask(fetch)

    def _fetch_from_one(self) -> list[Effect]:
        """Somebody left entries out. From now on one member at a time, and who does not give all is not asked again."""
        assert self._offer is not None
        if self._one_source:
            self._sources.drop(self._asked)
        self._one_source = True
        self._asked = -1
        return self._go_on(EntriesFetch(self._offer, self._store, self._leaves))

    def _ask(self, fetch: Fetch) -> list[Effect]:
        stays = isinstance(fetch, BlocksFetch) or (isinstance(fetch, EntriesFetch) and self._one_source)
        if not stays or self._asked not in self._sources.members:
            member = self._sources.next()
            if member is None:
                self._failed.update(self._sources.all)
                return self._seek()
            self._asked, self._since = member, self._now
        return [Send(self._asked, wire.encode(fetch.question())), self._timer(ANSWER_MS)]

    def _on_answer(
        self, sender: int, answer: SnapshotNodes | SnapshotEntries | BlocksResponse
    ) -> list[Effect]:
        fetch = self._fetch
        if fetch is None or sender != self._asked:
            raise Refusal(Reason.UNSOLICITED, f"an answer of member {sender}")
        try:
            entries = self._take(fetch, answer)
        except DamagedMap:  # of nodes that were checked and written here
            return self._seek()
        except Refusal as refusal:
            if refusal.reason is Reason.UNSOLICITED:  # late, to an earlier question
                raise
            self._sources.drop(sender)
            return [self._refused(sender, refusal), *self._missed()]
        self._sources.answered(sender)
        writes: list[Effect] = [Write(tuple(entries), sync=False)] if entries else []
        return writes + self._go_on(fetch)

    def _take(self, fetch: Fetch, answer: SnapshotNodes | SnapshotEntries | BlocksResponse) -> Entries:
        match fetch, answer:
            case NodesFetch(), SnapshotNodes():
                return fetch.take(answer)
            case EntriesFetch(), SnapshotEntries():
                return fetch.take(answer)
            case BlocksFetch(), BlocksResponse():
                if self._now - self._since > BLOCKS_MS:
                    raise Refusal(Reason.BAD_ANSWER, "blocks come too slowly")
                return fetch.take(answer)
            case _:
                raise Refusal(Reason.UNSOLICITED, f"an answer of member {self._asked} to an earlier question")

    def _missed(self) -> list[Effect]:
        """No answer, or no good one: another member's turn."""
        fetch = self._fetch
        self._sources.missed(self._asked)
        self._asked = -1
        if fetch is None:
            return self._seek()
        if isinstance(fetch, BlocksFetch):
            fetch.restart()
        elif self._one_source and isinstance(fetch, EntriesFetch) and self._offer is not None:
            fetch = self._fetch = EntriesFetch(self._offer, self._store, self._leaves)
        return self._ask(fetch)

    def _finish(self, offer: SnapshotOffer, fetch: BlocksFetch) -> list[Effect]:
        height = offer.header.executed_height
        entries = joined_entries(self._genesis, offer, fetch.blocks)
        entries.append((layout.JOINS, joins_after(self._store, self._config.patience, height)))
        entries.append((layout.JOINING, None))
        self._halted = True
        return [Write(tuple(entries), sync=True), Restart(f"The certified state of height {height} is here.")]

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _require_other(self, sender: int) -> None:
        if not 0 <= sender < self._config.instance.size or sender == self._config.index:
            raise Refusal(Reason.UNKNOWN_SIGNER, f"sender {sender}")

    def _timer(self, delay: int) -> SetTimer:
        self._attempt += 1
        return SetTimer(JoinTimer(self._attempt), delay)

    def _refused(self, sender: int | None, refusal: Refusal) -> Refused:
        self.counters[refusal.reason] += 1
        return Refused(sender, refusal.reason, refusal.detail)


class _Search:
    """The newest checked offer of each member."""

    def __init__(self) -> None:
        self.offers: dict[int, SnapshotOffer] = {}
        self._first = 0

    def add(self, now: int, sender: int, offer: SnapshotOffer) -> None:
        self._first = self._first if self.offers else now
        self.offers[sender] = offer

    def waited(self, now: int, enough: int) -> bool:
        waiting = now - self._first if self.offers else 0
        return waiting >= (OFFERS_MS if len(self.offers) >= enough else FEW_OFFERS_MS)

    def best(self, failed: Mapping[int, int]) -> tuple[SnapshotOffer, list[int]]:
        """Of the newest heights the one that most members offer, the highest of those if there are several, and who they are.

        What a liar makes fail counts against it: it cannot have one snapshot of its own after the other begun in vain.
        """
        newest = max(offer.header.executed_height for offer in self.offers.values())
        by_height: dict[int, list[int]] = {}
        for member in sorted(self.offers):
            height = self.offers[member].header.executed_height
            if height + 2 * MAX_AGE >= newest:  # a much older one is certified, too, but leads nowhere
                by_height.setdefault(height, []).append(member)
        _, members = max(
            by_height.items(),
            key=lambda item: (-min(failed.get(member, 0) for member in item[1]), len(item[1]), item[0]),
        )
        return self.offers[members[0]], members


class _Sources:
    """The members that offered the snapshot, asked in turn."""

    def __init__(self, members: Iterable[int]) -> None:
        self.all = tuple(members)
        self.members = deque(self.all)
        self._misses: Counter[int] = Counter()  # by member, since its last good answer

    def next(self) -> int | None:
        self.members.rotate(-1)
        return self.members[-1] if self.members else None

    def answered(self, member: int) -> None:
        self._misses[member] = 0

    def missed(self, member: int) -> None:
        self._misses[member] += 1
        if self._misses[member] >= MISSES:
            self.drop(member)

    def drop(self, member: int) -> None:
        if member in self.members:
            self.members.remove(member)


class _Purge:
    """The keys of what the snapshot replaces: all state, all roots, and the records of blocks above its height."""

    def __init__(self, store: Overlay, height: int) -> None:
        self._store = store
        self._ranges = deque(
            [
                (layout.APPLICATION, layout.APPLICATION),
                (b"r/", b"r/"),
                (b"c/", layout.committed(height + 1)),
                (b"e/", layout.receipts(height + 1)),
            ]
        )

    def some(self) -> list[bytes]:
        """The next ones; none: there are no more."""
        while self._ranges:
            prefix, start = self._ranges[0]
            keys = [key for key, _ in islice(self._store.scan(prefix, start), PURGED)]
            if keys:
                self._ranges[0] = (prefix, keys[-1] + b"\0")
                return keys
            self._ranges.popleft()
        return []


def _height(store: StoreReader) -> int:
    """Of the state that is given up, as far as it can be read."""
    try:
        return Chain(store).head().height
    except Unusable:
        return 0


def _above(store: StoreReader) -> int:
    mark = store.get(layout.JOINING) or b""
    return int.from_bytes(mark, "big") if len(mark) == len(u64(0)) else 0


def _hopeless(reason: Unusable) -> str:
    return (
        f"This broker has started from a certified snapshot again and again, and its state went wrong each time (now: entry "
        f"{reason.entry} of the store {reason.what}). It stops here. Check the disk, the memory and the version of parley, "
        f"then start it again; its safety record must stay as it is."
    )
