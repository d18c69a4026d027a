"""The model of a job, from its job file or from what its job-dir says; none of its code is run for that."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_train import Estimator, EvalSpec, HDF5Input, RunConfig, TrainSpec, UserError, load_job
from hpc_train.config.yaml_loader import dump_yaml
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.model.job_model import JobModel, imported_for, job_in_job_dir, kind_of_job, load_function
from hpc_train.model.program_job import ProgramJob
from hpc_train.training.job_description import describe
from tests.support import REPOSITORY, Job, make_job_in, run_program


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job file's job-dir as training leaves it."""
    job = make_job_in(tmp_path, model="raise AssertionError('imported')", params={"units": 4}, eval={"name": "held"})
    job.job_dir.mkdir()
    (job.job_dir / "job.yaml").write_text(dump_yaml(load_job(job.file).model_dump(mode="json")))
    return job


def model_in(job_dir: Path) -> JobModel:
    return JobModel.of_job(job_in_job_dir(JobDir(job_dir).job()), job_dir)


def test_the_job_file_and_the_job_dir_give_the_same_model(job: Job) -> None:
    found = model_in(job.job_dir)
    assert found == JobModel.of_job(load_job(job.file), job.job_dir, job.folder)
    assert (found.job, found.model, found.kind) == ("tiny", f"{job.folder}/model.py:build_model", "eval_held")
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
    assert (found.job, found.model, found.params) == (None, f"{__name__}:a_function", {"units": 4})
    assert (found.config.model_dir, found.config.tf_random_seed) == (tmp_path, 3)
    (source,) = found.inputs
    assert (source.shards, source.batch_size, found.kind) == ((f"{Path.cwd()}/train-*.h5",), 8, "eval_held")


def test_the_evaluations_of_a_program_are_read_by_functions_or_from_shards(tmp_path: Path) -> None:
    config = RunConfig(model_dir=tmp_path, tf_random_seed=3)
    train, more = HDF5Input("train.h5"), HDF5Input("more.h5", batch_size=4, label=())
    specs = [EvalSpec(a_function, steps=7, hooks=["a:b"]), EvalSpec(more, name="more", throttle_secs=1)]
    described = describe(Estimator(a_function, config), TrainSpec(train, max_steps=4), specs)
    (tmp_path / "job.yaml").write_text(dump_yaml(json.loads(json.dumps(described, default=str))))
    job = job_in_job_dir(JobDir(tmp_path).job())
    again = kind_of_job(dumped := job.model_dump(mode="json")).model_validate(dumped)
    for found in (job, again):
        assert isinstance(found, ProgramJob)
        asked: list[str] = []
        first, second = found.eval_specs(lambda name: asked.append(name) or a_function)  # type: ignore[func-returns-value]
        assert asked == [f"{__name__}:a_function"]
        assert (first.input_fn, first.steps, first.name, first.hooks) == (a_function, 7, None, ())
        assert (second.name, second.throttle_secs, second.steps) == ("more", 1, 100)
        assert (second.input_fn.batch_size, second.input_fn.label) == (4, ())  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"--set eval.stps: eval.stps: unknown key"):
        job_in_job_dir(JobDir(tmp_path).job(), ["eval.stps=3"])


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("__main__:build", "inside a session without a file"),
        ("train:main.<locals>.build", "inside another function or class"),
        ("/a/train.py:Models.build", "inside another function or class"),
    ],
)
def test_a_function_that_no_other_process_finds_is_refused(tmp_path: Path, function: str, why: str) -> None:
    described = describe(
        Estimator(a_function, RunConfig(tmp_path)), TrainSpec(HDF5Input("x"), max_steps=4), [EvalSpec(a_function)]
    )
    plain = json.loads(json.dumps(described, default=str))
    (tmp_path / "job.yaml").write_text(dump_yaml({**plain, "model": function}))
    with pytest.raises(UserError, match=f"model function is {function}, {why}"):
        model_in(tmp_path)
    plain["data"]["eval"] = f"function {function}"
    (tmp_path / "job.yaml").write_text(dump_yaml(plain))
    job = job_in_job_dir(JobDir(tmp_path).job())
    assert isinstance(job, ProgramJob)
    with pytest.raises(UserError, match=f"input_fn is {function}, {why}"):
        job.eval_specs(lambda name: a_function)


PROGRAM = """
import sys
sys.path.insert(0, {site!r})
import json
import hpc_train as ht
from beside import build as beside
from hpc_train.training.job_description import describe

def build(params): ...

{tail}
"""


@pytest.mark.parametrize("how", [["train.py"], ["-m", "train"]])
def test_the_functions_of_a_program_are_named_by_their_files(tmp_path: Path, how: list[str]) -> None:
    names = "print(json.dumps([name_of(f) for f in (build, beside, ht.train_and_evaluate, json.dumps)]))"
    tail = f"from hpc_train.config.functions import name_of\n{names}"
    (tmp_path / "train.py").write_text(PROGRAM.format(site=str(REPOSITORY), tail=tail))
    (tmp_path / "beside.py").write_text("def build(params): ...\n")
    done = run_program([sys.executable, *how], tmp_path)
    program = f"{tmp_path}/train.py" if how == ["train.py"] else "train"
    assert json.loads(done.stdout) == [
        f"{program}:build",
        f"{tmp_path}/beside.py:build",
        "hpc_train.training.trainer:train_and_evaluate",
        "json:dumps",
    ], done.stderr


def test_a_file_that_trains_when_it_is_imported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import hpc_train as ht\n"
        "def build(params): ...\n"
        "def run():\n"
        "    config = ht.RunConfig('runs/x')\n"
        "    train = ht.TrainSpec(ht.HDF5Input('x.h5'), max_steps=1)\n"
        "    ht.train_and_evaluate(ht.Estimator(build, config), train, ht.EvalSpec(ht.HDF5Input('x.h5')))\n"
        "run()\n"
    )
    with pytest.raises(UserError, match=r"its file calls train_and_evaluate when it is imported.*__main__"):
        load_function(f"{tmp_path}/train.py:build", tmp_path)
    assert imported_for.get() is None


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
