"""The keys of a simulated network: all from its seed."""

from __future__ import annotations

from parley.crypto.ed25519 import SecretKey
from parley.crypto.hashing import digest
from parley.crypto.qc import Ed25519List, Ed25519Signer, QCScheme, Signer
from parley.crypto.simulated import SimulatedAuthority

CRYPTO = ("simulated", "real")


def committee_keys(seed: int, nodes: int, crypto: str) -> tuple[list[Signer], QCScheme]:
    if crypto == "simulated":
        authority = SimulatedAuthority(digest("sim/keys", str(seed).encode()), nodes)
        return [authority.signer(index) for index in range(nodes)], authority.scheme()
    keys = broker_keys(seed, nodes)
    signers: list[Signer] = [Ed25519Signer(index, key) for index, key in enumerate(keys)]
    return signers, Ed25519List([key.public for key in keys])


def broker_keys(seed: int, nodes: int) -> list[SecretKey]:
    """What brokers sign with if signatures are real."""
    return [SecretKey.from_seed(digest("sim/key", str(seed).encode(), str(i).encode())) for i in range(nodes)]
