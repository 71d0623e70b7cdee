"""An aggregate names its signers in one way only, and every change to it is noticed."""

import copy
from itertools import permutations
from operator import methodcaller

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.crypto.ed25519 import SecretKey
from parley.crypto.qc import (
    MAX_ED25519_MEMBERS,
    Aggregate,
    Ed25519List,
    Ed25519Signer,
    QCScheme,
    Signer,
    bitmap_of,
    voters,
)
from parley.crypto.simulated import SimulatedAuthority

SIZE = 11
KEYS = [SecretKey.from_seed(bytes([i]) * 32) for i in range(SIZE)]
AUTHORITY = SimulatedAuthority(b"seed", SIZE)

Committee = tuple[QCScheme, list[Signer]]
COMMITTEES: dict[str, Committee] = {
    "ed25519": (Ed25519List([k.public for k in KEYS]), [Ed25519Signer(i, k) for i, k in enumerate(KEYS)]),
    "simulated": (AUTHORITY.scheme(), [AUTHORITY.signer(i) for i in range(SIZE)]),
}
committees = pytest.mark.parametrize(("scheme", "signers"), COMMITTEES.values(), ids=COMMITTEES)


def sign(signers: list[Signer], messages: dict[int, bytes]) -> dict[int, bytes]:
    return {i: signers[i].sign(message) for i, message in messages.items()}


def flips(data: bytes) -> list[bytes]:
    return [
        data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :] for i in range(len(data)) for bit in (0, 7)
    ]


@st.composite
def members(draw: st.DrawFn) -> tuple[int, set[int]]:
    size = draw(st.integers(1, 70))
    return size, draw(st.sets(st.integers(0, size - 1)))


