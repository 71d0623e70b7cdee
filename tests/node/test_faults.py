"""Fault switches: off unless the genesis file allows them, loud when they are on, and each lie is one that clients catch."""

from __future__ import annotations

import asyncio
import dataclasses
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.client.ledger import Ledger, believe, note, place_of
from tests.consensus.chains import Committee
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import client

from parley.application.machine import Machine
from parley.application.tables import encode_value
from parley.applications import DATA_SHARD
from parley.client.beliefs import check_entries, check_receipt
from parley.client.verification import Question, check_fetched
from parley.consensus.errors import Reason
from parley.ledger import layout
from parley.ledger.proofs import Anchor, ProofError, StateEntry
from parley.ledger.recent import RecentStates
from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.model.batches import Withheld
from parley.model.refusals import Refused
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.tables import HEADS, TOPICS, PartitionRecord
from parley.net.messages import Answer, Delivery, Fetched, Head, Proven, Receipted
from parley.node.access import Caller
from parley.node.admin.client import AdminError, reload, set_faults
from parley.node.config import ConfigError, load
from parley.node.faults.answers import Faults
from parley.node.faults.links import FaultyLinks, twin
from parley.node.faults.settings import read_faults, with_faults, write_faults
from parley.node.faults.stale import StaleLedger
from parley.node.faults.switches import FAULTS, MAX_FAULTS, FaultError, Switches, checked
from parley.node.feed import Feed
from parley.replica import wire
from parley.store.interface import StoreReader

# -- the configuration -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    """A broker that may lie, alone in its network."""
    directory = tmp_path_factory.mktemp("faults") / "net"
    with LocalNetwork(directory, organisations=("solo",), allow_faults=True) as net:
        yield net


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path / "net", organisations=("solo",)) as net:
        yield net


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("withold", "'withold' is no fault; there are equivocate, withhold"),
        ("censor", "'censor' is no fault"),
        ("forge:alpha/bob", "'forge:alpha/bob' is no fault"),
        ("censor:bob", "names no client"),
        ("censor:alpha/", "names no client"),
        ("censor:alpha/Bob", "names no client"),
        ("censor:alpha/bob/x", "names no client"),
        ("", "'' is no fault"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_there_is(fault: str, problem: str) -> None:
    with pytest.raises(FaultError, match=problem):
        checked([fault])


def test_faults_are_counted_once_and_bounded() -> None:
    assert checked(["drop", "lie", "drop"]) == ("drop", "lie")
    with pytest.raises(FaultError, match="too many"):
        checked(f"censor:alpha/c{number}" for number in range(MAX_FAULTS + 1))


def test_a_broker_with_faults_starts_only_where_the_genesis_file_allows_them(
    network: LocalNetwork, honest: LocalNetwork
) -> None:
    for net in (network, honest):
        write_faults(net.config("solo-1"), ["withhold", "censor:solo/alice"])
    assert load(network.config("solo-1")).faults == ("withhold", "censor:solo/alice")
    with pytest.raises(ConfigError, match="faults: none may be set") as refused:
        load(honest.config("solo-1"))
    assert refused.value.key == "faults"
    write_faults(network.config("solo-1"), ())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('faults = "forge"', "faults: expected a list of texts, got 'forge'"),
        ("faults = [7]", "faults: expected a list of texts, got"),
        ('faults = ["forget"]', "faults: 'forget' is no fault"),
    ],
)
def test_a_wrong_line_names_the_key(network: LocalNetwork, line: str, problem: str) -> None:
    path = network.config("solo-1")
    text = path.read_text()
    path.write_text(f"{line}\n{text}")
    try:
        with pytest.raises(ConfigError, match=problem.replace("[", r"\[")):
            load(path)
    finally:
        path.write_text(text)


CONFIGURATIONS = (
    'broker = "alpha-1"\n\n[log]\nfile = "log.jsonl"\n',
    '# a comment\r\nbroker = "a"   # another\r\n[peers]\r\n"faults" = "127.0.0.1:1"\r\n',
    '[limits]\nfaults = 3\n[log]\nlevel = "faults = []"',
    "",
)


