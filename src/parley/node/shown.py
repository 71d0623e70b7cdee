"""The certificate that a broker shows, to whoever comes in and to the brokers that it dials, and its change while it runs.

A connection keeps the certificate of its handshake for as long as it lasts; only new ones get a new one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from parley.net.frames import reason_of
from parley.net.tls import (
    ContextError,
    certificate_hash,
    load_certificate,
    peer_context,
    server_context,
)
from parley.node.certificates import PeerFault, PeerRefused, expires, identify_peer
from parley.node.config import Config, ConfigError
from parley.node.keys import check_tls_key
from parley.node.logs import Log
from parley.node.secrets import SecretError, read_secret

DAY_MS = 86_400_000
WARNING_MS = 30 * DAY_MS  # before a certificate ends
AUTHORITY_WARNING_MS = 365 * DAY_MS  # the genesis file names the authority, so a new one means a new network
FLIGHTS = 3  # of a handshake: the dialler's, the broker's, and the dialler's proof


@dataclass(frozen=True)
class Shown:
    """A certificate that was checked, and what it takes to open connections with it."""

    certificate: bytes  # DER
    server: ssl.SSLContext
    peers: Mapping[str, ssl.SSLContext]  # by the organisation that is dialled

    @property
    def hash(self) -> bytes:
        """What clients sign when they are shown it (P4)."""
        return certificate_hash(self.certificate)

    @property
    def ends(self) -> int:
        """In milliseconds since 1970."""
        return expires(self.certificate)


def load_shown(config: Config, now: int) -> Shown:
    """What the files hold now. Raises `ConfigError` unless every other broker and every client would accept it."""
    try:
        before = _read(config)
        check_tls_key(config.certificate_key)
        certificate = load_certificate(config.certificate)
        _require_own(config, certificate, now)
        shown = Shown(certificate, *_contexts(config))
        _require_unchanged(config, before)
        _rehearse(config, shown)
    except SecretError as error:
        raise ConfigError(config.path, "certificate_key", str(error)) from error
    except ContextError as error:
        raise ConfigError(config.path, "certificate", str(error)) from error
    return shown


class Showing:
    """What this broker shows now. `changed` is told when that is something new."""

    def __init__(self, config: Config, log: Log, now: Callable[[], int]) -> None:
        self._config = config
        self._log = log
        self._now = now
        self.current = load_shown(config, now())
        self.changed: Callable[[Shown], None] = lambda _: None
        self.authority_ends = expires(config.authority)

    def reload(self) -> str:
        """Show the certificate that is in the files now. If it is of no use, keep the old one and return why."""
        try:
            found = load_shown(self._config, self._now())
        except ConfigError as error:
            until = date(self.current.ends)
            self._log.error("certificate_refused", why=str(error), until=until)
            return f"The certificate that is in use stays, until {until}: {error}."
        if found.certificate != self.current.certificate:
            self.current = found
            self.changed(found)
            self._log.info("certificate_renewed", until=date(found.ends))
        return ""

    def expiry(self, now: int) -> str:
        """What to tell an operator whose certificate, or whose organisation's authority, ends soon."""
        words = []
        broker = self._config.broker
        if (left := self.current.ends - now) < WARNING_MS:
            words.append(
                f"The certificate of this broker {_ends(left)}; without a new one no other broker and no client can reach it. "
                f"Run `parley node renew {broker.name}`."
            )
        if (left := self.authority_ends - now) < AUTHORITY_WARNING_MS:
            words.append(
                f"The certificate authority of {broker.organisation} {_ends(left)}, and with it all certificates of its brokers. "
                f"The genesis file names it, so that it cannot be renewed: plan a new network."
            )
        return " ".join(words)


def date(moment: int) -> str:
    """A time in ms since 1970, for people."""
    return f"{datetime.fromtimestamp(moment // 1_000, UTC):%Y-%m-%d %H:%M} UTC"


def _ends(left: int) -> str:
    if left <= 0:
        return "has ended"
    return f"ends in {left // DAY_MS} days" if left >= 2 * DAY_MS else f"ends in {left // 3_600_000} hours"


def _read(config: Config) -> tuple[bytes, bytes]:
    try:
        return config.certificate.read_bytes(), read_secret(config.certificate_key)
    except OSError as error:
        raise ContextError(
            f"the certificate file {config.certificate} cannot be read: {error.strerror}"
        ) from error


def _require_unchanged(config: Config, before: tuple[bytes, bytes]) -> None:
    """OpenSSL reads the files by itself, one context after another, while somebody may be replacing them."""
    if _read(config) != before:
        raise ContextError(f"{config.certificate} or its key was replaced while it was read")


def _require_own(config: Config, certificate: bytes, now: int) -> None:
    """What other brokers would refuse is said here, where it can be mended."""
    try:
        found = identify_peer(certificate, {config.tls_name: config.authority}, now=now)
        assert found == config.tls_name
    except PeerRefused as refused:
        mend = f". Run `parley node renew {config.broker.name}`" if refused.fault is PeerFault.EXPIRED else ""
        raise ConfigError(
            config.path, "certificate", f"other brokers would refuse this broker: {refused.fault.value}{mend}"
        ) from None


def _contexts(config: Config) -> tuple[ssl.SSLContext, dict[str, ssl.SSLContext]]:
    certificate, key = config.certificate, config.certificate_key
    authorities = {one.name: one.tls_ca for one in config.genesis.organisations}
    return (
        server_context(certificate, key, list(authorities.values())),
        {name: peer_context(certificate, key, ca) for name, ca in authorities.items()},
    )


def _rehearse(config: Config, shown: Shown) -> None:
    """Shake hands with oneself, in memory: whatever OpenSSL would say to the others is heard here first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = shown.peers[config.broker.organisation]
    dialler = context.wrap_bio(outgoing, incoming, server_hostname=config.tls_name)
    server = shown.server.wrap_bio(incoming, outgoing, server_side=True)
    try:
        for _ in range(FLIGHTS):
            for side in (dialler, server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLError as error:
        raise ContextError(
            f"no connection can be opened with {config.certificate}: {reason_of(error)}"
        ) from error
    seen = {dialler.getpeercert(binary_form=True), server.getpeercert(binary_form=True)}
    assert seen == {shown.certificate}, "what was read is what is shown"
