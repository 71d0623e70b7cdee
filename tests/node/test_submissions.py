"""Whether a client may submit is judged once by each certified header, and always by the newest."""

from __future__ import annotations

from dataclasses import replace as with_fields

from msgspec.structs import replace
from tests.ledger.shard import ALICE, GENESIS, told
from tests.pubsub.world import World, tagged

from parley.ledger.proofs import Anchor
from parley.model.batches import open_batch
from parley.model.errors import Code, Refusal
from parley.model.records import ClientRecord, client_key
from parley.net.messages import Submit
from parley.node.access import Asker
from parley.node.feed import Feed
from parley.node.submissions import Submissions
from parley.replica.ports import Refused

ASKER = Asker(ALICE.key, "hospital-a", "alice", False, 2**60)
CLIENT = ClientRecord("hospital-a", "alice", ALICE.key, (), False, 1)


class Stage:
    """What submissions see of a broker: a registry with one client, and how often it is looked up."""

    def __init__(self, asker: Asker = ASKER) -> None:
        self.feed = Feed()
        self.client: ClientRecord | None = CLIENT
        self.known = True
        self.ready = True
        self.looked = 0
        self.taken: list[bytes] = []
        self.archive = self
        self._maker = World()
        self._maker.chain = GENESIS.chain
        self._time = 0
        self._submissions = Submissions(
            asker,
            self,  # type: ignore[arg-type]
            self.feed,
            self,  # type: ignore[arg-type]
            open_batch=lambda data: open_batch(data, GENESIS.chain),
            no_room=lambda: "",
            ticks=lambda: 0,
            wake=lambda: None,
            receipted=lambda _ms: None,
        )

    def certify(self) -> None:
        """A newer header; from now on the registry is shown as of it."""
        self._time += 1
        anchor = told().anchor()
        self.feed.certified(Anchor(replace(anchor.header, time=self._time), anchor.qc))

    def publish(self) -> Code | None:
        """Why a batch of the client is refused; None: it is ordered."""
        batch = self._maker.publication(ALICE, "wards", tagged())
        number = len(self.taken)
        try:
            self._submissions.submit(Submit(number, batch.body))
        except Refusal as refusal:
            assert len(self.taken) == number
            return refusal.code
        assert self.taken[number:] == [batch.body]
        return None

    # -- ledger, view, archive and driver -------------------------------------------------------------------------------

    def view(self) -> Stage:
        if not self.ready:
            raise Refusal(Code.NOT_READY, "this broker is catching up")
        return self

    def get(self, kind: type[ClientRecord], key: bytes) -> ClientRecord | None:
        assert (kind, key) == (ClientRecord, client_key(ALICE.key))
        self.looked += 1
        return self.client

    def holds(self, key: bytes) -> bool:
        assert key == client_key(ALICE.key)
        return self.known

    def receipt(self, _name: bytes) -> None:
        return None

    def submit(self, batch: bytes) -> Refused | None:
        self.taken.append(batch)
        return None


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
    assert [stage.publish() for _ in range(3)] == [Code.REVOKED] * 3
    stage.certify()
    assert stage.publish() is Code.REVOKED


def test_a_refusal_is_not_remembered() -> None:
    stage = Stage()
    stage.known = False
    stage.certify()
    assert stage.publish() is Code.UNKNOWN_CLIENT
    stage.known = True  # executed here, but not certified yet
    stage.client = None
    assert stage.publish() is None


def test_nobody_is_judged_for_good_by_a_broker_that_cannot_show_its_registry() -> None:
    stage = Stage()
    stage.certify()
    stage.ready = False
    assert stage.publish() is None
    stage.ready, stage.client = True, replace(CLIENT, revoked=True)
    assert stage.publish() is Code.REVOKED


def test_before_anything_is_certified_nothing_is_remembered() -> None:
    stage = Stage()
    assert stage.publish() is None
    stage.client = replace(CLIENT, revoked=True)
    assert stage.publish() is Code.REVOKED


def test_after_a_halt_the_last_judgement_does_not_stand() -> None:
    stage = Stage()
    stage.certify()
    assert stage.publish() is None
    stage.feed.silence()
    stage.client = replace(CLIENT, revoked=True)
    assert stage.publish() is Code.REVOKED


def test_an_administrator_of_the_genesis_file_needs_no_registration() -> None:
    stage = Stage(with_fields(ASKER, admin=True))
    stage.known, stage.client = False, None
    stage.certify()
    assert [stage.publish() for _ in range(2)] == [None, None]
