"""The services of a broker on one page: every question that it answers stands in one of these lists, once.

docs/reference.md shows the whole table, with who may ask what and what it costs.
"""

from __future__ import annotations

from typing import Any

from parley.node.services import auditing, fetching, proving, streaming, submitting, telling
from parley.node.services.service import Service

TABLE: tuple[Service[Any], ...] = (
    *submitting.SERVICES,
    *fetching.SERVICES,
    *streaming.SERVICES,
    *proving.SERVICES,
    *auditing.SERVICES,
    *telling.SERVICES,
)
