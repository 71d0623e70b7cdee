"""`python -m parley.node CONFIG` runs a broker; what keeps it from starting is one sentence and exit code 2.

So is the loss of its folder while it runs: if it were started again by itself, it would go on from whatever lies there now.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

import parley
from parley.consensus.errors import SafetyRecordError
from parley.net.listener import ListenError
from parley.net.tls import ContextError
from parley.node.admin.place import PlaceError
from parley.node.assemble import run
from parley.node.config import ConfigError, load, log_place
from parley.node.logs import open_log
from parley.node.placement import DisplacedError
from parley.node.storage import StorageError
from parley.replica import chain
from parley.store.errors import StoreError

# How long the disk thread waits for Python's lock while the loop is busy (default: 5 ms). Consensus waits for that thread.
SWITCH_SECONDS = 0.000_5

_CANNOT_START = (
    ConfigError,
    StorageError,
    StoreError,
    chain.StoreError,
    SafetyRecordError,
    ContextError,
    ListenError,
    PlaceError,
)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m parley.node CONFIG", file=sys.stderr)  # noqa: T201 - there is no log yet
        return 2
    path = Path(arguments[0])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that closes takes no broker with it
    try:
        config = load(path)
        sys.setswitchinterval(SWITCH_SECONDS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(config))
    except _CANNOT_START as error:
        print(f"parley: {error}", file=sys.stderr)  # noqa: T201 - there may be no log yet
        _log_failed_start(path, error)
        return 2
    except DisplacedError as error:
        print(f"parley: {error}", file=sys.stderr, flush=True)  # noqa: T201 - the log may be gone with the folder
        # In good order the store would be closed, and that writes to a folder which is not the broker's.
        os._exit(2)


def _log_failed_start(path: Path, why: Exception) -> None:
    """For those who watch logs. The configuration itself may be what is wrong, so only what it says of the log is used."""
    with suppress(ConfigError):  # then there is no log
        place = log_place(path)
        log, file = open_log(place)
        log.critical("start_failed", version=parley.__version__, why=str(why))
        if place.file is not None:
            file.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
