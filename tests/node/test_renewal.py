"""A new certificate is looked at as a whole before it is used, and a bad one changes nothing."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec.structs import replace as replaced
from tests.net.network import LOOPBACK, OpenDoor, alone

from parley.net.frames import FrameStream
from parley.net.listener import Serve, Visit, listen
from parley.net.messages import PING
from parley.net.tls import client_context, connect, tls_name
from parley.node.certificates import (
    Authority,
    Issued,
    IssueError,
    certify,
    create_authority,
    expires,
    fingerprint,
    issue,
    load_key,
    make_request,
    new_key,
    read_request,
)
from parley.node.clock import ClockWatch
from parley.node.config import Config, ConfigError, load
from parley.node.peers import Peers
from parley.node.provision import broker_directory, provision_network, read_authority
from parley.node.renewal import forget_old, install, own_key
from parley.node.secrets import SecretError, write_secret
from parley.node.shown import Showing, Shown, load_shown

DAY = 86_400_000
NOW = int(time.time() * 1_000)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template") / "net"
    provision_network(directory, organisations=("alpha", "beta"), network="n", start_time=NOW)
    return directory


@pytest.fixture
def home(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "net")
    return tmp_path / "net"


@pytest.fixture
def config(home: Path) -> Config:
    return load(broker_directory(home, "alpha-1") / "broker.toml")


def files(config: Config) -> dict[str, bytes]:
    """What lies in the broker's folder, but for its store."""
    return {path.name: path.read_bytes() for path in config.directory.iterdir() if path.is_file()}


def put(config: Config, issued: Issued) -> None:
    config.certificate.write_bytes(issued.certificate)
    write_secret(config.certificate_key, issued.key, replace=True)


# -- what is shown -------------------------------------------------------------------------------------------------------


def test_what_provisioning_made_can_be_shown(config: Config) -> None:
    shown = load_shown(config, NOW)
    assert shown.peers.keys() == {"alpha", "beta"}
    assert abs(shown.ends - (NOW + 365 * DAY)) < DAY


