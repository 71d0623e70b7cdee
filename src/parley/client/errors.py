"""What can go wrong for an application, as exceptions whose messages say what happened and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from parley.model.errors import Code

__all__ = [
    "BadSignature",
    "Busy",
    "ClientClosed",
    "ClientExists",
    "ContextError",
    "Expired",
    "IdentityError",
    "Invalid",
    "InvalidConstraint",
    "InvalidMessage",
    "InvalidRule",
    "LimitExceeded",
    "LyingBroker",
    "Malformed",
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
    "Refused",
    "Revoked",
    "SequenceReused",
    "StageOver",
    "Stalled",
    "TopicExists",
    "UnknownClient",
    "UnknownPartition",
    "UnknownTopic",
    "Unreachable",
    "Unsupported",
    "WrongChain",
    "refused",
]


class ParleyError(Exception):
    """Anything that `parley.client` raises on purpose."""


class ContextError(ParleyError):
    """A context, genesis or identity file cannot be used; the message names the file and what is wrong with it."""


class IdentityError(ContextError):
    """The identity file is not there, cannot be read, or holds a credential that this network does not take."""


class ClientClosed(ParleyError):  # noqa: N818 - it names the condition
    """The client was closed while the operation was under way; whether it takes effect is not known."""


class InvalidMessage(ParleyError, ValueError):  # noqa: N818 - it names the condition
    """A message that no broker would take: a tag, a key or a header is outside its limits."""


class InvalidRule(ParleyError, ValueError):  # noqa: N818 - it names the condition
    """An access rule is not in the language; `position` counts characters from 0."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"the rule {text!r} cannot be read at character {position}: {problem}")
        self.text = text
        self.position = position


