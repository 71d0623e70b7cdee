"""What runs on a broker's disk as it is: a replica, or what has to put the disk in order first."""

from __future__ import annotations

from parley.consensus.record import SafetyState
from parley.crypto.qc import QCScheme, Signer
from parley.ledger.application import Application
from parley.replica.ports import LocalStore, Participant
from parley.replica.replica import Replica, ReplicaConfig

__all__ = ["awaken"]


def awaken(
    config: ReplicaConfig,
    signer: Signer,
    scheme: QCScheme,
    application: Application,
    *,
    record: tuple[int, SafetyState],
    store: LocalStore,
    nonce: bytes,
) -> Participant:
    """At every start, and again after every `Restart`."""
    return Replica(config, signer, scheme, application, record=record, store=store, nonce=nonce)
