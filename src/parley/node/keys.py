"""Ed25519 secrets as files: the seed in hexadecimal, so that a key can be copied by hand and a wrong file is noticed.

And the secret of a TLS certificate, which is read here only to see that it is whole.
"""

from __future__ import annotations

import re
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from parley.crypto import ed25519
from parley.node.secrets import SecretError, read_secret, write_secret

_SEED = re.compile(rb"[0-9a-f]{64}\n?")


def write_key(path: Path, key: ed25519.SecretKey) -> None:
    write_secret(path, key.seed().hex().encode() + b"\n")


def read_key(path: Path) -> ed25519.SecretKey:
    data = read_secret(path)
    if _SEED.fullmatch(data) is None:
        raise SecretError(path, "is not an Ed25519 key: it should hold 64 hexadecimal characters")
    return ed25519.SecretKey.from_seed(bytes.fromhex(data.decode()))


def check_tls_key(path: Path) -> None:
    """OpenSSL compares only the public half with the certificate: with a damaged secret half no connection would work."""
    try:
        load_pem_private_key(read_secret(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SecretError(
            path, "is not a private key in PEM form without a password, or it is damaged"
        ) from None