class InvalidConstraint(ParleyError, ValueError):  # noqa: N818 - it names the condition
    """A constraint over tags is not in the language; `position` counts characters from 0."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"the constraint {text!r} cannot be read at character {position}: {problem}")
        self.text = text
        self.position = position


class Unreachable(ParleyError, ConnectionError):  # noqa: N818 - it names the condition
    """No broker answers. `tried` says of each why not; with `addresses` the message says where it was looked for."""

    def __init__(self, tried: Mapping[str, str], addresses: Mapping[str, object] | None = None) -> None:
        reasons = _grouped(tried, addresses) or "there is none to try"
        super().__init__(
            f"No broker answers. Check the network and the addresses in the context ({reasons})."
        )
        self.tried = dict(tried)


class Stalled(ParleyError, TimeoutError):  # noqa: N818 - it names the condition
    """Brokers answer, but none shows a fresh result: the network has no quorum, or this machine's clock is wrong.

    Nothing is lost: positions are kept, batches stay signed, and retrying goes on for as long as the client is open.
    """

    def __init__(self, what: str, reasons: Mapping[str, str]) -> None:
        said = _grouped(reasons) or "no broker has answered yet"
        super().__init__(
            f"{what}: no broker shows a fresh result, so they have no quorum, or this machine's clock is wrong ({said}). "
            f"`parley status` shows who is missing."
        )
        self.what = what
        self.reasons = dict(reasons)


class Overloaded(Stalled):
    """Every broker that answers says that it takes no more for now: too many batches wait, or its disk is nearly full.

    What was sent is sent again, unchanged and more slowly, for as long as the client is open.
    """

    def __init__(self, what: str, reasons: Mapping[str, str]) -> None:
        said = _grouped(reasons)
        ParleyError.__init__(
            self,
            f"{what}: the brokers take no more for now ({said}). Publish more slowly or with fewer batches in flight, give "
            f"it more time, or tell who runs them.",
        )
        self.what = what
        self.reasons = dict(reasons)


class LyingBroker(ParleyError):  # noqa: N818 - it names the culprit
    """A broker showed something that its proof does not prove. Kept in `client.misbehaviour`; another broker is asked."""

    def __init__(self, broker: str, problem: str) -> None:
        super().__init__(f"Broker {broker} lies or is broken: {problem}.")
        self.broker = broker
        self.problem = problem


def _grouped(reasons: Mapping[str, str], addresses: Mapping[str, object] | None = None) -> str:
    """Who says what. What several have in common is said once."""
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        where = f" at {addresses[name]}" if addresses and name in addresses else ""
        groups.setdefault(reason, []).append(f"{name}{where}")
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in groups.items())


# -- refusals: one class per code ------------------------------------------------------------------------------------


class Refused(ParleyError):  # noqa: N818 - it names what happened to the operation, as receipts do
    """The network refused an operation. `code` is stable; `detail` is a sentence."""

    code: ClassVar[Code]

    def __init__(self, detail: str) -> None:
        super().__init__(f"{self.code.value}: {detail}")
        self.detail = detail


class PermissionDenied(Refused):
    """A rule does not allow it; `rule` is its text, empty if the refusal did not name it."""

    code = Code.PERMISSION_DENIED

    def __init__(self, detail: str, rule: str | None = None) -> None:
        super().__init__(detail)
        self.rule = _named_rule(detail) if rule is None else rule


class UnknownClient(Refused):
    """The key is not registered; an administrator of its organisation has to do that."""

    code = Code.UNKNOWN_CLIENT


class Revoked(Refused):
    code = Code.REVOKED


class ClientExists(Refused):
    code = Code.CLIENT_EXISTS


class UnknownTopic(Refused):
    code = Code.UNKNOWN_TOPIC


class TopicExists(Refused):
    code = Code.TOPIC_EXISTS


class UnknownPartition(Refused):
    code = Code.UNKNOWN_PARTITION


class NotSubscribed(Refused):
    code = Code.NOT_SUBSCRIBED


class Unsupported(Refused):
    code = Code.UNSUPPORTED


class LimitExceeded(Refused):
    code = Code.LIMIT_EXCEEDED


class Invalid(Refused):
    code = Code.INVALID


class OutOfSequence(Refused):
    code = Code.OUT_OF_SEQUENCE


class SequenceReused(Refused):
    """Another batch was published under this session and sequence: somebody else uses the same key and session."""

    code = Code.SEQUENCE_REUSED


class Expired(Refused):
    code = Code.EXPIRED


class StageOver(Refused):
    """The writer has committed this stage, or a later one, already: what belongs to it is decided for ever (P23)."""

    code = Code.STAGE_OVER


class NotStaged(Refused):
    """A commit names a batch that is not staged: it expired, or was dropped."""

    code = Code.NOT_STAGED


class Malformed(Refused):
    code = Code.MALFORMED


class Oversized(Refused):
    code = Code.OVERSIZED


class BadSignature(Refused):
    code = Code.BAD_SIGNATURE


class WrongChain(Refused):
    """The broker belongs to another network: compare the genesis files."""

    code = Code.WRONG_CHAIN


class NotAuthenticated(Refused):
    code = Code.NOT_AUTHENTICATED


class Busy(Refused):
    code = Code.BUSY


class NotFound(Refused):
    code = Code.NOT_FOUND


class Pruned(Refused):
    """The offsets existed and their retention is over."""

    code = Code.PRUNED


class NotReady(Refused):
    code = Code.NOT_READY


_CLASSES: dict[Code, type[Refused]] = {kind.code: kind for kind in Refused.__subclasses__()}


def refused(code: Code, detail: str) -> Refused:
    """The exception of a refusal's code."""
    return _CLASSES[code](detail)


_RULE = re.compile(r"rule '\w+' of topic \S+: (?P<rule>.*)", re.DOTALL)


def _named_rule(detail: str) -> str:
    """The rule in the sentence of a refusal, empty if it is not a topic's rule that refuses."""
    found = _RULE.fullmatch(detail)
    return found["rule"] if found else ""
