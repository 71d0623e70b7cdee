"""Workers that check batches ahead: no answer depends on them, nothing waits for a dead one, none outlives its broker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Never, cast

import pytest
import structlog
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.node.network import ORGANISATIONS, SECONDS, LocalNetwork
from tests.node.raw_client import RawClient, client, message, registration
from tests.node.test_assemble import OneBroker, close, connected, running
from tests.node.test_network import next_delivery, open_stream, subscribe

from parley.application import admission
from parley.application.admission import Admission
from parley.application.operations import encode_operation
from parley.applications import DATA_SHARD
from parley.crypto.ed25519 import SecretKey
from parley.mempool.messages import BatchesRequest, BatchMessage
from parley.model.batches import (
    CONTROL,
    FORMAT,
    MAX_BATCH_BYTES,
    PUBLISH,
    BatchHeader,
    Message,
    sign_batch,
)
from parley.model.expressions import parse_rule
from parley.model.receipts import BatchReceipt, Done
from parley.model.refusals import BadSignature, Malformed, Oversized, Refused, WrongChain
from parley.modules.publishing.receipts import Published
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import CreateTopic, Policy
from parley.net import frames
from parley.net import messages as net
from parley.node import verifier, workers
from parley.node.config import ConfigError, load
from parley.node.logs import Log
from parley.node.workers import Workers, announced, submitted
from parley.replica import wire

CHAIN, OTHER_CHAIN = bytes(range(32)), bytes(32)
KEY = SecretKey(bytes(32))
LOG = structlog.get_logger()
RULE, SAME_RULE = parse_rule("role = 'a'").text, "role   =   'a'"
MANY = 60  # messages of a batch that is worth a worker's while


def play(story: Callable[[], Coroutine[None, None, None]]) -> None:
    """On the kind of loop that brokers run on."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


def batch(
    *messages: Message, kind: int = PUBLISH, chain: bytes = CHAIN, count: int = 0
) -> tuple[bytes, bytes]:
    topic = "" if kind == CONTROL else "orders"
    header = BatchHeader(
        FORMAT, chain, 0, kind, topic, (0, 0), 0, KEY.public, os.urandom(16), 0, count or len(messages), 9
    )
    return sign_batch(header, messages, KEY)


def large_batch() -> tuple[bytes, bytes]:
    return batch(*(message(bytes(128), number=number) for number in range(MANY)))


def stretched(body: bytes) -> bytes:
    """The same content with one number in more bytes than it needs."""
    assert body[:3] == bytes([0x93, 0x9C, FORMAT])
    return body[:2] + bytes([0xCC, FORMAT]) + body[3:]


def zoo() -> list[bytes]:
    """A batch of every kind that is accepted, or refused for a reason of its own."""
    body = large_batch()[1]
    return [
        body,
        batch(message(b"x"))[1],
        batch(message(b"x", RULE), message(b"y"), message(b"z", RULE))[1],
        batch(message(encode_operation(Subscribe("t", "a = 1"))), kind=CONTROL)[1],
        batch(message(encode_operation(Subscribe("t", "a = "))), kind=CONTROL)[1],
        batch(message(b"no operation"), kind=CONTROL)[1],
        batch(message(b"x"), message(b"y"), kind=CONTROL)[1],
        batch(message(b"x", SAME_RULE))[1],
        batch(message(b"x", "role = "))[1],
        batch(Message(bytes(16), b"no header", "", b"x"))[1],
        batch(message(b"x"), count=2)[1],
        batch(message(b"x"), chain=OTHER_CHAIN)[1],
        batch(message(bytes(MAX_BATCH_BYTES)))[1],
        body[:-64] + bytes(64),
        body.replace(bytes(128), bytes(127) + b"!", 1),
        stretched(body),
        body[:-1],
        body + b"\0",
        b"garbage",
        b"\xc1",
    ]


