"""Whether a client may submit is judged once by each certified header, and always by the newest."""

from __future__ import annotations

from dataclasses import replace as with_fields

import pytest
from msgspec.structs import replace
from tests.application.world import World, tagged
from tests.ledger.shard import ALICE, GENESIS, told

from parley.application.keeping import ReceiptPlace
from parley.application.machine import Machine
from parley.application.operations import Operation
from parley.application.work import OPERATION
from parley.applications import DATA_SHARD
from parley.ledger.application import AdmittedBatch, Receipt
from parley.ledger.proofs import Anchor
from parley.mempool.pool import Intake
from parley.model.principals import ClientRecord
from parley.model.receipts import BatchReceipt, Done, Outcome, Rejected
from parley.model.refusals import (
    Busy,
    Expired,
    NotReady,
    OutOfSequence,
    Refused,
    Revoked,
    UnknownClient,
)
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.operations import Subscribe
from parley.modules.topics.operations import Policy
from parley.modules.topics.tables import TOPICS, TopicRecord
from parley.net.messages import Submit
from parley.node.access import Caller
from parley.node.feed import Feed
from parley.node.submissions import Submissions

ASKER = Caller(ALICE.key, "hospital-a", "alice", None, 2**60)
MACHINE = Machine(DATA_SHARD, GENESIS, 0)
CLIENT = ClientRecord("hospital-a", "alice", ALICE.key, (), False, 1)


class Stage:
    """What submissions see of a broker: a registry with one client, and how often it is looked up."""

    def __init__(self, asker: Caller = ASKER) -> None:
        self.feed = Feed()
        self.client: ClientRecord | None = CLIENT
        self.known = True
        self.ready = True
        self.looked = 0
        self.taken: list[bytes] = []
        self.charged: list[int] = []  # work of operations
        self.topic = TopicRecord("wards", ALICE.organisation, 64, Policy(), "", "", (1, 0), deleted=False)
        self.application = DATA_SHARD
        self.archive = self
        self._maker = World()
        self._maker.chain = GENESIS.chain
        self._time = 0
        self.intake = Intake.TAKEN
        self.places: list[ReceiptPlace | None] = [None]  # of the batch, as they are looked up in turn
        self.waiting = True
        self.executes: int | None = None  # a block, while a batch is taken in
        self.whole = True
        self.outcome: Outcome = Done()  # what the receipt of the batch says
        self.refused: list[tuple[int, Refused]] = []
        self.ticks = 0
        self.full: Busy | None = None  # why there is no room for publications
        self.submissions = Submissions(
            asker,
            self,  # type: ignore[arg-type]
            self.feed,
            self,  # type: ignore[arg-type]
            admit=MACHINE.admit,
            no_room=lambda: self.full,
            ticks=lambda: self.ticks,
            wake=lambda: None,
            receipted=lambda _ms: None,
            charge=self.charged.append,
            refuse=lambda id_, refused: self.refused.append((id_, refused)),
        )

    def certify(self) -> None:
        """A newer header; from now on the registry is shown as of it."""
        self._time += 1
        anchor = told().anchor()
        self.feed.certified(Anchor(replace(anchor.header, time=self._time), anchor.qc))

    def batch(self) -> bytes:
        return self._maker.publication(ALICE, "wards", tagged()).body

    def control(self, operation: Operation) -> bytes:
        return self._maker.control(ALICE, operation).body

    def publish(self) -> str | None:
        """Why a batch of the client is refused; None: it is ordered."""
        body = self.batch()
        number = len(self.taken)
        try:
            self.submissions.submit(Submit(number, body))
        except Refused as refusal:
            assert len(self.taken) == number
            return refusal.code
        assert self.taken[number:] == [body]
        return None

    # -- ledger, view, archive and driver -------------------------------------------------------------------------------

    def view(self) -> Stage:
        if not self.ready:
            raise NotReady("no_results")
        return self

    def read(self, table: object, *key: object) -> ClientRecord | TopicRecord | None:
        if table is TOPICS:
            return self.topic
        if table is not CLIENTS:
            return None
        assert key == (ALICE.key,)
        self.looked += 1
        return self.client

    def holds(self, key: bytes) -> bool:
        assert key == CLIENTS.key(ALICE.key)
        return self.known

    def receipt(self, _digest: bytes) -> ReceiptPlace | None:
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]

    def waits(self, _digest: bytes) -> bool:
        return self.waiting

    def is_whole(self) -> bool:
        return self.whole

    def block(self, _height: int) -> Stage:
        return self

    def leaf(self, _position: int) -> BatchReceipt:
        return BatchReceipt(bytes(32), ALICE.key, "hospital-a/alice", "wards", (1, 0), 0, 1, self.outcome)

    def submit(self, batch: AdmittedBatch) -> Intake:
        self.taken.append(batch.body)
        if self.executes is not None:
            self.feed.applied(self.executes, ())
        return self.intake


def test_an_operation_is_charged_by_what_it_will_touch_and_a_publication_is_not() -> None:
    stage = Stage()
    stage.certify()
    assert stage.publish() is None
    assert stage.charged == []
    for partitions in (64, 1):
        stage.topic = replace(stage.topic, partitions=partitions)
        stage.submissions.submit(
            Submit(
                9 + partitions, stage.control(Subscribe("wards", f"a = {partitions}", stage.topic.created))
            )
        )
    stage.ready = False  # nothing to judge by
    stage.submissions.submit(Submit(8, stage.control(Subscribe("wards", "a = 9", stage.topic.created))))
    assert stage.charged == [OPERATION + 64, OPERATION + 1, OPERATION]


