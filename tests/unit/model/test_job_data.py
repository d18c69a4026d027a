"""Data that has moved: `--data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_train import Estimator, EvalSpec, HDF5Input, RunConfig, TrainSpec, UserError, load_job
from hpc_train.config.yaml_loader import dump_yaml
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.model.job_data import elsewhere, input_names, with_data
from hpc_train.model.job_model import job_in_job_dir
from hpc_train.training.job_description import describe
from tests.support import make_job_in


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new [1]").mkdir()
    for name in ("a.h5", "b.h5", "new [1]/c.h5"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def job_of(folder: Path, **sections: Any) -> Any:
    return load_job(make_job_in(folder / "job", **sections).file)


def shards(job: Any) -> dict[str, tuple[str, ...]]:
    return {name: source.shards for name, source in input_names(job).items()}


def test_a_pattern_replaces_the_shards_of_the_set(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(here)
    assert shards(with_data(job, ["?.h5"])) == {"eval": (f"{here}/?.h5",)}
    assert shards(with_data(job, ["a.h5", "eval=b.h5"])) == {"eval": (f"{here}/a.h5", f"{here}/b.h5")}
    assert with_data(job, ["a.h5"]).data.train == job.data.train and with_data(job, []) is job
    monkeypatch.chdir(here / "new [1]")
    assert shards(with_data(job, ["c.h5"])) == {"eval": (f"{here}/new [[]1]/c.h5",)}, "the folder is no pattern"


def test_of_several_sets_each_is_named(here: Path) -> None:
    job = job_of(here, eval={"name": "clean"}, evals={"noisy": {"data": {"shards": "noisy.h5"}}})
    found = shards(with_data(job, ["noisy=b.h5", "clean=a.h5"]))
    assert found == {"clean": (f"{here}/a.h5",), "noisy": (f"{here}/b.h5",)}
    assert shards(with_data(job, ["b.h5"], "noisy"))["noisy"] == (f"{here}/b.h5",)
    for given, said in (
        (["a.h5"], "several evaluation sets: give NAME=a.h5; clean, noisy"),
        (["nosy=a.h5"], "no evaluation set 'nosy'; did you mean `noisy`? it has: clean, noisy"),
        (["noisy=x*.h5"], "--data: x*.h5 matches no file"),
    ):
        with pytest.raises(UserError) as refused:
            with_data(job, given)
        assert said in str(refused.value)


def read(anything: Any) -> Any:
    raise AssertionError


def test_a_job_of_a_program_has_its_data_replaced_unless_a_function_reads_it(here: Path) -> None:
    specs = [EvalSpec(HDF5Input("old.h5", batch_size=4)), EvalSpec(read, name="more")]
    train = TrainSpec(HDF5Input("train.h5"), max_steps=4)
    described = describe(Estimator(read, RunConfig(here)), train, specs)
    (here / "job.yaml").write_text(dump_yaml({**described, "run": {"model_dir": "/gone"}}))
    job = job_in_job_dir(JobDir(here).job())
    changed: Any = with_data(job, ["eval=a.h5"])
    assert (changed.data.eval.shards, changed.data.eval.batch_size) == ((f"{here}/a.h5",), 4)
    with pytest.raises(UserError, match=r"the evaluation set more is read by a function .*:read, not from shards"):
        with_data(job, ["more=a.h5"])


def test_what_is_not_found_is_told_with_what_to_type(here: Path) -> None:
    source = HDF5Input((f"{here}/?.h5", "/gone/data/eval-*.h5"))
    assert elsewhere(source, "clean", ["clean"]).endswith("--data 'PATH/eval-*.h5'")
    assert elsewhere(source, "clean", ["clean", "noisy"]).endswith("--data 'clean=PATH/eval-*.h5'")
    assert elsewhere(HDF5Input("a.h5"), "clean", ["clean"]) == ""
