"""How long batches wait is known for those who watch, also after a restart, and for no more batches than wait."""

from __future__ import annotations

from tests.replica.driver import Cluster, done, submitted

from parley.replica.arrivals import Arrivals

A, B, C = b"a", b"b", b"c"


def test_the_oldest_is_the_one_that_came_first_of_those_that_still_wait() -> None:
    arrivals = Arrivals()
    arrivals.came([A], 10)
    arrivals.came([B, C], 20)
    arrivals.came([A], 30)  # it has been there since 10
    assert arrivals.oldest == 10
    arrivals.gone([A, b"unknown"])
    assert arrivals.oldest == 20
    arrivals.gone([B, C])
    assert arrivals.oldest is None


def test_a_batch_that_waited_before_a_restart_waits_since_the_restart() -> None:
    cluster = Cluster().start()
    names = submitted(cluster)
    before = cluster.members[0].replica.waiting_since
    assert before is not None
    cluster.outbox.now += 1_000
    cluster.restart(0)
    after = cluster.members[0].replica.waiting_since
    assert after is not None
    assert after >= before + 1_000
    cluster.run_until(lambda: done(cluster, names))
    cluster.run(50)
    assert cluster.members[0].replica.waiting_since is None
