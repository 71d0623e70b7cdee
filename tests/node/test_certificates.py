from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.net.network import DAY, NOW, der, forge, lawless_authority

from parley.net.tls import tls_name
from parley.node.certificates import (
    MAX_CERTIFICATE,
    Authority,
    IssueError,
    PeerFault,
    PeerRefused,
    create_authority,
    expires,
    identify_peer,
    issue,
)

ORG_A = create_authority("org-a", now=NOW)
ORG_B = create_authority("org-b", now=NOW)
A1, B1 = tls_name("a1", "org-a"), tls_name("b1", "org-b")
BROKERS = {A1: ORG_A.certificate, B1: ORG_B.certificate}
GOOD = der(issue(ORG_B, "b1", "org-b", now=NOW, days=30))


def fault(certificate: bytes, now: int = NOW) -> PeerFault:
    with pytest.raises(PeerRefused) as refused:
        identify_peer(certificate, BROKERS, now=now)
    assert refused.value.fault.value in str(refused.value)
    return refused.value.fault


def test_a_certificate_of_its_own_organisation_makes_a_broker() -> None:
    assert identify_peer(GOOD, BROKERS, now=NOW) == B1


@pytest.mark.parametrize(
    "liar",
    [ORG_A, lawless_authority("org-a"), lawless_authority("org-b"), create_authority("org-b", now=NOW)],
    ids=["org-a", "org-a without constraint", "unknown", "unknown of the same name"],
)
def test_nobody_else_can_vouch_for_a_broker(liar: Authority) -> None:
    assert fault(der(forge(liar, x509.DNSName(B1)))) is PeerFault.WRONG_AUTHORITY


def test_an_authority_is_no_broker_and_neither_is_one_issued_below_a_broker() -> None:
    assert fault(ORG_B.certificate) is PeerFault.NAMES
    issued = issue(ORG_B, "b1", "org-b", now=NOW)
    below = forge(Authority(der(issued), issued.key), x509.DNSName(B1))
    assert fault(der(below)) is PeerFault.WRONG_AUTHORITY


@pytest.mark.parametrize(
    "names",
    [
        [],
        [x509.DNSName(B1), x509.DNSName(A1)],
        [x509.DNSName(B1), x509.DNSName(B1)],
        [x509.RFC822Name("b1@org-b.parley")],
        [x509.UniformResourceIdentifier(B1)],
    ],
    ids=["none", "two", "twice", "mail", "uri"],
)
def test_a_broker_has_exactly_one_name(names: list[x509.GeneralName]) -> None:
    assert fault(der(forge(ORG_B, *names))) is PeerFault.NAMES


@pytest.mark.parametrize(
    "name", ["*.org-b.parley", "B1.org-b.parley", "b1.org-b.parley.", "b2.org-b.parley", ""]
)
def test_a_name_that_is_nobodys_is_refused(name: str) -> None:
    assert fault(der(forge(ORG_B, x509.DNSName(name)))) is PeerFault.UNKNOWN_BROKER


def test_a_certificate_counts_from_an_hour_before_it_was_issued_to_its_last_second() -> None:
    hour = 3_600_000
    assert expires(GOOD) == NOW + 30 * DAY
    for moment in (NOW - hour, NOW + 30 * DAY):
        assert identify_peer(GOOD, BROKERS, now=moment) == B1
    assert fault(GOOD, NOW - hour - 1) is PeerFault.NOT_YET_VALID
    assert fault(GOOD, NOW + 30 * DAY + 1_000) is PeerFault.EXPIRED


def test_a_refusal_says_who_and_why() -> None:
    with pytest.raises(PeerRefused, match=rf"'{B1}' was refused: its certificate has expired.*\(on 20"):
        identify_peer(GOOD, BROKERS, now=NOW + 31 * DAY)


