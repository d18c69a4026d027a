"""Canned estimators in jobs: texts and numbers of shards, two optimizers, restarts, servers, evaluation, exports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_train.data.writing.writer import write_shards
from tests.ranks import hpc_train
from tests.support import REPOSITORY, records_of, run_ranks, variables

PROGRAM = Path(__file__).parent / "programs" / "canned_estimators.py"
METRICS = {
    *("accuracy", "accuracy_baseline", "auc", "auc_precision_recall", "average_loss", "label/mean", "loss"),
    *("precision", "prediction/mean", "recall"),
}
ROWS = 50
KEPT = REPOSITORY / "tests/data/estimator_2_15"
"""What TensorFlow 2.15 left."""


def rows(count: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    age, city = 2 * random.normal(size=count), random.choice(["Aachen", "Bonn", "Übach", "映画", ""], count)
    return {
        "age": age,
        "size": random.normal(size=(count, 2)).astype(np.float32),
        "city": city.tolist(),
        "tags": random.choice(["a", "b", "c", "d", ""], (count, 3)),
        "day": random.integers(0, 7, count),
        "weight": random.uniform(0.5, 2, count),
        "answer": np.where(age + (city == "Bonn") > 0, "yes", "no").tolist(),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one program has left that trained on two ranks."""
    folder = tmp_path_factory.mktemp("canned")
    for part, count, seed in (("train", 192, 0), ("test", ROWS, 1)):
        data = rows(count, seed)
        write_shards(folder / "data" / part, data, shards=2)
        data["answer"][count - 3] = "perhaps"
        write_shards(folder / "more/data" / part, data, shards=2)
    with np.load(KEPT / "inputs.npz", allow_pickle=False) as inputs:
        kept = {name: inputs[name] for name in ("age", "size", "colour", "city", "value")}
    write_shards(folder / "kept", kept, shards=2)
    shutil.copytree(KEPT / "linear_regressor", folder / "model_dir")
    done = run_ranks(2, [PROGRAM, folder, "sync"], folder)
    assert done.returncode == 0, done.stderr
    return folder


def same(one: Path, other: Path) -> None:
    """The states after 20 steps are the same to the bit; names of optimizers count in a process."""
    ours, theirs = variables(one, 20), variables(other, 20)
    assert len(ours) == len(theirs)
    for (name, here), there in zip(ours.items(), theirs.values(), strict=True):
        np.testing.assert_array_equal(here, there, err_msg=name)


def test_a_job_resumes_to_the_bit_and_measures_by_estimators_names(folder: Path) -> None:
    same(folder / "whole", folder / "resumed")
    names = [name for name in variables(folder / "whole", 20) if name.startswith("model/")]
    assert "model/linear.linear_model.age_bucketized_X_city_X_day.weights" in names
    assert "model/dnn.input_from_feature_columns.input_layer.city_embedding.embedding_weights" in names
    for job in ("whole", "bfloat16", "float16"):
        last = records_of(folder / job, "eval")[-1]
        assert last.keys() >= METRICS
        assert last["label/mean"] == pytest.approx(weighted_mean(), rel=1e-5)
    changed = json.loads((folder / "resumed/status.json").read_text())
    assert changed["step"] == 20


def weighted_mean() -> float:
    data = rows(ROWS, 1)
    return float(np.average(np.array(data["answer"]) == "yes", weights=data["weight"]))


def test_a_label_that_is_unknown_is_named_before_anything_is_written(folder: Path) -> None:
    said = (folder / "refused").read_text()
    assert said == (
        f"{folder}/more/data/train-00001.h5: dataset 'answer' has the text 'perhaps' in row 93, which label_vocabulary "
        "has not; it has 'no', 'yes'"
    )
    assert not (folder / "unknown").exists()


def test_a_checkpoint_of_tensorflow_is_gone_on_from(folder: Path) -> None:
    recorded = json.loads((KEPT / "linear_regressor/evaluation.json").read_text())
    before, after = (records_of(folder / job, "eval")[-1] for job in ("as_it_was", "trained_on"))
    for name in ("average_loss", "label/mean", "prediction/mean"):
        assert before[name] == pytest.approx(recorded[name], rel=1e-5)
    assert after["average_loss"] < 0.9 * recorded["average_loss"], "weights are not lost, and learn on"


@pytest.mark.parametrize("servers", [1, 2])
def test_servers_that_wait_for_all_workers_train_alike(folder: Path, servers: int) -> None:
    job_dir = folder / "served"
    done = run_ranks(2 + servers, [PROGRAM, folder, "async", servers], folder)
    assert done.returncode == 0, done.stderr
    same(job_dir, folder / "whole")
    job_dir.rename(folder / f"served-{servers}")


def test_a_job_dir_is_evaluated_exported_and_predicted_with(folder: Path) -> None:
    """By commands, which import the model and its normalizer_fn; exports need no weights."""
    before = records_of(folder / "whole", "eval")[-1]
    done = hpc_train(["evaluate", "whole", "--out", "again"], 0, folder)
    assert done.returncode == 0, done.stderr
    again = records_of(folder / "again", "eval")[-1]
    assert {name: again[name] for name in METRICS} == pytest.approx({name: before[name] for name in METRICS})
    done = hpc_train(["export", "whole", "--out", "exported"], 0, folder)
    assert done.returncode == 0, done.stderr
    found = []
    for export in ("exported", "whole/export/final"):
        (about,) = (folder / export).glob("[0-9]*/hpc_train.json")
        inputs = json.loads(about.read_text())["signature"]["inputs"]
        assert set(inputs) == {"age", "size", "city", "tags", "day"}
        out = f"{export.partition('/')[0]}-*.h5"
        done = hpc_train(["predict", export, "--shards", "data/test-*.h5", "--out", out], 0, folder)
        assert done.returncode == 0, done.stderr
        found.append(predictions(folder, out))
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name])
    chosen = found[0]["class_ids"][:, 0]
    np.testing.assert_array_equal(chosen, found[0]["logits"][:, 0] > 0)
    np.testing.assert_array_equal(found[0]["classes"][:, 0], np.where(chosen, b"yes", b"no"))
    np.testing.assert_allclose(found[0]["probabilities"][:, 1:], found[0]["logistic"], rtol=1e-6)
    data = rows(ROWS, 1)
    right = chosen == (np.array(data["answer"]) == "yes")
    assert before["accuracy"] == pytest.approx(np.average(right, weights=data["weight"]), rel=1e-5)


def predictions(folder: Path, pattern: str) -> dict[str, np.ndarray]:
    files = sorted(folder.glob(pattern))
    parts = []
    for path in files:
        with h5py.File(path) as file:
            parts.append({name: file[name][...] for name in file})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
