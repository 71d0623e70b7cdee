"""What can go wrong for a program that uses the client, as exceptions whose messages say what happened and what to do.

Refusals of the network are the classes of `parley.model.refusals` and of the modules' own `refusals`. A module of one's
own brings its own classes; they need not be named here.
"""

from __future__ import annotations

from collections.abc import Mapping

from parley.client.circumstances import Circumstances
from parley.client.texts import TEXTS
from parley.model.refusals import (
    BadSignature,
    Busy,
    Expired,
    Invalid,
    LimitExceeded,
    Malformed,
    NotAuthenticated,
    NotFound,
    NotReady,
    OutOfSequence,
    Oversized,
    ParleyError,
    PermissionDenied,
    Refused,
    Revoked,
    SequenceReused,
    UnknownClient,
    Unsupported,
    WrongChain,
    WrongLedger,
)
from parley.model.texts import add_texts
from parley.modules.registry.refusals import ClientExists
from parley.modules.retention.refusals import Pruned
from parley.modules.staging.refusals import NotStaged, StageOver
from parley.modules.subscriptions.refusals import NotSubscribed
from parley.modules.topics.refusals import TopicExists, TopicReplaced, UnknownPartition, UnknownTopic

__all__ = [
    "BadSignature",
    "Busy",
    "ClientClosed",
    "ClientExists",
    "ContextError",
    "DoubtfulBroker",
    "Expired",
    "IdentityError",
    "Invalid",
    "InvalidConstraint",
    "InvalidMessage",
    "InvalidRule",
    "LimitExceeded",
    "LyingBroker",
    "Malformed",
    "MissingCodec",
    "NotAuthenticated",
    "NotFound",
    "NotReady",
    "NotStaged",
    "NotSubscribed",
    "OutOfSequence",
    "Overloaded",
    "Oversized",
    "ParleyError",
    "PermissionDenied",
    "Pruned",
    "PutOff",
    "Redacted",
    "Refused",
    "Revoked",
    "SequenceReused",
    "StageOver",
    "Stalled",
    "TopicExists",
    "TopicReplaced",
    "Undecryptable",
    "UnknownClient",
    "UnknownPartition",
    "UnknownTopic",
    "Unreachable",
    "Unsupported",
    "WrongChain",
    "WrongLedger",
]

add_texts(TEXTS)


class ContextError(ParleyError):
    """A context, genesis or identity file cannot be used; the message names the file and what is wrong with it."""


class IdentityError(ContextError):
    """The identity file is not there, cannot be read, or holds a credential that this network does not take."""


class ClientClosed(ParleyError):  # noqa: N818 - it names the condition
    """The client was closed while the operation was under way; whether it takes effect is not known."""


class InvalidMessage(ParleyError, ValueError):  # noqa: N818 - it names the condition
    """A message or attribute that is not sent: a part is outside its limits, or no expression could name it."""


class Redacted(ParleyError):  # noqa: N818 - it names the condition
    """The content of a message that its rule hides from this reader was asked for; `rule` is that rule."""

    def __init__(self, topic: str, partition: int, offset: int, rule: str) -> None:
        super().__init__(
            f"The message in partition {partition} at offset {offset} of {topic} is redacted: its rule {rule} does not let "
            f"this client read its content. Look at `message.empty` before you ask for content; `subscribe` and `fetch` skip "
            f'such messages unless you say `withheld="yield"`. If you should be able to read it, ask its publisher.'
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.rule = rule


class Undecryptable(ParleyError):  # noqa: N818 - it names the condition
    """The content of a message that its topic's codec could not open was asked for; `reason` says why."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(
            f"The message in partition {partition} at offset {offset} of {topic} cannot be opened: {reason}. It was published "
            f"like this, and the others are not concerned. Look at `message.unopened` before you ask for content, or have such "
            f'messages left out with `on_undecryptable="skip"`.'
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.reason = reason


class MissingCodec(ParleyError):  # noqa: N818 - it names the condition
    """A topic's policy has a setting that this program has no codec for: it can neither publish there nor read."""

    def __init__(self, topic: str, dial: str, setting: str) -> None:
        super().__init__(
            f"Topic {topic} has the {dial} setting {setting}, and this program has no codec for it. Install a release of "
            f"Parley that has one, or name codecs of your own with `connect(codecs=...)` or PARLEY_CODECS=MODULE:NAME."
        )
        self.topic = topic
        self.dial = dial
        self.setting = setting


class _TextError(ParleyError, ValueError):
    """A text is not in the language that it should be in; `position` counts characters from 0."""

    _kind: str

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"the {self._kind} {text!r} cannot be read at character {position}: {problem}")
        self.text = text
        self.position = position


