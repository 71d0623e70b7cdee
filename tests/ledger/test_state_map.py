"""One root stands for one set of entries, however it came about, and proofs against it hold for nothing else."""

from collections import defaultdict
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.crypto.hashing import digest
from parley.ledger import state_map
from parley.ledger.state_map import EMPTY_ROOT, DamagedMap, StateProof

ROOT_OF_20 = "52b9d95ab6030f64450ca31d32e94f277a3151ea2164b0954db9bebf91a70155"
steady = settings(derandomize=True, deadline=None)
MANY = {b"key %d" % i: b"value %d" % i for i in range(400)}


def hashed(key: bytes) -> str:
    return digest("state/key", key).hex()


def neighbours(prefix: int) -> list[list[bytes]]:
    """Groups of keys whose hashes begin with the same digits."""
    groups = defaultdict(list)
    for key in (b"%d" % i for i in range(4_000)):
        groups[hashed(key)[:prefix]].append(key)
    return [group for group in groups.values() if len(group) > 1]


TWINS = neighbours(5)[0][:2]
POOL = [
    *(key for group in neighbours(5)[:4] for key in group),
    *(key for group in neighbours(3)[:4] for key in group),
    *(b"far %d" % i for i in range(24)),
]
keys = st.sampled_from(POOL)
values = st.binary(max_size=3)
maps = st.dictionaries(keys, values, max_size=len(POOL))
blocks = st.lists(st.dictionaries(keys, st.none() | values, max_size=20), max_size=8)


class Map:
    """A map whose nodes are in memory; it reads each node of an update once."""

    def __init__(self, entries: Mapping[bytes, bytes] | None = None) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.nodes: dict[bytes, bytes] = {}
        self.root = EMPTY_ROOT
        self.read: list[bytes] = []
        self.apply(entries or {})

    def get(self, path: bytes) -> bytes | None:
        self.read.append(path)
        return self.nodes.get(path)

    def apply(self, changes: Mapping[bytes, bytes | None]) -> dict[bytes, bytes | None]:
        self.read.clear()
        self.root, writes = state_map.update(self, changes)
        apply(self.entries, changes)
        apply(self.nodes, writes)
        return writes

    def prove(self, key: bytes) -> StateProof:
        return state_map.prove(self, key)

    def holds(self, key: bytes, value: bytes | None, proof: StateProof) -> bool:
        return state_map.verify(self.root, key, value, proof)


def apply(target: dict[bytes, bytes], changes: Mapping[bytes, bytes | None]) -> None:
    for key, value in changes.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = value


def defined(entries: Mapping[bytes, bytes]) -> bytes:
    """The root by its definition, from all entries at once."""

    def node(inside: Mapping[str, bytes], depth: int) -> bytes:
        if len(inside) == 1:
            [(name, value)] = inside.items()
            return digest("state/leaf", bytes.fromhex(name), digest("state/value", value))
        children: dict[int, dict[str, bytes]] = defaultdict(dict)
        for name, value in inside.items():
            children[int(name[depth], 16)][name] = value
        present = sum(1 << nibble for nibble in children).to_bytes(2, "big")
        hashes = [node(children[nibble], depth + 1) for nibble in sorted(children)]
        return digest("state/branch", present + b"".join(hashes))

    return (
        node({hashed(key): value for key, value in entries.items()}, 0) if entries else digest("state/empty")
    )


@steady
@given(blocks)
def test_the_root_and_the_stored_nodes_depend_on_the_entries_alone(
    history: list[dict[bytes, bytes | None]],
) -> None:
    grown = Map()
    for changes in history:
        grown.apply(changes)
        assert grown.root == state_map.root(grown) == defined(grown.entries)
        assert grown.nodes == Map(grown.entries).nodes


@steady
@given(maps, maps)
def test_everything_can_be_deleted_again(first: dict[bytes, bytes], second: dict[bytes, bytes]) -> None:
    grown = Map({**first, **second})
    grown.apply(dict.fromkeys(second))
    assert grown.nodes == Map(grown.entries).nodes
    grown.apply(dict.fromkeys(first))
    assert (grown.root, grown.nodes) == (EMPTY_ROOT, {})


@steady
@given(maps, st.dictionaries(keys, st.none() | values))
def test_an_update_reads_each_node_once_and_writes_only_what_changed(
    entries: dict[bytes, bytes], changes: dict[bytes, bytes | None]
) -> None:
    grown = Map(entries)
    before = dict(grown.nodes)
    writes = grown.apply(changes)
    assert len(grown.read) == len(set(grown.read))
    assert all(before.get(path) != node for path, node in writes.items())
    assert grown.apply(changes) == {}


