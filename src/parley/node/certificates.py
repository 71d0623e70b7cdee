"""An organisation's authority, the certificates it issues to its brokers, and the check of whose broker a peer is.

Where a broker and the authority are on different machines, the broker sends a request, which holds no secret (PKCS #10).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from parley.consensus.committee import all_brokers
from parley.model.genesis import Broker, Genesis
from parley.net.tls import tls_name

AUTHORITY_DAYS = 3_650
BROKER_DAYS = 365
MAX_DAYS = 36_500
BACKDATE = timedelta(hours=1)  # clocks of different organisations differ
MAX_CERTIFICATE = MAX_REQUEST = 16 * 1024  # bytes of a peer's, and of what a broker asks for

# P-256 and not Ed25519: every TLS library has it, with FIPS and without, as have the key stores of companies, and
# OpenSSL signs and verifies faster with it. These keys only open connections; what is ordered is signed by others.
_CURVE = ec.SECP256R1()


class Authority(NamedTuple):
    """What an organisation certifies its brokers with. The certificate is public, the key is its secret."""

    certificate: bytes  # DER
    key: bytes  # PEM

    def __repr__(self) -> str:
        return f"<Authority, certificate of {len(self.certificate)} bytes, key redacted>"


class Issued(NamedTuple):
    """A broker's certificate and its secret key."""

    certificate: bytes  # PEM
    key: bytes  # PEM

    def __repr__(self) -> str:
        return f"<Issued, certificate of {len(self.certificate)} bytes, key redacted>"


@dataclass(frozen=True)
class Request:
    """A broker's wish for a certificate, signed by the key that it is for."""

    broker: Broker
    key: ec.EllipticCurvePublicKey


class IssueError(ValueError):
    """The authority cannot issue what was asked for."""


class PeerFault(Enum):
    """Why a peer's certificate does not make it a broker."""

    MALFORMED = "its certificate is not a well-formed X.509 certificate"
    NAMES = "its certificate does not have exactly one name"
    UNKNOWN_BROKER = "its certificate names no broker of this network"
    WRONG_AUTHORITY = "its certificate was not issued by the authority of that broker's organisation"
    NOT_YET_VALID = "its certificate is not valid yet; set the clocks of both machines"
    EXPIRED = "its certificate has expired; its operator must issue a new one"


class PeerRefused(Exception):  # noqa: N818 - it names what happened to the peer
    """A peer was refused: `name` is what it claims to be, as far as that can be read."""

    def __init__(self, fault: PeerFault, name: str = "", detail: str = "") -> None:
        who = f"a peer that calls itself {name!r}" if name else "a peer"
        super().__init__(f"{who} was refused: {fault.value}" + (f" ({detail})" if detail else ""))
        self.fault = fault
        self.name = name


