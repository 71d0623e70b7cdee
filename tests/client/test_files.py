"""Files that decide who a client is: an identity is taken again only from its own file, whole, private and newer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, actor, make_genesis
from tests.client.ledger import Ledger, note

from parley.applications import DATA_SHARD
from parley.client.contexts import MAX_IDENTITY, context_path, read_identity, renewed
from parley.client.errors import ContextError, IdentityError
from parley.client.proofs import OperationProof
from parley.ledger.proofs import ProofError
from parley.model.credentials import Identity, issue_credential
from parley.modules.topics.operations import CreateTopic, Policy

GENESIS = make_genesis()


def identity(name: str = "alice", not_after: int = 1_000) -> Identity:
    who = actor(name)
    anchor = actor("anchor", who.organisation).secret
    credential = issue_credential(
        GENESIS.chain, who.organisation, who.name, who.key, not_after=not_after, anchor=anchor
    )
    return Identity(credential, who.secret.seed())


def saved(path: Path, found: Identity, mode: int = 0o600) -> Path:
    path.write_bytes(msgspec.json.encode(found))
    path.chmod(mode)
    return path


def test_an_identity_is_renewed_by_a_credential_that_lasts_longer_and_by_nothing_else(
    tmp_path: Path,
) -> None:
    file, mine = tmp_path / "alice.identity", identity()
    assert renewed(mine, None) == mine
    assert renewed(mine, file) == mine, "it may be on its way"
    for other, is_taken in (
        (identity(not_after=1_001), True),
        (identity(not_after=1_000), False),
        (identity(not_after=999), False),  # what was there before was put back
        (identity("bob", not_after=2_000), False),  # somebody else's
    ):
        saved(file, other)
        assert renewed(mine, file) == (other if is_taken else mine)
    saved(file, identity(not_after=2_000), mode=0o644)
    assert renewed(mine, file) == mine, "others could have read it"


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602, 0o610, 0o601])
def test_an_identity_that_anybody_else_can_open_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="chmod 600"):
        read_identity(saved(tmp_path / "identity", identity(), mode))


def test_a_file_that_is_too_large_to_be_an_identity_is_not_decoded(tmp_path: Path) -> None:
    file = saved(tmp_path / "identity", identity())
    whole = file.read_bytes()
    file.write_bytes(whole + b" " * (MAX_IDENTITY - len(whole)))
    assert read_identity(file) == identity()
    file.write_bytes(whole + b" " * (MAX_IDENTITY - len(whole) + 1))
    with pytest.raises(IdentityError, match="larger than"):
        read_identity(file)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "../other", "a/b", "/etc/passwd"])
def test_the_name_of_a_context_stays_in_its_folder(name: str) -> None:
    with pytest.raises(ContextError):
        context_path(name)


def test_a_proof_of_an_operation_is_of_one_receipt() -> None:
    """With another one beside it, the file would show more than its summary says."""
    ledger = Ledger()
    alice = ledger.client("alice")
    ledger.topic("notes")
    operation = CreateTopic("more", 1, Policy(), "", "")
    signed = ledger.control(ADMIN, operation)
    receipt, _ = ledger.order(signed, ledger.publication(alice, "notes", note("beside it")))
    batch = ledger.body(signed.digest)

    def proof(*positions: int) -> OperationProof:
        block = ledger.proof(ledger.height, positions)
        shown = (batch.header, batch.messages[0], batch.signature)
        return OperationProof.of((receipt, block, ledger.anchor()), shown, operation)

    proof(0).check(ledger.trust, DATA_SHARD)
    with pytest.raises(ProofError, match="not that of one operation"):
        proof(0, 1).check(ledger.trust, DATA_SHARD)
    with pytest.raises(ProofError):
        replace(proof(0), receipt=proof(1).receipt).check(ledger.trust, DATA_SHARD)
