"""A broker's configuration file, checked as a whole before anything starts: what is wrong is named with file and key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from parley.consensus.committee import Committee, MemberKey, all_brokers, committees_of
from parley.model.genesis import MAX_GENESIS, Broker, Genesis, GenesisError, decode_genesis
from parley.net.tls import Address, AddressError, ContextError, load_certificate, tls_name
from parley.node.broker_file import (
    BrokerFile,
    ConfigError,
    Limits,
    LogSettings,
    Metrics,
    Ordering,
    Storage,
    Workers,
    converted,
    one_of,
    quoted,
    read_toml,
    unknown,
)
from parley.node.faults.settings import read_faults
from parley.node.faults.switches import FaultError, checked
from parley.node.keys import check_tls_key, read_seed
from parley.node.secrets import SecretError

__all__ = [
    "BrokerFile",
    "Config",
    "ConfigError",
    "Limits",
    "LogPlace",
    "load",
    "log_place",
    "path_of",
    "reload_faults",
]

LOOPBACK = "127.0.0.1"

T = TypeVar("T")


@dataclass(frozen=True)
class LogPlace:
    """Where a broker's log goes."""

    path: Path  # of the configuration
    broker: str
    settings: LogSettings
    file: Path | None  # None: standard error


@dataclass(frozen=True)
class Config:
    """A configuration that was checked: every file it names was found and fits the others.

    `shard` is the one, of those that the broker is a member of, whose committee and files are meant; see `of_shard`.
    """

    path: Path
    genesis: Genesis
    place: int  # of the broker among all of the network
    committees: tuple[Committee, ...]  # of all shards
    shard: int
    listen: Address
    addresses: tuple[Address, ...]  # of all brokers, in the order of the genesis file
    consensus_key: MemberKey
    certificate: Path
    certificate_key: Path
    data_of_first: Path  # of shard 0; see `path_of`
    safety_of_first: Path
    faults: tuple[str, ...]  # that it shows on purpose
    limits: Limits
    storage: Storage
    ordering: Ordering
    workers: Workers
    log: LogSettings
    log_file: Path | None
    metrics: Metrics
    metrics_listen: Address | None

    @property
    def broker(self) -> Broker:
        return self.brokers[self.place]

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """All brokers of the network, to which `place` and `addresses` refer."""
        return all_brokers(self.genesis)

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards of which this broker is a member."""
        return tuple(one.shard for one in self.committees if one.index_of(self.broker.name) is not None)

    @property
    def neighbours(self) -> frozenset[str]:
        """The other brokers that are members of one of these shards."""
        return frozenset(
            name for shard in self.shards for name in self.committees[shard].names if name != self.broker.name
        )

    def of_shard(self, shard: int) -> Config:
        """The configuration with the committee and the files of another of these shards."""
        assert shard in self.shards, f"{self.broker.name} is no member of shard {shard}"
        return replace(self, shard=shard)

    def chosen(self, shard: int | None) -> Config:
        """The configuration of the shard that a command names; None: of the only one. Raises `ConfigError`."""
        if shard is None and len(self.shards) == 1:
            return self
        if shard not in self.shards:
            numbers = ", ".join(map(str, self.shards))
            asked = "name one with --shard" if shard is None else f"--shard {shard} is none of them"
            problem = f"{self.broker.name} is a member of these shards: {numbers}; {asked}"
            raise ConfigError(self.path, "", problem)
        return self.of_shard(shard)

    @property
    def committee(self) -> Committee:
        """The members of the shard."""
        return self.committees[self.shard]

    @property
    def index(self) -> int:
        """The broker's place in that committee."""
        index = self.committee.index_of(self.broker.name)
        assert index is not None, "a broker has the files of its own shards"
        return index

    @property
    def data(self) -> Path:
        """The folder of the shard's store."""
        return path_of(self.data_of_first, self.shard)

    @property
    def safety(self) -> Path:
        """The safety record of the broker in the shard."""
        return path_of(self.safety_of_first, self.shard)

    @property
    def directory(self) -> Path:
        return self.path.parent

    @property
    def log_place(self) -> LogPlace:
        return LogPlace(self.path, self.broker.name, self.log, self.log_file)

    @property
    def tls_name(self) -> str:
        """The name in this broker's certificate."""
        return tls_name(self.broker.name, self.broker.organisation)

    @property
    def authority(self) -> bytes:
        """What this broker's organisation certifies its brokers with, DER."""
        organisation = self.genesis.organisation(self.broker.organisation)
        assert organisation is not None, "a genesis file is consistent"
        return organisation.tls_ca


def path_of(first: Path, shard: int) -> Path:
    """The path of a shard's file: the configured one for shard 0, with `-` and the number for the others."""
    return first if shard == 0 else first.with_name(f"{first.name}-{shard}")


def load(path: Path, *, renewing: bool = False) -> Config:
    """Read and check a broker's configuration. Raises `ConfigError`, and nothing else, for whatever is wrong with it.

    `renewing`: the certificate and its key are not looked at, because they are about to be replaced.
    """
    return _Loader(path, converted(path, "", BrokerFile, read_toml(path))).config(renewing=renewing)


