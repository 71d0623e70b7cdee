"""One function for each property that a history must have: it yields the places where the property does not hold.

A check knows nothing of how Parley works inside. It compares what clients were told with what clients were told, and
brokers with brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from parley.chaos.facts import Facts
from parley.chaos.history import Delivered, Read, Resumed, Revoked, Subscribed

# -- brokers ---------------------------------------------------------------------------------------------------------


def agreement_1(facts: Facts) -> Iterator[str]:
    """All brokers have executed the same, and everything that anybody was told of."""
    reached = max((one.height for one in facts.acknowledged), default=0)
    for chain in facts.chains:
        first = facts.chains[0]
        if (chain.common, chain.state_root, chain.history_root) != (
            first.common,
            first.state_root,
            first.history_root,
        ):
            yield f"{chain.broker} and {first.broker} have different roots at height {chain.common}"
        if chain.height < reached:
            yield f"{chain.broker} ended at height {chain.height}, and {reached} was acknowledged"


def total_order_1(facts: Facts) -> Iterator[str]:
    """Of any two chains one is the beginning of the other."""
    for chain in facts.chains[1:]:
        first = facts.chains[0]
        # What a broker does not have (after a snapshot, for a while) contradicts nobody.
        for height, (mine, other) in enumerate(zip(chain.blocks, first.blocks, strict=False)):
            if mine and other and mine != other:
                yield f"{chain.broker} and {first.broker} have different blocks at height {height}"
                break


def sound_stores(facts: Facts) -> Iterator[str]:
    """Executing a chain again gives what its store holds."""
    for audit in facts.audits:
        if audit.fault:
            yield f"{audit.broker}: {audit.fault}"


def brokers_stay(facts: Facts) -> Iterator[str]:
    """No broker ends by itself."""
    for death in facts.deaths:
        yield f"{death.broker} ended with exit code {death.code} at {death.at:.1f} s: {death.words}"


def no_false_blame(facts: Facts) -> Iterator[str]:
    """Clients call nobody a liar who does not lie, whatever else is wrong with it."""
    for one in facts.caught:
        if one.broker not in facts.liars:
            yield f"{one.client} calls {one.broker} a liar, and it is honest: {one.problem}"


# -- subscribers -----------------------------------------------------------------------------------------------------


def agreement_2(facts: Facts) -> Iterator[str]:
    """What one subscriber of a constraint got, every other one got, in full if it may read it."""
    for members in facts.groups().values():
        got = {
            one.subscription: {
                (record.partition, record.offset): record for record in facts.delivered(one.subscription)
            }
            for one in members
        }
        anybody = {place for mine in got.values() for place in mine}
        for one in filter(facts.is_entitled, members):
            mine = got[one.subscription]
            for partition, offset in sorted(anybody - mine.keys()):
                yield f"{one.subscription} did not get {_place(one.topic, partition, offset)}, which another got"
            for place, record in mine.items():
                entry = facts.log[one.topic, place[0]].get(place[1])
                if record.empty and entry is not None and facts.may_read(one, entry):
                    yield f"{one.subscription} got {_place(one.topic, *place)} as an empty, and may read it"


def total_order_2(facts: Facts) -> Iterator[str]:
    """Subscribers of one constraint see one order: equal numbers mean equal publications, and none is left out."""
    for members in facts.groups().values():
        order: dict[tuple[int, int], int] = {}
        for one in members:
            for delivery in facts.delivered(one.subscription):
                if delivery.ps is None:
                    continue
                offset = order.setdefault((delivery.partition, delivery.ps), delivery.offset)
                if offset != delivery.offset:
                    yield (
                        f"{one.subscription} got {_place(one.topic, delivery.partition, delivery.offset)} as number "
                        f"{delivery.ps}, which is offset {offset} for another"
                    )
            yield from _one_order(one, facts.sessions[one.subscription])


def _one_order(one: Subscribed, records: list[Delivered | Resumed]) -> Iterator[str]:
    """Offsets increase; numbers have no gap, except around what was read by offset."""
    offsets: dict[int, int] = {}
    numbers: dict[int, int] = {}
    for record in records:
        if isinstance(record, Resumed):
            numbers.clear()
            continue
        partition, ps = record.partition, record.ps
        if record.offset <= offsets.get(partition, -1):
            yield (
                f"{one.subscription} got {_place(one.topic, partition, record.offset)} after offset "
                f"{offsets[partition]}"
            )
        offsets[partition] = record.offset
        if ps is None:
            numbers.pop(partition, None)
            continue
        if ps != numbers.get(partition, ps - 1) + 1:
            yield (
                f"{one.subscription} got number {ps} after number {numbers[partition]} in partition "
                f"{partition} of {one.topic}"
            )
        numbers[partition] = ps


def access(facts: Facts) -> Iterator[str]:
    """Nobody gets in full what the publisher's rule hides from it."""
    for one, record in facts.deliveries():
        entry = facts.log[one.topic, record.partition].get(record.offset)
        if not record.empty and entry is not None and not facts.may_read(one, entry):
            yield f"{one.subscription} got {record.id} in full, and its rule hides it from {one.subscriber}"


