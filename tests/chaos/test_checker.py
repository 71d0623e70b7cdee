"""The judge: right histories pass, and for each property there is a wrong one that only its check catches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chaos.histories import RED, Story, beginning, good, middle

from parley.chaos.checker import CHECKS, judge
from parley.chaos.history import (
    Acknowledged,
    Attacked,
    Audited,
    Began,
    Caught,
    Chain,
    Delivered,
    Died,
    Ended,
    Failed,
    Granted,
    HistoryError,
    Invoked,
    Measured,
    Read,
    Record,
    Resumed,
    Revoked,
    Span,
    Waited,
    identify,
    payload,
    read_history,
    write_history,
)

replace = msgspec.structs.replace


def test_a_right_history_holds() -> None:
    verdict = judge(good())
    assert verdict.violations == ()
    assert verdict.holds
    assert (verdict.lost, verdict.doubled, verdict.reordered) == (0, 0, 0)
    assert (verdict.invoked, verdict.acknowledged, verdict.refused, verdict.unknown) == (14, 10, 1, 2)
    assert verdict.empties == 2


def test_a_history_judged_from_its_file_gives_the_same_verdict(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(path, good())
    assert read_history(path) == good()
    assert judge(read_history(path)) == judge(good())


# Times that no run has: a chart of them would not fit into any memory.
LONG = [
    b'{"record":"Ended","at":1e15}\n',
    b'{"record":"Span","at":-1e15,"end":1,"broker":"b","state":"killed","fault":""}\n',
    b'{"record":"Span","at":0,"end":1e15,"broker":"b","state":"killed","fault":""}\n',
]


@pytest.mark.parametrize("text", [b"\xff\n", b'{"record":"Nothing","at":0}\n', b"[]\n", *LONG])
def test_what_is_no_history_is_named_with_its_line(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    write_history(path, [Ended(0.0)])
    path.write_bytes(path.read_bytes() + text)
    with pytest.raises(HistoryError, match="line 2"):
        read_history(path)


@given(
    st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"])), st.integers(0, 200), st.data()
)
def test_a_payload_is_recognised_only_as_it_was_published(id_: str, size: int, data: st.DataObject) -> None:
    value = payload(id_, size)
    assert identify(value) == id_
    place = data.draw(st.integers(0, len(value) - 1))
    other = bytes([data.draw(st.integers(0, 255).filter(lambda byte: byte != value[place]))])
    assert identify(value[:place] + other + value[place + 1 :]) != id_


# -- one wrong history for each property -------------------------------------------------------------------------------


def different_state() -> list[Record]:
    return altered(good(), Chain, lambda chain: replace(chain, state_root="x" * 64), which=2)


def broker_far_behind() -> list[Record]:
    return altered(good(), Chain, lambda chain: replace(chain, blocks=chain.blocks[:3]), which=1)


def forked_chain() -> list[Record]:
    def fork(chain: Chain) -> Chain:
        return replace(chain, blocks=(*chain.blocks[:4], "f" * 64, *chain.blocks[5:]))

    return altered(good(), Chain, fork, which=3)


def missed_by_one_subscriber() -> list[Record]:
    # Nobody was promised it, and it is the last: neither an acknowledgement nor a gap gives it away.
    story = Story()
    story.subscribe("dora", RED, "doctor")
    story.subscribe("emil", RED, "doctor")
    story.publish("a-0", acknowledged=False, skip=["emil"])
    story.heal()
    story.publish("b-0", "blue")
    return story.end()


def empty_for_one_who_may_read() -> list[Record]:
    def hide(one: Delivered) -> Delivered:
        return replace(one, empty=True, id="")

    return altered(good(), Delivered, hide, which=0)


def two_orders() -> list[Record]:
    records = good()
    mine = [at for at, one in enumerate(records) if isinstance(one, Delivered) and one.subscription == "emil"]
    first, second = records[mine[1]], records[mine[2]]
    assert isinstance(first, Delivered)
    assert isinstance(second, Delivered)
    records[mine[1]] = replace(second, at=first.at, ps=first.ps)
    records[mine[2]] = replace(first, at=second.at, ps=second.ps)
    return records


def number_left_out() -> list[Record]:
    story = beginning()
    story.numbers.update(dora=1, emil=1)
    story.heal()
    story.publish("b-0")
    return story.end()


def never_acknowledged() -> list[Record]:
    story = middle()
    story.attempt("b-lost")
    return story.end()


def delivered_late() -> list[Record]:
    story = middle()
    story.publish("b-slow", delay=60.0)
    return story.end()


def from_nowhere() -> list[Record]:
    # A constraint cannot be judged for what nobody published, so those who want everything got it.
    story = Story()
    story.subscribe("fred", "", "nurse")
    story.subscribe("gina", "", "nurse")
    story.publish("a-forged", invoked=False, acknowledged=False)
    story.heal()
    story.publish("b-0")
    return story.end()


def by_somebody_else() -> list[Record]:
    def forge(one: Invoked) -> Invoked:
        return replace(one, publisher="beta/ben")

    return altered(good(), Invoked, forge, which=0)


def twice_in_the_log() -> list[Record]:
    story = beginning()
    story.publish("a-5", invoked=False, acknowledged=False)
    story.heal()
    story.publish("b-0")
    return story.end()


def acknowledged_and_gone() -> list[Record]:
    story = beginning()
    story.records += [
        Invoked(story.tick(), "a-gone", "alpha/anna", "log", None, {"colour": "red"}, ""),
        Acknowledged(story.tick(), "a-gone", 0, 99, story.height),
    ]
    story.heal()
    story.publish("b-0")
    return story.end()


def read_and_gone() -> list[Record]:
    story = middle()
    story.records.append(
        Read(story.tick(), "alpha/rita", "log", 0, 77, 3, "a-nobody-knows", "alpha/anna", False, False)
    )
    return story.end()


def published_by_a_revoked_client() -> list[Record]:
    story = middle()
    story.publish("g-1", publisher="alpha/guest")
    return story.end()


def shown_to_a_revoked_client() -> list[Record]:
    story = Story()
    story.grant("alpha/guest")
    story.subscribe("guest", "", "doctor")
    story.publish("a-0")
    story.revoke("alpha/guest")
    story.gone.clear()
    story.heal()
    story.publish("b-0")
    return story.end()


def hidden_and_shown() -> list[Record]:
    def show(one: Delivered) -> Delivered:
        return replace(one, empty=False, id="a-4") if one.empty else one

    return [show(one) if isinstance(one, Delivered) and one.offset == 5 else one for one in good()]


def refused_and_published() -> list[Record]:
    story = beginning()
    story.publish("a-6", acknowledged=False)
    story.records.append(Failed(story.tick(), "a-6", "no"))
    story.heal()
    story.publish("b-0")
    return story.end()


def damaged_store() -> list[Record]:
    return altered(good(), Audited, lambda audit: replace(audit, fault="entry c/3 is missing"), which=1)


def dead_broker() -> list[Record]:
    return [Died(0.5, "beta-1", 70), *good()]


def honest_broker_blamed() -> list[Record]:
    lying = Span(0.1, 0.2, "beta-1", "lying", "byzantine lie: beta-1")
    killed = Span(0.1, 0.2, "alpha-1", "killed", "kill one: alpha-1")
    rightly, wrongly = (Caught(0.3, "alpha/dora", broker, "a lie") for broker in ("beta-1", "alpha-1"))
    return [lying, killed, rightly, wrongly, *good()]


def attacked(*records: Record, faults: tuple[str, ...] = ("expensive",)) -> list[Record]:
    """A right history with an attack of ten seconds, and what was seen of it."""
    began, attack = Began(0.0, 0, faults, 4, 60.0), Attacked(20.0, 30.0, "alter", "3 topics", None)
    quiet = [Waited(10.0, "publication", 0.1, True) for _ in range(100)]
    return [began, *quiet, attack, *records, *good()]


def bystander_kept_waiting() -> list[Record]:
    return attacked(*(Waited(21.0, "publication", 2.5, True) for _ in range(2)))


def attack_that_works() -> list[Record]:
    return attacked(Attacked(30.0, 40.0, "sequences", "not quiet", False))


def much_memory() -> list[Record]:
    return attacked(Measured(40.0, "beta-1", 512 * 1024 * 1024, 0.1, 0.01, 1_000))


def slow_block() -> list[Record]:
    return attacked(Measured(40.0, "beta-1", 1_000, 0.25, 0.01, 1_000))


def held_loop() -> list[Record]:
    return attacked(Measured(40.0, "beta-1", 1_000, 0.1, 0.05, 1_000))


def many_receipts() -> list[Record]:
    return attacked(Measured(40.0, "beta-1", 1_000, 0.1, 0.01, 8 * 1024 * 1024))


def torn_history() -> list[Record]:
    return [record for record in good() if not isinstance(record, Ended)]


BAD: dict[Callable[[], list[Record]], str] = {
    different_state: "agreement-1",
    broker_far_behind: "agreement-1",
    missed_by_one_subscriber: "agreement-2",
    empty_for_one_who_may_read: "agreement-2",
    forked_chain: "total-order-1",
    two_orders: "total-order-2",
    number_left_out: "total-order-2",
    never_acknowledged: "liveness-1",
    delivered_late: "liveness-2",
    from_nowhere: "no-creation",
    by_somebody_else: "no-creation",
    twice_in_the_log: "no-duplication",
    acknowledged_and_gone: "nothing-lost",
    read_and_gone: "committed-reads",
    published_by_a_revoked_client: "revocation",
    shown_to_a_revoked_client: "revocation",
    hidden_and_shown: "access",
    refused_and_published: "refused-stays-out",
    damaged_store: "sound-stores",
    dead_broker: "brokers-stay",
    honest_broker_blamed: "no-false-blame",
    torn_history: "complete",
    bystander_kept_waiting: "fair-latency",
    attack_that_works: "attacks-fail",
    much_memory: "bounded-memory",
    slow_block: "bounded-execution",
    held_loop: "free-loop",
    many_receipts: "bounded-receipts",
}


@pytest.mark.parametrize(("make", "name"), BAD.items(), ids=lambda one: getattr(one, "__name__", one))
def test_only_the_check_of_the_broken_property_catches_it(
    make: Callable[[], list[Record]], name: str
) -> None:
    verdict = judge(make())
    assert verdict.names == [name], verdict.violations


def test_every_check_has_a_history_that_it_catches() -> None:
    assert set(BAD.values()) == CHECKS.keys()


def test_the_counts_of_the_verdict_are_those_of_their_checks() -> None:
    assert judge(acknowledged_and_gone()).lost == 1
    assert judge(twice_in_the_log()).doubled == 1
    assert judge(two_orders()).reordered > 0


# -- what is no fault --------------------------------------------------------------------------------------------------


def test_a_client_that_was_granted_again_may_publish_and_is_shown_everything() -> None:
    story = middle()
    story.grant("alpha/guest")
    story.publish("g-1", publisher="alpha/guest")
    assert judge(story.end()).holds


def test_a_publication_in_the_block_of_the_revocation_may_come_before_it() -> None:
    story = middle()
    story.publish("a-9")
    story.records.append(Granted(story.tick(), "alpha/other", 1))
    story.publish("o-1", publisher="alpha/other")
    story.records.append(Revoked(story.tick(), "alpha/other", story.height))
    assert judge(story.end()).holds


def test_what_a_broker_does_not_tell_has_no_bar() -> None:
    assert judge(attacked(Measured(40.0, "beta-1", None, None, None, None))).holds


def test_a_bystander_may_wait_as_long_as_it_always_does() -> None:
    slow = [Waited(10.0, "publication", 1.0, True) for _ in range(10)]
    attack = [Waited(21.0, "publication", 2.9, True) for _ in range(10)]
    assert judge(attacked(*slow, *attack)).holds


def test_a_bystander_that_gets_no_answer_is_a_fault_however_rare() -> None:
    answered = [Waited(21.0, "publication", 0.1, True) for _ in range(500)]
    verdict = judge(attacked(*answered, Waited(22.0, "publication", 0.2, False)))
    assert verdict.names == ["fair-latency"]


def test_waiting_is_no_fault_while_brokers_are_killed_as_well() -> None:
    waiting = Waited(21.0, "publication", 9.0, True)
    assert judge(attacked(waiting, faults=("kill", "expensive:alter"))).holds


def test_a_session_that_goes_on_may_read_by_offset_what_it_missed() -> None:
    story = middle()
    at = len(story.records)
    story.publish("b-2")
    story.publish("b-3")
    bridged = [
        replace(one, ps=None) if isinstance(one, Delivered) and one.id == "b-2" else one
        for one in story.records[at:]
    ]
    story.records[at:] = [Resumed(story.now, "dora"), *bridged]
    assert judge(story.end()).holds


def test_a_block_that_a_broker_does_not_have_contradicts_nobody() -> None:
    def hollow(chain: Chain) -> Chain:
        return replace(chain, blocks=("", "", *chain.blocks[2:]))

    assert judge(altered(good(), Chain, hollow, which=1)).holds


# -- mutations ---------------------------------------------------------------------------------------------------------

JUDGED = Delivered | Chain | Invoked | Read


@st.composite
def mutations(draw: st.DrawFn) -> list[Record]:
    """A right history with one record dropped, repeated, changed, or changed places with another of its kind."""
    records = good()
    mine = [at for at, one in enumerate(records) if isinstance(one, JUDGED) and is_judged(one)]
    at = draw(st.sampled_from(mine))
    record = records[at]
    match draw(st.sampled_from(["drop", "repeat", "swap", "alter"])):
        case "drop" if not isinstance(record, Chain):
            del records[at]
        case "repeat" if isinstance(record, Delivered):
            records.insert(at, record)
        case "swap" if isinstance(record, Delivered):
            same = [
                other
                for other in mine
                if other != at
                and isinstance(one := records[other], Delivered)
                and one.subscription == record.subscription
            ]
            other = draw(st.sampled_from(same))
            records[at], records[other] = records[other], record
        case _:
            records[at] = draw(alterations(record))
    return records


def is_judged(record: Record) -> bool:
    """Whether the record is more than one witness of something harmless."""
    if isinstance(record, Invoked):
        return not record.id.endswith(("refused", "knows", "late"))
    if isinstance(record, Delivered):
        return record.subscription != "guest"
    return not isinstance(record, Read) or record.final


@st.composite
def alterations(draw: st.DrawFn, record: Record) -> Record:
    match record:
        case Delivered():
            changes: list[dict[str, object]] = [
                {"offset": record.offset + 1},
                {"ps": (record.ps or 0) + 1},
                {"publisher": "beta/ben"},
                {"height": record.height + 1},
            ]
            changes += [] if record.empty else [{"id": "a-forged"}, {"empty": True, "id": ""}]
        case Read():
            changes = [{"id": "a-forged"}, {"height": record.height + 1}, {"publisher": "beta/ben"}]
        case Chain():
            changes = [{"blocks": ("0" * 63 + "f", *record.blocks[1:])}, {"history_root": "x"}]
        case _:
            changes = [{"publisher": "beta/ben"}, {"topic": "elsewhere"}]
    return replace(record, **draw(st.sampled_from(changes)))


@given(mutations())
def test_a_right_history_with_one_record_changed_is_caught(records: list[Record]) -> None:
    assert not judge(records).holds


def altered(
    records: list[Record], kind: type[Record], change: Callable[..., Record], *, which: int
) -> list[Record]:
    places = [at for at, record in enumerate(records) if isinstance(record, kind)]
    records[places[which]] = change(records[places[which]])
    return records
