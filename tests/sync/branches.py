"""Chains that no run would give: signed by a quorum, with views as a test wants them."""

from __future__ import annotations

from msgspec.structs import replace
from tests.sync.laggard import Laggard, recorded

from parley.consensus.types import QC, Block, Certificates, genesis_qc
from parley.sync.blocks import answer
from parley.sync.messages import BlocksRequest, BlocksResponse


class Branch:
    """Certified blocks from genesis on, `step` views apart, after `skipped` views without any."""

    def __init__(self, length: int, step: int, skipped: int = 0) -> None:
        committee = recorded().committee
        genesis = recorded().blocks[0]
        self.blocks = [genesis]
        self.qcs = [genesis_qc(committee.instance, genesis)]
        for height in range(1, length + 1):
            parent, view = self.blocks[-1], skipped + step * height
            header = replace(
                genesis.header,
                height=height,
                view=view,
                parent=parent.id,
                proposer=view % 4,
                time=height,
                justify=self.qcs[-1],
            )
            block = Block(header, ())
            message = committee.instance.vote_message(view, block.id)
            votes = {member: committee.authority.signer(member).sign(message) for member in range(3)}
            self.blocks.append(block)
            self.qcs.append(QC(0, view, block.id, committee.authority.scheme().aggregate(votes)))

    def show(self, laggard: Laggard, height: int) -> None:
        laggard.hear(0, Certificates(self.qcs[height], None))

    def answer(self, request: BlocksRequest) -> BlocksResponse:
        last = next(block.height for block in self.blocks if block.id == request.target)
        return answer(request, self.blocks[request.above + 1 : last + 1], self.qcs[last])
