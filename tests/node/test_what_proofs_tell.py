"""What the hashes of proofs tell of entries that are not shown: docs/privacy.md promises no more than these tests show."""

from __future__ import annotations

import pytest
from tests.application.world import Actor
from tests.client.ledger import Ledger, note
from tests.node.answering import proven
from tests.node.test_access import Broker

from parley.ledger import state_map
from parley.model.expressions import parse_constraint
from parley.model.receipts import BatchReceipt
from parley.model.refusals import OK
from parley.modules.registry.tables import CLIENTS
from parley.modules.subscriptions.operations import Unsubscribe
from parley.modules.subscriptions.receipts import PartitionStart
from parley.modules.subscriptions.refusals import NotSubscribed
from parley.modules.subscriptions.tables import ORDER_HEADS, SUBSCRIPTIONS
from parley.modules.topics.tables import HEADS, TOPICS
from parley.net.messages import Head, OpenStream, Prove, StreamPosition, encode
from parley.node.pieces import Shelf
from parley.node.streams import Stream
from parley.node.view import View

WHERE = "a = 1"


class Scene(Broker):
    """Dora subscribes to `open`; Alice does not, and asks."""

    def __init__(self) -> None:
        super().__init__()
        self.dora = self.ledger.client("dora", "insurer")
        self.starts = self.ledger.subscribe(self.dora, "open", WHERE)
        self.certify()

    def certify(self) -> View:
        """All that was ordered since is executed, certified and shown from now on."""
        self.view = super().certify()
        return self.view

    def unsubscribe(self, who: Actor) -> None:
        assert self.ledger.do(who, Unsubscribe("open", WHERE)).code == OK

    def stream(self, who: Actor, starts: tuple[PartitionStart, ...]) -> Stream:
        positions = tuple(StreamPosition(one.partition, one.incarnation, one.next_ps) for one in starts)
        question = OpenStream(1, "open", parse_constraint(WHERE).id, positions, 100)
        stream = Stream(question, self.caller(who), 0, Shelf())
        stream.open(self.view)
        return stream

    def next(self, stream: Stream) -> object:
        pushed = stream.next(self.view, 0)
        return None if pushed is None else pushed.answer  # type: ignore[union-attr]


def test_proofs_hold_hashes_of_other_keys_and_no_key() -> None:
    scene = Scene()
    shown = (CLIENTS.key(scene.alice.key), TOPICS.key("open"), HEADS.key("open", 0))
    answer = encode(proven(scene.view, scene.caller(scene.alice), Prove(1, shown)))
    interest = parse_constraint(WHERE)
    for trace in (interest.id, interest.text.encode(), scene.dora.key, b"dora", b"sub/", b"ps/"):
        assert trace not in answer


@pytest.mark.parametrize("table", ["sub", "ps"])
def test_a_guess_of_a_whole_key_can_be_confirmed_by_its_hash(table: str) -> None:
    """Keys are hashed without a salt: who guesses topic, constraint and client finds out by a neighbour of its own choice."""
    scene = Scene()
    constraint = parse_constraint(WHERE).id
    guess = (
        SUBSCRIPTIONS.key("open", constraint, scene.dora.key)
        if table == "sub"
        else ORDER_HEADS.key("open", 0, constraint)
    )
    hashed = state_map.leaf_entry(guess, b"")[:32]
    for number in range(100_000):
        # Of its own subscriptions a client may ask for any, so that it can look next to any key.
        own = SUBSCRIPTIONS.key("open", number.to_bytes(32, "big"), scene.alice.key)
        answer = proven(scene.view, scene.caller(scene.alice), Prove(1, (own,)))
        other = answer.entries[0].proof.other
        if other is not None and other[:32] == hashed:
            return
    raise AssertionError("no key of its own came next to the guessed one")


def test_the_number_of_receipts_of_a_block_counts_the_constraints_that_matched() -> None:
    """A publisher that is alone in a block learns how many, not which and not whose."""
    ledger = Ledger()
    publisher, reader = ledger.client("publisher"), ledger.client("reader")
    ledger.topic("open")
    for where in (WHERE, "a = 1 and b = 2", "a = 2"):
        ledger.subscribe(reader, "open", where)
    ledger.publish(publisher, "open", note("one", a=1, b=2))
    receipt = ledger.leaves(ledger.height)[0]
    assert isinstance(receipt, BatchReceipt)
    assert ledger.receipted(receipt.digest).proof.receipts.size == 1 + 2


# -- streams of clients without a subscription -----------------------------------------------------------------------------


def absent(scene: Scene, who: Actor, answer: object) -> bool:
    """Whether it proves that the client has no subscription, and nothing else."""
    assert isinstance(answer, Head)
    (entry,) = answer.entries
    key = SUBSCRIPTIONS.key("open", parse_constraint(WHERE).id, who.key)
    return scene.ledger.trust.certified(answer.anchor).value(entry, key) is None


def test_a_stream_that_is_opened_before_its_subscription_is_certified_goes_on_when_it_is() -> None:
    """A broker that lags neither refuses it nor calls the order ended."""
    scene = Scene()
    starts = scene.ledger.subscribe(scene.alice, "open", WHERE)
    stream = scene.stream(scene.alice, starts)
    assert absent(scene, scene.alice, scene.next(stream))
    assert scene.next(stream) is None
    scene.certify()
    assert stream.has_news(scene.view, 0)
    answer = scene.next(stream)
    assert isinstance(answer, Head)
    assert [entry.key for entry in answer.entries] == [ORDER_HEADS.key("open", 0, parse_constraint(WHERE).id)]


def test_a_stream_shows_nothing_of_the_order_after_its_subscription_ended() -> None:
    scene = Scene()
    starts = scene.ledger.subscribe(scene.alice, "open", WHERE)
    scene.certify()
    stream = scene.stream(scene.alice, starts)
    assert isinstance(scene.next(stream), Head)
    scene.unsubscribe(scene.alice)
    scene.ledger.publish(scene.dora, "open", note("one", a=1))
    scene.certify()
    assert absent(scene, scene.alice, scene.next(stream))
    scene.unsubscribe(scene.dora)
    scene.certify()
    assert absent(scene, scene.alice, scene.next(stream))


@pytest.mark.parametrize("returns", [False, True])
def test_a_stream_that_was_not_read_meanwhile_shows_nothing_of_the_order_after_its_subscription_ended(
    *, returns: bool
) -> None:
    """Its client chooses when the broker looks at it next: when the order has ended as well, for whatever reason."""
    scene = Scene()
    starts = scene.ledger.subscribe(scene.alice, "open", WHERE)
    scene.certify()
    stream = scene.stream(scene.alice, starts)
    assert isinstance(scene.next(stream), Head)
    scene.unsubscribe(scene.alice)
    scene.ledger.publish(scene.dora, "open", note("one", a=1))
    scene.unsubscribe(scene.dora)
    if returns:
        scene.ledger.subscribe(scene.alice, "open", WHERE)
    scene.certify()
    assert stream.has_news(scene.view, 0)
    if returns:
        with pytest.raises(NotSubscribed):
            scene.next(stream)
    else:
        assert absent(scene, scene.alice, scene.next(stream))
