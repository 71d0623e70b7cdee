"""The keeper of the local store: it looks at every record in turn, mends what is damaged, fills in what a snapshot left
out, and erases what retention has ended. Nothing it does can change what is replicated. Sans-IO.

All of it is done in small steps, each of which ends with a timer of no delay that names the job that goes on. There is no
clock here: the driver measures the steps, and lets others have their turn in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parley.consensus.errors import Reason, Refused
from parley.consensus.events import Send, SetTimer
from parley.consensus.types import Block
from parley.ledger import layout, state_map
from parley.ledger.application import Mounted
from parley.ledger.steps import each
from parley.replica.backfill import Backfill
from parley.replica.chain import Entries, Unusable
from parley.replica.eraser import Eraser
from parley.replica.findings import Finding, Findings, FromBody, FromMap, FromPeers, FromRecord, Put
from parley.replica.inquiry import About, Inquiry
from parley.replica.memory import Memory, Overlay
from parley.replica.ports import Found, Write
from parley.replica.rebuild import Rebuild
from parley.replica.records import Gathering, Sound, Trusted, answer_records, answer_values
from parley.replica.scrub import Item, Scrub
from parley.sync.messages import MAX_HEIGHTS, MAX_KEYS, Records, RecordsRequest, Values, ValuesRequest
from parley.sync.timers import CareTimer, Job

ROUND = 1_000  # ms between two rounds
LOOK_ROUND = 250  # while everything is being looked at
BUSY_ROUND = 50  # while something is awaited that comes without a message to this object
BODY_PATIENCE = 30_000  # ms after which bodies are asked for again
LOOK_COST = 64 * 1024  # what looking may cost in one round, some 5 ms
REBUILT = 32  # steps a round in which a node of the state map is made again
MAX_CIRCLES = 30  # times that all members were asked for an entry of the state in vain, before it is given up


@dataclass(frozen=True, slots=True)
class FetchBodies:
    """Get the batches of this executed block from others."""

    block: Block


CareEffect = Send | SetTimer[CareTimer] | Write | Found | FetchBodies


Steps = Iterator[list[CareEffect]]


class Caretaker:
    """One step per timer, and a pause after each round. `store` is what the replica reads, with its own writes of this step."""

    def __init__(self, index: int, size: int, store: Overlay, mounted: Mounted, memory: Memory) -> None:
        self._index = index
        self._size = size
        self._store = store
        self._memory = memory
        self._findings = Findings()
        self._scrub = Scrub(index, store, mounted, memory)
        self._backfill = Backfill(store, mounted.keeper, memory)
        self._eraser = Eraser(store, mounted.keeper, memory)
        self._rebuild = Rebuild(store)
        self._known: list[Trusted] = []  # the history as of the last two rounds
        self._inquiry = Inquiry(index, size)
        self._fills = False  # whether it is asked to fill in, or to mend
        self._bodies_asked = 0
        self._looked = 0
        self._round = 0
        self._now = 0
        self._steps: Steps | None = None  # of the round that goes on
        self._job: Job = "repair"  # what goes on now
        self._held: list[Send] = []  # the next question, which waits until what came before is stored

    @property
    def open_findings(self) -> int:
        """How many damaged entries are known and not mended yet."""
        return len(self._findings.open())

    @property
    def passes(self) -> int:
        """How often everything has been looked at."""
        return self._scrub.passes

    def start(self) -> list[CareEffect]:
        self._backfill.begin()
        return [SetTimer(CareTimer(self._round, "repair"), BUSY_ROUND)]

    def on_timer(self, timer: CareTimer, now: int) -> list[CareEffect]:
        if timer.round != self._round:
            return []
        self._round += 1
        self._now = now
        if self._steps is None:
            self._steps = self._whole_round()
        effects = next(self._steps, None)
        if effects is not None:
            return [*effects, SetTimer(CareTimer(self._round, self._job), 0)]
        self._steps = None
        return [SetTimer(CareTimer(self._round, "repair"), self._delay(now))]

    def _whole_round(self) -> Steps:
        """What there is to do now. Between two of its steps everything else may happen, answers included."""
        self._known = [*self._known[-1:], self._memory.trusted()]
        self._job = "repair"
        if self._inquiry.is_late(self._now):
            yield self._ask_next(self._now)
        if self._now - self._looked >= LOOK_ROUND:
            self._looked = self._now
            self._job = "erasure"
            yield from self._erase()
            self._job = "scrub"
            yield from self._look()
        yield from self._go_on()

    def _wake(self) -> list[CareEffect]:
        """Begin the next round at once, or go on with this one."""
        self._round += 1
        return [SetTimer(CareTimer(self._round, self._job), 0)]

    def _delay(self, now: int) -> int:
        if self._backfill.waits or self._rebuild.is_running or self._awaits_bodies():
            return BUSY_ROUND
        return ROUND if self._scrub.is_resting(now) or self._findings.is_full else LOOK_ROUND

    def suspect(self, entry: bytes, height: int) -> list[CareEffect]:
        """Somebody met an entry of an executed block that cannot be read."""
        return [*self._findings.note(Finding(entry, "cannot be read", FromRecord(height)))]

    def discard_body(self, block: Block, name: bytes) -> list[CareEffect]:
        """A block cannot be executed with the body that is stored; whoever executes it fetches another one."""
        entry = layout.batch(name)
        finding = Finding(entry, "is not the batch that it is named after", FromBody(block, name))
        return [*self._findings.note(finding), self._write([(entry, None)])]

    def state_damage(self) -> str | None:
        """The first wrong entry of the whole state, by its name. To be asked only if something has gone wrong already."""
        found = self._scrub.state_damage()
        return None if found is None else layout.name(found.entry)

    # -- looking and mending ----------------------------------------------------------------------------------------------

    def _look(self) -> Steps:
        left = LOOK_COST
        while left > 0 and not self._findings.is_full:
            items, cost = self._scrub.look(self._now)
            yield self._met(items, self._now)
            if not cost:
                return
            left -= cost

    def _met(self, items: list[Item], now: int) -> list[CareEffect]:
        effects: list[CareEffect] = []
        bodies: list[FromBody] = []
        for item in items:
            if not isinstance(item, Finding):
                effects += self._eraser.meet(item, now, filling=self._backfill.is_needed)
            elif new := self._findings.note(item):
                effects += new
                self._scrub.alarm()
                if isinstance(item.remedy, Put):
                    effects += [
                        self._write([(item.entry, item.remedy.value)]),
                        *self._findings.mended(item.entry),
                    ]
                elif isinstance(item.remedy, FromBody):
                    bodies.append(item.remedy)
        return effects + self._fetch(bodies, now)

    def _fetch(self, bodies: list[FromBody], now: int) -> list[CareEffect]:
        """What is damaged goes first: a body that is stored is not fetched."""
        effects: list[CareEffect] = []
        wanted: dict[Block, list[bytes]] = {}
        for body in bodies:
            entry, waiting = layout.batch(body.name), self._memory.body(body.name)
            effects.append(self._write([(entry, waiting)]))
            if waiting is not None:
                effects += self._findings.mended(entry)
            else:
                wanted.setdefault(body.block, []).append(body.name)
                self._bodies_asked = now
        return effects + [FetchBodies(Block(block.header, tuple(names))) for block, names in wanted.items()]

    def _awaits_bodies(self) -> bool:
        return any(isinstance(finding.remedy, FromBody) for finding in self._findings.open())

    def _arrived_bodies(self) -> Steps:
        """Bodies were checked when they came, so it is enough that they are here."""
        now, late = self._now, self._now - self._bodies_asked >= BODY_PATIENCE
        missing: list[tuple[Finding, FromBody]] = []
        effects: list[CareEffect] = []
        for finding in self._findings.open():
            remedy = finding.remedy
            if not isinstance(remedy, FromBody):
                continue
            if self._store.get(finding.entry) is not None:
                effects += self._findings.mended(finding.entry)
            else:
                missing.append((finding, remedy))
        if effects:
            yield effects
        if late:
            self._bodies_asked = now
            yield from self._asked_again(missing)

    def _asked_again(self, missing: list[tuple[Finding, FromBody]]) -> Steps:
        """Bodies that did not come for long: some of them need not be here any more."""
        for finding, remedy in missing:
            needed = yield from each(self._scrub.needed(remedy.block), _no_effects)
            if self._store.get(finding.entry) is not None:
                continue
            if remedy.name in needed:
                yield self._fetch([remedy], self._now)
            else:
                self._findings.drop(finding.entry)
        yield from map(self._written, self._backfill.ask_again())

    def _erase(self) -> Steps:
        for entries, lost in self._eraser.steps():
            effects = self._written(entries)
            for finding in lost:
                effects += [*self._findings.note(finding), *self._findings.mended(finding.entry)]
            yield effects

    def _rebuilt(self) -> Steps:
        """Go on with one damaged node of the state map."""
        for _ in range(REBUILT):
            paths = [f.remedy.path for f in self._findings.open() if isinstance(f.remedy, FromMap)]
            if not paths:
                self._rebuild.stop()
                return
            yield self._rebuild_part(min(paths, key=len))

    def _rebuild_part(self, path: bytes) -> list[CareEffect]:
        key = layout.state_node(path)
        try:
            node = self._rebuild.go_on(path, self._memory.state_root())
        except state_map.DamagedMap:
            self._give_up(key, "and what lies below it are damaged")
            return []
        except state_map.StrayNode:  # the state has changed since, and has no node there any more
            self._findings.drop(key)
            return []
        return [] if node is None else [self._write([(key, node)]), *self._findings.mended(key)]

    def _give_up(self, entry: bytes, why: str) -> None:
        """The state cannot be mended piece by piece: the replica fetches another one."""
        if self._size > 1:
            raise Unusable(layout.name(entry), why)
        self._findings.drop(entry)  # nobody has another one

    # -- asking others ----------------------------------------------------------------------------------------------------

    def _go_on(self) -> Steps:
        """All that can be done now without an answer, then the next question."""
        self._job = "repair"
        yield from self._arrived_bodies()
        self._job = "rebuild"
        yield from self._rebuilt()
        self._job = "backfill"
        yield from self._fill_in()
        if questions := self._ask(self._now):
            yield questions

    def _fill_in(self) -> Steps:
        yield from map(self._written, self._backfill.taking())
        held, self._held = self._held, []
        if held:
            yield [*held]
        if not self._backfill.is_needed:
            return
        if self._inquiry.can_ask(self._now):
            yield from map(self._written, self._backfill.found_here(self._memory.trusted()))
        for step in self._backfill.settling():
            yield [FetchBodies(step)] if isinstance(step, Block) else self._written(step)

    def _ask(self, now: int) -> list[CareEffect]:
        about = self._wanted() if self._inquiry.can_ask(now) else None
        return [] if about is None else [*self._inquiry.ask(about, now)]

    def _wanted(self) -> About | None:
        self._fills = False
        remedies = [finding.remedy for finding in self._findings.open()]
        heights = sorted({remedy.height for remedy in remedies if isinstance(remedy, FromRecord)})
        if heights:
            return self._gathering(heights[:MAX_HEIGHTS])
        keys = tuple(remedy.key for remedy in remedies if isinstance(remedy, FromPeers))
        if keys:
            return keys[:MAX_KEYS]
        self._fills = True
        below = self._backfill.heights()
        return self._gathering(below) if below else None

    def _gathering(self, heights: Sequence[int]) -> Gathering:
        """Proven in a history that is a little older than the newest one: others may not have executed that far yet."""
        older = (known for known in self._known if known.size >= max(heights))
        return Gathering(next(older, self._memory.trusted()), heights)

    def _ask_next(self, now: int) -> list[CareEffect]:
        questions = self._inquiry.ask_next(now)
        if self._inquiry.circles >= MAX_CIRCLES:
            for finding in self._findings.open():
                if isinstance(finding.remedy, FromPeers):
                    self._give_up(finding.entry, "is damaged, and no other broker has it")
        return [*questions]

    def receive_records(self, sender: int, records: Records, now: int) -> list[CareEffect]:
        """Raises `Refused` for what is not right; `resume` then asks the next member."""
        gathering = self._inquiry.answered(sender)
        if not isinstance(gathering, Gathering):
            raise Refused(Reason.BAD_ANSWER, f"records from member {sender}, which was asked for values")
        sounds = gathering.take(records)
        if self._fills:
            self._backfill.arrived(sounds)
            self._held = self._inquiry.right(now)
            return []
        effects = [effect for sound in sounds for effect in self._mend(sound)]
        return [*effects, *self._inquiry.right(now)]

    def receive_values(self, sender: int, values: Values, now: int) -> list[CareEffect]:
        keys = self._inquiry.answered(sender)
        if isinstance(keys, Gathering) or values.keys != keys[: len(values.keys)]:
            raise Refused(Reason.BAD_ANSWER, f"member {sender} sent values of other keys")
        if len(values.values) != len(values.keys):
            raise Refused(Reason.BAD_ANSWER, f"member {sender} sent another number of values than of keys")
        pairs = zip(values.keys, values.values, strict=True)
        effects = [effect for key, value in pairs for effect in self._mend_value(key, value)]
        if not effects:
            raise Refused(Reason.BAD_ANSWER, f"member {sender} has other values than the state map says")
        return [*effects, *self._inquiry.right(now)]

    def resume(self, now: int) -> list[CareEffect]:
        """After an answer, whatever it was."""
        if self._inquiry.is_doubtful:
            return self._ask_next(now)
        return self._wake() if self._held or self._backfill.has_arrived or self._inquiry.can_ask(now) else []

    def _mend(self, sound: Sound) -> list[CareEffect]:
        """Write what is not as it should be. It may be another entry than the one that was suspected."""
        wrong: Entries = [
            (key, value) for key, value in sound.entries().items() if self._store.get(key) != value
        ]
        effects: list[CareEffect] = [self._write(wrong)] if wrong else []
        for key, _ in wrong:
            finding = Finding(key, "is not what the history says", FromRecord(sound.block.height))
            effects += [*self._findings.note(finding), *self._findings.mended(key)]
        for finding in self._findings.open():
            if finding.remedy == FromRecord(sound.block.height):
                self._findings.drop(finding.entry)
        return effects

    def _mend_value(self, key: bytes, value: bytes | None) -> list[CareEffect]:
        """What the map says is right, whoever sent it; an entry may also have changed or gone since."""
        entry, root = layout.state(key), self._memory.state_root()
        try:
            proof = state_map.prove(layout.StateNodes(self._store), key)
        except state_map.DamagedMap:
            return []
        for candidate in (self._store.get(entry), value, None):
            if state_map.verify(root, key, candidate, proof):
                return [self._write([(entry, candidate)]), *self._findings.mended(entry)]
        return []

    # -- for others -------------------------------------------------------------------------------------------------------

    def answer_records(self, request: RecordsRequest) -> tuple[Records, list[CareEffect]]:
        answer, unreadable = answer_records(self._store, request)
        asked = (self.suspect(entry, int.from_bytes(entry[2:], "big")) for entry in unreadable)
        return answer, [effect for effects in asked for effect in effects]

    def answer_values(self, request: ValuesRequest) -> Values:
        return answer_values(self._store, request)

    def _written(self, entries: Entries) -> list[CareEffect]:
        return [self._write(entries)] if entries else []

    def _write(self, entries: Entries) -> Write:
        self._store.write(entries)
        return Write(tuple(entries), sync=False)


def _no_effects(_step: object) -> list[CareEffect]:
    return []
