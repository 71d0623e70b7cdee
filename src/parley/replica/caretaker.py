"""The keeper of the local store: it looks at every record in turn, mends what is damaged, fills in what a snapshot left
out, and erases what retention has ended. Nothing it does can change what is replicated. Sans-IO.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley.consensus.events import Send, SetTimer
from parley.consensus.types import Block
from parley.ledger.application import Application, KeyValue
from parley.replica.ports import Found, Write
from parley.sync.messages import Records, RecordsRequest, Values, ValuesRequest
from parley.sync.timers import CareTimer

__all__ = ["Caretaker", "Effect", "FetchBodies"]


@dataclass(frozen=True, slots=True)
class FetchBodies:
    """Get the batches of this executed block from others."""

    block: Block


Effect = Send | SetTimer[CareTimer] | Write | Found | FetchBodies


class Caretaker:
    """One round per timer. `store` is what the replica reads, with its own writes of this step."""

    def __init__(self, index: int, size: int, store: KeyValue, application: Application) -> None:
        self._index = index
        self._size = size
        self._store = store
        self._application = application

    def start(self) -> list[Effect]:
        return []

    def on_timer(self, timer: CareTimer, executed: int) -> list[Effect]:
        """`executed`: the height of the state in the store."""
        del timer, executed
        return []

    def receive_records(self, sender: int, records: Records) -> list[Effect]:
        del sender, records
        return []

    def receive_values(self, sender: int, values: Values) -> list[Effect]:
        del sender, values
        return []

    def answer_records(self, request: RecordsRequest) -> Records:
        return Records(request.size, ())

    def answer_values(self, request: ValuesRequest) -> Values:
        return Values(request.keys, tuple(None for _ in request.keys))
