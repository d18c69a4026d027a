"""Texts, words and rows of different lengths, from HDF5 to an exported model, on two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

from hpc_train.data.writing.writer import write_shards
from tests.ranks import hpc_train, train_in_turn
from tests.support import Job, variables

VOCABULARY = ["gut", "schön", "übel", "schlecht", "film", "buch", "映画"]

MODEL = f"""
import keras
from keras import layers

def build_model(params):
    text, word = keras.Input((), dtype="string", name="text"), keras.Input((), dtype="string", name="word")
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    vector = layers.TextVectorization(vocabulary={VOCABULARY!r}, output_sequence_length=8)(text)
    words = layers.GlobalAveragePooling1D()(layers.Embedding(12, 4, mask_zero=True)(vector))
    kind = layers.Embedding(5, 2)(layers.StringLookup(vocabulary=["film", "buch", "映画"])(word))
    hashed = layers.CategoryEncoding(6, output_mode="one_hot")(layers.Hashing(6)(word))
    state = layers.LSTM(4)(layers.Embedding(30, 4, mask_zero=True)(tokens))
    output = layers.Dense(2)(layers.Concatenate()([words, kind, hashed, state]))
    model = keras.Model({{"text": text, "word": word, "tokens": tokens}}, output)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
    return model
"""


def write_reviews(folder: Path, name: str, rows: int, seed: int) -> None:
    """By our writer, and as others store it: variable-length strings, fixed ones, and h5py's own sequences."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, rows)
    good = [" ".join(random.choice(VOCABULARY[:2] if y else VOCABULARY[2:4], random.integers(1, 5))) for y in label]
    words = random.choice(VOCABULARY[4:], rows).tolist()
    tokens = [random.integers(1, 30, length).astype(np.int32) for length in random.integers(1, 40, rows)]
    write_shards(folder / f"{name}-ours", {"text": good, "word": words, "tokens": tokens, "y": label}, shards=2)
    with h5py.File(folder / f"{name}-theirs-0.h5", "w") as file:
        file.create_dataset("text", data=good, dtype=h5py.string_dtype())
        file["word"] = np.array([word.encode() for word in words])
        ragged = file.create_dataset("tokens", (rows,), dtype=h5py.vlen_dtype(np.int32))
        for row, values in enumerate(tokens):
            ragged[row] = values
        file["y"] = label


def make_reviews(parent: Path, name: str, source: str, max_steps: int, **train: Any) -> Job:
    folder = parent / name
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    features = ["text", "word", "tokens"]
    common = {"features": features, "label": "y", "batch_size": 8, "pad": {"tokens": 0}}
    job = {
        "name": name,
        "model": "model.py:build_model",
        "data": {
            "train": {"shards": f"{parent}/data/train-{source}-*.h5", "seed": 1, **common, **train},
            "eval": {"shards": f"{parent}/data/test-{source}-*.h5", **common},
        },
        "run": {"save_checkpoints_steps": 9, "tf_random_seed": 1, "report": False, "check_replicas_steps": 9},
        "train": {"max_steps": max_steps},
        "eval": {"steps": None, "start_delay_secs": 0, "throttle_secs": 0},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(job))))
    return Job(folder)


def go_on(job: Job, max_steps: int) -> None:
    job.file.write_text(job.file.read_text().replace("max_steps: 9", f"max_steps: {max_steps}"))


def test_texts_and_sequences_train_resume_and_are_served(tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "data").mkdir()
    write_reviews(tmp_path / "data", "train", 200, 0)
    write_reviews(tmp_path / "data", "test", 50, 1)
    kinds: dict[str, dict[str, Any]] = {
        "ours": {"shuffle": "block", "bucket_by": "tokens"},
        "theirs": {"shuffle": "none"},
    }
    straight = [make_reviews(tmp_path, f"{kind}_straight", kind, 30, **kinds[kind]) for kind in kinds]
    halves = [make_reviews(tmp_path, f"{kind}_halves", kind, 9, **kinds[kind]) for kind in kinds]
    done = train_in_turn([*straight, *halves], 2)
    assert done.returncode == 0, done.stderr
    for job in halves:
        go_on(job, 30)
    done = train_in_turn(halves, 2)
    assert done.returncode == 0, done.stderr
    for one, other in zip(straight, halves, strict=True):
        whole, resumed = variables(one.job_dir, 30), variables(other.job_dir, 30)
        assert set(whole) == set(resumed)
        for name, array in whole.items():
            np.testing.assert_array_equal(resumed[name], array, err_msg=name)

    done = hpc_train(["evaluate", str(straight[0].job_dir)], 0, tmp_path)
    assert done.returncode == 0, done.stderr
    done = hpc_train(["export", str(straight[0].job_dir), "--out", str(tmp_path / "served")], 0, tmp_path)
    assert done.returncode == 0, done.stderr
    (saved,) = (tmp_path / "served").rglob("saved_model.pb")
    serve = tf.saved_model.load(str(saved.parent)).signatures["serving_default"]
    given = {"text": ["gut schön", "übel schlecht"], "word": ["film", "映画"], "tokens": [[3, 4, 0], [5, 6, 7]]}
    (logits,) = serve(
        text=tf.constant(given["text"]), word=tf.constant(given["word"]), tokens=tf.constant(given["tokens"], tf.int32)
    ).values()
    assert np.argmax(logits.numpy(), axis=1).tolist() == [1, 0], "what the words of the texts mean has been learnt"

    asked = ["--shards", str(tmp_path / "data/test-ours-*.h5"), "--out", str(tmp_path / "p-*.h5"), "--batch-size", "8"]
    done = hpc_train(["predict", str(tmp_path / "served"), *asked], 2, tmp_path)
    assert done.returncode == 0, done.stderr
    found = []
    for shard in sorted((tmp_path / "data").glob("test-ours-*.h5")):
        with h5py.File(tmp_path / f"p-{shard.stem.removeprefix('test-ours-')}.h5") as predicted:
            (output,) = (predicted[name][:] for name in predicted)
        with h5py.File(shard) as rows:
            found.append((output.argmax(1) == rows["y"][:]).mean())
    assert np.mean(found) > 0.9, "rows are padded in prediction as in training"
