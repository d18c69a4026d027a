"""What a job's ranks start from: paths in full, what is told at submission, and what a resumed job goes on with."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import UserError
from hpc_train.jobdir.paths import PACKS_FILE
from hpc_train.jobs import environment
from hpc_train.jobs.environment import Environment, with_environment, with_environment_again
from hpc_train.jobs.record.installation import Installation, this_installation
from hpc_train.jobs.record.submission import Submission
from hpc_train.packs.manifest import Manifest
from tests.unit.jobs.submissions import a_submission


def submission_of(folder: Path, backend: str = "slurm", **wants: Any) -> Submission:
    found = a_submission(backend=backend, job_file=str(folder / "job.yaml"))
    return replace(found, resources={**found.wants.model_dump(mode="json"), **wants})


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Which pip files were resolved."""
    asked: list[Path] = []
    monkeypatch.setattr(environment, "resolve_requirements", lambda python, path: asked.append(path) or ("a @ b",))
    return asked


def test_a_job_without_them_pays_nothing(tmp_path: Path, lines: list[Path]) -> None:
    submission = submission_of(tmp_path)
    found, made = with_environment(submission, print)
    assert found.wants == submission.wants and made == Environment() and not lines
    made.make(tmp_path, print)
    assert list(tmp_path.iterdir()) == []


def test_paths_are_those_of_the_job_files_folder(
    tmp_path: Path, lines: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = Manifest(1, "0.1.0", "3.11.7", "x86_64", "2.36", None, "/v", 1, 1, "0" * 64, "a" * 32)
    monkeypatch.setattr(environment, "read_manifest", lambda path: manifest)
    monkeypatch.setattr(environment, "unfit", lambda found, here: ["has Python 2.7"] if found.python == "2.7.1" else [])
    submission = submission_of(tmp_path, pack="../p.tar", requirements="r.txt")
    found, made = with_environment(submission, print)
    pack, file = str(tmp_path.parent / "p.tar"), tmp_path / "r.txt"
    assert (found.wants.pack, found.wants.requirements) == (pack, str(file))
    assert made == Environment(pack, file, ("a @ b",)) and lines == [file]

    job_dir = tmp_path / "job-dir"
    job_dir.mkdir()
    (tmp_path.parent / "p.tar").touch()
    (job_dir / PACKS_FILE).write_text(f"{hashlib.sha256().hexdigest()}  {pack}\n")
    again = submission_of(tmp_path, pack="../p.tar", requirements="r.txt")
    resumed, made = with_environment_again(again, found, job_dir, print)
    assert (resumed.wants, made) == (found.wants, Environment(is_kept=True))
    assert lines == [file]
    with pytest.raises(UserError, match="are those of the job's first submission"):
        with_environment_again(submission_of(tmp_path, pack="../p.tar"), found, job_dir, print)
    with pytest.raises(UserError, match=r"resources\.pack: stays what it was"):
        with_environment_again(submission_of(tmp_path, requirements="r.txt"), found, job_dir, print)
    (tmp_path.parent / "p.tar").write_text("another")
    with pytest.raises(UserError, match="is another file than the one that the job had"):
        with_environment_again(again, found, job_dir, print)
    (tmp_path.parent / "p.tar").unlink()
    with pytest.raises(UserError, match="which the job had, is gone"):
        with_environment_again(again, found, job_dir, print)
    (job_dir / PACKS_FILE).unlink()
    os.mkfifo(job_dir / PACKS_FILE)
    with pytest.raises(UserError, match="which the job had, is gone"):
        with_environment_again(again, found, job_dir, print)

    monkeypatch.setattr(environment, "read_manifest", lambda path: replace(manifest, python="2.7.1"))
    with pytest.raises(UserError, match=r"has Python 2\.7"):
        with_environment(submission, print)


def test_the_local_queue_starts_from_the_environment_itself(tmp_path: Path, lines: list[Path]) -> None:
    said: list[str] = []
    found, made = with_environment(submission_of(tmp_path, "local", pack="auto", requirements="r.txt"), said.append)
    assert found.wants.pack == made.pack == "none" and made.packages == ("a @ b",)
    assert said == ["resources.pack: is not used: on this machine ranks start from the environment itself"]


def test_what_goes_before_a_pack_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("PYTHONPATH", "/my code")
    with_environment(submission_of(tmp_path, pack="auto"), said.append)
    assert said[0].startswith("warning: resources.pack: PYTHONPATH goes before the pack")
    monkeypatch.delenv("PYTHONPATH")
    with_environment(submission_of(tmp_path, pack="auto", environment={"PYTHONPATH": "/b"}), said.append)
    assert said[1] == said[0]
    with_environment(submission_of(tmp_path, pack="auto"), said.append)
    monkeypatch.setenv("PYTHONPATH", "/my code")
    with_environment(submission_of(tmp_path), said.append)
    assert len(said) == 2


def test_a_pack_of_another_python_or_version_is_refused() -> None:
    here = Installation("/v/bin/python", "3.11.7", "0.1.0", "/v/hpc_train", "a" * 32, copied=False)
    manifest = Manifest(1, "0.1.0", "3.11.2", "x86_64", "2.36", None, "/v", 1, 1, "0" * 64, "a" * 32)
    assert environment.unfit(manifest, here) == []
    first, second = environment.unfit(replace(manifest, hpc_train="0.2.0", python="3.12.7"), here)
    assert first.startswith("has hpc_train 0.2.0, and this is 0.1.0: make it again")
    assert second.startswith("has Python 3.12.7, and this is 3.11.7: ")
    (other,) = environment.unfit(replace(manifest, code="b" * 32), here)
    assert other.startswith("has other code of hpc_train (bbbbbbbb) than this (aaaaaaaa): make it again")


def test_a_job_that_takes_this_version_has_a_pack_of_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest(1, "0.1.0", "3.11.7", "x86_64", "2.36", None, "/v", 1, 1, "0" * 64, "a" * 32)
    monkeypatch.setattr(environment, "read_manifest", lambda path: manifest)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pack, job_dir = tmp_path / "p.tar", tmp_path / "job-dir"
    job_dir.mkdir()
    pack.touch()
    (job_dir / PACKS_FILE).write_text(f"{hashlib.sha256().hexdigest()}  {pack}\n")
    had = replace(submission_of(tmp_path, pack="auto"), installation=this_installation())
    said: list[str] = []
    assert with_environment_again(had, had, job_dir, said.append)[1] == Environment("auto")
    assert "has another hpc_train (aaaaaaaa) than" in said[0] and said[0].endswith("a new one is made")
    kept = replace(had, installation=replace(this_installation(), fingerprint="a" * 32))
    assert with_environment_again(kept, kept, job_dir, print)[1] == Environment(is_kept=True)
    with pytest.raises(UserError, match=r"auto makes a pack of .* and the job goes on with"):
        with_environment_again(kept, replace(kept, resources={**kept.resources, "pack": "none"}), job_dir, print)
