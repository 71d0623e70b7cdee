"""A real chain, a replica that has none of it, and members that answer its questions well or badly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tests.replica.driver import Cluster, Committee, Member, Outbox

from parley.consensus.types import QC, Block, Certificates
from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.replica import wire
from parley.replica.ports import Effect, Send, SetTimer
from parley.sim.counter import encode_batch, mounted
from parley.sync.blocks import SyncTimer, answer
from parley.sync.messages import BlocksRequest, BlocksResponse

ME = 3
Server = Callable[[BlocksRequest], BlocksResponse | None]


@dataclass(frozen=True)
class Recorded:
    """The chain that four members agreed on; batches by digest."""

    committee: Committee
    blocks: tuple[Block, ...]
    bodies: dict[bytes, bytes]

    def qc(self, height: int) -> QC:
        return self.blocks[height + 1].header.justify

    def answer(self, request: BlocksRequest) -> BlocksResponse:
        """What an honest member with all of the chain says."""
        last = next(block.height for block in self.blocks if block.id == request.target)
        return answer(request, self.blocks[request.above + 1 : last + 1], self.qc(last))


@cache
def recorded(length: int = 420) -> Recorded:
    cluster = Cluster().start()
    sequence = 0
    while min(cluster.heights()) <= length:
        cluster.submit(sequence % 4, encode_batch(sequence % 4, sequence // 4, b"payload"))
        sequence += 1
        cluster.run(2)
    member = cluster.members[0]
    bodies = {key[2:]: value for key, value in member.store.scan(b"b/")}
    return Recorded(cluster.committee, tuple(member.blocks()), bodies)


class Laggard:
    """Member 3, fresh from its genesis, driven by hand."""

    def __init__(self) -> None:
        self.member = Member(recorded().committee, ME, mounted())
        self.questions: list[tuple[int, BlocksRequest]] = []
        self.wishes: list[tuple[int, BatchesRequest]] = []
        self.timers: list[SyncTimer] = []
        self.effects: list[Effect] = []
        self._do(self.member.replica.start(0))

    def learn(self, height: int) -> None:
        """Somebody shows the certificate of a block that is unknown here."""
        self.hear(0, Certificates(recorded().qc(height), None))

    def hear(self, sender: int, message: wire.WireMessage) -> list[Effect]:
        return self._do(self.member.replica.receive(0, sender, wire.encode(message)))

    def fire(self) -> list[Effect]:
        """The newest retry timer: older ones are for questions that are over."""
        return self._do(self.member.replica.fire(0, self.timers[-1]))

    def ask(self, server: Server) -> None:
        """Let the member that was asked last answer; no answer means that the timer fires."""
        to, request = self.questions[-1]
        response = server(request)
        if response is None:
            self.fire()
        else:
            self.hear(to, response)

    def give_batches(self) -> None:
        while self.wishes:
            to, wish = self.wishes.pop()
            for name in wish.digests:
                self.hear(to, BatchMessage(recorded().bodies[name]))

    def state(self) -> tuple[object, ...]:
        """All that an answer could change."""
        replica = self.member.replica
        return (
            replica.view,
            replica.committed_height,
            replica.executed_height,
            tuple(self.member.slots),
            dict(self.member.store.entries),
        )

    @property
    def height(self) -> int:
        return self.member.replica.committed_height

    def _do(self, effects: list[Effect]) -> list[Effect]:
        self.member.execute(effects, Outbox())
        self.effects += effects
        for effect in effects:
            match effect:
                case SetTimer(SyncTimer() as timer):
                    self.timers.append(timer)
                case Send():
                    self._note(effect.to, wire.decode(effect.data))
                case _:
                    pass
        return effects

    def _note(self, to: int, message: wire.WireMessage) -> None:
        match message:
            case BlocksRequest():
                self.questions.append((to, message))
            case BatchesRequest():
                self.wishes.append((to, message))
            case _:
                pass
