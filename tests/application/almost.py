"""Batches and operations that are almost right: what is said of them before order, and in it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace
from tests.application.codes import (
    ADMITTED,
    ALICE,
    ANNA,
    BOB,
    CAROL,
    MALLORY,
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
    Refusal,
    RevokeClient,
    RevokeRight,
    Said,
    Source,
    Story,
    Subscribe,
    Unsubscribe,
    code_of,
    fields_of,
    tag_of,
    with_rights,
)
from tests.application.stories import examples
from tests.application.world import ADMIN, ADMINS, WRITER, Actor, World, pairs, registration

from parley.model.batches import (
    CONTROL,
    MAX_BATCH_BYTES,
    NO_TOPIC,
    PUBLISH,
    STAGED,
    Batch,
    BatchHeader,
    Message,
    MessageHeader,
    encode,
    sign_batch,
)


def admission(world: World, body: bytes) -> str:
    try:
        world.machine.admit(body)
    except Refusal as refusal:
        return code_of(refusal)
    return ADMITTED


def _header(world: World, kind: int) -> BatchHeader:
    topic = "" if kind == CONTROL else "open"
    return BatchHeader(
        2, world.chain, 0, kind, topic, world.topic_id(topic), 0, ADMIN.key, bytes(16), 7, 1, 1_000
    )


def _payload(operation: Operation) -> bytes:
    return encode([tag_of(operation), *fields_of(operation)])


def _message(kind: int) -> Message:
    payload = _payload(Subscribe("open", "a = 1")) if kind == CONTROL else b"payload"
    return Message(bytes(16), encode(MessageHeader()), "", payload)


def signed(header: BatchHeader, messages: Sequence[Message], by: Actor = ADMIN) -> bytes:
    return sign_batch(header, tuple(messages), by.secret)[1]


# Each of these is one fault, which can be put together with others: which code comes first is recorded, too.
Parts = tuple[BatchHeader, list[Message]]
FAULTS: dict[str, Callable[[Parts], Parts]] = {
    "other chain": lambda it: (replace(it[0], chain=b"c" * 32), it[1]),
    "other shard": lambda it: (replace(it[0], shard=1), it[1]),
    "a topic id": lambda it: (replace(it[0], topic_id=(1, 0)), it[1]),
    "counts one more": lambda it: (replace(it[0], count=it[0].count + 1), it[1]),
    "counts one less": lambda it: (replace(it[0], count=it[0].count - 1), it[1]),
    "two messages": lambda it: (replace(it[0], count=2 * it[0].count), it[1] * 2),
    "no message": lambda it: (replace(it[0], count=0), []),
    "a topic": lambda it: (replace(it[0], topic="other"), it[1]),
    "no topic": lambda it: (replace(it[0], topic=""), it[1]),
    "odd topic": lambda it: (replace(it[0], topic="\0é"), it[1]),
    "long topic": lambda it: (replace(it[0], topic="x" * 129), it[1]),
    "a partition": lambda it: (replace(it[0], partition=1), it[1]),
    "format 0": lambda it: (replace(it[0], format=0), it[1]),
    "format 1": lambda it: (replace(it[0], format=1), it[1]),
    "format 3": lambda it: (replace(it[0], format=3), it[1]),
    "kind 3": lambda it: (replace(it[0], kind=3), it[1]),
    "sequence": lambda it: (replace(it[0], sequence=2**62), it[1]),
    "not after": lambda it: (replace(it[0], not_after=2**64 - 1), it[1]),
    "no height": lambda it: (replace(it[0], not_after=0), it[1]),
    "other publisher": lambda it: (replace(it[0], publisher=MALLORY.key), it[1]),
    "no point": lambda it: (replace(it[0], publisher=b"\xff" * 32), it[1]),
    "short key": lambda it: (replace(it[0], publisher=ADMIN.key[:31]), it[1]),
    "long session": lambda it: (replace(it[0], session=bytes(17)), it[1]),
    "rule": lambda it: (it[0], [replace(one, rule="level >= 2") for one in it[1]]),
    "loose rule": lambda it: (it[0], [replace(one, rule="level>=2") for one in it[1]]),
    "bad rule": lambda it: (it[0], [replace(one, rule="level >=") for one in it[1]]),
    "long rule": lambda it: (it[0], [replace(one, rule="a " * 2_100) for one in it[1]]),
    "no header": lambda it: (it[0], [replace(one, header=b"") for one in it[1]]),
    "long header": lambda it: (it[0], [replace(one, header=one.header + b"\0") for one in it[1]]),
    "short salt": lambda it: (it[0], [replace(one, salt=bytes(15)) for one in it[1]]),
    "unsorted tags": lambda it: (
        it[0],
        [replace(one, header=encode([None, [["b", 1], ["a", 1]], []])) for one in it[1]],
    ),
    "same tags": lambda it: (
        it[0],
        [replace(one, header=encode([None, [["a", 1], ["a", 1]], []])) for one in it[1]],
    ),
    "empty payload": lambda it: (it[0], [replace(one, payload=b"") for one in it[1]]),
    "large payload": lambda it: (it[0], [replace(one, payload=bytes(MAX_BATCH_BYTES)) for one in it[1]]),
    "only just": lambda it: (it[0], [replace(one, payload=bytes(MAX_BATCH_BYTES - 400)) for one in it[1]]),
    "64 rules": lambda it: _rules(it, 64),
    "65 rules": lambda it: _rules(it, 65),
    "4096 messages": lambda it: (replace(it[0], count=4_096), it[1][:1] * 4_096),
    "4097 messages": lambda it: (replace(it[0], count=4_097), it[1][:1] * 4_097),
}
LARGE = {"large payload", "only just", "4096 messages", "4097 messages"}


def _rules(it: Parts, count: int) -> Parts:
    ruled = [replace(one, rule=f"level >= {n}") for n in range(count) for one in it[1][:1]]
    return replace(it[0], count=count), ruled


def faults(kind: int) -> list[Said]:
    """No fault, each fault, and each two of the smaller ones; rightly signed, where they can be, or not."""
    world, said = with_rights(World()), list[Said]()
    small = [name for name in FAULTS if name not in LARGE]
    sets = [
        (),
        *((name,) for name in FAULTS),
        *(pair for pair in product(small, small) if pair[0] != pair[1]),
    ]
    for names in sets:
        it: Parts = _header(world, kind), [_message(kind)]
        for name in names:
            it = FAULTS[name](it)
        try:
            body = signed(*it)
        except (struct.error, IndexError, ValueError):
            body = encode(Batch(it[0], tuple(it[1]), bytes(64)))
        for what, one in (("", body), (" badly signed", body[:-1] + bytes([body[-1] ^ 1]))):
            said.append((" and ".join(names) + what, admission(world, one)))
    return said


def wrappings(kind: int) -> list[Said]:
    """The bytes of a good batch, in a form that is not the one."""
    world, said, random = with_rights(World()), list[Said](), Random(f"wrappings {kind}")
    body = signed(_header(world, kind), [_message(kind)])
    said += [
        ("as it is", admission(world, body)),
        ("as a vouched one", _vouched(world, body)),
        ("nothing", admission(world, b"")),
        ("more", admission(world, body + b"\0")),
        ("twice", admission(world, body * 2)),
        ("too large", admission(world, body + bytes(MAX_BATCH_BYTES))),
        ("no list", admission(world, encode({"header": body}))),
    ]
    said += [(f"cut by {size}", admission(world, body[:-size])) for size in (1, 2, 63, 64, 65, 66, 67)]
    parts = msgspec.msgpack.decode(body)
    for n in range(60):
        said.append((f"loose {n}", admission(world, loose(parts, random))))
    for n in range(300):
        said.append((f"altered {n}", admission(world, encode(altered(random, parts)))))
    return said


def _vouched(world: World, body: bytes) -> str:
    world.machine.vouch(body, bytes(32))
    return admission(world, body)


def flips(kind: int, seed: int) -> list[Said]:
    """Random edits of bytes. Those of hashes, keys and signatures, and of operations, are not shifted."""
    world, random = with_rights(World()), Random(f"flips {kind} {seed}")
    message = (
        _message(kind)
        if kind == CONTROL
        else replace(_message(kind), header=encode(MessageHeader(b"k", pairs(a=1))))
    )
    messages = [message] if kind == CONTROL else [message, replace(message, rule="level >= 2")]
    body = signed(replace(_header(world, kind), count=len(messages)), messages)
    fixed = [range(len(body) - 66, len(body))]
    starts = [body.index(value) for value in (world.chain, ADMIN.key)]
    fixed += [range(start - 2, start + 32) for start in starts]
    if kind == CONTROL:
        at = body.index(message.payload)
        hidden = range(at - 2, at + len(message.payload))
    else:
        hidden = range(0)
    said = []
    for n in range(250):
        edited = _edited(random, body, fixed, hidden)
        said.append((f"edit {n}", "Same" if edited == body else admission(world, edited)))
    return said


def _edited(random: Random, body: bytes, fixed: list[range], hidden: range) -> bytes:
    """Places are counted from the start or from the end, so that the size of what is hidden does not matter."""
    changed = dict(enumerate(bytes([byte]) for byte in body))
    places = [at for at in changed if at not in hidden]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        at, roll, bit = random.choice(places), random.randrange(6), 1 << random.randrange(8)
        more, odd = (
            random.randbytes(random.randrange(1, 5)),
            random.choice(b"\0\x7f\x80\x90\xa0\xc0\xc2\xcf\xff"),
        )
        if roll >= 3 or any(at in one for one in fixed):
            changed[at] = bytes(byte ^ bit for byte in changed[at])
        else:
            changed[at] = (changed[at] + more, b"", bytes([odd]))[roll]
    return b"".join(changed.values())


def message_headers(seed: int) -> list[Said]:
    """Rightly signed batches with message headers that nobody should write."""
    world, random = with_rights(World()), Random(f"message headers {seed}")
    valid = [
        MessageHeader(),
        MessageHeader(b"k", pairs(a=1, b="x", c=True)),
        MessageHeader(None, pairs(a=-1), (("name", b"value"), ("name", b""))),
    ]
    said = []
    for n in range(250):
        parts = msgspec.to_builtins(random.choice(valid), builtin_types=(bytes,))
        header = loose(parts, random) if n % 5 == 0 else encode(altered(random, parts))
        kind = random.choice((PUBLISH, STAGED, CONTROL))
        body = signed(_header(world, kind), [replace(_message(kind), header=header)])
        said.append((f"{n}: {parts}", admission(world, body)))
    return said


# -- before order: operations that are almost right --------------------------------------------------------------------------

TEXTS = (
    "",
    "a",
    "a = 1",
    "a == 1",
    "a =",
    "= a",
    "(a = 1",
    "a = 1)",
    "not",
    "not not a",
    "a < 1",
    "a >= -9223372036854775808",
    "a = 9223372036854775808",
    "a = 1.5",
    "a = 'x' and b != \"y\" or c in [1, 2, true]",
    "a in []",
    "a in [1, 'x']",
    "a not in [1]",
    "f(a)",
    "a = b",
    "1 = a",
    "1 = 1",
    "a && b || !c",
    "'x",
    "a = '\n'",
    "é = 1",
    "a = 'é'",
    "(" * 16 + "a" + ")" * 16,
    "(" * 17 + "a" + ")" * 17,
    "not " * 16 + "a",
    "not " * 17 + "a",
    " or ".join(f"a = {n}" for n in range(32)),
    " or ".join(f"a = {n}" for n in range(33)),
    "a in [" + ", ".join(map(str, range(63))) + "]",
    "a in [" + ", ".join(map(str, range(65))) + "]",
    "a = '" + "x" * 1_016 + "'",
    "a = '" + "x" * 1_100 + "'",
    "x" * 64 + " = 1",
    "x" * 65 + " = 1",
    "x" * 4_097,
)


def expressions(seed: int) -> list[Said]:
    """In the rule of a message, and in every field of an operation that holds an expression."""
    world, random = with_rights(World()), Random(f"expressions {seed}")
    texts = (
        [*TEXTS, *(_misspelt(random) for _ in range(60))]
        if not seed
        else [_misspelt(random) for _ in range(100)]
    )
    said = []
    for text in texts:
        operations: list[Operation] = [
            Subscribe("open", text),
            Unsubscribe("open", text),
            CreateTopic("open", 1, Policy(), text, ""),
            CreateTopic("open", 1, Policy(), "", text),
            AlterTopic("open", None, None, text, None),
            AlterTopic("open", None, None, None, text),
        ]
        for operation in operations:
            message = replace(_message(CONTROL), payload=_payload(operation))
            code = admission(world, signed(_header(world, CONTROL), [message]))
            said.append((f"{type(operation).__name__} {text}", code))
        body = signed(_header(world, PUBLISH), [replace(_message(PUBLISH), rule=text)])
        said.append((f"rule {text}", admission(world, body)))
    return said


def _misspelt(random: Random) -> str:
    text = random.choice([one for one in TEXTS if 0 < len(one) < 60])
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(text) + 1)
        piece = random.choice(
            ("", "", " ", "(", ")", "=", "!", "'", "not ", " and ", "1", "true", ",", "<", "é")
        )
        text = text[:at] + piece + text[at + random.randrange(2) :]
    return text


def altered(random: Random, value: object) -> object:
    """Somewhere in it something is dropped, added, of another type, too large, or in another order."""
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], altered(random, value[at]), *value[at + 1 :]]
    match value:
        case bool():
            return random.choice((not value, int(value), None, "true"))
        case int():
            near = (value - 1, value + 1, -value, 0, 1, 2, 64, 65)
            far = (2**31, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
            return random.choice((*near, *far, float(value), str(value), None, True, [value]))
        case str():
            sizes = (
                value * 2,
                value * 40,
                value * 2_000,
                value[:-1],
                value[1:],
                "",
                value + "\n",
                value + "\0",
            )
            spelt = (
                value.upper(),
                value + "-",
                "-" + value,
                "é" + value,
                value + " ",
                "open",
                "anna",
                "theirs",
            )
            return random.choice((*sizes, *spelt, value.encode(), None, 1, False, [value]))
        case bytes():
            lengths = (value[:-1], value + b"\0", b"", value * 2, bytes(len(value)))
            flipped = bytes([*value[:-1], value[-1] ^ 1]) if value else b"\1"
            return random.choice((*lengths, flipped, value.hex(), None, 0, list(value[:3])))
        case list():
            return _altered_list(random, value)
        case _:
            return random.choice((0, 1, True, "", "true", b"", [], {}, 1.5))


def _altered_list(random: Random, value: list[Any]) -> object:
    at = random.randrange(len(value) + 1)
    whole: tuple[object, ...] = (
        value[::-1],
        value * 2,
        value * 70,
        [],
        None,
        {},
        "",
        len(value),
        tuple(value),
        [value],
    )
    parts = (
        [*value[:at], *value[at + 1 :]],
        [*value[:at], *value[at : at + 1], *value[at:]],
        *([*value[:at], more, *value[at:]] for more in (None, 0, "", "role", ["role", "nurse"], bytes(32))),
    )
    return random.choice((*whole, *parts))


def loose(value: object, random: Random) -> bytes:
    """The same value, with heads of the largest size here and there."""
    wide = random.random() < 0.15
    match value:
        case list():
            head = (
                struct.pack(">BI", 0xDD, len(value))
                if wide
                else encode([None] * len(value))[: -len(value) or None]
            )
            return head + b"".join(loose(one, random) for one in value)
        case str() if wide:
            return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
        case bytes() if wide:
            return struct.pack(">BI", 0xC6, len(value)) + value
        case int() if wide and not isinstance(value, bool):
            return struct.pack(">Bq", 0xD3, value)
        case _:
            return encode(value)


ODD_TAGS: tuple[object, ...] = (0, 99, -1, 2**63, None, True, 1.5, "no-such-operation", "", b"", [])
ODD_FIELDS: tuple[object, ...] = (None, True, 0, -1, 1.5, "", "x", b"", bytes(32), [], [[]], {})


def _mutations(operation: str, world: World, random: Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Payloads of control batches."""
    valid = [world.named(one) for one in examples(world.chain) if type(one).__name__ == operation]
    for one in valid:
        tag, fields, whole = tag_of(one), fields_of(one), _payload(one)
        yield "as it is", whole
        yield "more", whole + b"\0"
        yield "cut", whole[:-1]
        yield "nothing", b""
        yield "no tag", encode(fields)
        yield "a map", encode({"fields": fields})
        for odd in ODD_TAGS:
            yield f"tag {odd!r}", encode([odd, *fields])
        for size in range(len(fields)):
            yield f"{size} fields", encode([tag, *fields[:size]])
        yield "one field more", encode([tag, *fields, None])
        for at, field in enumerate(fields):
            others = [*ODD_FIELDS, [field]]
            if isinstance(field, (list, tuple)) and field:
                others += [field[::-1], [*field, field[-1]], [field[0], *field], field[1:]]
            for other in others:
                yield f"field {at} {other!r}", encode([tag, *fields[:at], other, *fields[at + 1 :]])
    for n in range(count):
        one = random.choice(valid)
        changed = altered(random, fields_of(one))
        if isinstance(changed, (list, tuple)):
            yield f"altered {n}", encode([tag_of(one), *changed])
        again = loose(fields_of(one), random)  # begins with the head of a list, which the tag makes longer
        size = len(fields_of(one)) + 1
        if again[0] == 0xDD:
            yield f"loose {n}", struct.pack(">BI", 0xDD, size) + encode(tag_of(one)) + again[5:]
        else:
            yield f"loose {n}", encode([None] * size)[:1] + encode(tag_of(one)) + again[1:]


