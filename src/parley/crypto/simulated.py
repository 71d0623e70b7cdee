"""Signatures for the simulator only: as fast as a hash, and NO security at all outside one simulated process.

The authority knows every member's secret and so does, inside, whatever verifies. The simulator's adversary
plays fair: it signs only with the signer objects it was given. Never use this between real machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from parley.crypto.encoding import u32
from parley.crypto.hashing import digest
from parley.crypto.qc import NOTHING, Aggregate, QCScheme, join_signatures, split_signatures

SIGNATURE_SIZE = 16


class SimulatedSigner:
    """One simulated member's right to sign; whoever holds the object is that member."""

    __slots__ = ("_sign", "index")

    def __init__(self, index: int, sign: Callable[[bytes], bytes]) -> None:
        self.index = index
        self._sign = sign

    def sign(self, message: bytes) -> bytes:
        return self._sign(message)

    def __repr__(self) -> str:
        return f"<SimulatedSigner of member {self.index}, redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signer is neither pickled nor copied")


class SimulatedAuthority:
    """Deals signers of a simulated committee and the scheme that checks them, all from one seed."""

    __slots__ = ("_scheme", "_tags")

    def __init__(self, seed: bytes, size: int) -> None:
        if size < 1:
            raise ValueError(f"a committee has at least one member, not {size}")
        self._tags = tuple(_tagger(digest("simulated/member", seed, u32(i))) for i in range(size))
        self._scheme = _SimulatedScheme(self._tags)

    def signer(self, index: int) -> SimulatedSigner:
        if not 0 <= index < len(self._tags):
            raise ValueError(f"there is no member {index} in a committee of {len(self._tags)}")
        return SimulatedSigner(index, self._tags[index])

    def scheme(self) -> QCScheme:
        """What replicas get: it verifies and aggregates, and offers no way to sign."""
        return self._scheme

    def __repr__(self) -> str:
        return f"<SimulatedAuthority of {len(self._tags)} members, redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a simulated authority is neither pickled nor copied")


class _SimulatedScheme:
    __slots__ = ("_tags", "size")

    signature_size = SIGNATURE_SIZE

    def __init__(self, tags: tuple[Callable[[bytes], bytes], ...]) -> None:
        self._tags = tags
        self.size = len(tags)

    def verify(self, signer: int, message: bytes, signature: bytes) -> bool:
        return 0 <= signer < self.size and self._tags[signer](message) == signature

    def aggregate(self, signatures: Mapping[int, bytes]) -> Aggregate:
        return join_signatures(signatures, self.size, SIGNATURE_SIZE)

    def verify_aggregate(
        self, messages: Sequence[bytes], aggregate: Aggregate, known: Mapping[int, bytes] = NOTHING
    ) -> bool:
        del known  # a check costs next to nothing here
        signed = split_signatures(aggregate, self.size, SIGNATURE_SIZE)
        if signed is None or len(messages) != len(signed):
            return False
        tags = self._tags
        return all(
            tags[signer](message) == signature
            for message, (signer, signature) in zip(messages, signed, strict=True)
        )


def _tagger(secret: bytes) -> Callable[[bytes], bytes]:
    """Keyed BLAKE2b as a function, so that the secret is nobody's attribute."""
    # Copying a hash that has absorbed its key saves one compression per message.
    keyed = hashlib.blake2b(key=secret, digest_size=SIGNATURE_SIZE)

    def tag(message: bytes) -> bytes:
        state = keyed.copy()
        state.update(message)
        return state.digest()

    return tag