# -- publications ----------------------------------------------------------------------------------------------------


def liveness_1(facts: Facts) -> Iterator[str]:
    """What is submitted after the faults have ended is ordered in time."""
    if facts.healed is None:
        return
    answered = {one.id: one.at for one in facts.failed.values()}
    answered |= {one.id: one.at for one in facts.acknowledged}
    for one in facts.late():
        if facts.might_be_barred(one):
            continue
        at = answered.get(one.id)
        if at is None:
            yield f"{one.id} was submitted after the faults had ended and was never acknowledged"
        elif at > one.at + facts.healed.bound:
            yield f"{one.id} was acknowledged only after {at - one.at:.1f} s, without any fault"


def liveness_2(facts: Facts) -> Iterator[str]:
    """What is published after the faults have ended is delivered in time to all who asked for it."""
    if facts.healed is None:
        return
    late = {one.id: one for one in facts.late()}
    for one in filter(facts.is_entitled, facts.subscriptions.values()):
        times = {(record.partition, record.offset): record.at for record in facts.delivered(one.subscription)}
        for entry in facts.matching(one):
            publication = late.get(entry.id)
            if publication is None:
                continue
            at = times.get((entry.partition, entry.offset))
            if at is None or at > max(publication.at, one.at) + facts.healed.bound:
                took = "never" if at is None else f"only after {at - publication.at:.1f} s"
                yield f"{one.subscription} got {entry.id} {took}, without any fault"


def no_creation(facts: Facts) -> Iterator[str]:
    """Whatever is seen was published, by that publisher, to that topic."""
    seen = {(one.topic, record.partition, record.id, record.publisher) for one, record in _full(facts)}
    for topic, partition, id_, publisher in sorted(seen):
        publication = facts.invoked.get(id_)
        if publication is None:
            yield f"{id_} by {publisher} in {topic} was published by nobody"
        elif (
            publication.publisher != publisher
            or publication.topic != topic
            or publication.partition not in {None, partition}
        ):
            yield f"{id_} was seen in partition {partition} of {topic} by {publisher}, and was published otherwise"


def no_duplication(facts: Facts) -> Iterator[str]:
    """No publication has two places, and nobody gets one twice."""
    places = Counter(entry.id for entries in facts.log.values() for entry in entries.values() if entry.id)
    for id_, number in places.items():
        if number > 1:
            yield f"{id_} is in the log {number} times"
    for id_, number in Counter(one.id for one in facts.acknowledged).items():
        if number > 1:
            yield f"{id_} was acknowledged {number} times"
    for name in facts.subscriptions:
        got = Counter((record.partition, record.offset) for record in facts.delivered(name))
        for (partition, offset), number in got.items():
            if number > 1:
                yield f"{name} got offset {offset} of partition {partition} {number} times"


