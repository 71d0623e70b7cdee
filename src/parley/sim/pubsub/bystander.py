"""A client that asks for little, of another organisation than the one that asks for much: it must not wait long."""

from __future__ import annotations

from parley.model.receipts import BatchReceipt
from parley.model.refusals import DUPLICATE
from parley.modules.staging.operations import CommitStage
from parley.modules.staging.receipts import is_staged
from parley.modules.topics.operations import CreateTopic, Policy
from parley.sim.observations import Served
from parley.sim.pubsub.author import Author
from parley.sim.pubsub.people import People
from parley.sim.pubsub.post import Post
from parley.sim.pubsub.roles import Administrator, enough, message, nothing

TOPIC = "quiet"
PUBLICATION, STAGED_ROW = "publication", "staged row"
ASKED = (PUBLICATION, PUBLICATION, PUBLICATION, STAGED_ROW, PUBLICATION, PUBLICATION, STAGED_ROW)
STEPS = {PUBLICATION: 1, STAGED_ROW: 2}  # batches that have to be ordered, one after the other
STAGED_HEIGHTS = 1_000
UNSERVED = b"bystander"  # in the place of a digest


class Bystander:
    """Asks for one thing after the other, and notes how long each took."""

    def __init__(self, post: Post, people: People, administrator: Author, author: Author) -> None:
        self._post = post
        self._author = author
        registration = people.registration(author.person, ())
        self._setup = Administrator(
            administrator,
            post,
            [
                (0, CreateTopic(TOPIC, 1, Policy(), "", ""), nothing),
                (0, registration, self._enter),
            ],
        )
        self._registered = self._begun = False
        self._left = list(ASKED)
        self._stage = 0

    def start(self) -> None:
        self._setup.start()

    def begin(self) -> None:
        """Ask, from now on or from its registration on."""
        if not self._begun:
            self._begun = True
            self._ask_first()

    @property
    def unserved(self) -> tuple[bytes, ...]:
        return (UNSERVED,) if self._left else ()

    def _enter(self) -> None:
        self._registered = True
        self._ask_first()

    def _ask_first(self) -> None:
        if self._registered and self._begun:
            self._ask()

    def _ask(self) -> None:
        self._since = self._post.world.now, self._view()
        if self._left[0] == PUBLICATION:
            self._author.publish(TOPIC, 0, (message(self._author.chance),), self._served)
        else:
            self._author.stage(
                (TOPIC, 0), (message(self._author.chance),), self._stage, STAGED_HEIGHTS, self._staged
            )

    def _staged(self, receipt: BatchReceipt) -> None:
        topic_id = self._post.topic_id(TOPIC)
        commit = CommitStage(TOPIC, self._author.session, self._stage, (receipt.digest,), topic_id=topic_id)
        self._stage += 1
        self._post.expect(receipt.digest, self._numbered)
        self._author.operate(commit, enough)

    def _numbered(self, receipt: BatchReceipt) -> None:
        if is_staged(receipt) or receipt.code == DUPLICATE:  # the same receipt as before, of another replica
            self._post.expect(receipt.digest, self._numbered)
        else:
            self._served(receipt)

    def _served(self, _receipt: BatchReceipt) -> None:
        time, view = self._since
        world = self._post.world
        asked = self._left.pop(0)
        world.observe(Served(asked, STEPS[asked], self._view() - view, world.now - time))
        if self._left:
            self._ask()

    def _view(self) -> int:
        return max(host.view for host in self._post.world.correct)
