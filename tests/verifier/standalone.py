"""A verifier of proof files, written from docs/proof-format.md alone: it imports nothing of Parley, and no cryptography
but the hashes of the standard library. Slow, and not hardened against attacks by timing, which a verifier need not be.

    python tests/verifier/standalone.py GENESIS FILE
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from hashlib import sha256, sha512
from itertools import pairwise
from pathlib import Path
from typing import Any

KNOWN_APPLICATIONS = {6}  # the versions that the page describes
MAX_PROOF = 4 * 1024 * 1024
MAX_GENESIS = 1024 * 1024


class Refusal(Exception):  # noqa: N818 - what the page calls it
    """The file is not valid. `kind` is the class of the check that failed."""

    def __init__(self, kind: str, why: str = "") -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind


def require(holds: object, kind: str, why: str = "") -> None:
    if not holds:
        raise Refusal(kind, why)


# -- encodings and hashes ----------------------------------------------------------------------------------------------


def u(width: int, value: int) -> bytes:
    return value.to_bytes(width, "big")


def enc(*items: bytes) -> bytes:
    return b"".join(u(4, len(item)) + item for item in items)


used: set[str] = set()  # the domains of all hashes, and the beginnings of all signed bytes


def h(domain: str, *items: bytes) -> bytes:
    used.add(domain)
    return sha256(enc(b"PSB1/" + domain.encode(), *items)).digest()


def signed(kind: str, *items: bytes) -> bytes:
    used.add(kind)
    return enc(kind.encode(), *items)


# -- Ed25519 -----------------------------------------------------------------------------------------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)
Point = tuple[int, int, int, int]  # extended coordinates
NEUTRAL: Point = (0, 1, 1, 0)


def add(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % P
    b = (one[1] + one[0]) * (other[1] + other[0]) % P
    c = 2 * one[3] * other[3] * D % P
    d = 2 * one[2] * other[2] % P
    e, f, g, i = b - a, d - c, d + c, b + a
    return e * f % P, g * i % P, f * g % P, e * i % P


def times(scalar: int, point: Point) -> Point:
    result = NEUTRAL
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point = add(point, point)
        scalar >>= 1
    return result


def is_neutral(point: Point) -> bool:
    return point[0] % P == 0 and (point[1] - point[2]) % P == 0


def compressed(point: Point) -> bytes:
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def decompressed(data: bytes) -> Point | None:
    """The point of a canonical encoding, or None."""
    number = int.from_bytes(data, "little")
    y, sign = number & (1 << 255) - 1, number >> 255
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT_OF_MINUS_ONE % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


BASE = decompressed((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


@lru_cache(maxsize=4096)
def is_signed(key: bytes, message: bytes, signature: bytes) -> bool:
    if len(key) != 32 or len(signature) != 64:
        return False
    scalar = int.from_bytes(signature[32:], "little")
    point, commitment = decompressed(key), decompressed(signature[:32])
    if scalar >= L or point is None or commitment is None or BASE is None:
        return False
    if is_neutral(times(8, point)) or is_neutral(times(8, commitment)):
        return False
    k = int.from_bytes(sha512(signature[:32] + key + message).digest(), "little") % L
    x, y, z, t = times(k, point)
    return compressed(add(times(scalar, BASE), (-x % P, y, z, -t % P))) == signature[:32]


# -- types of JSON -----------------------------------------------------------------------------------------------------

Type = Callable[[Any], Any]


def number(low: int = 0, high: int = 2**62 - 1) -> Type:
    def read(value: Any) -> int:  # noqa: ANN401 - JSON
        require(type(value) is int and low <= value <= high, "form", "a number")
        return int(value)

    return read


def text(high: int | None = None, low: int = 0, pattern: str | None = None) -> Type:
    def read(value: Any) -> str:  # noqa: ANN401 - JSON
        require(type(value) is str and len(value) >= low, "form", "a text")
        require(high is None or len(value) <= high, "form", "a text")
        require(pattern is None or re.fullmatch(str(pattern), value), "form", "a name")
        return str(value)

    return read


def octets(low: int = 0, high: int | None = None) -> Type:
    def read(value: Any) -> bytes:  # noqa: ANN401 - JSON
        require(type(value) is str, "form", "bytes")
        try:
            data = base64.b64decode(value, validate=True)
        except ValueError:
            raise Refusal("form", "Base64") from None
        require(base64.b64encode(data).decode() == value, "form", "Base64")
        require(len(data) >= low and (high is None or len(data) <= high), "form", "bytes")
        return data

    return read


def exactly(*allowed: object) -> Type:
    def read(value: Any) -> Any:  # noqa: ANN401 - JSON
        require(any(type(value) is type(one) and value == one for one in allowed), "form", "another value")
        return value

    return read


def or_null(kind: Type) -> Type:
    return lambda value: None if value is None else kind(value)


def many(kind: Type, low: int = 0, high: int | None = None) -> Type:
    def read(value: Any) -> list[Any]:  # noqa: ANN401 - JSON
        require(type(value) is list and len(value) >= low, "form", "an array")
        require(high is None or len(value) <= high, "form", "an array")
        return [kind(item) for item in value]

    return read


def array(**fields: Type) -> Type:
    """A record that is an array; read, its fields are found by name."""

    def read(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        require(type(value) is list and len(value) == len(fields), "form", "an array of fields")
        return {name: kind(item) for (name, kind), item in zip(fields.items(), value, strict=True)}

    return read


def record(**fields: Type) -> Type:
    """A record that is an object."""

    def read(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        require(type(value) is dict and list(value) == list(fields), "form", "an object")
        return {name: kind(value[name]) for name, kind in fields.items()}

    return read


U32 = number(high=2**32 - 1)
HASH = KEY = octets(32, 32)
SIGNATURE = octets(64, 64)
NAME = text(pattern="[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
COUNT = number(1, 2**31 - 1)

AGGREGATE = array(bitmap=octets(), signature=octets())
QC = array(epoch=number(), view=number(), block=HASH, votes=AGGREGATE)
TC = array(epoch=number(), view=number(), qc_views=many(number(), high=256), timeouts=AGGREGATE)
HEADER = array(
    version=number(high=2**16 - 1),
    chain=HASH,
    shard=U32,
    epoch=number(),
    height=number(),
    view=number(),
    parent=HASH,
    proposer=number(high=2**16 - 1),
    time=number(),
    governance=array(height=number(), id=HASH),
    batches_root=HASH,
    executed_height=number(),
    state_root=HASH,
    history_root=HASH,
    justify=QC,
    tc=or_null(TC),
)
ANCHOR = array(header=HEADER, qc=QC)
PATH = array(index=number(), size=number(), path=many(octets()))
MULTI_PATH = array(size=number(), indices=many(number()), siblings=many(octets()))
BLOCK_PROOF = array(
    header=HEADER,
    receipts_root=HASH,
    history=PATH,
    leaves=many(octets(), 1, 65536),
    receipts=MULTI_PATH,
)
BATCH = array(
    format=exactly(2),
    chain=HASH,
    shard=U32,
    kind=number(0, 2),
    topic=text(128),
    topic_id=array(height=number(), place=U32),
    partition=U32,
    publisher=KEY,
    session=octets(16, 16),
    sequence=number(),
    count=number(1, 4096),
    not_after=number(),
)
MESSAGE = array(tag=exactly(0), salt=octets(16, 16), header=octets(), rule=text(4096), payload=octets())
LEAF_PROOF = array(index=U32, group=octets(32, 512), path=PATH)
STATE_PROOF = array(levels=many(octets(2, 482), high=64), other=or_null(octets(64, 64)))
ENTRY = array(key=octets(high=4096), value=or_null(octets()), proof=STATE_PROOF)


def key_part(value: Any) -> Any:  # noqa: ANN401 - JSON
    require(type(value) in {int, str}, "form", "a part of a key")
    return value


FILES = {
    "parley publication proof 3": record(
        format=text(),
        topic=text(),
        partition=U32,
        offset=number(),
        count=U32,
        publisher=text(),
        height=number(),
        time=number(),
        batch=BATCH,
        root=HASH,
        signature=SIGNATURE,
        message=or_null(record(message=MESSAGE, path=LEAF_PROOF)),
        receipt=BLOCK_PROOF,
        anchor=ANCHOR,
        epochs=many(octets()),
    ),
    "parley operation proof 2": record(
        format=text(),
        operation=text(),
        client=text(),
        code=text(),
        height=number(),
        time=number(),
        batch=BATCH,
        message=MESSAGE,
        signature=SIGNATURE,
        receipt=BLOCK_PROOF,
        anchor=ANCHOR,
    ),
    "parley entry proof 1": record(
        format=text(),
        table=text(),
        key=many(key_part),
        found=exactly(True, False),
        height=number(),
        time=number(),
        entry=ENTRY,
        anchor=ANCHOR,
    ),
}
GENESIS = record(
    format=exactly(1),
    application=number(1, 2**16 - 1),
    network=NAME,
    start_time=number(),
    depth=exactly(2, 3),
    leaders=exactly("round-robin", "cwa", "cwa+"),
    allow_faults=exactly(True, False),
    timeouts=record(view=COUNT, longest_view=COUNT, heartbeat=COUNT, ack=COUNT, freshness=COUNT, lease=COUNT),
    limits=record(
        clients=COUNT, topics=COUNT, subscriptions_per_client=COUNT, block_bytes=number(2**20, 2**23)
    ),
    organisations=many(
        record(
            name=NAME,
            anchor=KEY,
            tls_ca=octets(1, 8192),
            admins=many(KEY, 1, 64),
            rights=many(exactly("auditor")),
        ),
        1,
        32,
    ),
    brokers=many(record(name=NAME, organisation=NAME, key=KEY, address=text(256, 3)), 1, 32),
    shards=many(record(members=many(NAME, 1, 32)), 1, 256),
)
GENESIS_FILE = record(genesis=GENESIS, signatures=many(SIGNATURE, high=32))


def parsed(data: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise Refusal("form", str(error)) from None


def compact(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except ValueError as error:  # a surrogate
        raise Refusal("form", str(error)) from None


# -- MessagePack -------------------------------------------------------------------------------------------------------

# How many bytes of a number follow the first byte, and from which value on it has to be so many.
UNSIGNED = {0xCC: (1, 0x80), 0xCD: (2, 1 << 8), 0xCE: (4, 1 << 16), 0xCF: (8, 1 << 32)}
NEGATIVE = {0xD0: (1, -32), 0xD1: (2, -(1 << 7)), 0xD2: (4, -(1 << 15)), 0xD3: (8, -(1 << 31))}
TEXTS = {0xD9: (1, 32), 0xDA: (2, 1 << 8), 0xDB: (4, 1 << 16)}
BINARIES = {0xC4: (1, 0), 0xC5: (2, 1 << 8), 0xC6: (4, 1 << 16)}
ARRAYS = {0xDC: (2, 16), 0xDD: (4, 1 << 16)}


class Packed:
    """Reads one canonical value. Raises `ValueError`."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def all(self) -> Any:  # noqa: ANN401 - MessagePack
        value = self.value(0)
        if self.at != len(self.data):
            raise ValueError("bytes follow")
        return value

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise ValueError("cut short")
        self.at += size
        return self.data[self.at - size : self.at]

    def least(self, forms: dict[int, tuple[int, int]], first: int) -> int:
        width, least = forms[first]
        value = int.from_bytes(self.take(width), "big")
        if value < least:
            raise ValueError("a longer form than it needs")
        return value

    def value(self, depth: int) -> Any:  # noqa: ANN401 - MessagePack
        (first,) = self.take(1)
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first in {0xC0, 0xC2, 0xC3}:
            return {0xC0: None, 0xC2: False, 0xC3: True}[first]
        if first in UNSIGNED:
            return self.least(UNSIGNED, first)
        if first in NEGATIVE:
            width, below = NEGATIVE[first]
            value = int.from_bytes(self.take(width), "big", signed=True)
            if value >= below:
                raise ValueError("a longer form than it needs")
            return value
        if first & 0xE0 == 0xA0 or first in TEXTS:
            return self.take(first & 0x1F if first < 0xC0 else self.least(TEXTS, first)).decode()
        if first in BINARIES:
            return self.take(self.least(BINARIES, first))
        if (first & 0xF0 == 0x90 or first in ARRAYS) and depth < 16:
            count = first & 0x0F if first < 0xA0 else self.least(ARRAYS, first)
            return [self.value(depth + 1) for _ in range(min(count, len(self.data)))]
        raise ValueError("a form that is not used")


