"""The ceremony of docs/deploy.md, its commands as they stand: four organisations that exchange public files only."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tests.ops.guides import Command, commands

from parley.cli.output import ExitCode
from parley.client.contexts import resolve
from parley.model.credentials import Identity
from parley.node.config import load
from parley.node.storage import open_storage

NAMES = ("alpha", "bravo", "charlie", "delta")
STEPS = commands("docs/deploy.md", "The genesis ceremony")
TEXTS = [step.text for step in STEPS]
PARTS_SHOWN, DRAFTS_SHOWN = "cp network/*.part.json exchange/", "cp network/*.draft.json exchange/"
COMBINE_PARTS = "parley genesis combine exchange/*.part.json --dir network"
COMBINE_DRAFTS = "parley genesis combine exchange/*.draft.json --dir network"
FINGERPRINT = re.compile(r"\b[0-9a-f]{64}\b")
SECONDS = 90


class Party:
    """One organisation: a home of its own, in which its operator types."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.home = folder / name

    @property
    def exchange(self) -> Path:
        return self.home / "exchange"

    @property
    def network(self) -> Path:
        return self.home / "network"

    def type(self, text: str, code: int = 0) -> str:
        """What the command prints; `code` is how it must end."""
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": path, "COLUMNS": "200", "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, f"{self.name}: {text}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr

    def secrets(self) -> set[bytes]:
        """All that nobody else may know, as plain bytes."""
        seeds = {bytes.fromhex(path.read_text()) for path in self.network.glob("*/*/*.key") if _is_seed(path)}
        identities = self.network.glob("identities/*.json")
        seeds |= {msgspec.json.decode(path.read_bytes(), type=Identity).seed for path in identities}
        return seeds | {_scalar(path) for path in self.network.glob("*/*/*.key") if not _is_seed(path)}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The homes of all when they have exchanged their parts."""
    folder = tmp_path_factory.mktemp("organisations")
    for name in NAMES:
        (folder / name).mkdir()
    play([Party(name, folder) for name in NAMES], STEPS[: TEXTS.index(COMBINE_PARTS)])
    return folder


@pytest.fixture
def parties(begun: Path, tmp_path: Path) -> list[Party]:
    for name in NAMES:
        shutil.copytree(begun / name, tmp_path / name)
    return [Party(name, tmp_path) for name in NAMES]


def play(parties: list[Party], steps: Iterable[Command]) -> list[str]:
    """Follow the guide; where it says so the public files are exchanged. What all printed."""
    printed: list[str] = []
    for command in steps:
        called = [party for party in parties if command.who in {"every", party.name}]
        printed += [party.type(command.text) for party in called]
        if command.text in {PARTS_SHOWN, DRAFTS_SHOWN}:
            exchange(parties)
    return printed


def exchange(parties: list[Party]) -> None:
    """Everybody sends all of its own that lies in `exchange` to all others."""
    for sender in parties:
        for path in sender.exchange.glob(f"{sender.name}.*"):
            for receiver in parties:
                if receiver is not sender:
                    shutil.copy(path, receiver.exchange)


def test_all_get_the_same_genesis_file_and_nothing_secret_crosses(parties: list[Party]) -> None:
    printed = play(parties, STEPS[TEXTS.index(COMBINE_PARTS) :])
    assert len({(party.network / "genesis.json").read_bytes() for party in parties}) == 1
    fingerprints = FINGERPRINT.findall("".join(printed))
    assert (len(fingerprints), len(set(fingerprints))) == (2 * len(parties), 1)
    crossed = [readable(path.read_bytes()) for path in parties[0].exchange.iterdir()]
    assert len(crossed) == 2 * len(parties)
    secrets = {party.name: party.secrets() for party in parties}
    for party in parties:
        own = [readable(path.read_bytes()) for path in party.home.rglob("*") if path.is_file()]
        for name, found in secrets.items():
            # The anchor, the administrator's key, the authority, and the broker's keys for votes and for TLS.
            assert len(found) == 5
            assert not any(holds(data, secret) for data in crossed for secret in found)
            here = [any(holds(data, secret) for data in own) for secret in found]
            assert all(here) if name == party.name else not any(here)


def test_a_part_that_was_changed_on_its_way_is_refused_and_nothing_is_signed(parties: list[Party]) -> None:
    bravo = parties[1]
    changed = bravo.exchange / "alpha.part.json"
    changed.write_text(changed.read_text().replace("10.7.0.1", "10.7.0.66"))
    said = bravo.type(COMBINE_PARTS, ExitCode.WRONG_USE)
    assert "exchange/alpha.part.json was changed: it is not signed by the anchor of alpha" in said
    assert not list(bravo.network.glob("*.draft.json"))


def test_a_part_that_was_replaced_as_a_whole_shows_in_the_fingerprint_and_makes_no_genesis(
    parties: list[Party], tmp_path: Path
) -> None:
    impostor = Party("impostor", tmp_path)
    impostor.home.mkdir()
    impostor.type("parley init alpha --address 10.7.0.66:7100 --dir network")
    alpha, bravo = parties[:2]
    shutil.copy(impostor.network / "alpha.part.json", bravo.exchange)
    honest, deceived = (FINGERPRINT.findall(party.type(COMBINE_PARTS)) for party in (alpha, bravo))
    assert honest != deceived
    for party in (alpha, bravo):
        party.type(DRAFTS_SHOWN)
    exchange([alpha, bravo])
    for party in (alpha, bravo):
        said = party.type(COMBINE_DRAFTS, ExitCode.WRONG_USE)
        assert "are of different networks: what they say of alpha is not the same" in said
        assert not (party.network / "genesis.json").exists()


def test_without_the_signature_of_one_there_is_no_genesis_file_and_no_broker_starts(
    parties: list[Party],
) -> None:
    alpha, bravo, _, delta = parties
    play([alpha, bravo, delta], STEPS[TEXTS.index(COMBINE_PARTS) : TEXTS.index(COMBINE_DRAFTS)])
    assert "signed by alpha, bravo, delta, missing charlie." in alpha.type(COMBINE_DRAFTS)
    assert not (alpha.network / "genesis.json").exists()
    said = alpha.type("parley node --dir network", ExitCode.WRONG_USE)
    assert "broker.toml: genesis:" in said
    assert "genesis.json cannot be read: No such file or directory" in said


def test_who_combined_too_early_comes_back_as_the_guide_says(parties: list[Party]) -> None:
    alpha = parties[0]
    alpha.type("parley genesis combine exchange/alpha.part.json --dir network")
    alone = (alpha.network / "genesis.json").read_bytes()
    play(parties, STEPS[TEXTS.index(COMBINE_PARTS) : TEXTS.index(COMBINE_DRAFTS)])
    make, move, combine = commands("docs/deploy.md", "Combined too early")
    said = alpha.type(combine.text, ExitCode.WRONG_USE)
    named = said.split("run this again:\n")[1].split()
    assert {Path(name).name for name in named} == {
        "genesis.json",
        "alpha-admin.json",
        "data",
        "safety.record",
    }
    assert (alpha.network / "genesis.json").read_bytes() == alone
    for step in (make, move, combine):
        alpha.type(step.text)
    config = load(alpha.network / "brokers" / "alpha-1" / "broker.toml")
    assert len(config.genesis.brokers) == 4
    storage = open_storage(config)
    storage.close()
    assert storage.record[1].chain == config.genesis.chain
    resolve(directory=alpha.network)  # which checks the credential


def test_a_secret_is_found_in_whatever_spelling() -> None:
    secret = bytes(range(7, 39))
    for before in (b"", b"a", b"ab"):  # in base64 it looks different after each of these
        data = before + secret + b"z"
        for spelt in (
            data,
            data.hex().encode(),
            data.hex().upper().encode(),
            base64.b64encode(data),
            base64.urlsafe_b64encode(data),
        ):
            file = readable(b'{"key":"' + spelt + b'"}')
            assert holds(file, secret)
            assert not holds(file, bytes(range(8, 40)))


def test_the_guide_names_each_organisation_and_ends_with_the_genesis_file() -> None:
    assert {step.who for step in STEPS} == {*NAMES, "every"}
    assert TEXTS[-4:] == [PARTS_SHOWN, COMBINE_PARTS, DRAFTS_SHOWN, COMBINE_DRAFTS]


def readable(data: bytes) -> bytes:
    """The bytes as they are, without the case of letters, and as base64 in place of base64url."""
    return b"\n\n".join((data, data.lower(), data.translate(bytes.maketrans(b"-_", b"+/"), b"\n")))


def spellings(secret: bytes) -> Iterator[bytes]:
    """Plain, in hexadecimal, and in base64 wherever in what was encoded."""
    yield secret
    yield secret.hex().encode()
    for before in range(3):
        # Without the characters at either end, which also depend on what stands before and after.
        yield base64.b64encode(bytes(before) + secret)[-(-before * 8 // 6) : (before + len(secret)) * 8 // 6]


def holds(found: bytes, secret: bytes) -> bool:
    return any(spelling in found for spelling in spellings(secret))


def _is_seed(path: Path) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}\n", path.read_text()) is not None


def _scalar(path: Path) -> bytes:
    """What is secret in a key of TLS."""
    key = load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return key.private_numbers().private_value.to_bytes((key.key_size + 7) // 8, "big")
