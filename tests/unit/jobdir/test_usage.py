"""What a job-dir takes on the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpc_train.cli.app import app
from hpc_train.jobdir.usage import KINDS, Inodes, bytes_of, usage_of
from tests.job_dirs import write_job

MIB = 1 << 20


def written(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    folder = write_job(tmp_path / "runs" / "a", [], {"state": "succeeded"})
    for name, mib in (
        ("checkpoints/step-00000010/state.h5", 5),
        ("export/final/1/variables", 4),
        ("logs/run-0/1/rank.0/stdout", 3),
        ("code/model.py", 2),
        ("eval_held/events", 1),
        ("predictions.h5", 6),
    ):
        written(folder / name, mib * MIB)
    return folder


def in_mib(job_dir: Path, seen: Inodes | None = None) -> list[int]:
    usage = usage_of(job_dir, seen)
    assert usage.total == sum(usage.bytes.values()) and not usage.unread
    return [usage.bytes[kind] // MIB for kind in KINDS]


def test_each_kind_is_counted(job_dir: Path) -> None:
    assert in_mib(job_dir) == [5, 4, 3, 2, 1, 6]


def test_holes_take_nothing_and_hard_links_count_once(job_dir: Path, tmp_path: Path) -> None:
    with (job_dir / "checkpoints" / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    os.link(job_dir / "predictions.h5", job_dir / "export" / "again")
    assert sum(in_mib(job_dir)) == 21
    other = write_job(tmp_path / "runs" / "b", [])
    os.link(job_dir / "predictions.h5", other / "shared")
    seen: Inodes = set()
    assert [sum(in_mib(path, seen)) for path in (job_dir, other)] == [21, 0]


def test_what_links_lead_to_is_not_counted(job_dir: Path, tmp_path: Path) -> None:
    elsewhere = written(tmp_path / "elsewhere" / "large", 9 * MIB).parent
    for name in ("ranks", "checkpoints/step-00000020", "export/best", "loop"):
        (job_dir / name).symlink_to(job_dir if name == "loop" else elsewhere)
    assert in_mib(job_dir) == [5, 4, 3, 2, 1, 6]
    assert bytes_of(job_dir / "export" / "best") < MIB and bytes_of(job_dir / "missing") == 0


def test_what_vanishes_meanwhile_stops_nothing(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def vanishing(path: object, **named: object) -> object:
        if path == "state.h5":
            raise FileNotFoundError(2, "gone")
        return real(path, **named)  # type: ignore[arg-type, call-overload]

    monkeypatch.setattr(os, "stat", vanishing)
    assert in_mib(job_dir) == [0, 4, 3, 2, 1, 6]


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["du", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_command_shows_all_jobs_or_some_the_largest_first(job_dir: Path, tmp_path: Path) -> None:
    root = job_dir.parent
    small = write_job(root / "b\x1b[2J", [], {"state": "succeeded"})
    code, text = run("--root", root)
    lines = [line.split() for line in text.splitlines()]
    assert code == 0 and "\x1b" not in text
    assert lines[0] == ["name", "total", "checkpoints", "exports", "logs", "code", "tensorboard", "other"]
    assert [line[0] for line in lines[1:]] == ["a", "b\\x1b[2J", "all"]
    for named in (job_dir, root, "a"):
        code, text = run(named, "--json", "--root", root)
        first = json.loads(text.splitlines()[0])
        assert (code, first["name"], first["checkpoints"] // MIB) == (0, "a", 5)
    assert len(run(root, small, "--json")[1].splitlines()) == 2, "each once"
    assert run("--root", tmp_path / "none") == (0, f"no jobs in {tmp_path / 'none'}\n")
    code, text = run("nothing", tmp_path / "state", "--root", root)
    assert code == 2 and "nothing: no such job" in text
