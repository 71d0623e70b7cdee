"""`parley init`, `parley genesis` and `parley node`: one real node per machine, from keys to a running broker."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from parley.cli import ceremony, contexts, output
from parley.cli.backup import backup, restore
from parley.cli.ceremony_settle import GENESIS, ours, settle, write
from parley.cli.local_folder import made_whole, provisioning, require_node_extra
from parley.cli.pubsub_values import choice
from parley.cli.recover import recover
from parley.cli.renew import install, reload, renew, request, sign
from parley.consensus.committee import faults
from parley.model.genesis import GenesisError
from parley.model.names import is_name
from parley.net.tls import Address, AddressError
from parley.node.processes import LocalBroker

genesis_app = typer.Typer(help="Make the genesis file of a network together.", no_args_is_help=True)


class _RunsUnlessTold(TyperGroup):
    """`parley node` runs a broker, unless it names something else to do with one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - private names of Typer
        first = args[0] if args else ""
        return super().parse_args(ctx, args if first in {*self.commands, "--help"} else ["run", *args])


node_app = typer.Typer(
    cls=_RunsUnlessTold,
    help="Run one broker: `parley node` is `parley node run`. Or back one up, or bring one back that lost its disk.",
)


def init(
    *,
    organisation: Annotated[str, typer.Argument(metavar="ORG", help="The name of your organisation.")],
    address: Annotated[
        list[str],
        typer.Option(metavar="HOST:PORT", help="Where the others reach your broker; one per broker."),
    ],
    broker: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Your broker, by default ORG-1; repeatable.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where it listens, if not at its address.")
    ] = None,
    auditor: Annotated[
        bool,
        typer.Option(
            "--auditor",
            help="Ask for the right to read whole blocks; the others agree by signing the genesis.",
        ),
    ] = False,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Make the keys of your organisation and its brokers, and the public part to hand to the others.

    With --context the network is saved under that name, too.
    """
    require_node_extra("init")
    home = directory or contexts.DEFAULT_DIRECTORY
    brokers = _paired(organisation, broker or [f"{organisation}-1"], address, listen)
    if home.is_dir() and any(home.iterdir()):
        output.fail(f"{home} is not empty; choose another folder with --dir", output.ExitCode.WRONG_USE)
    made_whole(home, lambda folder: _create(folder, organisation, brokers, listen, auditor=auditor))
    path = _part_path(home, organisation)
    if context is not None:
        admin = home / "identities" / f"{organisation}-admin.json"
        contexts.save(context, home / "genesis.json", admin, admin)
    output.emit(
        {"organisation": organisation, "brokers": [name for name, _ in brokers], "part": str(path)},
        f"The keys of {organisation} are in {home}; keep them to yourself.\n"
        f"Hand {path} to the other organisations, collect theirs, then run: parley genesis combine PART...",
        as_json=json,
    )


@genesis_app.command("combine")
def combine(
    *,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The parts of all organisations, or their drafts.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write it here only; default: into the folder, with all that follows.",
        ),
    ] = None,
    network: Annotated[str, typer.Option(help="The network's name; all must say the same.")] = "parley",
    depth: Annotated[int, typer.Option(min=2, max=3, help="Commit depth; all must say the same.")] = 2,
    leaders: Annotated[
        str,
        typer.Option(
            parser=choice("round-robin", "cwa", "cwa+"), metavar="SCHEME", help="round-robin, cwa or cwa+."
        ),
    ] = "cwa+",
    allow_faults: Annotated[
        bool,
        typer.Option(
            "--allow-faults", help="Brokers may be told to lie: for tests only. All must say the same."
        ),
    ] = False,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Combine the parts into a draft and sign it; combine the drafts of all into the genesis file.

    Everybody who combines the same parts gets the same draft: compare its fingerprint before you use it.
    """
    require_node_extra("genesis combine")
    home = contexts.find_directory(directory, context) if context else directory or contexts.DEFAULT_DIRECTORY
    if not is_name(network):
        raise typer.BadParameter("use 1 to 32 of a-z, 0-9 and -.", param_hint="--network")
    settings = ceremony.Settings(network, cast("Any", depth), cast("Any", leaders), allow_faults)
    with provisioning():
        try:
            draft = _signed_here(_draft(files, settings), home)
            unsigned = ceremony.missing(draft)
            data = ceremony.encode_file(draft) if unsigned else ceremony.finished(draft)
        except (ceremony.CeremonyError, GenesisError) as error:
            output.fail(str(error), output.ExitCode.WRONG_USE)
        path = out or home / (_draft_name(draft, home) if unsigned else GENESIS)
        if not unsigned and out is None and ours(draft, home):
            settle(home, draft, data)
        write(path, data)
    result = {
        "complete": not unsigned,
        "file": str(path),
        "chain": draft.genesis.chain.hex(),
        "signed": sorted(draft.signatures),
        "missing": unsigned,
        "organisations": [party.name for party in draft.genesis.organisations],
        "brokers": [broker.name for broker in draft.genesis.brokers],
        "auditors": _auditors(draft),
    }
    _warn(draft)
    elsewhere = home if out is not None and ours(draft, home) else None
    output.emit(result, lambda: _tell(path, draft, unsigned, elsewhere), as_json=json)


