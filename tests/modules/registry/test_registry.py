"""The registry over plain records: who may change it, and what it never allows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.application.world import ADMIN, ADMINS, Actor, actor, make_genesis, pairs, registration

from parley.application.block import BlockContext
from parley.application.executed import Executed
from parley.application.quotas import COUNTS
from parley.application.state import State
from parley.application.work import Budget
from parley.model.genesis import Limits
from parley.model.principals import AUDITOR, Administrators, ClientRecord, Principal, Right
from parley.model.receipts import Done
from parley.model.refusals import Invalid, LimitExceeded, PermissionDenied, Refused, Revoked, UnknownClient
from parley.modules.registry.operations import (
    AlterClient,
    GrantRight,
    RegisterClient,
    RevokeClient,
    RevokeRight,
)
from parley.modules.registry.refusals import ClientExists
from parley.modules.registry.rules import MODULE, principals
from parley.modules.registry.tables import CLIENTS, NAMES
from parley.store.memory import MemoryStore

Change = RegisterClient | AlterClient | RevokeClient | GrantRight | RevokeRight


class Desk:
    """The registry as administrators use it, over a state of its own."""

    def __init__(self, limits: Limits | None = None, auditors: tuple[str, ...] = ()) -> None:
        genesis = make_genesis(limits)
        if auditors:
            rights: tuple[Right, ...] = ("auditor",)
            parties = (
                replace(one, rights=rights) if one.name in auditors else one for one in genesis.organisations
            )
            genesis = replace(genesis, organisations=tuple(parties))
        self.genesis = genesis
        self.chain = genesis.chain
        self.state = State(MemoryStore())
        self.height = 0
        self._principals = principals(genesis)

    def principal(self, who: Actor) -> Principal:
        return self._principals(self.state, who.key)

    def client(self, who: Actor) -> ClientRecord:
        client = self.principal(who).client
        assert client is not None
        return client

    def do(self, by: Actor, operation: Change) -> None:
        self.height += 1
        apply = MODULE.operations[type(operation)]
        assert apply(self._block(), self.principal(by), operation, (self.height, 0)) == Done()

    def is_auditor(self, who: Actor) -> bool:
        principal, administrators = self.principal(who), Administrators(self.genesis)
        organisation = principal.administers
        if organisation is not None and administrators.has_right(organisation, AUDITOR):
            return True
        return principal.client is not None and AUDITOR in principal.client.rights

    def entries(self) -> dict[bytes, bytes | None]:
        return dict(self.state.changes())

    def refused(self, by: Actor, operation: Change) -> tuple[str, str]:
        """The refusal; nothing may have changed."""
        before = self.entries()
        with pytest.raises(Refused) as refusal:
            self.do(by, operation)
        assert self.entries() == before
        return refusal.value.code, refusal.value.detail

    def _block(self) -> BlockContext:
        return BlockContext(
            height=self.height,
            time=self.height,
            genesis=self.genesis,
            chain=self.chain,
            state=self.state,
            executed=Executed(),
            hooks={},
            derived={},
            principals=self._principals,
            budget=Budget(),
            room=0,
        )


ALICE = actor("alice")
CHAIN = make_genesis().chain
REGISTER = registration(CHAIN, ALICE, pairs(role="nurse"))


def test_an_administrator_registers_clients_of_its_own_organisation() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    assert desk.client(ALICE) == ClientRecord(
        "hospital-a", "alice", ALICE.key, pairs(role="nurse"), revoked=False, changed=1
    )
    assert NAMES.get(desk.state, "hospital-a", "alice") == ALICE.key
    assert desk.principal(ALICE).title == "hospital-a/alice"


def test_rules_read_organisation_and_name_from_the_registry() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    assert desk.client(ALICE).readable() == {"role": "nurse", "org": "hospital-a", "client": "alice"}


@pytest.mark.parametrize("name", ["org", "client"])
def test_who_a_client_is_cannot_be_granted(name: str) -> None:
    desk = Desk()
    assert desk.refused(ADMIN, registration(CHAIN, ALICE, ((name, "insurer"),)))[0] == Invalid.code
    desk.do(ADMIN, REGISTER)
    assert desk.refused(ADMIN, AlterClient("alice", ((name, "insurer"),), ()))[0] == Invalid.code
    assert desk.refused(ADMIN, AlterClient("alice", (), (name,)))[0] == Invalid.code


@pytest.mark.parametrize(
    "operation",
    [
        registration(CHAIN, actor("bob")),
        AlterClient("alice", (), ()),
        RevokeClient("alice"),
        GrantRight("alice", "auditor"),
        RevokeRight("alice", "auditor"),
    ],
)
def test_clients_change_nothing_and_are_told_who_may(operation: Change) -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    code, detail = desk.refused(ALICE, operation)
    assert code == PermissionDenied.code
    assert detail.startswith("only an administrator of hospital-a may")
    desk.do(ADMIN, RevokeClient("alice"))
    assert desk.refused(ALICE, operation)[0] == Revoked.code
    assert desk.refused(actor("mallory"), operation)[0] == UnknownClient.code


def test_administrators_do_not_reach_clients_of_other_organisations() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    for operation in (AlterClient("alice", (), ()), RevokeClient("alice")):
        code, detail = desk.refused(ADMINS["insurer"], operation)
        assert (code, detail) == (UnknownClient.code, "there is no client insurer/alice")


def test_a_name_is_unique_in_its_organisation_only() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    another = actor("another")
    assert desk.refused(ADMIN, registration(CHAIN, another, name="alice"))[0] == ClientExists.code
    desk.do(ADMINS["insurer"], registration(CHAIN, another, name="alice", organisation="insurer"))


def test_a_key_is_used_once_and_never_again() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    again = registration(CHAIN, ALICE, name="bob")
    for admin in (ADMIN, ADMINS["insurer"]):
        code, detail = desk.refused(admin, again)
        assert code == ClientExists.code
        assert "hospital-a/alice" in detail
    desk.do(ADMIN, RevokeClient("alice"))
    assert desk.refused(ADMIN, REGISTER)[0] == ClientExists.code


def test_a_revoked_client_keeps_its_record_and_frees_its_name() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    desk.do(ADMIN, RevokeClient("alice"))
    revoked = desk.client(ALICE)
    assert (revoked.revoked, revoked.changed) == (True, 2)
    assert not desk.principal(ALICE).is_live
    assert desk.refused(ADMIN, RevokeClient("alice"))[0] == UnknownClient.code
    desk.do(ADMIN, registration(CHAIN, actor("alice-2"), name="alice"))
    assert desk.principal(actor("alice-2")).title == "hospital-a/alice"


def test_altering_sets_and_removes_attributes() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    desk.do(ADMIN, AlterClient("alice", pairs(level=3, ward="east"), ("role", "nothing")))
    assert desk.client(ALICE).attributes == pairs(level=3, ward="east")
    assert desk.client(ALICE).changed == 2


def test_an_attribute_is_not_set_and_removed_at_once() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    assert desk.refused(ADMIN, AlterClient("alice", pairs(role="clerk"), ("role",)))[0] == Invalid.code


def test_a_client_has_at_most_64_attributes() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    first = tuple((f"a{i:02}", i) for i in range(63))
    desk.do(ADMIN, AlterClient("alice", first, ()))
    assert desk.refused(ADMIN, AlterClient("alice", pairs(one_more=True), ()))[0] == LimitExceeded.code
    desk.do(ADMIN, AlterClient("alice", pairs(one_more=True), ("role",)))


def test_clients_are_limited_in_the_network_and_for_each_organisation_and_revoked_ones_count() -> None:
    desk = Desk(Limits(clients=5))  # 2 for each of 4 organisations

    def one_more(name: str, organisation: str) -> RegisterClient:
        return registration(desk.chain, actor(name, organisation))

    for name in ("alice", "bob"):
        desk.do(ADMIN, one_more(name, "hospital-a"))
    desk.do(ADMIN, RevokeClient("alice"))
    code, detail = desk.refused(ADMIN, one_more("carol", "hospital-a"))
    assert (code, "hospital-a" in detail) == (LimitExceeded.code, True)
    for name, organisation in (("dora", "insurer"), ("emil", "insurer"), ("fred", "laboratory")):
        desk.do(ADMINS[organisation], one_more(name, organisation))
    code, detail = desk.refused(ADMINS["laboratory"], one_more("gina", "laboratory"))
    assert (code, "the network" in detail) == (LimitExceeded.code, True)


def test_nobody_registers_a_key_that_did_not_agree_to_it() -> None:
    desk = Desk()
    stolen = RegisterClient("evil", ALICE.key, (), bytes(64))
    for operation in (
        stolen,
        replace(REGISTER, name="evil"),
        replace(REGISTER, key=actor("bob").key),
        registration(make_genesis(Limits(topics=7)).chain, ALICE),
        registration(CHAIN, ALICE, organisation="insurer"),
    ):
        assert desk.refused(ADMIN, operation)[0] == Invalid.code
    assert desk.refused(ADMINS["insurer"], REGISTER)[0] == Invalid.code
    desk.do(ADMIN, REGISTER)


def test_an_administrators_key_becomes_a_client_of_its_own_organisation_only() -> None:
    desk = Desk()
    operation = registration(CHAIN, ADMIN, name="chief")
    assert desk.refused(ADMINS["insurer"], operation)[0] == PermissionDenied.code
    desk.do(ADMIN, operation)
    assert desk.principal(ADMIN).administers == "hospital-a"
    assert desk.principal(ADMIN).title == "hospital-a/chief"


def test_a_revoked_administrator_still_administers() -> None:
    desk = Desk()
    desk.do(ADMIN, registration(CHAIN, ADMIN, name="chief"))
    desk.do(ADMIN, RevokeClient("chief"))
    desk.do(ADMIN, REGISTER)
    with pytest.raises(Refused):
        desk.principal(ADMIN).require_client()


def test_what_the_registry_writes_is_found_under_the_keys_of_its_tables() -> None:
    desk = Desk()
    desk.do(ADMIN, REGISTER)
    assert set(desk.entries()) == {
        CLIENTS.key(ALICE.key),
        NAMES.key("hospital-a", "alice"),
        COUNTS.key("clients", ""),
        COUNTS.key("clients", "hospital-a"),
    }


# -- rights ----------------------------------------------------------------------------------------------------------------


def audited() -> Desk:
    """Where hospital-a holds the right, and alice is its client."""
    desk = Desk(auditors=("hospital-a",))
    desk.do(ADMIN, registration(desk.chain, ALICE))
    return desk


def test_an_administrator_grants_a_right_of_its_organisation_and_takes_it_back() -> None:
    desk = audited()
    assert not desk.is_auditor(ALICE)
    desk.do(ADMIN, GrantRight("alice", "auditor"))
    assert desk.is_auditor(ALICE)
    assert (desk.client(ALICE).rights, desk.client(ALICE).changed) == (("auditor",), 2)
    desk.do(ADMIN, RevokeRight("alice", "auditor"))
    assert not desk.is_auditor(ALICE)
    assert (desk.client(ALICE).rights, desk.client(ALICE).changed) == ((), 3)


def test_a_right_that_one_has_or_has_not_changes_nothing() -> None:
    desk = audited()
    desk.do(ADMIN, RevokeRight("alice", "auditor"))
    assert desk.client(ALICE).changed == 1
    desk.do(ADMIN, GrantRight("alice", "auditor"))
    granted = desk.client(ALICE)
    desk.do(ADMIN, GrantRight("alice", "auditor"))
    assert desk.client(ALICE) == granted


def test_an_organisation_without_the_right_grants_it_to_nobody() -> None:
    desk = audited()
    bob = actor("bob", "insurer")
    desk.do(ADMINS["insurer"], registration(desk.chain, bob))
    code, detail = desk.refused(ADMINS["insurer"], GrantRight("bob", "auditor"))
    assert code == PermissionDenied.code
    assert "the genesis file does not give it to insurer" in detail


def test_rights_are_for_clients_of_one_s_own_organisation() -> None:
    desk = Desk(auditors=("hospital-a", "insurer"))
    desk.do(ADMIN, registration(desk.chain, ALICE))
    desk.do(ADMIN, GrantRight("alice", "auditor"))
    for operation in (GrantRight("alice", "auditor"), RevokeRight("alice", "auditor")):
        assert desk.refused(ADMINS["insurer"], operation)[0] == UnknownClient.code
    assert desk.is_auditor(ALICE)


def test_administrators_of_a_right_holding_organisation_have_it_themselves() -> None:
    desk = audited()
    assert desk.is_auditor(ADMIN)
    assert not desk.is_auditor(ADMINS["insurer"])


def test_a_revoked_client_loses_its_rights_and_its_name_does_not_bring_them_back() -> None:
    desk = audited()
    desk.do(ADMIN, GrantRight("alice", "auditor"))
    desk.do(ADMIN, RevokeClient("alice"))
    assert not desk.is_auditor(ALICE)
    assert desk.client(ALICE).rights == ()
    desk.do(ADMIN, registration(desk.chain, actor("alice-2"), name="alice"))
    assert not desk.is_auditor(actor("alice-2"))


def test_altering_a_client_leaves_its_rights() -> None:
    desk = audited()
    desk.do(ADMIN, GrantRight("alice", "auditor"))
    desk.do(ADMIN, AlterClient("alice", pairs(role="clerk"), ()))
    assert desk.is_auditor(ALICE)
