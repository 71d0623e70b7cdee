"""Four organisations with a folder each, as after the genesis ceremony, and people who type into them what a guide says."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.ops.guides import Command, commands

import parley
from parley.client.client import Client
from parley.client.contexts import read_identity
from parley.node.processes import LocalBroker, free_addresses, stop
from parley.node.provision import identity_path, provision_network, write_context

__all__ = ["ORGANISATIONS", "Consortium", "Load"]

ORGANISATIONS = ("alpha", "bravo", "charlie", "delta")
SECONDS = 400  # longer than any command of a guide may take
STEP_SECONDS = 120.0
FEWEST = 10  # publications that a load has acknowledged before it ends, on however slow a machine
TOPIC, CLIENT = "records", "clerk"


class Consortium:
    """Use it as a context, so that no broker is left over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[
            subprocess.Popen[bytes]
        ] = []  # the first brokers; later ones are started by commands
        found = free_addresses(len(ORGANISATIONS) + 1, folder)
        self.addresses, self.spare = found[:-1], found[-1]
        (folder / "bin").mkdir(parents=True)
        script = folder / "bin" / "parley"
        script.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -c "from parley.cli import main; main()" "$@"\n'
        )
        script.chmod(0o755)

    def __enter__(self) -> Self:
        for organisation in ORGANISATIONS:
            self.home(organisation).mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop(self.broker(organisation) for organisation in ORGANISATIONS)
        for child in self._children:
            child.wait(STEP_SECONDS)

    def home(self, who: str) -> Path:
        return self._folder / who

    def network(self, organisation: str) -> Path:
        return self.home(organisation) / "network"

    def broker(self, organisation: str) -> LocalBroker:
        name = f"{organisation}-1"
        return LocalBroker(name, organisation, self.network(organisation) / "brokers" / name, "")

    def found(self) -> None:
        """What the ceremony gives, in a hurry; then the brokers, a client of each organisation, and a topic."""
        together = self._folder / "together"
        now = time.time_ns() // 1_000_000
        provision_network(
            together,
            organisations=ORGANISATIONS,
            network="parley",
            start_time=now,
            clients=(CLIENT,),
            addresses=self.addresses,
        )
        for organisation in ORGANISATIONS:
            self._hand_over(together, organisation)
            self._children.append(self.broker(organisation).start())
        self.type("alpha", "parley status --wait 120 --dir network")
        asyncio.run(self._settle())

    def _hand_over(self, together: Path, organisation: str) -> None:
        """To each its own part, and nothing of the others."""
        home = self.network(organisation)
        for part in (f"organisations/{organisation}", f"brokers/{organisation}-1"):
            shutil.copytree(together / part, home / part)
        for name in ("admin", CLIENT):
            path = identity_path(home, organisation, name)
            path.parent.mkdir(exist_ok=True)
            shutil.copy(identity_path(together, organisation, name), path)
        shutil.copy(together / "genesis.json", home)
        write_context(home, organisation, "admin")

    async def _settle(self) -> None:
        for organisation in ("alpha", "bravo"):
            identity = read_identity(identity_path(self.network(organisation), organisation, CLIENT))
            async with self.client(organisation, "admin") as admin:
                await admin.register_client(CLIENT, identity.credential.key, {}, proof=identity.proof())
                if organisation == "alpha":
                    await admin.create_topic(TOPIC)

    def follow(self, heading: str, instead: Mapping[str, str] | None = None) -> None:
        """Type what a section of the page says, in its order; `instead` names what is different here."""
        for command in commands("docs/operate.md", heading):
            self.obey(command, instead)

    def obey(self, command: Command, instead: Mapping[str, str] | None = None) -> str:
        assert not command.root, "nobody here is root"
        text = command.text
        for written, here in (instead or {}).items():
            text = text.replace(written, here)
        return self.type(command.who, text)

    def type(self, who: str, text: str) -> str:
        """What a command says, which has to end well."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PARLEY", "XDG_"))}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.home(who),
            env={**kept, "HOME": str(self.home(who)), "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{who}$ {text}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        return done.stdout

    def client(self, organisation: str, name: str) -> Client:
        home = self.network(organisation)
        return parley.connect(
            genesis=home / "genesis.json", identity=home / "identities" / f"{organisation}-{name}.json"
        )


class Load:
    """A client publishes numbers one after the other and another one, which subscribed before, gets them: as long as the
    block runs.

    At its end nothing that was acknowledged may be missing, doubled or out of order, and neither may have met an error.
    """

    def __init__(self, consortium: Consortium) -> None:
        self._consortium = consortium
        self._enough = threading.Event()
        self._subscribed = threading.Event()
        self._acknowledged: list[int] = []
        self._offsets: list[int] = []
        self._received: list[int] = []
        self._trouble: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)  # a test that failed ends

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._subscribed.wait(STEP_SECONDS), self._trouble
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        self._thread.join(STEP_SECONDS)
        if error is None:
            self._check()

    @property
    def count(self) -> int:
        """How many publications were acknowledged so far."""
        return len(self._acknowledged)

    def _check(self) -> None:
        assert self._trouble is None, repr(self._trouble)
        assert not self._thread.is_alive()
        assert self.count > FEWEST, "somebody published all the while"
        assert self._received == self._acknowledged == list(range(self.count))
        assert self._offsets == list(range(self._offsets[0], self._offsets[0] + self.count))

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # noqa: BLE001 - told by the test, in its own thread
            self._trouble = error
            self._subscribed.set()

    async def _work(self) -> None:
        async with (
            self._consortium.client("bravo", CLIENT) as reader,
            self._consortium.client("alpha", CLIENT) as writer,
            reader.subscribe(TOPIC) as subscription,
            asyncio.TaskGroup() as tasks,
        ):
            self._subscribed.set()
            reading = tasks.create_task(self._read(subscription))
            while not (self._enough.is_set() and self.count > FEWEST):
                receipt = await writer.publish(TOPIC, str(self.count))
                self._offsets.append(receipt.offset)
                self._acknowledged.append(self.count)
            async with asyncio.timeout(STEP_SECONDS):
                await writer.publish(TOPIC, "end")
                await reading

    async def _read(self, subscription: parley.Subscription) -> None:
        async for message in subscription:
            if message.text() == "end":
                return
            self._received.append(int(message.text()))
