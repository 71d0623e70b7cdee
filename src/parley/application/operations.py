"""What a client may ask the ledger to do besides publishing: the payload of a control batch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

import msgspec
from msgspec import Struct

from parley.model.codec import DECODE_ERRORS
from parley.model.expressions import ExpressionError, parse_constraint, parse_rule
from parley.model.names import Pairs, unsorted_pair, word_of
from parley.model.refusals import Malformed, malformed


class Operation(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=word_of):
    """What one control batch asks for. Modules derive theirs; encodings name them by their class."""

    def check(self) -> None:
        """Check what needs no state, before the operation is ordered. Raises `Refused`."""

    def expressions(self) -> tuple[str, ...]:
        """The constraints and rules in it, which are parsed when it is applied."""
        return ()

    @classmethod
    def name_of(cls) -> str:
        """The name of the operation: `create_topic` for `CreateTopic`."""
        return str(cls.__struct_config__.tag)


class OperationDecoder:
    """Decodes the operations of one application."""

    def __init__(self, kinds: Iterable[type[Operation]]) -> None:
        self._decoder: msgspec.msgpack.Decoder[Operation] = msgspec.msgpack.Decoder(reduce(or_, kinds))

    def __call__(self, data: bytes) -> Operation:
        """The operation. Raises `Malformed` for anything but the one canonical form of a known one that can be read."""
        try:
            operation = self._decoder.decode(data)
        except DECODE_ERRORS as error:
            raise malformed("operation", error) from None
        if encode_operation(operation) != data:
            raise Malformed("operation_encoding")
        operation.check()
        return operation


def check_pairs(pairs: Pairs) -> None:
    """Raises `Malformed` unless attributes are in their one canonical form."""
    if (name := unsorted_pair(pairs)) is not None:
        raise Malformed("attribute_order", attribute=name)


def check_rules(*rules: str | None) -> None:
    """Raises `Malformed` unless all are rules: before order, so that their author learns the place of the fault (P24)."""
    try:
        for rule in rules:
            parse_rule(rule or "")
    except ExpressionError as error:
        raise malformed("expression", error) from None


def check_constraint(constraint: str) -> None:
    try:
        parse_constraint(constraint)
    except ExpressionError as error:
        raise malformed("expression", error) from None


encode_operation = msgspec.msgpack.Encoder().encode
