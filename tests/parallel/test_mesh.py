"""Models whose layers are divided among ranks, and jobs that train them, against whole ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ranks import train
from tests.support import REPOSITORY, Job, run_ranks

PROGRAMS = REPOSITORY / "tests" / "parallel" / "programs"


@pytest.mark.parametrize(("carrier", "ranks"), [("mpi", 1), ("horovod", 2), ("mpi", 4)])
def test_divided_models_train_as_whole_ones(carrier: str, ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAMS / "mesh.py", carrier], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == ranks * sum(ranks % model == 0 for model in (1, 2, 4))


def test_jobs_with_meshes_come_to_the_same_and_go_on_with_other_ones(tmp_path: Path) -> None:
    for ranks, part in ((0, "whole"), (4, "resumed")):
        done = run_ranks(ranks, [PROGRAMS / "mesh_jobs.py", tmp_path, part], tmp_path)
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == 3
    assert "run.mesh.model: 2 -> None" in done.stdout


def test_jobs_with_meshes_begin_with_weights_from_elsewhere_or_are_refused(tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAMS / "mesh_jobs.py", tmp_path, "begun"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is fine") == 5


MODEL = """
import keras
import hpc_train as ht

def build_model(params):
    inputs = keras.Input((8,))
    hidden = ht.parallel.ColumnDense(16, "tanh", kernel_regularizer="l2")(inputs)
    model = keras.Model(inputs, ht.parallel.RowDense(4)(hidden))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model
"""


def test_a_job_file_with_a_mesh_trains_and_is_evaluated_as_one_without(make_job: Callable[..., Job]) -> None:
    found = {}
    for name, ranks, run in (("divided", 2, {"mesh": {"model": 2}}), ("whole", 0, {})):
        job = make_job(name, model=MODEL, run={"tf_random_seed": 3, "accumulate_steps": 2, **run})
        done = train(job, ranks, fresh=ranks > 0)  # Horovod makes its groups where it starts
        assert done.returncode == 0, done.stderr
        records = [json.loads(line) for line in (job.job_dir / "metrics.jsonl").read_text().splitlines()]
        found[name] = [record for record in records if record.get("kind", record.get("type")) == "eval"][-1]
        if ranks:
            assert "global batch 16 (16 x 1 copy on 2 ranks)" in done.stdout
    assert found["divided"]["loss"] == pytest.approx(found["whole"]["loss"], rel=1e-4)


def test_a_mesh_that_does_not_go_with_the_ranks_is_refused_before_anything_is_written(
    make_job: Callable[..., Job],
) -> None:
    job = make_job(run={"mesh": {"data": 4, "model": 2}})
    done = train(job, 2)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("hpc-train: error:") == 1
    assert "run.mesh: data: 4, model: 2 does not go with 2 ranks; start 8 ranks" in done.stderr
    assert "Traceback" not in done.stderr
    assert not job.job_dir.exists()
