"""`parley demo`: a guided tour."""

import typer

from parley.cli.output import Json

__all__ = ["demo"]


def demo(json: Json = False) -> None:  # noqa: ARG001
    """Watch a small network agree while one replica lies and one crashes."""
    raise typer.BadParameter("the demo is not there yet")
