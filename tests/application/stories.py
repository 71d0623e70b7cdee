"""Stories in which everything that can be refused in order is refused, and the histories of the reference."""

from __future__ import annotations

from itertools import product

from msgspec.structs import replace
from tests.application.codes import (
    ALICE,
    ANNA,
    BOB,
    CAROL,
    DAVE,
    HEAD,
    INSURER,
    LABORATORY,
    LEAST,
    MALLORY,
    OTHER,
    A,
    Advertise,
    AlterClient,
    AlterTopic,
    B,
    CommitStage,
    CreateTopic,
    DeleteTopic,
    GrantRight,
    Operation,
    Policy,
    RevokeClient,
    RevokeRight,
    Said,
    Source,
    Story,
    Subscribe,
    Unsubscribe,
    codes_of,
    limited,
)
from tests.application.histories import History
from tests.application.world import ADMIN, ADMINS, WRITER, Actor, Signed, actor, pairs, registration, tagged

from parley.model.batches import MAX_NOT_AFTER, PUBLISH, STAGED
from parley.model.genesis import Limits, Timeouts


def history(seed: int) -> list[Said]:
    made, said = History(seed), list[Said]()
    for batches, time in made.blocks(40):
        leaves = made.world.apply(*batches, time=time)
        said += [(f"block {made.world.height}, leaf {at}", code) for at, code in enumerate(codes_of(leaves))]
    return said


def clients() -> list[Said]:
    story = Story()
    made = story.world.chain
    story.register(ALICE, role="nurse")
    story.do(
        ADMIN,
        registration(made, ALICE),
        registration(made, ALICE, name="other"),
        registration(made, actor("second"), name="alice"),
        registration(made, ANNA, pairs(org="x")),
        registration(made, ANNA, pairs(client="x")),
        registration(made, ANNA, pairs(level=2, org="x", role="x")),
        registration(made, ADMINS[B], name="theirs", organisation=A),
        replace(registration(made, ANNA), name="another"),
        registration(made, ANNA, organisation=B),
        replace(registration(made, ANNA), proof=bytes(64)),
        replace(registration(made, ANNA), key=bytes(32)),
        registration(bytes(32), ANNA),
        registration(made, ANNA),
        registration(made, ADMIN, name="boss"),
        registration(made, BOB, organisation=A),
    )
    story.do(ADMINS[B], registration(made, BOB), registration(made, ALICE, organisation=B))
    for who in (ALICE, BOB, MALLORY):
        story.do(who, registration(made, actor("new"), organisation=who.organisation))
    story.do(
        ADMIN,
        AlterClient("alice", pairs(level=1), ("role",)),
        AlterClient("alice", pairs(org="x"), ()),
        AlterClient("alice", (), ("client",)),
        AlterClient("alice", (), ("not a name",)),
        AlterClient("alice", pairs(level=1), ("level",)),
        AlterClient("alice", pairs(**{f"a{n}": n for n in range(64)}), ("level",)),
        AlterClient("alice", pairs(more=1), ()),
        AlterClient("alice", pairs(more=1), ("a0",)),
        AlterClient("nobody", (), ()),
        AlterClient("nobody", pairs(org="x"), ()),
    )
    story.do(ADMINS[B], AlterClient("alice", (), ()), RevokeClient("alice"))
    for who in (ALICE, BOB, MALLORY):
        story.do(who, AlterClient("alice", (), ()), RevokeClient("alice"))
    story.do(ADMIN, RevokeClient("alice"), RevokeClient("alice"), AlterClient("alice", (), ()))
    story.do(ALICE, RevokeClient("anna"), Subscribe("open", ""))
    story.do(
        ADMIN,
        registration(made, ALICE),
        registration(made, actor("second"), name="alice"),
        RevokeClient("boss"),
        RevokeClient("anna"),
        registration(made, ADMIN, name="boss"),
    )
    story.order(story.world.control(ANNA, RevokeClient("x"), session=OTHER))
    story.order(story.world.staged(ANNA, "open"))
    return story.said


def rights() -> list[Said]:
    story = Story()
    for who in (ALICE, BOB, CAROL, DAVE):
        story.register(who)
    for admin in ADMINS.values():
        for name in ("alice", "carol", "nobody"):
            story.do(admin, RevokeRight(name, "auditor"), GrantRight(name, "auditor"))
            story.do(admin, GrantRight(name, "auditor"), RevokeRight(name, "auditor"))
    story.do(ADMINS[INSURER], GrantRight("carol", "auditor"))
    for who in (ALICE, CAROL, MALLORY):
        story.do(who, GrantRight("carol", "auditor"), RevokeRight("carol", "auditor"))
    story.do(ADMINS[INSURER], RevokeClient("carol"), GrantRight("carol", "auditor"))
    story.do(ADMINS[INSURER], RevokeRight("carol", "auditor"))
    story.do(CAROL, GrantRight("carol", "auditor"), RevokeRight("carol", "auditor"))
    return story.said


