"""Secret keys as files: the seed in hexadecimal, so that a key can be copied by hand and a wrong file is noticed.

And the secret of a TLS certificate, which is read here only to see that it is whole.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from parley.crypto import ed25519
from parley.node.secrets import SecretError, read_secret, write_secret

_SEED = re.compile(rb"[0-9a-f]{64}\n?")


class Seeded(Protocol):
    """A secret key that is made from a seed."""

    def seed(self) -> bytes: ...


def write_key(path: Path, key: Seeded) -> None:
    write_secret(path, key.seed().hex().encode() + b"\n")


def read_seed(path: Path) -> bytes:
    """The seed that `write_key` wrote. Raises `SecretError`."""
    data = read_secret(path)
    if _SEED.fullmatch(data) is None:
        raise SecretError(path, "is not a signing key: it should hold 64 hexadecimal characters")
    return bytes.fromhex(data.decode())


def read_key(path: Path) -> ed25519.SecretKey:
    return ed25519.SecretKey.from_seed(read_seed(path))


def check_tls_key(path: Path) -> None:
    """OpenSSL compares only the public half with the certificate: with a damaged secret half no connection would work."""
    try:
        load_pem_private_key(read_secret(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SecretError(
            path, "is not a private key in PEM form without a password, or it is damaged"
        ) from None
