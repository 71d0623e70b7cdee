"""The actions of the admin socket: what a running broker does for its operator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

from msgspec import MsgspecError, Struct, json, structs

from parley.node.admin.messages import BACKUP, FAULTS, RELOAD, STATUS, Copied, Faults, Reloaded, SetFaults
from parley.node.config import Config, ConfigError, reload_faults
from parley.node.copies import BackupError, Workshop, opened, remove_left_over
from parley.node.faults.settings import write_faults
from parley.node.faults.switches import FaultError, Switches, checked
from parley.node.logs import Log
from parley.node.shown import Showing
from parley.node.status import StatusReport
from parley.store.errors import StoreError
from parley.store.interface import Store

S = TypeVar("S", bound=Struct)


class ActionRefused(Exception):  # noqa: N818 - an answer
    """The action is refused or failed; the message says why and what to do."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Asked:
    """One question. Its handler returns the answer, or sends it with `say` and goes on until the client closes the connection."""

    shard: int | None  # None: the only one
    body: bytes
    say: Callable[[Struct], Awaitable[None]]
    take_time: Callable[[], None]  # from here on the action and the client decide how long this lasts

    def read(self, type_: type[S]) -> S:
        try:
            return json.decode(self.body, type=type_)
        except MsgspecError as error:
            raise ActionRefused(HTTPStatus.BAD_REQUEST, f"The question is not understood: {error}.") from None


@dataclass(frozen=True)
class Action:
    name: str
    method: str
    handle: Callable[[Asked], Awaitable[object]]


@dataclass(frozen=True)
class Served:
    """The parts of one shard that actions need."""

    status: StatusReport
    store: Store
    data: Path  # the folder of the store