def quotas() -> list[Said]:
    story = Story(Limits(clients=6, topics=3))
    for organisation, n in product((A, B, INSURER, LABORATORY), range(3)):
        story.register(actor(f"c{n}", organisation))
    for organisation, n in product((A, B, INSURER, LABORATORY), range(2)):
        story.topic(f"{organisation}/{n}", organisation)
    story.do(ADMIN, RevokeClient("c0"), DeleteTopic(f"{A}/0"))
    story.register(actor("c3"))
    story.topic(f"{A}/1")
    story.topic(f"{A}/0")
    story.topic(f"{A}/0")
    return story.said


def topics() -> list[Said]:
    story = Story()
    for who in (ALICE, BOB):
        story.register(who)
    policies = [
        Policy(),
        Policy("sse"),
        Policy("split"),
        Policy(payload="threshold"),
        Policy(payload="hybrid"),
        Policy(payload="broadcast"),
        Policy(payload="attribute"),
        Policy(payload="shared"),
        Policy("sse", "hybrid", 5),
    ]
    for who in (MALLORY, ALICE, ADMINS[B], ADMIN):
        for name in ("one", "two"):
            story.do(who, *(CreateTopic(name, 2, policy, "", "") for policy in reversed(policies)))
            story.do(who, AlterTopic(name, 3, 5, None, None), AlterTopic(name, 2, None, "true", "true"))
            story.do(who, AlterTopic("none", 1, None, None, None), DeleteTopic("none"))
    story.topic("mine", partitions=2)
    story.do(ADMIN, AlterTopic("mine", 1, None, None, None), AlterTopic("mine", None, None, None, None))
    for who in (MALLORY, ALICE, BOB, ADMINS[B], ADMIN, ADMIN):
        story.do(who, DeleteTopic("mine"), AlterTopic("mine", None, None, None, None))
    for who in (MALLORY, ALICE, ADMINS[B]):
        story.do(who, CreateTopic("mine", 1, Policy("sse"), "", ""))
    story.do(ADMIN, CreateTopic("mine", 1, Policy("sse"), "", ""))
    story.together(ADMIN, CreateTopic("mine", 1, Policy(), "", ""), DeleteTopic("mine"))
    story.together(
        ADMIN,
        CreateTopic("mine", 1, Policy(), "", ""),
        DeleteTopic("mine"),
        CreateTopic("mine", 1, Policy(), "", ""),
        CreateTopic("mine", 1, Policy("sse"), "", ""),
    )
    story.do(ADMIN, CreateTopic("mine", 1, Policy(), "", ""))
    return story.said


def interests() -> list[Said]:
    with limited({"orders": 12, "unguarded": 2, "waiting": 3}):
        story = Story(Limits(subscriptions_per_client=6), Timeouts(lease=500))
        for who in (ALICE, ANNA, BOB, CAROL):
            story.register(who, level=2)
        story.topic("open")
        story.topic("wide", partitions=4)
        story.topic("closed", subscribe="level > 2")
        for who in (ALICE, MALLORY):
            for topic in ("open", "closed", "none", "open"):
                story.do(who, Unsubscribe(topic, "a = 1"), Subscribe(topic, "a = 1"))
                story.do(who, Subscribe(topic, "a == 1"), Unsubscribe(topic, "a=1"))
        for text in ("a != 1", "a != 2", "a != 3", "a = 1", "a = 1 and b != 1", "a = 1 and b != 2"):
            story.do(ANNA, Subscribe("open", text))
        for text in ("a in [1, 2]", "a = 1 and b != 3", "a = 1 and b = 1", "a != 1", "", "false", "d = 1"):
            story.do(BOB, Subscribe("open", text))
        for n in range(8):
            story.do(CAROL, Subscribe("wide", f"a = {n}"))
        story.do(ADMIN, *(AlterTopic("wide", n, None, None, None) for n in (3, 4, 5, 64)))
        story.do(ADMIN, AlterTopic("open", 1, None, None, None), AlterTopic("open", 2, None, None, None))
        story.do(ANNA, Unsubscribe("open", "a != 1"), Subscribe("open", "a != 4"))
        story.order(time=story.world.time + 501)
        story.do(ANNA, Unsubscribe("open", "a != 2"), Subscribe("open", "a != 4"))
        story.do(ADMIN, DeleteTopic("open"))
        story.do(ANNA, Unsubscribe("open", "a != 4"), Subscribe("open", "a != 4"))
        story.do(ADMIN, RevokeClient("anna"))
        story.do(ANNA, Unsubscribe("wide", ""), Subscribe("wide", ""))
        return story.said


