"""The encoding is injective and its inverse accepts nothing else."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.crypto.encoding import EncodingError, dec, enc, u16, u32, u64

items = st.lists(st.binary(max_size=40), max_size=6)


class Huge(bytes):
    """Pretends to be longer than a 32-bit length can say, without taking the memory."""

    def __len__(self) -> int:
        return 2**32


def test_layout_is_length_then_bytes() -> None:
    assert enc(b"ab", b"") == bytes.fromhex("00000002" + "6162" + "00000000")
    assert enc() == b""


@given(items)
def test_decoding_undoes_encoding(values: list[bytes]) -> None:
    assert dec(enc(*values), len(values)) == tuple(values)


@given(items, items)
def test_different_lists_encode_differently(one: list[bytes], other: list[bytes]) -> None:
    assert (enc(*one) == enc(*other)) == (one == other)


@given(st.binary(max_size=60), st.integers(0, 4))
def test_whatever_decodes_is_the_encoding_of_what_it_decodes_to(data: bytes, count: int) -> None:
    try:
        values = dec(data, count)
    except EncodingError:
        return
    assert enc(*values) == data


@given(st.lists(st.binary(max_size=10), min_size=1, max_size=4))
def test_every_truncation_is_refused(values: list[bytes]) -> None:
    data = enc(*values)
    for end in range(len(data)):
        with pytest.raises(EncodingError):
            dec(data[:end], len(values))


@given(items, st.integers(-2, 8))
def test_a_wrong_count_is_refused(values: list[bytes], count: int) -> None:
    if count != len(values):
        with pytest.raises(EncodingError):
            dec(enc(*values), count)


def test_the_message_names_the_item() -> None:
    with pytest.raises(EncodingError, match="item 1 of 2: the length is truncated"):
        dec(enc(b"a") + b"\0", 2)
    with pytest.raises(EncodingError, match="item 1 of 2: 2 bytes are missing"):
        dec(enc(b"a", b"abc")[:-2], 2)
    with pytest.raises(EncodingError, match="1 bytes trail after item 0 of 1"):
        dec(enc(b"a") + b"\0", 1)
    with pytest.raises(EncodingError, match="item 1 is longer"):
        enc(b"", Huge())


@pytest.mark.parametrize(("encode", "width"), [(u16, 2), (u32, 4), (u64, 8)])
def test_integers_have_a_fixed_width(encode: Callable[[int], bytes], width: int) -> None:
    assert encode(1) == bytes(width - 1) + b"\1"
    assert encode(256**width - 1) == b"\xff" * width
    for outside in (-1, 256**width):
        with pytest.raises(EncodingError, match="does not fit"):
            encode(outside)


def test_an_encoding_error_is_a_value_error() -> None:
    assert issubclass(EncodingError, ValueError)
