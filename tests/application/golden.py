"""The golden chain: blocks with every operation, and the roots that applying them gave when their version was recorded.

`record` writes the file of a new version of the application; it never writes over one. Roots of a version that was
recorded are facts: if they change, networks of that version would disagree.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from tests.application.histories import History
from tests.application.world import ADMINS, ORGANISATIONS, START, actor

from parley.application.admission import OpenedBatch
from parley.application.application import Application
from parley.applications import DATA_SHARD, VERSION
from parley.consensus.types import Block, Instance, genesis_block
from parley.crypto import merkle
from parley.model.genesis import Genesis
from parley.modules.registry.operations import GrantRight, RevokeRight
from parley.store.memory import MemoryStore

FOLDER = Path(__file__).parent.parent / "vectors" / "golden"
SEEDS = (2, 21)
BLOCKS = 50


class GoldenBlock(msgspec.Struct, frozen=True):
    """Roots are hexadecimal digits, bodies are in base64."""

    time: int
    bodies: list[str]
    state_root: str
    receipts_root: str
    receipts: int


class GoldenChain(msgspec.Struct, frozen=True):
    version: int
    genesis: Any
    blocks: list[GoldenBlock]


def file_of(version: int) -> Path:
    return FOLDER / f"{version}.json"


def load(version: int) -> list[GoldenChain]:
    return msgspec.json.decode(file_of(version).read_bytes(), type=list[GoldenChain])


def record(version: int = VERSION) -> None:
    with file_of(version).open("xb") as file:
        file.write(msgspec.json.format(msgspec.json.encode([_recorded(seed) for seed in SEEDS]), indent=1))


class Replay(NamedTuple):
    blocks: list[GoldenBlock]
    leaves: list[bytes]
    opened: list[OpenedBatch]


def replayed(chain: GoldenChain, application: Application = DATA_SHARD) -> Replay:
    """What applying the recorded bodies gives now."""
    genesis = msgspec.convert(chain.genesis, Genesis)
    machine, _ = application.mount(genesis)
    store, found = MemoryStore(), Replay([], [], [])
    instance = Instance(genesis.chain, 0, 0, len(genesis.brokers), genesis.application)
    header = genesis_block(instance, machine.genesis().state_root, START).header
    for height, block in enumerate(chain.blocks, start=1):
        admitted = [machine.admit(b64decode(body)) for body in block.bodies]
        batches = [(one.digest, one.body) for one in admitted]
        its_header = msgspec.structs.replace(header, height=height, time=block.time)
        results = machine.apply(Block(its_header, tuple(digest for digest, _ in batches)), batches, store)
        store.write(results.writes)
        leaves = results.leaves
        found.leaves.extend(leaves)
        found.opened.extend(admitted)
        found.blocks.append(
            msgspec.structs.replace(
                block,
                state_root=results.state_root.hex(),
                receipts_root=merkle.root(leaves).hex(),
                receipts=len(leaves),
            )
        )
    return found


def _recorded(seed: int) -> GoldenChain:
    """A random history, and the few operations that histories do not have."""
    history = History(seed)
    world = history.world
    for batches, time in history.blocks(BLOCKS):
        world.apply(*batches, time=time)
    admin = ADMINS[ORGANISATIONS[0]]
    for operation in (GrantRight("c0", "auditor"), RevokeRight("c0", "auditor")):
        world.do(admin, operation)
    world.do(actor("stranger"), GrantRight("c0", "auditor"))
    blocks = [
        GoldenBlock(
            block.header.time,
            [b64encode(batch.body).decode() for batch in batches],
            results.state_root.hex(),
            merkle.root(results.leaves).hex(),
            len(results.leaves),
        )
        for (block, batches), results in zip(world.blocks, world.outcomes, strict=True)
    ]
    return GoldenChain(VERSION, msgspec.to_builtins(world.genesis), blocks)
