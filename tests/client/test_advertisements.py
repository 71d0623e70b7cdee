"""What clients say that they publish, as others read it."""

from __future__ import annotations

import pytest
from tests.application.world import ADMIN
from tests.client.stage import Stage, on_stage

from parley.client.errors import UnknownTopic
from parley.modules.topics.operations import DeleteTopic


@on_stage
async def test_advertisements_are_made_read_and_withdrawn(stage: Stage) -> None:
    alice, bob = stage.registered("alice"), stage.registered("bob")
    async with stage.client(alice) as reader, stage.client(bob) as writer:
        await writer.advertise("notes", "notes from the ward")
        found = await reader.advertisements("notes")
        assert [(one.client, one.text) for one in found] == [("hospital-a/bob", "notes from the ward")]
        await writer.advertise("notes", "")
        assert await reader.advertisements("notes") == []
        stage.ledger.do(ADMIN, DeleteTopic("notes"))
        with pytest.raises(UnknownTopic):
            await writer.advertise("notes", "more notes")
