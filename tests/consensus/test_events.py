"""Verified data is made by those who check it, and by nobody else (T6)."""

import ast
from pathlib import Path

from tests.consensus.chains import Committee

import parley
from parley.consensus.events import VerifiedQC, VerifiedTC, bare

SOURCE = Path(parley.__file__).parent
VERIFIED = {
    "CertifiedChain",
    "VerifiedCertificates",
    "VerifiedProposal",
    "VerifiedQC",
    "VerifiedTC",
    "VerifiedTimeout",
    "VerifiedVote",
}
MAKERS = {
    "consensus/verify.py",
    "consensus/collect.py",
    "consensus/machine.py",
    "sim/twins/mutants.py",
}  # the last one is broken on purpose
OWN_MESSAGES = {"VerifiedTimeout", "VerifiedVote"}


def calls(tree: ast.AST) -> set[str]:
    """Names that are called, whether imported plainly or through their module."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    plain = {function.id for function in called if isinstance(function, ast.Name)}
    return plain | {function.attr for function in called if isinstance(function, ast.Attribute)}


def makers() -> dict[str, set[str]]:
    found = {
        path.relative_to(SOURCE).as_posix(): calls(ast.parse(path.read_text(encoding="utf-8"))) & VERIFIED
        for path in SOURCE.rglob("*.py")
    }
    return {path: names for path, names in found.items() if names}


def test_t6_verified_types_are_made_only_where_signatures_were_checked() -> None:
    assert set(makers()) <= MAKERS


def test_t6_the_machine_verifies_nothing_but_trusts_its_own_messages() -> None:
    assert makers()["consensus/machine.py"] <= OWN_MESSAGES


def test_t6_collecting_makes_certificates_only() -> None:
    assert makers()["consensus/collect.py"] == {"VerifiedQC", "VerifiedTC"}


def test_t6_every_verified_type_is_made_by_the_verifier() -> None:
    assert makers()["consensus/verify.py"] == VERIFIED


def test_only_the_safety_rules_sign() -> None:
    signing = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "consensus").rglob("*.py")
        if "sign" in calls(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert signing == {"consensus/safety.py"}


def test_a_verified_certificate_shows_what_it_certifies() -> None:
    committee = Committee()
    block = committee.block(view=4)
    qc, tc = VerifiedQC(committee.qc(block)), VerifiedTC(committee.tc(3))
    assert (qc.view, qc.block, tc.view) == (4, block.id, 3)
    assert (bare(tc), bare(None)) == (tc.tc, None)
