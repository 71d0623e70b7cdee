"""The ledger itself, as tasks and the driver read it: pages of verified blocks, one on its way while another is used."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

from parley.client.evidence import ProvenMisbehaviour
from parley.client.ledger import PAGE_BYTES, CertifiedHead, VerifiedBlock
from parley.model.genesis import Genesis
from parley.model.principals import AUDITOR
from parley.spark.errors import NotAllowed, Unreachable
from parley.spark.gateway import gateway
from parley.spark.options import Network, T

BEHIND_SECONDS = 15.0  # for which brokers may be behind what one of them has shown to be certified
LOOK_SECONDS = 0.2


class Ledger:
    """Only for holders of the right `auditor`. `rank` says which broker is asked first, so that tasks share them."""

    def __init__(self, network: Network, rank: int = 0) -> None:
        self._source = gateway(network, "certified", rank)
        self.genesis = self._source.client.genesis
        self.application = self._source.client.application

    def head(self) -> CertifiedHead:
        return self._run(self._source.client.certified_height())

    def block(self, height: int) -> VerifiedBlock | None:
        """Without bodies; None if it is not certified yet."""
        page = self._run(self._source.client.blocks(height, bodies=False, max_bytes=1))
        return page[0] if page else None

    def blocks(self, first: int, last: int, *, bodies: bool) -> Iterator[VerifiedBlock]:
        """The blocks of these heights, all of which are certified."""
        if first > last:
            return
        height, progress = first, time.monotonic()
        coming = self._page(height, bodies=bodies)
        try:
            while height <= last:
                page = self._result(coming)
                if not page:
                    if time.monotonic() - progress >= BEHIND_SECONDS:
                        raise Unreachable(
                            f"No broker shows block {height}, although it is certified. Try again."
                        )
                    time.sleep(LOOK_SECONDS)
                    coming = self._page(height, bodies=bodies)
                    continue
                height, progress = height + len(page), time.monotonic()
                if height <= last:
                    coming = self._page(height, bodies=bodies)
                yield from (block for block in page if block.height <= last)
        finally:
            coming.cancel()

    def evidence(self) -> list[ProvenMisbehaviour]:
        return self._run(self._source.client.evidence())

    def _page(self, height: int, *, bodies: bool) -> Future[list[VerifiedBlock]]:
        return self._source.start(self._source.client.blocks(height, bodies=bodies, max_bytes=PAGE_BYTES))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._result(self._source.start(work))

    def _result(self, future: Future[T]) -> T:
        try:
            return self._source.result(future)
        except NotAllowed:
            client = self._source.client
            raise NotAllowed(_who_grants(self.genesis, client.organisation, client.name)) from None


def _who_grants(genesis: Genesis, organisation: str, name: str) -> str:
    """As the genesis file says, because no broker needs to be believed for that."""
    needs = f"{organisation}/{name} may not read the ledger: it needs the right {AUDITOR}"
    entitled = [one.name for one in genesis.organisations if AUDITOR in one.rights]
    if organisation in entitled:
        return f"{needs}. An administrator of {organisation} grants it: parley client grant {name} {AUDITOR}"
    holders = " and ".join(entitled) or "no organisation"
    return (
        f"{needs}, which the genesis file gives to {holders}, so that nobody in {organisation} can grant it. Use an "
        f"identity of an organisation that has it."
    )
