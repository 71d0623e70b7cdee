"""`parley bench`: measurements."""

import typer

from parley.cli.output import Json

__all__ = ["app"]

app = typer.Typer(help="Measure.", no_args_is_help=True)


@app.command()
def consensus(quick: bool = False, json: Json = False) -> None:  # noqa: ARG001
    """Measure how many blocks the ordering core commits per CPU-second."""
    raise typer.BadParameter("the measurement is not there yet")


@app.callback()
def _group() -> None:
    pass