def advertising() -> list[Said]:
    with limited({"advertised": 2}):
        story = Story()
        for who in (ALICE, BOB):
            story.register(who)
        for n in range(4):
            story.topic(f"t{n}", publish="" if n < 3 else f'org == "{A}"')
        for who in (ALICE, BOB, MALLORY, ADMIN):
            story.do(who, *(Advertise(f"t{n}", text) for n in range(5) for text in ("", "beds", "more")))
            story.do(who, Advertise("t0", ""), Advertise("t2", "beds"), Advertise("t3", "beds"))
        story.do(ADMIN, DeleteTopic("t1"))
        story.do(ALICE, Advertise("t1", ""), Advertise("t1", "beds"), Advertise("t3", "beds"))
        story.do(ADMIN, RevokeClient("alice"))
        story.do(ALICE, Advertise("t0", ""), Advertise("t0", "beds"))
        return story.said


def publishing() -> list[Said]:
    with limited({"compared of batch": 30 + 2 * HEAD, "work of block": 8}):
        story = Story()
        world = story.world
        for who in (ALICE, BOB):
            story.register(who, level=2)
        story.topic("open", partitions=2)
        story.topic("closed", publish="level > 2")
        for who, topic, partition in product(
            (ALICE, MALLORY, ADMIN), ("open", "closed", "none", ""), (0, 1, 2)
        ):
            story.publish(who, topic, partition=partition)
        story.do(ALICE, Subscribe("open", "a = 1 and b != 1"), Subscribe("open", "c != 1"))
        for count in range(1, 14, 2):
            story.publish(BOB, "open", *[tagged(a=1, b=1, c=1)] * count)
        batches = [
            world.publication(who, "open", *[tagged(a=1)] * size)
            for who, size in ((ALICE, 5), (BOB, 3), (BOB, 1), (ALICE, 5))
        ]
        story.order(*batches)
        story.order(*batches)
        story.do(ADMIN, AlterClient("alice", pairs(level=3), ()))
        story.publish(ALICE, "closed")
        story.do(ADMIN, DeleteTopic("open"), RevokeClient("alice"))
        for topic in ("open", "closed"):
            story.publish(ALICE, topic)
            story.publish(BOB, topic)
        return story.said


def sequences() -> list[Said]:
    with limited({"lines": 4, "strangers": 3}):
        story = Story()
        world = story.world
        story.topic("open", partitions=8)
        story.register(ALICE)
        first = [world.publication(ALICE, "open", tagged(n=n)) for n in range(4)]
        story.order(first[2], first[0])
        story.order(first[1], first[1], first[3])
        story.order(*first)
        for sequence in (0, 3, 4, 9, 2**61, 4, 5):
            story.order(world.publication(ALICE, "open", tagged(s=sequence), sequence=sequence))
        for who, ahead in product(
            (ALICE, MALLORY, ADMIN), (-5, -1, 0, 1, MAX_NOT_AFTER, MAX_NOT_AFTER + 1, MAX_NOT_AFTER + 2)
        ):
            for kind in (PUBLISH, STAGED):
                batch = world.batch(
                    who, [tagged(n=ahead)], kind=kind, topic="open", not_after=world.height + ahead
                )
                story.order(batch)
                story.order(batch)
        for partition, who in product(range(6), (ALICE, ADMIN, MALLORY)):
            batch = world.publication(who, "open", partition=partition)
            story.order(batch)
            story.order(batch)
        strange = [world.publication(BOB, "open", tagged(n=n), sequence=0) for n in range(5)]
        story.order(*strange)
        story.register(BOB)
        story.order(*strange)
        short = world.publication(BOB, "open", session=OTHER, not_after=world.height + 3)
        story.order(short)
        world.wait(4)
        story.order(short)
        story.do(ADMIN, RevokeClient("alice"))
        story.order(world.publication(ALICE, "open"), world.publication(ALICE, "open", session=OTHER))
        return story.said