BAD: dict[str, tuple[Callable[[Path], Issued], str]] = {
    "another broker's": (
        lambda home: issue(read_authority(home, "alpha"), "alpha-2", "alpha", now=NOW),
        "names no broker",
    ),
    "another organisation's": (
        lambda home: issue(read_authority(home, "beta"), "alpha-1", "beta", now=NOW),
        "names no broker",
    ),
    "another authority's": (
        lambda _: issue(create_authority("alpha", now=NOW), "alpha-1", "alpha", now=NOW),
        "not issued by the authority",
    ),
    "ended": (
        lambda home: issue(read_authority(home, "alpha"), "alpha-1", "alpha", now=NOW - 400 * DAY),
        "has expired.*Run `parley node renew alpha-1`",
    ),
    "not begun": (
        lambda home: issue(read_authority(home, "alpha"), "alpha-1", "alpha", now=NOW + 2 * DAY),
        "not valid yet",
    ),
    "no certificate": (lambda _: Issued(b"no", new_key()), "not in PEM form"),
    "for another key": (
        lambda home: issue(read_authority(home, "alpha"), "alpha-1", "alpha", now=NOW)._replace(
            key=new_key()
        ),
        "cannot be used together",
    ),
    "without its key": (
        lambda home: issue(read_authority(home, "alpha"), "alpha-1", "alpha", now=NOW)._replace(key=b"no"),
        "is not a private key",
    ),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_a_broker_goes_on_with_what_it_has_when_the_files_are_bad(
    config: Config, home: Path, make: Callable[[Path], Issued], words: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        showing = Showing(config, structlog.get_logger(), lambda: NOW)
        before = showing.current
        put(config, make(home))
        showing.changed = lambda _: pytest.fail("it shows what is bad")
        showing.reload()
    assert showing.current is before
    (entry,) = logs
    assert entry["event"] == "certificate_refused"
    with pytest.raises(ConfigError, match=words):
        load_shown(config, NOW)


def test_a_key_that_others_can_read_is_not_used(config: Config) -> None:
    config.certificate_key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"certificate_key: .*chmod 600"):
        load_shown(config, NOW)


def test_a_certificate_that_is_gone_is_named(config: Config) -> None:
    config.certificate.unlink()
    with pytest.raises(ConfigError, match=r"tls\.crt cannot be read"):
        load_shown(config, NOW)


def test_good_files_are_taken_once_and_told(config: Config, home: Path) -> None:
    told: list[Shown] = []
    with structlog.testing.capture_logs() as logs:
        showing = Showing(config, structlog.get_logger(), lambda: NOW)
        showing.changed = told.append
        showing.reload()
        assert not told, "nothing has changed yet"
        put(config, issue(read_authority(home, "alpha"), "alpha-1", "alpha", now=NOW))
        showing.reload()
        showing.reload()
    assert [one.certificate for one in told] == [showing.current.certificate]
    assert [entry["event"] for entry in logs] == ["certificate_renewed"]


def test_files_that_change_while_they_are_read_are_not_used(
    config: Config, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = issue(read_authority(home, "alpha"), "alpha-1", "alpha", now=NOW)

    def hurried(config: Config) -> object:
        put(config, other)
        return ssl.create_default_context(), {}

    monkeypatch.setattr("parley.node.shown._contexts", hurried)
    with pytest.raises(ConfigError, match="replaced while it was read"):
        load_shown(config, NOW)


def test_a_certificate_of_an_authority_that_has_ended_is_refused(config: Config) -> None:
    """`identify_peer` looks at the certificate alone; OpenSSL, which others use, at the authority too."""
    ended = create_authority("alpha", now=NOW - 100 * DAY, days=50)
    first, second = config.genesis.organisations
    genesis = replaced(config.genesis, organisations=(replaced(first, tls_ca=ended.certificate), second))
    put(config, _beyond(ended))
    with pytest.raises(ConfigError, match=r"no connection can be opened.*expired"):
        load_shown(replace(config, genesis=genesis), NOW)


def _beyond(authority: Authority) -> Issued:
    """A certificate that outlives its authority, which `issue` does not make."""
    pair = issue(authority, "alpha-1", "alpha", now=NOW - 90 * DAY, days=30)
    found = x509.load_pem_x509_certificate(pair.certificate)
    builder = x509.CertificateBuilder(
        issuer_name=found.issuer,
        subject_name=found.subject,
        public_key=found.public_key(),
        serial_number=found.serial_number,
        not_valid_before=found.not_valid_before_utc,
        not_valid_after=found.not_valid_after_utc.replace(year=found.not_valid_after_utc.year + 5),
        extensions=list(found.extensions),
    )
    signed = builder.sign(load_key(authority.key), hashes.SHA256())
    return Issued(signed.public_bytes(Encoding.PEM), pair.key)


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (300, ""),
        (340, "ends in 25 days; .*Run `parley node renew alpha-1`"),
        (364.5, "ends in 12 hours"),
        (366, "has ended"),
    ],
)
def test_an_operator_is_warned_before_the_end(config: Config, days: float, words: str) -> None:
    showing = Showing(config, structlog.get_logger(), lambda: NOW)
    said = showing.expiry(showing.current.ends - int((365 - days) * DAY))
    assert bool(said) == bool(words)
    assert re.match(f"The certificate of this broker {words}" if words else "", said)


def test_an_operator_is_warned_a_year_before_the_authority_ends(config: Config) -> None:
    showing = Showing(config, structlog.get_logger(), lambda: NOW)
    ends = expires(config.genesis.organisations[0].tls_ca)
    assert "authority" not in showing.expiry(ends - 366 * DAY)
    assert "The certificate authority of alpha ends in 364 days" in showing.expiry(ends - 364 * DAY - 1)


# -- connections -----------------------------------------------------------------------------------------------------------