def log_place(path: Path) -> LogPlace:
    """Where the log goes of a broker whose configuration cannot be used, as far as that can be read. Raises `ConfigError`."""
    table = read_toml(path)
    log = table.get("log")
    settings = converted(path, "log.", LogSettings, log if isinstance(log, dict) else {})
    if "\0" in settings.file:
        raise ConfigError(path, "log.file", f"expected a path, got {quoted(settings.file)}")
    file = path.parent / settings.file if settings.file else None
    return LogPlace(path, str(table.get("broker", path.parent.name)), settings, file)


def reload_faults(config: Config) -> tuple[str, ...]:
    """What the file says of faults now; nothing else of it is read again. Raises `ConfigError`."""
    try:
        return _allowed(config.path, config.genesis, read_faults(config.path))
    except (FaultError, OSError) as error:
        raise ConfigError(config.path, "faults", str(error)) from error


def _allowed(path: Path, genesis: Genesis, faults: tuple[str, ...]) -> tuple[str, ...]:
    if faults and not genesis.allow_faults:
        raise ConfigError(path, "faults", "none may be set: this network was made without --allow-faults")
    return faults


class _Loader:
    """Follows what the file names; relative paths start at the file."""

    def __init__(self, path: Path, file: BrokerFile) -> None:
        self._path = path
        self._file = file

    def config(self, *, renewing: bool) -> Config:
        file = self._file
        genesis = self._checked("genesis", self._genesis)
        place, committees = self._find_place(genesis), committees_of(genesis)
        broker = all_brokers(genesis)[place]
        key = self._checked(
            "consensus_key", lambda: MemberKey.from_seed(read_seed(self._place("consensus_key")))
        )
        if key.public != broker.key:
            raise self._wrong(
                "consensus_key",
                f"is not the key that the genesis file names for {file.broker}; {self._place('consensus_key')} is damaged or another's",
            )
        if not renewing:
            self._checked("certificate_key", lambda: check_tls_key(self._place("certificate_key")))
            self._checked("certificate", lambda: load_certificate(self._place("certificate")))
        return Config(
            path=self._path,
            genesis=genesis,
            place=place,
            committees=committees,
            shard=next(one.shard for one in committees if one.index_of(broker.name) is not None),
            listen=self._checked("listen", lambda: _listening(file.listen)),
            addresses=self._addresses(genesis),
            consensus_key=key,
            certificate=self._place("certificate"),
            certificate_key=self._place("certificate_key"),
            data_of_first=self._place("data"),
            safety_of_first=self._place("safety"),
            faults=_allowed(self._path, genesis, self._checked("faults", lambda: checked(file.faults))),
            limits=self._limits(),
            storage=file.storage,
            ordering=file.ordering,
            workers=file.workers,
            log=file.log,
            log_file=self._resolved("log.file", file.log.file) if file.log.file else None,
            metrics=file.metrics,
            metrics_listen=self._checked("metrics.listen", lambda: _watched(file.metrics.listen)),
        )

    def _genesis(self) -> Genesis:
        with self._place("genesis").open("rb") as file:
            return decode_genesis(file.read(MAX_GENESIS + 1))

    def _find_place(self, genesis: Genesis) -> int:
        names = [broker.name for broker in all_brokers(genesis)]
        if self._file.broker not in names:
            raise self._wrong("broker", f"expected {one_of(names)}, got {quoted(self._file.broker)}")
        return names.index(self._file.broker)

    def _addresses(self, genesis: Genesis) -> tuple[Address, ...]:
        names, peers = [broker.name for broker in all_brokers(genesis)], self._file.peers
        for name in peers:
            if name not in names:
                raise self._wrong("peers", unknown(name, names))
        return tuple(
            self._checked(
                f"peers.{broker.name}" if broker.name in peers else "genesis",
                partial(Address.parse, peers.get(broker.name, broker.address)),
            )
            for broker in all_brokers(genesis)
        )

    def _limits(self) -> Limits:
        limits = self._file.limits
        if limits.connections_per_address > limits.connections:
            raise self._wrong(
                "limits.connections_per_address",
                f"expected at most limits.connections, which is {limits.connections}, got {limits.connections_per_address}",
            )
        return limits

    def _place(self, key: str) -> Path:
        return self._resolved(key, getattr(self._file, key))

    def _resolved(self, key: str, text: str) -> Path:
        if "\0" in text:
            raise self._wrong(key, f"expected a path, got {quoted(text)}")
        return self._path.parent / text

    def _checked(self, key: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as error:
            raise self._wrong(key, f"{error.filename} cannot be read: {error.strerror}") from error
        except GenesisError as error:
            raise self._wrong(key, f"{self._place('genesis')} is not a genesis file: {error}") from error
        except (SecretError, ContextError, AddressError, FaultError) as error:
            raise self._wrong(key, str(error)) from error

    def _wrong(self, key: str, problem: str) -> ConfigError:
        return ConfigError(self._path, key, problem)


def _watched(text: str) -> Address | None:
    """Where numbers are told: they are told in clear, so only to this machine unless the file says otherwise."""
    if not text:
        return None
    port = text.removeprefix(":")
    return _listening(f"{LOOPBACK}:{port}" if port.isascii() and port.isdigit() else text)


def _listening(text: str) -> Address:
    """Like any address, but port 0 means any free one."""
    if text.endswith(":0"):
        return Address(Address.parse(text[:-1] + "1").host, 0)
    return Address.parse(text)
