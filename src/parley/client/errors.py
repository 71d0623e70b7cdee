"""What can go wrong for a program that uses the client, as exceptions whose messages say what happened and what to do.

Refusals of the network are the classes of `parley.model.refusals` and of the modules' own `refusals`. A module of one's
own brings its own classes; they need not be named here.
"""

# ruff: noqa: PLC0414 - an alias of the same name is what type checkers take for an export

from __future__ import annotations

from collections.abc import Mapping

from parley.client.texts import TEXTS
from parley.model.refusals import BadSignature as BadSignature
from parley.model.refusals import Busy as Busy
from parley.model.refusals import Expired as Expired
from parley.model.refusals import Invalid as Invalid
from parley.model.refusals import LimitExceeded as LimitExceeded
from parley.model.refusals import Malformed as Malformed
from parley.model.refusals import NotAuthenticated as NotAuthenticated
from parley.model.refusals import NotFound as NotFound
from parley.model.refusals import NotReady as NotReady
from parley.model.refusals import OutOfSequence as OutOfSequence
from parley.model.refusals import Oversized as Oversized
from parley.model.refusals import ParleyError as ParleyError
from parley.model.refusals import PermissionDenied as PermissionDenied
from parley.model.refusals import Refused as Refused
from parley.model.refusals import Revoked as Revoked
from parley.model.refusals import SequenceReused as SequenceReused
from parley.model.refusals import UnknownClient as UnknownClient
from parley.model.refusals import Unsupported as Unsupported
from parley.model.refusals import WrongChain as WrongChain
from parley.model.texts import add_texts
from parley.modules.registry.refusals import ClientExists as ClientExists
from parley.modules.retention.refusals import Pruned as Pruned
from parley.modules.staging.refusals import NotStaged as NotStaged
from parley.modules.staging.refusals import StageOver as StageOver
from parley.modules.subscriptions.refusals import NotSubscribed as NotSubscribed
from parley.modules.topics.refusals import TopicExists as TopicExists
from parley.modules.topics.refusals import UnknownPartition as UnknownPartition
from parley.modules.topics.refusals import UnknownTopic as UnknownTopic

add_texts(TEXTS)


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


def names() -> list[str]:
    """The exceptions that this module offers."""
    return sorted(
        name
        for name, found in globals().items()
        if isinstance(found, type) and issubclass(found, ParleyError)
    )