def create_authority(organisation: str, *, now: int, days: int = AUTHORITY_DAYS) -> Authority:
    """A new authority for brokers of this organisation and, by its name constraint, for nobody else's."""
    domain = tls_name("any", organisation).partition(".")[2]
    key = ec.generate_private_key(_CURVE)
    name = _subject(organisation, f"{organisation} certificate authority")
    certificate = (
        _builder(name, name, key.public_key(), *_validity(now, days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(domain)], None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate.public_bytes(Encoding.DER), _pem(key))


def issue(
    authority: Authority, broker: str, organisation: str, *, now: int, days: int = BROKER_DAYS
) -> Issued:
    """A new key for a broker, and a certificate with which it both serves and dials."""
    key = new_key()
    return Issued(
        certify(authority, broker, organisation, load_key(key).public_key(), now=now, days=days), key
    )


def certify(
    authority: Authority,
    broker: str,
    organisation: str,
    key: ec.EllipticCurvePublicKey,
    *,
    now: int,
    days: int | None = None,
) -> bytes:
    """The same for a key that there is, in PEM form. Unless `days` are said, for a year or up to the authority's end."""
    name = x509.DNSName(tls_name(broker, organisation))
    ca = x509.load_der_x509_certificate(authority.certificate)
    ca_key = load_key(authority.key)
    owners = [str(part.value) for part in ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if owners != [organisation]:
        raise IssueError(f"the authority is of {', '.join(owners) or 'nobody'}, not of {organisation}")
    if ca_key.public_key() != ca.public_key():
        raise IssueError(f"the key is not the one of the authority of {organisation}")
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = (
        _builder(_subject(organisation, broker), ca.subject, key, *_within(ca, organisation, now, days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def new_key() -> bytes:
    """A broker's secret for its certificate, in PEM form."""
    return _pem(ec.generate_private_key(_CURVE))


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IssueError(
            "the key is not a private key in PEM form without a password, or it is damaged"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IssueError("the key is not a P-256 key, which brokers and authorities use")
    return key


def make_request(broker: Broker, key: bytes) -> bytes:
    """In PEM form; `key` is the secret, in PEM form too."""
    name = x509.DNSName(tls_name(broker.name, broker.organisation))
    request = (
        x509.CertificateSigningRequestBuilder(x509.Name([]))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .sign(load_key(key), hashes.SHA256())
    )
    return request.public_bytes(Encoding.PEM)


def read_request(data: bytes, genesis: Genesis) -> Request:
    """Whose request it is. Whether that broker's operator sent it, only its fingerprint can tell."""
    try:
        request = x509.load_pem_x509_csr(data[:MAX_REQUEST])
        names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = names.get_values_for_type(x509.DNSName)
        key, signed = request.public_key(), request.is_signature_valid
    except (*UNREADABLE, x509.ExtensionNotFound) as error:
        raise IssueError("it is not a request of `parley node request`") from error
    known = {tls_name(broker.name, broker.organisation): broker for broker in all_brokers(genesis)}
    if len(found) != 1 or found[0] not in known:
        raise IssueError(f"it is for {', '.join(found) or 'nobody'}, which is no broker of this network")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IssueError("its key is not a P-256 key, which brokers use")
    if not signed:
        raise IssueError("it is damaged, or not signed by the key that it is for")
    return Request(known[found[0]], key)


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """For two people to compare over a channel that they trust."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def identify_peer(der: bytes, brokers: Mapping[str, bytes], *, now: int) -> str:
    """The TLS name of the peer that proved this certificate in a handshake.

    The server trusts the authorities of all organisations at once, so TLS alone would let any of them vouch for any
    broker. Here the name decides which one authority counts. `brokers`: TLS name -> that authority, DER.
    """
    if len(der) > MAX_CERTIFICATE:
        raise PeerRefused(PeerFault.MALFORMED, detail=f"{len(der)} bytes")
    try:
        certificate = x509.load_der_x509_certificate(der)
        names = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        raise PeerRefused(PeerFault.NAMES, detail="it has none") from None
    except UNREADABLE as error:
        raise PeerRefused(PeerFault.MALFORMED, detail=str(error)) from error
    if len(names) != 1 or not isinstance(names[0], x509.DNSName):
        raise PeerRefused(PeerFault.NAMES, detail=f"it has {len(names)}, or not a DNS name")
    name = names[0].value
    if name not in brokers:
        raise PeerRefused(PeerFault.UNKNOWN_BROKER, name)
    try:
        certificate.verify_directly_issued_by(x509.load_der_x509_certificate(brokers[name]))
    except (InvalidSignature, TypeError, *UNREADABLE) as error:
        raise PeerRefused(PeerFault.WRONG_AUTHORITY, name) from error
    moment = _moment(now)
    if moment < certificate.not_valid_before_utc:
        raise PeerRefused(
            PeerFault.NOT_YET_VALID, name, f"from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        )
    if moment > certificate.not_valid_after_utc:
        raise PeerRefused(PeerFault.EXPIRED, name, f"on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    return name


def expires(der: bytes) -> int:
    """When one's own certificate ends, in milliseconds since 1970."""
    return int(x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()) * 1_000


# All that reading a certificate from a stranger can raise; some of it only when a field is asked for.
UNREADABLE = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(organisation: str, name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _validity(now: int, days: int) -> tuple[datetime, datetime]:
    if not 1 <= days <= MAX_DAYS:
        raise IssueError(f"a certificate is issued for 1 to {MAX_DAYS} days, not {days}")
    moment = _moment(now)
    return moment - BACKDATE, moment + timedelta(days=days)


def _within(ca: x509.Certificate, organisation: str, now: int, days: int | None) -> tuple[datetime, datetime]:
    start, end = _validity(now, BROKER_DAYS if days is None else days)
    last = ca.not_valid_after_utc
    if last <= _moment(now):
        raise IssueError(f"the authority of {organisation} has ended, on {last:%Y-%m-%d}: plan a new network")
    if days is not None and end > last:
        raise IssueError(
            f"the authority of {organisation} ends on {last:%Y-%m-%d}, before the certificate "
            f"would: issue it for fewer than {days} days"
        )
    return start, min(end, last)


def _moment(now: int) -> datetime:
    return datetime.fromtimestamp(now // 1_000, UTC)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
