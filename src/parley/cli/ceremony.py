"""How organisations that do not trust each other make one genesis file, by exchanging public files only (P26).

Each makes a *part*: what the others may know of it, signed by its anchor. Whoever combines the same parts gets the same
genesis, and signs it: a *draft*. Drafts with all signatures are the genesis file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from parley.applications import chosen_application
from parley.crypto import ed25519
from parley.crypto.encoding import enc
from parley.model.genesis import (
    FORMAT,
    MAX_BROKERS,
    MAX_GENESIS,
    Broker,
    Genesis,
    GenesisFile,
    Limits,
    Organisation,
    Timeouts,
    decode_genesis,
    encode_genesis,
    one_shard,
    sign_genesis,
)
from parley.model.names import U64, Name, Signature

PART = "parley organisation part 1"
DRAFT = "parley genesis draft 1"


class CeremonyError(Exception):
    """The files do not make a genesis file; the message names the file or the organisation."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag=PART):
    """What an organisation tells the others."""

    organisation: Organisation
    brokers: Annotated[tuple[Broker, ...], msgspec.Meta(min_length=1, max_length=MAX_BROKERS)]
    created: U64  # ms
    signature: Signature


class Draft(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag=DRAFT):
    """A genesis, and the anchors' signatures that somebody has seen, by organisation."""

    genesis: Genesis
    signatures: dict[Name, Signature]


class Settings(msgspec.Struct, frozen=True):
    """What is not of one organisation. All must say the same, or they make different networks."""

    network: Name
    depth: Literal[2, 3] = 2
    leaders: Literal["round-robin", "cwa", "cwa+"] = "cwa+"
    allow_faults: bool = False  # whether brokers may be told to lie


def sign_part(
    organisation: Organisation, brokers: tuple[Broker, ...], created: int, anchor: ed25519.SecretKey
) -> Part:
    return Part(organisation, brokers, created, anchor.sign(_signed(organisation, brokers, created)))


def encode_file(file: Part | Draft) -> bytes:
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


def read_file(path: Path) -> Part | Draft:
    """Raises `CeremonyError` for anything but a part or a draft whose signatures hold. Finished files count as drafts."""
    with path.open("rb") as stream:
        data = stream.read(MAX_GENESIS + 1)
    if len(data) > MAX_GENESIS:
        raise CeremonyError(f"{path} is larger than {MAX_GENESIS} bytes: it is no file of a ceremony")
    try:
        file = _files.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        finished = _finished_file(data)
        if finished is None:
            raise CeremonyError(f"{path} is neither a part nor a draft: {error}") from None
        file = finished
    if isinstance(file, Part):
        _check_part(file, path)
    else:
        _check_draft(file, path)
    return file


def combine(parts: Mapping[str, Part], settings: Settings) -> Genesis:
    """The same genesis from the same parts, in whatever order. `parts`: by the name of their file, for messages."""
    by_organisation: dict[str, tuple[str, Part]] = {}
    for name, part in parts.items():
        other = by_organisation.setdefault(part.organisation.name, (name, part))
        if other[1] != part:
            raise CeremonyError(
                f"{other[0]} and {name} are different parts of {part.organisation.name}; ask which one counts"
            )
    ordered = [by_organisation[name][1] for name in sorted(by_organisation)]
    brokers = [broker for part in ordered for broker in sorted(part.brokers, key=lambda one: one.name)]
    _check_brokers(brokers)
    return Genesis(
        FORMAT,
        chosen_application(allow_faults=settings.allow_faults).version,
        settings.network,
        max(part.created for part in ordered),
        settings.depth,
        settings.leaders,
        settings.allow_faults,
        Timeouts(),
        Limits(),
        tuple(part.organisation for part in ordered),
        tuple(brokers),
        one_shard(brokers),
    )


