"""The model of a job, from its job file or from what its job-dir says; none of its code is run for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_train import Estimator, EvalSpec, HDF5Input, RunConfig, TrainSpec, UserError, load_job
from hpc_train.config.yaml_loader import dump_yaml
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.model.job_model import JobModel, job_in_job_dir
from hpc_train.training.job_description import describe
from tests.support import Job, make_job_in


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job file's job-dir as training leaves it."""
    job = make_job_in(tmp_path, model="raise AssertionError('imported')", params={"units": 4}, eval={"name": "held"})
    job.job_dir.mkdir()
    (job.job_dir / "job.yaml").write_text(dump_yaml(load_job(job.file).model_dump(mode="json")))
    return job


def model_in(job_dir: Path) -> JobModel:
    return JobModel.of_document(JobDir(job_dir).job(), job_dir)


def test_the_job_file_and_the_job_dir_give_the_same_model(job: Job) -> None:
    found = model_in(job.job_dir)
    assert found == JobModel.of_job(load_job(job.file), job.job_dir, job.folder)
    assert (found.job, found.function, found.kind) == ("tiny", f"{job.folder}/model.py:build_model", "eval_held")
    assert found.params == {"units": 4} and [i.batch_size for i in found.inputs] == [16, 16]
    assert (found.config.model_dir, found.code) == (job.job_dir, job.folder)
    with pytest.raises(AssertionError, match="imported"):
        found.estimator().model_fn({})


def test_code_that_was_copied_goes_first(job: Job) -> None:
    (job.job_dir / "code").mkdir()
    assert model_in(job.job_dir).code == job.job_dir / "code"


def a_function(anything: Any) -> Any:
    raise AssertionError


def test_a_job_of_a_program_is_described_by_its_job_dir(tmp_path: Path) -> None:
    config = RunConfig(model_dir=tmp_path / "elsewhere", tf_random_seed=3, profile_steps=(2, 4))
    train, held = HDF5Input("train-*.h5", batch_size=8, seed=1), EvalSpec(a_function, name="held")
    estimator = Estimator(a_function, config, {"units": 4})
    described = describe(estimator, TrainSpec(train, max_steps=4), [held])
    (tmp_path / "job.yaml").write_text(dump_yaml({**described, "run": {**described["run"], "model_dir": "/gone"}}))
    found = model_in(tmp_path)
    assert (found.job, found.function, found.params) == (None, f"{__name__}:a_function", {"units": 4})
    assert (found.config.model_dir, found.config.tf_random_seed) == (tmp_path, 3)
    assert (found.inputs, found.kind) == ((train,), "eval_held")


def test_a_description_that_cannot_be_used_is_told_by_line(job: Job) -> None:
    path = job.job_dir / "job.yaml"
    path.write_text(path.read_text().replace("on_nan: halt", "on_nan: hlt"))
    with pytest.raises(UserError, match=r"job.yaml:\d+: run.on_nan: 'hlt' is not allowed.*\n.*another version"):
        model_in(job.job_dir)
    assert job_in_job_dir(JobDir(job.job_dir).job(), ["run.on_nan=skip"]).run.on_nan == "skip"
    with pytest.raises(UserError, match=r"--set train.max_steps: train.max_steps: 'x' is not allowed") as told:
        job_in_job_dir(JobDir(job.job_dir).job(), ["run.on_nan=skip", "train.max_steps=x"])
    assert "another version" not in str(told.value)
    path.write_text("model: model:build\nrun: {model_dir: x, on_nan: hlt}\n")
    with pytest.raises(UserError, match=r"job.yaml:2: run.on_nan: 'hlt' is not allowed"):
        model_in(job.job_dir)
