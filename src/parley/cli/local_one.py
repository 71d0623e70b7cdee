"""Single brokers of a folder, as `parley up BROKER` and `parley down BROKER` start and stop them while the others run."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from parley.cli import contexts, output
from parley.cli.local_folder import locked
from parley.cli.network import observing, run, states
from parley.client.contexts import read_genesis
from parley.node.processes import LocalBroker, local_brokers, stop

START_SECONDS = 60.0
POLL_SECONDS = 0.1


def chosen(brokers: Sequence[LocalBroker], names: Sequence[str], home: Path) -> list[LocalBroker]:
    """Those that are named, or the end of the command with a sentence on what there is."""
    known = {broker.name: broker for broker in brokers}
    for name in names:
        if name not in known:
            output.fail(
                f"{home} has no broker {name!r}{contexts.meant(name, list(known))}", output.ExitCode.WRONG_USE
            )
    return [known[name] for name in names]


def start(home: Path, names: Sequence[str], *, as_json: bool) -> None:
    """Start those of them that do not run, leave them running, and say how they are once they answer."""
    if not (home / "genesis.json").is_file():
        output.fail(f"{home} holds no network; to make one, name no broker", output.ExitCode.WRONG_USE)
    brokers = chosen(local_brokers(home, read_genesis(home / "genesis.json")), names, home)
    with locked(home):
        children = {broker: broker.start() for broker in brokers if broker.pid() is None}

        def all_answer(found: dict[str, str]) -> bool:
            return all(found.get(broker.name, "down") != "down" for broker in brokers)

        try:
            found = run(settled(home, children, all_answer, "no answer"))
        except BaseException:
            stop(children)
            raise
    result = {
        "directory": str(home),
        "started": [broker.name for broker in children],
        "brokers": [{"name": one.name, "state": found[one.name], "pid": one.pid()} for one in brokers],
    }
    words = [
        f"{one.name} {'is started' if one in children else 'was running'}: {found[one.name]}"
        for one in brokers
    ]
    output.emit(result, "\n".join(words), as_json=as_json)


def _require_running(broker: LocalBroker, process: subprocess.Popen[bytes]) -> None:
    """End the command if the process of a broker has ended: with its own code if it could not even start."""
    if (code := process.poll()) is not None:
        refused = code == output.ExitCode.WRONG_USE
        output.fail(
            f"{broker.name} ended at once:\n{broker.tail()}",
            output.ExitCode.WRONG_USE if refused else output.ExitCode.UNREACHABLE,
        )


async def settled(
    home: Path,
    children: Mapping[LocalBroker, subprocess.Popen[bytes]],
    enough: Callable[[dict[str, str]], bool],
    problem: str,
    seconds: float = START_SECONDS,
) -> dict[str, str]:
    """How the brokers are, once that is enough. If it is not in time, or a process of ours has ended, so does the command."""
    async with observing(contexts.find(home, None)) as client:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    for broker, process in children.items():
                        _require_running(broker, process)
                    found = await states(client)
                    if enough(found):
                        return found
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            tails = "\n".join(f"{broker.name} said last:\n{broker.tail()}" for broker in children)
            output.fail(f"{problem} after {seconds:.0f} s\n{tails}", output.ExitCode.UNREACHABLE)
