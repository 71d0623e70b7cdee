"""Who is let in: a credential that is good now, of this network, and a proof of its key for this very connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, Actor, actor, make_genesis
from tests.node.network import SECONDS

from parley.model.credentials import Credential, issue_credential, possession
from parley.model.refusals import NotAuthenticated, Refused, WrongLedger
from parley.net.frames import FrameStream
from parley.net.messages import Authenticate, Challenge, decode_opening, encode
from parley.node.access import Caller
from parley.node.authentication import Authenticator

GENESIS = make_genesis()
NOW = 1_700_000_000_000
CERTIFICATE, OTHER = b"\1" * 32, b"\2" * 32
ALICE, BOB = actor("alice"), actor("bob")


def credential(who: Actor = ALICE, not_after: int = NOW) -> Credential:
    anchor = actor("anchor", who.organisation).secret
    return issue_credential(
        GENESIS.chain, who.organisation, who.name, who.key, not_after=not_after, anchor=anchor
    )


def proof(
    challenge: Challenge, who: Actor = ALICE, certificate: bytes = CERTIFICATE, chain: bytes = GENESIS.chain
) -> bytes:
    return who.secret.sign(possession(chain, challenge.nonce, certificate))


Answers = Callable[[Challenge], Authenticate]


async def _meet(*answers: Answers) -> tuple[list[Caller | Refused], list[Challenge]]:
    """What a broker makes of a client that answers so, one connection after the other; and what it was asked."""
    found: asyncio.Queue[Caller | Refused] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = FrameStream(reader, writer)
        try:
            caller, _ = await Authenticator(GENESIS, "b", (0,), CERTIFICATE).welcome(stream, NOW)
            found.put_nowait(caller)
        except Refused as refused:
            found.put_nowait(refused)
        await stream.wait_closed()

    met: list[Caller | Refused] = []
    challenges: list[Challenge] = []
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asyncio.timeout(SECONDS):
        for answer in answers:
            stream = FrameStream(*await asyncio.open_connection(*server.sockets[0].getsockname()[:2]))
            frame = await stream.read()
            assert frame is not None
            challenge = decode_opening(frame)
            assert isinstance(challenge, Challenge)
            challenges.append(challenge)
            stream.write(encode(answer(challenge)))
            met.append(await found.get())
            await stream.wait_closed()
    server.close()
    await server.wait_closed()
    return met, challenges


def meet(answer: Answers) -> Caller | Refused:
    (met,), _ = asyncio.run(_meet(answer))
    return met


def test_who_proves_the_key_of_a_good_credential_is_let_in() -> None:
    met = meet(lambda challenge: Authenticate(credential(), proof(challenge), 0))
    assert isinstance(met, Caller)
    assert (met.title, met.key, met.administers, met.auditor) == ("hospital-a/alice", ALICE.key, None, False)
    assert met.not_after == NOW
    met = meet(lambda challenge: Authenticate(credential(ADMIN), proof(challenge, ADMIN), 0))
    assert isinstance(met, Caller)
    assert met.administers == ADMIN.organisation


def test_who_asks_for_a_shard_that_is_not_here_is_refused() -> None:
    met = meet(lambda challenge: Authenticate(credential(), proof(challenge), 1))
    assert isinstance(met, WrongLedger)
    assert met.detail.startswith("b is no member of shard 1")


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: Authenticate(credential(), bytes(64), 0),
        lambda challenge: Authenticate(credential(), proof(challenge, BOB), 0),
        lambda challenge: Authenticate(credential(), proof(challenge, certificate=OTHER), 0),
        lambda challenge: Authenticate(credential(), proof(challenge, chain=bytes(32)), 0),
        lambda challenge: Authenticate(credential(), proof(replace(challenge, nonce=bytes(32))), 0),
        lambda challenge: Authenticate(credential(not_after=NOW - 1), proof(challenge), 0),
        lambda challenge: Authenticate(replace(credential(), not_after=NOW + 1), proof(challenge), 0),
        lambda challenge: Authenticate(replace(credential(), name="bob"), proof(challenge), 0),
        lambda challenge: Authenticate(replace(credential(), key=BOB.key), proof(challenge, BOB), 0),
        lambda challenge: Authenticate(replace(credential(), organisation="hospital-b"), proof(challenge), 0),
    ],
    ids=[
        "nothing",
        "another key",
        "another broker",
        "another network",
        "another nonce",
        "expired",
        "prolonged",
        "renamed",
        "re-keyed",
        "moved",
    ],
)
def test_anybody_else_is_nobody(answer: Answers) -> None:
    met = meet(answer)
    assert isinstance(met, Refused)
    assert met.code == NotAuthenticated.code


def test_what_was_proved_to_a_connection_proves_nothing_to_another() -> None:
    heard: list[Authenticate] = []

    def first(challenge: Challenge) -> Authenticate:
        heard.append(Authenticate(credential(), proof(challenge), 0))
        return heard[0]

    met, challenges = asyncio.run(_meet(first, lambda _: heard[0]))
    assert isinstance(met[0], Caller)
    assert isinstance(met[1], Refused)
    assert challenges[0].nonce != challenges[1].nonce
