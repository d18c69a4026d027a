"""What is refused of studies whose trials are to run in jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.jobs.schedulers.slurm import queue
from hpc_train.tuning.drive import submit_drivers
from tests.studies import opened, study_in


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ("pack: auto", "resources.pack: is not for --as-jobs, whose jobs start from the environment"),
        ("requirements: r.txt", "resources.requirements: is not for --as-jobs"),
        ("workers: {}, chief: {}", "resources.chief: is not for --as-jobs"),
        ("nodes: 2", "resources.nodes: a trial runs on one node, and 2 are wanted"),
    ],
)
def test_what_jobs_of_a_study_cannot_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: str, said: str
) -> None:
    monkeypatch.setenv("HPC_TRAIN_BACKEND", "slurm")
    monkeypatch.setattr(queue, "is_here", lambda: True)
    folder = study_in(tmp_path / "study")
    with (folder.path / "code/job.yaml").open("a") as file:
        file.write(f"resources: {{tier: CUSTOM, {resources}}}\n")
    with pytest.raises(UserError, match=said):
        submit_drivers(opened(folder), 2, print)
    assert not (folder.path / "jobs").exists()