def is_number(value: object, high: int = 2**62 - 1) -> bool:
    return type(value) is int and 0 <= value <= high


def is_text(value: object, high: int | None = None) -> bool:
    return type(value) is str and (high is None or len(value) <= high)


def is_octets(value: object, low: int, high: int) -> bool:
    return type(value) is bytes and low <= len(value) <= high


def is_integer(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def is_list(value: object, high: int | None = None) -> bool:
    return type(value) is list and (high is None or len(value) <= high)


def message_header(data: bytes) -> dict[str, Any]:
    try:
        value = Packed(data).all()
    except ValueError as error:
        raise Refusal("message", str(error)) from None
    require(is_list(value) and len(value) == 3, "message")
    key, tags, headers = value
    require(key is None or is_octets(key, 0, 4096), "message", "key")
    require(is_list(tags, 64) and all(map(is_tag, tags)), "message", "tags")
    names = [name for name, _ in tags]
    require(all(low < high for low, high in pairwise(names)), "message", "order of tags")
    require(is_list(headers, 64), "message", "headers")
    for pair in headers:
        require(is_list(pair) and len(pair) == 2, "message", "headers")
        require(is_text(pair[0], 256) and is_octets(pair[1], 0, 65536), "message", "headers")
    return {"key": key, "tags": tags, "headers": headers}


def is_tag(pair: object) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2 and is_text(pair[0])):
        return False
    name, value = pair
    known = type(value) is bool or is_integer(value) or is_text(value, 256)
    return known and re.fullmatch("[A-Za-z_][A-Za-z0-9_.]{0,63}", name) is not None


