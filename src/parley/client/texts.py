"""Texts of the refusals that the client itself gives, before anything is sent or after an answer was checked."""

from __future__ import annotations

from parley.model.texts import Texts

TEXTS: Texts = {
    "Invalid.no_position": "this is no position of a subscription: {fault}",
    "Invalid.offset_ahead": "there is no offset {offset} in partition {partition} of {topic} yet",
    "Invalid.other_position": "the position is one of {what} {given}, and the subscription is to {asked}",
    "Invalid.position_of_epoch": (
        "the position was certified in epoch {given}, and the network shows epoch {epoch}: its brokers are behind, or lie"
    ),
    "Invalid.position_ahead": (
        "the position lies ahead of partition {partition}, which ends at offset {end}"
    ),
    "Invalid.start": (
        "start is 'latest', 'earliest', an offset, {{partition: offset}} or a position, not {start}"
    ),
    "Invalid.start_of_partitions": (
        "topic {topic} has {partitions} partitions: give start as {{partition: offset}}"
    ),
    "Malformed.advisory_size": "an advisory of {size} bytes; {limit} are allowed",
    "Malformed.height": "there is no block {height}; the first one has height 1",
    "Malformed.max_bytes": "max_bytes is 1 to {limit}, not {max_bytes}",
    "NotFound.offset": "offset {offset} does not exist; partition {partition} of {topic} ends before it",
    "NotStaged.stage": "stage {stage} of this writer of {topic} was not committed with these batches",
    "Oversized.message": ("the message takes {size} bytes with its header; at most {limit} can be published"),
    "Pruned.start": "partition {partition} starts at offset {start}",
    "Pruned.unread": "messages of {topic} were not kept until they were read: {starts}",
    "UnknownPartition.number": "topic {topic} has no partition {partition}",
}
