"""Where every random choice of a simulation comes from: named streams of one seed, independent of each other."""

from __future__ import annotations

from random import Random

from parley.crypto.hashing import digest


def stream(seed: int, *names: str | int) -> Random:
    """The generator of that name. A draw more in one stream changes nothing in any other."""
    material = digest("sim/stream", str(seed).encode(), *(str(name).encode() for name in names))
    return Random(int.from_bytes(material, "big"))
