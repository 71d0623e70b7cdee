"""One client per Python process and network, in a thread of its own: what Spark calls is not asynchronous.

Nothing here is ever pickled: readers hold options, and whoever needs the network finds or opens it here. Every wait has
an end, and what the client raises becomes the error class that docs/spark.md lists.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from parley.client import errors as client_errors
from parley.client.client import Client, connect
from parley.client.contexts import resolve
from parley.client.messages import Level
from parley.consensus.committee import all_brokers
from parley.spark.errors import (
    BadIdentity,
    BadOption,
    DataLoss,
    Lying,
    NotAllowed,
    ParleySparkError,
    TopicGone,
    TopicRemade,
    Unreachable,
)
from parley.spark.options import Network, T

MAX_GATEWAYS = 8  # networks, identities and orders of brokers that one process keeps open
CONNECT_SECONDS = 10.0  # for which no broker at all may answer at the beginning
LOOK_SECONDS = 0.2  # between two looks at whether everybody lies
LIES = 2  # of each broker in one question, after which asking on is of no use
CLOSE_SECONDS = 5.0
CUT_SECONDS = 0.05  # in which a connection that is cut is gone
GRACE_SECONDS = 15.0  # that a question may take beyond its time, for work that was begun


class Gateway:
    """A connected client. `run` may be called from any thread but the client's own."""

    def __init__(self, network: Network, level: Level, rank: int = 0) -> None:
        self._network = network
        # Read once: a question that is under way must not depend on files, which may be about to be renewed.
        self._names = list(network.brokers) or _names(network)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="parley-spark", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            connecting = asyncio.run_coroutine_threadsafe(self._connect(level, rank), self._loop)
            self.client = self.result(connecting)
        except BaseException:
            self._stop()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result. Raises a `ParleySparkError`, after the option `timeout` at the latest."""
        return self.result(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin, and go on with something else meanwhile."""
        return asyncio.run_coroutine_threadsafe(self._watched(self.client, work), self._loop)

    def result(self, future: Future[T]) -> T:
        try:
            return future.result(self._network.timeout + GRACE_SECONDS)
        except TimeoutError as error:
            future.cancel()
            if isinstance(error, client_errors.ParleyError):
                raise translated(error) from None
            raise Unreachable(f"Nothing came of a question within {self._network.timeout} s.") from None
        except client_errors.ParleyError as error:
            raise translated(error) from None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with suppress(Exception):  # whatever becomes of the connections, they are left
                asyncio.run_coroutine_threadsafe(self.client.close(), self._loop).result(CLOSE_SECONDS)
            self._stop()

    async def _connect(self, level: Level, rank: int) -> Client:
        network = self._network
        began = time.monotonic()
        while True:
            client = connect(
                network.context,
                directory=network.directory,
                genesis=network.genesis,
                identity=network.identity,
                brokers=self._order(rank),
                verify=level,
                timeout=float(network.timeout),
                shard=network.shard,
            )
            try:
                return await self._watched(client, client.__aenter__())
            except BaseException as error:
                await client.close()
                is_late = time.monotonic() - began >= min(CONNECT_SECONDS, network.timeout)
                if is_late or not isinstance(error, client_errors.Unreachable):
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    def _order(self, rank: int) -> list[str]:
        """The brokers, each task beginning with another one."""
        rank %= len(self._names)
        return self._names[rank:] + self._names[:rank]

    async def _watched(self, client: Client, work: Coroutine[Any, Any, T]) -> T:
        """Give up when every broker lies again and again: there is nobody left to ask."""
        task = asyncio.ensure_future(work)
        before = list(client.misbehaviour)
        known = set(map(id, before))
        names = set(self._names)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=LOOK_SECONDS)
                if done:
                    return task.result()
                lies = [lie for lie in client.misbehaviour if id(lie) not in known]
                counts = Counter(lie.broker for lie in lies)
                if all(counts[name] >= LIES for name in names):
                    raise Lying(_words({lie.broker: lie.problem for lie in lies}))
        finally:
            task.cancel()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            # What is still under way would otherwise keep its connections for as long as the process lives.
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))
                self._loop.run_until_complete(asyncio.sleep(CUT_SECONDS))
            self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2 * CLOSE_SECONDS)


_open: OrderedDict[tuple[int, Network, Level, int], Gateway] = OrderedDict()
_lock = threading.Lock()


def gateway(network: Network, level: Level = "certified", rank: int = 0) -> Gateway:
    """The one of this process; opened if there is none. Python workers live on from task to task."""
    # A process that was forked has the memory of another one's connections, and none of its own.
    rank %= len(network.brokers or _names(network))
    key = (os.getpid(), network, level, rank)
    with _lock:
        found = _open.get(key)
        if found is None:
            found = _open[key] = Gateway(network, level, rank)
            for old in [key for key in _open if key[0] != os.getpid()]:
                del _open[old]
            while len(_open) > MAX_GATEWAYS:
                _open.popitem(last=False)[1].close()
        _open.move_to_end(key)
    return found


def _names(network: Network) -> list[str]:
    try:
        found = resolve(
            network.context, directory=network.directory, genesis=network.genesis, identity=network.identity
        )
    except client_errors.ContextError as error:
        raise translated(error) from None
    return [broker.name for broker in all_brokers(found.genesis)]


@atexit.register
def close_all() -> None:
    """Leave all networks; whoever needs one again opens it again."""
    with _lock:
        mine = [one for key, one in _open.items() if key[0] == os.getpid()]
        _open.clear()
    for one in mine:
        one.close()


def translated(error: client_errors.ParleyError) -> ParleySparkError:
    """What went wrong with the network, as one of the documented errors."""
    text = str(error)
    match error:
        case client_errors.IdentityError():
            return BadIdentity(text)
        case client_errors.ContextError() | client_errors.MissingCodec():
            return BadOption(text)
        case client_errors.Revoked() | client_errors.UnknownClient() | client_errors.NotAuthenticated():
            return BadIdentity(f"The network does not take this identity: {text}.")
        case client_errors.Unreachable():
            return Unreachable(text)
        case client_errors.Stalled():
            # One that lies while others cannot be reached is no reason to give up: a stream waits for the others.
            said = error.reasons.values()
            everybody = bool(said) and all(reason.startswith("it lies") for reason in said)
            return Lying(_words(error.reasons)) if everybody else Unreachable(text)
        case client_errors.PermissionDenied():
            return NotAllowed(f"The network refuses it: {text}.")
        case client_errors.Pruned():
            return DataLoss(text)
        case client_errors.TopicReplaced():
            return TopicRemade(text)
        case client_errors.UnknownTopic() | client_errors.UnknownPartition():
            return TopicGone(
                f"{text}. Check the name, whether the topic was deleted, and whether its rules admit this identity."
            )
        case _:
            return ParleySparkError(text)


def _words(said: dict[str, str]) -> str:
    told = "; ".join(f"{name}: {reason}" for name, reason in sorted(said.items()))
    return (
        f"No broker that answers can prove what it shows, so nothing of it was used ({told}). Ask who runs them; name others "
        f"in the option brokers."
    )
