"""A module that only these tests know works like those of Parley: over real brokers, with proofs, audits and Spark."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.application.reservations import (
    APPLICATION,
    LIMIT,
    MODULE,
    RESERVATIONS,
    Reserve,
    Reserved,
    SlotTaken,
)
from tests.application.world import make_genesis
from tests.node.network import SECONDS, LocalNetwork

import parley
from parley.application.application import OWN_VERSIONS, Application, VersionError
from parley.applications import (
    MODULES,
    VARIABLE,
    ApplicationError,
    application_of,
    chosen_application,
)
from parley.client.proofs import EntryProof, OperationProof, decode_proof
from parley.ledger.proofs import ProofError, Trust
from parley.node.provision import identity_path
from parley.spark.java import INSTALL, find_java
from parley.spark.pipeline.run import BRIEF, JAVA_OPTIONS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    VARIABLE: "tests.application.reservations:APPLICATION",
    "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
    JAVA_OPTIONS: BRIEF,
}


RESERVE_A = Reserve("rooms", "a", "level >= 2 and org == 'alpha'", 10_000)


async def prepared(network: LocalNetwork) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                async with connected(network, "admin") as admin:
                    await admin.create_topic("rooms")
                    await admin.create_topic("garages")
                    alice = network.identity("alpha", "alice")
                    await admin.register_client(
                        "alice", alice.credential.key, {"level": 2}, proof=alice.proof()
                    )
                    return
            except parley.Unreachable:
                assert all(map(network.is_running, network.names)), "a broker did not start"
                await asyncio.sleep(0.1)


def connected(network: LocalNetwork, name: str) -> parley.Client:
    path = identity_path(network.directory, "alpha", name)
    return parley.connect(directory=network.directory, identity=path, timeout=SECONDS)


def test_a_module_of_ones_own_works_over_a_real_network(tmp_path: Path) -> None:
    """One story, because its parts need what the parts before have left in the ledger."""
    find_java() or pytest.skip(f"Spark needs Java: {INSTALL}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        directory = tmp_path / "network"
        with LocalNetwork(directory, allow_faults=True, auditors=("alpha",), by_command=True) as network:
            network.start()
            asyncio.run(prepared(network))
            assert application_of(network.genesis) is APPLICATION
            asyncio.run(asked_receipted_and_proved(network, tmp_path))
            proved_offline(network, tmp_path)
            asyncio.run(listed_and_refused(network))
            asyncio.run(counted_and_expired(network))
            seen_in_spark(network)
            audited(network)


async def asked_receipted_and_proved(network: LocalNetwork, folder: Path) -> None:
    async with connected(network, "alice") as alice:
        receipt = await alice.operate(RESERVE_A)
        reserved = receipt.given(Reserved)
        assert reserved is not None
        assert reserved.until > receipt.height
        record = await alice.entry(RESERVATIONS, "rooms", "a")
        assert record is not None
        assert (record.client, record.until) == ("alpha/alice", reserved.until)
        assert await alice.entry(RESERVATIONS, "rooms", "b") is None
        receipt.save(folder / "receipt.json")
        (await alice.entry_proof(RESERVATIONS, "rooms", "a")).save(folder / "entry.json")


def proved_offline(network: LocalNetwork, folder: Path) -> None:
    trust = Trust(network.genesis, APPLICATION.decode_leaf)
    operation = decode_proof((folder / "receipt.json").read_bytes())
    assert isinstance(operation, OperationProof)
    asked, _ = operation.check(trust, APPLICATION)
    assert asked == RESERVE_A
    entry = decode_proof((folder / "entry.json").read_bytes())
    assert isinstance(entry, EntryProof)
    assert entry.check(trust, APPLICATION) is not None
    with pytest.raises(ProofError):
        msgspec.structs.replace(entry, height=entry.height + 1).check(trust, APPLICATION)


async def listed_and_refused(network: LocalNetwork) -> None:
    async with connected(network, "alice") as alice:
        await alice.operate(Reserve("rooms", "c", "", 10_000))
        assert [slot for (_, slot), _ in await alice.entries(RESERVATIONS, "rooms")] == ["a", "c"]
        with pytest.raises(
            SlotTaken, match=r"slot c of topic rooms is reserved for alpha/alice up to"
        ) as taken:
            await alice.operate(Reserve("rooms", "c", "", 1))
        assert taken.value.fields["slot"] == "c"
        with pytest.raises(parley.PermissionDenied) as denied:
            await alice.operate(Reserve("rooms", "d", "level > 2", 1))
        assert denied.value.rule == "level > 2"
        with pytest.raises(parley.Malformed, match="at character 7"):
            await alice.operate(Reserve("rooms", "d", "level >> 2", 1))
        with pytest.raises(parley.UnknownTopic):
            await alice.operate(Reserve("nowhere", "d", "", 1))


async def counted_and_expired(network: LocalNetwork) -> None:
    async with connected(network, "admin") as admin, connected(network, "alice") as alice:
        share = -(-LIMIT // len(network.genesis.organisations))
        await admin.create_topic("halls")
        for slot in range(share - 2):
            await alice.operate(Reserve("halls", f"s{slot}", "", 10_000))
        with pytest.raises(parley.LimitExceeded, match=f"alpha has the {share} reservations"):
            await alice.operate(Reserve("halls", "more", "", 1))
        await admin.delete_topic("halls")  # its reservations end with it, so that there is room again
        await alice.operate(Reserve("garages", "short", "", 1))
        async with asyncio.timeout(SECONDS):
            while await alice.entry(RESERVATIONS, "garages", "short") is not None:
                await alice.publish("garages", "time passes")


def seen_in_spark(network: LocalNetwork) -> None:
    read = """
