"""The brokers of a local network as processes: which ones run, starting them, and stopping them by their id."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from parley.consensus.committee import all_brokers
from parley.crypto.hashing import digest
from parley.model.genesis import Genesis

HOST = "127.0.0.1"
PORTS = range(7_101, 32_000)  # below those that the system gives to outgoing connections
TAIL_BYTES = 4_096
STOP_SECONDS = 15.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class LocalBroker:
    """One broker of a folder. Its process is told by its pid file and its command line together."""

    name: str
    organisation: str
    folder: Path
    address: str

    @property
    def config(self) -> Path:
        return self.folder / "broker.toml"

    def pid(self) -> int | None:
        """The id of the running process; None if there is none. Ids are used again, so the file alone proves nothing."""
        try:
            pid = int((self.folder / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if self.runs_as(pid) else None

    def runs_as(self, pid: int) -> bool:
        """Whether the process of this id is this broker, whatever its pid file says."""
        return str(self.config.resolve()) in _command_line(pid)

    def start(self) -> subprocess.Popen[bytes]:
        """A process of its own session, so that it survives this command and its terminal.

        Its modules (-P) are those of this command, and not what may lie in the folder in which that was typed.
        """
        with open(self.folder / "output.log", "wb", opener=_no_link) as sink:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", "parley.node", str(self.config.resolve())],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        (self.folder / "pid").write_text(f"{process.pid}\n")
        return process

    def tail(self, lines: int = 8) -> str:
        """The last words of its output, or else of its log: for a person who wonders why it ended."""
        for name in ("output.log", "log.jsonl"):
            if found := last_lines(self.folder / name, lines):
                return "\n".join(f"  {line}" for line in found)
        return "  (it said nothing)"


def local_brokers(directory: Path, genesis: Genesis) -> list[LocalBroker]:
    """The brokers of the network that this folder can run."""
    found = [
        LocalBroker(broker.name, broker.organisation, directory / "brokers" / broker.name, broker.address)
        for broker in all_brokers(genesis)
    ]
    return [broker for broker in found if broker.config.is_file()]


def brokers_of(directory: Path) -> list[LocalBroker]:
    """The same, from the folder alone: enough to stop them, whatever has become of the genesis file."""
    folders = sorted(config.parent for config in directory.glob("brokers/*/broker.toml"))
    return [LocalBroker(folder.name, "", folder, "") for folder in folders]


def stop(brokers: Iterable[LocalBroker], seconds: float = STOP_SECONDS) -> tuple[list[str], list[str]]:
    """Ask all to stop, then wait; who does not stop in time is killed. Returns who stopped and who had to be killed."""
    running = {broker: pid for broker in brokers if (pid := broker.pid()) is not None}
    stopped = [broker.name for broker in running]
    _send(running.values(), signal.SIGTERM)
    deadline = time.monotonic() + seconds
    # A broker removes its pid file before it closes its store, so the file says nothing about the process.
    while alive := [broker for broker, pid in running.items() if broker.runs_as(pid)]:
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    _send([running[broker] for broker in alive], signal.SIGKILL)
    for broker in running:
        (broker.folder / "pid").unlink(missing_ok=True)
    return stopped, [broker.name for broker in alive]


def free_addresses(count: int, home: Path) -> list[str]:
    """Loopback addresses where nobody listens now.

    Where the search begins depends on the folder: networks in different folders rarely want each other's ports, even
    while some of their brokers do not run.
    """
    begin = int.from_bytes(digest("local/ports", os.fsencode(home.absolute()))[:4], "big") % len(PORTS)
    addresses = (f"{HOST}:{port}" for port in itertools.chain(PORTS[begin:], PORTS[:begin]))
    return list(itertools.islice(filter(is_free, addresses), count))


def is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


def last_lines(path: Path, lines: int, limit: int = TAIL_BYTES) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            found = file.read(limit).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    # The first line is torn if the file is longer than what was read.
    return found[1:][-lines:] if size > limit else found[-lines:]


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has ended by itself
            continue


def _command_line(pid: int) -> str:
    """Empty for a process that does not exist, or has ended and waits for its parent."""
    proc = Path("/proc")
    if (proc / "self").exists():
        try:
            return (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return ""
    return subprocess.run(  # noqa: S603
        ["ps", "-ww", "-o", "args=", "-p", str(pid)],  # noqa: S607 - where there is no /proc, ps is part of the system
        capture_output=True,
        check=False,
        text=True,
    ).stdout