@node_app.command("run")
def node(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="A broker.toml; by default the folder's only one."),
    ] = None,
    directory: contexts.Directory = None,
    context: contexts.ContextName = None,
    json: output.Json = False,
) -> None:
    """Run one broker in the foreground, until it is told to stop."""
    require_node_extra("node")
    if config is None:
        home = contexts.find_directory(directory, context)
        found = sorted(home.glob("brokers/*/broker.toml"))
        if len(found) != 1:
            names = ", ".join(str(path) for path in found) or "none"
            raise typer.BadParameter(
                f"{home} has {len(found)} brokers, so say which to run: {names}.", param_hint="CONFIG"
            )
        config = found[0]
    if not config.is_file():
        raise typer.BadParameter(f"there is no file {config}.", param_hint="CONFIG")
    broker = config.resolve().parent
    pid = LocalBroker(broker.name, "", broker, "").pid()
    if pid is not None and pid != os.getpid():  # ids are used again
        output.fail(f"{broker.name} is running already, as process {pid}", output.ExitCode.WRONG_USE)
    words = f"{broker.name} is starting, and runs until Ctrl-C; its log is shown by `parley logs --follow`, unless it is configured elsewhere"
    output.emit({"broker": broker.name, "config": str(config), "pid": os.getpid()}, words, as_json=json)
    # In place of this process, so that signals and supervisors reach the broker itself. -P: with the modules of this
    # command, and not with what may lie in the working directory.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "parley.node", str(config.resolve())])  # noqa: S606


for _command in (recover, renew, request, sign, install, reload, backup, restore):
    node_app.command()(_command)


# -- parts ----------------------------------------------------------------------------------------------------------


def _paired(
    organisation: str, names: list[str], addresses: list[str], listen: str | None
) -> list[tuple[str, str]]:
    for name in (organisation, *names):
        if not is_name(name):
            raise typer.BadParameter(
                f"{name!r} is no name: use 1 to 32 of a-z, 0-9 and -, not - at either end."
            )
    if len(names) != len(addresses) or len(set(names)) != len(names):
        raise typer.BadParameter(
            f"{len(names)} brokers and {len(addresses)} addresses: give each broker a name and an address.",
            param_hint="--address",
        )
    if listen is not None and len(names) != 1:
        raise typer.BadParameter("it can be said for one broker only.", param_hint="--listen")
    for text in filter(None, (*addresses, listen)):
        try:
            Address.parse(text)
        except AddressError as error:
            hint = "--listen" if text == listen else "--address"
            raise typer.BadParameter(f"{error}.", param_hint=hint) from None
    return list(zip(names, addresses, strict=True))


