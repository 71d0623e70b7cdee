"""Machines with a network between them, made of the kernel's namespaces: an address, a host name, processes and files each.

What a machine writes to its system folders lies in memory and is seen by that machine only, so commands of a guide can
add users and install services. Everything ends with the process that made it, even if that is killed: a machine lives
as long as its first process, which waits for the end of its standard input.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

__all__ = ["SECONDS", "Ended", "Lan", "Machine", "why_not"]

SECONDS = 180.0  # longer than any command takes: running out of it is a failure
PREFIX = 24  # bits of an address that all machines share
TOOLS = {"ip": "iproute2", "ss": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
TOOLS |= {
    "curl": "curl",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
    "useradd": "passwd",
    "bash": "bash",
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# $1: an empty folder. The system folders are the real ones with a layer in memory above them.
_LAYERS = """
mount -t tmpfs -o mode=755 tmpfs "$1"
for folder in /etc /home /opt /root /usr/local /var/lib; do
  mkdir -p "$1$folder/above" "$1$folder/work"
  mount -t overlay -o "lowerdir=$folder,upperdir=$1$folder/above,workdir=$1$folder/work" overlay "$folder"
done
"""
_MACHINE = _LAYERS + 'hostname "$2"\nip link set lo up\necho ready\nexec cat\n'
_SWITCH = "ip link add switch type bridge\nip link set switch up\necho ready\nexec cat\n"
# $2: the Python of these tests, which brokers need, too; they do not run as root.
_PROBE = f"""{_LAYERS}
ip link add one type bridge
ip link add two type veth peer name three
setpriv --reuid=65534 --regid=65534 --clear-groups "$2" -c "import rocksdict"
echo ready
"""
_SYSTEM = ("--mount", "--net", "--uts", "--pid", "--mount-proc")


def why_not(folder: Path) -> str | None:
    """Why machines cannot be made here, in words for whoever runs the tests; None: they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "four machines are made of Linux namespaces, which needs root: run this test with sudo"
    for tool, package in TOOLS.items():
        if shutil.which(tool, path=PATH) is None:
            return f"four machines are made with {tool}, which is not installed: apt-get install {package}"
    probe = subprocess.run(
        _unshared(_SYSTEM, _PROBE, folder, sys.executable),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if probe.stdout != "ready\n":
        return (
            f"no machine with a network, files and users of its own can be made here: {probe.stderr.strip()}"
        )
    return None


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


class Machine:
    """One host. Its first process does nothing; commands are run beside it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._first = _started(_unshared(_SYSTEM, _MACHINE, folder, name))

    @property
    def pid(self) -> int:
        """A process of this machine, as the others see it."""
        return self._first.pid

    def path(self, inside: str) -> Path:
        """Where a file of this machine is for the test."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def run(self, text: str, *, user: str = "root", home: str = "/root", code: int | None = 0) -> Ended:
        """What a shell of this user makes of a line; `code` is how it must end."""
        process = self.start(text, user=user, home=home)
        out, err = process.communicate(timeout=SECONDS)
        ended = Ended(process.returncode, out.decode(), err.decode())
        assert code is None or ended.code == code, f"{self.name}: {text}\n{ended.out}\n{ended.err}"
        return ended

    def start(self, text: str, *, user: str = "root", home: str = "/root") -> subprocess.Popen[bytes]:
        """The same, without waiting for its end."""
        shell = ["bash", "-euo", "pipefail", "-c", f"cd {home}\n{text}"]
        # Only the one who installs sees the Python that the tests run with.
        path = f"{Path(sys.executable).parent}:{PATH}" if user == "root" else PATH
        environment = {"HOME": home, "PATH": path, "LANG": "C.UTF-8", "COLUMNS": "200", **_PIP}
        who = [] if user == "root" else ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        return self.spawn([*who, *shell], environment)

    def spawn(self, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        inside = ["--mount", "--net", "--uts", f"--pid=/proc/{self.pid}/ns/pid_for_children"]
        return subprocess.Popen(
            ["nsenter", f"--target={self.pid}", *inside, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
        )

    def stop(self) -> None:
        """As when the power fails."""
        _end(self._first)


class Lan:
    """Machines on one switch. Use it as a context, so that none is left over."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        with ExitStack() as failing:
            self._switch = _started(_unshared(("--net",), _SWITCH, folder))
            failing.callback(_end, self._switch)
            self.machines: dict[str, Machine] = {}
            for name, address in addresses.items():
                (folder / name).mkdir()
                self.machines[name] = Machine(name, folder / name)
                failing.callback(self.machines[name].stop)
                self._plug(self.machines[name], address)
            self._closing = failing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()

    @contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """Without the cable of this machine; its processes go on."""
        self._at_switch("link", "set", name, "down")
        try:
            yield
        finally:
            self._at_switch("link", "set", name, "up")

    def _plug(self, machine: Machine, address: str) -> None:
        cable = ["type", "veth", "peer", "name", "eth0", "netns", str(machine.pid)]
        self._at_switch("link", "add", machine.name, *cable)
        self._at_switch("link", "set", machine.name, "master", "switch", "up")
        machine.run(f"ip address add {address}/{PREFIX} dev eth0 && ip link set eth0 up")

    def _at_switch(self, *words: str) -> None:
        command = ["nsenter", f"--target={self._switch.pid}", "--net", "ip", *words]
        subprocess.run(command, check=True, timeout=SECONDS)


# There is no index to install from: what a wheel needs is there already, and pip is to see that it is.
_PIP = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def _unshared(kinds: Sequence[str], script: str, *arguments: Path | str) -> list[str]:
    shell = ["sh", "-euc", script, "sh", *map(str, arguments)]
    return ["unshare", *kinds, "--fork", "--kill-child", "--", *shell]


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    """A process that has said that it is ready, and ends when its input does."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        _end(process)
        pytest.fail("a machine did not start, though a probe did")
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # with its first process all others of a machine end, too
    process.communicate()
