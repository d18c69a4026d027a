"""Canned estimators in jobs; a program for mpirun: `canned_estimators.py FOLDER sync|async [SERVERS]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hpc_train as ht

FEATURES = ["age", "size", "city", "tags", "day", "weight"]


def squeezed(numbers: Any) -> Any:
    """A normalizer_fn that another process can import."""
    import tensorflow as tf

    return tf.math.asinh(numbers)


def estimator(model_dir: Path, **run: Any) -> ht.Estimator:
    """A wide and deep classifier of texts, whose towers have optimizers of different kinds."""
    column = ht.feature_column
    age = column.numeric_column("age", normalizer_fn=squeezed)
    ages = column.bucketized_column(age, [-1, 0, 1])
    city = column.categorical_column_with_hash_bucket("city", 1000)
    tags = column.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"], num_oov_buckets=1)
    day = column.categorical_column_with_identity("day", 7)
    return ht.DNNLinearCombinedClassifier(
        linear_feature_columns=[ages, city, tags, column.crossed_column([ages, "city", day], 500)],
        dnn_feature_columns=[
            *(age, column.numeric_column("size", shape=2), column.indicator_column(day)),
            *(column.embedding_column(city, 4), column.embedding_column(tags, 3, combiner="sqrtn")),
        ],
        dnn_hidden_units=[8, 4],
        dnn_optimizer="Adam" if run.get("strategy") == "async" else adam(),
        label_vocabulary=["no", "yes"],
        weight_column="weight",
        config=ht.RunConfig(model_dir, save_checkpoints_steps=10, tf_random_seed=1, report=False, **run),
    )


def adam() -> Any:
    """The rate that the name stands for."""
    import keras

    return keras.optimizers.Adam(0.001)


def sgd(rate: float) -> Any:
    import keras

    return keras.optimizers.SGD(rate)


def specs(folder: Path, max_steps: int, exports: bool = False) -> tuple[ht.TrainSpec, ht.EvalSpec]:
    def source(part: str) -> ht.HDF5Input:
        shards = str(folder / f"data/{part}-*.h5")
        return ht.HDF5Input(shards, batch_size=16, features=FEATURES, label="answer", seed=1)

    times = {"steps": None, "start_delay_secs": 0, "throttle_secs": 0}
    train = ht.TrainSpec(source("train"), max_steps=max_steps)
    return train, ht.EvalSpec(source("test"), exporters=(ht.FinalExporter(),) if exports else (), **times)


def run(estimator: ht.Estimator, folder: Path, max_steps: int, exports: bool = False) -> None:
    ht.train_and_evaluate(estimator, *specs(folder, max_steps, exports))


def started(folder: Path, name: str, optimizer: Any) -> None:
    """A linear regressor that begins with the checkpoint that TensorFlow 2.15 left of the same."""
    column = ht.feature_column
    age, size = column.numeric_column("age"), column.numeric_column("size", shape=2)
    ages = column.bucketized_column(age, [-1.0, 0.0, 1.0])
    colour = column.categorical_column_with_vocabulary_list("colour", ["red", "green", "blue"], num_oov_buckets=1)
    city = column.categorical_column_with_hash_bucket("city", 5)
    made = ht.LinearRegressor(
        [age, size, ages, colour, city, column.crossed_column([ages, "colour"], 7)],
        model_dir=folder / name,
        optimizer=optimizer,
        config=ht.RunConfig(save_checkpoints_steps=10, report=False),
        warm_start_from=folder / "model_dir",
    )
    rows = str(folder / "kept-*.h5")
    source = ht.HDF5Input(rows, batch_size=4, features=["age", "size", "colour", "city"], label="value", seed=1)
    evaluation = ht.EvalSpec(source, steps=None, start_delay_secs=0, throttle_secs=0)
    ht.train_and_evaluate(made, ht.TrainSpec(source, max_steps=10), evaluation)


def main() -> None:
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "sync":
        run(estimator(folder / "whole"), folder, 20, exports=True)
        run(estimator(folder / "resumed"), folder, 10)
        run(estimator(folder / "resumed"), folder, 20)
        for precision in ("bfloat16", "float16"):
            run(estimator(folder / precision, mixed_precision=precision), folder, 10)
        started(folder, "as_it_was", sgd(0.0))
        started(folder, "trained_on", "Ftrl")
        more = folder / "more"
        try:
            run(estimator(folder / "unknown"), more, 10)
        except ht.UserError as error:
            if ht.is_chief():
                (folder / "refused").write_text(str(error))
    else:
        served = {"strategy": "async", "max_staleness": 0, "parameter_servers": int(sys.argv[3])}
        run(estimator(folder / "served", **served), folder, 20)


if __name__ == "__main__":
    main()
