"""Clients and their attributes: registered, altered and revoked by the administrators of their organisation (P26)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from parley.application.block import BlockContext, Hook, PerBlock
from parley.application.module import Module
from parley.application.operations import Operation
from parley.application.rows import ChangeTable
from parley.application.state import State
from parley.crypto import ed25519
from parley.model.credentials import registration
from parley.model.genesis import Genesis
from parley.model.names import MAX_PAIRS, Position, Value, sorted_pairs
from parley.model.principals import Administrators, ClientRecord, Principal, Right
from parley.model.receipts import Done
from parley.model.refusals import Invalid, LimitExceeded, PermissionDenied, UnknownClient
from parley.modules.registry.operations import (
    AlterClient,
    GrantRight,
    RegisterClient,
    RevokeClient,
    RevokeRight,
)
from parley.modules.registry.refusals import ClientExists
from parley.modules.registry.tables import CLIENTS, LEAVING, NAMES, REGISTERED
from parley.modules.registry.texts import TEXTS

RESERVED = frozenset({"org", "client"})  # rules read under these names what the registry itself knows
ADMINISTRATORS = PerBlock(lambda block: Administrators(block.genesis))


def _client(block: BlockContext, client: ClientRecord) -> None: ...


# In blocks after the revocation, until the handlers leave something of the block's work: end what the client has begun.
CLIENT_LEAVING = Hook("client_leaving", _client)


def register(block: BlockContext, by: Principal, operation: RegisterClient, _at: Position) -> Done:
    organisation, state = by.require_administrator("register_clients"), block.state
    _require_grantable(name for name, _ in operation.attributes)
    if block[ADMINISTRATORS].organisation_of(operation.key) not in (None, organisation):
        raise PermissionDenied("foreign_administrator")
    if (known := CLIENTS.get(state, operation.key)) is not None:
        raise ClientExists("key", client=f"{known.organisation}/{known.name}")
    title = f"{organisation}/{operation.name}"
    if NAMES.has(state, organisation, operation.name):
        raise ClientExists("name", client=title)
    agreed = registration(block.chain, organisation, operation.name)
    if not ed25519.verify(operation.key, agreed, operation.proof):
        raise Invalid("agreement", client=title)
    REGISTERED.require(block, organisation, block.genesis.limits.clients)
    REGISTERED.add(state, organisation)
    client = ClientRecord(
        organisation, operation.name, operation.key, operation.attributes, revoked=False, changed=block.height
    )
    CLIENTS.put(state, client.key, record=client)
    NAMES.put(state, organisation, client.name, record=client.key)
    return Done()


def alter(block: BlockContext, by: Principal, operation: AlterClient, _at: Position) -> Done:
    organisation = by.require_administrator("alter_clients")
    client = _named(block.state, organisation, operation.name)
    changed = [name for name, _ in operation.set]
    _require_grantable([*changed, *operation.remove])
    if both := sorted(set(changed).intersection(operation.remove)):
        raise Invalid("both", attribute=both[0])
    attributes: dict[str, Value] = dict(client.attributes)
    for name in operation.remove:
        attributes.pop(name, None)
    attributes.update(operation.set)
    if len(attributes) > MAX_PAIRS:
        raise LimitExceeded(
            "attributes",
            client=f"{organisation}/{client.name}",
            attributes=len(attributes),
            limit=MAX_PAIRS,
        )
    altered = replace(client, attributes=sorted_pairs(attributes), changed=block.height)
    CLIENTS.put(block.state, client.key, record=altered)
    return Done()


def revoke(block: BlockContext, by: Principal, operation: RevokeClient, _at: Position) -> Done:
    """The client takes part no more. What it has begun ends from the next block on.

    Its record stays, so that its key never comes back.
    """
    organisation = by.require_administrator("revoke_clients")
    client = _named(block.state, organisation, operation.name)
    revoked = replace(client, revoked=True, changed=block.height, rights=())
    CLIENTS.put(block.state, client.key, record=revoked)
    NAMES.delete(block.state, organisation, client.name)
    LEAVING.put(block.state, organisation, client.key, record=b"")
    return Done()


def leave(block: BlockContext, _organisation: str, key: bytes) -> bool:
    """End what a revoked client has begun; returns whether all has ended."""
    client = CLIENTS.get(block.state, key)
    assert client is not None, "a client's record stays"
    block.call(CLIENT_LEAVING, block, client)
    return block.work > 0


def grant(block: BlockContext, by: Principal, operation: GrantRight, _at: Position) -> Done:
    """A right goes from the genesis file to an organisation, and from its administrators to its clients (P22)."""
    organisation = by.require_administrator("grant_rights")
    if not block[ADMINISTRATORS].has_right(organisation, operation.right):
        raise PermissionDenied("no_right", organisation=organisation, right=operation.right)
    client = _named(block.state, organisation, operation.name)
    _set_rights(block, client, {*client.rights, operation.right})
    return Done()


def revoke_right(block: BlockContext, by: Principal, operation: RevokeRight, _at: Position) -> Done:
    organisation = by.require_administrator("revoke_rights")
    client = _named(block.state, organisation, operation.name)
    _set_rights(block, client, {*client.rights} - {operation.right})
    return Done()


def principals(genesis: Genesis) -> Callable[[State, bytes], Principal]:
    """Which principal a key is: administrators are those of the genesis file, clients those of the table."""
    administrators = Administrators(genesis)

    def principal(state: State, key: bytes) -> Principal:
        return Principal(key, administrators.organisation_of(key), CLIENTS.get(state, key))

    return principal


def _named(state: State, organisation: str, name: str) -> ClientRecord:
    key = NAMES.get(state, organisation, name)
    client = None if key is None else CLIENTS.get(state, key)
    if client is None:
        raise UnknownClient("name", client=f"{organisation}/{name}")
    return client


def _set_rights(block: BlockContext, client: ClientRecord, rights: set[Right]) -> None:
    """Set the rights of a client. Granting or revoking what makes no difference is not refused; nothing changes then."""
    new = tuple(sorted(rights))
    if new != client.rights:
        CLIENTS.put(block.state, client.key, record=replace(client, rights=new, changed=block.height))


def _require_grantable(names: Iterable[str]) -> None:
    for name in names:
        if name in RESERVED:
            raise Invalid("reserved", attribute=name)


def _row(operation: Operation) -> Mapping[str, Any] | None:
    match operation:
        case RegisterClient():
            return {
                "client": operation.name,
                "key": operation.key,
                "attributes": _texts(operation.attributes),
            }
        case AlterClient():
            return {
                "client": operation.name,
                "attributes": _texts(operation.set),
                "removed": list(operation.remove),
            }
        case GrantRight() | RevokeRight():
            return {"client": operation.name, "right": operation.right}
        case RevokeClient():
            return {"client": operation.name}
        case _:
            return None


def _texts(pairs: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """Attributes of any type as texts: true and false as in rules."""
    return [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in pairs]


MODULE = Module(
    name="registry",
    operations={
        RegisterClient: register,
        AlterClient: alter,
        RevokeClient: revoke,
        GrantRight: grant,
        RevokeRight: revoke_right,
    },
    jobs={LEAVING: leave},
    tables=(CLIENTS, NAMES, LEAVING),
    refusals=(ClientExists,),
    texts=TEXTS,
    changes=(
        ChangeTable(
            "clients",
            {"client": "text", "key": "bytes", "attributes": "pairs", "removed": "texts", "right": "text"},
            _row,
        ),
    ),
    principals=principals,
)