@pytest.mark.parametrize("text", CONFIGURATIONS)
@given(st.lists(st.sampled_from([*(name for name in FAULTS if name != "censor"), "censor:alpha/bob"])))
def test_everything_but_faults_stays_as_it_is(text: str, faults: list[str]) -> None:
    changed = with_faults(text, faults)
    assert tomllib.loads(changed).get("faults", []) == list(checked(faults))
    assert with_faults(with_faults(changed, ["lie"]), ()) == text


def test_faults_that_a_person_wrote_are_replaced_whole() -> None:
    text = 'broker = "a"\nfaults = [\n  "lie", # often\n  "drop",\n]\n[log]\n'
    assert with_faults(text, ()) == 'broker = "a"\n[log]\n'
    assert with_faults(text, ["stale"]) == 'faults = ["stale"]\nbroker = "a"\n[log]\n'


def test_a_file_keeps_its_mode_and_is_never_half_written(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('broker = "a"\n')
    path.chmod(0o640)
    write_faults(path, ["lie"])
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_faults(path) == ("lie",)
    assert [entry.name for entry in tmp_path.iterdir()] == ["broker.toml"]
    path.write_text("faults = [")
    with pytest.raises(FaultError, match="is not TOML"):
        read_faults(path)


# -- a running broker --------------------------------------------------------------------------------------------------


async def _told(net: LocalNetwork, event: str, number: int) -> list[dict[str, object]]:
    """The entries of this kind in the log, once there are so many."""
    async with asyncio.timeout(SECONDS):
        while len(found := [entry for entry in net.log("solo-1") if entry["event"] == event]) < number:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


def test_switches_are_read_again_when_asked_and_a_wrong_file_changes_nothing(network: LocalNetwork) -> None:
    async def note_of(net: LocalNetwork) -> str:
        async with client(net, "solo-1", "solo", "admin") as admin:
            return (await admin.status()).note

    async def story() -> None:
        path = network.config("solo-1")
        text = path.read_text()
        write_faults(path, ["forge"])
        network.start("solo-1")
        await note_of(network)
        assert (await _told(network, "faults", 1))[0]["faults"] == "forge"
        assert "Faults are switched on: forge." in await note_of(network)

        write_faults(path, ["lie", "drop"])
        assert (await asyncio.to_thread(reload, path.parent)).faults == ("lie", "drop")
        assert (await _told(network, "faults", 2))[1]["faults"] == "lie, drop"
        assert (await _told(network, "faults", 2))[1]["level"] == "warning"

        path.write_text(f'faults = ["forget"]\n{text}')
        with pytest.raises(AdminError, match=r"The faults stay as they are: .*'forget' is no fault"):
            await asyncio.to_thread(reload, path.parent)
        (refused,) = await _told(network, "faults_refused", 1)
        assert "'forget' is no fault" in str(refused["why"])
        assert "lie, drop" in await note_of(network)

        path.write_text(text)
        assert (await asyncio.to_thread(reload, path.parent)).faults == ()
        assert (await _told(network, "faults", 3))[2]["faults"] == "none"
        assert await note_of(network) == ""
        assert network.stop("solo-1") == 0

    asyncio.run(story())


def test_a_broker_of_another_network_refuses_to_lie_and_goes_on(honest: LocalNetwork) -> None:
    async def story() -> None:
        honest.start("solo-1")
        async with client(honest, "solo-1", "solo", "admin") as admin:
            await admin.status()
        folder = honest.config("solo-1").parent
        before = honest.config("solo-1").read_bytes()
        with pytest.raises(AdminError, match="made without --allow-faults"):
            await asyncio.to_thread(set_faults, folder, ("forge",))
        assert honest.config("solo-1").read_bytes() == before
        write_faults(honest.config("solo-1"), ["forge"])
        with pytest.raises(AdminError, match="--allow-faults"):
            await asyncio.to_thread(reload, folder)
        (refused,) = await _told(honest, "faults_refused", 1)
        assert "--allow-faults" in str(refused["why"])
        async with client(honest, "solo-1", "solo", "admin") as admin:
            assert "forge" not in (await admin.status()).note
        assert honest.stop("solo-1") == 0

    asyncio.run(story())


# -- answers -----------------------------------------------------------------------------------------------------------


ROLE = 'role == "nurse"'


class Scene:
    """A ledger with four messages in as many blocks, a reader who may see them all, and true answers to it."""

    application = DATA_SHARD

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.alice = self.ledger.client("alice", role="nurse")
        self.ledger.topic("notes")
        (self.start,) = self.ledger.subscribe(self.alice, "notes")
        self.signed = [
            self.ledger.publication(self.alice, "notes", note(f"n{number}", ROLE)) for number in range(4)
        ]
        for signed in self.signed:
            self.ledger.order(signed)
        self.order = self.ledger.follow(self.alice, "notes", "", [self.start])
        delivery = self.ledger.delivery(self.alice, "notes", "", place_of(self.start))
        assert delivery is not None
        self.answers: list[Answer] = [
            delivery,
            self.ledger.fetched(self.alice, "notes"),
            self.ledger.receipted(self.signed[0].digest),
            self.ledger.proven(KEY),
            self.ledger.head("notes", ""),
        ]

    @property
    def anchor(self) -> Anchor:
        """Of the view; with `entry`, all that faults look at."""
        return self.ledger.anchor()

    def entry(self, key: bytes) -> StateEntry:
        return self.ledger.entry(key)

    def view(self) -> Scene:
        return self

    @property
    def archive(self) -> Scene:
        return self

    def told(self, answer: Answer, *faults: str) -> list[Answer]:
        """What leaves instead."""
        sent: list[Answer] = []
        asker = Caller(
            self.alice.key, self.alice.organisation, self.alice.name, administers=None, not_after=0
        )
        Faults(Switches(faults), cast("Any", self), 0).send(answer, asker, sent.append)
        return sent

    def check(self, answer: Answer) -> None:
        """Raises `ProofError` if a client would."""
        reader = self.ledger.reader(self.alice)
        match answer:
            case Delivery():
                self.order.delivered(believe(self.ledger, answer.anchor), answer)
            case Fetched():
                question = Question("notes", 0, 0, 0)
                check_fetched(believe(self.ledger, answer.anchor), answer, reader, question)
            case Receipted():
                check_receipt(believe(self.ledger, answer.anchor), answer, self.signed[0].digest)
            case Proven():
                check_entries(believe(self.ledger, answer.anchor), answer, [KEY], 0)
            case Head():
                self.order.completeness(believe(self.ledger, answer.anchor), answer)
            case _:
                raise AssertionError(f"no client checks a {type(answer).__name__}")


KEY = TOPICS.key("notes")

# Which answers each fault makes false; what a stream is not told at all, its heads prove.
LIES = {
    "withhold": {Fetched},
    "drop": {Delivery, Fetched},
    "forge": {Delivery, Fetched, Receipted},
    "lie": {Delivery, Fetched, Proven},
}


@pytest.mark.parametrize(("fault", "kinds"), LIES.items(), ids=LIES.keys())
def test_a_client_sees_through_every_false_answer(fault: str, kinds: set[type]) -> None:
    scene = Scene()
    caught = set()
    for answer in scene.answers:
        for told in scene.told(answer, fault):
            assert told.id == answer.id
            try:
                scene.check(told)
                assert told == answer
            except ProofError:
                caught.add(type(answer))
    assert caught == kinds


def test_without_a_fault_the_same_answers_are_true() -> None:
    scene = Scene()
    for answer in scene.answers:
        assert scene.told(answer) == [answer]
        scene.check(answer)


def test_who_withholds_still_shows_heads() -> None:
    scene = Scene()
    told = [type(one) for answer in scene.answers for one in scene.told(answer, "withhold")]
    assert told == [Fetched, Receipted, Proven, Head]


def test_who_drops_sends_the_rest_as_if_nothing_was_missing() -> None:
    scene = Scene()
    delivery = scene.answers[0]
    assert isinstance(delivery, Delivery)
    (told,) = scene.told(delivery, "drop")
    assert told == replace(delivery, blocks=delivery.blocks[::2])


def test_who_lies_hides_messages_behind_a_true_proof_of_the_readers_attributes() -> None:
    scene = Scene()
    (told,) = scene.told(scene.answers[0], "lie")
    assert isinstance(told, Delivery)
    assert all(isinstance(content, Withheld) for block in told.blocks for content in block.contents)
    assert told.reader == scene.ledger.entry(CLIENTS.key(scene.alice.key))


def test_a_delayed_answer_leaves_after_it_was_fresh() -> None:
    async def story() -> float:
        scene, loop = Scene(), asyncio.get_running_loop()
        asker = Caller(scene.alice.key, "a", "b", administers=None, not_after=0)
        sent = loop.create_future()
        begin = loop.time()
        faults = Faults(Switches(["delay"]), cast("Any", scene), 100)
        faults.send(scene.answers[0], asker, sent.set_result)
        assert await sent == scene.answers[0]
        return loop.time() - begin

    assert asyncio.run(story()) >= 2.1


def test_only_a_censored_client_is_swallowed() -> None:
    faults = Faults(Switches(["censor:alpha/bob"]), cast("Any", Scene()), 0)
    asker = Caller(bytes(32), "alpha", "bob", administers=None, not_after=0)
    assert faults.swallows(asker)
    assert not faults.swallows(replace_asker(asker, name="alice"))
    assert not faults.swallows(replace_asker(asker, organisation="beta"))


# -- links -------------------------------------------------------------------------------------------------------------


@dataclass
class Wires:
    """Remembers what was sent to whom."""

    sent: list[tuple[int, bytes]] = field(default_factory=list)
    shouted: list[bytes] = field(default_factory=list)

    def refused(self, member: int, reason: Reason, detail: str) -> None: ...

    def send(self, to: int, data: bytes) -> None:
        self.sent.append((to, data))

    def broadcast(self, data: bytes) -> None:
        self.shouted.append(data)


COMMITTEE = Committee()
BLOCK = COMMITTEE.block(view=3)
PROPOSAL = COMMITTEE.proposal(BLOCK)
ME = BLOCK.header.proposer


@dataclass
class Keys:
    """The keys of registered clients."""

    known: dict[str, bytes]

    def key_of(self, title: str) -> bytes | None:
        return self.known.get(title)


def faulty(*faults: str, scene: Scene | None = None) -> tuple[FaultyLinks, Wires]:
    wires = Wires()
    keys = {} if scene is None else {"alpha/alice": scene.alice.key}
    machine = cast("Machine", None) if scene is None else scene.ledger.machine
    signer = COMMITTEE.authority.signer(ME)
    return FaultyLinks(wires, Switches(faults), signer, COMMITTEE.instance, machine, Keys(keys)), wires


def test_everybody_gets_both_proposals_and_half_of_them_the_other_one_first() -> None:
    links, wires = faulty("equivocate")
    links.broadcast(wire.encode(PROPOSAL))
    assert wires.shouted == []
    got = {to: [data for at, data in wires.sent if at == to] for to in range(COMMITTEE.size) if to != ME}
    assert {len(both) for both in got.values()} == {2}
    assert len({both[0] for both in got.values()}) == 2
    for both in got.values():
        first, second = (COMMITTEE.verifier().message(decoded(data)) for data in both)
        assert first != second
        assert wire.encode(PROPOSAL) in both


def test_nothing_but_its_own_proposals_is_said_twice() -> None:
    others = COMMITTEE.proposal(COMMITTEE.block(view=ME + 1))
    for links, wires in (faulty(), faulty("equivocate"), faulty("forge")):
        for message in (COMMITTEE.vote(BLOCK, ME), COMMITTEE.timeout(1, ME), others):
            links.broadcast(wire.encode(message))
        links.send(1, wire.encode(PROPOSAL))
        assert len(wires.shouted) == 3
        assert wires.sent == [(1, wire.encode(PROPOSAL))]
    links, wires = faulty("forge")
    links.broadcast(wire.encode(PROPOSAL))
    assert wires.shouted == [wire.encode(PROPOSAL)]


def test_the_twin_is_as_valid_as_the_proposal_and_no_other() -> None:
    made = twin(PROPOSAL, COMMITTEE.instance, COMMITTEE.authority.signer(ME))
    assert COMMITTEE.verifier().proposal(made).block.view == BLOCK.view
    assert made.header.id() != BLOCK.id
    assert made.batches == PROPOSAL.batches


class Heard:
    def __init__(self) -> None:
        self.messages: list[bytes] = []

    async def receive(self, _sender: int, /, *messages: bytes) -> None:
        self.messages += messages

    def peer_changed(self, index: int, *, up: bool) -> None: ...


def test_a_censor_is_deaf_to_batches_of_its_victim_unless_it_needs_them_to_vote() -> None:
    scene = Scene()
    bob = scene.ledger.client("bob")
    censored = wire.encode(BatchMessage(scene.signed[0].body))
    wanted = wire.encode(BatchMessage(scene.signed[1].body))
    other = wire.encode(BatchMessage(scene.ledger.publication(bob, "notes", note("x")).body))
    vote = wire.encode(COMMITTEE.vote(BLOCK, 1))
    links, _ = faulty("censor:alpha/alice", scene=scene)
    heard = Heard()
    hear = links.before(heard).receive
    links.send(2, wire.encode(BatchesRequest((scene.signed[1].digest,))))
    asyncio.run(hear(1, censored, wanted, other))
    for data in (vote, b"garbage", censored):
        asyncio.run(hear(1, data))
    assert heard.messages == [wanted, other, vote, b"garbage"]


def test_who_censors_nobody_hears_everything() -> None:
    links, _ = faulty("equivocate")
    heard = Heard()
    asyncio.run(links.before(heard).receive(1, b"anything"))
    assert heard.messages == [b"anything"]


# -- an old state ------------------------------------------------------------------------------------------------------


class Plain(dict[bytes, bytes]):
    """A store."""

    def frozen(self) -> Plain:
        return Plain(self)

    def get(self, key: bytes, default: None = None) -> bytes | None:  # type: ignore[override]
        return super().get(key, default)


blocks = st.lists(
    st.dictionaries(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.binary(max_size=2)), max_size=6
)


@given(blocks, st.data())
def test_what_was_replaced_laid_over_the_store_is_the_state_of_then(
    written: list[dict[bytes, bytes | None]], data: st.DataObject
) -> None:
    store = Plain()
    recent = RecentStates(store, 0)
    for height, entries in enumerate(written, 1):
        recent.before_write(height, list(entries.items()))
        for key, value in entries.items():
            if value is None:
                store.pop(key, None)
            else:
                store[key] = value
    height = data.draw(st.integers(min_value=0, max_value=len(written)))
    replaced = recent.replaced_after(height)
    for key in (b"a", b"b", b"c"):
        then = replaced[key] if key in replaced else store.get(key)
        assert then == recent.at(height).get(key)


KEPT = ("kept", 0)


def test_a_ledger_that_stands_still_shows_the_same_for_ever_and_calls_it_new() -> None:
    store, feed, switches = Plain(), Feed(), Switches()
    recent = RecentStates(store, 0)
    ledger = StaleLedger(
        cast("Any", None), recent, feed, switches=switches, store=cast("StoreReader", store), now=lambda: 99
    )
    switches.changed = ledger.switch

    def apply(height: int) -> None:
        """One block; the header before last is certified by then."""
        entry = (layout.state(HEADS.key(*KEPT)), encode_value(PartitionRecord(height, 0)))
        recent.before_write(height, [entry])
        store.update([entry])
        header = replace(COMMITTEE.genesis.header, executed_height=max(0, height - 2), time=height)
        feed.certified(Anchor(header, COMMITTEE.genesis_qc))

    def shown() -> tuple[int, int, PartitionRecord | None]:
        view = ledger.view()
        return view.height, view.time, view.read(HEADS, *KEPT)

    switches.set(["stale"])  # before there is anything to show
    for height in range(1, 11):
        apply(height)
    switches.set([])
    assert shown() == (8, 10, PartitionRecord(8, 0))
    switches.set(["stale"])
    for height in range(11, 200):
        apply(height)
        switches.set(["stale", "drop"])
        assert shown() == (8, 99, PartitionRecord(8, 0))
    with pytest.raises(Refused, match="this broker is at height 8"):
        ledger.view().leaves(9, [0])
    switches.set([])
    assert shown() == (197, 199, PartitionRecord(197, 0))


def decoded(data: bytes) -> Any:  # noqa: ANN401 - one of many kinds
    return wire.decode(data)


def replace_asker(asker: Caller, **changes: str) -> Caller:
    return dataclasses.replace(asker, **cast("Any", changes))