def _stage(story: Story, who: Actor, *sizes: int, writer: bytes = WRITER, stage: int = 0) -> list[Signed]:
    """One batch for each size."""
    salt = len(story.said)
    made = [
        story.world.staged(
            who, "open", *(tagged(n=n, s=salt, b=at) for n in range(size)), writer=writer, stage=stage
        )
        for at, size in enumerate(sizes)
    ]
    story.order(*made)
    return made


def stages() -> list[Said]:
    with limited({"numbered": 2}):
        story = Story()
        world = story.world
        for who in (ALICE, BOB):
            story.register(who, level=2)
        story.topic("open", partitions=2)
        story.topic("closed", publish="level > 2")
        for who, topic, partition in product((ALICE, MALLORY, ADMIN), ("open", "closed", "none", ""), (0, 2)):
            batch = world.staged(who, topic, partition=partition)
            story.order(batch)
            story.order(batch, batch)
        one = _stage(story, ALICE, 1, 2, 1)
        story.order(world.commit(BOB, "open", 0, *one))
        story.order(world.commit(ALICE, "open", 1, *one))
        story.order(world.commit(ALICE, "open", 0, *one, writer=OTHER))
        story.order(world.commit(ALICE, "closed", 0, *one))
        story.order(world.commit(ALICE, "none", 0, *one))
        story.order(world.commit(MALLORY, "open", 0, *one))
        story.order(world.commit(ADMIN, "open", 0, *one))
        story.order(world.commit(ALICE, "open", 0, *one, one[0]))
        story.do(ALICE, CommitStage("open", WRITER, 0, (one[0].digest, bytes(32))))
        story.do(ALICE, CommitStage("open", WRITER, 0, (bytes(32), bytes(32))))
        commit = world.commit(ALICE, "open", 0, *one)
        story.order(commit)
        story.order(commit, world.commit(ALICE, "open", 0, *one), world.commit(ALICE, "open", 0, one[0]))
        story.order(*one)
        story.order(world.staged(ALICE, "open", tagged(late=True)), world.commit(ALICE, "open", 0))
        brief = world.staged(ALICE, "open", stage=1, not_after=world.height + 2)
        story.order(brief)
        world.wait(3)
        story.order(world.commit(ALICE, "open", 1, brief))
        story.order(brief)
        left, other = _stage(story, ALICE, 1, 1, stage=2)
        wide = world.staged(ALICE, "open", stage=2, partition=1)
        story.order(wide)
        story.do(ADMIN, DeleteTopic("open"))
        story.order(world.commit(ALICE, "open", 2, other))
        story.topic("open")
        story.order(world.commit(ALICE, "open", 2, other, wide))
        story.order(world.commit(ALICE, "open", 2, other))
        story.order(left, world.commit(ALICE, "open", 3))
        story.do(ADMIN, AlterTopic("open", None, None, "level > 2", None))
        story.order(world.commit(ALICE, "open", 4), world.staged(ALICE, "open", stage=4))
        story.do(ADMIN, RevokeClient("alice"))
        story.order(world.commit(ALICE, "open", 4), world.staged(ALICE, "open", stage=4))
        return story.said


def staged_bytes() -> list[Said]:
    said: list[Said] = []
    for limits in ({"staged of client": 3 * LEAST}, {"staged": 8 * LEAST}, {"staged": 4 * LEAST - 3}):
        with limited(limits):
            story = Story()
            story.topic("open")
            for who in (ALICE, ANNA, BOB, CAROL, DAVE):
                story.register(who)
            for who in (ALICE, ANNA, BOB, CAROL, DAVE):
                _stage(story, who, 1, 1, 90, 1)
            story.order(story.world.commit(ALICE, "open", 0))
            story.world.wait(2)
            for who in (ALICE, DAVE):
                _stage(story, who, 1, stage=1)
            said += story.said
    return said


def writers() -> list[Said]:
    said: list[Said] = []
    for limits in ({"writers of client": 2}, {"writers": 8}, {"writers": 3, "writer kept": 10}):
        with limited(limits):
            story = Story()
            story.topic("open")
            for who in (ALICE, ANNA, BOB, CAROL, DAVE):
                story.register(who)
            for who, n in product((ALICE, ANNA, BOB, CAROL, DAVE), range(4)):
                story.do(who, CommitStage("open", bytes([n]) * 16, 0, ()))
            story.world.wait(30)
            for who in (ALICE, DAVE):
                story.do(who, CommitStage("open", OTHER, 0, ()))
                story.do(who, CommitStage("open", bytes(16), 0, ()), CommitStage("open", bytes(16), 1, ()))
            said += story.said
    return said


def _narrow() -> Story:
    """Where asking one constraint costs 3 for each message."""
    story = Story()
    story.topic("open")
    for who in (ALICE, BOB):
        story.register(who)
    story.do(BOB, Subscribe("open", "c != 1"))
    return story