class Actions:
    """The actions of one broker. `serving` names the shards that run; what concerns one of the others is refused."""

    def __init__(self, config: Config, switches: Switches, showing: Showing, log: Log) -> None:
        self._config = config
        self._switches = switches
        self._showing = showing
        self._log = log
        self._shards: dict[int, Served] = {}
        self._copying: dict[int, asyncio.Future[None]] = {}  # by shard

    @property
    def table(self) -> list[Action]:
        return [
            Action(BACKUP, "POST", self._backup),
            Action(RELOAD, "POST", self._reload),
            Action(FAULTS, "GET", self._get_faults),
            Action(FAULTS, "PUT", self._set_faults),
            Action(STATUS, "GET", self._status),
        ]

    @asynccontextmanager
    async def serving(self, number: int, served: Served) -> AsyncIterator[None]:
        """A context in which actions serve this shard. At its end the store is not read any more and may be closed."""
        await asyncio.to_thread(remove_left_over, served.data)
        self._shards[number] = served
        try:
            yield
        finally:
            del self._shards[number]
            if copying := self._copying.get(number):
                await asyncio.wait([copying])

    # -- actions --------------------------------------------------------------------------------------------------------

    async def _backup(self, asked: Asked) -> None:
        """Copy the store, say where the copy is, and remove it when the client has gone."""
        shard, served = self._served(asked.shard)
        if shard in self._copying:
            raise ActionRefused(
                HTTPStatus.CONFLICT, f"Another backup of {self._name} is being made; let it finish."
            )
        try:
            with opened(served.data, self._name) as workshop:
                asked.take_time()  # a copy may take long: on a slow disk, or where the store's folder is a disk of its own
                await self._copy(shard, served.store, workshop)
                workshop.share()
                await asked.say(Copied(str(workshop.data)))
                await asyncio.get_running_loop().create_future()  # until the client goes, which cancels this
        except BackupError as error:
            raise ActionRefused(HTTPStatus.CONFLICT, str(error)) from error
        except StoreError as error:
            raise ActionRefused(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}") from error

    async def _copy(self, shard: int, store: Store, workshop: Workshop) -> None:
        """Copy the store in a thread. If the client goes meanwhile, this still waits for the end of the thread."""
        store.hand_on()  # what was written last is in the copy, too
        copying = asyncio.ensure_future(asyncio.to_thread(store.copy_to, workshop.data))
        self._copying[shard] = copying
        copying.add_done_callback(lambda _: self._copying.pop(shard))
        try:
            await asyncio.shield(copying)
        except asyncio.CancelledError:
            await asyncio.wait([copying])
            raise

    async def _reload(self, _: Asked) -> Reloaded:
        """Take certificate and faults from the files again. If one of them is of no use, it stays as it is."""
        before = self._showing.current
        problems = [why for why in (self._showing.reload(), self._reload_faults()) if why]
        if problems:
            raise ActionRefused(HTTPStatus.CONFLICT, " ".join(problems))
        now = self._showing.current
        changed = now.certificate != before.certificate
        return Reloaded(os.getpid(), changed, now.ends, self._switches.faults)

    def _reload_faults(self) -> str:
        try:
            wanted = reload_faults(self._config)
        except ConfigError as error:
            self._log.warning("faults_refused", why=str(error))
            return f"The faults stay as they are: {error}."
        self._switch(wanted)
        return ""

    async def _get_faults(self, _: Asked) -> Faults:
        return Faults(self._config.genesis.allow_faults, self._switches.faults)

    async def _set_faults(self, asked: Asked) -> Faults:
        """Show the faults that the question names, and write them to the configuration for the next start."""
        try:
            wanted = checked(asked.read(SetFaults).faults)
            if wanted and not self._config.genesis.allow_faults:
                raise ActionRefused(
                    HTTPStatus.FORBIDDEN,
                    "This network was made without --allow-faults, so its brokers refuse to lie. Make another one with `parley "
                    "up --allow-faults --dir DIR`.",
                )
            write_faults(self._config.path, wanted)
        except FaultError as error:
            raise ActionRefused(HTTPStatus.BAD_REQUEST, f"{self._config.path}: {error}.") from None
        except OSError as error:
            why = f"{error.filename} cannot be written: {error.strerror}, so the faults stay as they are. Check its rights."
            raise ActionRefused(HTTPStatus.INTERNAL_SERVER_ERROR, why) from error
        self._switch(wanted)
        return await self._get_faults(asked)

    def _switch(self, wanted: tuple[str, ...]) -> None:
        if wanted != self._switches.faults:
            self._switches.set(wanted)
            self._log.warning("faults", faults=", ".join(wanted) or "none")

    async def _status(self, asked: Asked) -> dict[str, Any]:
        """What the broker tells every client about itself, and what only its operator may see."""
        report = self._served(asked.shard)[1].status
        return {
            **_by_name(report.report(0)),
            "pid": os.getpid(),
            "config": str(self._config.path),
            "certificate_ends": self._showing.current.ends,
            "authority_ends": self._showing.authority_ends,
            "faults": self._switches.faults,
            "damage": [
                {"entry": found.entry, "what": found.what, "mended": found.mended}
                for found in report.driver.found
            ],
        }

    @property
    def _name(self) -> str:
        return self._config.broker.name

    def _served(self, shard: int | None) -> tuple[int, Served]:
        shards = self._config.shards
        if shard is None and len(shards) > 1:
            why = f"{self._name} is a member of several shards ({', '.join(map(str, shards))}): name one, as in ?shard={shards[0]}."
            raise ActionRefused(HTTPStatus.BAD_REQUEST, why)
        shard = shards[0] if shard is None else shard
        found = self._shards.get(shard)
        if found is None:
            raise ActionRefused(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._name} does not run shard {shard} now: it is starting, or it is not a member of it. Its log says more; "
                f"try again when it is ready.",
            )
        return shard, found


def _by_name(value: Any) -> Any:  # noqa: ANN401 - any message
    """A message with the names of its fields, which it does not have on the wire."""
    if isinstance(value, Struct):
        return {name: _by_name(field) for name, field in structs.asdict(value).items()}
    return [_by_name(one) for one in value] if isinstance(value, tuple) else value