def is_position(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and is_number(value[0]) and is_number(value[1], 2**32 - 1)
    )


def is_start(value: object) -> bool:
    if not (isinstance(value, list) and len(value) == 4):
        return False
    partition, incarnation, ps, offset = value
    return (
        is_number(partition, 2**32 - 1) and is_position(incarnation) and is_number(ps) and is_number(offset)
    )


def is_field(pair: object) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2):
        return False
    return is_text(pair[0], 64) and (is_integer(pair[1]) or is_text(pair[1], 4096))


OUTCOMES: dict[str, tuple[Callable[[Any], bool], ...]] = {
    "done": (),
    "published": (is_number,),
    "staged": (is_number,),
    "subscribed": (
        lambda value: is_octets(value, 32, 32),
        lambda value: is_list(value) and all(map(is_start, value)),
        is_number,
    ),
    "duplicate": (is_position,),
    "refused": (
        lambda value: is_text(value, 64),
        lambda value: is_text(value, 64),
        lambda value: is_list(value, 16) and all(map(is_field, value)),
        is_number,
    ),
}


def receipt_of(leaf: bytes) -> dict[str, Any]:
    """The receipt of a batch. Other leaves of a block are refused without being read."""
    try:
        value = Packed(leaf).all()
    except ValueError as error:
        raise Refusal("receipts", str(error)) from None
    require(is_list(value) and value, "receipts")
    require(value[0] not in ("match", "closed"), "receipt", "not of a batch")
    require(value[0] == "batch" and len(value) == 9, "receipts")
    names = ("digest", "publisher", "client", "topic", "topic_id", "partition", "count", "outcome")
    receipt = dict(zip(names, value[1:], strict=True))
    for name in ("digest", "publisher"):
        require(is_octets(receipt[name], 32, 32), "receipts", name)
    for name in ("client", "topic"):
        require(is_text(receipt[name]), "receipts", name)
    for name in ("partition", "count"):
        require(is_number(receipt[name], 2**32 - 1), "receipts", name)
    require(is_position(receipt["topic_id"]), "receipts", "topic_id")
    outcome = receipt["outcome"]
    require(is_list(outcome) and outcome and is_text(outcome[0]), "receipts", "outcome")
    kinds = OUTCOMES.get(outcome[0])
    require(kinds is not None and len(outcome) == 1 + len(kinds), "receipts", "outcome")
    require(
        all(kind(item) for kind, item in zip(kinds or (), outcome[1:], strict=True)), "receipts", "outcome"
    )
    return receipt


