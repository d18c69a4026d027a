"""Every kind of bad input, one after the other, through the API: UserError on all ranks, and nothing written."""

import os
import sys
from pathlib import Path

import h5py
import keras
import numpy as np

import hpc_train as ht
from hpc_train.distributed.startup import join_world

folder = Path(sys.argv[1])
world = join_world()


def model_of(units=4, compiled=True, own_step=False, loss=True, trainable=True, third=None):
    class Own(keras.Sequential):
        def train_step(self, data):
            return {}

    def build(params):
        kind = Own if own_step else keras.Sequential
        model = kind([keras.Input((8,)), keras.layers.Dense(units, name="hidden"), keras.layers.Dense(4)])
        model.trainable = trainable
        if compiled:
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss else None, third)
        return model

    return build


def write(name, rows=64, **columns):
    arrays = {"x": np.zeros((rows, 8), np.float32), "y": np.zeros(rows, np.int64), **columns}
    with h5py.File(folder / name, "w") as file:
        for key, array in arrays.items():
            if array is not None:
                file[key] = array


def run(
    train="good.h5",
    evaluation="good.h5",
    model=None,
    job_dir="job",
    batch_size=8,
    features="x",
    label="y",
    max_steps=2,
    eval_features="x",
    eval_label="y",
):
    estimator = ht.Estimator(model or model_of(), ht.RunConfig(folder / job_dir, save_checkpoints_steps=2))
    shards = [str(folder / name) for name in train.split()]
    return ht.train_and_evaluate(
        estimator,
        ht.TrainSpec(ht.HDF5Input(shards, batch_size=batch_size, features=features, label=label), max_steps=max_steps),
        ht.EvalSpec(ht.HDF5Input(str(folder / evaluation), features=eval_features, label=eval_label)),
    )


if world.is_chief:
    write("good.h5")
    write("other_shape.h5", x=np.zeros((64, 9), np.float32))
    write("other_dtype.h5", x=np.zeros((64, 8), np.float64))
    write("no_label.h5", y=None)
    write("empty.h5", rows=0)
    write("wide_label.h5", y=np.zeros((64, 4), np.int64))
    write("uneven.h5", y=np.zeros(63, np.int64))
    write("text.h5", x=np.array([b"text"] * 64))
    write("pairs.h5", x=np.zeros(64, [("a", "f4"), ("b", "f4")]))
    write("high_label.h5", y=np.arange(64) % 5)
    write("huge_label.h5", y=np.full(64, 2**63, np.uint64))
    write("narrow.h5", rows=63)
    write("renamed.h5", x=None, y=None, x_test=np.zeros((64, 8)), y_test=np.zeros(64, np.int32))
    (folder / "again").mkdir()
    write("again/good.h5", rows=65)
    (folder / "not_hdf5.h5").write_text("text")
    (folder / "cut.h5").write_bytes((folder / "good.h5").read_bytes()[:500])
    (folder / "a_file").write_text("")
world.broadcast(None)
run(job_dir="taken")  # a checkpoint of the good model
metrics, _ = run(job_dir="renamed", evaluation="renamed.h5", eval_features="x_test", eval_label="y_test")
assert metrics["loss"] > 0, "an evaluation names its own datasets"

CASES = [
    (dict(train="missing-*.h5"), "no such shard: .*missing-"),
    (dict(train="good.h5 good.h5"), "named twice"),
    (dict(train="not_hdf5.h5"), "not_hdf5.h5: cannot be read as HDF5"),
    (dict(train="cut.h5"), "cut.h5: cannot be read as HDF5"),
    (dict(train="empty.h5"), "empty.h5: dataset 'x' has no rows"),
    (dict(train="good.h5 empty.h5"), "empty.h5: dataset 'x' has no rows"),
    (dict(train="good.h5 other_shape.h5"), "other_shape.h5: dataset 'x' is float32 .rows, 9., but float32 .rows, 8."),
    (dict(train="good.h5 other_dtype.h5"), "other_dtype.h5: dataset 'x' is float64"),
    (dict(train="good.h5 no_label.h5"), "no_label.h5: has no dataset 'y'"),
    (dict(train="uneven.h5"), "uneven.h5: dataset 'y' has 63 rows, but 'x' has 64"),
    (dict(train="pairs.h5"), "pairs.h5: dataset 'x' does not hold numbers or texts"),
    (dict(train="text.h5"), "good.h5: feature 'x' is float32 .*, but training has 'x', texts of 4 bytes"),
    (dict(features="z"), "good.h5: has no dataset 'z'; it has x"),
    (dict(evaluation="other_shape.h5"), "other_shape.h5: feature 'x' is float32 .rows, 9., but training"),
    (dict(batch_size=65), "64 rows are fewer than one global batch: batch_size 65 x"),
    (dict(model=model_of(compiled=False)), "uncompiled model; call model.compile"),
    (dict(model=model_of(third=["accuracy"])), r"got 'accuracy' as loss_weights.*metrics=\['accuracy'\]"),
    (dict(model=lambda params: "model"), "returned str; it must return a compiled keras.Model"),
    (dict(model=model_of(own_step=True)), "train_step of Own applies no gradients: call"),
    (dict(model=model_of(loss=False)), "without a loss"),
    (dict(model=model_of(trainable=False)), "nothing to train"),
    (dict(evaluation="wide_label.h5"), "wide_label.h5: label 'y' is int64 .rows, 4., but training has 'y', int64"),
    (dict(train="good.h5 high_label.h5"), "high_label.h5: dataset 'y' has the value 4, but .* labels are 0 to 3"),
    (dict(evaluation="high_label.h5"), "high_label.h5: dataset 'y' has the value 4"),
    (dict(train="huge_label.h5"), "huge_label.h5: dataset 'y' has the value 9.22.*, but the model's output has 4"),
    (dict(train="again/good.h5", job_dir="taken"), "again/good.h5: has changed since the job began: 64 rows in"),
    (dict(train="good.h5 narrow.h5", job_dir="taken"), "the job began with 1 shards, now there are 2"),
    (dict(evaluation="narrow.h5", job_dir="taken"), "narrow.h5: the job began with good.h5 in its place"),
    (dict(job_dir="a_file/job"), "a_file is not a folder"),
    (dict(job_dir="/proc/hpc_train/job"), "cannot be written"),
    (
        dict(job_dir="taken", model=model_of(units=5), max_steps=3),
        "holds another model: model variable 0 is .*hidden/kernel.*8, 4.*8, 5",
    ),
    (dict(evaluation="renamed.h5"), "renamed.h5: has no dataset 'x'; it has x_test"),
    (
        dict(evaluation="renamed.h5", eval_features={"in": "x_test"}, eval_label="y_test"),
        "renamed.h5: the features reach the model as a dict of in, but in training as a tensor; give this input `feat",
    ),
    (dict(job_dir="taken", model=lambda p: model_of()(p)), None),
]

before = None
for arguments, said in CASES:
    if world.is_chief:
        before = sorted(p.name for p in folder.iterdir()), sorted(os.listdir(folder / "taken" / "checkpoints"))
    try:
        run(**arguments)
    except ht.UserError as error:
        import re

        assert said is not None and re.search(said, str(error)), (arguments, str(error))
    else:
        assert said is None, f"{arguments} was accepted"
    if world.is_chief:
        after = sorted(p.name for p in folder.iterdir()), sorted(os.listdir(folder / "taken" / "checkpoints"))
        assert before == after, f"{arguments} left something behind: {after}"
print(f"rank {world.rank}: all {len(CASES)} cases are fine")
