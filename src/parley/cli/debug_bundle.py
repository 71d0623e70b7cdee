"""Collects a debug bundle: from each source what support needs, bounded, and never a file that holds a secret."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from parley.cli import debug_facts as facts
from parley.cli.contexts import Chosen
from parley.cli.debug_redact import clean, clean_lines, known_secrets, secret_in
from parley.cli.network import observing, run
from parley.client.administration import BrokerStatus
from parley.client.errors import ParleyError
from parley.consensus.committee import all_brokers
from parley.model.codec import by_name
from parley.model.genesis import Genesis
from parley.net.tls import Address
from parley.node.processes import LocalBroker, last_lines, local_brokers

if TYPE_CHECKING:  # an extra
    from parley.node.config import Config

MAX_ENTRY = 64 * 1024 * 1024
MAX_PAGE = 4 * 1024 * 1024  # of metrics
PAGE_SECONDS = 3.0
OUTPUT_BYTES = 256 * 1024
OLD_LOGS = 3
PAGES = ("metrics", "healthz", "readyz")

_README = """A debug bundle of Parley, made by `parley debug bundle`.

It holds versions, configuration, what brokers say of themselves, the ends of their logs, and facts about processes and files. It holds
names of organisations, brokers and clients, and addresses. It holds no key, no credential, nothing of the safety record's content and nothing
of the ledger: no message, no tag. Long values that could be keys are shortened to 8 characters. manifest.json has the hash of each file.
"""


@dataclass
class Bundle:
    """Named texts on their way into a file. What holds a known secret does not get in."""

    secrets: list[bytes]
    entries: dict[str, bytes] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, data: bytes) -> None:
        if secret_in(data, self.secrets):
            self.problems.append(
                f"{name} was left out: it holds a key or credential of this folder. Find out why."
            )
        elif len(data) > MAX_ENTRY:
            self.problems.append(f"{name} was left out: it has {len(data)} bytes.")
        else:
            self.entries[name] = data

    def take(self, name: str, source: Callable[[], bytes]) -> None:
        """What cannot be had is said, and the rest goes on: bundles are made when something is wrong."""
        try:
            self.add(name, source())
        except (OSError, ParleyError, ValueError, HTTPException) as error:
            self.problems.append(str(clean(f"{name} could not be had: {error}")))

    def take_json(self, name: str, source: Callable[[], object]) -> None:
        self.take(name, lambda: msgspec.json.format(msgspec.json.encode(source()), indent=2) + b"\n")

    def write(self, path: Path) -> None:
        """For its owner alone; an existing file stays."""
        files = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in self.entries.items()
        }
        manifest = {"format": "parley debug bundle 1", "files": files, "problems": self.problems}
        texts = {
            "README.txt": _README.encode(),
            "manifest.json": json.dumps(manifest, indent=2).encode(),
            **self.entries,
        }
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, data in texts.items():
                entry = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, io.BytesIO(data))


def collect(chosen: Chosen, genesis: Genesis, log_bytes: int) -> Bundle:
    """Everything there is to have of a network from here."""
    home = chosen.directory
    ours = [path for path in (chosen.file.identity, chosen.file.admin) if path is not None]
    ours += [key for broker in local_brokers(home, genesis) for key in _keys_of(broker)]
    bundle = Bundle(known_secrets(home, ours, public=genesis.chain))
    bundle.take_json("machine.json", facts.machine)
    bundle.take_json("network.json", lambda: _network(genesis))
    bundle.take_json("status.json", lambda: _statuses(chosen))
    bundle.take_json("secrets.json", lambda: facts.secret_files(home))
    for broker in local_brokers(home, genesis):
        _collect_broker(bundle, broker, log_bytes)
    return bundle


def _collect_broker(bundle: Bundle, broker: LocalBroker, log_bytes: int) -> None:
    where, folder = f"brokers/{broker.name}", broker.folder
    config, described = _configuration(broker.config)
    bundle.take_json(f"{where}/config.json", lambda: described)
    bundle.take_json(f"{where}/files.json", lambda: clean(facts.files(folder)))
    bundle.take_json(f"{where}/process.json", lambda: facts.process(broker.pid()))
    log = folder / "log.jsonl" if config is None else config.log_file
    if log is not None:
        bundle.take(f"{where}/log.jsonl", lambda: _log(log, log_bytes))
    bundle.take(f"{where}/output.log", lambda: _tail(folder / "output.log", OUTPUT_BYTES))
    if config is not None and config.metrics_listen is not None:
        for page in PAGES:
            bundle.take(f"{where}/{page}.txt", partial(_page, config.metrics_listen, page))


# -- sources --------------------------------------------------------------------------------------------------------


def _network(genesis: Genesis) -> dict[str, object]:
    """What the genesis file says, without keys and certificates: public ones, but of no use here."""
    return {
        "network": genesis.network,
        "chain": genesis.chain.hex(),
        "start_time": genesis.start_time,
        "depth": genesis.depth,
        "leaders": genesis.leaders,
        "allow_faults": genesis.allow_faults,
        "timeouts": genesis.timeouts,
        "limits": genesis.limits,
        "organisations": [organisation.name for organisation in genesis.organisations],
        "brokers": [
            {"name": broker.name, "organisation": broker.organisation, "address": broker.address}
            for broker in all_brokers(genesis)
        ],
    }


def _statuses(chosen: Chosen) -> object:
    async def asked() -> list[BrokerStatus]:
        async with observing(chosen) as client:
            return await client.status()

    return clean(
        [
            {
                "name": one.name,
                "organisation": one.organisation,
                "address": one.address,
                "problem": one.problem,
                # Without what readers say of themselves, which is nobody else's business.
                "status": None
                if one.status is None
                else by_name(msgspec.structs.replace(one.status, readers=())),
            }
            for one in run(asked())
        ]
    )


def _configuration(path: Path) -> tuple[Config | None, object]:
    """As the broker would read it, and as it is written if it would not."""
    from parley.node.config import BrokerFile, ConfigError, load  # noqa: PLC0415 - an extra

    try:
        config = load(path)
    except ConfigError as error:
        return None, clean({"problem": str(error), "written": _known(_written(path), BrokerFile)})
    # By kind and not by name: a key, or what is added later and nobody thought of here, is of none of these kinds.
    shown = {one.name: _shown(getattr(config, one.name)) for one in fields(config)}
    return config, clean({key: value for key, value in shown.items() if value is not None})


def _shown(value: object) -> object:
    match value:
        case Path() | Address():
            return str(value)
        case msgspec.Struct() if type(value).__module__ == "parley.node.broker_file":
            return msgspec.to_builtins(value)
        case tuple() if all(isinstance(item, str | Address) for item in value):
            return [str(item) for item in value]
        case _:
            return None


def _written(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def _known(table: dict[str, object], kind: type[msgspec.Struct]) -> dict[str, object]:
    """With the values of those keys only that there are: who knows what else somebody has put there."""
    kinds = {one.name: one.type for one in msgspec.structs.fields(kind)}
    shown: dict[str, object] = {}
    for name, value in table.items():
        inner = kinds.get(name)
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            shown[name] = _known(value, inner)
        else:
            shown[name] = "…" if inner is None else value
    return shown


def _keys_of(broker: LocalBroker) -> list[Path]:
    """Its keys, wherever its configuration says that they are."""
    written = _written(broker.config)
    named = (written.get(key) for key in ("consensus_key", "certificate_key"))
    return [broker.folder / name for name in named if isinstance(name, str)]


def _log(path: Path, limit: int) -> bytes:
    """The newest lines, also of the files before it."""
    lines: list[str] = []
    for place in (path, *(path.with_name(f"{path.name}.{age}") for age in range(1, OLD_LOGS + 1))):
        used = sum(len(line) + 1 for line in lines)
        if used < limit:
            lines = [*last_lines(place, limit, limit - used), *lines]
    return clean_lines(lines)


def _tail(path: Path, limit: int) -> bytes:
    return clean_lines(last_lines(path, limit, limit))


def _page(address: Address, page: str) -> bytes:
    """From the broker's own endpoint; one that listens everywhere is reached here."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - not listening
    connection = HTTPConnection(host, address.port, timeout=PAGE_SECONDS)
    try:
        connection.request("GET", f"/{page}")
        answer = connection.getresponse()
        text = answer.read(MAX_PAGE).decode(errors="replace")
    finally:
        connection.close()
    return clean_lines([f"# HTTP {answer.status}", *text.splitlines()])
