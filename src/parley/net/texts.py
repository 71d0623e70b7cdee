"""Texts of the refusals that one broker gives, outside the state machine."""

from __future__ import annotations

from parley.model.texts import Texts

_AUDITORS = "raw blocks are shown to auditors only"
_CLIENT_HELLO = "the first frame of a client is its credential"
_BROKER_HELLO = "the first frame of a broker is its hello"
_DISK = "this broker's disk is nearly full"
_ROOM = "free space or raise storage.max_bytes; other brokers take batches"

TEXTS: Texts = {
    # connections
    "Busy.broker_connections": "{broker} has {limit} connections already",
    "Busy.broker_garbage": "{broker} has sent garbage and is not heard for {seconds} s",
    "Busy.connections": "this broker has as many connections as it may have; ask another one",
    "Busy.connections_of_client": "{client} has the {limit} connections that it may have",
    "Busy.connections_of_organisation": "{organisation} has as many connections to this broker as it may have",
    "Busy.garbage": "{client} has sent too much garbage; come back in {seconds} s",
    "Malformed.broker_hello": f"{_BROKER_HELLO}: {{fault}}",
    "Malformed.client_hello": f"{_CLIENT_HELLO}: {{fault}}",
    "Malformed.empty_frame": "an empty frame was announced; a frame has at least one byte",
    "Malformed.late_hello": "no hello within {seconds} s",
    "Malformed.no_hello": _BROKER_HELLO,
    "NotAuthenticated.certificate": "{fault}",
    "NotAuthenticated.challenge": "the credential's key did not sign this connection's challenge",
    "NotAuthenticated.credential": "the credential is not accepted: {fault}",
    "NotAuthenticated.ended": "the connection ended before a credential was shown",
    "NotAuthenticated.expired": "the credential of this connection has expired since",
    "NotAuthenticated.late": "no credential was shown within {seconds} s",
    "NotAuthenticated.no_credential": f"{_CLIENT_HELLO}; brokers show a certificate in the TLS handshake",
    "NotAuthenticated.own_certificate": (
        "it shows the certificate of this very broker; two machines run with one configuration"
    ),
    "Oversized.frame": "a frame of {size} bytes was announced; at most {limit} are allowed here",
    "WrongChain.network": (
        "{broker} is of network {chain:.16}, this broker of {own:.16}: one of them was started with another genesis file; compare "
        "the two files"
    ),
    "WrongChain.version": (
        "{broker} speaks version {version} of the protocol, this broker {own}: update the older one"
    ),
    "WrongLedger.shard": "{broker} is no member of shard {shard}; ask a broker that the genesis file lists there",
    # questions
    "Busy.questions": "{waiting} questions of this connection wait for an answer",
    "Invalid.no_connection": "this question is answered later, and needs a connection that stays open; ask with a client",
    "Invalid.number": "question {number} has not been answered yet; ask under another number",
    "LimitExceeded.examined": "too many entries to look through; ask for a longer prefix",
    "LimitExceeded.streams": "a connection has at most {limit} streams",
    "Malformed.question": "not a question: {fault}",
    "NotReady.failed": "this broker failed to answer; ask another one",
    "PermissionDenied.auditor": (
        f"{_AUDITORS}: an administrator of {{organisation}} can grant it, if the genesis file gives {{organisation}} the "
        "right {right}: parley client grant {name} {right}"
    ),
    "PermissionDenied.auditor_organisation": (
        f"{_AUDITORS}: the genesis file does not give {{organisation}} the right {{right}}"
    ),
    "PermissionDenied.list": (
        "such lists are not made. Lists are made under {tables}, where a number in parentheses says how many parts of the "
        "key have to be named whole"
    ),
    "PermissionDenied.list_after": (
        "a list goes on after an entry that it shows, and this one is not shown, or not any more; begin the list again"
    ),
    # batches
    "Busy.author_full": (
        "its author has as many batches waiting at this broker as it may have; wait for their receipts"
    ),
    "Busy.disk": f"{_DISK} ({{free}} MiB are free in {{path}}); {_ROOM}",
    "Busy.disk_limit": (
        f"{_DISK} ({{used}} of {{limit}} MiB of storage.max_bytes are in use, {{free}} MiB are free in {{path}}); {_ROOM}"
    ),
    "Busy.full": (
        "this broker has as many batches waiting for order as it may have; send it later or elsewhere"
    ),
    "Busy.no_receipt": "the batch got no receipt within {seconds} s; send it again, unchanged",
    "NotReady.halted": "this broker takes no part in ordering now; ask another one",
    "PermissionDenied.sender": "the batch is not signed by {client}, who sends it",
    # what a broker has to show
    "NotFound.batch": "this broker does not have batch {digest}; ask another one",
    "NotFound.block": "this broker does not have block {height}; ask another one",
    "NotFound.history": "this broker cannot prove these blocks now; ask another one",
    "NotReady.catching_up": "this broker is catching up: {fault}",
    "NotReady.filling_in": "this broker is filling in its history after a snapshot; ask another one",
    "NotReady.height": "this broker is at height {height}",
    "NotReady.moved_on": "this broker has moved on; ask again: {fault}",
    "NotReady.no_results": "this broker has no certified results yet; ask another one, or again later",
    "NotReady.not_fresh": (
        "the newest certified header of this broker is {age} ms old, and more than {limit} ms is not fresh; ask another one"
    ),
    # streams
    "Invalid.partition_twice": "a partition is named twice",
    "NotFound.order": "no order of this constraint began there; subscribe to learn where it begins",
    "NotFound.topic_again": "topic {topic} was deleted and made anew since; subscribe again",
    "NotReady.not_held": "this broker does not have all that comes next; ask another one",
    "NotReady.offset": "this broker does not hold offset {offset}; ask another one",
    "NotReady.order_ahead": "this broker is at height {height}; the order began at {began}, ask again later",
    # advisories
    "BadSignature.advisory": "the advisory is not signed by the reader that it names",
    "BadSignature.advisory_credential": "the credential in the advisory: {fault}",
    "Expired.advisory": (
        "the advisory is {off} ms off this broker's clock, and {limit} ms are allowed; if it is not an old one, set the "
        "reader's clock right"
    ),
    "Expired.advisory_replaced": "query {query} has said something newer since",
    "LimitExceeded.advisories": (
        "{client} has the {limit} advisories that it may have; they are dropped after {seconds} s without renewal"
    ),
    "LimitExceeded.advisories_of_organisation": "{organisation} has the {limit} advisories that are its share",
    "Malformed.advisory": "not an advisory: {fault}",
    "Malformed.advisory_encoding": "the advisory is not in its one canonical encoding",
    "Malformed.advisory_order": "the partitions of the advisory are repeated or not in order",
    "PermissionDenied.advisory": "an advisory is taken from the reader that signed it only",
}