def operations(operation: str) -> list[Said]:
    world, said = with_rights(World()), list[Said]()
    for what, payload in _mutations(operation, world, Random(f"operations {operation}"), 120):
        body = signed(_header(world, CONTROL), [replace(_message(CONTROL), payload=payload)])
        said.append((what, admission(world, body)))
    return said


def lists() -> list[Said]:
    """Fields that hold many things: as many as they may, and one more."""
    world, said = with_rights(World()), list[Said]()
    made: list[Operation] = []
    for count in (64, 65):
        attributes = pairs(**{f"a{n:02}": n for n in range(count)})
        made += [registration(world.chain, ALICE, attributes), AlterClient("alice", attributes, ())]
        made += [AlterClient("alice", (), tuple(name for name, _ in attributes))]
        made += [CreateTopic("open", count, Policy(), "", ""), AlterTopic("open", count, None, None, None)]
    for size in (1_024, 1_025):
        made += [Advertise("open", "x" * size), Advertise("open", "é" * size)]
    for count in (16_384, 16_385):
        made += [CommitStage("open", WRITER, 0, tuple(n.to_bytes(32, "big") for n in range(count)))]
    for size in (0, 31, 32, 33):
        some = bytes(size)
        made += [CommitStage("open", WRITER, 0, (), Source(*one)) for one in ((some, None), (None, some))]
    for name in ("a" * 32, "a" * 33, "a-b", "a-", "-a", "A", "a.b", "a\n", "", "é", "a b", "a/b"):
        made += [RevokeClient(name), GrantRight(name, "auditor"), registration(world.chain, ALICE, name=name)]
    for name in ("a" * 128, "a" * 129, "A/b.c-d_e", "a/", "/a", "a//b", "a\n", "", "é", "a b", "_a"):
        made += [DeleteTopic(name), Subscribe(name, ""), CommitStage(name, WRITER, 0, ())]
    for name in ("a" * 64, "a" * 65, "_a", "a.b", "1a", "a-b", "", "é", "a\n"):
        made += [AlterClient("alice", ((name, 1),), ()), AlterClient("alice", (), (name,))]
    for value in (True, 2**63 - 1, -(2**63), 2**63, "x" * 256, "x" * 257, "é" * 256, ""):
        made += [AlterClient("alice", (("a", value),), ())]
    for right in ("auditor", "Auditor", "", "admin"):
        made += [GrantRight("alice", right), RevokeRight("alice", right)]  # type: ignore[arg-type]
    for one in made:
        body = signed(_header(world, CONTROL), [replace(_message(CONTROL), payload=_payload(one))])
        said.append((str(one)[:100], admission(world, body)))
    said.append(("not UTF-8", _spoilt(world, Advertise("open", "spare"), b"spare", b"sp\xffre")))
    return said


