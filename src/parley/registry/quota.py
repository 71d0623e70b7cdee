"""How many records of a kind may exist: in the network, and of these an equal share for each organisation.

Records of revoked clients and deleted topics stay for ever, so they count for ever.
"""

from __future__ import annotations

from parley.model.errors import Code, Refusal
from parley.model.genesis import Genesis
from parley.registry.records import Records

__all__ = ["take"]


def take(records: Records, genesis: Genesis, organisation: str, counter: bytes, limit: int) -> None:
    """Count one more; the last check before it is written. `counter` ends in the word for the kind."""
    what = counter.rpartition(b"/")[2].decode()
    own = counter + b"/" + organisation.encode()
    share = -(-limit // len(genesis.organisations))
    if records.count(own) >= share:
        raise Refusal(
            Code.LIMIT_EXCEEDED,
            f"{organisation} has had the {share} {what} that are its share; revoked and deleted ones count",
        )
    if records.count(counter) >= limit:
        raise Refusal(Code.LIMIT_EXCEEDED, f"the network has had the {limit} {what} that it may have")
    records.add(counter, 1)
    records.add(own, 1)
