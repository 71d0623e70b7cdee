"""`parley up` and `parley down`: a whole network on this machine, one process per broker."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from parley.cli import contexts, local_one, local_setup, output
from parley.cli.local_folder import locked, require_node_extra, require_own
from parley.cli.network import observing, run, states
from parley.client.contexts import (
    context_names,
    context_path,
    current_context,
    read_context,
    read_genesis,
)
from parley.client.errors import ContextError
from parley.consensus.committee import all_brokers
from parley.model.genesis import MAX_BROKERS, Genesis
from parley.node.processes import LocalBroker, brokers_of, is_free, local_brokers, stop

DEFAULT_ORGANISATIONS = 4
SECONDS_PER_BROKER = 5.0  # more of that on a small machine
WATCH_SECONDS = 1.0
LOCAL = "local"

Children = dict[LocalBroker, "subprocess.Popen[bytes]"]


def up(
    *,
    brokers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BROKER]...", help="Only these, of a network that is there; they are left running."
        ),
    ] = None,
    orgs: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_BROKERS, help="Organisations, each with one broker; 4 if new."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave the brokers running.")] = False,
    allow_faults: Annotated[
        bool,
        typer.Option("--allow-faults", help="If new: brokers may be told to lie; see `parley fault --help`."),
    ] = False,
    directory: contexts.Directory = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", help="Save it as this context; default: local, if in .parley"
        ),
    ] = None,
    json: output.Json = False,
) -> None:
    """Start a local network: brokers of several organisations, a client of each, and the topic `demo`.

    The folder keeps everything; a second `up` starts what does not run. Ctrl-C, or `parley down`, stops it.
    """
    require_node_extra("up")
    home = require_own(directory or contexts.DEFAULT_DIRECTORY)
    if brokers:
        if orgs is not None or allow_faults or context is not None:
            raise typer.BadParameter(
                "--orgs, --allow-faults and --context are for whole networks.", param_hint="BROKER"
            )
        local_one.start(home, brokers, as_json=json)
        return
    created = local_setup.provision(home, orgs or DEFAULT_ORGANISATIONS, allow_faults=allow_faults)
    genesis = read_genesis(home / "genesis.json")
    _check(home, genesis, orgs, created=created)
    if allow_faults and not genesis.allow_faults:
        output.fail(
            f"the network in {home} was made without --allow-faults, and that cannot be changed; choose another --dir",
            output.ExitCode.WRONG_USE,
        )
    with locked(home):
        members = local_brokers(home, genesis)
        children = _start(members)
        try:
            run(_settle(home, genesis, children))
        except BaseException:
            stop(children)
            raise
    name = _save_context(home, context)
    topic = local_setup.TOPIC if local_setup.made(home, genesis) else None
    result = {
        "directory": str(home),
        "network": genesis.network,
        "chain": genesis.chain.hex(),
        "created": created,
        "started": [broker.name for broker in children],
        "brokers": [
            {"name": one.name, "org": one.organisation, "address": one.address, "pid": one.pid()}
            for one in members
        ],
        "context": name,
        "topic": topic,
    }
    output.emit(result, lambda: _greeting(home, genesis, len(children), name, topic), as_json=json)
    if not detach and children:
        number = run(_watch(home))
        stop(children)
        raise typer.Exit(128 + number)


def down(
    *,
    brokers: Annotated[
        list[str] | None, typer.Argument(metavar="[BROKER]...", help="Only these; the others go on.")
    ] = None,
    wipe: Annotated[
        bool, typer.Option("--wipe", help="Also delete the folder, with all that was published.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Stop the brokers of a local network; the folder and everything in it stays, unless --wipe is said."""
    home = contexts.find_directory(directory, context)
    if not (home / "genesis.json").is_file():
        output.fail(f"{home} holds no network", output.ExitCode.WRONG_USE)
    if brokers and wipe:
        raise typer.BadParameter("it is for whole networks.", param_hint="--wipe")
    if not (there := brokers_of(home)):
        output.fail(
            f"there are no brokers in {home}, so there is nothing to stop here", output.ExitCode.WRONG_USE
        )
    if wipe and not yes:
        output.ask(f"Delete {home} with all keys and everything published?", as_json=json)
    with locked(home):
        stopped, killed = stop(local_one.chosen(there, brokers, home) if brokers else there)
        if wipe:
            _wipe(home)
    for name in killed:
        output.note(f"{name} did not stop in time and was killed")
    words = f"stopped {', '.join(stopped)}" if stopped else "nothing was running"
    result = {"directory": str(home), "stopped": stopped, "killed": killed, "wiped": wipe}
    output.emit(result, f"{words}{f'; {home} is deleted' if wipe else ''}", as_json=json)


# -- starting -------------------------------------------------------------------------------------------------------


