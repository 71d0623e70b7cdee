"""What a client, a stranger or a set clock can take from a broker is bounded, and everybody's share is kept apart."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN
from tests.node.answering import fetched, listed, work
from tests.node.ledger_broker import LedgerBroker
from tests.node.network import SECONDS, LocalNetwork
from tests.node.raw_client import (
    RawClient,
    authenticated,
    message,
    reach,
    registration,
)
from tests.node.test_assemble import OneBroker, close, connected, running

from parley.applications import DATA_SHARD
from parley.consensus.types import Header
from parley.crypto import ed25519, merkle
from parley.ledger.proofs import BlockProof
from parley.model.batches import FORMAT, PUBLISH, BatchHeader
from parley.model.credentials import Identity, issue_credential
from parley.model.principals import ClientRecord
from parley.model.receipts import Done
from parley.model.refusals import Busy, NotAuthenticated, NotFound, NotReady, Revoked, UnknownClient
from parley.modules.publishing.receipts import Published
from parley.modules.publishing.tables import BatchPlace
from parley.modules.registry.operations import RevokeClient
from parley.modules.registry.tables import CLIENTS, NAMES
from parley.modules.retention.refusals import Pruned
from parley.modules.subscriptions.receipts import Match
from parley.modules.topics.operations import CreateTopic, DeleteTopic, Policy
from parley.modules.topics.tables import TOPICS, TopicRecord
from parley.net import messages as net
from parley.net.limits import TokenBucket
from parley.node import pieces, streams
from parley.node.access import Caller, require_listable
from parley.node.allowances import Account, Accounts, Unsent
from parley.node.answers import (
    LEAF_WORK,
    MAX_SHOWN_BYTES,
    MAX_SHOWN_MESSAGES,
    MESSAGE_WORK,
    PROOF_WORK,
    RULE_WORK,
)
from parley.node.archive import Archive, StoredBatch
from parley.node.clock import WallClock
from parley.node.config import Limits, load
from parley.node.descriptors import needed
from parley.node.keys import read_key
from parley.node.logs import RotatingFile
from parley.node.outlet import Outlet
from parley.node.provision import create_identity
from parley.node.services import held
from parley.node.services.asking import Services
from parley.node.services.proving import ENTRY_WORK, EXAMINED_AT_ONCE, JUDGED_WORK, Listing
from parley.node.streams import Pushed, Stream
from parley.node.view import View


def account() -> Account:
    return Account(TokenBucket(10, 10), TokenBucket(10, 10))


class Pipe:
    """The end of a connection that somebody reads, or does not."""

    def __init__(self, unread: int) -> None:
        self.write_buffer_bytes = unread


def test_a_broker_that_could_run_out_of_files_does_not_start(tmp_path: Path) -> None:
    network = OneBroker(tmp_path / "net")
    config = network.config("solo-1")
    few = needed(load(config)) - 1
    found = subprocess.run(
        [sys.executable, "-m", "parley.node", str(config)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (few, few)),
        capture_output=True,
        check=False,
        text=True,
    )
    assert found.returncode != 0
    for part in ("limits.connections", str(few), "ulimit -n", "LimitNOFILE"):
        assert part in found.stderr


def test_what_was_used_beyond_the_allowance_is_paid_for_before_more_is_taken() -> None:
    bucket = TokenBucket(rate=10, burst=10)
    bucket.charge(30, 0)
    assert not bucket.take(0, 0)
    assert bucket.wait_ms(0, 0) == 2_000
    assert not bucket.take(0, 1_999)
    assert bucket.take(0, 2_000)


def test_who_leaves_most_unread_gets_no_more_while_all_is_too_much() -> None:
    time = 0
    unsent, greedy, modest = Unsent(lambda: time, budget=100), account(), account()
    pipes = [Pipe(40), Pipe(40), Pipe(30)]
    with (
        unsent.counted(pipes[0], greedy),  # type: ignore[arg-type]
        unsent.counted(pipes[1], greedy),  # type: ignore[arg-type]
        unsent.counted(pipes[2], modest),  # type: ignore[arg-type]
    ):
        time = 1_000
        unsent.wrote(110)
        assert not unsent.allows(greedy)
        assert unsent.allows(modest)
        pipes[0].write_buffer_bytes = 0
        time = 2_000
        assert unsent.allows(greedy)


def test_a_clock_that_is_set_back_stands_still_and_says_so() -> None:
    times: Iterator[int] = iter([5_000, 4_000, 4_000, 4_000, 1_000, 1_000])
    clock = WallClock(lambda: next(times))
    assert clock() == 5_000
    assert clock() == 5_000
    assert clock.set_back() == ""
    assert "restart the broker" in clock.set_back()


def test_a_log_begins_anew_when_it_is_large_and_keeps_a_few_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = RotatingFile(path, max_bytes=10)
    for number in range(12):
        file.write(b"line %02d\n" % number)
    file.close()
    kept = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert kept == {"log": b"line 11\n", "log.1": b"line 10\n", "log.2": b"line 09\n", "log.3": b"line 08\n"}


# -- a running broker --------------------------------------------------------------------------------------------------


@pytest.fixture
def network(tmp_path: Path) -> Iterator[OneBroker]:
    with OneBroker(tmp_path / "net") as network:
        yield network


def test_one_answer_is_bounded_in_bytes_and_messages(network: OneBroker) -> None:
    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            for _ in range(3):
                # Hidden from the reader, so that the answer is built message by message.
                hidden = (message(b"", "nobody == true") for _ in range(MAX_SHOWN_MESSAGES - 500))
                batch = alice.publication("t", *hidden)
                assert isinstance((await alice.submit(batch)).outcome, Published)
            large = alice.publication("t", message(bytes(MAX_SHOWN_BYTES // 2)))
            await alice.submit(large)
            await alice.submit(alice.publication("t", message(bytes(MAX_SHOWN_BYTES // 2))))
            first = await alice.ask(net.Fetch(50, "t", 0, 0, net.MAX_ANSWER, 0), net.Fetched)
            assert contents(first) == MAX_SHOWN_MESSAGES - 500
            last = await alice.ask(
                net.Fetch(51, "t", 0, 3 * (MAX_SHOWN_MESSAGES - 500), net.MAX_ANSWER, 0), net.Fetched
            )
            assert contents(last) == 1
            await close(admin, alice)

    asyncio.run(story())


def test_who_is_not_registered_or_was_revoked_has_nothing_ordered(network: OneBroker) -> None:
    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            stranger = await connected(network, "stranger")
            refused = await stranger.ask(
                net.Submit(1, stranger.publication("t", message(b"x"))[1]), net.Failure
            )
            assert refused.code == UnknownClient.code
            assert (await admin.operate(RevokeClient("alice"))).outcome == Done()
            refused = await alice.ask(net.Submit(2, alice.publication("t", message(b"x"))[1]), net.Failure)
            assert refused.code == Revoked.code
            await close(admin, alice, stranger)

    asyncio.run(story())


def test_batches_that_are_garbage_end_the_connection(network: OneBroker) -> None:
    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            _, body = alice.publication("t", message(b"x"))
            forged = body[:-1] + bytes([body[-1] ^ 1])
            for id_ in range(30):
                alice.send(net.Submit(id_, forged))
            answers = 0
            async with asyncio.timeout(60):
                while (frame := await alice.stream.read()) is not None:
                    answer = net.decode_answer(frame)
                    assert isinstance(answer, net.Failure)
                    answers += 1
            assert answers == 20
            await close(admin, alice)

    asyncio.run(story())


def test_a_connection_ends_when_its_credential_does(network: OneBroker) -> None:
    async def story() -> None:
        async with running(network):
            known = network.identity("solo", "alice").credential
            anchor = read_key(network.directory / "organisations" / "solo" / "anchor.key")
            key = ed25519.SecretKey.generate()
            soon = WallClock()() + 1_500
            brief = issue_credential(known.chain, "solo", "brief", key.public, not_after=soon, anchor=anchor)
            stream = await reach(network, "solo-1")
            client = await authenticated(network, "solo-1", stream, Identity(brief, key.seed()))
            async with asyncio.timeout(60):
                answer: object = await client.ask(net.StatusRequest(1), object)
                while isinstance(answer, net.Status):
                    await asyncio.sleep(0.1)
                    answer = await client.ask(net.StatusRequest(1), object)
            assert isinstance(answer, net.Failure)
            assert (answer.id, answer.code) == (0, NotAuthenticated.code)
            assert await stream.read() is None
            await close(client)

    asyncio.run(story())


def test_what_a_deleted_topic_held_is_not_streamed_under_its_next_life(network: OneBroker) -> None:
    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            constraint, position = await alice.subscribe("t")
            assert (await alice.submit(alice.publication("t", message(b"old")))).outcome == Published(0)
            question = net.OpenStream(70, "t", constraint, (position,), 10)
            delivery = await alice.ask(question, net.Delivery)
            assert len(delivery.blocks) == 1
            assert (await admin.operate(DeleteTopic("t"))).outcome == Done()
            # Its subscription is cleared away with the topic, sooner or later: then that is all that it is shown.
            alice.send(replace(question, id=71))
            while (shown := await alice.receive(net.Answer)).id != 71:
                pass  # what the first stream says meanwhile
            if isinstance(shown, net.Head):
                assert [entry.value for entry in shown.entries] == [None]
            else:
                assert isinstance(shown, net.Failure)
                assert shown.code == Pruned.code
            assert (await admin.operate(CreateTopic("t", 1, Policy(), "", ""))).outcome == Done()
            refused = await failure(alice, replace(question, id=72))
            assert refused.code == NotFound.code
            await close(admin, alice)

    asyncio.run(story())


def test_a_block_with_very_many_matches_is_put_together_over_several_turns(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    look = pieces.Piece.look

    def counted(piece: pieces.Piece, archive: Archive, work: int) -> int:
        before = len(piece.contents)
        left = look(piece, archive, work)
        turns.append(len(piece.contents) - before)
        return left

    monkeypatch.setattr(pieces.Piece, "look", counted)
    number = 2 * MAX_SHOWN_MESSAGES + 1

    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            constraint, position = await alice.subscribe("t")
            hidden = message(b"hidden", rule='role == "doctor"')
            sent = (hidden, *(message(b"") for _ in range(number - 1)))
            assert (await alice.submit(alice.publication("t", *sent))).outcome == Published(0)
            delivery = await alice.ask(net.OpenStream(80, "t", constraint, (position,), 1), net.Delivery)
            (block,) = delivery.blocks
            assert [content.leaf() for content in block.contents] == [one.leaf() for one in sent]
            # Withheld in the first turn, and proved in the last.
            assert delivery.reader is not None
            *_, leaf = alice.trust.certified(delivery.anchor).leaves(block.proof)
            assert isinstance(leaf, Match)
            assert len(leaf.items) == number
            await close(admin, alice)

    asyncio.run(story())
    assert sum(turns) == number
    assert max(turns) <= MAX_SHOWN_MESSAGES
    assert len(turns) >= 4


def test_many_small_blocks_are_delivered_over_several_turns(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof of a block takes longer than a message."""
    number, most = 20, 5
    monkeypatch.setattr(streams, "MAX_SHOWN_MESSAGES", most * (PROOF_WORK + LEAF_WORK) // MESSAGE_WORK)
    turns: list[int] = []
    push = Outlet.push

    async def story() -> None:
        over = asyncio.Event()

        def watched(outlet: Outlet, pushed: Pushed) -> None:
            if pushed.messages:
                turns.append(pushed.messages)
                if sum(turns) == number:
                    over.set()
            push(outlet, pushed)

        monkeypatch.setattr(Outlet, "push", watched)
        async with running(network):
            admin, alice = await furnished(network)
            constraint, position = await alice.subscribe("t")
            for offset in range(number):
                assert (await alice.submit(alice.publication("t", message(b"")))).outcome == Published(offset)
            alice.send(net.OpenStream(85, "t", constraint, (position,), number))
            async with asyncio.timeout(SECONDS):
                await over.wait()
            await close(admin, alice)

    asyncio.run(story())
    assert max(turns) <= most
    assert len(turns) >= number // most


def test_what_is_put_together_for_everybody_is_paid_for_by_who_needs_it_first(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or whoever reads old blocks, which nobody else wants, has a broker work for nothing."""
    works: list[int] = []
    push = Outlet.push

    def watched(outlet: Outlet, pushed: Pushed) -> None:
        if pushed.messages:
            works.append(pushed.work)
        push(outlet, pushed)

    monkeypatch.setattr(Outlet, "push", watched)

    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            constraint, position = await alice.subscribe("t")
            sent = [message(b"") for _ in range(10)]
            assert (await alice.submit(alice.publication("t", *sent))).outcome == Published(0)
            question = net.OpenStream(90, "t", constraint, (position,), 1)
            again = await connected(network, "alice")
            for reader in (alice, again):
                await reader.ask(question, net.Delivery)
            await close(admin, alice, again)

    asyncio.run(story())
    assert works == [10 * pieces.SHARED_WORK, 0]


def test_a_replica_waits_for_no_look_at_many_streams(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells all connections of every certified header, and each may have very many streams in which nothing happens."""
    monkeypatch.setattr(held, "SHORT_LOOK", 2)
    looked: list[int] = []
    has_news = Stream.has_news

    def watched(stream: Stream, view: View, ticks: int) -> bool:
        looked.append(stream.id)
        return has_news(stream, view, ticks)

    monkeypatch.setattr(Stream, "has_news", watched)

    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            constraint, position = await alice.subscribe("t")
            delivered = set[int]()
            for number in (90, 91, 92):
                alice.send(net.OpenStream(number, "t", constraint, (position,), 10))
                while (await alice.receive(net.Head)).id != number:
                    pass  # those before it show theirs again
            assert looked
            looked.clear()
            publisher = await connected(network, "alice")
            published = publisher.publication("t", message(b"news"))
            assert (await publisher.submit(published)).outcome == Published(0)
            while len(delivered) < 3:
                answer = await alice.receive(object)
                delivered |= {answer.id} if isinstance(answer, net.Delivery) else set()
            assert not looked
            await close(admin, alice, publisher)

    asyncio.run(story())


def test_however_many_streams_a_connection_has_one_block_at_a_time_is_put_together(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[int, pieces.Piece] = {}
    most = 0
    look = pieces.Piece.look

    def watched(piece: pieces.Piece, archive: Archive, work: int) -> int:
        nonlocal most
        left = look(piece, archive, work)
        if piece.is_whole:
            begun.pop(id(piece), None)
        else:
            begun[id(piece)] = piece
        most = max(most, len(begun))
        return left

    monkeypatch.setattr(pieces.Piece, "look", watched)

    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            constraint, position = await alice.subscribe("t")
            sent = [message(b"")] * (2 * MAX_SHOWN_MESSAGES + 1)
            assert (await alice.submit(alice.publication("t", *sent))).outcome == Published(0)
            numbers = set(range(80, 88))
            for number in numbers:
                alice.send(net.OpenStream(number, "t", constraint, (position,), 1))
            async with asyncio.timeout(SECONDS):
                while numbers:
                    frame = await alice.stream.read()
                    assert frame is not None
                    answer = net.decode_answer(frame)
                    if isinstance(answer, net.Delivery):
                        numbers.discard(answer.id)
            await close(admin, alice)

    asyncio.run(story())
    assert (most, begun) == (1, {})


def test_the_connections_of_one_client_take_turns() -> None:
    """Who opens more connections does not get more done: what one asks waits while another of its own is answered."""

    async def story() -> None:
        accounts, order = Accounts(Limits(), 8), []
        mine = [accounts.enter("alice"), accounts.enter("alice")]
        other = accounts.enter("bob")
        assert mine[0] is mine[1] is not other

        async def work(account: Account | None, name: str) -> None:
            assert account is not None
            async with account.turn:
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

        await asyncio.gather(work(mine[0], "first"), work(mine[1], "second"), work(other, "bob"))
        assert order.index("first ends") < order.index("second begins")
        assert order.index("bob begins") < order.index("first ends")

    asyncio.run(story())


def test_an_organisation_has_its_share_of_the_connections_and_no_more(tmp_path: Path) -> None:
    settings = "[limits]\nconnections = 4\nconnections_per_address = 4\n"
    with LocalNetwork(
        tmp_path / "net", organisations=("solo", "second"), clients=("alice",), settings=settings
    ) as network:

        async def admitted(organisation: str) -> object:
            """What it is told when it asks something."""
            stream = await reach(network, "solo-1")
            identity = network.identity(organisation, "alice")
            clients.append(await authenticated(network, "solo-1", stream, identity))
            return await clients[-1].ask(net.StatusRequest(1), object)

        async def story() -> None:
            network.start("solo-1")
            found = [await admitted("solo") for _ in range(3)]
            assert [type(one) for one in found] == [net.Status, net.Status, net.Failure]
            refused = found[2]
            assert isinstance(refused, net.Failure)
            assert refused.code == Busy.code
            assert "solo has as many connections" in refused.detail
            assert isinstance(await admitted("second"), net.Status)
            await close(*clients)

        clients: list[RawClient] = []
        asyncio.run(story())


def test_a_long_fetch_at_a_broker_without_fresh_headers_is_not_answered_as_if_nothing_had_come(
    network: OneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker was fresh when it was asked, and is cut off when the time is over (P18)."""

    async def story() -> None:
        async with running(network):
            admin, alice = await furnished(network)
            assert (await alice.fetch("t", 0)).blocks == ()
            alice.send(net.Fetch(90, "t", 0, 0, 1_000, 1_000))
            await alice.status()  # it is waited for
            monkeypatch.setattr(Services, "fresh_view", not_fresh)
            refused = await alice.receive(net.Failure)
            assert (refused.id, refused.code) == (90, NotReady.code)
            await close(admin, alice)

    def not_fresh(_: Services) -> View:
        raise NotReady("not_fresh", age=9_999, limit=1)

    asyncio.run(story())


def test_a_list_is_charged_for_every_entry_that_it_looks_at() -> None:
    class Topics:
        archive = None
        application = DATA_SHARD

        def keys_after(self, _prefix: bytes, _after: bytes) -> Iterator[bytes]:
            return iter([NAMES.key("solo", str(number)) for number in range(300)])

        def read(self, *_: object) -> None: ...

    view = Topics()
    view.archive = view  # type: ignore[assignment]
    asker = Caller(bytes(32), "solo", "admin", administers="solo", not_after=0)
    charged: list[int] = []
    found = listed(view, asker, net.ListKeys(1, NAMES.prefix("solo"), b""), charged.append)  # type: ignore[arg-type]
    assert (len(found.keys), found.more) == (256, True)
    assert sum(charged) == 257 * ENTRY_WORK
    assert max(charged) == EXAMINED_AT_ONCE * ENTRY_WORK


class Shelf:
    """A broker that has one batch with many rules, and shows it to everybody."""

    archive = property(lambda self: self)
    height, encoded_anchor = 1, msgspec.Raw(b"")

    def __init__(self, rules: frozenset[str]) -> None:
        header = BatchHeader(FORMAT, bytes(32), 0, PUBLISH, "t", (0, 0), 0, bytes(32), bytes(16), 0, 1, 9)
        self._batch = StoredBatch(header, bytes(64), msgspec.Raw(b""), rules, 1_000)

    def read(self, table: object, *_: object) -> object:
        if table is TOPICS:
            return TopicRecord("t", "solo", 1, Policy(), "", "", (1, 0), deleted=False)
        return (
            ClientRecord("solo", "alice", bytes(32), (), revoked=False, changed=1)
            if table is CLIENTS
            else None
        )

    def batches_from(self, _topic: str, _partition: int, _offset: int, /) -> Iterator[tuple[int, BatchPlace]]:
        return iter([(0, BatchPlace(1, 0, bytes(32), 1))])

    def stored(self, _: bytes) -> StoredBatch:
        return self._batch

    def entry(self, _: bytes) -> None: ...

    def leaves(self, height: int, positions: list[int]) -> BlockProof:
        proof = merkle.MultiProof(1, tuple(positions), ())
        return BlockProof(cast("Header", height), bytes(32), merkle.Proof(0, 1, ()), (b"",), proof)


class LongShelf(Shelf):
    """One whose batches stand in as many blocks, each with many receipts that are none of the reader's business."""

    def __init__(self, blocks: int, receipts: int, messages: int = 1) -> None:
        super().__init__(frozenset())
        self.height, self._receipts, self._messages = blocks, receipts, messages
        self._batch = replace_count(self._batch, messages)
        self.proven: list[int] = []  # heights
        self.opened = 0  # batches

    def batches_from(self, _topic: str, _partition: int, offset: int, /) -> Iterator[tuple[int, BatchPlace]]:
        for number in range(offset // self._messages, self.height):
            yield number * self._messages, BatchPlace(number + 1, 0, bytes(32), self._messages)

    def stored(self, _: bytes) -> StoredBatch:
        self.opened += 1
        return self._batch

    def leaves(self, height: int, positions: list[int]) -> BlockProof:
        self.proven.append(height)
        found = super().leaves(height, positions)
        return replace(found, receipts=replace(found.receipts, size=self._receipts))

    def page(self, offset: int) -> net.SplicedFetched:
        asker = Caller(bytes(32), "solo", "alice", administers=None, not_after=0)
        question = net.Fetch(1, "t", 0, offset, net.MAX_ANSWER, 0)
        return fetched(cast("View", self), asker, question, lambda _: None)


def replace_count(batch: StoredBatch, messages: int) -> StoredBatch:
    header = replace(batch.header, count=messages)
    return StoredBatch(header, batch.signature, batch.messages, batch.rules, batch.size)


def test_a_page_across_blocks_full_of_others_receipts_hashes_a_few_of_them() -> None:
    shelf = LongShelf(blocks=200, receipts=600)
    shelf.page(0)
    assert 0 < len(shelf.proven) * 600 <= 4_000
    one = LongShelf(blocks=200, receipts=60_000)
    assert len(one.page(0).blocks) == 1, "what cannot be divided is shown all the same"


def test_a_page_across_many_small_blocks_is_made_of_a_few_of_them() -> None:
    shelf = LongShelf(blocks=200, receipts=4)
    shelf.page(0)
    assert 20 < len(shelf.proven) <= 64
    assert shelf.opened <= len(shelf.proven) + 1


def test_batches_that_do_not_fit_into_a_page_are_not_opened_for_it() -> None:
    shelf = LongShelf(blocks=10, receipts=1, messages=10_000)
    assert len(shelf.page(0).blocks) == 1
    assert shelf.opened == 1


def test_whoever_asks_on_after_short_pages_misses_nothing() -> None:
    shelf = LongShelf(blocks=100, receipts=600, messages=3)
    seen: list[int] = []
    while page := shelf.page(3 * len(seen)).blocks:
        seen += [cast("int", block.proof.header) for block in page]
    assert seen == shelf.proven == list(range(1, 101))


def test_receipts_that_a_proof_needs_are_paid_for() -> None:
    few, many = (work(LongShelf(blocks=1, receipts=receipts).page(0)) for receipts in (1, 1_000))
    assert many - few == 999 * LEAF_WORK


def test_rules_are_paid_for_although_they_hide_nothing() -> None:
    rules = frozenset(f'client == "alice" and n != {n}' for n in range(5))
    asker = Caller(bytes(32), "solo", "alice", administers=None, not_after=0)
    charged: list[int] = []
    question = net.Fetch(1, "t", 0, 0, MAX_SHOWN_BYTES, 0)
    found = fetched(cast("View", Shelf(rules)), asker, question, charged.append)
    assert isinstance(found.blocks[0].batches[0], net.PackedBatch)
    assert charged == [RULE_WORK * 5]


async def furnished(network: OneBroker) -> tuple[RawClient, RawClient]:
    """An administrator and a registered client of a network with the topic `t`; a stranger has an identity, too."""
    create_identity(network.directory, "solo", "stranger", not_after=2**50)
    admin = await connected(network, "admin")
    assert (await admin.operate(registration(network.identity("solo", "alice")))).outcome == Done()
    assert (await admin.operate(CreateTopic("t", 1, Policy(), "", ""))).outcome == Done()
    return admin, await connected(network, "alice")


async def failure(client: RawClient, question: net.OpenStream) -> net.Failure:
    """What the broker says against a question, whatever other streams say meanwhile."""
    client.send(question)
    while not (isinstance(answer := await client.receive(object), net.Failure) and answer.id == question.id):
        pass
    return answer


def contents(answer: net.Fetched) -> int:
    return sum(len(batch.contents) for block in answer.blocks for batch in block.batches)


@pytest.mark.parametrize("ruled", [False, True])
def test_a_list_of_topics_holds_the_loop_for_a_few_entries_at_a_time(*, ruled: bool) -> None:
    """Each has rules of its own, which are read for the first time; a client that may know of none pays for all of them."""
    broker = LedgerBroker()
    alice, hidden = broker.ledger.client("alice"), "false" if ruled else ""
    for number in range(3 * EXAMINED_AT_ONCE):
        assert broker.ledger.do(ADMIN, CreateTopic(f"t{number}", 1, Policy(), hidden, hidden)).is_done
    view = broker.certify()
    charged: list[int] = []
    is_shown = require_listable(view, TOPICS.prefix(), b"", broker.caller(alice).principal(view))
    listing = Listing(view, net.ListKeys(1, TOPICS.prefix(), b""), is_shown, charged.append)
    first, second, page = (listing.step() for _ in range(3))
    assert first is second is None
    assert page is not None
    assert len(page.keys) == (0 if ruled else 3 * EXAMINED_AT_ONCE)
    assert charged == [EXAMINED_AT_ONCE * JUDGED_WORK] * 3
