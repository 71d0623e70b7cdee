"""TLS 1.3 in which each organisation's authority vouches for its own brokers and for nobody else's.

Brokers show certificates to each other. Clients show none: they prove their credential afterwards, over the hash of
the server's certificate. Needs only the standard library, because clients use it.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from parley.net.frames import CLOSE_SECONDS, FrameStream, reason_of
from parley.net.sockets import keep_alive

_NAME = re.compile(r"[a-z0-9-]{1,32}")
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,20})")
MAX_PORT = 2**16 - 1


class AddressError(ValueError):
    """The text is not an address."""

    def __init__(
        self, text: str, problem: str = "write host:port, with an IPv6 address in brackets, as in [::1]:7400"
    ) -> None:
        super().__init__(f"{text!r} is not an address: {problem}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens. Port 0 asks for any free one."""

    host: str
    port: int

    def __post_init__(self) -> None:
        valid = _is_ipv6(self.host) if ":" in self.host else _HOST.fullmatch(self.host)
        if not valid or not 0 <= self.port <= MAX_PORT:
            raise AddressError(str(self))

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `host:port` or `[v6]:port`."""
        found = _ADDRESS.fullmatch(text)
        if found is None or (found["v6"] and ":" not in found["v6"]):
            raise AddressError(text)
        if len(found["port"]) > len(str(MAX_PORT)) or int(found["port"]) > MAX_PORT:
            raise AddressError(text, f"write host:port with a port of at most {MAX_PORT}")
        try:
            return cls(found["v6"] or found["host"] or "", int(found["port"]))
        except AddressError:
            raise AddressError(text) from None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ContextError(Exception):
    """Our own certificate, key or authorities cannot be used; the message says why."""


class ConnectError(Exception):
    """No connection to a broker; `problem` says why, without its name and address."""

    def __init__(self, name: str, address: Address, problem: str) -> None:
        super().__init__(f"broker {name} at {address} {problem}")
        self.problem = problem


class Unreachable(ConnectError):  # noqa: N818 - it names the condition
    """Nobody answers at the address, or not in time."""


class TlsFault(Enum):
    """What is wrong with the other side, and what to do about it."""

    WRONG_AUTHORITY = (
        "shows a certificate that its organisation's authority did not issue: compare the genesis files and the "
        "address; if both are right, somebody else answers there"
    )
    EXPIRED = "shows a certificate that has expired: its operator must issue a new one; if it has not, set this machine's clock"
    NOT_YET_VALID = "shows a certificate that is not valid yet: set the clocks of both machines"
    WRONG_NAME = "shows another broker's certificate: check which broker listens at this address"
    NO_TLS13 = "does not speak TLS 1.3: check that this is the address of a broker"
    OTHER = "failed the TLS handshake: check its log"


class TlsError(ConnectError):
    """Somebody answers, but not as the broker that was asked for."""

    def __init__(self, name: str, address: Address, fault: TlsFault, detail: str) -> None:
        super().__init__(name, address, f"{fault.value} ({detail})")
        self.fault = fault


# X509_V_ERR_* of OpenSSL. An authority that is unknown shows in several ways, depending on what the two have in common.
_VERIFY_FAULTS = {
    9: TlsFault.NOT_YET_VALID,
    10: TlsFault.EXPIRED,
    62: TlsFault.WRONG_NAME,
    **dict.fromkeys((2, 7, 18, 19, 20, 21, 24, 30), TlsFault.WRONG_AUTHORITY),
}
_NO_TLS13 = {
    "RECORD_LAYER_FAILURE",
    "TLSV1_ALERT_PROTOCOL_VERSION",
    "UNSUPPORTED_PROTOCOL",
    "WRONG_SSL_VERSION",
    "WRONG_VERSION_NUMBER",
}


def tls_name(broker: str, organisation: str) -> str:
    """The one name in a broker's certificate."""
    for name in (broker, organisation):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name: use 1 to 32 of a-z, 0-9 and -")
    return f"{broker}.{organisation}.parley"