def test_the_order_of_changes_does_not_show() -> None:
    changes = {key: None if i % 3 else b"new" for i, key in enumerate(MANY)}
    one, other = Map(MANY), Map(dict(reversed(MANY.items())))
    writes, same = one.apply(changes), other.apply(dict(reversed(changes.items())))
    assert list(writes.items()) == list(same.items())
    assert one.root == other.root


def test_the_format_is_frozen() -> None:
    assert digest("state/empty") == EMPTY_ROOT
    assert Map({b"key %d" % i: b"value %d" % i for i in range(20)}).root.hex() == ROOT_OF_20


@steady
@given(maps)
def test_every_key_is_proven_present_with_its_value_or_absent(entries: dict[bytes, bytes]) -> None:
    shown = Map(entries)
    for key in POOL:
        proof = shown.prove(key)
        claims = {None, b"", b"other", *entries.values()}
        assert {value for value in claims if shown.holds(key, value, proof)} == {entries.get(key)}


@steady
@given(maps, keys, keys)
def test_a_proof_for_one_key_says_nothing_false_about_another(
    entries: dict[bytes, bytes], key: bytes, other: bytes
) -> None:
    shown = Map(entries)
    proof = shown.prove(key)
    for value in (None, b"", *entries.values()):
        if shown.holds(other, value, proof):
            assert value == entries.get(other)


def test_a_proof_of_an_old_state_fails_against_a_new_root() -> None:
    old, new = Map(MANY), Map({**MANY, b"key 7": b"changed"})
    assert new.holds(b"key 7", b"changed", new.prove(b"key 7"))
    assert not old.holds(b"key 7", b"changed", new.prove(b"key 7"))
    assert not new.holds(b"key 7", MANY[b"key 7"], old.prove(b"key 7"))
    assert not new.holds(b"absent", None, old.prove(b"absent"))


def shapes() -> list[tuple[Map, bytes]]:
    one, other = TWINS
    return [
        (Map(), b"absent"),
        (Map({one: b"1"}), one),
        (Map({one: b"1"}), other),  # another leaf is the root
        (Map({one: b"1", other: b"2"}), one),  # five branches with one child each
        (Map({b"far 0": b"", b"far 1": b""}), b"far 1"),
        (Map({b"far 0": b"", b"far 1": b""}), b"far 2"),  # an empty slot
        (Map({b"far 0": b"", one: b"1"}), other),  # another leaf stands in the way
        (Map(MANY), b"key 3"),
        (Map(MANY), b"absent"),
        (Map({**MANY, one: b"1"}), other),
        (Map({**MANY, one: b"1", other: b"2"}), other),
    ]


def variants(data: bytes) -> list[bytes]:
    """The data with one byte changed: to every other byte in short data, else in one bit at a time."""
    masks = range(1, 256) if len(data) < 300 else [1 << bit for bit in range(8)]
    return [
        data[:at] + bytes([byte ^ mask]) + data[at + 1 :] for at, byte in enumerate(data) for mask in masks
    ]


@pytest.mark.parametrize(("shown", "key"), shapes())
def test_a_proof_with_any_byte_changed_is_refused(shown: Map, key: bytes) -> None:
    value = shown.entries.get(key)
    data = msgspec.msgpack.encode(shown.prove(key))
    decoder = msgspec.msgpack.Decoder(StateProof)
    assert shown.holds(key, value, decoder.decode(data))
    for changed in variants(data):
        try:
            proof = decoder.decode(changed)
        except msgspec.MsgspecError:
            continue
        assert not shown.holds(key, value, proof)


@pytest.mark.parametrize(("shown", "key"), shapes())
def test_levels_are_neither_missing_nor_added_nor_moved(shown: Map, key: bytes) -> None:
    value, proof = shown.entries.get(key), shown.prove(key)
    levels, other = proof.levels, proof.other
    wrong = [levels[:-1], levels[1:], (*levels, b"\0\0"), (b"\0\0", *levels), levels + levels, levels[::-1]]
    for changed in wrong:
        if changed != levels:
            assert not shown.holds(key, value, StateProof(changed, other))
    for leaf in (None, bytes(64), *shown.nodes.values()):
        if leaf != other:
            assert not shown.holds(key, value, StateProof(levels, leaf))


def test_a_present_key_is_not_proven_absent_by_a_leaf_or_a_gap_of_the_liars_choice() -> None:
    one, other = TWINS
    shown = Map({**MANY, one: b"1", other: b"2"})
    honest = shown.prove(one)
    entry = bytes.fromhex(hashed(other)) + digest("state/value", b"2")
    own = bytes.fromhex(hashed(one)) + digest("state/value", b"1")
    for depth in range(len(honest.levels) + 1):
        for leaf in (None, entry, own):
            assert not shown.holds(one, None, StateProof(honest.levels[:depth], leaf))


