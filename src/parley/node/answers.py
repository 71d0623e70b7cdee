"""What answers have in common: what building one takes, how large it may be, and what one reader may see of messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from parley.ledger.proofs import StateEntry
from parley.model.batches import Message, Withheld
from parley.model.principals import Principal
from parley.modules.registry.tables import CLIENTS
from parley.modules.retention.refusals import Pruned
from parley.modules.topics.access import allows
from parley.modules.topics.tables import HEADS
from parley.net.messages import Content, Skipped
from parley.node.view import View

# Everybody else waits while an answer is built; only what cannot be divided may go above these.
MAX_SHOWN_BYTES = 1024 * 1024
MAX_SHOWN_MESSAGES = 2_000  # of a stream
PROOF_COST = 6 * 1024  # bytes of a block's header and paths, about
MESSAGE_COST = 64  # bytes of a message besides its parts, about
RULE_COST = 16 * 1024  # bytes that take as long as a rule that is read for the first time

# What building an answer takes, in bytes of what its client may use besides the answer's own.
MESSAGE_WORK = 2 * 1024
PROOF_WORK = 24 * 1024  # a block that something is shown of, and
LEAF_WORK = 1024  # each of its receipts, shown or not: a proof needs the tree of all of them
RULE_WORK = 256 * 1024
KEY_WORK = 128 * 1024  # a proof


@dataclass
class Reading:
    """Which messages one reader may see, and whether any was withheld from it."""

    view: View
    principal: Principal
    withheld: bool = False
    verdicts: dict[str, bool] = field(default_factory=dict)  # by rule, for this view and this reader

    def shows_all(self, rules: Iterable[str]) -> bool:
        """Whether nothing with these rules is withheld."""
        return all(map(self._allows, rules))

    def show(self, message: Message) -> Message | Withheld:
        if message.rule and not self._allows(message.rule):
            self.withheld = True
            return message.withheld()
        return message

    def _allows(self, rule: str) -> bool:
        verdict = self.verdicts.get(rule)
        if verdict is None:
            verdict = self.verdicts[rule] = allows(rule, self.principal)
        return verdict

    def reader(self) -> StateEntry | None:
        """The proof of the attributes that something was withheld for."""
        return self.view.entry(CLIENTS.key(self.principal.key)) if self.withheld else None


def require_kept(view: View, topic: str, partition: int, offset: int) -> None:
    """Raises `Pruned` if the retention of the messages at this offset is over."""
    head = view.read(HEADS, topic, partition)
    if head is not None and offset < head.log_start_offset:
        raise Pruned(topic=topic, partition=partition, start=head.log_start_offset)


def shown_work(contents: Iterable[Content]) -> int:
    shown = list(contents)
    rules = {content.rule for content in shown if not isinstance(content, Skipped)} - {""}
    return MESSAGE_WORK * len(shown) + RULE_WORK * len(rules)
