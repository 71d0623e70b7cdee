"""What a broker answers to whom, of a ledger that has some of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, product

from msgspec.structs import replace
from tests.application.codes import (
    ALICE,
    ANNA,
    BOB,
    CAROL,
    DAVE,
    INSURER,
    LABORATORY,
    MALLORY,
    OTHER,
    Advertise,
    Asker,
    B,
    CommitStage,
    DeleteTopic,
    GrantRight,
    Refusal,
    RevokeClient,
    Said,
    Stream,
    Subscribe,
    asker_of,
    audited,
    begins_of,
    block_name,
    code_of,
    fetched,
    id_of_constraint,
    key_of_advertisement,
    key_of_client,
    key_of_constraint,
    key_of_head,
    key_of_name,
    key_of_stage,
    key_of_subscription,
    key_of_topic,
    keys_of_internals,
    keys_of_odd_topics,
    limited,
    prefix_of_advertisements,
    prefix_of_clients,
    prefix_of_constraints,
    prefix_of_heads,
    prefix_of_lines,
    prefix_of_names,
    prefix_of_subscriptions,
    prefix_of_topics,
    prefixes_without_a_topic,
    proven,
    with_rights,
)
from tests.application.world import ADMIN, ADMINS, WRITER, Actor, Signed, actor, registration, tagged
from tests.client.ledger import Ledger, note
from tests.node.answering import listed

from parley.applications import DATA_SHARD
from parley.crypto.merkle import MountainRange
from parley.ledger import layout
from parley.ledger.layout import StoredBlock
from parley.ledger.proofs import history_leaf_of
from parley.ledger.recent import RecentStates
from parley.model.batches import PUBLISH, BatchHeader, encode
from parley.net.messages import (
    Fetch,
    ListKeys,
    OpenStream,
    Prove,
    ReadBlocks,
    ReadBodies,
    ReadEvidence,
    ReadHeader,
    StreamPosition,
)
from parley.node.archive import Archive
from parley.node.pieces import Shelf
from parley.node.view import View
from parley.store.memory import MemoryStore

GONE, SILENT = actor("gone"), actor("silent")
PATIENT = "a = 1"
SHOWN = ("open", "closed", "writers", "theirs", "gone", "again", "short", "none", "bad name ", "")


def _ledger() -> tuple[Ledger, list[Signed], list[list[StreamPosition]]]:
    """With what was staged and not committed, and where the orders of alice begin."""
    world = with_rights(Ledger())
    for who in (ALICE, BOB, CAROL, GONE, SILENT):
        world.client(who.name, who.organisation, level=1)
    world.client("anna", level=3)
    world.client("dave", LABORATORY, level=3)
    world.do(ADMINS[INSURER], GrantRight("carol", "auditor"))
    world.do(ADMIN, registration(world.chain, ADMIN, name="boss"))
    world.topic("open", partitions=2)
    world.topic("closed", publish="level >= 2", subscribe="level >= 2")
    world.topic("writers", publish=f'org == "{B}"', subscribe="false")
    world.topic("theirs", publish=f'org == "{B}"', subscribe=f'org == "{B}"', organisation=B)
    world.topic("gone")
    world.topic("again")
    world.topic("short", retention=20)
    begun = []
    for who, topic in product((ALICE, BOB, GONE), ("open", "gone", "again", "theirs")):
        receipt = world.do(who, Subscribe(topic, PATIENT))
        if who == ALICE and topic != "theirs":
            begun.append([StreamPosition(*begin) for begin in begins_of(receipt)])
        world.do(who, Advertise(topic, "beds"))
    for n, topic in product(range(3), ("open", "closed", "theirs", "gone", "again", "short")):
        rule = "level >= 2" if n == 1 else ""
        for who in (ALICE, BOB, actor("anna")):
            world.publish(who, topic, note(f"{topic} {n} {who.name}", rule, a=n))
    kept = [world.staged(who, "open", tagged(n=9)) for who in (ALICE, BOB)]
    world.order(*kept)
    for who in (ALICE, BOB):
        world.do(who, CommitStage("open", OTHER, 0, ()))
    world.order_one(world.publication(MALLORY, "open"))
    world.do(ADMIN, DeleteTopic("gone"))
    world.do(ADMIN, DeleteTopic("again"))
    world.wait(1)
    world.topic("again", partitions=1)
    world.apply(time=world.time + 100)
    world.publish(ALICE, "short")
    world.do(ADMIN, RevokeClient("gone"))
    world.do(ADMIN, RevokeClient("silent"))
    return world, kept, begun


def _view(ledger: Ledger) -> View:
    store, history = MemoryStore(), MountainRange()
    for (block, batches), outcome in zip(ledger.blocks, ledger.outcomes, strict=True):
        nodes = history.append(history_leaf_of(block.height, block.id, outcome.leaves))
        store.write(
            [
                (layout.committed(block.height), encode(StoredBlock.of(block))),
                (layout.receipts(block.height), encode(tuple(outcome.leaves))),
                *((layout.history_node(level, index), node) for level, index, node in nodes),
                *((layout.batch(batch.digest), batch.body) for batch in batches),
                *((b"s/" + key, value) for key, value in outcome.writes),
            ]
        )
    state = RecentStates(store, ledger.height).at(ledger.height)
    return View(Archive(store, DATA_SHARD), state, ledger.anchor())


RAW = (
    ReadBlocks(1, 1, 9_999, True),
    ReadBlocks(1, 2**40, 1, False),
    ReadBodies(1, (bytes(32),)),
    ReadEvidence(1, 0),
)
ASKERS: dict[str, tuple[Actor, str]] = {
    "client": (ALICE, ""),
    "client of high level": (ANNA, ""),
    "client of another organisation": (BOB, ""),
    "client of high level elsewhere": (DAVE, ""),
    "client who audits": (CAROL, ""),
    "revoked client": (GONE, ""),
    "revoked client without a trace": (SILENT, ""),
    "unregistered": (MALLORY, ""),
    "unregistered under another name": (MALLORY, "alice"),
    "administrator who is a client": (ADMIN, "boss"),
    "administrator": (ADMINS[B], ""),
    "administrator who audits": (ADMINS[INSURER], ""),
    "administrator without anything": (ADMINS[LABORATORY], ""),
}


def _asked(answer: Callable[..., object], *question: object) -> str:
    try:
        found = answer(*question)
    except Refusal as refusal:
        return code_of(refusal)
    return f"Ok {found}" if isinstance(found, int) else "Ok"


def _free(_: int) -> None:
    """Nothing is charged here."""


def _length(view: View, asker: Asker, prefix: bytes) -> int:
    return len(listed(view, asker, ListKeys(1, prefix, b""), _free).keys)


def _opened(view: View, asker: Asker, question: OpenStream) -> None:
    Stream(question, asker, 1, Shelf()).open(view)


def answers(name: str) -> list[Said]:
    """To one asker: proofs, lists, reads, streams and raw blocks. Of lists it matters how long they are, too."""
    ledger, kept, begun = _ledger()
    view, (who, under) = _view(ledger), ASKERS[name]
    asker = asker_of(who, ledger.genesis, under)
    said = [(what, _asked(proven, view, asker, Prove(1, (key,)))) for what, key in _keys(ledger, kept)]
    open_, closed, none = key_of_topic("open"), key_of_topic("closed"), key_of_topic("none")
    several = [Prove(1, keys) for keys in ((open_, closed), (closed, open_), (open_, open_, none))]
    said += [(str(one), _asked(proven, view, asker, one)) for one in several]
    said += [(what, _asked(_length, view, asker, prefix)) for what, prefix in _prefixes()]
    for examined in (1, 3, 6, 7):
        with limited({"examined": examined}):
            said.append((f"list {examined} topics", _asked(_length, view, asker, prefix_of_topics())))
    for place in product(SHOWN, (0, 1, 2**32 - 1), (0, 1, 99)):
        fetch = Fetch(1, *place, 10_000, 0)
        said.append((str(fetch), _asked(fetched, view, asker, fetch, _free)))
    said += [(str(one), _asked(audited, view, asker, one)) for one in RAW]
    headers = [ReadHeader(1, height) for height in (0, 1, 2**40)]
    said += [(str(one), _asked(block_name, view, asker, one, _free)) for one in headers]
    said += [(str(one), _asked(_opened, view, asker, one)) for one in _streams(begun, view.height)]
    return said


def _keys(ledger: Ledger, kept: list[Signed]) -> Iterator[tuple[str, bytes]]:
    constraint, unknown = id_of_constraint(PATIENT), id_of_constraint("z = 1")
    for topic in SHOWN:
        yield f"topic {topic}", key_of_topic(topic)
        for partition in (0, 1, 99):
            yield f"head {topic} {partition}", key_of_head(topic, partition)
            yield f"constraint {topic} {partition}", key_of_constraint(topic, partition, constraint)
        yield f"unknown constraint {topic}", key_of_constraint(topic, 0, unknown)
        for who, _ in ASKERS.values():
            yield f"subscription {topic} {who}", key_of_subscription(topic, constraint, who.key)
            yield f"advertisement {topic} {who}", key_of_advertisement(topic, who.key)
            for writer in (WRITER, OTHER):
                yield f"stage {topic} {who}", key_of_stage(ledger, who.key, topic, writer)
    for who, under in ASKERS.values():
        yield f"client {who}", key_of_client(who.key)
        yield f"name {who} {under}", key_of_name(who.organisation, under or who.name)
    for organisation in (*ADMINS, "nobody"):
        yield f"name {organisation}/none", key_of_name(organisation, "none")
    header = BatchHeader(
        2, ledger.chain, 0, PUBLISH, "open", ledger.topic_id("open"), 0, ALICE.key, bytes(16), 0, 1, 1
    )
    for who, batch in zip((ALICE, BOB), kept, strict=True):
        for kind, key in keys_of_internals(who.key, batch.digest, replace(header, publisher=who.key)).items():
            yield f"{kind} {who}", key
    for what, key in chain(keys_of_odd_topics().items(), prefixes_without_a_topic().items()):
        yield f"odd {what}", key
    yield "nothing", b""
    yield "unknown kind", b"\xff" * 40


def _prefixes() -> Iterator[tuple[str, bytes]]:
    yield "list topics", prefix_of_topics()
    for topic in SHOWN:
        yield f"list heads {topic}", prefix_of_heads(topic)
        yield f"list constraints {topic}", prefix_of_constraints(topic)
        yield f"list advertisements {topic}", prefix_of_advertisements(topic)
        yield f"list subscriptions {topic}", prefix_of_subscriptions(topic)
    for organisation in (*ADMINS, "nobody"):
        yield f"list names {organisation}", prefix_of_names(organisation)
    for what, prefix in chain(keys_of_odd_topics().items(), prefixes_without_a_topic().items()):
        yield f"list {what}", prefix
    yield "list clients", prefix_of_clients()
    yield "list lines", prefix_of_lines()
    yield "list everything", b""


def _streams(begun: list[list[StreamPosition]], height: int) -> Iterator[OpenStream]:
    constraint, unknown = id_of_constraint(PATIENT), id_of_constraint("z = 1")
    for topic, places in zip(("open", "gone", "again"), begun, strict=True):
        first = places[0]
        for positions in (
            places,
            [first, first],
            [first, replace(first, partition=9)],
            [replace(first, incarnation=(1, 0))],
            [replace(first, incarnation=(height + 1, 0))],
        ):
            yield OpenStream(1, topic, constraint, tuple(positions), 10)
        yield OpenStream(1, topic, unknown, (first,), 10)
    for topic in SHOWN:
        yield OpenStream(1, topic, constraint, (StreamPosition(0, (height, 0), 0),), 10)