def _check(home: Path, genesis: Genesis, orgs: int | None, *, created: bool) -> None:
    there = len(genesis.organisations)
    if created:
        output.note(
            f"{home} now holds the secret keys of all {there} organisations, readable by you alone: a network to try things "
            "out. In a real one each organisation keeps its own; see `parley init --help`."
        )
    elif orgs is not None and orgs != there:
        output.fail(
            f"{home} holds a network of {there} organisations already; choose another --dir, or delete it with "
            f"`parley down --wipe --dir {home}`",
            output.ExitCode.WRONG_USE,
        )
    if len(local_brokers(home, genesis)) < len(all_brokers(genesis)):
        output.fail(
            f"{home} holds one organisation's part of a network; run its broker with `parley node --dir {home}`",
            output.ExitCode.WRONG_USE,
        )


def _start(brokers: list[LocalBroker]) -> Children:
    waiting = [broker for broker in brokers if broker.pid() is None]
    for broker in waiting:
        if not is_free(broker.address):
            output.fail(
                f"another program listens at {broker.address}, the address of {broker.name}; stop it first, or make a "
                "new network in another --dir",
                output.ExitCode.UNREACHABLE,
            )
    return {broker: broker.start() for broker in waiting}


async def _settle(home: Path, genesis: Genesis, children: Children) -> None:
    """Wait until every broker is ready, then put clients and topic on the ledger."""
    count = len(all_brokers(genesis))
    with output.reaching("starting brokers") as reached:
        reached(0, count)

        def all_ready(found: dict[str, str]) -> bool:
            ready = sum(state == "ready" for state in found.values())
            reached(ready, count)
            return ready == count

        limit = local_one.START_SECONDS + SECONDS_PER_BROKER * count
        await local_one.settled(home, children, all_ready, "the brokers are not ready", limit)
    await local_setup.register(home, genesis)


async def _watch(home: Path) -> int:
    """Tell of changes until a signal comes; which one."""
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, _once, told, number)
    async with observing(contexts.find(home, None)) as client:
        before = await states(client)
        while True:
            await asyncio.wait([told], timeout=WATCH_SECONDS)
            if told.done():
                break
            now = await states(client)
            for name, state in now.items():
                if state != before.get(name):
                    output.note(f"{name} is {state}")
            before = now
    return told.result()


def _once(told: asyncio.Future[int], number: int) -> None:
    if not told.done():
        told.set_result(number)


# -- contexts and words ---------------------------------------------------------------------------------------------


def _save_context(home: Path, asked: str | None) -> str | None:
    """Save the network under the name that was asked for, or as `local` if it is in the default folder."""
    if asked is None and home.resolve() != contexts.DEFAULT_DIRECTORY.resolve():
        return None
    name = asked or LOCAL
    file = read_context(home / contexts.FILE)
    path = contexts.saved_path(name)
    if path.exists():
        other = read_context(path).genesis
        if other.resolve() != file.genesis.resolve():
            if other.exists():
                output.note(
                    f"your context {name} stays with {other}; save this one under another name with --context NAME"
                )
                return None
            output.note(f"your context {name} named {other}, which is gone; it now names {home}")
    contexts.save(name, file.genesis, file.identity, file.admin, brokers=file.brokers, shard=file.shard)
    current = _chosen_context()
    if current in {None, name}:
        contexts.set_current(name)
    else:  # `parley verify` trusts the current context, and others may have made this folder
        output.note(f"your current context stays {current}; `parley context use {name}` chooses this network")
    return name


def _chosen_context() -> str | None:
    """The current context; None if there is none that can be used."""
    try:
        current = current_context()
        return current if current is not None and context_path(current).exists() else None
    except ContextError:
        return None


def _wipe(home: Path) -> None:
    """The folder, and the user's contexts that name it."""
    genesis = (home / "genesis.json").resolve()
    for name in context_names():
        if read_context(context_path(name)).genesis.resolve() == genesis:
            contexts.remove(name)
    shutil.rmtree(home.resolve())  # it does not follow links


def _greeting(home: Path, genesis: Genesis, started: int, name: str | None, topic: str | None) -> str:
    is_found = home.resolve() == contexts.DEFAULT_DIRECTORY.resolve() or name == _chosen_context()
    here = "" if name is not None and is_found else f" --dir {home}"
    running = "started" if started else "running already"
    hints = (f"sub {topic}{here} --from earliest", f"pub {topic}{here} hello")
    if topic is None:
        hints = (f"client create NAME{here}", f"topic create NAME{here}")
    return (
        f"{len(all_brokers(genesis))} brokers of {len(genesis.organisations)} organisations are ready, {running}; "
        f"stop them with `parley down{here}`.\n"
        f"Try:  parley {hints[0]}\n"
        f"      parley {hints[1]}"
    )
