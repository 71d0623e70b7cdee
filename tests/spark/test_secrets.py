"""Nothing that Spark keeps, shows or logs holds the key of the identity with which it reads and publishes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.network import LocalNetwork
from tests.spark.running import published, run_job

PIECE = 20  # characters of a key that would be too many: it may stand at any place of something encoded


def forms(seed: bytes) -> Iterator[bytes]:
    """How a key might be written."""
    yield seed
    yield seed.hex().encode()
    yield seed.hex().upper().encode()
    yield repr(seed)[2:-1].encode()  # as Python shows bytes
    yield ", ".join(map(str, seed)).encode()
    yield ", ".join(str(byte - 256 if byte > 127 else byte) for byte in seed).encode()  # as Java does
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):  # it may stand in the middle of something that is encoded as a whole
            text = encode(bytes(shift) + seed)
            yield text[4 : 4 + PIECE]


def leaks(folder: Path, seed: bytes) -> list[str]:
    wanted = list(forms(seed))
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if any(form in path.read_bytes() for form in wanted))


@pytest.mark.parametrize("shift", range(3))
def test_a_key_that_leaks_is_found(shift: int, tmp_path: Path) -> None:
    seed = bytes(range(100, 132))
    (tmp_path / "clean").write_bytes(b"nothing of that kind " * 100)
    (tmp_path / "raw").write_bytes(b"..." + seed)
    (tmp_path / "hex").write_text(f'{{"seed": "{seed.hex()}"}}')
    (tmp_path / "base64").write_bytes(base64.b64encode(b"x" * (3 + shift) + seed + b"y" * 7))
    (tmp_path / "shown").write_text(repr({"seed": seed}))
    assert leaks(tmp_path, seed) == ["base64", "hex", "raw", "shown"]


@pytest.mark.long  # test_pipeline looks at what a whole run leaves behind
def test_no_plan_log_checkpoint_page_or_file_of_spark_holds_the_key(
    java: Path, network: LocalNetwork, tmp_path: Path
) -> None:
    job = published(network, "secrets", ["patient-7"], tmp_path)
    said = run_job("everything_on_record", job)
    folder = Path(job.folder)
    assert said.stdout.splitlines()[-1:] == ["done"], said.stderr[-5_000:]
    (folder / "stderr").write_text(said.stderr)
    (folder / "stdout").write_text(said.stdout)
    kept = {path.name for path in folder.rglob("*") if path.is_file()}
    # All of it is there, and tells of the job: otherwise nothing would be shown by what is missing.
    assert {"plans", "SQL", "environment", "api-sql", "stderr"} <= kept
    assert any(b"secrets" in path.read_bytes() for path in (folder / "checkpoint" / "offsets").iterdir())
    assert any(b"on-record" in path.read_bytes() for path in (folder / "events").rglob("*") if path.is_file())
    assert "parley" in (folder / "plans").read_text()
    assert len(said.stderr) > 10_000, "the log is on"
    for identity in ("alice", "admin"):
        assert leaks(folder, network.identity("alpha", identity).seed) == []