class InvalidRule(_TextError):  # noqa: N818 - it names the condition
    """An access rule is not in the language; `position` counts characters from 0."""

    _kind = "rule"


class InvalidConstraint(_TextError):  # noqa: N818 - it names the condition
    """A constraint over tags is not in the language; `position` counts characters from 0."""

    _kind = "constraint"


class Unreachable(ParleyError, ConnectionError):  # noqa: N818 - it names the condition
    """No broker answers. `tried` says of each why not; with `addresses` the message says where it was looked for."""

    def __init__(self, tried: Mapping[str, str], addresses: Mapping[str, object] | None = None) -> None:
        reasons = _grouped(tried, addresses) or "there is none to try"
        super().__init__(
            f"No broker answers. Check the network and the addresses in the context ({reasons})."
        )
        self.tried = dict(tried)


class Stalled(ParleyError, TimeoutError):  # noqa: N818 - it names the condition
    """Brokers answer, but none shows a fresh result. `circumstances` say how many answer, and how many are missing.

    `reasons` has what each broker said, or why it said nothing. Nothing is lost: positions are kept, batches stay signed,
    and retrying goes on for as long as the client is open.
    """

    _sentence = "{what}: no broker shows a fresh result ({said}).{known} `parley status` shows who votes."

    def __init__(
        self, what: str, reasons: Mapping[str, str], circumstances: Circumstances | None = None
    ) -> None:
        said = _grouped(reasons) or "no broker has answered yet"
        known = "" if circumstances is None else f" {circumstances}"
        super().__init__(self._sentence.format(what=what, said=said, known=known))
        self.what = what
        self.reasons = dict(reasons)
        self.circumstances = circumstances


class Overloaded(Stalled):
    """Every broker that answers says that it takes no more for now: too many batches wait, or its disk is nearly full.

    What was sent is sent again, unchanged and more slowly, for as long as the client is open.
    """

    _sentence = (
        "{what}: the brokers take no more for now ({said}). Publish more slowly or with fewer batches in flight, give "
        "it more time, or tell who runs them."
    )


class PutOff(Stalled):
    """The network has ordered it and decided nothing: a certified receipt says why, in `refusal`.

    What was sent is sent again, unchanged, for as long as the client is open.
    """

    _sentence = (
        "{what}: the network has put it off and not decided it yet ({said}). Give it more time, or see to what the refusal "
        "names."
    )

    def __init__(
        self, what: str, refusal: Refused, height: int, since: Mapping[str, str] | None = None
    ) -> None:
        """`since`: what brokers have said after that, if it was anything else."""
        super().__init__(what, {f"block {height}": str(refusal), **(since or {})})
        self.refusal = refusal
        self.height = height


class LyingBroker(ParleyError):  # noqa: N818 - it names the culprit
    """A broker showed something that its proof does not prove. Kept in `client.misbehaviour`; another broker is asked."""

    def __init__(self, broker: str, problem: str) -> None:
        super().__init__(f"Broker {broker} lies or is broken: {problem}.")
        self.broker = broker
        self.problem = problem


class DoubtfulBroker(ParleyError):  # noqa: N818 - it names the culprit
    """A broker did less than others did: what it showed was old, or it said nothing. Kept in `client.doubts`.

    That is no proof of a lie: one that is cut off or slow looks the same. Another broker is asked.
    """

    def __init__(self, broker: str, problem: str) -> None:
        super().__init__(
            f"Broker {broker} is suspected: {problem}, while others answered. It may be cut off or slow, or hide something."
        )
        self.broker = broker
        self.problem = problem


def _grouped(reasons: Mapping[str, str], addresses: Mapping[str, object] | None = None) -> str:
    """Who says what. What several have in common is said once."""
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        where = f" at {addresses[name]}" if addresses and name in addresses else ""
        groups.setdefault(reason, []).append(f"{name}{where}")
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in groups.items())
