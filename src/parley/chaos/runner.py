"""One run from the first key to the last: provision, start, warm up, break things, heal, read everything, stop, look."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from parley.chaos.bars import is_expensive, only_expensive
from parley.chaos.expensive.sizes import FULL, Size
from parley.chaos.history import Acknowledged, Began, Died, Ended, Healed, History, Record, write_history
from parley.chaos.nemesis import Nemesis, plan
from parley.chaos.network import Network
from parley.chaos.siege import Siege
from parley.chaos.stores import examine
from parley.chaos.workload import CENSORED, Workload
from parley.client.errors import ParleyError

HISTORY = "history.jsonl"
START_SECONDS = 60.0  # for brokers to start and clients to be registered
WARM_UP = 1.0  # seconds of work before the first fault
BOUND = 30.0  # seconds within which everything has to get done once the faults are over
SETTLE = 2.0  # seconds of work after the last fault
WATCH = 0.2  # seconds between two looks at the processes
READ_SECONDS = 600.0  # for the whole log
LONGEST_STAY = 30.0  # seconds of a client that is revoked and comes back
LAST_WORDS = 3  # lines of a broker that ended by itself

Say = Callable[[str, float], None]  # the phase, and how much of it is done


class Unavailable(Exception):  # noqa: N818 - it names the condition
    """The run cannot be made, because the brokers did not start; what lies in the folder says why."""


@dataclass(frozen=True)
class Settings:
    directory: Path  # must not exist
    seconds: float  # of faults
    faults: tuple[str, ...]
    seed: int
    brokers: int = 4
    size: Size = FULL  # of the attacks, if there are any


def run(settings: Settings, say: Say = lambda _phase, _done: None) -> list[Record]:
    """Everything, on brokers of its own; its history. All processes have ended when this returns or raises."""
    history = History()
    history.add(Began(0.0, settings.seed, settings.faults, settings.brokers, settings.seconds))
    # Proxies take time of their own, and only other faults need them.
    network = Network(settings.directory, settings.brokers, proxies=not only_expensive(settings.faults))
    try:
        with _overheard(history):
            asyncio.run(_live(settings, network, history, say))
        say("examining the stores", 0.0)
        data = {name: broker.folder / "data" for name, broker in network.brokers.items()}
        for record in examine(network.genesis, data, history.now):
            history.add(record)
        history.add(Ended(history.now))
    finally:
        network.kill_all()  # nothing is left, even if the end was interrupted, too
        write_history(settings.directory / HISTORY, history.records)
    return history.records


@contextmanager
def _overheard(history: History) -> Iterator[None]:
    """What clients complain about goes into the history: here brokers are meant to fail and to lie."""

    class Overhearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            history.trouble(record.name, record.getMessage())

    logger, handler = logging.getLogger("parley.client"), Overhearing()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


async def _live(settings: Settings, network: Network, history: History, say: Say) -> None:
    """While brokers run. Whatever happens, none of them does afterwards."""
    organisations = [one.name for one in network.genesis.organisations]
    siege = Siege(network, history, settings.size) if is_expensive(settings.faults) else None
    nemesis = Nemesis(network, history, CENSORED, None if siege is None else siege.crew)
    # Attackers use up what their own organisation may have, so nobody else is of it.
    workload = Workload(network, history, settings.seed, organisations[:-1] if siege else organisations)
    watch = asyncio.create_task(_watch(network, nemesis, history))
    try:
        await network.connect()
        network.start()
        await _warm_up(workload, siege, say)
        guest = asyncio.create_task(_guest(workload, settings.seconds))
        faults = plan(settings.seed, settings.faults, settings.seconds, network.names)
        await asyncio.gather(nemesis.run(faults), _pass(settings.seconds, say))
        await nemesis.heal()
        if siege is not None:
            await siege.end()
        await _recover(workload, guest, history, say)
    finally:
        watch.cancel()
        if siege is not None:
            await siege.abandon()
        await workload.finish()
        await network.stop()
    workload.require_sane()


async def _warm_up(workload: Workload, siege: Siege | None, say: Say) -> None:
    say("starting", 0.0)
    try:
        async with asyncio.timeout(START_SECONDS):
            await workload.prepare()
            if siege is not None:
                await siege.prepare(workload)
    except TimeoutError:
        raise Unavailable(
            f"The brokers were not ready within {START_SECONDS:g} s; their logs say why."
        ) from None
    workload.begin()
    await asyncio.sleep(WARM_UP)
    if siege is not None:
        await siege.begin()


async def _guest(workload: Workload, seconds: float) -> None:
    """A client is revoked in the middle of it all and comes back with a new key, in a long run again and again."""
    step = min(seconds * 0.3, LONGEST_STAY)
    for _ in range(int(seconds // (2 * step))):
        await asyncio.sleep(step)
        await workload.revoke_guest()
        await asyncio.sleep(step)
        await workload.welcome_guest()


async def _pass(seconds: float, say: Say) -> None:
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        say("faults", passed / seconds)
        await asyncio.sleep(min(1.0, seconds - passed))


async def _recover(workload: Workload, guest: asyncio.Task[None], history: History, say: Say) -> None:
    """Everything works again: it has to get done what is submitted now. What does not, the checker will name."""
    history.add(Healed(history.now, BOUND))
    say("recovering", 0.0)
    await asyncio.sleep(SETTLE)
    with suppress(TimeoutError):
        async with asyncio.timeout(BOUND):
            await guest
    if not await workload.settle(BOUND):
        history.trouble("runner", "publications were still under way")
    say("reading everything", 0.0)
    try:
        async with asyncio.timeout(READ_SECONDS):
            await workload.read_all()
    except (ParleyError, TimeoutError) as error:
        history.trouble("final read", error)
    await workload.hand_out(BOUND)
    reached = max((one.height for one in history.records if isinstance(one, Acknowledged)), default=0)
    with suppress(TimeoutError):
        async with asyncio.timeout(BOUND):
            # Brokers have no way to call us, so they are asked again and again.
            while min((await workload.heights()).values()) < reached:  # noqa: ASYNC110
                await asyncio.sleep(WATCH)


async def _watch(network: Network, nemesis: Nemesis, history: History) -> None:
    """Brokers that end and were not ended: they are started again, and the checker hears of it."""
    while True:
        await asyncio.sleep(WATCH)
        for name, code in network.ended(nemesis.doomed):
            history.add(Died(history.now, name, code, network.brokers[name].tail(LAST_WORDS).strip()))
            network.start(name)