def merge(drafts: Mapping[str, Draft]) -> Draft:
    """All signatures of the same genesis. `drafts`: by the name of their file, for messages."""
    (first, reference), *others = drafts.items()
    signatures = dict(reference.signatures)
    for name, draft in others:
        if draft.genesis != reference.genesis:
            raise CeremonyError(
                f"{first} and {name} are of different networks: {_difference(reference.genesis, draft.genesis)}"
            )
        signatures |= draft.signatures
    return Draft(reference.genesis, signatures)


def sign_draft(draft: Draft, organisation: str, anchor: ed25519.SecretKey) -> Draft:
    return Draft(draft.genesis, draft.signatures | {organisation: sign_genesis(draft.genesis, anchor)})


def missing(draft: Draft) -> list[str]:
    """The organisations that have not signed."""
    return [one.name for one in draft.genesis.organisations if one.name not in draft.signatures]


def finished(draft: Draft) -> bytes:
    """The genesis file, once all have signed. Raises `GenesisError` if its parties do not fit together."""
    data = encode_genesis(
        draft.genesis, tuple(draft.signatures[one.name] for one in draft.genesis.organisations)
    )
    decode_genesis(data)  # what nobody could start from is not written
    return data


def _check_part(part: Part, path: Path) -> None:
    organisation = part.organisation
    if not ed25519.verify(
        organisation.anchor, _signed(organisation, part.brokers, part.created), part.signature
    ):
        raise CeremonyError(f"{path} was changed: it is not signed by the anchor of {organisation.name}")
    for broker in part.brokers:
        if broker.organisation != organisation.name:
            raise CeremonyError(f"{path} of {organisation.name} names a broker of {broker.organisation}")


def _check_draft(draft: Draft, path: Path) -> None:
    for name, signature in draft.signatures.items():
        organisation = draft.genesis.organisation(name)
        signed = enc(b"PSB1/sig/genesis", draft.genesis.chain)
        if organisation is None or not ed25519.verify(organisation.anchor, signed, signature):
            raise CeremonyError(f"{path} was changed: the signature of {name} does not verify")


def _check_brokers(brokers: list[Broker]) -> None:
    if len(brokers) > MAX_BROKERS:
        raise CeremonyError(f"the parts name {len(brokers)} brokers; a network has at most {MAX_BROKERS}")
    for what, values in (
        ("name", [broker.name for broker in brokers]),
        ("address", [broker.address for broker in brokers]),
        ("key", [broker.key.hex() for broker in brokers]),
    ):
        for value in values:
            if values.count(value) > 1:
                raise CeremonyError(f"two brokers have the same {what}: {value}")


def _difference(one: Genesis, other: Genesis) -> str:
    """What two geneses do not share, in words: whose parts, or else the first setting."""
    names = {organisation.name for genesis in (one, other) for organisation in genesis.organisations}
    if differing := sorted(name for name in names if _said_of(one, name) != _said_of(other, name)):
        return f"what they say of {', '.join(differing)} is not the same; all must combine the same parts"
    for field in msgspec.structs.fields(Genesis):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if left != right:
            return f"{field.name} is {left!r} in one and {right!r} in the other"
    raise AssertionError("equal geneses were said to differ")


def _said_of(genesis: Genesis, name: str) -> tuple[Organisation | None, list[Broker]]:
    return genesis.organisation(name), [broker for broker in genesis.brokers if broker.organisation == name]


def _finished_file(data: bytes) -> Draft | None:
    """A genesis file that all have signed may be handed in, too."""
    try:
        file = msgspec.json.decode(data, type=GenesisFile)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    names = [organisation.name for organisation in file.genesis.organisations]
    return Draft(file.genesis, dict(zip(names, file.signatures, strict=False)))


def _signed(organisation: Organisation, brokers: tuple[Broker, ...], created: int) -> bytes:
    return enc(b"PSB1/sig/part", msgspec.json.encode((organisation, brokers, created)))


_files: msgspec.json.Decoder[Part | Draft] = msgspec.json.Decoder(Part | Draft)