def opened(where: Admission, body: bytes) -> object:
    """All that anybody learns of a batch."""
    try:
        found = where.admit(body)
    except Refused as refusal:
        return refusal.code, refusal.detail
    return found.digest, found.batch, found.operation, found.cost


# -- the same answers with workers and without ------------------------------------------------------------------------


def test_with_and_without_workers_batches_are_accepted_refused_and_named_alike() -> None:
    async def story() -> None:
        checked = Admission((CHAIN, 0), DATA_SHARD.decode_operation, DATA_SHARD.batch_kinds)
        vouched: list[bytes] = []

        def vouch(body: bytes, name: bytes) -> None:
            vouched.append(body)
            checked.vouch(body, name)

        async with working(Workers(2, CHAIN, vouch, LOG), at_least=2) as pool:
            bodies = zoo()
            await pool.ahead(bodies)
        alone = [
            opened(Admission((CHAIN, 0), DATA_SHARD.decode_operation, DATA_SHARD.batch_kinds), body)
            for body in bodies
        ]
        assert [opened(checked, body) for body in bodies] == alone
        # What needs the operation is checked after the worker, in any case.
        accepted = [one for one in alone if isinstance(one[0], bytes)]  # type: ignore[index]
        assert (len(accepted), len(vouched)) == (4, 6)
        codes = {one[0] for one in alone if isinstance(one[0], str)}  # type: ignore[index]
        assert codes == {Malformed.code, BadSignature.code, WrongChain.code, Oversized.code}

    play(story)


