"""What the network knows of a key, and what it requires of it."""

from __future__ import annotations

from dataclasses import dataclass

from parley.model.errors import Code, Refusal
from parley.model.records import ClientRecord

__all__ = ["Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A key may be an administrator's, by the genesis file; a client's, by the registry; both, or neither."""

    key: bytes
    administers: str | None
    client: ClientRecord | None

    @property
    def is_live(self) -> bool:
        """Whether anything could be granted to the key now."""
        return self.administers is not None or (self.client is not None and not self.client.revoked)

    @property
    def title(self) -> str:
        """As it stands in receipts, "organisation/name"; empty for keys that are no client's."""
        return "" if self.client is None else f"{self.client.organisation}/{self.client.name}"

    def require_client(self) -> ClientRecord:
        if self.client is None:
            raise Refusal(
                Code.UNKNOWN_CLIENT,
                f"key {self.key.hex()[:16]} is not registered; an administrator of its organisation can register it",
            )
        if self.client.revoked:
            raise Refusal(Code.REVOKED, f"{self.title} was revoked at height {self.client.changed}")
        return self.client

    def require_administrator(self, act: str) -> str:
        """The organisation that it administers."""
        if self.administers is None:
            organisation = self.require_client().organisation
            raise Refusal(Code.PERMISSION_DENIED, f"only an administrator of {organisation} may {act}")
        return self.administers

    def require_administrator_of(self, organisation: str, act: str) -> None:
        if self.administers != organisation:
            if self.administers is None:
                self.require_client()
            raise Refusal(Code.PERMISSION_DENIED, f"only an administrator of {organisation} may {act}")