def certificate_hash(der: bytes) -> bytes:
    """What a client signs to bind its proof to this server."""
    return hashlib.sha256(der).digest()


def load_certificate(path: Path) -> bytes:
    """The DER form of the first certificate in a PEM file: of one's own, for its hash and its expiry."""
    try:
        return ssl.PEM_cert_to_DER_cert(path.read_text("ascii").partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER)
    except OSError as error:
        raise ContextError(f"the certificate file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ContextError(f"the certificate file {path} is not in PEM form") from error


def authority_end(ca: bytes) -> int:
    """When an organisation's authority ends, in ms since 1970."""
    (found,) = _context(ssl.PROTOCOL_TLS_CLIENT, [ca]).get_ca_certs()
    return ssl.cert_time_to_seconds(str(found["notAfter"])) * 1_000


def server_context(certificate: Path, key: Path, cas: Sequence[bytes]) -> ssl.SSLContext:
    """For the port on which brokers of all organisations and clients arrive.

    A peer's certificate may come from any of the authorities: whose it has to come from depends on the name in it, and
    only `parley.node.certificates.identify_peer` says that.
    """
    context = _context(ssl.PROTOCOL_TLS_SERVER, cas)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.num_tickets = 0  # every connection proves its certificate anew
    _load_own(context, certificate, key)
    return context


def peer_context(certificate: Path, key: Path, ca: bytes) -> ssl.SSLContext:
    """For dialling brokers of the one organisation whose authority is `ca`, as a broker."""
    context = client_context(ca)
    _load_own(context, certificate, key)
    return context


def client_context(ca: bytes) -> ssl.SSLContext:
    """For dialling brokers of the one organisation whose authority is `ca`, as a client."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, [ca])
    context.hostname_checks_common_name = False
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    return context


async def connect(address: Address, context: ssl.SSLContext, name: str, *, timeout: float) -> FrameStream:  # noqa: ASYNC109 - part of what fails is said in terms of it
    """Reach the broker whose TLS name is `name`, or raise a `ConnectError` that says why not."""
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(
                address.host,
                address.port,
                ssl=context,
                server_hostname=name,
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
        keep_alive(writer.get_extra_info("socket"))
    except ssl.SSLCertVerificationError as error:
        fault = _VERIFY_FAULTS.get(error.verify_code, TlsFault.OTHER)
        raise TlsError(name, address, fault, error.verify_message) from error
    except ssl.SSLError as error:
        fault = TlsFault.NO_TLS13 if error.reason in _NO_TLS13 else TlsFault.OTHER
        raise TlsError(name, address, fault, reason_of(error)) from error
    except TimeoutError:
        raise Unreachable(name, address, f"cannot be reached: no connection within {timeout:g} s") from None
    except OSError as error:
        raise Unreachable(name, address, f"cannot be reached: {_reason(error)}") from error
    return FrameStream(reader, writer)


def _reason(error: OSError) -> str:
    """In the words of the system. asyncio has others, which name its own call, and all addresses of a host at once."""
    numbers = re.findall(r"\[Errno (\d+)\] Connect call failed", str(error))
    return ", ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers)) or reason_of(error)


def _context(protocol: int, cas: Sequence[bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Exactly the authorities of the genesis file are trusted, even those that a company's root has issued.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=b"".join(cas))
    except (ssl.SSLError, ValueError) as error:
        raise ContextError("an organisation's authority is not an X.509 certificate in DER form") from error
    if context.cert_store_stats()["x509_ca"] != len(cas):
        raise ContextError(
            "each organisation needs one authority of its own: one is shared, doubled or no authority"
        )
    return context


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, password="")  # or OpenSSL would ask for one at the terminal
    except ssl.SSLError as error:
        raise ContextError(
            f"the certificate {certificate} and the key {key} cannot be used together: {reason_of(error)}"
        ) from error
    except OSError as error:
        raise ContextError(
            f"the certificate {certificate} or the key {key} cannot be read: {error.strerror}"
        ) from error


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
