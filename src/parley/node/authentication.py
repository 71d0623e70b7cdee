"""Finds out who a client is: a credential of one of the organisations, and proof of its key over nonce and certificate (P4)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from parley.crypto import ed25519
from parley.model.credentials import CredentialError, check_credential, possession
from parley.model.errors import Code, Refusal
from parley.model.genesis import Genesis
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
from parley.node.access import Asker

__all__ = ["AUTHENTICATION_SECONDS", "Authenticator", "refusal_of", "say_failure"]

AUTHENTICATION_SECONDS = 5.0
NONCE_SIZE = 32
MAX_DETAIL = 2_048  # characters


def say_failure(stream: FrameStream, id_: int, refusal: Refusal) -> None:
    stream.write(encode(Failure(id_, refusal.code, refusal.detail[:MAX_DETAIL])))


def refusal_of(error: FrameError) -> Refusal | None:
    """What to tell a sender whose stream cannot be read on; None if there is nobody left to tell."""
    match error:
        case FrameTooLarge():
            return Refusal(Code.OVERSIZED, str(error))
        case EmptyFrame():
            return Refusal(Code.MALFORMED, str(error))
        case _:
            return None


@dataclass(frozen=True)
class Authenticator:
    """This broker's side of the opening of a client's connection."""

    genesis: Genesis
    broker: str
    certificate: bytes  # the hash of this broker's own, as it was when the connection was opened
    seconds: float = AUTHENTICATION_SECONDS

    async def welcome(self, stream: FrameStream, now: int) -> Asker:
        """Who is there. Raises `Refusal` if that is not shown in time, `FrameError` if the connection is of no use."""
        chain = self.genesis.chain
        nonce = os.urandom(NONCE_SIZE)
        stream.write(encode(Challenge(VERSION, chain, nonce)))
        try:
            async with asyncio.timeout(self.seconds):
                frame = await stream.read()
        except TimeoutError:
            raise _not_authenticated(f"no credential was shown within {self.seconds:g} s") from None
        if frame is None:
            raise _not_authenticated("the connection ended before a credential was shown")
        asker = self._check(frame, possession(chain, nonce, self.certificate), now)
        stream.write(encode(Welcome(self.broker, now)))
        return asker

    def _check(self, frame: bytes, challenge: bytes, now: int) -> Asker:
        try:
            opening = decode_opening(frame)
        except WireError as error:
            raise Refusal(Code.MALFORMED, f"the first frame of a client is its credential: {error}") from None
        if not isinstance(opening, Authenticate):
            raise _not_authenticated(
                "the first frame of a client is its credential; brokers show a certificate in the TLS handshake"
            )
        credential = opening.credential
        try:
            check_credential(credential, self.genesis, now)
        except CredentialError as error:
            raise _not_authenticated(f"the credential is not accepted: {error}") from None
        if not ed25519.verify(credential.key, challenge, opening.signature):
            raise _not_authenticated("the credential's key did not sign this connection's challenge")
        return Asker.of(credential, self.genesis)


def _not_authenticated(why: str) -> Refusal:
    return Refusal(Code.NOT_AUTHENTICATED, why)
