"""How a broker runs its application: with what it has read lately in memory, and never with less than a repair has written."""

from tests.application.world import World

from parley.ledger import layout
from parley.ledger.recent import RecentStates
from parley.model.refusals import OK
from parley.modules.topics.tables import TOPICS
from parley.node.execution import MeasuredMachine
from parley.node.holding import Holding
from parley.node.telemetry.tally import Tally


def test_the_next_block_reads_what_a_repair_has_written() -> None:
    world = World()
    alice = world.client("alice")
    world.topic("wards")
    # The writes of the world's blocks never reach this memory, as if they had come from a snapshot.
    measured = MeasuredMachine(world.machine, Holding(), RecentStates({}, world.height), Tally())

    def publish() -> str:
        batch = world.publication(alice, "wards")
        results = measured.apply(world.next_block([batch]), [(batch.digest, batch.body)], world.store)
        return results.receipts[0].code

    assert publish() == OK
    entry = layout.ENTRIES + TOPICS.key("wards")
    world.store.write([(entry, None)])
    measured.repaired([entry])
    assert publish() == "UnknownTopic"