def code_of(outcome: list[Any]) -> str:
    if outcome[0] == "refused":
        return str(outcome[1])
    return "Duplicate" if outcome[0] == "duplicate" else "Ok"


# -- the genesis file --------------------------------------------------------------------------------------------------


class Committee:
    """The members of one shard."""

    def __init__(self, members: list[str], keys: dict[str, bytes]) -> None:
        self.names = members
        self.keys = [keys[name] for name in members]
        self.faults = (len(members) - 1) // 3
        self.quorum = (len(members) + self.faults + 2) // 2


class Network:
    """What a genesis file gives a verifier."""

    def __init__(self, data: bytes) -> None:
        require(len(data) <= MAX_GENESIS, "genesis", "too large")
        raw = parsed(data)
        file = GENESIS_FILE(raw)
        written = json.dumps(raw, ensure_ascii=False, indent=2) + "\n"
        require(written.encode() == data, "genesis", "not in its canonical form")
        genesis = file["genesis"]
        self.application = int(genesis["application"])
        require(self.application in KNOWN_APPLICATIONS, "genesis", "unknown version")
        self.chain = h("genesis", compact(raw["genesis"]))
        self.signed = signed("PSB1/sig/genesis", self.chain)
        self._check(genesis, file["signatures"])
        keys = {str(broker["name"]): broker["key"] for broker in genesis["brokers"]}
        self.committees = [Committee(list(shard["members"]), keys) for shard in genesis["shards"]]

    def _check(self, genesis: dict[str, Any], signatures: list[bytes]) -> None:
        organisations = genesis["organisations"]
        names = [one["name"] for one in organisations]
        for values in (
            names,
            [one["anchor"] for one in organisations],
            [one["name"] for one in genesis["brokers"]],
            [one["key"] for one in genesis["brokers"]],
            [key for one in organisations for key in one["admins"]],
        ):
            require(len(set(values)) == len(values), "genesis", "something stands twice")
        require(all(one["organisation"] in names for one in genesis["brokers"]), "genesis", "organisation")
        brokers = [one["name"] for one in genesis["brokers"]]
        for shard in genesis["shards"]:
            members = set(shard["members"])
            require(shard["members"] == [name for name in brokers if name in members], "genesis", "shard")
        idle = set(brokers).difference(*(shard["members"] for shard in genesis["shards"]))
        require(not idle, "genesis", "a broker without a shard")
        require(genesis["timeouts"]["heartbeat"] < genesis["timeouts"]["view"], "genesis", "heartbeat")
        require(len(signatures) == len(organisations), "genesis", "signatures")
        for one, signature in zip(organisations, signatures, strict=True):
            require(is_signed(one["anchor"], self.signed, signature), "genesis", "signature")


