"""The connection on which another broker speaks: its pings are answered at once, the rest waits for the replica."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from parley.net.frames import FrameError, FrameStream
from parley.net.messages import PING, Pong, WireError, decode_ping, encode

TURN = 16  # messages of one peer before others have their turn
AHEAD_BYTES = 4 * 1024 * 1024  # read and not taken by the replica yet, besides what one read brings
AHEAD_MESSAGES = 4_096
PONG_BYTES = 64 * 1024  # not sent yet, above which pings get no answer

Take = Callable[[list[bytes]], Awaitable[bool]]


class Incoming:
    """Reads ahead of the replica, so that a wait for the disk does not look like the silence of a dead broker."""

    def __init__(self, stream: FrameStream, *, heard: Callable[[], None], now: Callable[[], int]) -> None:
        self.stream = stream
        self._heard = heard
        self._now = now
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._moved = asyncio.Event()  # frames have come, were taken, or come no more
        self._over = False
        self.full = False  # nothing more is read: that nothing is heard is not the other side's fault

    async def run(self, take: Take) -> None:
        """Until the other side has finished or `take` returns False. Raises `FrameError` after what came before it."""
        taking = asyncio.create_task(self._hand_on(take))
        taking.add_done_callback(self._taken)
        try:
            broken = await self._read()
            self._over = True
            self._moved.set()
            await taking
        finally:
            taking.cancel()
            await asyncio.wait([taking])
        if broken is not None:
            raise broken

    async def _read(self) -> FrameError | None:
        try:
            while frames := await self.stream.read_many():
                self._heard()
                self._add(self._answered(frames))
                await asyncio.sleep(0)  # a flood that is read already must not have the loop to itself
                while not self._over and self._is_full():
                    self.full = True
                    self._moved.clear()
                    await self._moved.wait()
                self.full = False
        except FrameError as error:
            return error
        finally:
            self.full = False
        return None

    def _is_full(self) -> bool:
        return self._bytes > AHEAD_BYTES or len(self._frames) > AHEAD_MESSAGES

    def _taken(self, _: asyncio.Task[None]) -> None:
        """Nothing more is taken, so nothing more need be read."""
        self._over = True
        self._moved.set()
        self.stream.close()

    def _add(self, frames: list[bytes]) -> None:
        if frames:
            self._frames.extend(frames)
            self._bytes += sum(map(len, frames))
            self._moved.set()

    async def _hand_on(self, take: Take) -> None:
        while True:
            while not self._frames and not self._over:
                self._moved.clear()
                await self._moved.wait()
            if not self._frames:
                return
            group = [self._frames.popleft() for _ in range(min(TURN, len(self._frames)))]
            self._bytes -= sum(map(len, group))
            self._moved.set()
            if not await take(group):
                return

    def _answered(self, frames: list[bytes]) -> list[bytes]:
        """All but the pings. Only the newest is answered: many pings cause no more than one answer for each read."""
        pings = [frame for frame in frames if frame.startswith(PING)]
        if not pings:
            return frames
        try:
            newest = decode_ping(pings[-1])
        except WireError:  # the replica refuses it, too, and counts it as garbage
            return frames
        if self.stream.write_buffer_bytes < PONG_BYTES:
            self.stream.write(encode(Pong(newest.number, self._now())))
        return [frame for frame in frames if not frame.startswith(PING)]
