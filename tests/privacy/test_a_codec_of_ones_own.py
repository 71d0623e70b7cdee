"""A payload codec that only these tests know works over real brokers: publishing, subscribing, fetching and proofs."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.node.network import SECONDS, LocalNetwork
from tests.privacy.sealing import ROOT, TOY, connected, toy_network
from tests.privacy.toy import STRANGE

import parley
from parley.client.proofs import decode_proof
from parley.model.batches import decode_message_header
from parley.modules.publishing.proof import PublicationProof
from parley.modules.topics.operations import Policy
from parley.privacy.table import Codecs

MANY = [f"secret {number}" for number in range(500)]
RICH = {"key": "k", "tags": {"ward": "er"}, "headers": {"kind": "note"}, "rule": 'org == "alpha"'}


def test_a_codec_of_ones_own_works_over_a_real_network(tmp_path: Path) -> None:
    """One story, because its parts need what the parts before have published."""
    with toy_network(tmp_path / "network") as network:
        asyncio.run(within_time(published_and_read(network, tmp_path)))
        asyncio.run(within_time(spoiled(network)))
        asyncio.run(within_time(refused(network)))
        verified_by_command(network, tmp_path)


async def within_time(story: object) -> None:
    async with asyncio.timeout(2 * SECONDS):
        await story  # type: ignore[misc]


async def published_and_read(network: LocalNetwork, folder: Path) -> None:
    async with connected(network, "admin") as admin, connected(network, "alice") as alice:
        await admin.create_topic("sealed", policy=TOY)
        assert (await admin.topic("sealed")).payload == "toy"
        async with alice.subscribe("sealed", 'ward == "er"') as matching, alice.subscribe("sealed") as all_of:
            one = await alice.publish("sealed", "the diagnosis", **RICH)  # type: ignore[arg-type]
            async with alice.publisher("sealed", batch_size=100) as publisher:
                receipts = await publisher.publish_many(MANY, partition=0)
                last = await (await publisher.send("at last", tags={"ward": "er"}))
            live = [await anext(matching), await anext(matching)]
            everything = [(await anext(all_of)).text() for _ in range(502)]
        assert [message.text() for message in live] == ["the diagnosis", "at last"]
        assert everything == ["the diagnosis", *MANY, "at last"]
        fetched = [message async for message in alice.fetch("sealed")]
        assert [message.text() for message in fetched] == everything
        read = await alice.read("sealed", one.offset)
        for message in (live[0], fetched[0], read):
            assert (message.key, dict(message.tags)) == (b"k", {"ward": "er"})
            assert (dict(message.headers), message.rule) == ({"kind": b"note"}, 'org == "alpha"')
            assert message.unopened is None
            proves_what_was_published(network, message.published.payload, message.published.header)
        one.save(folder / "one.json")
        receipts[1][7].save(folder / "many.json")
        last.save(folder / "last.json")
        for name in ("one", "many", "last"):
            proof = decode_proof((folder / f"{name}.json").read_bytes())
            assert isinstance(proof, PublicationProof)
            assert proof.message is not None
            shown = proof.message.message
            assert shown == (await alice.read("sealed", proof.offset)).published
            assert (await alice.read("sealed", proof.offset)).proof().message == proof.message
            proves_what_was_published(network, shown.payload, shown.header)
        rows = (await alice.page("sealed", 0)).batches
        assert [payload.decode() for part in rows for payload in part.payloads] == everything[: rows[-1].end]
        assert rows[0].proof(0).message == read.proof().message


def proves_what_was_published(network: LocalNetwork, payload: bytes, header: bytes) -> None:
    """Nothing of what is inside is in what brokers have."""
    assert not any(word in payload for word in (b"diagnosis", b"secret", b"at last", b"note"))
    shown = decode_message_header(header)
    assert (shown.key, shown.headers) == (None, ())


async def spoiled(network: LocalNetwork) -> None:
    """What cannot be opened comes in its place, says why, and holds up nothing."""
    async with connected(network, "alice") as alice, connected(network, "alice", STRANGE) as strange:
        async with (
            alice.subscribe("sealed") as following,
            alice.subscribe("sealed", on_undecryptable="skip") as skipping,
        ):
            bad = await strange.publish("sealed", "under another key", tags={"ward": "er"})
            good = await alice.publish("sealed", "good")
            spoiled, after = await anext(following), await anext(following)
            assert (await anext(skipping)).offset == good.offset
        assert (spoiled.offset, after.text()) == (bad.offset, "good")
        for message in (spoiled, await alice.read("sealed", bad.offset)):
            assert message.unopened == "it was sealed under another key, or not at all"
            assert message.tags == {"ward": "er"}
            for content in ("value", "key", "headers"):
                with pytest.raises(parley.Undecryptable, match=f"offset {bad.offset} of sealed cannot be"):
                    getattr(message, content)
        assert (await alice.read("sealed", bad.offset)).proof().offset == bad.offset
        assert [one.offset async for one in alice.fetch("sealed", start=bad.offset)] == [
            bad.offset,
            good.offset,
        ]
        fetching = alice.fetch("sealed", start=bad.offset, on_undecryptable="skip")
        assert [one.text() async for one in fetching] == ["good"]
        (rows,) = [rows for rows in (await alice.page("sealed", bad.offset)).batches if rows.unopened]
        assert rows.unopened == ((bad.offset, "it was sealed under another key, or not at all"),)
        assert not rows.payloads


async def refused(network: LocalNetwork) -> None:
    """A program without the codec neither publishes nor reads, and nobody makes a topic that no broker has a word for."""
    async with connected(network, "alice", Codecs()) as poor, connected(network, "admin") as admin:
        with pytest.raises(parley.MissingCodec, match=r"payload setting toy.*PARLEY_CODECS"):
            await poor.publish("sealed", "in the clear")
        with pytest.raises(parley.MissingCodec):
            await poor.publish("sealed", "in the clear", partition=0)
        with pytest.raises(parley.MissingCodec):
            async with poor.publisher("sealed"):
                pass
        with pytest.raises(parley.MissingCodec):
            await poor.stage("sealed", 0, [], poor.writer("sealed", "job"), 1)
        with pytest.raises(parley.MissingCodec):
            await anext(poor.fetch("sealed"))
        with pytest.raises(parley.MissingCodec):
            async with poor.subscribe("sealed"):
                pass
        with pytest.raises(parley.MissingCodec):
            await poor.page("sealed", 0)
        await admin.create_topic("open")
        assert (await poor.publish("open", "in the clear")).offset == 0
        with pytest.raises(parley.Unsupported, match="payload setting rot13"):
            await admin.create_topic("other", policy=Policy(payload="rot13"))
        with pytest.raises(parley.Malformed):
            await admin.create_topic("other", policy=Policy(payload="no word"))


def verified_by_command(network: LocalNetwork, folder: Path) -> None:
    command = [sys.executable, "-c", "from parley.cli import main; main()"]

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return done.stdout + done.stderr

    shown = said("verify", str(folder / "one.json"), "--dir", str(network.directory))
    assert "Valid: alpha/alice published message 0 of topic sealed" in shown
    assert "as they were published: sealed, if" in shown
    assert "diagnosis" not in shown
    found = msgspec.json.decode(
        said("topic", "describe", "sealed", "--json", "--dir", str(network.directory))
    )
    assert (found["matching"], found["payload"]) == ("clear", "toy")
    refusal = said("topic", "create", "more", "--payload", "rot13", "--dir", str(network.directory))
    assert "plain or toy" in " ".join(refusal.split())
    assert "created topic more" in said(
        "topic", "create", "more", "--payload", "toy", "--dir", str(network.directory)
    )


def test_what_the_page_shows_of_a_codec_is_what_runs() -> None:
    page = (ROOT / "docs/privacy.md").read_text()
    (block,) = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block in (ROOT / "tests/privacy/toy.py").read_text()
