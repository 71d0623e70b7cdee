"""Identities of a provisioned network: administrators' as they were made, and new ones that an anchor admits."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from parley.crypto.ed25519 import SecretKey
from parley.model.credentials import Identity, issue_credential
from parley.model.genesis import Genesis
from parley.node.keys import read_key
from parley.node.provision import identity_path

CREDENTIAL_MS = 7 * 86_400_000


def new_identity(directory: Path, genesis: Genesis, organisation: str, name: str) -> Identity:
    """A new key, admitted by the organisation's anchor."""
    key = SecretKey.generate()
    anchor = read_key(directory / "organisations" / organisation / "anchor.key")
    not_after = time.time_ns() // 1_000_000 + CREDENTIAL_MS
    credential = issue_credential(
        genesis.chain, organisation, name, key.public, not_after=not_after, anchor=anchor
    )
    return Identity(credential, key.seed())


def administrator(directory: Path, organisation: str) -> Identity:
    data = identity_path(directory, organisation, "admin").read_bytes()
    return msgspec.json.decode(data, type=Identity)
