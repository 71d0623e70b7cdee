"""A new certificate for a broker, put in place of the old one while it runs.

The new files are checked as the broker will check them, before anything is replaced; the old ones lie beside them until
the broker shows the new certificate.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from parley.net.tls import Address, ConnectError, client_context, connect
from parley.node.admin.client import NotListening, reload
from parley.node.certificates import UNREADABLE, IssueError, load_key, new_key
from parley.node.config import Config, ConfigError
from parley.node.processes import LocalBroker
from parley.node.secrets import SecretError, read_secret, write_secret
from parley.node.shown import Shown, load_shown
from parley.store.folders import sync_directory

NEXT, OLD = "next", "old"
POLL_SECONDS = 0.1
CONFIRM_SECONDS = 15.0  # for a running broker to show what it was told to show
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where it listens is not where it is called


def own_key(config: Config, *, new: bool) -> bytes:
    """The secret that a certificate is to be for: the one in use, or one that waits beside it for its certificate."""
    path = _beside(config.certificate_key, NEXT) if new else config.certificate_key
    if new and not path.exists():
        write_secret(path, new_key())
    data = read_secret(path)
    try:
        load_key(data)
    except IssueError as error:
        raise SecretError(path, f"{error}; get a new one with --new-key") from error
    return data


def install(config: Config, certificate: bytes, now: int) -> Shown:
    """Put a certificate, in PEM form, where the broker looks for it, and with it the key that it is for.

    Raises `ConfigError` or `SecretError`, and has changed nothing then.
    """
    if config.certificate == config.certificate_key:
        raise ConfigError(
            config.path, "certificate", "it is in one file with its key; give each a file of its own first"
        )
    candidate = _beside(config.certificate, NEXT)
    key = _key_of(config, certificate)
    write_secret(candidate, certificate, replace=True)
    try:
        shown = load_shown(replace(config, certificate=candidate, certificate_key=key), now)
    except ConfigError:
        candidate.unlink()
        raise
    # A broker that starts between the two replacements finds a key that does not fit, and says so. Only a new key
    # needs two of them.
    pairs = [(candidate, config.certificate)]
    if key != config.certificate_key:
        pairs.insert(0, (key, config.certificate_key))
    for _, old in pairs:
        if old.exists():
            write_secret(_beside(old, OLD), old.read_bytes(), replace=True)
    for new, old in pairs:
        new.replace(old)
    for folder in {old.parent for _, old in pairs}:
        sync_directory(folder)
    return shown


def tell(config: Config) -> int | None:
    """Have the broker take its certificate from the files; the id of its process, None if it does not run on this machine.

    Raises `AdminError` if it refuses, and says why.
    """
    try:
        return reload(config.directory).pid
    except NotListening:  # if it is starting it reads them anyway
        return LocalBroker(config.broker.name, config.broker.organisation, config.directory, "").pid()


async def confirm(config: Config, shown: Shown, seconds: float = CONFIRM_SECONDS) -> str:
    """Connect until the broker shows this certificate. Empty if it does, otherwise what it does instead."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while (problem := await _seen(config, shown)) and loop.time() < deadline:  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(POLL_SECONDS)
    return problem


def old_files(config: Config) -> list[Path]:
    """What was replaced and is still there."""
    paths = (config.certificate, config.certificate_key)
    return [old for path in paths if (old := _beside(path, OLD)).exists()]


def forget_old(config: Config) -> None:
    """The broker shows the new certificate: nobody needs the old one any more."""
    for path in old_files(config):
        path.unlink()


async def _seen(config: Config, shown: Shown) -> str:
    try:
        address = Address.parse(_address_file(config).read_text("ascii").strip())
        address = replace(address, host=_EVERYWHERE.get(address.host, address.host))
        context = client_context(config.authority)
        stream = await connect(address, context, config.tls_name, timeout=CONFIRM_SECONDS)
    except (OSError, ValueError):
        return "it does not listen yet"
    except ConnectError as error:
        return str(error)
    found = stream.peer_certificate
    await stream.wait_closed()
    return "" if found == shown.certificate else "it shows another certificate"


def _key_of(config: Config, certificate: bytes) -> Path:
    """The file of the key that the certificate is for."""
    try:
        wanted = x509.load_pem_x509_certificate(certificate).public_key()
    except UNREADABLE:
        raise ConfigError(
            config.path, "certificate", "what was given is not a certificate in PEM form"
        ) from None
    for path in (config.certificate_key, _beside(config.certificate_key, NEXT)):
        try:
            if load_pem_private_key(read_secret(path), None).public_key() == wanted:
                return path
        except (SecretError, ValueError, TypeError, UnsupportedAlgorithm):
            continue  # it is not there, or damaged: then the other one must fit
    raise ConfigError(
        config.path,
        "certificate",
        f"it is for another key than {config.certificate_key}, and nothing was changed: ask for one with `parley node "
        f"request {config.broker.name}`",
    )


def _address_file(config: Config) -> Path:
    return config.directory / "address"


def _beside(path: Path, word: str) -> Path:
    """Under a name that ends like the other, so that whatever keeps keys private keeps this one private, too."""
    return path.with_name(f"{path.stem}.{word}{path.suffix}")
