"""The liars of the simulator, by the names under which a seed, a test or the command line chooses them."""

from parley.sim.byzantine.actor import Actor, Seat
from parley.sim.byzantine.leaders import BatchWithholder, EquivocatingProposer, OldFork, SilentLeader
from parley.sim.byzantine.servers import Crash, Garbler, LyingSync
from parley.sim.byzantine.twofaced import TwoFaced
from parley.sim.byzantine.voters import DoubleVoter, DuplicateSigners, FarFuture, Hasty, Hoarder

__all__ = ["ACTORS", "Actor", "Seat"]

ACTORS: dict[str, type[Actor]] = {
    actor.name: actor
    for actor in (
        EquivocatingProposer,
        SilentLeader,
        Crash,
        DoubleVoter,
        OldFork,
        FarFuture,
        DuplicateSigners,
        LyingSync,
        BatchWithholder,
        Garbler,
        TwoFaced,
        Hoarder,
        Hasty,
    )
}