def costs() -> list[Said]:
    """Of staged batches, and of commits."""
    said: list[Said] = []
    low = {"compared of batch": 30 + HEAD}
    with limited(low):
        story = _narrow()
        _stage(story, ALICE, 11, 10, 1)
        said += story.said
    for text in ("n != 1", "z = 1"):
        with limited(low):
            story = _narrow()
            batches = _stage(story, ALICE, 10)
            story.do(BOB, Subscribe("open", text))
            story.order(story.world.commit(ALICE, "open", 0, *batches))
            said += story.said
    with limited({"compared of batch": 60 + 4 * HEAD, "numbered": 1}):
        story = _narrow()
        story.order(story.world.commit(ALICE, "open", 0, *_stage(story, ALICE, 5, 5, 5)))
        asked = [
            story.world.control(BOB, Subscribe("open", "z = 1")),
            story.world.control(ALICE, Subscribe("open", "n != 1 or n != 2")),
            story.world.control(BOB, Subscribe("open", "c != 1"), session=OTHER),
        ]
        for _ in range(4):
            story.order(*asked)
        said += story.said
    with limited({"work of block": 24}):
        story = _narrow()
        batches = [batch for _ in range(30) for batch in _stage(story, ALICE, 1)]
        commit = story.world.commit(ALICE, "open", 0, *batches)
        other = CommitStage("open", OTHER, 0, tuple(batch.digest for batch in batches))
        for _ in range(6):
            story.order(commit, story.world.control(ALICE, other, session=OTHER))
        said += story.said
    return said


def standings(operation: str) -> list[Said]:
    """One operation, asked for by everybody, those first who should not."""
    story = Story()
    world = story.world
    story.topic("open", partitions=2)
    story.topic("theirs", B, publish=f'org == "{B}"', subscribe=f'org == "{B}"')
    for who in (ALICE, ANNA, BOB, CAROL):
        story.register(who)
    gone, silent = story.register(actor("gone")), story.register(actor("silent"))
    story.do(gone, Subscribe("open", "a = 1"))
    story.do(ADMIN, RevokeClient("gone"), RevokeClient("silent"))
    story.do(ADMINS[INSURER], registration(world.chain, ADMINS[INSURER], name="boss"))
    story.do(ADMINS[LABORATORY], registration(world.chain, ADMINS[LABORATORY], name="boss"))
    story.do(ADMINS[LABORATORY], RevokeClient("boss"))
    askers = (MALLORY, gone, silent, BOB, CAROL, ANNA, ALICE, *reversed(ADMINS.values()), ALICE, ADMIN)
    for who in askers:
        story.do(who, *(one for one in examples(world.chain) if type(one).__name__ == operation))
        story.publish(who, "open", partition=1)
        story.order(world.staged(who, "theirs", tagged(who=who.name)))
    return story.said


def examples(made: bytes) -> list[Operation]:
    """Of every operation, some that could be done."""
    return [
        registration(made, actor("new"), pairs(level=3, off=False, role="nurse")),
        registration(made, actor("theirs", B), organisation=B),
        AlterClient("anna", pairs(level=1, role="clerk"), ("off", "level2")),
        AlterClient("carol", (), ()),
        RevokeClient("anna"),
        RevokeClient("carol"),
        CreateTopic("results", 2, Policy(retention=9), "role == 'nurse'", "level > 2"),
        CreateTopic("theirs", 1, Policy(), "", ""),
        AlterTopic("open", 3, 7, "true", "not off"),
        AlterTopic("theirs", None, None, None, None),
        DeleteTopic("open"),
        DeleteTopic("theirs"),
        Advertise("open", "spare beds"),
        Advertise("theirs", "spare beds"),
        Subscribe("open", "a = 1 and b != 'x'"),
        Subscribe("theirs", "a in [1, 2]"),
        Unsubscribe("open", "a = 1 and b != 'x'"),
        Unsubscribe("theirs", "c"),
        GrantRight("anna", "auditor"),
        GrantRight("carol", "auditor"),
        RevokeRight("anna", "auditor"),
        RevokeRight("carol", "auditor"),
        CommitStage("open", WRITER, 1, ()),
        CommitStage("open", WRITER, 1, (), Source(bytes(32), b"1" * 32)),
        CommitStage("theirs", WRITER, 2, (bytes(32), b"1" * 32)),
    ]


OPERATIONS = tuple(dict.fromkeys(type(one).__name__ for one in examples(bytes(32))))
