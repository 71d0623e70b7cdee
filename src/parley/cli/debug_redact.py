"""What must not leave in a debug bundle: anything that looks like a key is shortened, and what holds a known one is kept back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

KEPT = 8  # characters of a long value: enough to compare, useless as a key
SHORTEST = 16  # bytes; shorter ones would be found by chance
MAX_SECRET = 64 * 1024

# 128 bits in hexadecimal, also as pairs, or 30 bytes in either base64: hashes, too, but none is needed in full.
_LONG = re.compile(r"(?:[0-9A-Fa-f]{2}[: ]){15,}[0-9A-Fa-f]{2}|[0-9A-Fa-f]{32,}|[A-Za-z0-9+_-]{40,}={0,2}")
_SLASHED = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")  # base64, or a path
CAPITALS = 5  # hardly a path has so many, and hardly a key has fewer
_BYTES = re.compile(r"""\bb(['"])(?:\\.|(?!\1)[^\\]){16,}(?:\1|\Z)""", re.DOTALL)  # as Python shows them
_PASSWORD = re.compile(
    r"""\b((?:password|passwd|passphrase|secret|token|api[_-]?key|authorization)["']?\s*[=:]\s*["']?)"""
    r"""(?:(?:Bearer|Basic)\s+)?[^\s"',;&]+""",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(://)[^/@\s]+@")  # name and password
# Entries of the state are named after topics, clients and constraints, which may hold anything up to the end of a line.
_STATE_ENTRY = re.compile(r"\b(s/[kni]).*", re.DOTALL)
_PLACES = ("organisations/*/*.key", "identities/*.json", "brokers/*/*.key")


def clean(value: object) -> object:
    """The same value of JSON, with every text in it shortened where it could give something away."""
    match value:
        case str():
            return _clean_text(value)
        case dict():
            return {str(clean(key)): clean(item) for key, item in value.items()}
        case list() | tuple():
            return [clean(item) for item in value]
        case _:
            return value


def _clean_text(text: str) -> str:
    text = _PASSWORD.sub(r"\1…", _IN_ADDRESS.sub(r"\1…@", text))
    text = _BYTES.sub("b'…'", text)
    text = _SLASHED.sub(lambda found: _shortened(found) if _is_mixed(found[0]) else found[0], text)
    return _STATE_ENTRY.sub(r"\1…", _LONG.sub(_shortened, text))


def _shortened(found: re.Match[str]) -> str:
    return f"{found[0][:KEPT]}…"


def _is_mixed(text: str) -> bool:
    return min(sum(map(str.isupper, text)), sum(map(str.islower, text))) >= CAPITALS


def clean_lines(lines: Iterable[str]) -> bytes:
    """Lines of a log: those that are JSON stay JSON."""
    return "".join(f"{_clean_line(line)}\n" for line in lines).encode()


def _clean_line(line: str) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return str(clean(line))
    return json.dumps(clean(found), ensure_ascii=False)


def known_secrets(home: Path, more: Iterable[Path] = (), public: bytes = b"") -> list[bytes]:
    """Every key in the folder of a network and in `more` files, in the forms in which it could turn up somewhere.

    Credentials go with the keys; of what is in them, only `public` is everybody's.
    """
    found: set[bytes] = set()
    for path in {path for pattern in _PLACES for path in home.glob(pattern)} | set(more):
        try:
            with path.open("rb") as file:
                content = file.read(MAX_SECRET)
        except (OSError, ValueError):  # who cannot read it cannot give it away
            continue
        for secret in _secrets(content):
            found.update(_forms(secret))
    return sorted(form for form in found - set(_forms(public)) if len(form) >= SHORTEST)


def secret_in(data: bytes, secrets: Iterable[bytes]) -> bool:
    return any(secret in data for secret in secrets)


def _secrets(content: bytes) -> Iterator[bytes]:
    """The file, its lines, and in a file of JSON every long text; most of that is no secret, and none of it is needed."""
    yield content.strip()
    yield from (line for line in content.split() if len(line) >= 2 * SHORTEST)
    if content.lstrip().startswith(b"{"):
        yield from re.findall(rb'"([A-Za-z0-9+/=_-]{32,})"', content)


def _forms(secret: bytes) -> Iterator[bytes]:
    """A secret as it is written, and what it is the text of, in every spelling."""
    values = {secret}
    if re.fullmatch(rb"(?:[0-9A-Fa-f]{2})+", secret):
        values.add(bytes.fromhex(secret.decode()))
    if re.fullmatch(rb"[A-Za-z0-9+/_-]+={0,2}", secret) and len(secret.rstrip(b"=")) % 4 != 1:
        text = secret.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
        values.add(base64.b64decode(text + b"=" * (-len(text) % 4)))
    for value in values:
        yield value
        yield value.hex().encode()
        yield value.hex().upper().encode()
        yield base64.b64encode(value).rstrip(b"=")
        yield base64.urlsafe_b64encode(value).rstrip(b"=")
        yield repr(value)[2:-1].encode()
        yield ", ".join(map(str, value)).encode()
