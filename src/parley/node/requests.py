"""What a broker sends to its organisation's authority when the two are on different machines: a request, no secret (PKCS #10)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from parley.model.genesis import Broker, Genesis
from parley.net.tls import tls_name
from parley.node.certificates import UNREADABLE, IssueError, load_key

MAX_REQUEST = 16 * 1024  # bytes


@dataclass(frozen=True)
class Request:
    """A broker's wish for a certificate, signed by the key that it is for."""

    broker: Broker
    key: ec.EllipticCurvePublicKey


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
    known = {tls_name(broker.name, broker.organisation): broker for broker in genesis.brokers}
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
