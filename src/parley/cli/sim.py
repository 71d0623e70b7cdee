"""`parley sim`: the deterministic simulator."""

import typer

from parley.cli.output import Json

__all__ = ["app"]

app = typer.Typer(help="Run networks inside a deterministic simulator.", no_args_is_help=True)


@app.command()
def run(json: Json = False) -> None:
    """Run one simulated network from a seed and check its properties."""
    raise typer.BadParameter("the simulator is not there yet")


@app.callback()
def _group() -> None:
    pass
