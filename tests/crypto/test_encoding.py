"""The encoding is injective."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.crypto.encoding import EncodingError, enc, u16, u32, u64

items = st.lists(st.binary(max_size=40), max_size=6)


class Huge(bytes):
    """Pretends to be longer than a 32-bit length can say, without taking the memory."""

    def __len__(self) -> int:
        return 2**32


def test_layout_is_length_then_bytes() -> None:
    assert enc(b"ab", b"") == bytes.fromhex("00000002" + "6162" + "00000000")
    assert enc() == b""


@given(items)
def test_an_encoding_can_be_read_back(values: list[bytes]) -> None:
    left, found = enc(*values), list[bytes]()
    while left:
        end = 4 + int.from_bytes(left[:4], "big")
        found.append(left[4:end])
        left = left[end:]
    assert found == values


@given(items, items)
def test_different_lists_encode_differently(one: list[bytes], other: list[bytes]) -> None:
    assert (enc(*one) == enc(*other)) == (one == other)


def test_the_message_names_the_item() -> None:
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
