from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hpc_train as ht


def test_names_and_defaults_are_estimators() -> None:
    run = ht.RunConfig("runs/x")
    assert (run.save_checkpoints_steps, run.checkpoint_interval_secs, run.keep_checkpoint_max) == (None, 600, 5)
    assert (run.save_summary_steps, run.log_step_count_steps, run.tf_random_seed) == (100, 100, None)
    evaluation = ht.EvalSpec(ht.HDF5Input("a"))
    assert (evaluation.steps, evaluation.start_delay_secs, evaluation.throttle_secs) == (100, 120, 600)
    assert ht.TrainSpec(lambda context: None).max_steps is None


def test_specs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ht.RunConfig("x").keep_checkpoint_max = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ht.HDF5Input("a", batch_size=0), "batch_size"),
        (lambda: ht.HDF5Input("a", batchsize=3), "batchsize"),
        (lambda: ht.HDF5Input("a", shuffle="all"), "'global', 'block' or 'none'"),
        (lambda: ht.HDF5Input("a", features=["x", "x"]), "more than once"),
        (lambda: ht.HDF5Input("a", features="x", label="x"), "more than once"),
        (lambda: ht.HDF5Input("a", features={"a": "x", "b": "x"}), "names x more than once"),
        (lambda: ht.HDF5Input("a", features={"a": "x"}, label={"b": "x"}), "names x more than once"),
        (lambda: ht.HDF5Input("a", features={}), "features: {} is not allowed; allowed: one dataset at least"),
        (lambda: ht.HDF5Input("a", features=[]), r"features: \[\] is not allowed; allowed: one dataset at least"),
        (lambda: ht.HDF5Input("a", features={"a": 3}), "features: {'a': 3} is not allowed; allowed: a dataset's name"),
        (lambda: ht.HDF5Input("a", label={"": "x"}), "a mapping of the model's names to those of datasets, as in"),
        (lambda: ht.HDF5Input("a", label=3), "label: 3 is not allowed; allowed: a dataset's name, a list of names"),
        (lambda: ht.TrainSpec(ht.HDF5Input("a"), max_steps=0), "max_steps"),
        (lambda: ht.TrainSpec(ht.HDF5Input("a"), max_steps=-3), "max_steps"),
        (lambda: ht.TrainSpec(ht.HDF5Input("a")), "never end"),
        (lambda: ht.TrainSpec(3, max_steps=1), "input_fn|callable"),
        (lambda: ht.RunConfig("x", save_checkpoints_steps=1, save_checkpoints_secs=1), "not both"),
        (lambda: ht.RunConfig("x", keep_checkpoint_max=-1), "keep_checkpoint_max"),
        (lambda: ht.RunConfig("x", allreduce="mpi-gpu", compression="fp16"), "`compression` exclude each other"),
        (lambda: ht.RunConfig("x", allreduce="mpi-gpu", shard_optimizer=True), "`shard_optimizer` exclude each other"),
        (lambda: ht.EvalSpec(ht.HDF5Input("a"), throttle_secs=-1), "throttle_secs"),
        (lambda: ht.EvalSpec(ht.HDF5Input("a"), exporters=[ht.FinalExporter(), ht.FinalExporter()]), "different names"),
        (lambda: ht.EvalSpec(ht.HDF5Input("a", epochs=2)), "reads its rows once"),
        (lambda: ht.FinalExporter("../x"), "a letter, then letters"),
        (lambda: ht.Estimator(3, ht.RunConfig("x")), "model_fn: 3 is not allowed; allowed: a function"),
        (lambda: ht.Estimator(len, "x"), "RunConfig"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_importing_takes_milliseconds_and_no_tensorflow() -> None:
    code = """
import sys, time
start = time.process_time()
import hpc_train
took = time.process_time() - start
heavy = {"tensorflow", "keras", "mpi4py", "horovod", "h5py", "numpy", "pydantic"} & set(sys.modules)
assert not heavy, heavy
print(took)
hpc_train.HDF5Input
assert not {"tensorflow", "keras", "mpi4py", "horovod"} & set(sys.modules)
"""
    took = [float(subprocess.check_output([sys.executable, "-c", code], text=True, timeout=600)) for _ in range(5)]
    assert min(took) < 0.1


def test_public_names_resolve() -> None:
    for name in ht.__all__:
        assert getattr(ht, name).__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ht.Nothing  # type: ignore[attr-defined]


def test_a_key_of_run_takes_two_files() -> None:
    """`report`, say: where it is defined, and the place that acts on it; the rest follows from its definition."""
    package = Path(ht.__file__).parent
    naming = re.compile(r"^    report: bool|\bconfig\.report\b|[\"']report[\"']: *(true|false)", re.MULTILINE)
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if naming.search(path.read_text())}
    assert found == {"config/run_config.py", "engine/run_log.py"}
    assert (ht.RunConfig("x").report, ht.RunConfig("x", report=False).report) == (True, False)
    with pytest.raises(ValueError, match="report"):
        ht.RunConfig("x", report=3)