@pytest.fixture(scope="module")
def check() -> Iterator[Callable[[list[bytes]], tuple[bytes | None, ...]]]:
    """A verifier's answers, without a process of its own."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=verifier.serve, args=(theirs, CHAIN))
    thread.start()
    with ours, ours.makefile("rb") as answers:

        def heard() -> bytes:
            return answers.read(int.from_bytes(answers.read(verifier.HEADER_SIZE), "big"))

        def ask(bodies: list[bytes]) -> tuple[bytes | None, ...]:
            question = verifier.encode(bodies)
            ours.sendall(len(question).to_bytes(verifier.HEADER_SIZE, "big") + question)
            return verifier.decode_digests(heard())

        assert heard() == verifier.READY
        yield ask
    thread.join(SECONDS)
    assert not thread.is_alive(), "it ends with the connection"


@st.composite
def damaged_batches(draw: st.DrawFn) -> bytes:
    """Mostly a valid batch with one byte changed, cut out or put in; sometimes as it was."""
    chain = draw(st.sampled_from([CHAIN, CHAIN, CHAIN, OTHER_CHAIN]))
    contents = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=20))
    rules = st.sampled_from(["", "", RULE, SAME_RULE])
    body = batch(*(message(one, draw(rules)) for one in contents), chain=chain)[1]
    at = draw(st.integers(0, len(body) - 1))
    cut = draw(st.integers(0, 2))
    return draw(st.sampled_from([body, body[:at] + draw(st.binary(max_size=2)) + body[at + cut :]]))


@settings(max_examples=200, deadline=None)
@given(bodies=st.lists(damaged_batches() | st.binary(max_size=80), max_size=5))
def test_a_worker_names_what_the_broker_would_accept_and_nothing_else(
    check: Callable[[list[bytes]], tuple[bytes | None, ...]], bodies: list[bytes]
) -> None:
    names = check(bodies)
    assert len(names) == len(bodies)
    ahead = Admission((CHAIN, 0), DATA_SHARD.decode_operation, DATA_SHARD.batch_kinds)
    for body, name in zip(bodies, names, strict=True):
        if name is not None:
            ahead.vouch(body, name)
    assert [opened(ahead, body) for body in bodies] == [
        opened(Admission((CHAIN, 0), DATA_SHARD.decode_operation, DATA_SHARD.batch_kinds), body)
        for body in bodies
    ]


def test_only_the_very_body_that_was_checked_is_taken_unchecked() -> None:
    name, body = large_batch()
    forged = body.replace(bytes(128), bytes(127) + b"!", 1)
    assert forged[-64:] == body[-64:]
    where = Admission((CHAIN, 0), DATA_SHARD.decode_operation, DATA_SHARD.batch_kinds)
    where.vouch(body, name)
    assert opened(where, forged) == (BadSignature.code, "the batch is not signed by the key that it names")
    where.vouch(forged, name)  # what nobody does: it shows that the word is believed
    assert where.admit(forged).digest == name
    where.admit(batch(message(b"x"))[1])
    assert opened(where, forged)[0] == BadSignature.code, "and only once"  # type: ignore[index]


def test_what_was_vouched_for_is_kept_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    where = Admission((CHAIN, 0), DATA_SHARD.decode_operation, DATA_SHARD.batch_kinds)
    monkeypatch.setattr(admission, "MAX_VOUCHED", 3)
    monkeypatch.setattr(admission, "MAX_VOUCHED_BYTES", 2_500)
    batches = [batch(message(bytes(400))) for _ in range(5)]
    for name, body in batches:
        where.vouch(body, name)
        where.vouch(body, name)
    assert [body for body, _ in where._vouched.values()] == [body for _, body in batches[2:]]
    name, body = batch(message(bytes(2_000)))
    where.vouch(body, name)
    assert list(where._vouched.values()) == [(body, name)]
    assert where._vouched_bytes == len(body)
    where.admit(body)
    assert (len(where._vouched), where._vouched_bytes) == (0, 0)


# -- finding batches among messages -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    body=st.integers(1, 300).map(bytes) | st.sampled_from([bytes(65_535), bytes(65_536), bytes(1024 * 1024)]),
    number=st.integers(0, 2**32 - 1) | st.sampled_from([0, 127, 128, 255, 256, 65_535, 65_536]),
)
def test_a_glance_finds_the_batches_of_every_size_and_number(body: bytes, number: int) -> None:
    assert announced([wire.encode(BatchMessage(body))]) == [body]
    assert submitted([net.encode(net.Submit(number, body))]) == [body]


def test_a_glance_at_anything_else_finds_nothing() -> None:
    others = [
        wire.encode(BatchesRequest((bytes(32),))),
        net.encode(net.Fetch(10, "t", 0, 0, 1, 0)),
        net.encode(net.StatusRequest(5)),
        wire.encode(BatchMessage(b"x"))[:2],
        net.encode(net.Submit(1, b"x"))[:2],
        net.encode(net.Submit(300, b"x"))[:4],
        b"\x92\x05\xa1x",
        b"\x93\x0a\xa1x\xc4\x01x",
        b"\x92",
    ]
    assert announced(others) == submitted(others) == []
    assert not announced([net.encode(net.Submit(1, b"x"))])
    assert not submitted([wire.encode(BatchMessage(b"x"))])


def test_both_sides_speak_of_frames_alike() -> None:
    assert verifier.HEADER_SIZE == frames.HEADER_SIZE


# -- workers that fail ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def working(pool: Workers, *, at_least: int = 1) -> AsyncIterator[Workers]:
    """While it runs; none of its processes is left then."""
    task = asyncio.create_task(pool.run())
    try:
        await until(lambda: len(pool.pids) >= at_least)
        pids = pool.pids
        yield pool
        pids += pool.pids
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not any(map(lives, pids))


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not happened():  # noqa: ASYNC110 - other processes tell nobody
            await asyncio.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_whoever_waits_for_a_killed_worker_goes_on_and_another_takes_its_place() -> None:
    async def story() -> None:
        vouched: list[tuple[bytes, bytes]] = []
        async with working(Workers(1, CHAIN, lambda *one: vouched.append(one), LOG)) as pool:
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)  # so that it does not answer before it is killed
            waiting = [asyncio.create_task(pool.ahead([large_batch()[1]])) for _ in range(3)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(SECONDS):
                await asyncio.gather(*waiting)
            assert (vouched, pool.pids) == ([], [])
            name, body = large_batch()
            await pool.ahead([body])  # there is nobody to wait for
            assert not vouched
            await until(lambda: bool(pool.pids))
            assert pool.pids != [pid]
            await pool.ahead([body])
            assert vouched == [(body, name)]

    play(story)


def test_a_worker_that_does_not_answer_is_given_up_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(workers, "LOOK_SECONDS", 0.05)
    told: list[str] = []

    async def story() -> None:
        vouched: list[tuple[bytes, bytes]] = []
        async with working(Workers(1, CHAIN, lambda *one: vouched.append(one), listening(told))) as pool:
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)
            async with asyncio.timeout(SECONDS):
                await pool.ahead([large_batch()[1]])
            assert not vouched
            await until(lambda: bool(pool.pids))
            assert pool.pids != [pid]
            assert not lives(pid)

    play(story)
    assert told == ["it answered too late"]


def test_what_a_worker_has_no_time_for_is_left_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [large_batch()[1] for _ in range(4)]
    monkeypatch.setattr(workers, "MAX_WAITING", 2 * (len(bodies[0]) + workers.SIGNATURE_COST))

    async def story() -> None:
        vouched: list[bytes] = []
        async with working(Workers(1, CHAIN, lambda body, _: vouched.append(body), LOG)) as pool:
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)
            first = asyncio.create_task(pool.ahead(bodies[:3]))
            await asyncio.sleep(0)
            await pool.ahead(bodies[3:])  # does not wait
            os.kill(pid, signal.SIGCONT)
            async with asyncio.timeout(SECONDS):
                await first
            assert vouched == bodies[:2]
            await pool.ahead(bodies[3:])
            assert vouched == [*bodies[:2], bodies[3]]

    play(story)


def test_a_small_batch_alone_is_not_worth_asking() -> None:
    async def story() -> None:
        vouched: list[bytes] = []
        async with working(Workers(1, CHAIN, lambda body, _: vouched.append(body), LOG)) as pool:
            small = [batch(message(b"x"))[1] for _ in range(4)]
            await pool.ahead(small[:1])
            assert not vouched
            await pool.ahead(small)
            assert vouched == small

    play(story)


def test_whoever_stops_waiting_disturbs_nobody() -> None:
    async def story() -> None:
        vouched: list[bytes] = []
        async with working(Workers(1, CHAIN, lambda body, _: vouched.append(body), LOG)) as pool:
            bodies = [large_batch()[1] for _ in range(2)]
            gone = asyncio.create_task(pool.ahead(bodies[:1]))
            await asyncio.sleep(0)
            gone.cancel()
            await pool.ahead(bodies[1:])
            assert vouched == bodies
            assert [worker.load for worker in pool._ready] == [0]

    play(story)


def listening(told: list[str]) -> Log:
    """A log that keeps why workers ended."""

    def keep(_: object, __: str, event: MutableMapping[str, Any]) -> Never:
        if event["event"] == "worker_ended":
            told.append(event["why"])
        raise structlog.DropEvent

    return cast("Log", structlog.wrap_logger(None, processors=[keep]))


READY = "import socket; s = socket.socket(fileno=0); s.sendall(b'\\0\\0\\0\\5ready'); s.recv(1); "


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ((sys.executable, "-c", "pass"), "it ended before it was ready, or said something else first"),
        ((sys.executable, "-c", READY), "it ended by itself"),
        (
            (sys.executable, "-c", READY + "s.sendall(b'\\0\\0\\0\\1\\x90')"),
            "it answered what it was not asked",
        ),
        (
            (sys.executable, "-c", READY + "s.sendall(b'\\0\\0\\0\\1x')"),
            "it answered what is no list of digests",
        ),
        (
            (sys.executable, "-c", READY + "s.sendall(b'\\0\\1\\0\\1')"),
            "a frame of 65537 bytes was announced",
        ),
        (("/nowhere/python",), "it cannot be started: No such file or directory"),
    ],
)
def test_a_worker_that_talks_nonsense_or_cannot_be_is_done_without(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], why: str
) -> None:
    monkeypatch.setattr(workers, "COMMAND", command)
    told: list[str] = []

    async def story() -> None:
        vouched: list[bytes] = []
        pool = Workers(1, CHAIN, lambda body, _: vouched.append(body), listening(told))
        task = asyncio.create_task(pool.run())
        async with asyncio.timeout(SECONDS):
            while not told:
                await pool.ahead([large_batch()[1]])
                await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not vouched

    play(story)
    assert told[0].startswith(why)


def test_a_worker_stays_while_its_broker_needs_it_and_shares_nothing_with_it() -> None:
    async def story() -> None:
        vouched: list[bytes] = []
        async with working(Workers(2, CHAIN, lambda body, _: vouched.append(body), LOG), at_least=2) as pool:
            pids = pool.pids
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGINT)
                assert environment(pid) <= set(workers.ENVIRONMENT)
                assert open_files(pid) == {"0", "1", "2"}
            bodies = [large_batch()[1] for _ in range(8)]
            await pool.ahead(bodies)
            assert sorted(vouched) == sorted(bodies)
            assert pool.pids == pids

    play(story)


def environment(pid: int) -> set[str]:
    found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {one.partition(b"=")[0].decode() for one in found if one}


def open_files(pid: int) -> set[str]:
    return {one.name for one in Path(f"/proc/{pid}/fd").iterdir()}


# -- brokers with workers ---------------------------------------------------------------------------------------------

SETTINGS = "[workers]\nverify = 1\n"
TOPIC = "orders"
ENTRY, READER, PLAIN = (
    "alpha-1",
    "gamma-1",
    "delta-1",
)  # where is published, where is read, who has no workers


def children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


@pytest.mark.parametrize(("setting", "expected"), [("", 0), ("[workers]\nverify = 0", 0), (SETTINGS, 2)])
def test_a_broker_starts_workers_if_it_is_told_to_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, expected: int
) -> None:
    vouched: list[bytes] = []
    vouch = Admission.vouch

    def spy(self: Admission, body: bytes, name: bytes) -> None:
        vouched.append(body)
        vouch(self, body, name)

    monkeypatch.setattr(Admission, "vouch", spy)

    async def story(network: OneBroker) -> None:
        before = children()
        async with running(network):
            admin = await connected(network, "admin")
            assert (await admin.operate(registration(network.identity("solo", "alice")))).outcome == Done()
            assert (await admin.operate(CreateTopic(TOPIC, 1, Policy(), "", ""))).outcome == Done()
            if expected:
                await until(lambda: "worker_started" in [line["event"] for line in network.log("solo-1")])
            assert len(children() - before) == bool(expected)
            alice = await connected(network, "alice")
            for number in range(2):
                assert (await publish(alice)).outcome == Published(number * MANY)
            await close(admin, alice)
        assert children() <= before

    with OneBroker(tmp_path / "net", settings=setting) as network:
        asyncio.run(story(network))
    assert len(vouched) == expected


@pytest.mark.parametrize("value", ["-1", "33", "'two'"])
def test_the_number_of_workers_has_limits(tmp_path: Path, value: str) -> None:
    network = OneBroker(tmp_path / "net", settings=f"[workers]\nverify = {value}")
    with pytest.raises(ConfigError, match=r"workers\.verify: expected an integer between 0 and 32, got"):
        load(network.config("solo-1"))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    with LocalNetwork(tmp_path_factory.mktemp("workers") / "net", settings=SETTINGS) as network:
        path = network.config(PLAIN)
        path.write_text(path.read_text().replace("verify = 1", "verify = 0"))
        network.start()
        asyncio.run(_furnish(network))
        yield network


async def _furnish(network: LocalNetwork) -> None:
    for organisation in ORGANISATIONS:
        async with client(network, f"{organisation}-1", organisation, "admin") as admin:
            receipt = await admin.operate(registration(network.identity(organisation, "alice")))
            assert receipt.outcome == Done()
    async with client(network, ENTRY, "alpha", "admin") as admin:
        assert (await admin.operate(CreateTopic(TOPIC, 1, Policy(), "", ""))).outcome == Done()
    for name in network.names:
        if name != PLAIN:
            await until(lambda name=name: bool(started(network, name)))  # type: ignore[misc]


def started(network: LocalNetwork, name: str) -> list[int]:
    """The workers that a broker has started, the newest last."""
    return [int(str(line["pid"])) for line in network.log(name) if line["event"] == "worker_started"]


def questions(pid: int) -> int:
    """It grows whenever a worker waits for the next one."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("voluntary")
    ]
    return int(line.split()[1])