def _spoilt(world: World, operation: Operation, old: bytes, new: bytes) -> str:
    payload = _payload(operation).replace(old, new)
    return admission(world, signed(_header(world, CONTROL), [replace(_message(CONTROL), payload=payload)]))


def applied(operation: str) -> list[Said]:
    """Operations with altered fields: the code of admission or, of those that are admitted, of the receipt."""
    random, story = Random(f"applied {operation}"), Story()
    world = story.world
    for name, organisation in (("open", A), ("theirs", B)):
        story.topic(name, organisation, partitions=2)
    for who in (ALICE, ANNA, BOB, CAROL):
        story.register(who, level=random.randrange(4))
    for what, payload in _mutations(operation, world, random, 150):
        who = random.choice((*ADMINS.values(), ADMIN, ALICE, ANNA, BOB, CAROL, MALLORY))
        message = replace(_message(CONTROL), payload=payload)
        batch = world.batch(who, [message], kind=CONTROL)
        code = admission(world, batch.body)
        if code == ADMITTED:
            story.order(batch, what=f"{who.organisation}/{who.name} {what}")
        else:
            # It was never ordered, so the sequence is free.
            world._sequences[world.shard, who.key, bytes(16), CONTROL, "", NO_TOPIC, 0] -= 1
            story.said.append((what, code))
    return story.said
