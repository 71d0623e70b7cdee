"""Ed25519 through libsodium alone: libraries differ on odd signatures, and replicas must never differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NoReturn

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import CryptoError

SEED_SIZE = 32
PUBLIC_KEY_SIZE = 32
SIGNATURE_SIZE = 64


class SecretKey:
    """A signing key. It leaves the process only through `seed`, never through a print or a pickle."""

    __slots__ = ("_secret", "public")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_SIZE:
            raise ValueError(f"an Ed25519 seed has {SEED_SIZE} bytes, not {len(seed)}")
        public, secret = crypto_sign_seed_keypair(bytes(seed))
        self.public: Final[bytes] = public
        self._secret: Final[bytes] = secret

    @classmethod
    def generate(cls, rng: Callable[[int], bytes] = os.urandom) -> SecretKey:
        return cls(rng(SEED_SIZE))

    @classmethod
    def from_seed(cls, seed: bytes) -> SecretKey:
        return cls(seed)

    def sign(self, message: bytes) -> bytes:
        return crypto_sign(message, self._secret)[:SIGNATURE_SIZE]

    def seed(self) -> bytes:
        """The secret itself, for the one place that stores it."""
        return self._secret[:SEED_SIZE]

    def __repr__(self) -> str:
        return f"<Ed25519 SecretKey of {self.public.hex()[:16]}, redacted>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is neither pickled nor copied")


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature is valid; input of any wrong size is simply not."""
    # Without the size check, bytes could move between signature and message and still verify.
    if len(signature) != SIGNATURE_SIZE or len(public) != PUBLIC_KEY_SIZE:
        return False
    try:
        crypto_sign_open(signature + message, public)
    except CryptoError:
        return False
    return True
