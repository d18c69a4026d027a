"""Archives about jobs: what is in them, and job-dirs that others have prepared."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpc_train.bundle import archive
from hpc_train.bundle.archive import write_bundle
from hpc_train.bundle.contents import HEAD_BYTES, MOST_LOGS, TAIL_BYTES, Entry, of_job_dir
from hpc_train.bundle.redaction import Redaction
from hpc_train.cli.app import app
from hpc_train.errors import UserError


def make_job_dir(folder: Path) -> Path:
    job_dir = folder / "job"
    (job_dir / "logs").mkdir(parents=True)
    (job_dir / "code").mkdir()
    (job_dir / "code" / "model.py").write_text("the user's own")
    (job_dir / "secrets.sh").write_text("export A_VALUE=hunter2hunter2")
    (job_dir / "status.json").write_text(json.dumps({"state": "failed", "step": 3, "started": 1.0, "updated": 2.0}))
    (job_dir / "logs" / "job.out").write_text("password=hunter2hunter2\n")
    return job_dir


def texts_of(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        assert all(member.isfile() and not member.name.startswith(("/", "..")) for member in tar.getmembers())
        return {member.name: tar.extractfile(member).read().decode() for member in tar.getmembers()}  # type: ignore[union-attr]


def test_a_job_in_one_file(tmp_path: Path) -> None:
    job_dir, out = make_job_dir(tmp_path), tmp_path / "out.tar.gz"
    words = ["bundle", str(job_dir), "--no-doctor", "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    texts = texts_of(out)
    assert "hunter2" not in "".join(texts.values())
    assert texts["job/job/logs/job.out"] == "password=***\n"
    assert json.loads(texts["job/job/describe.json"])["step"] == 3
    assert not [name for name in texts if "code" in name or "secrets" in name]
    assert "code/model.py" in texts["job/files.txt"]
    assert "numpy==" in texts["job/python/packages.txt"]
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2 and "is there; give another name" in again.output
    assert texts_of(out) == texts


def test_long_files_lose_their_middle(tmp_path: Path) -> None:
    job_dir = make_job_dir(tmp_path)
    lines = [f"line {number}" for number in range(300_000)]
    (job_dir / "metrics.jsonl").write_text("\n".join(lines))
    entry = next(entry for entry in of_job_dir(job_dir) if entry.name == "job/metrics.jsonl")
    found = entry.text.splitlines()
    assert len(entry.text) < HEAD_BYTES + TAIL_BYTES + 200
    assert (found[0], found[-1]) == (lines[0], lines[-1])
    assert set(found) - set(lines) == {line for line in found if "bytes in its middle are left out" in line}
    assert "bytes in its middle" in entry.note


def test_what_others_have_prepared_is_not_followed(tmp_path: Path) -> None:
    job_dir = make_job_dir(tmp_path)
    (tmp_path / "private").write_text("of another")
    (job_dir / "logs" / "link.out").symlink_to(tmp_path / "private")
    (job_dir / "data.json").symlink_to(tmp_path / "private")
    (job_dir / "logs" / "loop").symlink_to(job_dir)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "netrc").write_text("of another")
    (job_dir / "ranks").symlink_to(tmp_path / "theirs")
    os.mkfifo(job_dir / "job.yaml")
    os.mkfifo(job_dir / "logs" / "pipe")
    found = {entry.name: entry for entry in of_job_dir(job_dir)}
    assert "of another" not in "".join(entry.text for entry in found.values())
    assert "cannot be read" in found["job/job.yaml"].note and "cannot be read" in found["job/data.json"].note
    assert "no regular file  logs/pipe" in found["files.txt"].text


def test_a_link_in_the_place_of_the_logs_is_not_followed(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "job.out").write_text("of another")
    (job_dir / "logs").symlink_to(tmp_path / "theirs")
    assert "of another" not in "".join(entry.text for entry in of_job_dir(job_dir))


def test_of_many_logs_the_newest_are_there(tmp_path: Path) -> None:
    job_dir = make_job_dir(tmp_path)
    for number in range(MOST_LOGS + 5):
        path = job_dir / "logs" / f"failure-{number}.txt"
        path.write_text("x")
        os.utime(path, (number, number))
    entries = list(of_job_dir(job_dir))
    names = [entry.name for entry in entries if entry.name.startswith("job/logs/failure")]
    assert len(names) == MOST_LOGS - 1 and names[0] == f"job/logs/failure-{MOST_LOGS + 4}.txt"
    assert entries[-1].note == "6 older files of logs/ are left out"


def test_what_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def entries():  # type: ignore[no-untyped-def]
        yield Entry("a", "b")
        raise RuntimeError("odd")

    def full(self: object, info: object, content: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out.tar.gz"
    with pytest.raises(RuntimeError, match="odd"):
        write_bundle(out, "job", entries(), Redaction([]))
    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "addfile", full)
        with pytest.raises(UserError, match="No space left"):
            write_bundle(out, "job", [Entry("a", "b")], Redaction([]))
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(archive, "MOST_BYTES", 10)
    written = write_bundle(
        out, "job", [Entry("small", "1"), Entry("large", "2" * 11), Entry("more", "3")], Redaction([])
    )
    assert list(written.notes) == ["large"] and written.entries == 2
    with pytest.raises(UserError, match="No such file"):
        write_bundle(tmp_path / "none" / "out.tar.gz", "job", [], Redaction([]))