async def publish(publisher: RawClient) -> BatchReceipt:
    return await publisher.submit(large_publication(publisher))


def large_publication(publisher: RawClient) -> tuple[bytes, bytes]:
    return publisher.publication(TOPIC, *(message(bytes(128), number=number) for number in range(MANY)))


def test_nothing_is_lost_when_workers_are_killed_under_load(network: LocalNetwork) -> None:
    async def story() -> None:
        victims = [started(network, name)[-1] for name in (ENTRY, READER)]
        bystander = started(network, "beta-1")[-1]
        asked = questions(bystander)
        async with (
            client(network, ENTRY, "alpha", "alice") as publisher,
            client(network, READER, "gamma", "alice") as reader,
        ):
            open_stream(reader, TOPIC, await subscribe(reader, TOPIC, ""), credit=100_000)
            delivered = 0
            for number in range(6):
                for _ in range(8):
                    publisher.send(net.Submit(publisher.new_id(), large_publication(publisher)[1]))
                if number == 2:
                    for pid in victims:
                        os.kill(pid, signal.SIGKILL)
                for _ in range(8):
                    await publisher.receive(net.Receipted)
            while delivered < 6 * 8 * MANY:
                delivered += sum(len(block.contents) for block in (await next_delivery(reader)).blocks)
            assert delivered == 6 * 8 * MANY
            for name, pid in zip((ENTRY, READER), victims, strict=True):
                await until(lambda name=name, pid=pid: started(network, name)[-1] != pid)  # type: ignore[misc]
            assert questions(bystander) > asked, "brokers have what others announce checked"
            replaced = started(network, ENTRY)[-1]
            asked = questions(replaced)
            await publish(publisher)
            assert questions(replaced) > asked, "those that take the place of others work, too"

    asyncio.run(story())


