"""Blocks that fell out of memory without a certificate stay on disk: one of them may turn out to be certified."""

from __future__ import annotations

from msgspec.structs import replace
from tests.replica.driver import Committee, Member, Outbox

from parley.consensus.forest import MAX_UNCERTIFIED
from parley.consensus.types import QC, TC, Block, Certificates, Proposal, genesis_qc
from parley.replica import wire
from parley.replica.ports import Send
from parley.sim.counter import mounted
from parley.sync.messages import BlocksRequest, BlocksResponse

ME = 3
SIGNERS = (0, 1, 2)


class Attempts:
    """One proposal after another on the genesis block, each given up by a quorum of timeouts."""

    def __init__(self) -> None:
        self.committee = Committee()
        self.member = Member(self.committee, ME, mounted())
        self.outbox = Outbox()
        self.member.execute(self.member.replica.start(0), self.outbox)
        self.genesis = self.member.blocks()[0]
        views = [view for view in range(1, 2 * MAX_UNCERTIFIED) if view % 4 != ME]
        self.blocks = [self.propose(view) for view in views[: MAX_UNCERTIFIED + 2]]

    def propose(self, view: int) -> Block:
        instance, authority = self.committee.instance, self.committee.authority
        header = replace(
            self.genesis.header,
            height=1,
            view=view,
            parent=self.genesis.id,
            proposer=view % 4,
            time=view,
            justify=genesis_qc(instance, self.genesis),
            tc=None if view == 1 else self.given_up(view - 1),
        )
        block = Block(header, ())
        signature = authority.signer(view % 4).sign(instance.proposal_message(block.id))
        self.hear(Proposal(header, (), signature))
        assert self.member.replica.view == view
        return block

    def given_up(self, view: int) -> TC:
        message = self.committee.instance.timeout_message(view, 0)
        signatures = {member: self.committee.authority.signer(member).sign(message) for member in SIGNERS}
        return TC(0, view, (0, 0, 0), self.committee.authority.scheme().aggregate(signatures))

    def certified(self, block: Block) -> QC:
        message = self.committee.instance.vote_message(block.view, block.id)
        signatures = {member: self.committee.authority.signer(member).sign(message) for member in SIGNERS}
        return QC(0, block.view, block.id, self.committee.authority.scheme().aggregate(signatures))

    def hear(self, message: wire.WireMessage) -> list[wire.WireMessage]:
        """What is sent in answer to a message of member 0."""
        effects = self.member.replica.receive(0, 0, wire.encode(message))
        self.member.execute(effects, self.outbox)
        return [wire.decode(effect.data) for effect in effects if isinstance(effect, Send)]


def test_a_block_that_was_set_aside_is_taken_from_disk_when_its_certificate_comes() -> None:
    attempts = Attempts()
    first = attempts.blocks[0]
    assert not attempts.member.replica._machine.known(first.id)
    answers = attempts.hear(Certificates(attempts.certified(first), None))
    assert not any(isinstance(answer, BlocksRequest) for answer in answers)
    assert attempts.member.replica._machine.known(first.id)
    assert attempts.member.replica._machine.high_qc.block == first.id


def test_a_block_that_was_set_aside_is_still_given_to_those_who_ask() -> None:
    attempts = Attempts()
    first = attempts.blocks[0]
    (response,) = attempts.hear(BlocksRequest(first.id, 0))
    assert isinstance(response, BlocksResponse)
    assert [stored.block().id for stored in response.blocks] == [first.id]
    assert response.qc is None


def test_a_certified_block_that_was_never_here_is_asked_for() -> None:
    attempts = Attempts()
    unknown = Block(replace(attempts.blocks[0].header, time=99), ())
    (question,) = attempts.hear(Certificates(attempts.certified(unknown), None))
    assert question == BlocksRequest(unknown.id, 0)