def nothing_lost(facts: Facts) -> Iterator[str]:
    """What was acknowledged is where the receipt says, and every subscriber got it."""
    certain: set[tuple[str, int, int]] = set()
    for receipt in facts.acknowledged:
        publication = facts.invoked.get(receipt.id)
        topic = publication.topic if publication is not None else ""
        entry = facts.log[topic, receipt.partition].get(receipt.offset)
        if entry is None or (entry.id, entry.height) != (receipt.id, receipt.height):
            there = "nothing" if entry is None else f"{entry.id} of height {entry.height}"
            yield (
                f"{receipt.id} was acknowledged at {_place(topic, receipt.partition, receipt.offset)}, height "
                f"{receipt.height}, and there is {there}"
            )
        certain.add((topic, receipt.partition, receipt.offset))
    for one in filter(facts.is_entitled, facts.subscriptions.values()):
        got = {(record.partition, record.offset) for record in facts.delivered(one.subscription)}
        for entry in facts.matching(one):
            place = entry.partition, entry.offset
            if (one.topic, *place) in certain and place not in got:
                yield f"{one.subscription} did not get {entry.id}, which was acknowledged"


def committed_reads(facts: Facts) -> Iterator[str]:
    """Whatever anybody saw at an offset is still there at the end."""
    for seer, record in _seen(facts):
        topic = seer.topic
        entry = facts.log[topic, record.partition].get(record.offset)
        place = _place(topic, record.partition, record.offset)
        if entry is None:
            yield f"{record.id or 'an empty'} was seen at {place}, and nothing is there"
        elif (entry.publisher, entry.height) != (record.publisher, record.height) or (
            not record.empty and entry.id != record.id
        ):
            yield f"{record.id or 'an empty'} was seen at {place}, and {entry.id} is there"


def revocation(facts: Facts) -> Iterator[str]:
    """From the commit of its revocation a client publishes nothing, and is shown nothing that came later."""
    for entries in facts.log.values():
        for entry in entries.values():
            if facts.is_barred(entry.publisher, entry.height):
                yield f"{entry.id} of {entry.publisher} was published at height {entry.height}, after its revocation"
    for receipt in facts.acknowledged:
        publication = facts.invoked.get(receipt.id)
        if publication is not None and facts.is_barred(publication.publisher, receipt.height):
            yield f"{receipt.id} of {publication.publisher} was acknowledged at height {receipt.height}, after its revocation"
    for one, record in facts.deliveries():
        ends = [
            right.height
            for right in facts.rights[one.subscriber]
            if isinstance(right, Revoked) and right.at >= one.at
        ]
        if not record.empty and ends and record.height > min(ends):
            yield f"{one.subscription} got {record.id} of height {record.height}, after its revocation at {min(ends)}"


def refused_stays_out(facts: Facts) -> Iterator[str]:
    """What was refused is never seen."""
    seen = {record.id for _, record in _full(facts)} | {one.id for one in facts.acknowledged}
    for id_ in sorted(facts.failed.keys() & seen):
        yield f"{id_} was refused ({facts.failed[id_].reason}) and is there all the same"


def complete(facts: Facts) -> Iterator[str]:
    """There is enough to judge: a run that stopped in the middle proves nothing."""
    if not facts.ended:
        yield "the history has no end"
    if not facts.late():
        yield "nothing was published after the faults had ended"
    if len(facts.chains) < 2:
        yield f"the chains of {len(facts.chains)} brokers are known, so none can be compared"
    for (topic, partition), entries in facts.log.items():
        missing = set(range(len(entries))) - entries.keys()
        if missing:
            yield f"the final read of partition {partition} of {topic} has no offset {min(missing)}"


def _seen(facts: Facts) -> Iterator[tuple[Subscribed | Read, Delivered | Read]]:
    """What was delivered or read before the final read, and the topic it is of."""
    yield from facts.deliveries()
    for read in facts.reads:
        yield read, read


def _full(facts: Facts) -> Iterator[tuple[Subscribed | Read, Delivered | Read]]:
    """What anybody saw in full, the final read included."""
    finals = ((entry, entry) for entries in facts.log.values() for entry in entries.values())
    for source in (_seen(facts), finals):
        yield from ((seer, record) for seer, record in source if not record.empty)


def _place(topic: str, partition: int, offset: int) -> str:
    return f"{topic}[{partition}]@{offset}"
