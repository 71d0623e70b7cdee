"""Clients and their attributes: registered, altered and revoked by the administrators of their organisation (P26)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from parley.crypto import ed25519
from parley.model.credentials import registration
from parley.model.errors import Code, Refusal
from parley.model.genesis import Genesis
from parley.model.names import MAX_PAIRS, Value, sorted_pairs
from parley.model.operations import AlterClient, GrantRight, RegisterClient, RevokeClient, RevokeRight, Right
from parley.model.records import ClientRecord, client_key, name_key
from parley.registry import quota
from parley.registry.records import Records
from parley.registry.standing import Standing

__all__ = ["AUDITOR", "Records", "Registry"]

RESERVED = frozenset({"org", "client"})  # what rules read under these names is the registry's own word
AUDITOR: Right = "auditor"
CLIENTS = b"count/clients"  # revoked ones too: their records stay


class Registry:
    """Administrators are those of the genesis file; everything that changes is in the records."""

    def __init__(self, genesis: Genesis) -> None:
        self._genesis = genesis
        self._chain = genesis.chain
        self._administrators = {
            key: organisation.name for organisation in genesis.organisations for key in organisation.admins
        }
        self._rights = {organisation.name: organisation.rights for organisation in genesis.organisations}

    def standing(self, records: Records, key: bytes) -> Standing:
        return Standing(key, self._administrators.get(key), records.get(ClientRecord, client_key(key)))

    def register(self, records: Records, by: Standing, operation: RegisterClient, height: int) -> None:
        organisation = by.require_administrator("register its clients")
        _require_grantable(name for name, _ in operation.attributes)
        if self._administrators.get(operation.key, organisation) != organisation:
            raise Refusal(Code.PERMISSION_DENIED, "the key is an administrator's key of another organisation")
        if (known := records.get(ClientRecord, client_key(operation.key))) is not None:
            owner = f"{known.organisation}/{known.name}"
            raise Refusal(
                Code.CLIENT_EXISTS, f"the key was registered for {owner}, and a key is used only once"
            )
        if records.get_bytes(name_key(organisation, operation.name)) is not None:
            raise Refusal(Code.CLIENT_EXISTS, f"there is a client {organisation}/{operation.name} already")
        agreed = registration(self._chain, organisation, operation.name)
        if not ed25519.verify(operation.key, agreed, operation.proof):
            raise Refusal(
                Code.INVALID, f"the key did not agree to be registered as {organisation}/{operation.name}"
            )
        quota.take(records, self._genesis, organisation, CLIENTS, self._genesis.limits.clients)
        client = ClientRecord(
            organisation, operation.name, operation.key, operation.attributes, revoked=False, changed=height
        )
        records.put(client_key(client.key), client)
        records.put(name_key(organisation, client.name), client.key)

    def alter(self, records: Records, by: Standing, operation: AlterClient, height: int) -> None:
        organisation = by.require_administrator("alter its clients")
        client = _client(records, organisation, operation.name)
        changed = [name for name, _ in operation.set]
        _require_grantable([*changed, *operation.remove])
        if both := sorted(set(changed).intersection(operation.remove)):
            raise Refusal(Code.INVALID, f"attribute {both[0]} is both set and removed")
        attributes: dict[str, Value] = dict(client.attributes)
        for name in operation.remove:
            attributes.pop(name, None)
        attributes.update(operation.set)
        if len(attributes) > MAX_PAIRS:
            raise Refusal(
                Code.LIMIT_EXCEEDED,
                f"{organisation}/{client.name} would have {len(attributes)} attributes; {MAX_PAIRS} are allowed",
            )
        altered = replace(client, attributes=sorted_pairs(attributes), changed=height)
        records.put(client_key(client.key), altered)

    def revoke(self, records: Records, by: Standing, operation: RevokeClient, height: int) -> ClientRecord:
        """The client that takes part no more. Its record stays, so that its key never comes back."""
        organisation = by.require_administrator("revoke its clients")
        client = _client(records, organisation, operation.name)
        records.put(client_key(client.key), replace(client, revoked=True, changed=height, rights=()))
        records.delete(name_key(organisation, client.name))
        return client

    def grant(self, records: Records, by: Standing, operation: GrantRight, height: int) -> None:
        """A right goes from the genesis file to an organisation, and from its administrators to its clients (P22)."""
        organisation = by.require_administrator("grant rights to its clients")
        if operation.right not in self._rights[organisation]:
            raise Refusal(
                Code.PERMISSION_DENIED,
                f"{organisation} cannot grant the right {operation.right}: the genesis file does not give it to "
                f"{organisation}",
            )
        client = _client(records, organisation, operation.name)
        _set_rights(records, client, {*client.rights, operation.right}, height)

    def revoke_right(self, records: Records, by: Standing, operation: RevokeRight, height: int) -> None:
        organisation = by.require_administrator("revoke rights of its clients")
        client = _client(records, organisation, operation.name)
        _set_rights(records, client, {*client.rights} - {operation.right}, height)

    def is_auditor(self, who: Standing) -> bool:
        """Whether raw blocks may be shown to it: by its own record, or as an administrator of such an organisation."""
        if who.administers is not None and AUDITOR in self._rights[who.administers]:
            return True
        return who.client is not None and not who.client.revoked and AUDITOR in who.client.rights


def _client(records: Records, organisation: str, name: str) -> ClientRecord:
    key = records.get_bytes(name_key(organisation, name))
    client = None if key is None else records.get(ClientRecord, client_key(key))
    if client is None:
        raise Refusal(Code.UNKNOWN_CLIENT, f"there is no client {organisation}/{name}")
    return client


def _set_rights(records: Records, client: ClientRecord, rights: set[Right], height: int) -> None:
    """What a client has already, or has not, is no reason to refuse; nothing changes then."""
    new = tuple(sorted(rights))
    if new != client.rights:
        records.put(client_key(client.key), replace(client, rights=new, changed=height))


def _require_grantable(names: Iterable[str]) -> None:
    for name in names:
        if name in RESERVED:
            raise Refusal(Code.INVALID, f"attribute {name} is set by the registry and cannot be granted")
