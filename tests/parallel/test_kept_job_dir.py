"""A job-dir of version 0.1.0 (tests/data/job_dir_0_1): read, evaluated, exported and resumed by this version."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from hpc_train.jobdir.job_dir import JobDir
from tests.support import LIMIT_SECS, REPOSITORY, run_program

KEPT = REPOSITORY / "tests" / "data" / "job_dir_0_1"
MADE_IN = "/jobs/tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that has moved here."""
    folder = tmp_path_factory.mktemp("kept") / "tiny"
    shutil.copytree(KEPT, folder)
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".yaml"):
            path.write_text(path.read_text().replace(MADE_IN, str(folder)))
    return folder


def test_it_is_read(folder: Path) -> None:
    job_dir = JobDir(folder / "run")
    assert (job_dir.status()["state"], job_dir.checkpoints()) == ("succeeded", [10, 20])
    assert job_dir.job().value["train"]["max_steps"] == 20
    assert job_dir.environment()["hpc_train"] == "0.1.0"
    evaluations = job_dir.evaluations()
    assert {kind: list(steps) for kind, steps in evaluations.items()} == {"eval": [10, 20], "eval_again": [10, 20]}
    assert job_dir.evaluation_of(1795320760.278416, "eval") == evaluations["eval"][20]
    history = job_dir.history()
    assert [(restart.step, restart.reason) for restart in history.restarts] == [(10, "succeeded: max_steps")]
    assert [record.step for record in history.series("train")] == [5, 10, 15, 20]
    assert history.exports == {"best": {"1795320760"}}


def test_the_commands_take_it(folder: Path) -> None:
    run, out = folder / "run", folder / "out"
    commands = [
        ["describe", run],
        ["checkpoints", run, "--verify"],
        ["report", run, "--markdown", "--out", folder / "before.md"],
        ["evaluate", run, "--step", 20, "--out", out],
        ["export", run, "--out", folder / "exported"],
        ["train", folder / "job.yaml", "--job-dir", run, "--set", "train.max_steps=40"],
    ]
    program = REPOSITORY / "tests" / "parallel" / "programs" / "commands.py"
    words = [json.dumps([str(word) for word in command]) for command in commands]
    done = run_program([sys.executable, str(program), *words], folder, LIMIT_SECS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCEEDED" in done.stdout and "going on from step 20 to step 40" in done.stdout + done.stderr

    assert "| steps | 20 of 20 |" in (folder / "before.md").read_text()
    then, now = JobDir(run).evaluations(20), JobDir(out).evaluations()
    assert {kind: list(steps) for kind, steps in now.items()} == {"eval": [20], "eval_again": [20]}
    for kind, steps in now.items():
        assert steps[20] == pytest.approx(then[kind][20], rel=1e-4)
    (exported,) = (folder / "exported").iterdir()
    assert json.loads((exported / "hpc_train.json").read_text())["metrics"] == then["eval"][20]

    resumed = JobDir(run)
    assert resumed.checkpoints() == [10, 20, 30, 40]
    assert (resumed.status()["state"], resumed.status()["step"]) == ("succeeded", 40)
    assert list(resumed.evaluations()["eval"]) == [10, 20, 30, 40]
    assert len(resumed.history().restarts) == 2
