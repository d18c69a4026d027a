"""Input on real ranks: compressed shards, map_fn from a job file, the wait for input, a changed order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
import yaml

from tests.ranks import train, train_in_turn
from tests.support import Job, records_of, variables

MakeJob = Callable[..., Job]

INPUT = """
import time
import tensorflow as tf

def augment(x, y, seed):
    return x + tf.random.stateless_normal(tf.shape(x), seed, stddev=0.1), y

def slow(x, y):
    return tf.numpy_function(lambda x: time.sleep(0.05) or x, [x], tf.float32, stateful=False), y

def fixed(x, y):
    x, y = slow(x, y)
    return tf.ensure_shape(x, [None, 8]), y
"""


def compress(folder: Path) -> None:
    for path in folder.glob("train-*.h5"):
        with h5py.File(path, "a") as file:
            for name in ("x", "y"):
                array = file[name][()]
                del file[name]
                file.create_dataset(name, data=array, chunks=(8, *array.shape[1:]), compression="gzip", shuffle=True)


def records(job: Job) -> list[dict]:
    return records_of(job.job_dir)


def test_compressed_blocks_with_a_map_fn_resume_to_the_bit(make_job: MakeJob) -> None:
    job, parts = (
        make_job(
            name,
            data={"train": {"shuffle": "block", "map_fn": "input.py:augment"}, "eval": {"map_fn": "input.py:augment"}},
            run={"save_summary_steps": 5},
            train={"max_steps": max_steps},
        )
        for name, max_steps in (("whole", 20), ("parts", 7))
    )
    for folder in (job.folder, parts.folder):
        (folder / "input.py").write_text(INPUT)
        compress(folder / "data")
    done = train_in_turn([parts, job], 2)
    assert done.returncode == 0, done.stderr
    assert "AutoGraph" not in done.stderr
    assert "of the time waiting for input" in done.stdout.split("next job\n")[1]
    waits = [r["input_wait"] for r in records(job) if r["kind"] == "train"]
    assert len(waits) == 4
    assert all(0 <= wait <= 1 for wait in waits)
    assert 0 <= json.loads((job.job_dir / "status.json").read_text())["input_wait"] <= 1
    began = json.loads((job.job_dir / "data.json").read_text())
    assert [shard["rows"] for shard in began["train"]] == [96, 96]

    text = yaml.safe_load(parts.file.read_text())
    parts.file.write_text(yaml.safe_dump({**text, "train": {"max_steps": 20}}))
    done = train(parts, 2)
    assert done.returncode == 0, done.stderr
    found = variables(parts.job_dir, 20)
    for name, value in variables(job.job_dir, 20).items():
        assert value.tobytes() == found[name].tobytes(), name

    parts.file.write_text(yaml.safe_dump({**text, "train": {"max_steps": 22}, "data": _seeded(text, 9)}))
    done = train(parts, 1)
    assert done.returncode == 0, done.stderr
    assert "the order of rows has changed: training goes on with a whole epoch of it" in done.stdout


def _seeded(text: dict, seed: int) -> dict:
    return {**text["data"], "train": {**text["data"]["train"], "seed": seed}}


@pytest.mark.parametrize("ranks", [0, 2])
def test_waiting_for_input_is_told_once_with_what_helps(make_job: MakeJob, ranks: int) -> None:
    job = make_job(
        data={"train": {"map_fn": "input.py:fixed"}},
        run={"save_summary_steps": 20, "save_checkpoints_steps": 100},
        train={"max_steps": 80},  # the first 16 batches are ready before the first step is built
    )
    (job.folder / "input.py").write_text(INPUT)
    done = train(job, ranks)
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stdout.splitlines() if "waited for input" in line]
    assert len(warnings) == 1, done.stdout
    assert "what helps: a lighter map_fn" in warnings[0]
    assert max(r["input_wait"] for r in records(job) if r["kind"] == "train") > 0.1


def test_a_shard_overwritten_while_training_ends_the_job_with_its_name(make_job: MakeJob) -> None:
    model = """
import os
from pathlib import Path
import keras

def cut():
    for path in Path(__file__).parent.glob("data/train-*.h5"):
        os.truncate(path, 3000)

class Cut(keras.layers.Layer):
    def call(self, x, training=False):
        import tensorflow as tf
        if training:
            tf.py_function(cut, [], [])
        return x

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), Cut(), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss)
    return model
"""
    # More than is kept in memory, and more steps than are read ahead.
    job = make_job(
        train_rows=[600_000, 600_000],
        model=model,
        data={"train": {"batch_size": 2000}},
        run={"save_checkpoints_steps": 5000},
        train={"max_steps": 5000},
    )
    done = train(job, 2)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "train-0.h5" in done.stderr or "train-1.h5" in done.stderr, done.stderr
    assert "ends at byte 3000" in done.stderr
    assert json.loads((job.job_dir / "status.json").read_text())["state"] == "failed"
