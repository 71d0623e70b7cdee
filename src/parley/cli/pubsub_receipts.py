"""Where `parley pub` keeps receipts; whether it can is found out before anything is published."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

import msgspec
import typer

from parley.cli import output
from parley.cli.contexts import FILE, Chosen
from parley.client.contexts import read_genesis
from parley.client.messages import Receipt
from parley.modules.publishing.proof import encode_publication

SLASH = "+"  # for that of a topic's name, which has no plus: no two topics share a file


class Receipts:
    """Where receipts go, as --receipt says."""

    def __init__(self, chosen: Chosen, option: str | None) -> None:
        self._chosen = chosen
        self._option = option
        self.unsaved = 0

    def check(self, *, single: bool) -> None:
        """End the command, before it publishes anything, if receipts that are to be saved cannot be."""
        if self._option in {"-", "none"} or (self._option is None and not single):
            return
        if self._option is None:
            folder = self._folder()
            with suppress(OSError):  # what is wrong with it is told below
                folder.mkdir(parents=True, exist_ok=True)
        else:
            path = Path(self._option)
            folder = path if path.is_dir() else path.parent
            if not path.is_dir() and os.path.lexists(path):
                raise _refusal(f"{path} exists and is not overwritten; move it away, or name a new file")
        if not folder.is_dir():
            raise _refusal(f"there is no folder {folder}; make it, or name another")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise _refusal(f"you may not write to {folder}; name another folder, or none to keep no receipt")

    def keep(self, receipt: Receipt, *, single: bool) -> str | msgspec.Raw | None:
        """Save the receipt, if it is to be saved; the answer is what is said of it."""
        if self._option == "none" or (self._option is None and not single):
            return None
        if self._option == "-":
            return msgspec.Raw(encode_publication(receipt.proof()).rstrip(b"\n"))
        path = self._path(receipt, single=single)
        try:
            path.parent.mkdir(parents=self._option is None, exist_ok=True)
            receipt.save(path)
        except OSError as error:
            self.unsaved += 1
            if self.unsaved == 1:
                _tell(receipt, path, error)
            return None
        return str(path)

    def _path(self, receipt: Receipt, *, single: bool) -> Path:
        topic = receipt.topic.replace("/", SLASH)
        name = f"parley-receipt-{topic}-{receipt.partition}-{receipt.offset}.json"
        if self._option is None:
            return self._folder() / name
        given = Path(self._option)
        return given if single and not given.is_dir() and not self._option.endswith("/") else given / name

    def _folder(self) -> Path:
        home = self._chosen.directory
        if (home / FILE).is_file():
            return home / "receipts"
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        return state / "parley" / "receipts" / read_genesis(self._chosen.file.genesis).chain.hex()[:16]


def _refusal(problem: str) -> typer.BadParameter:
    return typer.BadParameter(f"{problem}. Nothing was published.", param_hint="--receipt")


def _tell(receipt: Receipt, path: Path, error: OSError) -> None:
    place = f"{shlex.quote(receipt.topic)}@{receipt.offset} -p {receipt.partition}"
    output.note(
        f"parley: published at offset {receipt.offset}, but the receipt could not be saved: {path}: {error.strerror}; "
        f"do not publish it again, `parley read {place} --proof FILE` saves the same proof"
    )