# -- headers and certificates ------------------------------------------------------------------------------------------


def encoded_qc(qc: dict[str, Any]) -> bytes:
    votes = qc["votes"]
    return enc(u(8, qc["epoch"]), u(8, qc["view"]), qc["block"], votes["bitmap"], votes["signature"])


def encoded_tc(tc: dict[str, Any] | None) -> bytes:
    if tc is None:
        return b""
    views, votes = b"".join(u(8, view) for view in tc["qc_views"]), tc["timeouts"]
    return enc(u(8, tc["epoch"]), u(8, tc["view"]), views, votes["bitmap"], votes["signature"])


def header_items(header: dict[str, Any]) -> list[bytes]:
    return [
        u(2, header["version"]),
        header["chain"],
        u(4, header["shard"]),
        u(8, header["epoch"]),
        u(8, header["height"]),
        u(8, header["view"]),
        header["parent"],
        u(2, header["proposer"]),
        u(8, header["time"]),
        u(8, header["governance"]["height"]),
        header["governance"]["id"],
        header["batches_root"],
        u(8, header["executed_height"]),
        header["state_root"],
        header["history_root"],
        encoded_qc(header["justify"]),
        encoded_tc(header["tc"]),
    ]


def block_id(header: dict[str, Any]) -> bytes:
    return h("block/id", *header_items(header))


