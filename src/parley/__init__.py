"""Parley: a Byzantine-fault-tolerant publish/subscribe network for organisations that do not trust each other.

It offers all of `parley.client` and `parley.client.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from parley.client import *  # noqa: F403
    from parley.client.errors import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        # The client is loaded when it is first used: a program that needs only a part of the package pays only for that.
        if name == "__all__":
            return _names()
        if not name.startswith("_"):
            client, errors = import_module("parley.client"), import_module("parley.client.errors")
            if name in client.__all__:
                return getattr(client, name)
            if name in errors.__all__:
                return getattr(errors, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _names() -> list[str]:
    """What the package offers."""
    client, errors = import_module("parley.client"), import_module("parley.client.errors")
    return sorted(["__version__", *client.__all__, *errors.__all__])


def __dir__() -> list[str]:
    return sorted({*globals(), *_names()})