def test_a_leaf_in_a_place_that_is_not_its_own_proves_nothing() -> None:
    key, nibble = b"key 3", int(hashed(b"key 3")[0], 16)
    stray = next(other for other in MANY if hashed(other)[0] != hashed(key)[0])
    entry = bytes.fromhex(hashed(stray)) + digest("state/value", b"")
    level = (1 << nibble).to_bytes(2, "big")
    root = digest("state/branch", level + digest("state/leaf", entry[:32], entry[32:]))
    assert not state_map.verify(root, key, None, StateProof((level,), entry))


def test_a_branch_is_not_a_leaf_and_a_leaf_is_not_a_branch() -> None:
    shown = Map(MANY)
    top = shown.nodes[b""]
    for value in (top, top[: -len(top) % 32], shown.root):
        assert not shown.holds(b"key 3", value, StateProof((), None))


ROOT_OF_MANY = Map(MANY).root
hostile = st.binary(max_size=70) | st.binary(min_size=450, max_size=500)


@steady
@given(
    st.lists(hostile, max_size=70).map(tuple),
    st.none() | st.binary(min_size=60, max_size=68),
    st.none() | st.binary(max_size=4),
)
def test_a_made_up_proof_is_refused_and_never_raises(
    levels: tuple[bytes, ...], other: bytes | None, value: bytes | None
) -> None:
    assert not state_map.verify(ROOT_OF_MANY, b"key 3", value, StateProof(levels, other))


@pytest.mark.parametrize(
    "levels", [(b"\xff\xff" + bytes(600),), (b"\xff\xff" + bytes(480),) * 65, (b"",), (b"\xff",)]
)
def test_a_proof_that_no_decoder_lets_through_is_refused_all_the_same(levels: tuple[bytes, ...]) -> None:
    for value in (None, b"value 3"):
        assert not state_map.verify(ROOT_OF_MANY, b"key 3", value, StateProof(levels, None))


@pytest.mark.parametrize("size", [0, 31, 32, 63, 65])
def test_a_leaf_of_another_size_is_no_leaf(size: int) -> None:
    root = state_map._leaf_hash(bytes(size))
    assert not state_map.verify(root, b"key", None, StateProof((), bytes(size)))
    assert state_map.verify(state_map._leaf_hash(bytes(64)), b"key", None, StateProof((), bytes(64)))


@steady
@given(st.binary(max_size=600))
def test_made_up_bytes_are_no_proof(data: bytes) -> None:
    try:
        proof = msgspec.msgpack.decode(data, type=StateProof)
    except msgspec.MsgspecError:
        return
    assert not state_map.verify(bytes(32), b"key", None, proof)


@pytest.mark.parametrize(
    "proof",
    [
        [[b"\0" * 2] * 65, None],
        [[b"\0"], None],
        [[b"\0" * (2 + 15 * 32 + 1)], None],
        [[], bytes(63)],
        [[], bytes(65)],
        [[], None, None],
        [[]],
    ],
)
def test_proofs_above_their_limits_are_not_decoded(proof: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(proof), type=StateProof)


def test_a_missing_or_damaged_node_is_named_and_gives_no_root() -> None:
    one, _ = TWINS
    path = bytes(int(digit, 16) for digit in hashed(one)[:2])
    for damage in (None, b"", b"\0\1", bytes(64)):
        shown = Map({**MANY, **dict.fromkeys(TWINS, b"")})
        good = shown.nodes[path]
        for bad in (damage, good[:-1], good + b"\0", b"\0\0" + good[2:]):
            apply(shown.nodes, {path: bad})
            with pytest.raises(DamagedMap, match=f"Node {hashed(one)[:2]} ") as caught:
                shown.prove(one)
            assert caught.value.path == path
            with pytest.raises(DamagedMap):
                shown.apply({one: b"new"})


@pytest.mark.parametrize("node", [b"\0\3" + bytes(40), b"\0\3" + bytes(64) + b"\0\4" + bytes(64)])
def test_a_damaged_root_is_named(node: bytes) -> None:
    with pytest.raises(DamagedMap, match="at the root"):
        state_map.root({b"": node})


# -- maps that come from somebody else -------------------------------------------------------------------------------------


def copied(source: Map, lie: bool = False) -> tuple[Map, int]:
    """The nodes of a map as one gets them from somebody else, from the root down, and how many leaves there are."""
    copy, leaves = Map(), 0
    todo = [] if source.root == EMPTY_ROOT else [(b"", source.root)]
    while todo:
        path, hash_ = todo.pop()
        node = state_map.standing(source, path)
        assert node is not None
        if lie and not state_map.is_leaf(node):
            node = without_leaves(node)
        contents = state_map.check(path, hash_, node)
        assert contents is not None
        leaves += contents.leaves
        todo += contents.branches
        if path and state_map.is_leaf(node):
            copy.nodes[path[:-1]] = state_map.with_leaf(path, copy.nodes[path[:-1]], node)
        else:
            copy.nodes[path] = node
    return copy, leaves


