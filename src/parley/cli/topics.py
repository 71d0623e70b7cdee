"""`parley topic`: streams, who owns them, and the rules over who may publish and subscribe."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

import typer
from rich.table import Table

from parley.cli import output
from parley.cli.contexts import As, ContextName, Directory, find
from parley.cli.network import call
from parley.cli.pubsub_values import Topic, check_rule
from parley.client.administration import TopicInfo
from parley.client.client import Client
from parley.model.expressions import required_values
from parley.model.names import MAX_PARTITIONS
from parley.modules.topics.operations import Policy

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Partitions = Annotated[int | None, typer.Option(min=1, max=MAX_PARTITIONS, help="How many; they only grow.")]
PublishRule = Annotated[
    str | None,
    typer.Option(
        "--publish",
        metavar="RULE",
        help='Who may publish, for example org in ["alpha"] and role == "nurse"; any client if empty.',
    ),
]
SubscribeRule = Annotated[
    str | None,
    typer.Option(
        "--subscribe",
        metavar="RULE",
        help='Who may read, for example org in ["alpha"] and role == "nurse"; any client if empty.',
    ),
]
Retention = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="How long messages stay readable before brokers erase them: 30m, 12h, 7d or forever.",
    ),
]

Matching = Annotated[
    str, typer.Option(metavar="SETTING", help="How brokers match messages with subscriptions; it stays.")
]
Payload = Annotated[str, typer.Option(metavar="SETTING", help="How what is published is sealed; it stays.")]


@app.command()
def create(
    *,
    topic: Topic,
    partitions: Partitions = 1,
    publish: PublishRule = "",
    subscribe: SubscribeRule = "",
    retention: Retention = "forever",
    matching: Matching = "clear",
    payload: Payload = "plain",
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Create a topic; it belongs to your organisation, whose administrators may change it."""
    rules = check_rule(publish or "", "--publish"), check_rule(subscribe or "", "--subscribe")
    lasting = parse_retention(retention or "forever")

    async def work(client: Client) -> TopicInfo:
        _require_setting(client, "matching", matching)
        _require_setting(client, "payload", payload)
        await client.create_topic(
            topic,
            partitions=partitions or 1,
            publish=rules[0],
            subscribe=rules[1],
            policy=Policy(matching, payload, lasting),
        )
        return await client.topic(topic)

    info = call(find(directory, context), who, work, admin=True)
    _warn_of_wide_rules(topic, *rules)
    output.emit(_fields(info), lambda: f"created topic {topic}\n{_words(info)}", as_json=json)


@app.command("list")
def list_topics(
    directory: Directory = None, context: ContextName = None, who: As = None, json: output.Json = False
) -> None:
    """List the topics that you may see."""
    infos = call(find(directory, context), who, Client.topics)
    output.emit({"topics": [_fields(info) for info in infos]}, lambda: _table(infos), as_json=json)


@app.command()
def describe(
    *,
    topic: Topic,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Describe a topic: owner, rules, partitions."""
    info = call(find(directory, context), who, lambda client: client.topic(topic), topic=topic)
    output.emit(_fields(info), lambda: _words(info), as_json=json)


@app.command()
def alter(
    *,
    topic: Topic,
    partitions: Partitions = None,
    publish: PublishRule = None,
    subscribe: SubscribeRule = None,
    retention: Retention = None,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Change a topic's rules, partitions or retention; what is not said stays."""
    if partitions is None and publish is None and subscribe is None and retention is None:
        raise typer.BadParameter("say what to change: --partitions, --publish, --subscribe or --retention.")
    publishing = None if publish is None else check_rule(publish, "--publish")
    subscribing = None if subscribe is None else check_rule(subscribe, "--subscribe")
    lasting = None if retention is None else parse_retention(retention)

    async def work(client: Client) -> TopicInfo:
        await client.alter_topic(
            topic, partitions=partitions, publish=publishing, subscribe=subscribing, retention=lasting
        )
        return await client.topic(topic)

    info = call(find(directory, context), who, work, topic=topic, admin=True)
    _warn_of_wide_rules(topic, publishing, subscribing)
    output.emit(_fields(info), lambda: _words(info), as_json=json)


@app.command()
def delete(
    *,
    topic: Topic,
    directory: Directory = None,
    context: ContextName = None,
    who: As = None,
    json: output.Json = False,
) -> None:
    """Delete a topic; its history can still be proved, and its offsets are never given again."""
    chosen = find(directory, context)
    call(chosen, who, lambda client: client.delete_topic(topic), topic=topic, admin=True)
    output.emit({"deleted": topic}, f"topic {topic} is deleted", as_json=json)


def parse_retention(text: str) -> int:
    """In ms of block time; 0 is for ever."""
    if text == "forever":
        return 0
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text)
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no time: say for example 20s, 30m, 12h, 7d, or forever.", param_hint="--retention"
        )
    if int(found[1]) == 0:
        raise typer.BadParameter(f"{text!r} must be more than 0, or forever.", param_hint="--retention")
    return int(found[1]) * _UNITS[found[2]]


