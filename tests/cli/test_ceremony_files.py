import itertools
from pathlib import Path

import msgspec
import pytest

from parley.cli import ceremony
from parley.cli.ceremony import CeremonyError, Draft, Part, Settings
from parley.crypto.ed25519 import SecretKey
from parley.crypto.hashing import digest
from parley.model.genesis import MAX_GENESIS, Broker, Organisation, decode_genesis

NAMES = ("alpha", "bravo", "charlie")
SETTINGS = Settings("test")


def key(label: str) -> SecretKey:
    return SecretKey.from_seed(digest("test/key", label.encode()))


def part(name: str, *, address: str | None = None, broker: str | None = None, created: int = 0) -> Part:
    place = NAMES.index(name)
    member = Broker(
        broker or f"{name}-1", name, key(f"{name} broker").public, address or f"10.0.0.{place + 1}:7101"
    )
    party = Organisation(
        name, key(name).public, b"certificate of " + name.encode(), (key(f"{name} admin").public,)
    )
    return ceremony.sign_part(party, (member,), created or 1_000 + place, key(name))


def parts() -> dict[str, Part]:
    return {f"{name}.part.json": part(name) for name in NAMES}


def drafts() -> dict[str, Draft]:
    genesis = ceremony.combine(parts(), SETTINGS)
    return {name: ceremony.sign_draft(Draft(genesis, {}), name, key(name)) for name in NAMES}


def test_the_same_parts_make_the_same_genesis_in_any_order() -> None:
    made = {
        ceremony.encode_file(Draft(ceremony.combine(dict(order), SETTINGS), {}))
        for order in itertools.permutations(parts().items())
    }
    assert len(made) == 1


def test_a_genesis_starts_when_its_last_part_was_made() -> None:
    genesis = ceremony.combine(parts(), SETTINGS)
    assert genesis.start_time == 1_002
    assert [one.name for one in genesis.organisations] == list(NAMES)
    assert [one.name for one in genesis.brokers] == ["alpha-1", "bravo-1", "charlie-1"]


def test_drafts_of_all_make_a_genesis_file_the_same_everywhere() -> None:
    made = set()
    for order in itertools.permutations(drafts().items()):
        merged = ceremony.merge(dict(order))
        assert ceremony.missing(merged) == []
        made.add(ceremony.finished(merged))
    assert len(made) == 1
    assert decode_genesis(made.pop()).network == "test"


def test_a_draft_says_who_is_missing() -> None:
    some = dict(list(drafts().items())[:2])
    assert ceremony.missing(ceremony.merge(some)) == ["charlie"]


def test_parts_and_drafts_survive_their_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for file in (part("alpha"), drafts()["alpha"]):
        path.write_bytes(ceremony.encode_file(file))
        assert ceremony.read_file(path) == file


def test_a_finished_file_can_be_handed_in_as_a_draft(tmp_path: Path) -> None:
    merged = ceremony.merge(drafts())
    path = tmp_path / "genesis.json"
    path.write_bytes(ceremony.finished(merged))
    assert ceremony.read_file(path) == merged


def test_a_part_that_was_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "alpha.part.json"
    path.write_bytes(ceremony.encode_file(part("alpha")).replace(b"10.0.0.1", b"10.6.6.6"))
    with pytest.raises(CeremonyError, match="not signed by the anchor of alpha"):
        ceremony.read_file(path)


def test_a_signature_that_does_not_fit_the_draft_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "draft.json"
    path.write_bytes(ceremony.encode_file(drafts()["alpha"]).replace(b"10.0.0.1", b"10.6.6.6"))
    with pytest.raises(CeremonyError, match="signature of alpha"):
        ceremony.read_file(path)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"format":"parley genesis draft 2"}', b"[" * 100_000, b"\xff"]
)
def test_other_files_are_refused_with_their_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    with pytest.raises(CeremonyError, match="other"):
        ceremony.read_file(path)


def test_no_file_is_read_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "endless"
    path.write_bytes(b" " * (2 * MAX_GENESIS))
    with pytest.raises(CeremonyError, match="larger"):
        ceremony.read_file(path)


def test_two_parts_of_one_organisation_are_not_guessed_between() -> None:
    given = {**parts(), "other.json": part("alpha", created=5)}
    with pytest.raises(CeremonyError, match=r"alpha\.part\.json and other\.json"):
        ceremony.combine(given, SETTINGS)
    doubled = ceremony.combine({**parts(), "copy.json": part("alpha")}, SETTINGS)
    assert doubled == ceremony.combine(parts(), SETTINGS)


@pytest.mark.parametrize(
    ("double", "what"),
    [(part("bravo", address="10.0.0.1:7101"), "address"), (part("bravo", broker="alpha-1"), "name")],
)
def test_brokers_that_would_collide_are_refused(double: Part, what: str) -> None:
    with pytest.raises(CeremonyError, match=f"the same {what}"):
        ceremony.combine({"a": part("alpha"), "b": double}, SETTINGS)


def test_a_part_cannot_name_another_organisation_s_broker(tmp_path: Path) -> None:
    stolen = msgspec.structs.replace(part("bravo").brokers[0], organisation="alpha")
    path = tmp_path / "bravo.part.json"
    path.write_bytes(
        ceremony.encode_file(ceremony.sign_part(part("bravo").organisation, (stolen,), 1, key("bravo")))
    )
    with pytest.raises(CeremonyError, match="a broker of alpha"):
        ceremony.read_file(path)


def test_drafts_of_different_networks_are_not_merged_and_the_difference_is_told() -> None:
    one = drafts()["alpha"]
    other = Draft(ceremony.combine(parts(), Settings("elsewhere")), {})
    with pytest.raises(CeremonyError, match="network is 'test' in one and 'elsewhere' in the other"):
        ceremony.merge({"one": one, "two": other})
    fewer = Draft(ceremony.combine(dict(list(parts().items())[1:]), SETTINGS), {})
    with pytest.raises(CeremonyError, match="all must combine the same parts"):
        ceremony.merge({"one": one, "two": fewer})
