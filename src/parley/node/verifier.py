"""`python -m parley.node.verifier CHAIN`: a process that checks batches for a broker, over its standard input.

It knows no key and no state, and answers each list of batches with their digests; nothing stands for a
batch that is to be refused. Whatever becomes of the broker, its end of the connection closes, and this process ends.
"""

from __future__ import annotations

import signal
import socket
import sys
from typing import Annotated

from msgspec import DecodeError, Meta, msgpack

from parley.model.batches import open_batch
from parley.model.names import Hash
from parley.model.refusals import Refused

HEADER_SIZE = 4  # as in net.frames, which would bring a whole event loop with it
READY = b"ready"  # the first frame, once it can check
MAX_BODIES = 1_024  # of one question

Bodies = Annotated[tuple[bytes, ...], Meta(max_length=MAX_BODIES)]
Digests = Annotated[tuple[Hash | None, ...], Meta(max_length=MAX_BODIES)]


def serve(connection: socket.socket, chain: bytes) -> None:
    """Until the other side has gone."""
    with connection, connection.makefile("rb") as questions:
        _send(connection, READY)
        while header := questions.read(HEADER_SIZE):
            question = questions.read(int.from_bytes(header, "big"))
            _send(connection, encode([_digest(body, chain) for body in _bodies.decode(question)]))


def main(arguments: list[str]) -> int:
    # Whoever stops a broker may tell all its processes; this one is needed until the broker has stopped.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        serve(socket.socket(fileno=sys.stdin.fileno()), bytes.fromhex(arguments[0]))
    except (ConnectionError, DecodeError):  # the broker has gone, perhaps in the middle of a question
        return 1
    return 0


def _digest(body: bytes, chain: bytes) -> bytes | None:
    try:
        return open_batch(body, chain, None)[0]
    except Refused:  # the broker finds out itself, and says what is wrong
        return None


def _send(connection: socket.socket, answer: bytes) -> None:
    connection.sendall(len(answer).to_bytes(HEADER_SIZE, "big") + answer)


encode = msgpack.Encoder().encode
_bodies: msgpack.Decoder[tuple[bytes, ...]] = msgpack.Decoder(Bodies)
decode_digests = msgpack.Decoder(Digests).decode

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
