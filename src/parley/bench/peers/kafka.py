"""Kafka: three nodes that are brokers and KRaft controllers at once, started from the jars of Maven."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from parley.bench.peers.needs import Need, cache_directory, debian, jars, package_version, python_package
from parley.bench.peers.publishing import SystemName
from parley.bench.peers.servers import Servers
from parley.bench.peers.systems import BATCH, Running, Variant
from parley.node.processes import free_addresses

NODES = 3
VERSION = "4.1.0"
COORDINATES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
CLUSTER = "parley-bench-peers-kaf"  # an id is 16 bytes in base 64
FORMAT_SECONDS = 60.0
# What Kafka's own scripts start it with.
JAVA = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class Kafka:
    """As it comes, the system writes to the disk when it likes; synced, brokers do for whatever they append."""

    name: SystemName = "kafka"
    variants: tuple[Variant, ...] = (
        Variant("kafka"),
        Variant("kafka-batch", batch=BATCH),
        Variant("kafka-sync", synced=True),
        Variant("kafka-sync-batch", batch=BATCH, synced=True),
    )

    def __init__(self) -> None:
        self._jars = cache_directory() / f"kafka-{VERSION}"
        self.needs: tuple[Need, ...] = (
            debian("Java", "default-jre-headless", lambda: shutil.which("java")),
            jars(
                "Kafka's jars",
                COORDINATES,
                self._jars,
                "parley bench peers --peers kafka --install (uses Maven)",
            ),
            python_package("confluent-kafka", "confluent_kafka"),
        )

    def version(self) -> str:
        return f"kafka {VERSION}, {package_version('confluent-kafka')}"

    @asynccontextmanager
    async def running(self, directory: Path, sizes: tuple[int, ...]) -> AsyncIterator[Running]:  # noqa: ARG002
        async with self.cluster(directory) as (servers, brokers):
            yield Running(servers.usage, lambda variant, size: variant.job(self.name, brokers, size))

    @asynccontextmanager
    async def cluster(self, directory: Path) -> AsyncIterator[tuple[Servers, list[str]]]:
        """The processes `kafka-0` and so on, and the addresses for clients, in this order."""
        addresses = free_addresses(2 * NODES, directory)
        brokers, controllers = addresses[:NODES], addresses[NODES:]
        java = ["java", *JAVA, "-cp", f"{self._jars}/*"]
        async with Servers(directory) as servers:
            configs = [_config(directory, number, brokers, controllers) for number in range(NODES)]
            for number, config in enumerate(configs):
                command = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(config)]
                servers.start(f"format-{number}", command)
            for number in range(NODES):
                await servers.ended(f"format-{number}", FORMAT_SECONDS)
            for number, config in enumerate(configs):
                servers.start(f"kafka-{number}", [*java, "kafka.Kafka", config])
            yield servers, brokers


def _config(directory: Path, number: int, brokers: list[str], controllers: list[str]) -> Path:
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": ",".join(f"{node}@{one}" for node, one in enumerate(controllers)),
        "listeners": f"PLAINTEXT://{brokers[number]},CONTROLLER://{controllers[number]}",
        "advertised.listeners": f"PLAINTEXT://{brokers[number]}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": directory / f"data-{number}",
        "default.replication.factor": NODES,
        "min.insync.replicas": 2,
        "auto.create.topics.enable": "false",
    }
    path = directory / f"node-{number}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path
