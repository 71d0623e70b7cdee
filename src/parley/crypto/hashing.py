"""The one hash of the system, SHA-256 under a domain: a digest of one kind is never one of another."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from parley.crypto.encoding import enc

DIGEST_SIZE = 32

# More domains than the code base will ever name; bounded in case one is ever built from input.
_CACHED_DOMAINS = 512

_sha256 = hashlib.sha256


def digest(domain: str, *items: bytes) -> bytes:
    """SHA-256 of the encoded domain and items."""
    return _sha256(domain_prefix(domain) + enc(*items)).digest()


@lru_cache(maxsize=_CACHED_DOMAINS)
def domain_prefix(domain: str) -> bytes:
    """What every hash input of the domain starts with; for callers that lay out the rest themselves."""
    return enc(b"PSB1/" + domain.encode("ascii"))