def test_a_connection_is_served_with_the_certificate_that_it_was_shown(config: Config, home: Path) -> None:
    """Whoever was let in before the change finishes its handshake as it began, and is served accordingly (P4)."""
    old = load_shown(config, NOW)
    put(config, issue(read_authority(home, "alpha"), "alpha-1", "alpha", now=NOW))
    new = load_shown(config, NOW)
    name, context = tls_name("alpha-1", "alpha"), client_context(config.genesis.organisations[0].tls_ca)

    async def story() -> None:
        arrived = asyncio.Event()

        class Herald(OpenDoor):
            def enter(self, visit: Visit) -> bool:
                arrived.set()
                return super().enter(visit)

        def saying(word: bytes) -> Serve:
            async def serve(stream: FrameStream) -> None:
                stream.write(word)
                await stream.drain()

            return alone(serve)

        listener = listen(LOOPBACK, old.server, Herald(), saying(b"old"))
        early = await asyncio.open_connection(listener.address.host, listener.address.port)
        await arrived.wait()
        listener.present(new.server, saying(b"new"))
        late = await connect(listener.address, context, name, timeout=60)
        await early[1].start_tls(context, server_hostname=name)
        stream = FrameStream(*early)
        assert (stream.peer_certificate, await stream.read()) == (old.certificate, b"old")
        assert (late.peer_certificate, await late.read()) == (new.certificate, b"new")
        assert late.peer_certificate_ends == new.ends
        await stream.wait_closed()
        await late.wait_closed()
        await listener.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_brokers_are_dialled_with_the_newest_certificate_and_open_links_stay(
    config: Config, home: Path
) -> None:
    old = load_shown(config, NOW)
    put(config, issue(read_authority(home, "alpha"), "alpha-1", "alpha", now=NOW))
    new = load_shown(config, NOW)
    other = load_shown(load(broker_directory(home, "beta-1") / "broker.toml"), NOW)

    async def story() -> None:
        come: asyncio.Queue[FrameStream] = asyncio.Queue()
        heard: asyncio.Queue[bytes] = asyncio.Queue()

        async def serve(stream: FrameStream) -> None:
            come.put_nowait(stream)
            while (frame := await stream.read()) is not None:
                if not frame.startswith(PING):
                    heard.put_nowait(frame)

        listener = listen(LOOPBACK, other.server, OpenDoor(), alone(serve))
        there = replace(config, addresses=(config.addresses[0], listener.address))
        peers = Peers(there, old, ClockWatch(2, 0), structlog.get_logger(), lambda: NOW)
        tasks = peers.start({})
        first = await come.get()
        assert first.peer_certificate == old.certificate
        peers.present(new)
        await heard.get()  # the greeting
        peers.send(1, b"on the link that there is")
        assert await heard.get() == b"on the link that there is"
        assert come.empty()
        first.close()
        assert (await come.get()).peer_certificate == new.certificate
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await listener.close()

    with structlog.testing.capture_logs():
        asyncio.run(asyncio.wait_for(story(), 60))


# -- files -------------------------------------------------------------------------------------------------------------------


def renewed(home: Path, config: Config, *, new: bool = False) -> bytes:
    key = load_key(own_key(config, new=new)).public_key()
    return certify(read_authority(home, "alpha"), "alpha-1", "alpha", key, now=NOW)


def test_a_certificate_for_the_key_in_use_leaves_the_key_alone(config: Config, home: Path) -> None:
    before = files(config)
    made = renewed(home, config)
    shown = install(config, made, NOW)
    assert shown.certificate == load_shown(config, NOW).certificate
    after = files(config)
    assert after == {**before, "tls.crt": made, "tls.old.crt": before["tls.crt"]}
    forget_old(config)
    assert files(config) == {**before, "tls.crt": made}


def test_a_new_key_waits_beside_the_old_one_until_its_certificate_comes(config: Config, home: Path) -> None:
    before = files(config)
    made = renewed(home, config, new=True)
    assert renewed(home, config, new=True)  # asking twice makes no second key
    waiting = files(config)["tls.next.key"]
    assert files(config)["tls.key"] == before["tls.key"]
    install(config, made, NOW)
    after = files(config)
    assert (after["tls.crt"], after["tls.key"]) == (made, waiting)
    assert (after["tls.old.crt"], after["tls.old.key"]) == (before["tls.crt"], before["tls.key"])
    assert "tls.next.key" not in after
    for name in ("tls.key", "tls.old.key"):
        assert stat.S_IMODE((config.directory / name).stat().st_mode) == 0o600
    forget_old(config)
    assert files(config).keys() == before.keys()
    assert load_shown(config, NOW).certificate


@pytest.mark.parametrize(
    ("make", "words"), [BAD[name] for name in BAD if name not in {"no certificate", "without its key"}]
)
def test_a_bad_certificate_is_not_installed(
    config: Config, home: Path, make: Callable[[Path], Issued], words: str
) -> None:
    """Each for the key in use, so that only what is wrong with it is wrong."""
    issued = make(home)
    if words != "cannot be used together":
        write_secret(config.certificate_key, issued.key, replace=True)
    else:
        words = "for another key"
    before = files(config)
    with pytest.raises(ConfigError, match=words):
        install(config, issued.certificate, NOW)
    assert files(config) == before


