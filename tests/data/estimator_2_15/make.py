"""Makes the checkpoints of this folder with tf.estimator, which TensorFlow 2.15 was the last to have.

    python3.11 -m venv estimators && estimators/bin/pip install 'tensorflow-cpu==2.15.1' 'numpy<2'
    estimators/bin/python make.py

Each canned estimator is trained for a few steps on rows that are drawn here, and leaves in a folder of its name the
newest checkpoint and `predictions.npz`, what it predicts of the rows in `inputs.npz`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).resolve().parent
ROWS, BATCH, STEPS = 32, 8, 20


def rows() -> dict[str, np.ndarray]:
    """What is trained on and predicted of: by feature, and `class` and `value`, the labels."""
    random = np.random.default_rng(0)
    age = random.normal(size=ROWS).astype(np.float32)
    size = random.normal(size=(ROWS, 2)).astype(np.float32)
    colour = random.choice(["red", "green", "blue", "none of these"], ROWS)
    city = random.choice(["Aachen", "Bonn", "Chur", "Delft", "Essen", "Fano"], ROWS)
    value = (age - size[:, 0] + 2 * (colour == "red") - (city == "Bonn")).astype(np.float32)
    kind = np.digitize(value, [-0.5, 1.0])
    return {"age": age, "size": size, "colour": colour, "city": city, "value": value, "class": kind}


def inputs(label: str | None) -> tf.data.Dataset:
    """The features in batches in their order, with the labels of this name, or None: features alone."""
    drawn = rows()
    features = {name: drawn[name] for name in ("age", "size", "colour", "city")}
    if label is None:
        return tf.data.Dataset.from_tensor_slices(features).batch(ROWS)
    return tf.data.Dataset.from_tensor_slices((features, drawn[label])).repeat().batch(BATCH)


def estimators() -> dict[str, tuple[Callable[..., tf.estimator.Estimator], str]]:
    """By the name of its folder: what makes an estimator, and the name of its labels."""
    column = tf.feature_column
    age, size = column.numeric_column("age"), column.numeric_column("size", shape=(2,))
    ages = column.bucketized_column(age, [-1.0, 0.0, 1.0])
    colour = column.categorical_column_with_vocabulary_list("colour", ["red", "green", "blue"], num_oov_buckets=1)
    city = column.categorical_column_with_hash_bucket("city", 5)
    wide = [ages, colour, city, column.crossed_column([ages, "colour"], 7)]
    deep = [age, size, ages, column.indicator_column(colour), column.embedding_column(city, 3)]
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
    }


def keep(estimator: tf.estimator.Estimator, folder: Path) -> None:
    """Writes the newest checkpoint into `folder`, without its graph, and what the estimator predicts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    newest = Path(estimator.latest_checkpoint())
    for path in newest.parent.glob(f"{newest.name}.*"):
        if path.suffix != ".meta":
            shutil.copyfile(path, folder / path.name)
    (folder / "checkpoint").write_text(
        f'model_checkpoint_path: "{newest.name}"\nall_model_checkpoint_paths: "{newest.name}"\n'
    )
    predicted = list(estimator.predict(lambda: inputs(None)))
    names = [name for name in ("logits", "probabilities", "predictions") if name in predicted[0]]
    np.savez(folder / "predictions.npz", **{name: np.stack([row[name] for row in predicted]) for name in names})


def main() -> None:
    """Makes all of them anew."""
    np.savez(HERE / "inputs.npz", **rows())
    config = tf.estimator.RunConfig(tf_random_seed=1)
    for name, (make, label) in estimators().items():
        with tempfile.TemporaryDirectory() as model_dir:
            estimator = make(model_dir=model_dir, config=config)
            estimator.train(lambda label=label: inputs(label), steps=STEPS)
            keep(estimator, HERE / name)


if __name__ == "__main__":
    main()
