"""`parley pub`, `sub`, `fetch` and `read`, with the habits of kcat: stdin lines in, a line per message out."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Protocol

import typer

from parley.cli import output
from parley.cli.contexts import As, ContextName, Directory, find
from parley.cli.network import Verify, call, write
from parley.cli.pubsub_format import TOKENS, Render, as_json, compile_format, visible
from parley.cli.pubsub_reading import going_on, history
from parley.cli.pubsub_values import (
    MAX_OFFSET,
    Topic,
    check_constraint,
    check_topic,
    parse_offset,
    parse_start,
)
from parley.client.client import Client
from parley.client.errors import Invalid
from parley.client.messages import Message
from parley.client.position import Position
from parley.client.proofs import save_proof

MAX_COUNT = 2**31

From = Annotated[str, typer.Option("--from", "-o", metavar="POSITION", help="earliest, latest or an offset.")]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, max=MAX_COUNT, help="Stop after so many.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        help=rf"How to print a message, as in kcat, for example '%o %k %s\n': {TOKENS}.",
    ),
]
Where = Annotated[
    str, typer.Option(metavar="EXPR", help="""Only what matches: ward == "er" and level in [4, 5]""")
]
ShowEmpty = Annotated[
    bool, typer.Option("--show-empty", help="Tell of messages that a rule hides from you, on stderr.")
]


def sub(
    *,
    topic: Topic,
    where: Where = "",
    start: From = "latest",
    count: Count = None,
    ending: Annotated[bool, typer.Option("--exit", "-e", help="Stop at the end of what there is.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Go on where this file says, and keep it up to date; made at first."
        ),
    ] = None,
    form: Format = None,
    show_empty: ShowEmpty = False,
    verify: Verify = "certified",
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.JsonLines = False,
) -> None:
    """Subscribe to a topic and print what is published, in its certified order.

    Ends after --count messages, at the end of the topic with --exit, or at Ctrl-C. With --resume nothing is left out
    between two runs; what was printed last may be printed again if the command is killed. What a topic did not keep until
    it was read is told on stderr.
    """
    if ending and resume is not None:
        raise typer.BadParameter("say --resume or --exit, not both.", param_hint="--resume")
    printer = _Printer(form, show_empty=show_empty, json=json)
    constraint, position = check_constraint(where), parse_start(start)

    async def work(client: Client) -> None:
        if ending:
            await printer.show(history(client, topic, position, constraint), count)
            return
        begin = position if resume is None else _saved(resume) or position
        async with client.subscribe(
            topic, constraint, begin, keep=resume is not None, withheld="yield"
        ) as subscription:

            def note(*, last: bool = True) -> None:
                if resume is not None and (last or not subscription.waiting):
                    _save(subscription.position(), resume)

            note()
            await printer.show(going_on(subscription, note), count, note)

    call(find(directory, context), who, work, topic=topic, verify=verify)


def fetch(
    *,
    topic: Topic,
    partition: Partition = None,
    start: From = "earliest",
    count: Count = None,
    form: Format = None,
    show_empty: ShowEmpty = False,
    verify: Verify = "certified",
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.JsonLines = False,
) -> None:
    """Pull what a topic holds, by offset and without a subscription, to its end."""
    printer = _Printer(form, show_empty=show_empty, json=json)
    position = parse_start(start)

    async def work(client: Client) -> None:
        await printer.show(history(client, topic, position, "", partition), count)

    call(find(directory, context), who, work, topic=topic, verify=verify)


def read(
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC[@OFFSET]", help="The topic, and where in it.")],
    offset: Annotated[
        int | None, typer.Argument(metavar="OFFSET", min=0, max=MAX_OFFSET, help="Where.")
    ] = None,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="Of this partition.")] = 0,
    proof: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write its proof, for `parley verify`.")
    ] = None,
    form: Format = None,
    verify: Verify = "certified",
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.JsonLines = False,
) -> None:
    """Read one publication: `parley read demo@7`."""
    name, at, text = topic.rpartition("@")
    if at and offset is None:
        topic, offset = name, parse_offset(text, "TOPIC@OFFSET")
    if offset is None:
        raise typer.BadParameter("say which: TOPIC@OFFSET, or TOPIC OFFSET.", param_hint="OFFSET")
    check_topic(topic)
    printer = _Printer(form, show_empty=True, json=json)
    message = call(
        find(directory, context),
        who,
        lambda client: client.read(topic, offset, partition=partition),
        topic=topic,
        verify=verify,
    )
    if proof is not None:
        save_proof(message.proof(), proof)
        absent = ", of the batch and without the message, which is hidden from you" if message.empty else ""
        output.note(f"proof: {proof}{absent}")
    printer.print(message)


class _Note(Protocol):
    def __call__(self, *, last: bool) -> None: ...


class _Printer:
    """Writes each message at once: the reader of a pipe wants it now."""

    def __init__(self, form: str | None, *, show_empty: bool, json: bool) -> None:
        if form is not None and json:
            raise typer.BadParameter("say --format or --json, not both.", param_hint="--format")
        self._as_json = json
        self._show_empty = show_empty
        self._render: Render = as_json if json else _plain() if form is None else _formatted(form)

    async def show(
        self, messages: AsyncIterator[Message], count: int | None, note: _Note | None = None
    ) -> None:
        """Print messages up to a count; empties count in JSON only, where they are lines. `note` hears of each."""
        shown = 0
        async for message in messages:
            shown += self.print(message)
            if note is not None:
                note(last=shown == count)
            if shown == count:
                return

    def print(self, message: Message) -> bool:
        """Whether the message took a line on stdout."""
        if message.empty and not self._as_json:
            if self._show_empty:
                _tell_empty(message)
            return False
        if message.unopened and not self._as_json:
            _tell_unopened(message)
            return False
        write(self._render(message))
        return True


def _saved(path: Path) -> Position | None:
    """None: the file is yet to be made."""
    try:
        return Position.load(path)
    except FileNotFoundError:
        return None
    except (OSError, Invalid) as error:
        raise typer.BadParameter(f"{path} cannot be used: {error}.", param_hint="--resume") from None


def _save(position: Position, path: Path) -> None:
    try:
        position.save(path)
    except OSError as error:
        raise typer.BadParameter(
            f"{path} cannot be written: {error.strerror}.", param_hint="--resume"
        ) from None


def _plain() -> Render:
    """The value and a newline; on a terminal with place and publisher before it, and without control characters."""
    if not sys.stdout.isatty():
        return lambda message: message.value + b"\n"
    return lambda message: (
        f"\x1b[2m{message.partition}@{message.offset} {visible(message.publisher.encode())}\x1b[0m {visible(message.value)}\n"
    ).encode()


def _formatted(form: str) -> Render:
    return compile_format(form, terminal=sys.stdout.isatty())


def _tell_empty(message: Message) -> None:
    where = f"{message.topic} {message.partition}@{message.offset}"
    output.stderr().print(f"{where}: hidden from you by the rule {message.rule}", style="dim")


def _tell_unopened(message: Message) -> None:
    where = f"{message.topic} {message.partition}@{message.offset}"
    output.stderr().print(f"{where}: cannot be opened: {message.unopened}", style="dim", markup=False)
