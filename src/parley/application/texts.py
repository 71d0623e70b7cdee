"""Texts of the refusals that every application can give."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {
    "Duplicate": "applied before, at height {height}, receipt {position}",
    "Busy.block_full": "the block is full; it is ordered again",
    "Busy.sequences": (
        "the key has the {limit} sequences that it may have, one for each session, topic and partition; use fewer "
        "sessions. This may yet be applied, up to height {not_after}"
    ),
    "Busy.stranger": (
        "the key is not registered. If it is, this may yet be applied, up to height {not_after}"
    ),
    "Expired.late": "it was to be applied up to height {not_after}, this is {height}",
    "Expired.too_far_ahead": "its last height {not_after} is more than {limit} ahead of {height}",
    "OutOfSequence": "sequence {sequence} came before {expected}",
    "PermissionDenied.hidden": "this entry is not shown to clients",
    "Revoked": "{client} was revoked at height {height}",
    "SequenceReused": "sequence {sequence} was used by another batch of this session",
    "UnknownClient.client": "{client} is not registered; an administrator of {organisation} can register it",
    "UnknownClient.key": "key {key:.16} is not registered; an administrator of its organisation can register it",
    # before order
    "BadSignature.batch": "the batch is not signed by the key that it names",
    "Malformed.attribute_order": "attribute {attribute!r} is repeated or not in order",
    "Malformed.batch": "not a batch: {fault}",
    "Malformed.batch_encoding": "the batch is not in its one canonical encoding",
    "Malformed.control": "a control batch holds one operation and names no topic",
    "Malformed.count": "the header counts {counted} messages, the batch holds {held}",
    "Malformed.expression": "{fault}",
    "Malformed.kind": "this network takes no batches of kind {kind}",
    "Malformed.message_header": "message header: {fault}",
    "Malformed.message_header_encoding": "the message header is not in its one canonical encoding",
    "Malformed.operation": "not an operation: {fault}",
    "Malformed.operation_encoding": "the operation is not in its one canonical encoding",
    "Malformed.rule": "access rule, {fault}",
    "Malformed.rule_form": "an access rule is not in its canonical form, which is: {fault}",
    "Malformed.rules": "the batch has {rules} different access rules; {limit} are allowed",
    "Malformed.tag_order": "tag {tag!r} is repeated or not in order",
    "Oversized.batch": "a batch of {size} bytes; {limit} are allowed",
    "WrongChain.batch": "the batch was made for chain {chain:.16}, this is {own:.16}",
}