def test_what_is_no_certificate_is_not_installed(config: Config) -> None:
    before = files(config)
    with pytest.raises(ConfigError, match="not a certificate in PEM form"):
        install(config, b"no", NOW)
    assert files(config) == before


def test_a_key_that_is_in_one_file_with_its_certificate_is_not_overwritten(
    config: Config, home: Path
) -> None:
    made = renewed(home, config)
    before = files(config)
    with pytest.raises(ConfigError, match="a file of its own"):
        install(replace(config, certificate=config.certificate_key), made, NOW)
    assert files(config) == before


def test_a_lost_certificate_and_a_lost_key_can_be_made_anew(config: Config, home: Path) -> None:
    path = config.path
    config.certificate.unlink()
    config.certificate_key.write_bytes(b"damaged")
    with pytest.raises(ConfigError):
        load(path)
    config = load(path, renewing=True)
    with pytest.raises(SecretError, match="--new-key"):
        own_key(config, new=False)
    install(config, renewed(home, config, new=True), NOW)
    assert load_shown(load(path), NOW).ends > NOW


# -- requests -----------------------------------------------------------------------------------------------------------------


def test_a_request_says_for_whom_and_which_key_and_no_secret(config: Config) -> None:
    key = own_key(config, new=False)
    data = make_request(config.broker, key)
    found = read_request(data, config.genesis)
    assert (found.broker, found.key) == (config.broker, load_key(key).public_key())
    assert b"PRIVATE" not in data
    assert len(fingerprint(found.key)) == 64


def test_a_request_that_cannot_be_trusted_is_refused(config: Config) -> None:
    key = own_key(config, new=False)
    stranger = replaced(config.broker, name="omega-1")
    with pytest.raises(IssueError, match="which is no broker"):
        read_request(make_request(stranger, key), config.genesis)
    for garbage in (b"", b"no", config.certificate.read_bytes()):
        with pytest.raises(IssueError, match="not a request"):
            read_request(garbage, config.genesis)
    request = x509.load_pem_x509_csr(make_request(config.broker, key))
    body = bytearray(request.public_bytes(Encoding.DER))
    body[-1] ^= 1  # in the signature
    forged = ssl.DER_cert_to_PEM_cert(bytes(body)).replace("CERTIFICATE", "CERTIFICATE REQUEST").encode()
    with pytest.raises(IssueError, match=r"damaged, or not signed|not a request"):
        read_request(forged, config.genesis)


def test_a_request_with_a_name_of_a_kind_that_nobody_uses_is_refused_with_a_sentence(config: Config) -> None:
    odd = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, bytes.fromhex("3002a300"))  # of X.400
    builder = x509.CertificateSigningRequestBuilder(x509.Name([])).add_extension(odd, critical=False)
    request = builder.sign(load_key(new_key()), hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(IssueError, match="not a request"):
        read_request(request, config.genesis)


@pytest.mark.parametrize("kind", [ec.SECP384R1()])
def test_only_keys_that_brokers_use_are_signed(config: Config, kind: ec.EllipticCurve) -> None:
    name = tls_name(config.broker.name, config.broker.organisation)
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    builder = x509.CertificateSigningRequestBuilder(x509.Name([])).add_extension(names, critical=False)
    request = builder.sign(ec.generate_private_key(kind), hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(IssueError, match="P-256"):
        read_request(request, config.genesis)


def test_a_certificate_ends_with_its_authority_at_the_latest() -> None:
    authority = create_authority("alpha", now=NOW, days=40)
    key = load_key(new_key()).public_key()
    made = certify(authority, "alpha-1", "alpha", key, now=NOW)
    assert expires(ssl.PEM_cert_to_DER_cert(made.decode())) == expires(authority.certificate)
    with pytest.raises(IssueError, match="fewer than 365 days"):
        certify(authority, "alpha-1", "alpha", key, now=NOW, days=365)
    with pytest.raises(IssueError, match="has ended"):
        certify(authority, "alpha-1", "alpha", key, now=NOW + 41 * DAY)
