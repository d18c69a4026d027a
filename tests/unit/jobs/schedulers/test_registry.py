"""Which scheduler a job is for, and which one it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.jobs.record.status import JobRecord
from hpc_train.jobs.schedulers import SCHEDULERS, backend_named, backend_of, choose, scheduler
from tests.unit.jobs.submissions import a_submission

SLURM, LOCAL = {"HPC_TRAIN_BACKEND": "slurm"}, {"HPC_TRAIN_BACKEND": "local"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def chosen(asked: str | None, env: Mapping[str, str]) -> str:
    return choose(asked, env).name


def test_who_runs_a_job(programs: Path) -> None:
    assert chosen(None, {}) == chosen("local", SLURM) == chosen(None, LOCAL) == "local"
    for asked, env in ((None, SLURM), ("slurm", {}), ("slurm", LOCAL)):
        with pytest.raises(UserError, match=r"sbatch is not on PATH: .* or take --backend local"):
            choose(asked, env)
    (programs / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (programs / "sbatch").chmod(0o755)
    assert chosen(None, {}) == chosen("slurm", LOCAL) == chosen(None, SLURM) == "slurm"
    assert chosen("local", {}) == chosen(None, LOCAL) == "local"
    assert chosen(None, {"HPC_TRAIN_BACKEND": ""}) == "slurm"
    with pytest.raises(UserError, match="HPC_TRAIN_BACKEND: 'Slurm' is not allowed; allowed: slurm, local"):
        choose(None, {"HPC_TRAIN_BACKEND": "Slurm"})
    with pytest.raises(UserError, match="backend: 'pbs' is not allowed; allowed: slurm, local"):
        choose("pbs", {})


def test_each_scheduler_has_the_name_that_it_is_registered_by() -> None:
    assert [scheduler(name).name for name in SCHEDULERS] == list(SCHEDULERS)


def test_who_has_a_job(tmp_path: Path) -> None:
    for name in SCHEDULERS:
        assert backend_of(JobRecord(tmp_path, a_submission(backend=name), {})).name == name
    assert backend_of(JobRecord(tmp_path, None, {"job_id": "7"})).name == "slurm", "sbatch slurm/train.sh"
    assert backend_of(JobRecord(tmp_path, None, {"state": "running"})).name == "by hand"
    assert backend_named("by hand").words is None


def test_a_job_of_a_scheduler_of_another_version(tmp_path: Path) -> None:
    record = JobRecord(tmp_path, a_submission(backend="pbs"), {})
    backend = backend_of(record)
    seen = backend.query(record)
    assert (backend.name, backend.words, seen.phase) == ("pbs", "pbs job", "unasked")
    assert seen.note == "this version of hpc_train knows no scheduler 'pbs'"
