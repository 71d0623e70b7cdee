"""Texts of the registry's refusals."""

from __future__ import annotations

from parley.model.texts import Texts

_ADMINISTRATOR = "only an administrator of {organisation} may"

TEXTS: Texts = {
    "ClientExists.key": "the key was registered for {client}, and a key is used only once",
    "ClientExists.name": "there is a client {client} already",
    "Invalid.agreement": "the key did not agree to be registered as {client}",
    "Invalid.both": "attribute {attribute} is both set and removed",
    "Invalid.reserved": "attribute {attribute} is set by the registry and cannot be granted",
    "LimitExceeded.attributes": "{client} would have {attributes} attributes; {limit} are allowed",
    "LimitExceeded.clients_of_network": "the network has had the {limit} clients that it may have",
    "LimitExceeded.clients_of_organisation": (
        "{organisation} has had the {limit} clients that are its share; revoked and deleted ones count"
    ),
    "PermissionDenied.alter_clients": f"{_ADMINISTRATOR} alter its clients",
    "PermissionDenied.client_record": "clients see their own record, administrators those of their organisation",
    "PermissionDenied.foreign_administrator": "the key is an administrator's key of another organisation",
    "PermissionDenied.grant_rights": f"{_ADMINISTRATOR} grant rights to its clients",
    "PermissionDenied.no_right": (
        "{organisation} cannot grant the right {right}: the genesis file does not give it to {organisation}"
    ),
    "PermissionDenied.register_clients": f"{_ADMINISTRATOR} register its clients",
    "PermissionDenied.revoke_clients": f"{_ADMINISTRATOR} revoke its clients",
    "PermissionDenied.revoke_rights": f"{_ADMINISTRATOR} revoke rights of its clients",
    "UnknownClient.name": "there is no client {client}",
}
