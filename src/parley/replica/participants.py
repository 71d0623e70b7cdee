"""What runs on a broker's disk as it is: a replica, or what has to put the disk in order first."""

from __future__ import annotations

from parley.consensus.record import SafetyState
from parley.crypto.qc import QCScheme, Signer
from parley.ledger.application import Mounted
from parley.replica.beginning import ReplicaConfig
from parley.replica.chain import Unusable
from parley.replica.joining import Joiner
from parley.replica.ports import Participant
from parley.replica.replica import Replica
from parley.store.interface import StoreReader


def awaken(
    config: ReplicaConfig,
    signer: Signer,
    scheme: QCScheme,
    mounted: Mounted,
    *,
    record: tuple[int, SafetyState],
    store: StoreReader,
    nonce: bytes,
) -> Participant:
    """At every start, and again after every `Restart`. Raises what nobody but an operator can put right: a safety record
    that is not this broker's, a store of another network, or damage where there are no other brokers to ask.
    """
    try:
        return Replica(config, signer, scheme, mounted, record=record, store=store, nonce=nonce)
    except Unusable as reason:
        if config.instance.size == 1:
            raise
        return Joiner(config, scheme, mounted.machine, record=record, store=store, reason=reason)