def test_a_client_in_good_standing_is_looked_up_once_for_each_certified_header() -> None:
    stage = Stage()
    for looked in (1, 2, 3):
        stage.certify()
        assert [stage.publish() for _ in range(5)] == [None] * 5
        assert stage.looked == looked


def test_a_revoked_client_is_refused_as_soon_as_a_newer_certified_header_shows_it() -> None:
    stage = Stage()
    stage.certify()
    assert stage.publish() is None
    stage.client = replace(CLIENT, revoked=True, changed=9)
    stage.certify()
    assert [stage.publish() for _ in range(3)] == [Revoked.code] * 3
    stage.certify()
    assert stage.publish() == Revoked.code


def test_a_refusal_is_not_remembered() -> None:
    stage = Stage()
    stage.known = False
    stage.certify()
    assert stage.publish() == UnknownClient.code
    stage.known = True  # executed here, but not certified yet
    stage.client = None
    assert stage.publish() is None


def test_nobody_is_judged_for_good_by_a_broker_that_cannot_show_its_registry() -> None:
    stage = Stage()
    stage.certify()
    stage.ready = False
    assert stage.publish() is None
    stage.ready, stage.client = True, replace(CLIENT, revoked=True)
    assert stage.publish() == Revoked.code


def test_before_anything_is_certified_nothing_is_remembered() -> None:
    stage = Stage()
    assert stage.publish() is None
    stage.client = replace(CLIENT, revoked=True)
    assert stage.publish() == Revoked.code


def test_after_a_halt_the_last_judgement_does_not_stand() -> None:
    stage = Stage()
    stage.certify()
    assert stage.publish() is None
    stage.feed.silence()
    stage.client = replace(CLIENT, revoked=True)
    assert stage.publish() == Revoked.code


def test_an_administrator_of_the_genesis_file_needs_no_registration() -> None:
    stage = Stage(with_fields(ASKER, administers="hospital-a"))
    stage.known, stage.client = False, None
    stage.certify()
    assert [stage.publish() for _ in range(2)] == [None, None]


EARLY = ReceiptPlace(0, 3, False, 0, "refused")  # a batch that came before its turn


@pytest.mark.parametrize(
    ("intake", "refused"),
    [
        (Intake.FULL, Busy("full")),
        (Intake.AUTHOR_FULL, Busy("author_full")),
        (Intake.HALTED, NotReady("halted")),
    ],
)
def test_a_batch_that_is_not_taken_is_refused_and_not_waited_for(intake: Intake, refused: Refused) -> None:
    stage = Stage()
    stage.intake = intake
    with pytest.raises(type(refused)) as found:
        stage.submissions.submit(Submit(1, stage.batch()))
    assert found.value.data == refused.data
    assert (len(stage.submissions), len(stage.feed.waiting)) == (0, 0)


@pytest.mark.parametrize(
    ("intake", "places", "waits", "executes", "ready"),
    [
        # The next receipt is waited for,
        (Intake.TAKEN, [None], True, None, []),
        (Intake.TAKEN, [EARLY], True, None, []),
        (Intake.KNOWN, [None], True, None, []),
        (Intake.KNOWN, [EARLY], True, None, []),
        (Intake.TAKEN, [None], True, 7, []),  # also if another block was executed meanwhile,
        # but not if there is one already and no other will come:
        (Intake.KNOWN, [EARLY], False, None, [(1, (0, 3))]),
        # a network of one broker executes a batch while it takes it in.
        (Intake.TAKEN, [None, EARLY], True, 7, [(1, (0, 3))]),
        (Intake.TAKEN, [None, EARLY], False, 7, [(1, (0, 3))]),
    ],
)
def test_a_batch_that_was_taken_is_waited_for_unless_its_receipt_is_there(
    intake: Intake,
    places: list[ReceiptPlace | None],
    waits: bool,
    executes: int | None,
    ready: list[tuple[int, tuple[int, int]]],
) -> None:
    stage = Stage()
    stage.intake, stage.places, stage.waiting, stage.executes = intake, list(places), waits, executes
    stage.submissions.submit(Submit(1, stage.batch()))
    assert len(stage.feed.waiting) == (0 if ready else 1)
    assert stage.submissions.ready() == ready


LATE = Rejected.of(Expired("late", not_after=3, height=9), 0)
TOO_EARLY = Rejected.of(OutOfSequence(sequence=4, expected=2), 2)


@pytest.mark.parametrize(
    ("whole", "outcome", "is_shown"),
    [
        ((True, True), LATE, True),
        ((False, False), LATE, False),
        ((False, True), LATE, False),  # the receipt was waited for before the older ones were here
        ((True, False), LATE, False),  # it joined again by a snapshot meanwhile
        ((False, False), TOO_EARLY, True),  # that is so whatever came before
        ((False, False), Done(), True),
    ],
)
def test_a_broker_without_its_whole_history_does_not_say_that_a_batch_has_expired(
    whole: tuple[bool, bool], outcome: Outcome, is_shown: bool
) -> None:
    """The batch may have been applied before, and forgotten since: then its receipt is among those that are missing."""
    stage = Stage()
    stage.certify()
    stage.whole, stage.outcome = whole[0], outcome
    body = stage.batch()
    stage.submissions.submit(Submit(1, body))
    stage.whole = whole[1]
    stage.feed.applied(7, [Receipt(MACHINE.admit(body).digest, outcome.code, 3)])
    stage.feed.waiting.certified(7)
    assert stage.submissions.ready() == ([(1, (7, 3))] if is_shown else [])
    assert [(id_, why.code, why.reason) for id_, why in stage.refused] == (
        [] if is_shown else [(1, NotReady.code, "filling_in")]
    )
    assert len(stage.submissions) == 0
