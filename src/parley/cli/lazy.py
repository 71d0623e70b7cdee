"""Commands that are imported only when they are asked for: a daily command should not wait for the simulator."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group


class Later(NamedTuple):
    """Where a command is: the name in the module of a `Typer`, or of a function."""

    module: str
    name: str
    panel: str


def later(commands: dict[str, Later]) -> type[TyperGroup]:
    """A group with these commands besides the ones that are registered."""

    class Group(TyperGroup):
        # Typer's names for the types of contexts and commands are private, and change.

        def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
            if cmd_name in commands and cmd_name not in self.commands:
                self.commands[cmd_name] = _load(cmd_name, commands[cmd_name])
            return super().get_command(ctx, cmd_name)

        def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401
            """For the help, and for the suggestions when a name is wrong."""
            for name in commands:
                self.get_command(ctx, name)
            return super().list_commands(ctx)

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
            if args and self.get_command(ctx, args[0]) is None:
                self.list_commands(ctx)
            return super().resolve_command(ctx, args)

    return Group


def _load(name: str, where: Later) -> Any:  # noqa: ANN401
    found: typer.Typer | Callable[..., None] = getattr(import_module(where.module), where.name)
    made: Any
    if isinstance(found, typer.Typer):
        made = get_group(found)
    else:
        alone = typer.Typer(add_completion=False)
        alone.command(name)(found)
        made = get_command(alone)
    made.name, made.rich_help_panel = name, where.panel
    return made
