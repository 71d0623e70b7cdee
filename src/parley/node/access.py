"""What one connection may see, judged by the certified registry and the topics' rules, never by its own word (P26)."""

from __future__ import annotations

from dataclasses import dataclass

from parley.model.credentials import Credential
from parley.model.errors import Code, Refusal
from parley.model.expressions import parse_rule
from parley.model.genesis import Genesis
from parley.model.names import is_topic
from parley.model.records import (
    STAGES,
    ClientRecord,
    TopicRecord,
    client_key,
    name_key,
    organisation_prefix,
    topic_key,
)
from parley.node.view import View
from parley.registry.registry import AUDITOR

__all__ = [
    "Asker",
    "may_describe",
    "require_auditor",
    "require_listable",
    "require_provable",
    "require_reader",
    "require_reading",
    "require_topic",
]

CLIENTS, NAMES, TOPICS, SUBSCRIPTIONS = b"client/", b"name/", b"topic/", b"sub/"
NO_AUDITOR = "raw blocks are shown to auditors only"
OF_TOPICS = (b"head/", b"ps/", b"ad/")  # followed by the topic's name and a zero byte


@dataclass(frozen=True, slots=True)
class Asker:
    """Who opened a connection: what its credential says, and whether the genesis file makes it an administrator."""

    key: bytes
    organisation: str
    name: str
    admin: bool
    not_after: int  # ms since 1970
    auditor: bool = False  # an administrator of an organisation that the genesis file gives this right

    @classmethod
    def of(cls, credential: Credential, genesis: Genesis) -> Asker:
        organisation = genesis.organisation(credential.organisation)
        admin = organisation is not None and credential.key in organisation.admins
        return cls(
            credential.key,
            credential.organisation,
            credential.name,
            admin,
            not_after=credential.not_after,
            auditor=admin and organisation is not None and AUDITOR in organisation.rights,
        )

    @property
    def title(self) -> str:
        return f"{self.organisation}/{self.name}"


def require_reader(view: View, asker: Asker) -> ClientRecord:
    client = view.get(ClientRecord, client_key(asker.key))
    if client is None:
        raise Refusal(
            Code.UNKNOWN_CLIENT,
            f"{asker.title} is not registered; an administrator of {asker.organisation} can register it",
        )
    if client.revoked:
        raise Refusal(Code.REVOKED, f"{asker.title} was revoked at height {client.changed}")
    return client


def require_auditor(view: View, asker: Asker) -> None:
    """Raw blocks hold what everybody published, so they are for brokers and auditors alone (P22)."""
    if asker.auditor:
        return
    if asker.admin:
        raise _denied(
            f"{NO_AUDITOR}: the genesis file does not give {asker.organisation} the right {AUDITOR}"
        )
    if AUDITOR not in require_reader(view, asker).rights:
        raise _denied(
            f"{NO_AUDITOR}: an administrator of {asker.organisation} can grant it, if the genesis file gives "
            f"{asker.organisation} the right {AUDITOR}: parley client grant {asker.name} {AUDITOR}"
        )


def require_topic(view: View, name: str, *, even_deleted: bool = False) -> TopicRecord:
    topic = view.get(TopicRecord, topic_key(name)) if is_topic(name) else None
    if topic is None or (topic.deleted and not even_deleted):
        raise Refusal(Code.UNKNOWN_TOPIC, f"there is no topic {name[:128]}")
    return topic


def require_reading(topic: TopicRecord, client: ClientRecord) -> None:
    if not parse_rule(topic.subscribe).allows(client.readable()):
        raise Refusal(Code.PERMISSION_DENIED, f"rule 'subscribe' of topic {topic.name}: {topic.subscribe}")


def may_describe(view: View, topic: TopicRecord, asker: Asker) -> bool:
    if asker.admin and topic.organisation == asker.organisation:
        return True
    client = view.get(ClientRecord, client_key(asker.key))
    if client is None or client.revoked:
        return False
    attributes = client.readable()
    return any(parse_rule(rule).allows(attributes) for rule in (topic.subscribe, topic.publish))


def require_provable(view: View, key: bytes, asker: Asker) -> None:
    """Raises `Refusal` unless this entry, or its absence, may be shown."""
    if key in (client_key(asker.key), name_key(asker.organisation, asker.name)):
        return
    if key.startswith(TOPICS):
        topic = view.get(TopicRecord, key)
        if topic is not None and not may_describe(view, topic, asker):
            raise _denied(
                "only those who may publish or subscribe, and its administrators, may describe a topic"
            )
    elif key.startswith(OF_TOPICS) or (key.startswith(SUBSCRIPTIONS) and key.endswith(asker.key)):
        _require_topic_of(view, key, asker)
    elif key.startswith(STAGES) and key[-49:-16] == b"\0" + asker.key:
        return  # what this client itself has committed
    elif key.startswith(CLIENTS):
        client = view.get(ClientRecord, key)
        if not asker.admin or client is None or client.organisation != asker.organisation:
            raise _denied("clients see their own record, administrators those of their organisation")
    elif not (asker.admin and key.startswith(organisation_prefix(asker.organisation))):
        raise _denied("this entry is not shown to clients")


def require_listable(view: View, prefix: bytes, asker: Asker) -> bool:
    """Raises `Refusal` unless entries under the prefix may be listed; whether each still has to be looked at."""
    if prefix.startswith(TOPICS):
        return True
    if prefix.startswith(OF_TOPICS) and b"\0" in prefix:
        _require_topic_of(view, prefix, asker)
        return False
    if asker.admin and prefix.startswith(organisation_prefix(asker.organisation)):
        return False
    raise _denied(
        "lists are made under topic/, under head/, ps/ and ad/ with a whole topic name, and for administrators under "
        f"name/{asker.organisation}/"
    )


def _require_topic_of(view: View, key: bytes, asker: Asker) -> None:
    name, end, _ = key.partition(b"/")[2].partition(b"\0")
    if not end:
        raise _denied("this entry is not shown to clients")
    try:
        topic = require_topic(view, name.decode(), even_deleted=True)
    except UnicodeDecodeError:
        raise Refusal(Code.UNKNOWN_TOPIC, "there is no such topic") from None
    if not may_describe(view, topic, asker):
        raise _denied("only those who may publish or subscribe, and its administrators, may describe a topic")


def _denied(why: str) -> Refusal:
    return Refusal(Code.PERMISSION_DENIED, why)