def signers_of(bitmap: bytes, size: int) -> list[int]:
    require(len(bitmap) == (size + 7) // 8, "certificate", "bitmap")
    bits = int.from_bytes(bitmap, "little")
    require(bits >> size == 0, "certificate", "bitmap")
    return [index for index in range(size) if bits >> index & 1]


class Check:
    """One file under one genesis file. `steps` gathers intermediate values, and `shows` what was proved."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.steps: dict[str, Any] = {}
        self.shows: dict[str, Any] = {}
        self.committee: Committee  # that of the file's certificate, once it was looked at

    def anchor(self, anchor: dict[str, Any]) -> dict[str, Any]:
        network, header, qc = self.network, anchor["header"], anchor["qc"]
        require((header["chain"], header["epoch"]) == (network.chain, 0), "network", "header")
        require(header["shard"] < len(network.committees), "network", "shard")
        committee = self.committee = network.committees[header["shard"]]
        require(header["version"] == network.application, "version", "header")
        identity = block_id(header)
        require((qc["block"], qc["view"]) == (identity, header["view"]), "certificate", "of another header")
        require(qc["epoch"] == 0, "certificate", "epoch")
        signers = signers_of(qc["votes"]["bitmap"], len(committee.keys))
        require(len(signers) >= committee.quorum, "certificate", "too few signers")
        signatures = qc["votes"]["signature"]
        require(len(signatures) == 64 * len(signers), "certificate", "signatures")
        vote = signed(
            "PSB1/sig/vote",
            network.chain,
            u(4, header["shard"]),
            u(8, 0),
            enc(u(8, qc["view"]), identity),
        )
        for at, signer in enumerate(signers):
            valid = is_signed(committee.keys[signer], vote, signatures[64 * at : 64 * at + 64])
            require(valid, "certificate", f"signature of broker {signer}")
        self.steps |= {
            "certified_header_bytes": enc(*header_items(header)),
            "certified_id": identity,
            "vote_signed": vote,
        }
        self.shows |= {
            "certified_height": header["executed_height"],
            "signers": [committee.names[signer] for signer in signers],
        }
        return dict(header)

    def block(self, proof: dict[str, Any], certified: dict[str, Any]) -> list[bytes]:
        header, history, receipts = proof["header"], proof["history"], proof["receipts"]
        require(0 < receipts["size"] < 2**32, "history", "number of receipts")
        place = (history["index"], history["size"])
        require(place == (header["height"] - 1, certified["executed_height"]), "history", "place or size")
        identity = block_id(header)
        leaf = enc(u(8, header["height"]), identity, proof["receipts_root"], u(4, receipts["size"]))
        root = root_of_path(leaf, history)
        require(root == certified["history_root"], "history", "root")
        self.steps |= {
            "block_header_bytes": enc(*header_items(header)),
            "block_id": identity,
            "history_leaf": leaf,
            "history_leaf_node": h("merkle/leaf", leaf),
            "history_root": root,
        }
        leaves: list[bytes] = proof["leaves"]
        require(len(leaves) == len(receipts["indices"]), "receipts", "number of leaves")
        require(root_of_paths(leaves, receipts) == proof["receipts_root"], "receipts", "root")
        self.steps |= {
            "receipt": leaves[0],
            "receipt_node": h("merkle/leaf", leaves[0]),
            "receipts_root": proof["receipts_root"],
        }
        return leaves

    def batch(self, batch: dict[str, Any], root: bytes, signature: bytes, receipt: dict[str, Any]) -> None:
        header = encoded_batch(batch)
        digest = h("batch", header, root)
        require(receipt["digest"] == digest, "digest")
        message = signed("PSB1/sig/batch", batch["chain"], digest)
        require(batch["chain"] == self.network.chain, "signature", "chain")
        require(is_signed(batch["publisher"], message, signature), "signature")
        self.steps |= {
            "batch_header_bytes": header,
            "batch_root": root,
            "digest": digest,
            "batch_signed": message,
        }


# -- trees -------------------------------------------------------------------------------------------------------------


def root_of_path(data: bytes, proof: dict[str, Any]) -> bytes | None:
    index, size = proof["index"], proof["size"]
    if not (0 <= index < size <= 2**40 and is_path(proof["path"], 64)):
        return None
    siblings = iter(proof["path"])
    node, position, last = h("merkle/leaf", data), index, size - 1
    while last:
        if position & 1 or position < last:
            sibling = next(siblings, None)
            if sibling is None:
                return None
            pair = (sibling, node) if position & 1 else (node, sibling)
            node = h("merkle/node", *pair)
        position, last = position >> 1, last >> 1
    return node if next(siblings, None) is None else None


def root_of_paths(leaves: list[bytes], proof: dict[str, Any]) -> bytes | None:
    """Several leaves at once, level by level."""
    size, indices = proof["size"], proof["indices"]
    ascending = all(low < high for low, high in pairwise(indices))
    if not (0 < size <= 2**40 and ascending and indices[-1] < size):
        return None
    if not is_path(proof["siblings"], 64 * len(leaves)):
        return None
    siblings = iter(proof["siblings"])
    level = {index: h("merkle/leaf", leaf) for index, leaf in zip(indices, leaves, strict=True)}
    last = size - 1
    while last:
        above: dict[int, bytes] = {}
        for position in sorted(level):
            if position & 1 and position - 1 in level:  # joined already
                continue
            if position & 1 or position < last:
                sibling = level.get(position ^ 1) or next(siblings, None)
                if sibling is None:
                    return None
                pair = (sibling, level[position]) if position & 1 else (level[position], sibling)
                above[position >> 1] = h("merkle/node", *pair)
            else:
                above[position >> 1] = level[position]
        level, last = above, last >> 1
    return level[0] if next(siblings, None) is None else None


def is_path(nodes: list[bytes], high: int) -> bool:
    return len(nodes) <= high and all(len(node) == 32 for node in nodes)


def root_of_state(key: bytes, value: bytes | None, proof: dict[str, Any]) -> bytes | None:
    place, levels, other = h("state/key", key), proof["levels"], proof["other"]
    nibbles = [nibble for byte in place for nibble in (byte >> 4, byte & 15)]
    if value is not None:
        if other is not None:
            return None
        node = h("state/leaf", place, h("state/value", value))
    elif other is None:
        node = b""
    else:
        theirs = [nibble for byte in other[:32] for nibble in (byte >> 4, byte & 15)]
        if other[:32] == place or theirs[: len(levels)] != nibbles[: len(levels)]:
            return None
        node = h("state/leaf", other[:32], other[32:])
    for depth in reversed(range(len(levels))):
        level, nibble = levels[depth], nibbles[depth]
        bitmap = int.from_bytes(level[:2], "big")
        if bool(bitmap >> nibble & 1) != bool(node):
            return None
        if len(level) + len(node) != 2 + 32 * bitmap.bit_count():
            return None
        at = 2 + 32 * (bitmap & (1 << nibble) - 1).bit_count()
        node = h("state/branch", level[:at] + node + level[at:])
    return node or h("state/empty")


# -- batches -----------------------------------------------------------------------------------------------------------


def encoded_batch(batch: dict[str, Any]) -> bytes:
    return enc(
        u(4, batch["format"]),
        batch["chain"],
        u(4, batch["shard"]),
        u(4, batch["kind"]),
        batch["topic"].encode(),
        u(8, batch["topic_id"]["height"]),
        u(4, batch["topic_id"]["place"]),
        u(4, batch["partition"]),
        batch["publisher"],
        batch["session"],
        u(8, batch["sequence"]),
        u(4, batch["count"]),
        u(8, batch["not_after"]),
    )


def leaf_of(message: dict[str, Any], steps: dict[str, Any]) -> bytes:
    header = h("message/header", message["salt"], message["header"])
    payload = h("message/payload", message["salt"], message["payload"])
    leaf = h("message/leaf", header, message["rule"].encode(), payload)
    steps |= {"header_commitment": header, "payload_commitment": payload, "message_leaf": leaf}
    return leaf


def is_in_batch(leaf: bytes, proof: dict[str, Any], count: int, root: bytes) -> bool:
    index, group, path = proof["index"], proof["group"], proof["path"]
    if index >= count or (path["index"], path["size"]) != (index // 16, (count + 15) // 16):
        return False
    if len(group) != 32 * min(16, count - 16 * path["index"]):
        return False
    at = 32 * (index % 16)
    return group[at : at + 32] == leaf and root_of_path(group, path) == root


def fits(receipt: dict[str, Any], batch: dict[str, Any]) -> bool:
    same = all(receipt[name] == batch[name] for name in ("publisher", "topic", "partition", "count"))
    return same and receipt["topic_id"] == list(batch["topic_id"].values())


def is_timely(batch: dict[str, Any], height: int) -> bool:
    return bool(height <= batch["not_after"] <= height + 100_000)


# -- the files ---------------------------------------------------------------------------------------------------------


def verify_publication(check: Check, file: dict[str, Any]) -> None:
    require(not file["epochs"], "epochs")
    certified = check.anchor(file["anchor"])
    leaves = check.block(file["receipt"], certified)
    receipts = [receipt_of(leaf) for leaf in leaves]
    require(len(receipts) == 1 and receipts[0]["outcome"][0] == "published", "receipt")
    receipt, batch, message = receipts[0], file["batch"], file["message"]
    check.batch(batch, file["root"], file["signature"], receipt)
    require(batch["shard"] == file["receipt"]["header"]["shard"], "ledger")
    require(batch["kind"] in {0, 2}, "kind")
    require(fits(receipt, batch), "agreement")
    header = file["receipt"]["header"]
    require(batch["kind"] == 2 or is_timely(batch, header["height"]), "height")
    offset, count = receipt["outcome"][1], receipt["count"]
    if message is not None:
        leaf = leaf_of(message["message"], check.steps)
        require(is_in_batch(leaf, message["path"], batch["count"], file["root"]), "message", "path")
        content = message_header(message["message"]["header"])
        offset, count = offset + message["path"]["index"], 1
        check.steps["group_node"] = h("merkle/leaf", message["path"]["group"])
        check.shows |= {
            "payload": message["message"]["payload"],
            "rule": message["message"]["rule"],
            "key": content["key"],
            "tags": content["tags"],
            "headers": content["headers"],
        }
    summary = {
        "topic": receipt["topic"],
        "partition": receipt["partition"],
        "offset": offset,
        "count": count,
        "publisher": receipt["client"],
        "height": header["height"],
        "time": header["time"],
    }
    finish(check, file, summary, batch["publisher"])


def verify_operation(check: Check, file: dict[str, Any]) -> None:
    certified = check.anchor(file["anchor"])
    leaves = check.block(file["receipt"], certified)
    receipts = [receipt_of(leaf) for leaf in leaves]
    batch, message = file["batch"], file["message"]
    shape = (batch["kind"], batch["count"], batch["topic"], batch["partition"])
    nowhere = not any(batch["topic_id"].values())
    require(len(receipts) == 1 and shape == (1, 1, "", 0) and nowhere, "receipt")
    receipt = receipts[0]
    root = h("merkle/leaf", leaf_of(message, check.steps))
    check.batch(batch, root, file["signature"], receipt)
    require(batch["shard"] == file["receipt"]["header"]["shard"], "ledger")
    require(fits(receipt, batch), "agreement")
    header, code = file["receipt"]["header"], code_of(receipt["outcome"])
    require(code != "Ok" or is_timely(batch, header["height"]), "height")
    name = operation_name(message["payload"])
    check.shows["payload"] = message["payload"]
    summary = {
        "operation": name,
        "client": receipt["client"],
        "code": code,
        "height": header["height"],
        "time": header["time"],
    }
    finish(check, file, summary, batch["publisher"])


OPERATIONS = [
    "advertise",
    "alter_client",
    "alter_topic",
    "commit_stage",
    "create_topic",
    "delete_topic",
    "grant_right",
    "register_client",
    "revoke_client",
    "revoke_right",
    "subscribe",
    "unsubscribe",
]


def operation_name(payload: bytes) -> str:
    """The name of an operation, whose fields are not looked at."""
    try:
        operation = Packed(payload).all()
    except ValueError as error:
        raise Refusal("operation", str(error)) from None
    require(is_list(operation) and operation, "operation")
    require(is_text(operation[0]) and operation[0] in OPERATIONS, "operation", "name")
    return str(operation[0])


TABLES = {
    "ad": "text 32",
    "advertiser": "32",
    "age": "text u32",
    "behind": "",
    "chunk": "32 u64",
    "client": "32",
    "committed": "32 u64",
    "committing": "32",
    "constraint": "text u32 32",
    "content": "32 u32",
    "count": "text text",
    "ending": "text text",
    "exceeded": "text",
    "expiry": "u64 rest",
    "growing": "text text",
    "head": "text u32",
    "held": "text 32",
    "leaving": "text 32",
    "name": "text text",
    "over": "text text u64 u32 32 16",
    "pending": "text",
    "pending_batches": "",
    "ps": "text u32 32",
    "queue": "32",
    "sequence": "32",
    "session": "32 16",
    "stage": "text u64 u32 32 16",
    "staged": "32",
    "staging": "text u64 u32 32 16 u64 32",
    "stranger": "32",
    "strangers": "",
    "sub": "text 32 32",
    "topic": "text",
    "turn": "text u64 32",
    "waiting": "text",
}
WIDTHS = {"u32": 4, "u64": 8, "16": 16, "32": 32}


def split_key(key: bytes) -> tuple[str, list[int | str]]:
    """The table, and the parts of the key as they stand in a file."""
    name, slash, rest = key.partition(b"/")
    kinds = TABLES.get(name.decode(errors="replace")) if slash else None
    require(kinds is not None, "table")
    parts: list[int | str] = []
    for kind in str(kinds).split():
        if kind == "text":
            word, end, rest = rest.partition(b"\0")
            require(end, "table", "text")
            try:
                parts.append(word.decode())
            except UnicodeDecodeError:
                raise Refusal("table", "text") from None
            continue
        width = len(rest) if kind == "rest" else WIDTHS[kind]
        require(len(rest) >= width, "table", "cut short")
        part, rest = rest[:width], rest[width:]
        parts.append(int.from_bytes(part, "big") if kind.startswith("u") else part.hex())
    require(not rest, "table", "bytes follow")
    return name.decode(), parts


def verify_entry(check: Check, file: dict[str, Any]) -> None:
    certified = check.anchor(file["anchor"])
    entry = file["entry"]
    key, value = entry["key"], entry["value"]
    root = root_of_state(key, value, entry["proof"])
    require(root == certified["state_root"], "state")
    check.steps |= {"state_key": h("state/key", key), "state_root": root}
    if value is not None:
        check.steps["state_value"] = h("state/value", value)
    table, parts = split_key(key)
    check.shows["value"] = value
    summary = {
        "table": table,
        "key": parts,
        "found": value is not None,
        "height": certified["executed_height"],
        "time": certified["time"],
    }
    finish(check, file, summary, None)


def finish(check: Check, file: dict[str, Any], summary: dict[str, Any], key: bytes | None) -> None:
    require(all(file[name] == value for name, value in summary.items()), "summary")
    check.shows |= {**summary, "publisher_key": key} if key else summary


KINDS = {
    "parley publication proof 3": verify_publication,
    "parley operation proof 2": verify_operation,
    "parley entry proof 1": verify_entry,
}


@cache
def network_of(genesis: bytes) -> Network:
    return Network(genesis)


def verify(data: bytes, genesis: bytes) -> Check:
    """What a file proves under a genesis file. Raises `Refusal`."""
    network = network_of(genesis)
    require(len(data) <= MAX_PROOF, "form", "too large")
    raw = parsed(data)
    require(isinstance(raw, dict) and type(raw.get("format")) is str, "form", "format")
    require(raw["format"] in KINDS, "form", "format")
    file = FILES[raw["format"]](raw)
    require(compact(raw) + b"\n" == data, "form", "not canonical")
    check = Check(network)
    KINDS[raw["format"]](check, file)
    return check


def main() -> int:
    genesis, file = map(Path, sys.argv[1:])
    try:
        check = verify(file.read_bytes(), genesis.read_bytes())
    except Refusal as refusal:
        sys.stdout.write(f"NOT VALID: {refusal}\n")
        return 1
    network, committee = check.network, check.committee
    count, faults = len(committee.keys), committee.faults
    lines = [f"Valid in chain {network.chain.hex()}; {count} brokers, {faults} may be faulty."]
    lines += [f"{name}: {value!a}" for name, value in check.shows.items()]
    sys.stdout.write("\n".join([*lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
