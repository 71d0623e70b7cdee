"""What a client offers to the parts of it that speak to one module each."""

from __future__ import annotations

from abc import ABC, abstractmethod

from parley.application.operations import Operation
from parley.application.tables import K, R, Table
from parley.client.messages import OperationReceipt


class Operating(ABC):
    """Orders operations and reads tables of the network's application."""

    @abstractmethod
    async def operate(self, operation: Operation) -> OperationReceipt:
        """Order an operation and wait for its certified receipt."""

    @abstractmethod
    async def entries(self, table: Table[R, *K], *leading: object) -> list[tuple[tuple[*K], R]]:
        """The certified entries of a table whose key begins with these values."""
