"""As much of systemd as a machine of a test needs: reads a unit, and runs its service with the limits that it asks for."""

from __future__ import annotations

import shlex
import subprocess
from collections import defaultdict

from tests.ops.namespaces import PATH, SECONDS, Machine

__all__ = ["Services", "Unit", "read_unit"]

Unit = dict[str, list[str]]  # values by key; a key that is repeated has several

# $1: what it may write; the others: what it may not even read. All else is read-only. Its process id comes first.
_SANDBOX = """
mount --bind "$1" "$1"
shift
while [ "$1" != -- ]; do
  if [ -e "$1" ]; then mount -t tmpfs -o ro,mode=000 tmpfs "$1"; fi
  shift
done
shift
for folder in /etc /home /opt /root /usr/local /var/lib /; do mount -o remount,bind,ro "$folder"; done
echo $$
exec "$@"
"""


def read_unit(text: str, instance: str) -> Unit:
    """The keys of all sections, which have different names in a service, with `%i` filled in."""
    unit: Unit = defaultdict(list)
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            unit[key].append(value.replace("%i", instance))
    return dict(unit)


class Services:
    """Stands in for `systemctl` on one machine. A service that ends is not started again: a test wants to see it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._running: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}

    def systemctl(self, command: str) -> None:
        match shlex.split(command)[1:]:
            case ["daemon-reload"]:
                pass
            case ["enable", "--now", name] | ["start", name]:
                self._start(name)
            case ["stop", name]:
                assert self.stop(name) == 0
            case ["restart", name]:
                assert self.stop(name) == 0
                self._start(name)
            case ["reload", name]:
                self._machine.run(self.unit(name)["ExecReload"][0].replace("$MAINPID", str(self.pid(name))))
            case _:
                raise AssertionError(f"nobody has said what `{command}` does")

    def unit(self, name: str) -> Unit:
        template, _, instance = name.partition("@")
        path = self._machine.path(f"/etc/systemd/system/{template}@.service")
        return read_unit(path.read_text(), instance)

    def pid(self, name: str) -> int:
        """Of the service's process, as its machine counts."""
        return self._running[name][0]

    def stop(self, name: str) -> int:
        """Its exit code."""
        pid, process = self._running.pop(name)
        self._machine.run(f"kill -TERM {pid}")
        process.communicate(timeout=SECONDS)
        return process.returncode

    def _start(self, name: str) -> None:
        unit = self.unit(name)
        closed = [path.removeprefix("-") for path in unit["InaccessiblePaths"][0].split()]
        files, user, group = (unit[key][0] for key in ("LimitNOFILE", "User", "Group"))
        limited = ["prlimit", f"--nofile={files}:{files}", "setpriv", f"--reuid={user}", f"--regid={group}"]
        limited += ["--init-groups", "--no-new-privs", "--bounding-set=-all"]
        sandbox = ["unshare", "--mount", "sh", "-euc", f"umask {unit['UMask'][0]}\n{_SANDBOX}", "sh"]
        started = [
            *sandbox,
            *unit["ReadWritePaths"],
            *closed,
            "--",
            *limited,
            *shlex.split(unit["ExecStart"][0]),
        ]
        process = self._machine.spawn(started, {"PATH": PATH})
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.strip().isdigit(), process.communicate(timeout=SECONDS)
        self._running[name] = (int(said), process)
