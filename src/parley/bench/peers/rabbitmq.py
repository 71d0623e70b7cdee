"""RabbitMQ: three nodes in a cluster of their own, quorum queues with a replica on each."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from parley.bench.peers.needs import Need, debian, package_version, python_package
from parley.bench.peers.publishing import SystemName
from parley.bench.peers.servers import Servers
from parley.bench.peers.systems import Running, Variant
from parley.node.processes import free_addresses

NODES = 3
IN_FLIGHT = 1_000  # messages
START_SECONDS = 120.0
# Debian's command in PATH changes to another user, so the script behind it is started.
SCRIPTS = Path("/usr/lib/rabbitmq/bin")


class RabbitMQ:
    """A quorum queue confirms what a majority has synced to its disks; it has no other setting."""

    name: SystemName = "rabbitmq"
    variants: tuple[Variant, ...] = (Variant("rabbitmq", in_flight=IN_FLIGHT),)

    def __init__(self) -> None:
        self.needs: tuple[Need, ...] = (
            debian("rabbitmq-server", "rabbitmq-server", find_server),
            python_package("pika", "pika"),
        )

    def version(self) -> str:
        script = find_server()
        home = "" if script is None else script.resolve().parent.parent.name
        return f"{home.replace('_server-', ' ')}, {package_version('pika')}"

    @asynccontextmanager
    async def running(self, directory: Path, sizes: tuple[int, ...]) -> AsyncIterator[Running]:  # noqa: ARG002
        script, epmd = find_server(), shutil.which("epmd")
        assert script is not None, "its needs were looked at"
        assert epmd is not None, "or there would be no script"
        *ports, names = [address.rpartition(":")[2] for address in free_addresses(2 * NODES + 1, directory)]
        clients = [f"127.0.0.1:{port}" for port in ports[:NODES]]
        # Whoever knows it can run programs at the nodes, and other users of this machine reach their ports.
        cookie = secrets.token_hex(16)
        async with Servers(directory) as servers:
            servers.start("epmd", [epmd, "-port", names, "-address", "127.0.0.1"])
            await servers.listening(f"127.0.0.1:{names}", START_SECONDS)
            for number in range(NODES):
                env = _environment(
                    directory, number, clients[number], ports[NODES + number], names, cookie=cookie
                )
                servers.start(f"rabbitmq-{number}", [script], env)
                if number == 0:  # the others join it; two that begin at once might each begin a cluster
                    await servers.listening(clients[0], START_SECONDS)
            yield Running(servers.usage, lambda variant, size: variant.job(self.name, clients, size))


def find_server() -> Path | None:
    """The script that starts a node as the user who runs it; None if that, or what finds nodes' names, is missing."""
    if shutil.which("epmd") is None:
        return None
    if (SCRIPTS / "rabbitmq-server").exists():
        return SCRIPTS / "rabbitmq-server"
    found = shutil.which("rabbitmq-server")
    return None if found is None else Path(found).resolve()


def _environment(
    directory: Path, number: int, client: str, distribution: str, names: str, *, cookie: str
) -> dict[str, str]:
    home = directory / f"node-{number}"
    home.mkdir(mode=0o700)
    (home / ".erlang.cookie").touch(0o600)
    (home / ".erlang.cookie").write_text(cookie)
    peers = "".join(
        f"cluster_formation.classic_config.nodes.{one + 1} = {_name(one)}\n" for one in range(NODES)
    )
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = {client}\ncluster_formation.peer_discovery_backend = classic_config\n{peers}"
    )
    (home / "enabled_plugins").write_text("[].\n")
    (home / "environment").write_text("")
    return {
        "HOME": str(home),
        "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the node, which is then the process that is stopped
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": names,
        "RABBITMQ_NODENAME": _name(number),
        "RABBITMQ_CONF_ENV_FILE": str(home / "environment"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_DIST_PORT": distribution,
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


def _name(number: int) -> str:
    return f"bench{number}@localhost"
