"""Finds out who a client is: a credential of one of the organisations, and proof of its key over nonce and certificate (P4)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Container
from dataclasses import dataclass

from parley.crypto import ed25519
from parley.model.credentials import CredentialError, check_credential, possession
from parley.model.genesis import Genesis
from parley.model.refusals import Malformed, NotAuthenticated, Oversized, Refused, WrongLedger, malformed
from parley.net.frames import EmptyFrame, FrameError, FrameStream, FrameTooLarge
from parley.net.messages import (
    VERSION,
    Authenticate,
    Challenge,
    Failure,
    Welcome,
    WireError,
    decode_opening,
    encode,
)
from parley.node.access import Caller

AUTHENTICATION_SECONDS = 5.0
NONCE_SIZE = 32


def say_failure(stream: FrameStream, id_: int, refused: Refused) -> None:
    stream.write(encode(Failure.of(id_, refused)))


def refusal_of(error: FrameError) -> Refused | None:
    """What a sender gets whose stream cannot be read on; None if the sender cannot be reached."""
    match error:
        case FrameTooLarge():
            return Oversized("frame", size=error.length, limit=error.limit)
        case EmptyFrame():
            return Malformed("empty_frame")
        case _:
            return None


@dataclass(frozen=True)
class Authenticator:
    """This broker's side of the opening of a client's connection."""

    genesis: Genesis
    broker: str
    shards: Container[int]  # of which it is a member
    certificate: bytes  # the hash of this broker's own, as it was when the connection was opened
    seconds: float = AUTHENTICATION_SECONDS

    async def welcome(self, stream: FrameStream, now: int) -> tuple[Caller, int]:
        """The client that has connected, and the shard that it asks for. Raises `Refused` if it does not prove in time who it is,
        `FrameError` if the connection is of no use.
        """
        chain = self.genesis.chain
        nonce = os.urandom(NONCE_SIZE)
        stream.write(encode(Challenge(VERSION, chain, nonce)))
        try:
            async with asyncio.timeout(self.seconds):
                frame = await stream.read()
        except TimeoutError:
            raise NotAuthenticated("late", seconds=f"{self.seconds:g}") from None
        if frame is None:
            raise NotAuthenticated("ended")
        caller, shard = self._check(frame, possession(chain, nonce, self.certificate), now)
        stream.write(encode(Welcome(self.broker, now)))
        return caller, shard

    def _check(self, frame: bytes, challenge: bytes, now: int) -> tuple[Caller, int]:
        try:
            opening = decode_opening(frame)
        except WireError as error:
            raise malformed("client_hello", error) from None
        if not isinstance(opening, Authenticate):
            raise NotAuthenticated("no_credential")
        credential = opening.credential
        try:
            check_credential(credential, self.genesis, now)
        except CredentialError as error:
            raise NotAuthenticated("credential", fault=str(error)) from None
        if not ed25519.verify(credential.key, challenge, opening.signature):
            raise NotAuthenticated("challenge")
        if opening.shard not in self.shards:
            raise WrongLedger("shard", broker=self.broker, shard=opening.shard)
        return Caller.of(credential, self.genesis), opening.shard
