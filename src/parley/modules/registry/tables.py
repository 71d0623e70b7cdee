"""Clients by their key, and the keys of live clients by name."""

from __future__ import annotations

from typing import Any

from parley.application.bounds import counted, following
from parley.application.quotas import Quota
from parley.application.tables import KEY, TEXT, Reader, Table, Visibility
from parley.model.principals import ClientRecord, Principal
from parley.model.refusals import PermissionDenied, Refused


def _client_visible(reader: Reader, principal: Principal, key: tuple[Any, ...]) -> Refused | None:
    if key == (principal.key,):
        return None
    if principal.administers is not None:
        client = reader.read(CLIENTS, *key)
        if client is not None and client.organisation == principal.administers:
            return None
    return PermissionDenied("client_record")


def _name_visible(_reader: Reader, principal: Principal, key: tuple[Any, ...]) -> Refused | None:
    if key == (principal.organisation, principal.name) or principal.administers == key[0]:
        return None
    return PermissionDenied("hidden")


REGISTERED = Quota("clients")

CLIENTS: Table[ClientRecord, bytes] = Table(
    "client",
    ClientRecord,
    KEY,
    about="A client by its key. A revoked client's record stays, so that its key can never be registered again.",
    visible=Visibility(1, _client_visible, "the client itself, and administrators of its organisation"),
    bound=counted(REGISTERED, "clients"),
)
NAMES: Table[bytes, str, str] = Table(
    "name",
    bytes,
    TEXT,
    TEXT,
    about="The key of the live client of an organisation and name.",
    visible=Visibility(1, _name_visible, "the client itself, and administrators of its organisation"),
    listed=1,
    bound=following(1, CLIENTS),
)
LEAVING: Table[bytes, str, bytes] = Table(
    "leaving",
    bytes,
    TEXT,
    KEY,
    about="A revoked client, by its organisation, as long as there is something of it to clear away.",
    bound=following(1, CLIENTS),
)
