"""Seeded damage: to bytes, to single fields, and to whole messages that a lying member signs itself."""

from __future__ import annotations

from random import Random

import msgspec
from msgspec.structs import replace
from tests.replica.driver import Committee

from parley.consensus.types import Proposal, Timeout, Vote
from parley.crypto import merkle
from parley.replica import wire

_INTEGERS = (0, 1, 255, 256, 2**16 - 1, 2**16, 2**62 - 1, 2**62, 2**64 - 1, -1)


def random_bytes(chance: Random) -> bytes:
    """Noise; half of it begins like a message."""
    noise = chance.randbytes(chance.choice((0, 1, 2, 10, 50, 300)))
    if chance.random() < 0.5:
        return noise
    return bytes([0x90 | chance.randrange(16), chance.randrange(12)]) + noise


def damaged_bytes(chance: Random, data: bytes) -> bytes:
    """Flipped, cut, lengthened, or with a piece repeated or missing."""
    at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    flipped = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return chance.choice(
        (
            bytes(flipped),
            bytes(flipped),
            data[:at],
            data + chance.randbytes(3),
            data[:at] + data[to:],
            data[:to] + data[at:],
        )
    )


def damaged_fields(chance: Random, data: bytes) -> bytes:
    """A well-formed encoding in which one or two values are others."""
    tree = msgspec.msgpack.decode(data)
    for _ in range(chance.choice((1, 1, 2))):
        tree = _changed(chance, tree)
    return msgspec.msgpack.encode(tree)


def _changed(chance: Random, value: object) -> object:
    """`value` with one leaf changed, or one list rearranged."""
    match value:
        case [*items] if items and chance.random() < 0.9:
            at = chance.randrange(len(items))
            return [*items[:at], _changed(chance, items[at]), *items[at + 1 :]]
        case [*items]:
            at = chance.randrange(len(items) + 1)
            return chance.choice((items[:at], items[::-1], [*items, *items[:1]], [], None))
        case int():
            return min(chance.choice((value + 1, value - 1, value + 1000, *_INTEGERS)), 2**64 - 1)
        case bytes():
            flipped = bytearray(value or b"\x00")
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
            return chance.choice((bytes(flipped), bytes(len(value)), value[:-1], value + b"\x00", b"", None))
        case _:
            return chance.choice((0, b"", [], [0, 1, bytes(32), [b"\x07", bytes(48)]]))


def signed_by(committee: Committee, liar: int, message: wire.WireMessage) -> wire.WireMessage | None:
    """The message as `liar` would say it, with its own valid signature; None if nobody signs this kind."""
    instance, signer = committee.instance, committee.authority.signer(liar)
    match message:
        case Vote():
            signature = signer.sign(instance.vote_message(message.view, message.block))
            return replace(message, signer=liar, signature=signature)
        case Timeout():
            vote = None if message.vote is None else signed_by(committee, liar, message.vote)
            signature = signer.sign(instance.timeout_message(message.view, message.high_qc.view))
            return replace(message, vote=vote, signer=liar, signature=signature)
        case Proposal():
            header = replace(message.header, proposer=liar, batches_root=merkle.root(message.batches))
            return Proposal(header, message.batches, signer.sign(instance.proposal_message(header.id())))
        case _:
            return None
