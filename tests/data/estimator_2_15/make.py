"""Makes the checkpoints of this folder with tf.estimator, which TensorFlow 2.15 was the last to have.

    python3.11 -m venv estimators && estimators/bin/pip install 'tensorflow-cpu==2.15.1' 'numpy<2'
    estimators/bin/python make.py

Each canned estimator is trained for a few steps on rows that are drawn here, and leaves in a folder of its name the
newest checkpoint, `predictions.npz`, what it predicts of the rows in `inputs.npz`, and `evaluation.json`, what it
measures on them. One leaves the checkpoint that it began with, too.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).resolve().parent
ROWS, BATCH, STEPS = 32, 8, 20
BEGUN = "dnn_linear_combined_regressor"
"""The one whose first checkpoint is kept, too."""


def rows() -> dict[str, np.ndarray]:
    """What is trained on and predicted of: by feature, and `class` and `value`, the labels."""
    random = np.random.default_rng(0)
    age = random.normal(size=ROWS).astype(np.float32)
    size = random.normal(size=(ROWS, 2)).astype(np.float32)
    colour = random.choice(["red", "green", "blue", "none of these"], ROWS)
    city = random.choice(["Aachen", "Bonn", "Chur", "Delft", "Essen", "Fano"], ROWS)
    value = (age - size[:, 0] + 2 * (colour == "red") - (city == "Bonn")).astype(np.float32)
    kind = np.digitize(value, [-0.5, 1.0])
    tags = random.choice(["a", "b", "c", "d", ""], (ROWS, 3))
    day = random.integers(0, 7, ROWS)
    weight = random.uniform(0.5, 2, ROWS).astype(np.float32)
    answer = np.where(value + random.normal(size=ROWS) > 0, "yes", "no")
    pair = np.stack([value, age * day], axis=1).astype(np.float32)
    return {
        **{"age": age, "size": size, "colour": colour, "city": city, "value": value, "class": kind},
        **{"tags": tags, "day": day, "weight": weight, "answer": answer, "pair": pair},
    }


def inputs(label: str | None, epochs: int | None = None) -> tf.data.Dataset:
    """The features in batches in their order, with the labels of this name, or None: features alone."""
    drawn = rows()
    features = {name: drawn[name] for name in ("age", "size", "colour", "city", "tags", "day", "weight")}
    if label is None:
        return tf.data.Dataset.from_tensor_slices(features).batch(ROWS)
    return tf.data.Dataset.from_tensor_slices((features, drawn[label])).repeat(epochs).batch(BATCH)


def estimators() -> dict[str, tuple[Callable[..., tf.estimator.Estimator], str]]:
    """By the name of its folder: what makes an estimator, and the name of its labels."""
    column = tf.feature_column
    age, size = column.numeric_column("age"), column.numeric_column("size", shape=(2,))
    ages = column.bucketized_column(age, [-1.0, 0.0, 1.0])
    colour = column.categorical_column_with_vocabulary_list("colour", ["red", "green", "blue"], num_oov_buckets=1)
    city = column.categorical_column_with_hash_bucket("city", 5)
    wide = [ages, colour, city, column.crossed_column([ages, "colour"], 7)]
    deep = [age, size, ages, column.indicator_column(colour), column.embedding_column(city, 3)]
    tags = column.categorical_column_with_vocabulary_list("tags", ["a", "b", "c"])
    day = column.categorical_column_with_identity("day", 7)
    kinds = tf.estimator
    return {
        "linear_classifier": (partial(kinds.LinearClassifier, [age, size, *wide], n_classes=3), "class"),
        "linear_regressor": (partial(kinds.LinearRegressor, [age, size, *wide]), "value"),
        "dnn_classifier": (partial(kinds.DNNClassifier, [8, 4], [age, size], n_classes=3), "class"),
        "dnn_regressor": (partial(kinds.DNNRegressor, [4], deep, optimizer="Adam"), "value"),
        "dnn_linear_combined_classifier": (
            partial(
                kinds.DNNLinearCombinedClassifier,
                linear_feature_columns=wide,
                dnn_feature_columns=deep,
                dnn_hidden_units=[4],
                n_classes=3,
                batch_norm=True,
            ),
            "class",
        ),
        "linear_classifier_of_texts": (
            partial(
                kinds.LinearClassifier,
                [age, tags, column.crossed_column(["colour", "city", day], 11, hash_key=3)],
                label_vocabulary=["no", "yes"],
                weight_column="weight",
                sparse_combiner="mean",
            ),
            "answer",
        ),
        BEGUN: (
            partial(
                kinds.DNNLinearCombinedRegressor,
                linear_feature_columns=[tags, ages, column.crossed_column([ages, tags], 9)],
                dnn_feature_columns=[
                    size,
                    column.embedding_column(tags, 3, combiner="sqrtn"),
                    column.indicator_column(day),
                ],
                dnn_hidden_units=[5],
                label_dimension=2,
                weight_column=column.numeric_column("weight"),
                loss_reduction=tf.losses.Reduction.SUM,
            ),
            "pair",
        ),
    }


def keep(estimator: tf.estimator.Estimator, step: int, folder: Path) -> None:
    """Writes the checkpoint after `step` into `folder`, without its graph."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    name = f"model.ckpt-{step}"
    for path in Path(estimator.model_dir).glob(f"{name}.*"):
        if path.suffix != ".meta":
            shutil.copyfile(path, folder / path.name)
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')


def record(estimator: tf.estimator.Estimator, label: str, folder: Path) -> None:
    """Writes what the estimator predicts and measures."""
    predicted = list(estimator.predict(lambda: inputs(None)))
    kept = ("logits", "logistic", "probabilities", "class_ids", "classes", "predictions")
    arrays = {name: np.stack([row[name] for row in predicted]) for name in kept if name in predicted[0]}
    np.savez(
        folder / "predictions.npz", **{name: a.astype("S") if a.dtype == object else a for name, a in arrays.items()}
    )
    measured = estimator.evaluate(lambda: inputs(label, epochs=1))
    plain = {name: float(value) for name, value in sorted(measured.items())}
    (folder / "evaluation.json").write_text(json.dumps(plain, indent=1) + "\n")


def main() -> None:
    """Makes all of them anew."""
    np.savez(HERE / "inputs.npz", **rows())
    config = tf.estimator.RunConfig(tf_random_seed=1)
    for name, (make, label) in estimators().items():
        with tempfile.TemporaryDirectory() as model_dir:
            estimator = make(model_dir=model_dir, config=config)
            estimator.train(lambda label=label: inputs(label), steps=STEPS)
            keep(estimator, STEPS, HERE / name)
            record(estimator, label, HERE / name)
            if name == BEGUN:
                keep(estimator, 0, HERE / name / "begun")


if __name__ == "__main__":
    main()
