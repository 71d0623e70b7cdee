"""Ed25519 secrets as files: the seed in hexadecimal, so that a key can be copied by hand and a wrong file is noticed."""

from __future__ import annotations

import re
from pathlib import Path

from parley.crypto import ed25519
from parley.node.secrets import SecretError, read_secret, write_secret

__all__ = ["read_key", "write_key"]

_SEED = re.compile(rb"[0-9a-f]{64}\n?")


def write_key(path: Path, key: ed25519.SecretKey) -> None:
    write_secret(path, key.seed().hex().encode() + b"\n")


def read_key(path: Path) -> ed25519.SecretKey:
    data = read_secret(path)
    if _SEED.fullmatch(data) is None:
        raise SecretError(path, "is not an Ed25519 key: it should hold 64 hexadecimal characters")
    return ed25519.SecretKey.from_seed(bytes.fromhex(data.decode()))
