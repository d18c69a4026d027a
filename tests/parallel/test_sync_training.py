"""What synchronous training promises, on real ranks."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.ranks import train_in_turn
from tests.support import MODEL, STATEFUL_MODEL, Job, variables

MakeJob = Callable[..., Job]


EMBEDDING_MODEL = """
import keras
from keras import layers

def build_model(params):
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 2, "int32") % 10),
        layers.Embedding(10, 3),
        layers.Flatten(),
        layers.Dense(4),
    ])
    model.compile(
        optimizer=keras.optimizers.Adam(0.01, clipnorm=1.0, use_ema=True, ema_momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
"""

METRICS_MODEL = """
import keras
from keras import layers

def build_model(params):
    inputs = {"x": keras.Input((8,), name="x"), "z": keras.Input((2,), name="z")}
    hidden = layers.Concatenate()([layers.Dense(8, activation="tanh")(inputs["x"]), inputs["z"]])
    classes = layers.Dense(4, activation="softmax", name="y")(hidden)
    binary = layers.Dense(1, activation="sigmoid", name="b", kernel_regularizer="l2")(hidden)
    model = keras.Model(inputs, {"y": classes, "b": binary})
    model.compile(
        optimizer="sgd",
        loss={"y": "sparse_categorical_crossentropy", "b": "binary_crossentropy"},
        loss_weights={"y": 1.0, "b": 0.25},
        metrics={"y": ["accuracy"], "b": [keras.metrics.AUC(name="auc"), "mse", keras.metrics.F1Score(threshold=0.5)]},
    )
    return model
"""


def last_evaluation(job_dir: Path) -> dict[str, float]:
    return json.loads((job_dir / "status.json").read_text())["evaluation"]


def set_max_steps(job: Job, max_steps: int) -> None:
    text = yaml.safe_load(job.file.read_text())
    job.file.write_text(yaml.safe_dump({**text, "train": {"max_steps": max_steps}}))


def test_two_ranks_equal_one_with_twice_the_batch(make_job: MakeJob) -> None:
    models = {"sequential.dense.kernel": MODEL, "sequential.embedding.embeddings": EMBEDDING_MODEL}
    jobs = {}
    for ranks in (1, 2):
        data = {"train": {"batch_size": 64 // ranks}}
        jobs[ranks] = [
            make_job(f"{kernel}-{ranks}", model=model, train_rows=[300, 341], data=data)
            for kernel, model in models.items()
        ]
        done = train_in_turn(jobs[ranks], ranks if ranks > 1 else 0)
        assert done.returncode == 0, done.stderr
    for kernel, one, two in zip(models, jobs[1], jobs[2], strict=True):
        ours, theirs = variables(one.job_dir, 20), variables(two.job_dir, 20)
        assert ours.keys() == theirs.keys()
        start = variables(one.job_dir, 10)
        assert np.abs(ours[f"model/{kernel}"] - start[f"model/{kernel}"]).max() > 1e-3
        for name, array in ours.items():
            np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-5, err_msg=name)
        assert last_evaluation(one.job_dir)["loss"] == pytest.approx(last_evaluation(two.job_dir)["loss"], abs=1e-5)


def test_resuming_is_exact_to_the_bit_and_each_rank_drops_out_others(make_job: MakeJob, tmp_path: Path) -> None:
    """Dropout, batch normalisation, Adam's moments, the schedule and the order of rows all go on as they were."""
    orders = ("global", "block")

    def make(part: str) -> list[Job]:
        return [
            make_job(
                f"{part}-{shuffle}",
                model=STATEFUL_MODEL,
                data={"train": {"shuffle": shuffle}},
                train={"max_steps": 30 if part == "whole" else 15},
                run={"save_checkpoints_steps": 15},
            )
            for shuffle in orders
        ]

    whole, halves, seeds = make("whole"), make("halves"), job_that_shows_seeds(make_job, tmp_path)
    done = train_in_turn([*halves, seeds, *whole], 2, fresh=True, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    before = shown_seeds(tmp_path)
    for job, max_steps in ((seeds, 9), *((job, 30) for job in halves)):
        set_max_steps(job, max_steps)
    done = train_in_turn([seeds, *halves], 2, fresh=True, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("going on from step 15") == len(orders)
    for one, two in zip(whole, halves, strict=True):
        ours, theirs = variables(one.job_dir, 30), variables(two.job_dir, 30)
        assert ours.keys() == theirs.keys()
        assert any("moving_variance" in name for name in ours)
        assert any("seed_generator_state" in name for name in ours)
        for name, array in ours.items():
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    check_seeds(before, shown_seeds(tmp_path))


def job_that_shows_seeds(make_job: MakeJob, folder: Path) -> Job:
    """Each rank's seeds of dropout, and how often they were used, are in the file `folder/<rank>` at its end."""
    model = STATEFUL_MODEL.replace(
        "    return model",
        """    import atexit, json, os
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
    seeds = lambda: [v.numpy().tolist() for v in model.variables if v.name == "seed_generator_state"]
    atexit.register(lambda: open(f"{params['out']}/{rank}", "w").write(json.dumps(seeds())))
    return model""",
    )
    return make_job("seeds", model=model, params={"out": str(folder)}, train={"max_steps": 4})


def shown_seeds(folder: Path) -> list[list[list[int]]]:
    return [json.loads((folder / str(rank)).read_text()) for rank in (0, 1)]


def check_seeds(before: list[list[list[int]]], after: list[list[list[int]]]) -> None:
    """Two ranks' seeds differ, from the start and after a restart, and count the same calls."""
    (first, second), (later_first, later_second) = before, after
    assert first
    for ours, theirs in zip(first, second, strict=True):
        assert ours[0] != theirs[0]
        assert ours[1] == theirs[1] > 0
    assert [seed for seed, _ in first] == [seed for seed, _ in later_first]
    assert [seed for seed, _ in second] == [seed for seed, _ in later_second]
    assert first != later_first, "the counters go on"


def test_evaluation_does_not_depend_on_the_ranks(make_job: MakeJob) -> None:
    """61 test rows: full batches and a short one, as many ranks as batches, and more of them."""
    import h5py

    results = []
    for ranks, batch_sizes in ((0, [16]), (2, [16]), (3, [16, 21, 31])):
        jobs = []
        for batch_size in batch_sizes:
            job = make_job(
                f"on{ranks}-{batch_size}",
                train_rows=[200],
                test_rows=[40, 21],
                model=METRICS_MODEL,
                data={
                    "train": {"features": ["x", "z"], "label": ["y", "b"], "batch_size": 8},
                    "eval": {"features": ["x", "z"], "label": ["y", "b"], "batch_size": batch_size},
                },
            )
            for path in (job.folder / "data").iterdir():
                with h5py.File(path, "a") as file:
                    random = np.random.default_rng(5)
                    file["z"] = random.normal(size=(len(file["x"]), 2))
                    file["b"] = random.integers(0, 2, (len(file["x"]), 1), dtype=np.uint8)
            if results:  # the same weights for all: those of the first job
                first = results[0][0]
                job.job_dir.mkdir()
                shutil.copytree(first / "checkpoints", job.job_dir / "checkpoints")
            jobs.append(job)
        done = train_in_turn(jobs, ranks)
        assert done.returncode == 0, done.stderr
        results += [(job.job_dir, last_evaluation(job.job_dir)) for job in jobs]
    expected = results[0][1]
    f1 = "b_f1_score_0" if "b_f1_score_0" in expected else "b_f1_score"  # a vector or a number, by Keras's version
    assert set(expected) == {"step", "loss", "y_loss", "b_loss", "y_accuracy", "b_auc", "b_mse", f1}
    for _, metrics in results[1:]:
        assert metrics == pytest.approx(expected, rel=1e-6, abs=1e-7)


RECORDER_MODEL = """
import keras, numpy as np, os, tensorflow as tf

seen = []

class Recorder(keras.layers.Layer):
    def __init__(self, out):
        super().__init__()
        self.out = out

    def call(self, x, training=False):
        if training:
            tf.py_function(self.record, [x], [])
        return x

    def record(self, rows):
        if rows.numpy().any():  # an eager model is tried out with zeros first
            seen.append(rows.numpy()[:, 0])
            np.save(self.out, np.array(seen))

def build_model(params):
    from mpi4py import MPI
    out = f"{params['out']}/{MPI.COMM_WORLD.Get_rank()}.npy"
    model = keras.Sequential([keras.Input((8,)), Recorder(out), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.0), loss=loss, run_eagerly=True)
    return model
"""


def test_ranks_read_disjoint_rows_that_make_up_the_data(make_job: MakeJob, tmp_path: Path) -> None:
    """Five shards of different sizes; a job goes on with fewer ranks, and with more, within an epoch."""
    sizes = [7, 31, 5, 64, 20]
    jobs = {}
    for shuffle in ("global", "block", "none"):
        (tmp_path / shuffle).mkdir()
        jobs[shuffle] = make_job(
            f"job_{shuffle}",
            train_rows=sizes,
            model=RECORDER_MODEL,
            params={"out": str(tmp_path / shuffle)},
            data={"train": {"batch_size": 5, "shuffle": shuffle}},
        )
        number_rows(jobs[shuffle], sizes)
    seen: dict[str, list[float]] = {shuffle: [] for shuffle in jobs}
    for ranks, runs in ((3, {"global": 5, "none": 16}), (2, {"global": 10, "block": 5}), (3, {"block": 10})):
        for shuffle, max_steps in runs.items():
            set_max_steps(jobs[shuffle], max_steps)
        done = train_in_turn([jobs[shuffle] for shuffle in runs], ranks)
        assert done.returncode == 0, done.stderr
        for shuffle, out in zip(runs, done.stdout.split("next job\n"), strict=False):
            seeds = re.findall(r"(\d{12,})", out.split("; job-dir")[0])
            assert len(set(seeds)) == ranks, "each rank's own seed is shown"
            own = [np.load(tmp_path / shuffle / f"{rank}.npy").ravel().tolist() for rank in range(ranks)]
            assert len({len(rows) for rows in own}) == 1
            seen[shuffle] += [row for rows in own for row in rows]
    for shuffle, rows in seen.items():
        counts = Counter(rows)
        assert set(counts) <= set(range(127))
        if shuffle == "none":
            assert len(rows) == 240
            assert set(counts.values()) == {1, 2}
            assert sorted(counts) == list(range(127)), "the first epoch leaves no row out"
        else:
            assert len(rows) == len(counts) == 125, f"a row came twice, or was left out: {counts.most_common(3)}"


def number_rows(job: Job, sizes: list[int]) -> None:
    """Makes the first feature of each training row its number."""
    import h5py

    start = 0
    for i, size in enumerate(sizes):
        with h5py.File(job.folder / "data" / f"train-{i}.h5", "a") as file:
            x = file["x"][()]
            x[:, 0] = np.arange(start, start + size)
            file["x"][...] = x
        start += size