def without_leaves(node: bytes) -> bytes:
    """A branch that calls its leaves branches: its hash is the same."""
    return node[: 2 + 32 * int.from_bytes(node[:2], "big").bit_count()] + bytes(2)


@steady
@given(maps, st.booleans())
def test_a_map_can_be_copied_from_its_root_down_whatever_it_says_of_its_leaves(
    entries: dict[bytes, bytes], lie: bool
) -> None:
    source = Map(entries)
    copy, leaves = copied(source, lie)
    assert copy.nodes == source.nodes
    assert leaves == len(entries)


@steady
@given(maps, keys, values)
def test_a_map_holds_its_entries_and_no_others(entries: dict[bytes, bytes], key: bytes, value: bytes) -> None:
    source = Map(entries)
    assert all(state_map.holds(source, name, entry) for name, entry in entries.items())
    assert state_map.holds(source, key, value) == (entries.get(key) == value)


def test_a_node_that_is_not_the_one_with_the_hash_is_refused() -> None:
    source = Map(MANY)
    node = source.nodes[b""]
    assert state_map.check(b"", source.root, node) is not None
    for at in range(len(node)):
        changed = node[:at] + bytes([node[at] ^ 1]) + node[at + 1 :]
        assert state_map.check(b"", source.root, changed) is None
    for wrong in (b"", node[:-1], node + b"\0", node[:64], bytes(64), source.nodes[b"\1"]):
        assert state_map.check(b"", source.root, wrong) is None


def test_nothing_stands_where_the_map_has_nothing() -> None:
    assert state_map.standing(Map(), b"") is None
    assert state_map.standing(Map(), b"\1") is None
    one = Map({b"a": b"1"})
    assert state_map.is_leaf(state_map.standing(one, b"") or b"")
    assert state_map.standing(one, b"\1") is None
    many = Map(MANY)
    assert state_map.standing(many, b"\1" * 64) is None
    assert state_map.standing(many, b"\x10") is None


def test_what_is_damaged_shows_when_it_is_looked_for() -> None:
    source = Map(MANY)
    deep = next(path for path in source.nodes if len(path) == 2)
    source.nodes[deep] = b"no node"
    with pytest.raises(DamagedMap):
        state_map.standing(source, deep + b"\1")
    key = next(key for key in MANY if hashed(key).startswith(deep.hex()[1::2]))
    with pytest.raises(DamagedMap):
        state_map.holds(source, key, MANY[key])


@steady
@given(maps)
def test_every_node_of_a_map_is_what_the_one_above_says_and_can_be_made_again(
    entries: dict[bytes, bytes],
) -> None:
    made = Map(entries)
    leaves = 0
    for path in list(made.nodes):
        contents = state_map.check_node(made, path, made.root)
        leaves += contents.leaves
        assert all(below in made.nodes for below, _ in contents.branches)
        own = {
            state_map.path_of(key)[len(path)]: state_map.leaf_entry(key, value)
            for key, value in entries.items()
            if state_map.path_of(key).startswith(path)
            and state_map.path_of(key)[: len(path) + 1] not in made.nodes
        }
        assert state_map.rebuilt_node(made, path, own) == made.nodes[path]
    assert leaves == len(entries)


@steady
@given(maps.filter(lambda entries: len(entries) > 1), st.data())
def test_a_changed_byte_of_a_node_is_found(entries: dict[bytes, bytes], data: st.DataObject) -> None:
    made = Map(entries)
    path = data.draw(st.sampled_from(sorted(made.nodes)))
    node = made.nodes[path]
    at = data.draw(st.integers(0, len(node) - 1))
    made.nodes[path] = node[:at] + bytes([node[at] ^ data.draw(st.integers(1, 255))]) + node[at + 1 :]
    with pytest.raises(DamagedMap) as damaged:
        state_map.check_node(made, path, made.root)
    assert damaged.value.path == path
    del made.nodes[path]
    with pytest.raises(DamagedMap):
        state_map.check_node(made, path, made.root)


def test_a_node_where_the_map_has_none_is_a_stray() -> None:
    made = Map(MANY)
    for path in (b"\x01\x02\x03\x04\x05", b"\x0f" * 8):
        made.nodes[path] = made.nodes[b""]
        with pytest.raises(state_map.StrayNode) as stray:
            state_map.check_node(made, path, made.root)
        assert stray.value.path == path
    empty = Map()
    empty.nodes[b""] = made.nodes[b""]
    with pytest.raises(state_map.StrayNode):
        state_map.check_node(empty, b"", EMPTY_ROOT)
