"""A client's credential: its organisation's word that a key is its client's (Galaxy's token; P26).

It admits a connection, no more: what a client may do is in the registry. A connection proves possession of the key
over the broker's nonce and certificate, so that neither a recording nor a broker in between can use it (P4).
"""

from __future__ import annotations

from msgspec import Struct

from parley.crypto import ed25519
from parley.crypto.encoding import enc, u64
from parley.model.genesis import Genesis
from parley.model.names import U64, ClientName, Hash, Key, Name, Signature


class CredentialError(ValueError):
    """The credential does not admit its holder."""


class Credential(Struct, frozen=True, forbid_unknown_fields=True):
    chain: Hash
    organisation: Name
    name: ClientName
    key: Key
    not_after: U64  # ms since 1970
    signature: Signature


class Identity(Struct, frozen=True, forbid_unknown_fields=True):
    """What a client keeps in its own file, mode 0600: the credential and the secret of its key."""

    credential: Credential
    seed: bytes

    def key(self) -> ed25519.SecretKey:
        return ed25519.SecretKey.from_seed(self.seed)

    def proof(self) -> bytes:
        """That the key agrees to be registered as its credential says."""
        mine = self.credential
        return prove_registration(self.key(), mine.chain, mine.organisation, mine.name)

    def __repr__(self) -> str:
        return f"<Identity of {self.credential.organisation}/{self.credential.name}, redacted>"


def issue_credential(
    chain: bytes, organisation: str, name: str, key: bytes, *, not_after: int, anchor: ed25519.SecretKey
) -> Credential:
    signature = anchor.sign(_signed(chain, organisation, name, key, not_after))
    return Credential(chain, organisation, name, key, not_after, signature)


def check_credential(credential: Credential, genesis: Genesis, now: int) -> None:
    """Raises `CredentialError` unless an organisation of this network vouches for the key now."""
    if credential.chain != genesis.chain:
        raise CredentialError(
            "it was issued for another network; use it with the genesis file it was issued for, or move it away and have one "
            f"made for this network: `parley client create {credential.name}`, or for an administrator `parley genesis combine`"
        )
    organisation = genesis.organisation(credential.organisation)
    if organisation is None:
        raise CredentialError(f"organisation {credential.organisation} is not part of this network")
    if now > credential.not_after:
        raise CredentialError(
            f"it has expired; an administrator of {credential.organisation} can renew it: parley client renew "
            f"{credential.name}"
        )
    message = _signed(
        credential.chain, credential.organisation, credential.name, credential.key, credential.not_after
    )
    if not ed25519.verify(organisation.anchor, message, credential.signature):
        raise CredentialError(f"it is not signed by {credential.organisation}")


def possession(chain: bytes, nonce: bytes, server_certificate: bytes) -> bytes:
    """What a client signs to prove that the key is its own, to this broker, now."""
    return enc(b"PSB1/sig/possession", chain, nonce, server_certificate)


def registration(chain: bytes, organisation: str, name: str) -> bytes:
    """What a client's key signs to agree that it is registered under this name (decision 10)."""
    return enc(b"PSB1/sig/registration", chain, organisation.encode(), name.encode())


def prove_registration(secret: ed25519.SecretKey, chain: bytes, organisation: str, name: str) -> bytes:
    return secret.sign(registration(chain, organisation, name))


def _signed(chain: bytes, organisation: str, name: str, key: bytes, not_after: int) -> bytes:
    return enc(b"PSB1/sig/credential", chain, organisation.encode(), name.encode(), key, u64(not_after))
