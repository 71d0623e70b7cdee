"""Texts of the refusals that every application can give."""

from __future__ import annotations

from parley.application.sequences import CHUNK
from parley.model.texts import Texts

_FEWER = "wait, or keep one client open instead of starting many: a session is remembered up to the last height of its batches"
_SLOWER = "wait, or publish more slowly or in larger batches: each is remembered up to its last height"
_SHARED = "of {organisation}, and a key may hold no more than it leaves free"
_YET = "This may yet be applied, up to height {not_after}"

TEXTS: Texts = {
    "Duplicate": "applied before, at height {height}, receipt {position}",
    "Busy.block_full": "the block is full; it is ordered again",
    "Busy.chunks_of_key": (
        f"{{held}} times {CHUNK} batches of the key are remembered; {{free}} times {CHUNK} more are free for the keys "
        f"{_SHARED}; {_SLOWER}. {_YET}"
    ),
    "Busy.chunks_of_network": (
        f"the network remembers {{limit}} times {CHUNK} batches, which is all that it may; {_SLOWER}. {_YET}"
    ),
    "Busy.chunks_of_organisation": (
        f"the network remembers {{limit}} times {CHUNK} batches of {{organisation}}, which is all that it may; {_SLOWER}. "
        f"{_YET}"
    ),
    "Busy.sequences_of_key": (
        "the key has {held} sequences, one for each session, topic and partition; {free} more are free for the keys "
        f"{_SHARED}; {_FEWER}. {_YET}"
    ),
    "Busy.sequences_of_network": (
        "the network has the {limit} sequences that it may have, one for each session, topic and partition; "
        f"{_FEWER}. {_YET}"
    ),
    "Busy.sequences_of_organisation": (
        "the keys of {organisation} have the {limit} sequences that they may have, one for each session, topic and "
        f"partition; {_FEWER}. {_YET}"
    ),
    "Busy.sessions": f"the key has the {{limit}} sessions that it may have; {_FEWER}. {_YET}",
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
    "WrongLedger.batch": "the batch was made for shard {shard}, this is shard {own}",
    "WrongChain.batch": "the batch was made for chain {chain:.16}, this is {own:.16}",
}
