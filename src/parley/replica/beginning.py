"""What a replica begins with: its settings, the disk of a new broker, and what makes a safety record its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from parley.consensus import events, machine
from parley.consensus.errors import Refused, SafetyRecordError
from parley.consensus.record import SLOTS, SafetyState, encode_record
from parley.consensus.safety import abstaining_state, initial_state
from parley.consensus.types import Block, genesis_block, genesis_qc
from parley.consensus.verify import Verifier
from parley.ledger.application import StateMachine
from parley.mempool import pool
from parley.replica.chain import genesis_entries
from parley.replica.ports import Write
from parley.replica.rejoining import Patience


@dataclass(frozen=True, slots=True)
class ReplicaConfig(machine.Config):
    """One broker's settings; times in ms. All brokers of an instance share everything but `index`."""

    genesis_time: int = 0
    leaders: str = "round-robin"
    limits: pool.Limits = field(default_factory=pool.Limits)
    patience: Patience = field(default_factory=Patience)


def provision(
    config: ReplicaConfig, state_machine: StateMachine, *, abstaining: bool = False
) -> tuple[tuple[bytes, ...], Write]:
    """What the disk of a new broker holds: a record per slot, and the genesis block with its state.

    `abstaining`: the broker is not new, but its safety record is lost (P10).
    """
    genesis = genesis_of(config, state_machine)
    first = abstaining_state if abstaining else initial_state
    state = first(config.instance, config.index, genesis_qc(config.instance, genesis))
    records = tuple(encode_record(sequence, state) for sequence in range(SLOTS))
    return records, Write(tuple(genesis_entries(genesis, state_machine.genesis())), sync=True)


def genesis_of(config: ReplicaConfig, state_machine: StateMachine) -> Block:
    return genesis_block(config.instance, state_machine.genesis().state_root, config.genesis_time)


def require_own(config: ReplicaConfig, state: SafetyState) -> None:
    instance = config.instance
    expected = (instance.chain, instance.shard, instance.epoch, config.index)
    if (state.chain, state.shard, state.epoch, state.signer) != expected:
        raise SafetyRecordError(
            f"The safety record belongs to member {state.signer} of epoch {state.epoch} of another instance, not to member "
            f"{config.index} here. Point the broker at its own data directory; never copy a record between brokers."
        )


def certificates(
    verifier: Verifier, state: SafetyState
) -> tuple[events.VerifiedQC, events.VerifiedTC | None]:
    try:
        return verifier.qc(state.high_qc), None if state.high_tc is None else verifier.tc(state.high_tc)
    except Refused as refusal:
        raise SafetyRecordError(
            f"The safety record holds a certificate that this committee did not make ({refusal}). It was written under "
            f"another genesis file or another set of keys. Point the broker at the genesis file and data directory that "
            f"belong together; do not delete the record."
        ) from None
