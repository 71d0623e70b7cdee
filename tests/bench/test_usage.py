"""What a process has used is counted with its threads and children, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from parley.bench.usage import Usage, filesystem, usage, used

BUSY = "import time\nwhile time.process_time() < 0.3: pass\n"
# Tells that it is done, and lives on until it is told to end.
DONE = "print(flush=True); input()"
CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}]); {DONE}"
LIVING_CHILD = (
    f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {BUSY + DONE!r}], stdout=-1, stdin=-1); "
    f"p.stdout.readline(); {DONE}; p.communicate(b'\\n')"
)


def work() -> None:
    begin = time.thread_time()
    while time.thread_time() - begin < 0.3:
        pass


def test_threads_are_counted() -> None:
    before = usage(os.getpid())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    after = usage(os.getpid())
    assert used({"me": before}, {"me": after})["me"] >= 250_000
    assert after.rss > 1_000_000


def cpu_of(program: str) -> int:
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = usage(process.pid)
        process.communicate(b"\n")
    assert usage(process.pid) == Usage(0, 0)
    return found.cpu_us


def test_children_are_counted_whether_they_have_ended_or_not() -> None:
    idle, ended, living = cpu_of(DONE), cpu_of(CHILD), cpu_of(LIVING_CHILD)
    assert ended >= idle + 200_000
    assert living >= idle + 200_000


def test_the_kind_of_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    assert filesystem(Path("/proc/self")) == "proc"
    assert filesystem(tmp_path) not in {"proc", "unknown"}