@given(members())
def test_a_bitmap_gives_back_its_members(chosen: tuple[int, set[int]]) -> None:
    size, signers = chosen
    bitmap = bitmap_of(signers, size)
    assert len(bitmap) == -(-size // 8)
    assert voters(bitmap, size) == tuple(sorted(signers))


@given(st.integers(0, 40), st.binary(max_size=6))
def test_only_canonical_bitmaps_name_members(size: int, bitmap: bytes) -> None:
    found = voters(bitmap, size)
    canonical = len(bitmap) == -(-size // 8) and int.from_bytes(bitmap, "little") < 1 << size
    assert (found is not None) == canonical
    if found is not None:
        assert bitmap_of(found, size) == bitmap


def test_the_bit_order_is_frozen() -> None:
    assert bitmap_of([0, 3, 9], 11) == bytes.fromhex("0902")
    assert voters(b"", -3) is None
    assert voters(b"", 0) == ()


def test_a_bitmap_has_no_strangers_and_nobody_twice() -> None:
    for stranger in (-1, 4):
        with pytest.raises(ValueError, match="there is no member"):
            bitmap_of([stranger], 4)
    with pytest.raises(ValueError, match="named twice"):
        bitmap_of([1, 1], 4)


@committees
def test_a_signature_counts_for_its_signer_and_message_only(scheme: QCScheme, signers: list[Signer]) -> None:
    for i, signer in enumerate(signers):
        assert signer.index == i
        signature = signer.sign(b"vote")
        assert len(signature) == scheme.signature_size
        for j in range(-1, SIZE + 1):
            assert scheme.verify(j, b"vote", signature) == (i == j)
        assert not scheme.verify(i, b"veto", signature)
        assert not any(scheme.verify(i, b"vote", bad) for bad in flips(signature))
        assert not scheme.verify(i, b"vote", signature + b"\0")
        assert not scheme.verify(i, b"vote", signature[:-1])
    assert scheme.size == SIZE


@committees
@given(data=st.data())
def test_an_aggregate_of_any_signers_verifies(
    scheme: QCScheme, signers: list[Signer], data: st.DataObject
) -> None:
    message = st.sampled_from([b"timeout 1", b"timeout 2", b"timeout 3"])
    messages = data.draw(st.dictionaries(st.integers(0, SIZE - 1), message, min_size=1))
    aggregate = scheme.aggregate(sign(signers, messages))
    order = voters(aggregate.bitmap, SIZE)
    assert order == tuple(sorted(messages))
    in_order = [messages[i] for i in order]
    assert scheme.verify_aggregate(in_order, aggregate)
    assert not scheme.verify_aggregate([*in_order[:-1], b"other"], aggregate)
    assert not scheme.verify_aggregate(in_order[:-1], aggregate)
    assert not scheme.verify_aggregate([*in_order, in_order[-1]], aggregate)


@committees
def test_only_the_very_signature_that_the_caller_made_needs_no_check(
    scheme: QCScheme, signers: list[Signer]
) -> None:
    signatures = sign(signers, dict.fromkeys((0, 4, 9), b"vote"))
    messages, aggregate = [b"vote"] * 3, scheme.aggregate(signatures)
    assert scheme.verify_aggregate(messages, aggregate, {4: signatures[4]})
    forged = bytes(len(signatures[4]))
    assert not scheme.verify_aggregate(
        messages, scheme.aggregate({**signatures, 4: forged}), {4: signatures[4]}
    )
    assert not scheme.verify_aggregate(
        messages, scheme.aggregate({**signatures, 9: forged}), {4: signatures[4]}
    )


@committees
def test_an_aggregate_with_any_byte_changed_is_refused(scheme: QCScheme, signers: list[Signer]) -> None:
    aggregate = scheme.aggregate(sign(signers, dict.fromkeys((0, 4, 9), b"vote")))
    messages = [b"vote"] * 3
    assert scheme.verify_aggregate(messages, aggregate)
    for bad in flips(aggregate.signature):
        assert not scheme.verify_aggregate(messages, Aggregate(aggregate.bitmap, bad))
    for i in range(8 * len(aggregate.bitmap)):
        bits = int.from_bytes(aggregate.bitmap, "little") ^ 1 << i
        changed = Aggregate(bits.to_bytes(len(aggregate.bitmap), "little"), aggregate.signature)
        for count in (2, 3, 4):
            assert not scheme.verify_aggregate([b"vote"] * count, changed)


@committees
def test_signatures_are_neither_permuted_nor_repeated(scheme: QCScheme, signers: list[Signer]) -> None:
    chosen = (0, 4, 9)
    bitmap = bitmap_of(chosen, SIZE)
    signatures = [signers[i].sign(b"vote") for i in chosen]
    for order in permutations(range(3)):
        shuffled = Aggregate(bitmap, b"".join(signatures[i] for i in order))
        assert scheme.verify_aggregate([b"vote"] * 3, shuffled) == (order == (0, 1, 2))
    repeated = Aggregate(bitmap, signatures[0] * 3)
    assert not scheme.verify_aggregate([b"vote"] * 3, repeated)


@committees
def test_the_length_of_an_aggregate_is_exact(scheme: QCScheme, signers: list[Signer]) -> None:
    aggregate = scheme.aggregate(sign(signers, dict.fromkeys((0, 4, 9), b"vote")))
    bitmap, signature = aggregate.bitmap, aggregate.signature
    surplus = signature + signature[: scheme.signature_size]
    for end in range(len(signature)):
        assert not scheme.verify_aggregate([b"vote"] * 3, Aggregate(bitmap, signature[:end]))
    for longer in (signature + b"\0", surplus):
        assert not scheme.verify_aggregate([b"vote"] * 3, Aggregate(bitmap, longer))
    for other in (b"", bitmap[:-1], bitmap + b"\0"):
        assert not scheme.verify_aggregate([b"vote"] * 3, Aggregate(other, signature))


@committees
def test_nobody_is_not_a_quorum(scheme: QCScheme, signers: list[Signer]) -> None:
    empty = scheme.aggregate({})
    assert voters(empty.bitmap, SIZE) == ()
    assert not scheme.verify_aggregate([], empty)


@committees
def test_only_members_with_whole_signatures_are_aggregated(scheme: QCScheme, signers: list[Signer]) -> None:
    signature = signers[0].sign(b"vote")
    for stranger in (-1, SIZE):
        with pytest.raises(ValueError, match="there is no member"):
            scheme.aggregate({stranger: signature})
    for bad in (b"", signature[:-1], signature * 2):
        with pytest.raises(ValueError, match="bytes long"):
            scheme.aggregate({0: bad})


@committees
def test_signers_are_not_shown_pickled_or_copied(scheme: QCScheme, signers: list[Signer]) -> None:
    for signer in signers:
        assert repr(signer).endswith(f"of member {signer.index}, redacted>")
        for copied in (copy.copy, copy.deepcopy, methodcaller("__reduce_ex__", 4)):
            with pytest.raises(TypeError, match="neither pickled nor copied"):
                copied(signer)


def test_a_committee_has_distinct_whole_keys_and_a_bounded_size() -> None:
    publics = [SecretKey.from_seed(bytes([i]) * 32).public for i in range(MAX_ED25519_MEMBERS + 1)]
    assert Ed25519List(publics[:-1]).size == MAX_ED25519_MEMBERS
    assert Ed25519List(publics[:2]).public_keys == tuple(publics[:2])
    for count in (publics, []):
        with pytest.raises(ValueError, match="1 to 32 members"):
            Ed25519List(count)
    with pytest.raises(ValueError, match="same public key"):
        Ed25519List([publics[0], publics[1], publics[0]])
    with pytest.raises(ValueError, match="32 bytes"):
        Ed25519List([publics[0], publics[1][:-1]])


def test_an_aggregate_has_one_encoding() -> None:
    aggregate = Aggregate(b"\1", b"signature")
    data = msgspec.msgpack.encode(aggregate)
    assert data == msgspec.msgpack.encode([b"\1", b"signature"])
    assert msgspec.msgpack.decode(data, type=Aggregate) == aggregate
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode([b"\1", b"signature", 0]), type=Aggregate)


@pytest.mark.parametrize("name", COMMITTEES)
def test_the_format_is_frozen(name: str) -> None:
    scheme, signers = COMMITTEES[name]
    aggregate = scheme.aggregate(sign(signers, {10: b"third", 0: b"first", 8: b"second"}))
    assert msgspec.msgpack.encode(aggregate).hex() == FROZEN[name]


FROZEN = {
    "ed25519": (
        "92c4020105c4c0ced6cccd9c094d22b63777156e47dc0efe7af151d91ec789478d819adc25c036ec62ea73aada4a2de7"
        "65e07b328b682688b5269a6608435565d52f5f0107d5079f84e62a134ee2d3b6a88acd6873d8df10fdeeeb1cb25a8899"
        "08cb66d121ab1d4a3fc6effc11d05630abcfc5b33d8ca07312d9ec2deb95ae627566e814cd1d04f6be91048a1e42720f"
        "7b91797ff3387b29cea2e9c917086829a27f03f40813556e7c939e69103b6b8e40dea7e033de21a1968c689015052b42"
        "c9365e4d5f770b"
    ),
    "simulated": (
        "92c4020105c430914baa04d02871e9051c6f11a9e493289983499330b400cd484d2855b3431889ae753cc0df326cd5a0"
        "d6a073322b6352"
    ),
}
