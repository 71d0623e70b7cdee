"""What a simulation takes from its seed: every random choice, from named streams that are independent, and all keys."""

from __future__ import annotations

from random import Random

from parley.consensus.committee import MemberKey, scheme_of, signer_of
from parley.crypto.hashing import digest
from parley.crypto.qc import QCScheme, Signer
from parley.crypto.simulated import SimulatedAuthority


def stream(seed: int, *names: str | int) -> Random:
    """The generator of that name. A draw more in one stream changes nothing in any other."""
    material = digest("sim/stream", str(seed).encode(), *(str(name).encode() for name in names))
    return Random(int.from_bytes(material, "big"))


CRYPTO = ("simulated", "real")


def committee_keys(seed: int, nodes: int, crypto: str) -> tuple[list[Signer], QCScheme]:
    if crypto == "simulated":
        authority = SimulatedAuthority(digest("sim/keys", str(seed).encode()), nodes)
        return [authority.signer(index) for index in range(nodes)], authority.scheme()
    keys = broker_keys(seed, nodes)
    signers = [signer_of(index, key) for index, key in enumerate(keys)]
    return signers, scheme_of([key.public for key in keys])


def broker_keys(seed: int, nodes: int) -> list[MemberKey]:
    """What brokers sign with if signatures are real."""
    return [MemberKey.from_seed(digest("sim/key", str(seed).encode(), str(i).encode())) for i in range(nodes)]
