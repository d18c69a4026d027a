"""Jobs that go on with other numbers of ranks, and the rows of their steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hpc_train.jobdir.job_dir import JobDir
from hpc_train.report.numbers import global_batch
from tests.ranks import hpc_train
from tests.support import Job, records_of, variables

DOUBLE = """
import keras
from keras import layers

def build_model(params):
    keras.config.set_dtype_policy("float64")
    try:
        inputs = keras.Input((8,))
        hidden = layers.Dense(16, "tanh")(inputs)
        model = keras.Model(inputs, layers.Dense(4)(hidden))
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64"))
    return model
"""
KEPT = {"keep_global_batch": True, "class_weight": {"0": 1.0, "1": 3.0}}


def train(job: Job, ranks: int, steps: int, refused: bool = False) -> str:
    arguments = ["train", str(job.file), "--job-dir", str(job.job_dir), "--set", f"train.max_steps={steps}"]
    done = hpc_train(arguments, ranks, job.folder)
    assert done.returncode == (2 if refused else 0), done.stderr
    return done.stdout + done.stderr


def test_a_kept_global_batch_gives_the_same_on_any_number_of_ranks(make_job: Callable[..., Job]) -> None:
    data = {"train": {"batch_size": 4}}
    kept, whole = (make_job(name, model=DOUBLE, data=data, train=KEPT) for name in ("kept", "whole"))
    assert "global batch 16 (4 x 4 ranks)" in train(kept, 4, 10)
    on_two = train(kept, 2, 20)
    assert "global batch 16 (8 in 2 pieces x 2 ranks)" in on_two
    assert "changed at step 10: batch_of_a_rank: 4 rows -> 8 rows in 2 pieces" in on_two
    assert "global batch 16 (16 in 4 pieces x 1 ranks)" in train(kept, 0, 30)
    assert "global batch 16 (4 x 4 ranks)" in train(kept, 4, 40)
    assert "batch_of_a_rank" not in train(kept, 2, 40), "nothing is left to train"
    train(whole, 4, 40)
    mine, its = variables(kept.job_dir, 40), variables(whole.job_dir, 40)
    for name, values in its.items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-10, atol=1e-12, err_msg=name)
    assert any(values.dtype == np.float64 and values.ndim for values in its.values())
    assert [record.get("global_batch") for record in records_of(kept.job_dir, "start")][:4] == [16] * 4
    assert global_batch(JobDir(kept.job_dir).history()) == 16


def test_a_global_batch_that_is_another_one_is_told(make_job: Callable[..., Job]) -> None:
    odd = make_job("odd", data={"train": {"batch_size": 15}}, train={"keep_global_batch": True})
    train(odd, 0, 10)
    said = train(odd, 2, 20)
    assert (
        "from step 10 on a step has 16 rows of all ranks, before 15: 15 rows cannot be divided evenly among 2" in said
    )
    assert "global batch 15 (15 x 1 ranks)" in train(odd, 0, 30)  # what the job began with
    own = make_job("own")
    train(own, 2, 10)
    assert "from step 10 on a step has 16 rows of all ranks, before 32: train.keep_global_batch keeps it" in train(
        own, 0, 20
    )
    record = next(record for record in records_of(own.job_dir, "change") if record["key"] == "global_batch")
    assert (record["before"], record["now"]) == ("32", "16")
    job = make_job("async", run={"strategy": "async"}, train={"keep_global_batch": True})
    assert "keep_global_batch is for `strategy: sync`" in train(job, 2, 10, refused=True)