def test_garbage_is_refused_in_the_same_words_with_workers_and_without(network: LocalNetwork) -> None:
    async def said(broker: str, bodies: list[bytes]) -> list[tuple[str, str]]:
        async with client(network, broker, "beta", "alice") as sender:
            for body in bodies:
                sender.send(net.Submit(sender.new_id(), body))
            found = [await sender.receive(net.Failure) for _ in bodies]
        return [(one.code, one.detail) for one in found]

    async def story() -> None:
        async with client(network, ENTRY, "beta", "alice") as author:
            body = large_publication(author)[1]
        bodies = [
            b"garbage" * 3_000,
            body[:-64] + bytes(64),
            stretched(body),
            large_batch()[1],  # of another network
            body + b"\0",
        ]
        told = await said(ENTRY, bodies)
        assert told == await said(PLAIN, bodies)
        codes = [Malformed.code, BadSignature.code, Malformed.code, WrongChain.code, Malformed.code]
        assert [code for code, _ in told] == codes

    asyncio.run(story())


def test_workers_end_with_a_broker_that_is_killed(network: LocalNetwork) -> None:
    pid = started(network, "beta-1")[-1]
    assert lives(pid)
    network.kill("beta-1")
    asyncio.run(until(lambda: not lives(pid)))
    network.start("beta-1")
    asyncio.run(until(lambda: started(network, "beta-1")[-1] != pid))