# A serial number below zero only earns a warning, before the signature is found to be wrong.
@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(1, 255)), min_size=1, max_size=3))
def test_a_damaged_certificate_is_refused_unless_all_that_was_signed_is_intact(
    changes: list[tuple[int, int]],
) -> None:
    damaged = bytearray(GOOD)
    for at, change in changes:
        damaged[at] ^= change
    try:
        assert identify_peer(bytes(damaged), BROKERS, now=NOW) == B1
    except PeerRefused:
        return
    signed = x509.load_der_x509_certificate(GOOD).tbs_certificate_bytes
    assert x509.load_der_x509_certificate(bytes(damaged)).tbs_certificate_bytes == signed


@pytest.mark.parametrize(
    "certificate", [b"", b"\x30", b"garbage", GOOD[:-1], GOOD + b"\x00", bytes(MAX_CERTIFICATE + 1)]
)
def test_what_is_no_certificate_is_malformed(certificate: bytes) -> None:
    assert fault(certificate) is PeerFault.MALFORMED


def test_a_broker_whose_authority_is_unreadable_is_not_identified() -> None:
    with pytest.raises(PeerRefused) as refused:
        identify_peer(GOOD, {B1: b"garbage"}, now=NOW)
    assert refused.value.fault is PeerFault.WRONG_AUTHORITY


def test_an_issued_certificate_may_only_serve_and_dial() -> None:
    certificate = x509.load_der_x509_certificate(GOOD)
    extensions = certificate.extensions
    usage = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert usage == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


def test_an_authority_may_only_issue_to_brokers_of_its_organisation() -> None:
    extensions = x509.load_der_x509_certificate(ORG_B.certificate).extensions
    constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    names = extensions.get_extension_for_class(x509.NameConstraints)
    assert names.critical
    assert names.value.permitted_subtrees == [x509.DNSName("org-b.parley")]


def test_no_two_keys_or_certificates_are_alike() -> None:
    first, second = (issue(ORG_B, "b1", "org-b", now=NOW) for _ in range(2))
    assert first.key != second.key
    assert der(first) != der(second)
    assert create_authority("org-b", now=NOW).key != ORG_B.key


def test_an_authority_issues_for_its_own_organisation_only() -> None:
    with pytest.raises(IssueError, match="of org-a, not of org-b"):
        issue(ORG_A, "b1", "org-b", now=NOW)


def test_a_certificate_is_not_issued_with_another_authoritys_key() -> None:
    with pytest.raises(IssueError, match="key is not the one"):
        issue(Authority(ORG_B.certificate, ORG_A.key), "b1", "org-b", now=NOW)


def test_a_certificate_does_not_outlive_its_authority() -> None:
    short = create_authority("org-b", now=NOW, days=10)
    assert issue(short, "b1", "org-b", now=NOW, days=10).certificate
    with pytest.raises(IssueError, match="fewer than 11 days"):
        issue(short, "b1", "org-b", now=NOW, days=11)


@pytest.mark.parametrize("days", [0, -1, 10**9])
def test_a_certificate_has_a_sensible_duration(days: int) -> None:
    with pytest.raises(IssueError, match="days"):
        create_authority("org-a", now=NOW, days=days)
    with pytest.raises(IssueError, match="days"):
        issue(ORG_B, "b1", "org-b", now=NOW, days=days)


@pytest.mark.parametrize("name", ["", "B1", "b.1", "*", "b" * 33])
def test_a_name_that_is_not_allowed_is_not_certified(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        create_authority(name, now=NOW)
    with pytest.raises(ValueError, match="is not a name"):
        issue(ORG_B, name, "org-b", now=NOW)


def test_keys_do_not_show_when_printed() -> None:
    issued = issue(ORG_B, "b1", "org-b", now=NOW)
    assert "PRIVATE" not in repr(ORG_B) + str(issued) + f"{ORG_B}{issued}"
    assert x509.load_pem_x509_certificate(issued.certificate).public_bytes(Encoding.DER) == der(issued)
