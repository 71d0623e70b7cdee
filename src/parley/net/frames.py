"""Length-prefixed frames over a byte stream, read and written in batches because a call per message is too slow."""

from __future__ import annotations

import asyncio
import ssl
import struct
from contextlib import suppress

from parley.net.limits import source_of

PRE_AUTH_LIMIT = 16 * 1024  # bytes a frame may have before its sender is known
MAX_LIMIT = 64 * 1024 * 1024  # no caller may allow more
MAX_BATCH = 1_024  # frames that one read returns
CLOSE_SECONDS = 2.0  # how long a closing connection may take to say good-bye

_HEADER = struct.Struct(">I")
HEADER_SIZE = _HEADER.size
_pack = _HEADER.pack
_unpack = _HEADER.unpack_from

_COALESCE = 64 * 1024  # bytes of small frames that are collected before they are handed on
_LARGE = 16 * 1024  # a TLS record: joining larger payloads with others would copy them and save nothing


class FrameError(Exception):
    """The stream cannot be read on: close it. Whether its sender is to blame is for the kind to say."""


class FrameTooLarge(FrameError):  # noqa: N818 - it names what happened to the stream
    """The sender's fault: a frame is announced that is larger than allowed. None of it was read."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a frame of {length} bytes was announced; at most {limit} are allowed here")
        self.length = length
        self.limit = limit


class EmptyFrame(FrameError):  # noqa: N818 - it names what happened to the stream
    """The sender's fault: no message has an empty encoding."""


class FrameTruncated(FrameError):  # noqa: N818 - it names what happened to the stream
    """The stream ended inside a frame, as it does when the other side dies."""


class ConnectionLost(FrameError):  # noqa: N818 - it names what happened to the stream
    """The connection broke; the message says how."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the connection was lost: {reason}")


class FrameStream:
    """Frames in both directions over one connection. One task reads; any may write.

    `limit` bounds the frames that are read, and with them the buffer: raise it once the sender is known.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, limit: int = PRE_AUTH_LIMIT
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._flush_planned = False
        self._closing: asyncio.Task[None] | None = None
        self.limit = limit
        # Asked now, because a transport that is closed may no longer answer.
        secured: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        address: tuple[str, int] | str | None = writer.get_extra_info("peername")
        self.peer_certificate = secured.getpeercert(binary_form=True) if secured else None
        self.peer_certificate_ends = _end_of(secured) if self.peer_certificate else None
        self.source = source_of(address[0]) if isinstance(address, tuple) else ""

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        if not 0 < limit <= MAX_LIMIT:
            raise ValueError(f"a frame limit is 1 to {MAX_LIMIT} bytes, not {limit}")
        self._limit = limit

    async def read(self) -> bytes | None:
        """The next frame, or None when the other side has finished."""
        frames = await self._read(1)
        return frames[0] if frames else None

    async def read_many(self) -> list[bytes]:
        """All frames that have arrived, at least one and at most `MAX_BATCH`; none when the other side has finished."""
        return await self._read(MAX_BATCH)

    def write(self, payload: bytes) -> None:
        """Send a frame soon, together with others; to a connection that is closed, send nothing.

        This never waits: callers bound what they write by `drain` or by `write_buffer_bytes`.
        """
        size = len(payload)
        if not 0 < size <= MAX_LIMIT:
            raise ValueError(f"a frame has 1 to {MAX_LIMIT} bytes, not {size}")
        self._pending.append(_pack(size))
        if size >= _LARGE:
            self._flush(payload)
            return
        self._pending.append(payload)
        self._pending_bytes += HEADER_SIZE + size
        if self._pending_bytes >= _COALESCE:
            self._flush()
        elif not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush_as_planned)

    async def drain(self) -> None:
        """Wait until the other side keeps up with what was written."""
        self._flush()
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(reason_of(error)) from error

    @property
    def write_buffer_bytes(self) -> int:
        """What waits to be sent. Below TLS, the size of one write and 64 KiB may wait besides."""
        if self._writer.is_closing():
            return 0
        return self._pending_bytes + self._writer.transport.get_write_buffer_size()

    def close(self) -> None:
        """Send what was written and close; after `CLOSE_SECONDS` the connection is cut, whatever the other side does."""
        if self._closing is None:
            self._flush()
            if not self._writer.is_closing():  # closing a TLS transport twice makes it unusable
                self._writer.close()
            self._closing = self._loop.create_task(self._finish())

    def abort(self) -> None:
        """Cut the connection at once: the other side does not answer, so a good-bye would only take time."""
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        """Close, and return when it is done. Never raises for what became of the connection."""
        self.close()
        assert self._closing is not None
        await asyncio.shield(self._closing)

    async def _read(self, count: int) -> list[bytes]:
        while not (frames := self._take(count)):
            # An incomplete frame is shorter than this, so there is always room, and never more than for one frame.
            room = HEADER_SIZE + self._limit - len(self._buffer)
            try:
                data = await self._reader.read(room)
            except OSError as error:
                raise ConnectionLost(reason_of(error)) from error
            if not data:
                self._require_boundary()
                return []
            self._buffer += data
        return frames

    def _take(self, count: int) -> list[bytes]:
        """Cut up to `count` complete frames off the buffer. A bad one is reported once those before it are gone."""
        frames: list[bytes] = []
        buffer, limit = self._buffer, self._limit
        start, end = 0, len(buffer)
        with memoryview(buffer) as view:
            while len(frames) < count and start + HEADER_SIZE <= end:
                (length,) = _unpack(buffer, start)
                stop = start + HEADER_SIZE + length
                if not 0 < length <= limit:
                    if frames:
                        break
                    if length:
                        raise FrameTooLarge(length, limit)
                    raise EmptyFrame("an empty frame was announced; a frame has at least one byte")
                if stop > end:
                    break
                frames.append(bytes(view[start + HEADER_SIZE : stop]))
                start = stop
        del buffer[:start]
        return frames

    def _require_boundary(self) -> None:
        if received := len(self._buffer):
            expected = HEADER_SIZE + (_unpack(self._buffer)[0] if received >= HEADER_SIZE else 0)
            raise FrameTruncated(f"the connection ended inside a frame, after {received} of {expected} bytes")

    def _flush_as_planned(self) -> None:
        self._flush_planned = False
        self._flush()

    def _flush(self, large: bytes | None = None) -> None:
        """Hand on the small frames as one piece, then the large payload as it is: its header is the last of them."""
        if self._pending and not self._writer.is_closing():
            pieces = [b"".join(self._pending)]
            self._writer.writelines(pieces if large is None else [*pieces, large])
        self._pending.clear()
        self._pending_bytes = 0

    async def _finish(self) -> None:
        # The transport's own time limit does not run when the other side vanishes while reading is paused.
        cut = self._loop.call_later(CLOSE_SECONDS, self._writer.transport.abort)
        try:
            with suppress(OSError):  # a connection that broke is closed as well
                await self._writer.wait_closed()
        except asyncio.CancelledError:
            self._writer.transport.abort()  # the loop is about to end, and nobody would close it any more
            raise
        finally:
            cut.cancel()


def _end_of(secured: ssl.SSLObject | None) -> int | None:
    """When the certificate that the other side showed ends, in ms since 1970."""
    found = secured.getpeercert() if secured else None
    return ssl.cert_time_to_seconds(str(found["notAfter"])) * 1_000 if found else None


def reason_of(error: OSError) -> str:
    """Why a connection failed, in words for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return error.strerror or str(error) or "the other side closed it"
