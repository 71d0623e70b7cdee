"""Genesis files that a verifier has to refuse, each made of a valid one.

The anchors that a file names have signed it, unless its signatures or its form are what is wrong.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.application.world import ORGANISATIONS, actor
from tests.verifier.forgeries import b64, compact, flipped, malleated

from parley.crypto.encoding import enc
from parley.crypto.hashing import digest

Refused = Iterator[tuple[str, str, bytes]]  # name, what was done, the file
Change = Callable[[dict[str, Any]], object]  # of the object `genesis`, in place
MAX_GENESIS = 1024 * 1024
MORE = [f"more-{at}" for at in range(33)]


def in_genesis(data: bytes) -> Refused:
    """Files made of that of a network with several brokers."""
    for what, about, changed in _in_form(data):
        yield f"form-{what}", about, changed
    for what, about, changed in _in_signatures(data):
        yield f"signature-{what}", about, changed
    for what, about, change in (*DOUBLED, *STRANGE, *beyond_the_limits()):
        yield what, about, signed(data, change)
    yield "too-large", "more than 1 MiB, of nothing but rights", _too_large(data)


def written(file: object) -> bytes:
    return json.dumps(file, ensure_ascii=False, indent=2).encode() + b"\n"


def signed(data: bytes, change: Change) -> bytes:
    """The file with another genesis, which its anchors have signed."""
    file = json.loads(data)
    change(file["genesis"])
    chain = digest("genesis", compact(file["genesis"])[:-1])
    names = [one["name"] for one in json.loads(data)["genesis"]["organisations"]]
    anchors = {b64(one.key): one.secret for one in (actor("anchor", name) for name in (*names, *MORE))}
    file["signatures"] = [
        b64(anchors[one["anchor"]].sign(enc(b"PSB1/sig/genesis", chain)))
        for one in file["genesis"]["organisations"]
    ]
    return written(file)


def _in_form(data: bytes) -> Refused:
    file = json.loads(data)
    yield "compact", "without white space", compact(file)
    yield "no-line-feed", "without the line feed at the end", data[:-1]
    yield "two-line-feeds", "with another line feed at the end", data + b"\n"
    yield "carriage-returns", "with CR LF", data.replace(b"\n", b"\r\n")
    yield "unknown-field", "with a field more", written({**file, "more": 1})
    yield "other-order", "with the signatures first", written(dict(reversed(file.items())))
    twice = data.replace(b'  "signatures"', b'  "signatures": [],\n  "signatures"', 1)
    yield "duplicate-field", "with a field twice", twice


def _in_signatures(data: bytes) -> Refused:
    file = json.loads(data)
    told: list[str] = file["signatures"]
    raw = base64.b64decode(told[0])
    for what, about, other in (
        ("none", "without signatures", []),
        ("missing", "without the signature of the last anchor", told[:-1]),
        ("more", "with one signature too many", [*told, told[0]]),
        ("swapped", "with two signatures in the place of each other", [told[1], told[0], *told[2:]]),
        ("forged", "with another bit in a signature", [flipped(told[0]), *told[1:]]),
        ("malleated", "with S + L in place of S", [b64(malleated(raw)), *told[1:]]),
        ("zero", "with a signature of zeros", [b64(bytes(64)), *told[1:]]),
        ("short", "with a signature of 63 bytes", [b64(raw[:-1]), *told[1:]]),
    ):
        yield what, about, written({**file, "signatures": other})
    changed = json.loads(data)
    changed["genesis"]["start_time"] += 1
    yield "old", "changed after it was signed", written(changed)


def _set(*path: str | int, to: object) -> Change:
    def change(genesis: dict[str, Any]) -> None:
        inner: Any = genesis
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to

    return change


def _copied(many: str, field: str) -> Change:
    """The second organisation or broker has something of the first one."""

    def change(genesis: dict[str, Any]) -> None:
        genesis[many][1][field] = genesis[many][0][field]

    return change


def _renamed(at: int, name: str) -> Change:
    """The organisation at a place has another name, also as that of its broker."""

    def change(genesis: dict[str, Any]) -> None:
        genesis["organisations"][at]["name"] = genesis["brokers"][at]["organisation"] = name

    return change


def _member(change: Callable[[list[str]], list[str]]) -> Change:
    """The first shard has other members."""

    def changed(genesis: dict[str, Any]) -> None:
        genesis["shards"][0]["members"] = change(genesis["shards"][0]["members"])

    return changed


DOUBLED = (
    ("organisations-name", "two organisations with one name", _renamed(1, ORGANISATIONS[0])),
    ("organisations-anchor", "two organisations with one anchor", _copied("organisations", "anchor")),
    ("organisations-admin", "two organisations with one administrator", _copied("organisations", "admins")),
    (
        "admin-twice",
        "an administrator twice in one organisation",
        lambda genesis: genesis["organisations"][0]["admins"].extend(genesis["organisations"][0]["admins"]),
    ),
    ("brokers-name", "two brokers with one name", _copied("brokers", "name")),
    ("brokers-key", "two brokers with one key", _copied("brokers", "key")),
)
STRANGE = (
    (
        "broker-of-nobody",
        "a broker of an organisation that is not there",
        _set("brokers", 0, "organisation", to="nobody"),
    ),
    (
        "heartbeat-as-view",
        "timeouts.heartbeat as long as timeouts.view",
        _set("timeouts", "heartbeat", to=2_000),
    ),
    (
        "heartbeat-above-view",
        "timeouts.heartbeat above timeouts.view",
        _set("timeouts", "heartbeat", to=2_001),
    ),
    ("member-unknown", "a member that is no broker of the file", _member(lambda names: [*names, "stranger"])),
    ("member-twice", "a member twice in a shard", _member(lambda names: [names[0], *names])),
    ("members-order", "members in another order than the brokers", _member(lambda names: names[::-1])),
    ("broker-idle", "a broker that is a member of no shard", _member(lambda names: names[1:])),
    ("application-before", "an older version of the application", _set("application", to=4)),
    ("application-next", "a version of the application that there is not yet", _set("application", to=999)),
)


def beyond_the_limits() -> Iterator[tuple[str, str, Change]]:
    """Values just outside of what the page allows."""
    for name, path, values in (
        ("format", ("format",), (1, 3)),
        ("application", ("application",), (0, 2**16)),
        ("network", ("network",), ("", "Parley", "-parley", "parley-", "p" * 33, "par ley", "p\n")),
        ("start-time", ("start_time",), (-1, 2**62, 1.5, "0")),
        ("depth", ("depth",), (1, 4, True)),
        ("leaders", ("leaders",), ("", "cwa++")),
        ("allow-faults", ("allow_faults",), (0, None)),
        *((f"timeouts-{one}", ("timeouts", one), (0, 2**31)) for one in ("view", "lease")),
        *((f"limits-{one}", ("limits", one), (0, 2**31)) for one in ("clients", "topics")),
        ("block-bytes", ("limits", "block_bytes"), (2**20 - 1, 2**23 + 1)),
        ("tls-ca", ("organisations", 1, "tls_ca"), ("", b64(bytes(8193)))),
        ("admins", ("organisations", 1, "admins"), ([], [b64(bytes(31))], _keys(65))),
        ("rights", ("organisations", 1, "rights"), (["reader"], None)),
        ("broker-key", ("brokers", 1, "key"), (b64(bytes(31)), b64(bytes(33)))),
        ("address", ("brokers", 1, "address"), ("ab", "a" * 257)),
        ("brokers", ("brokers",), ([],)),
        ("shards", ("shards",), ([], [{"members": []}], [{}])),
    ):
        for at, value in enumerate(values):
            shown = json.dumps(value, ensure_ascii=False)
            about = f"{'.'.join(map(str, path))} is {shown if len(shown) < 40 else 'too long'}"
            yield f"{name}-{at}", about, _set(*path, to=value)
    for at, name in enumerate(("", "Hospital", "h" * 33)):
        yield f"organisation-name-{at}", f"an organisation whose name is {name!r}", _renamed(0, name)
    yield "brokers-33", "33 brokers", _more_brokers
    yield "organisations-33", "33 organisations", _more_organisations


def _keys(count: int) -> list[str]:
    return [b64(digest("vectors/key", bytes([at]))) for at in range(count)]


def _more_brokers(genesis: dict[str, Any]) -> None:
    first = genesis["brokers"][0]
    for name, key in zip(MORE, _keys(33 - len(genesis["brokers"])), strict=False):
        genesis["brokers"].append({**first, "name": name, "key": key})
        genesis["shards"].append({"members": [name]})


def _more_organisations(genesis: dict[str, Any]) -> None:
    first = genesis["organisations"][0]
    for name, admin in zip(MORE, _keys(33 - len(genesis["organisations"])), strict=False):
        anchor = b64(actor("anchor", name).key)
        genesis["organisations"].append({**first, "name": name, "anchor": anchor, "admins": [admin]})


def _too_large(data: bytes) -> bytes:
    """The smallest file above the limit that can be made by repeating a right."""

    def made(rights: int) -> bytes:
        return signed(data, _set("organisations", 0, "rights", to=["auditor"] * rights))

    one, two = len(made(1)), len(made(2))
    rights = 1 + -(-(MAX_GENESIS + 1 - one) // (two - one))
    return made(rights)