def _create(
    folder: Path, organisation: str, brokers: list[tuple[str, str]], listen: str | None, *, auditor: bool
) -> None:
    from parley.node import keys, provision  # noqa: PLC0415 - an extra

    now = time.time_ns() // 1_000_000
    party = provision.create_organisation(
        folder, organisation, now=now, rights=("auditor",) if auditor else ()
    )
    members = tuple(
        provision.create_broker(folder, organisation, name, address, now=now, listen=listen)
        for name, address in brokers
    )
    anchor = keys.read_key(folder / "organisations" / organisation / "anchor.key")
    _part_path(folder, organisation).write_bytes(
        ceremony.encode_file(ceremony.sign_part(party, members, now, anchor))
    )


# -- drafts ---------------------------------------------------------------------------------------------------------


def _draft(files: list[Path], settings: ceremony.Settings) -> ceremony.Draft:
    read = {str(path): ceremony.read_file(path) for path in files}
    parts = {name: file for name, file in read.items() if isinstance(file, ceremony.Part)}
    drafts = {name: file for name, file in read.items() if isinstance(file, ceremony.Draft)}
    if parts:
        drafts = {"the combined parts": ceremony.Draft(ceremony.combine(parts, settings), {}), **drafts}
    return ceremony.merge(drafts)


def _signed_here(draft: ceremony.Draft, home: Path) -> ceremony.Draft:
    """Signed by the anchors in this folder, after a look at whether the genesis says of us what we said."""
    from parley.node import keys  # noqa: PLC0415 - an extra

    for organisation in ours(draft, home):
        part = ceremony.read_file(_part_path(home, organisation))
        assert isinstance(part, ceremony.Part)
        listed = [broker for broker in draft.genesis.brokers if broker.organisation == organisation]
        if draft.genesis.organisation(organisation) != part.organisation or set(listed) != set(part.brokers):
            raise ceremony.CeremonyError(
                f"what these files say of {organisation} is not what {_part_path(home, organisation)} says; do not use them"
            )
        anchor = keys.read_key(home / "organisations" / organisation / "anchor.key")
        draft = ceremony.sign_draft(draft, organisation, anchor)
    return draft


def _part_path(home: Path, organisation: str) -> Path:
    return home / f"{organisation}.part.json"


def _draft_name(draft: ceremony.Draft, home: Path) -> str:
    return f"{'-'.join(ours(draft, home)) or draft.genesis.network}.draft.json"


def _warn(draft: ceremony.Draft) -> None:
    size = len(draft.genesis.brokers)
    if not faults(size):
        output.note(
            f"parley: this network has {size} broker{'s' if size > 1 else ''}, fewer than 4, so it tolerates no faulty one. "
            "If parts are missing, do not use it: combine the parts of all organisations"
        )
    for name, held in Counter(broker.organisation for broker in draft.genesis.brokers).items():
        if held > faults(size) > 0:
            output.note(
                f"parley: {name} has {held} of {size} brokers, but only {faults(size)} of them may be faulty. If all brokers of "
                f"{name} fail or lie, the network can stop or certify two different orders. Give each organisation at most "
                f"{faults(size)}"
            )


def _auditors(draft: ceremony.Draft) -> list[str]:
    return [party.name for party in draft.genesis.organisations if "auditor" in party.rights]


def _tell(path: Path, draft: ceremony.Draft, unsigned: list[str], elsewhere: Path | None) -> str:
    chain = draft.genesis.chain.hex()
    brokers = (f"{broker.name} of {broker.organisation}" for broker in draft.genesis.brokers)
    members = f"Its brokers: {', '.join(brokers)}."
    if auditors := _auditors(draft):
        members += (
            f"\nWho signs lets these read everything that is published, as auditors: {', '.join(auditors)}."
        )
    if unsigned:
        return (
            f"{path}: signed by {', '.join(sorted(draft.signatures)) or 'nobody'}, missing {', '.join(unsigned)}.\n"
            f"{members}\n"
            f"Compare the fingerprint with the others, {chain},\n"
            f"then exchange drafts and run: parley genesis combine DRAFT..."
        )
    left = f"\n{elsewhere} is as it was: to set it up, run this without --output." if elsewhere else ""
    return f"{path} is complete: network {draft.genesis.network}, fingerprint {chain}.\n{members}{left}"
