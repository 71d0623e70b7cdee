"""What administrators may ask about the clients of their own organisation."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from parley.application.operations import Operation, check_pairs
from parley.model.names import ClientName, Key, Pairs, Signature
from parley.model.principals import Right


class RegisterClient(Operation, frozen=True):
    """Register a client of the administrator's own organisation.

    `proof` is the key's signature over `credentials.registration`: a key is registered only with its own agreement.
    """

    name: ClientName
    key: Key
    attributes: Pairs
    proof: Signature

    def check(self) -> None:
        check_pairs(self.attributes)


class AlterClient(Operation, frozen=True):
    """Set some attributes of a client and remove others."""

    name: ClientName
    set: Pairs
    remove: Annotated[tuple[str, ...], Meta(max_length=64)]

    def check(self) -> None:
        check_pairs(self.set)


class RevokeClient(Operation, frozen=True):
    """Revoke a client for ever: a revoked key never becomes valid again; its name may be given to a new key."""

    name: ClientName


class GrantRight(Operation, frozen=True):
    """Give a client of one's own organisation a right that the genesis file gives the organisation."""

    name: ClientName
    right: Right


class RevokeRight(Operation, frozen=True):
    """Take a right back from a client of one's own organisation."""

    name: ClientName
    right: Right


def registered(operation: Operation) -> RegisterClient | None:
    """The operation, if it registers a client."""
    return operation if isinstance(operation, RegisterClient) else None


def revoked(operation: Operation) -> RevokeClient | None:
    """The operation, if it revokes a client."""
    return operation if isinstance(operation, RevokeClient) else None
