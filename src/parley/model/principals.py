"""Who acts: what the network knows of a key, and what may be required of it before anything else is looked at."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from parley.model.genesis import Genesis
from parley.model.names import U64, Key, Pairs, Value
from parley.model.refusals import Field, PermissionDenied, Refused, Revoked, UnknownClient

Right = Literal["auditor"]  # to read raw blocks, which hold the publications of all (P22)
AUDITOR: Right = "auditor"


class ClientRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A registered client. A revoked client's record stays, so that its key can never be registered again."""

    organisation: str
    name: str
    key: Key
    attributes: Pairs
    revoked: bool
    changed: U64  # the height of the last change
    rights: tuple[Right, ...] = ()  # sorted

    def readable(self) -> dict[str, Value]:
        """What rules see: the attributes, and who the registry says it is (P26)."""
        return {**dict(self.attributes), "org": self.organisation, "client": self.name}


class Administrators:
    """The administrators' keys and their organisations' rights: those of the genesis file (P26)."""

    def __init__(self, genesis: Genesis) -> None:
        self._keys = {
            key: organisation.name for organisation in genesis.organisations for key in organisation.admins
        }
        self._rights = {organisation.name: organisation.rights for organisation in genesis.organisations}

    def organisation_of(self, key: bytes) -> str | None:
        return self._keys.get(key)

    def has_right(self, organisation: str, right: Right) -> bool:
        return right in self._rights.get(organisation, ())


class Principal(Struct, frozen=True):
    """A key and what the network knows of it.

    It may be an administrator's, by the genesis file; a client's, by the registry; both, or neither.

    `organisation` and `name` are those of its credential; empty where a batch is applied.
    """

    key: bytes
    administers: str | None
    client: ClientRecord | None
    organisation: str = ""
    name: str = ""

    @property
    def is_live(self) -> bool:
        """Whether anything could be granted to the key now."""
        return self.administers is not None or (self.client is not None and not self.client.revoked)

    @property
    def title(self) -> str:
        """As it stands in receipts, "organisation/name"; empty for keys that are no client's."""
        return "" if self.client is None else f"{self.client.organisation}/{self.client.name}"

    @property
    def member_of(self) -> str:
        """The organisation of the key, by the genesis file or the registry; empty for keys that are no member's.

        It never changes: no organisation registers an administrator's key of another one, and clients' records stay.
        """
        if self.administers is not None:
            return self.administers
        return "" if self.client is None else self.client.organisation

    @property
    def attributes(self) -> dict[str, Value] | None:
        """What rules see; None for keys that are no live client's."""
        return None if self.client is None or self.client.revoked else self.client.readable()

    def reason_to_refuse(self) -> Refused | None:
        """Why it may do nothing that needs a live client."""
        if self.client is None:
            if self.organisation:
                client = f"{self.organisation}/{self.name}"
                return UnknownClient("client", client=client, organisation=self.organisation)
            return UnknownClient("key", key=self.key)
        if self.client.revoked:
            return Revoked(client=self.title, height=self.client.changed)
        return None

    def require_client(self) -> ClientRecord:
        """The record of the live client. Raises `UnknownClient` or `Revoked`."""
        if (why := self.reason_to_refuse()) is not None:
            raise why
        assert self.client is not None
        return self.client

    def require_administrator(self, act: str) -> str:
        """The organisation that it administers. `act` is the reason of the refusal: what only administrators may."""
        if self.administers is None:
            raise PermissionDenied(act, organisation=self.require_client().organisation)
        return self.administers

    def reason_not_to_administer(self, organisation: str, act: str, **fields: Field) -> Refused | None:
        """Why it may not do what only administrators of this organisation may."""
        if self.administers == organisation:
            return None
        if self.administers is None and (why := self.reason_to_refuse()) is not None:
            return why
        return PermissionDenied(act, organisation=organisation, **fields)
