"""What things may be called, and the small value types that operations, records and receipts share."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

MAX_PAIRS = 64
MAX_PARTITIONS = 64  # of a topic

_NAME = r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
_TOPIC = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?"
_PAIR = r"[A-Za-z_][A-Za-z0-9_.]{0,63}"

U32 = Annotated[int, Meta(ge=0, lt=2**32)]
U64 = Annotated[int, Meta(ge=0, lt=2**62)]
Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Salt = Annotated[bytes, Meta(min_length=16, max_length=16)]
Session = Annotated[bytes, Meta(min_length=16, max_length=16)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
# `\Z` and not `$`, which a line break at the end would pass.
# The names of organisations, brokers and clients stand in certificates; a topic's may be a path.
Name = Annotated[str, Meta(pattern=rf"^{_NAME}\Z")]
ClientName = Name
TopicName = Annotated[str, Meta(pattern=rf"^{_TOPIC}\Z")]
RuleText = Annotated[str, Meta(max_length=4096)]

# Tags and attributes: no floats, so that every replica compares alike.
Value = bool | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | Annotated[str, Meta(max_length=256)]
PairName = Annotated[str, Meta(pattern=rf"^{_PAIR}\Z")]
Pairs = Annotated[tuple[tuple[PairName, Value], ...], Meta(max_length=MAX_PAIRS)]

# (height, place within the block): where something happened.
Position = tuple[U64, U32]


def is_name(text: str) -> bool:
    return re.fullmatch(_NAME, text) is not None


def is_topic(text: str) -> bool:
    return re.fullmatch(_TOPIC, text) is not None


def is_pair_name(text: str) -> bool:
    return re.fullmatch(_PAIR, text) is not None


def sorted_pairs(values: dict[str, Value]) -> Pairs:
    """The one form of a set of tags or attributes."""
    return tuple(sorted(values.items()))


def unsorted_pair(pairs: Pairs) -> str | None:
    """The first name that does not come after the one before it, or None if the pairs are in their one form."""
    for (before, _), (name, _) in pairwise(pairs):
        if name <= before:
            return name
    return None


def word_of(name: str) -> str:
    """`CreateTopic` as `create_topic`: how a class is called in encodings, tables and texts."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
