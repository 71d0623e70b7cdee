"""The `parley` command."""

from parley.cli.app import main

__all__ = ["main"]
