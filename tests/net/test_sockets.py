from __future__ import annotations

import socket

import pytest

from parley.net.sockets import IDLE_SECONDS, UNACKNOWLEDGED_MS, keep_alive


def test_a_connection_whose_other_side_vanishes_does_not_live_for_ever() -> None:
    with socket.socket() as connection:
        keep_alive(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the platform has other means")
def test_what_is_not_acknowledged_is_given_up_in_time() -> None:
    with socket.socket() as connection:
        keep_alive(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == IDLE_SECONDS
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == UNACKNOWLEDGED_MS
