"""A payload codec that only tests know works on Spark: executors find it in their environment, as other programs do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
from tests.node.network import SECONDS, LocalNetwork
from tests.privacy.sealing import ENVIRONMENT, TOY, connected, toy_network
from tests.privacy.toy import STRANGE
from tests.spark.running import JOB_SECONDS

from parley.client.errors import MissingCodec
from parley.modules.publishing.proof import check_publication, decode_publication
from parley.node.provision import identity_path
from parley.spark.errors import BadOption
from parley.spark.gateway import translated

JOB = """
import json, sys
from parley.spark.session import spark_session

session = spark_session("codecs", "local[2]")
network = {"directory": sys.argv[1], "identity": sys.argv[2]}
frame = session.createDataFrame([(f"row {n}", f"key {n}") for n in range(20)], "value string, key string")
frame.write.format("parley").options(**network, topic="sealed").mode("append").save()
source = session.read.format("parley").options(**network, subscribe="sealed", includeProof="true", includeHeaders="true")
for row in source.load().orderBy("partition", "offset").collect():
    headers = {one.key: bytes(one.value).decode() for one in row.headers}
    told = [bytes(row.value).decode(), row.key and bytes(row.key).decode(), row.tags, headers, bytes(row.proof).decode()]
    print("row", json.dumps(told))
wanted = source.option("where", 'ward == "er"').load()
print("matching", sorted(bytes(row.value).decode() for row in wanted.collect()))
try:
    source.option("onUndecryptable", "fail").load().collect()
except Exception as error:
    print("refused", "[PARLEY_UNDECRYPTABLE]" in str(error))
session.stop()
"""


def test_a_codec_of_ones_own_works_on_spark(java: Path, tmp_path: Path) -> None:
    with toy_network(tmp_path / "network") as network:
        asyncio.run(prepared(network))
        lines = run(network)
        rows = [msgspec.json.decode(line.removeprefix("row ")) for line in lines if line.startswith("row ")]
        read = {value: (key, tags, headers) for value, key, tags, headers, _ in rows}
        assert len(rows) == 21, "all but the one that cannot be opened"
        assert read["by hand"] == ("k", {"ward": "er"}, {"kind": "note"})
        assert all(read[f"row {number}"] == (f"key {number}", {}, {}) for number in range(20))
        for value, *_, data in rows:
            proof = decode_publication(data.encode())
            check_publication(proof, network.trust)
            assert proof.message is not None
            assert value.encode() not in proof.message.message.payload
        assert "matching ['by hand']" in lines
        assert "refused True" in lines
        assert asyncio.run(held(network)) == sorted(read)


async def prepared(network: LocalNetwork) -> None:
    async with asyncio.timeout(SECONDS):
        async with connected(network, "admin") as admin:
            await admin.create_topic("sealed", partitions=2, policy=TOY)
        async with connected(network, "alice", STRANGE) as strange:
            await strange.publish("sealed", "under another key", partition=0)
        async with connected(network, "alice") as alice:
            await alice.publish("sealed", "by hand", key="k", tags={"ward": "er"}, headers={"kind": "note"})


async def held(network: LocalNetwork) -> list[str]:
    """What other programs read of it."""
    async with asyncio.timeout(SECONDS), connected(network, "alice") as alice:
        return sorted(
            [
                message.text()
                for partition in range(2)
                async for message in alice.fetch("sealed", partition=partition, on_undecryptable="skip")
            ]
        )


def run(network: LocalNetwork) -> list[str]:
    identity = identity_path(network.directory, "alpha", "alice")
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(network.directory), str(identity)],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_topic_whose_codec_is_missing_is_told_as_what_to_set() -> None:
    error = translated(MissingCodec("sealed", "payload", "toy"))
    assert isinstance(error, BadOption)
    assert "PARLEY_CODECS" in error.message
