from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.ranks import train
from tests.support import Job, run_ranks

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize("ranks", [0, 2])
def test_every_kind_of_bad_input(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAMS / "bad_input.py", tmp_path], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cases are fine") == max(ranks, 1)


def test_the_command_line_says_it_once_and_exits_with_2(make_job: Callable[..., Job]) -> None:
    data = yaml.safe_load(make_job().file.read_text())["data"]
    cases = [
        (2, {"train": {"max_steps": 0}, "modle": 1}, ["train.max_steps: 0 is not allowed", "did you mean `model`?"]),
        (0, {"data": {**data, "train": {"shards": "none-*.h5"}}}, ["no such shard"]),
        (0, {"model": "model.py:biuld"}, ["model.py has no function biuld; it has build_model"]),
        (2, {"model": "modle.py:build_model"}, ["there is no file"]),
        (0, {"model": "no_such_module:build_model"}, ["there is no module no_such_module"]),
        (0, {"model": "keras.py:build_model"}, ["hides the module keras; rename it"]),
    ]
    jobs = [make_job(f"job-{i}") for i in range(len(cases))]
    for job, (_, changes, _) in zip(jobs, cases, strict=True):
        job.file.write_text(yaml.safe_dump({**yaml.safe_load(job.file.read_text()), **changes}))
    for job, (ranks, _, said) in zip(jobs, cases, strict=True):
        done = train(job, ranks)
        assert done.returncode == 2, done.stderr
        errors = [line for line in done.stderr.splitlines() if "hpc-train: error:" in line]
        assert len(errors) == len(said), done.stderr
        for text in said:
            assert text in done.stderr
        assert "Traceback" not in done.stderr
        assert not job.job_dir.exists()


def test_a_script_says_it_once_and_exits_with_2(make_job: Callable[..., Job], tmp_path: Path) -> None:
    script = """
import sys
import hpc_train as ht
job = ht.load_job(sys.argv[1])
ht.train_and_evaluate(ht.Estimator(print, job.run_config("run")), job.train_spec(), job.eval_specs())
"""
    job = make_job("with [brackets] and ü", data={"train": {"label": "z"}})
    done = run_ranks(2, ["-c", script, job.file], tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("hpc-train: error:") == 1
    assert "has no dataset 'z'" in done.stderr
    assert "Traceback" not in done.stderr
