"""How soon a connection whose other side has vanished is known to be dead: without being asked, TCP takes hours."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket

IDLE_SECONDS, PROBE_SECONDS, PROBES = 30, 10, 3
UNACKNOWLEDGED_MS = 30_000

# Not every platform has each of them.
_OPTIONS = {
    "TCP_KEEPIDLE": IDLE_SECONDS,
    "TCP_KEEPINTVL": PROBE_SECONDS,
    "TCP_KEEPCNT": PROBES,
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MS,
}


def keep_alive(connection: socket.socket | TransportSocket) -> None:
    """Let the system end the connection when the other side answers nothing any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
