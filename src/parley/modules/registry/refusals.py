"""Why the registry refuses."""

from __future__ import annotations

from parley.model.refusals import Refused


class ClientExists(Refused, retry="changed", status=409, suspicion="refusal"):
    """The key or the name is in use; a key is used only once."""