import sys
from parley.spark.session import spark_session
session = spark_session("reservations", "local[1]")
source = session.read.format("parley").options(directory=sys.argv[1], identity=sys.argv[2])
rows = source.options(table="reservations").load().collect()
print("row", sorted((row.change, row.topic, row.slot) for row in rows)[0])
operations = source.options(table="operations").load().filter("operation = 'reserve'").collect()
print("row", len(operations) > len(rows), sorted({row.outcome for row in operations}))
session.stop()
"""
    admin = identity_path(network.directory, "alpha", "admin")
    done = run([sys.executable, "-c", read, str(network.directory), str(admin)])
    assert [line for line in done.splitlines() if line.startswith("row")] == [
        "row ('reserve', 'garages', 'short')",
        "row True ['refused', 'reserved']",
    ]


def audited(network: LocalNetwork) -> None:
    """A stopped broker's store, whose blocks are executed again."""
    name = network.names[0]
    network.stop(name)
    command = [sys.executable, "-c", "from parley.cli import main; main()", "audit", "verify", "--json"]
    found = msgspec.json.decode(run([*command, "--broker", name, "--dir", str(network.directory)]))
    assert found["valid"]
    assert found["heights"] > 0


def test_another_application_is_taken_only_where_the_genesis_file_allows_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, ENVIRONMENT[VARIABLE])
    careful = make_genesis()
    assert not careful.allow_faults
    assert "reserve" not in application_of(careful).operations
    assert application_of(msgspec.structs.replace(careful, allow_faults=True)) is APPLICATION


def test_a_program_without_it_says_what_is_missing_instead_of_judging() -> None:
    genesis = msgspec.structs.replace(make_genesis(), allow_faults=True, application=APPLICATION.version)
    with pytest.raises(VersionError, match=f"own application with {VARIABLE}"):
        application_of(genesis).require_version(genesis)


def test_it_has_a_version_that_is_none_of_parleys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "parley.applications:DATA_SHARD")
    with pytest.raises(ApplicationError, match=f"below {OWN_VERSIONS} are Parley's"):
        chosen_application(allow_faults=True)


@pytest.mark.parametrize("named", ["tests.application.reservations", "no_such_module:APPLICATION"])
def test_what_cannot_be_loaded_is_named_with_what_to_do(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, named)
    with pytest.raises(ApplicationError, match="MODULE:NAME, and PYTHONPATH"):
        chosen_application(allow_faults=True)


def test_a_declared_refusal_without_a_text_is_noticed() -> None:
    silent = replace(MODULE, texts={})
    with pytest.raises(AssertionError, match="SlotTaken has no text"):
        Application("silent", OWN_VERSIONS, (*MODULES, silent))


def test_no_file_of_the_package_names_it() -> None:
    sources = (path.read_text() for path in (ROOT / "src").rglob("*.py"))
    assert not any("reservation" in text.lower() for text in sources)


def run(command: list[str]) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=SECONDS * 10,  # a guard: Java starts slowly on a busy machine
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