def _require_setting(client: Client, dial: str, setting: str) -> None:
    """Say what there is to choose from before brokers refuse."""
    settings = client.application.settings[dial]
    if setting not in settings:
        raise typer.BadParameter(
            f"topics of this network may have the {dial} setting {' or '.join(settings)}, not {setting!r}.",
            param_hint=f"--{dial}",
        )


def _warn_of_wide_rules(topic: str, publish: str | None, subscribe: str | None) -> None:
    """Warn of rules that name no organisations: each organisation grants its own clients any attribute."""
    for option, rule in (("--publish", publish), ("--subscribe", subscribe)):
        if rule and rule != "true" and required_values(rule, "org") is None:
            wanted = f'org in ["NAME", ...] and ({rule})'
            output.note(
                f"parley: {option} {rule} can be true for clients of any organisation, or of some that it does not name: "
                "administrators give their own clients any attribute. To admit some organisations only: "
                f"parley topic alter {topic} {option} {shlex.quote(wanted)}"
            )


def _whom(rule: str) -> str:
    return "any client" if rule in {"", "true"} else rule


def _lasting(milliseconds: int) -> str:
    if milliseconds == 0:
        return "forever"
    unit = max((unit for unit, size in _UNITS.items() if milliseconds % size == 0), key=_UNITS.__getitem__)
    return f"{milliseconds // _UNITS[unit]}{unit}"


def _fields(info: TopicInfo) -> dict[str, object]:
    offsets = [{"partition": one.partition, "start": one.start, "end": one.end} for one in info.heads]
    return {
        "name": info.name,
        "organisation": info.organisation,
        "partitions": info.partitions,
        **({"growing": info.growing} if info.growing else {}),
        "publish": info.publish,
        "subscribe": info.subscribe,
        "matching": info.matching,
        "payload": info.payload,
        "retention": info.retention,
        **({"offsets": offsets} if offsets else {}),  # a list of topics does not ask for them
    }


def _words(info: TopicInfo) -> str:
    return "\n".join(
        [
            f"  owner       {info.organisation}",
            f"  partitions  {info.partitions}{f', becoming {info.growing}' if info.growing else ''}",
            f"  publish     {_whom(info.publish)}",
            f"  subscribe   {_whom(info.subscribe)}",
            f"  policy      {info.matching} matching, {info.payload} payload",
            f"  retention   {_lasting(info.retention)}",
            *(f"  offsets     {one.start} up to {one.end}, partition {one.partition}" for one in info.heads),
        ]
    )


def _table(infos: list[TopicInfo]) -> Table | str:
    if not infos:
        return "there is no topic that you may see"
    return output.table(
        ("topic", "owner", "partitions", "publish", "subscribe", "retention"),
        (
            (
                info.name,
                info.organisation,
                str(info.partitions),
                _whom(info.publish),
                _whom(info.subscribe),
                _lasting(info.retention),
            )
            for info in infos
        ),
    )
