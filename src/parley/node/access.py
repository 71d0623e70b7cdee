"""What one connection may see, judged by the certified registry and the topics' rules, not by what it says itself (P26)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parley.application.tables import AnyTable, Reader
from parley.model.credentials import Credential
from parley.model.genesis import Genesis
from parley.model.names import is_topic
from parley.model.principals import AUDITOR, Principal
from parley.model.refusals import PermissionDenied, Refused
from parley.modules.registry.tables import CLIENTS
from parley.modules.topics.access import Action, authorise
from parley.modules.topics.refusals import UnknownTopic
from parley.modules.topics.tables import TOPICS, TopicRecord

if TYPE_CHECKING:
    from parley.node.view import View


@dataclass(frozen=True, slots=True)
class Caller:
    """Who opened a connection: what its credential says, and what the genesis file makes of its key."""

    key: bytes
    organisation: str
    name: str
    administers: str | None
    not_after: int  # ms since 1970
    auditor: bool = False  # an administrator of an organisation that the genesis file gives this right

    @classmethod
    def of(cls, credential: Credential, genesis: Genesis) -> Caller:
        organisation = genesis.organisation(credential.organisation)
        administers = organisation is not None and credential.key in organisation.admins
        return cls(
            credential.key,
            credential.organisation,
            credential.name,
            credential.organisation if administers else None,
            not_after=credential.not_after,
            auditor=organisation is not None and administers and AUDITOR in organisation.rights,
        )

    @property
    def title(self) -> str:
        return f"{self.organisation}/{self.name}"

    def principal(self, reader: Reader) -> Principal:
        """With what this state of the registry knows of the key."""
        return Principal(
            self.key, self.administers, reader.read(CLIENTS, self.key), self.organisation, self.name
        )


def require_auditor(view: View, caller: Caller) -> None:
    """Raises `Refused` unless the caller may read raw blocks, which hold all that was published (P22)."""
    if caller.auditor:
        return
    if caller.administers is not None:
        raise PermissionDenied("auditor_organisation", organisation=caller.organisation, right=AUDITOR)
    if AUDITOR not in caller.principal(view).require_client().rights:
        raise PermissionDenied("auditor", organisation=caller.organisation, name=caller.name, right=AUDITOR)


def require_readable(
    view: View, principal: Principal, name: str, partition: int = 0, *, even_deleted: bool = False
) -> TopicRecord:
    """The topic of that name. Raises `Refused` unless the principal may read this partition of it."""
    topic = view.read(TOPICS, name) if is_topic(name) else None
    why = authorise(principal, Action.SUBSCRIBE, name, topic, partition, even_deleted=even_deleted)
    if why is not None:
        raise _as_of(view, why)
    assert topic is not None, "nothing is allowed on a topic that does not exist"
    return topic


def require_provable(view: View, key: bytes, principal: Principal) -> None:
    """Raises `Refused` unless this entry, or its absence, may be shown."""
    table = _table_of(view, key)
    if table is None:
        raise PermissionDenied("hidden")
    parts, rest = table.leading(key, errors="replace")
    if rest or len(parts) < len(table.parts):
        raise PermissionDenied("hidden")
    if (why := table.visible.check(view, principal, parts)) is not None:
        raise _as_of(view, why)


def require_listable(
    view: View, prefix: bytes, after: bytes, principal: Principal
) -> Callable[[bytes], bool] | None:
    """Which of the keys under the prefix may be listed; None: all of them. Raises `Refused` if none may.

    A list begins where its prefix does or after an entry that it shows. Otherwise the cost of passing over hidden entries
    would show between which names they stand.
    """
    table = _table_of(view, prefix)
    if table is None or table.listed is None:
        raise _no_list(view)
    bound, rest = table.leading(prefix, errors="replace")
    if rest or len(bound) < table.listed:
        raise _no_list(view)
    visible = table.visible
    if len(bound) >= visible.parts:  # the same holds for all of them
        if (why := visible.check(view, principal, bound[: visible.parts])) is not None:
            raise _as_of(view, why)
        return None
    if principal.administers is None:
        principal.require_client()

    def is_shown(key: bytes) -> bool:
        """By the newest state, as the list is made: an entry that is not certified yet may be hidden as well."""
        parts, rest = table.leading(key, errors="replace")
        whole = not rest and len(parts) == len(table.parts)
        return whole and visible.check(view.archive, principal, parts) is None

    if after and not (after.startswith(prefix) and is_shown(after)):
        raise PermissionDenied("list_after")
    return is_shown


def _table_of(view: View, key: bytes) -> AnyTable | None:
    """The table of the certified state to which a key or a prefix belongs."""
    table = view.archive.application.table_of(key)
    return None if table is None or table.index else table


def _as_of(view: View, why: Refused) -> Refused:
    """The refusal, with the height by which it was judged if it says that there is no topic.

    That cannot be proved to those who may not know of the topic. A client that knows of a later height asks others.
    """
    if not isinstance(why, UnknownTopic):
        return why
    return UnknownTopic(topic=why.fields["topic"], judged=view.height)


def _no_list(view: View) -> PermissionDenied:
    names = (
        f"{table.name}/ ({table.listed})" if table.listed else f"{table.name}/"
        for table in view.archive.application.tables.values()
        if table.listed is not None
    )
    return PermissionDenied("list", tables=", ".join(names))
