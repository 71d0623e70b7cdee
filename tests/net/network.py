"""Organisations with real certificates, honest and forged, and a listening broker on the loopback interface."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from parley.net.frames import FrameStream
from parley.net.listener import Listener, Serve, Visit, listen
from parley.net.tls import Address
from parley.node.certificates import Authority, Issued

LOOPS = [asyncio.run, uvloop.run]
DAY = 86_400_000
NOW = int(time.time()) * 1_000  # OpenSSL judges certificates by the real clock
LOOPBACK = Address("127.0.0.1", 0)
SECONDS = 30.0  # longer than any step takes: running out of it is a failure


@dataclass(frozen=True)
class Files:
    """A certificate and its key where a broker keeps them."""

    certificate: Path
    key: Path

    @classmethod
    def write(cls, folder: Path, name: str, issued: Issued) -> Files:
        files = cls(folder / f"{name}.pem", folder / f"{name}.key")
        files.certificate.write_bytes(issued.certificate)
        files.key.write_bytes(issued.key)
        return files


@dataclass
class OpenDoor:
    """Lets `room` connections in at a time and remembers what went wrong."""

    room: int = 100
    inside: int = 0
    sources: set[str] = field(default_factory=set)
    failures: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, visit: Visit) -> bool:
        self.sources.add(visit.source)
        admitted = self.inside < self.room
        self.inside += admitted
        return admitted

    def leave(self, visit: Visit) -> None:
        assert visit.source in self.sources
        self.inside -= 1
        self.left.set()

    def failed(self, visit: Visit, reason: str) -> None:
        assert visit.source in self.sources
        self.failures.put_nowait(reason)


@asynccontextmanager
async def listening(
    context: ssl.SSLContext,
    serve: Callable[[FrameStream], Awaitable[None]],
    door: OpenDoor | None = None,
    handshake_seconds: float = SECONDS,
) -> AsyncIterator[Listener]:
    door = door or OpenDoor()
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    listener = listen(LOOPBACK, context, door, alone(serve), handshake_seconds=handshake_seconds)
    try:
        yield listener
    finally:
        await listener.close()
        assert door.inside == 0
        assert faults == []


def alone(serve: Callable[[FrameStream], Awaitable[None]]) -> Serve:
    """A handler that serves every stream."""
    return lambda stream, _: serve(stream)


async def echo(stream: FrameStream) -> None:
    while (frame := await stream.read()) is not None:
        stream.write(frame)
        await stream.drain()


def lawless_authority(organisation: str) -> Authority:
    """An authority as a dishonest organisation would make it: nothing limits what it may certify."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)])
    builder = _builder(name, name, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    return Authority(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER), _pem(key))


def company_authority(organisation: str) -> Authority:
    """An authority that a company's root issued, which nobody else knows."""
    root = lawless_authority("company")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation)])
    issuer = x509.load_der_x509_certificate(root.certificate).subject
    builder = _builder(name, issuer, key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return Authority(builder.sign(_private(root.key), hashes.SHA256()).public_bytes(Encoding.DER), _pem(key))


def forge(authority: Authority, *names: x509.GeneralName) -> Issued:
    """A certificate of this authority for any names at all."""
    ca = x509.load_der_x509_certificate(authority.certificate)
    ca_key = _private(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(x509.Name([]), ca.subject, key)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    return Issued(builder.sign(ca_key, hashes.SHA256()).public_bytes(Encoding.PEM), _pem(key))


def der(issued: Issued) -> bytes:
    return x509.load_pem_x509_certificate(issued.certificate).public_bytes(Encoding.DER)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(NOW / 1_000, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key
