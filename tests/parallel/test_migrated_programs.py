"""What hpc-train migrate writes for programs is a job that trains, on two ranks; what it names of Keras is there."""

from __future__ import annotations

import ast
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from hpc_train.migration.counterparts.contrib import CONTRIB_TABLE
from hpc_train.migration.counterparts.estimator import ESTIMATOR_TABLE
from hpc_train.migration.counterparts.keras import KERAS_TABLE, OPERATIONS_TABLE
from tests.ranks import hpc_train, train_in_turn
from tests.support import REPOSITORY, Job, merge, records_of

PROGRAMS = REPOSITORY / "tests/unit/migration/programs"
ROWS = 64
STEPS = 4
QUICK = {
    "run": {"save_checkpoints_steps": STEPS, "report": False},
    "train": {"max_steps": STEPS},
    "eval": {"steps": None, "start_delay_secs": 0, "throttle_secs": 0, "exporters": {}},
}


def migrated(program: str, parent: Path, rows: dict[str, np.ndarray], features: object, label: str) -> Job:
    """What a program has become, with shards of `rows`, their datasets named, and few steps."""
    done = hpc_train(["migrate", str(PROGRAMS / f"{program}.py"), "--out", str(parent / program)], 0, parent)
    assert done.returncode == 0, done.stderr
    made = Job(parent / program)
    (made.folder / "data").mkdir()
    for part in ("train", "test"):
        with h5py.File(made.folder / f"data/{part}-0.h5", "w") as file:
            for name, values in rows.items():
                file.create_dataset(name, data=values, dtype=h5py.string_dtype() if values.dtype == "O" else None)
    data = {part: {"features": features, "label": label, "batch_size": 16} for part in ("train", "eval")}
    job = merge(yaml.safe_load(made.file.read_text()), {"data": data, **QUICK})
    job["data"]["train"].pop("epochs", None)
    made.file.write_text(yaml.safe_dump(job, sort_keys=False))
    return made


def test_jobs_of_programs_train(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    words = np.array(["none", "primary", "Universität"], dtype=object)
    digits = {
        "image": random.random((ROWS, 28, 28, 1), dtype=np.float32),
        "digit": random.integers(0, 10, ROWS),
    }
    people = {
        "age": random.integers(15, 80, ROWS).astype(np.float32),
        "hours": random.random(ROWS, dtype=np.float32),
        "school": words[random.integers(0, 3, ROWS)],
        "job": words[random.integers(0, 3, ROWS)],
        "income": random.integers(0, 2, ROWS),
    }
    numbers = {"x": random.random((ROWS, 8), dtype=np.float32), "y": random.integers(0, 3, ROWS)}
    by_name = {name: name for name in ("age", "hours", "school", "job")}
    jobs = [
        migrated("custom_mnist", tmp_path, digits, {"image": "image"}, "digit"),
        migrated("wide_and_deep", tmp_path, people, by_name, "income"),
        migrated("horovod_keras", tmp_path, numbers, "x", "y"),
        migrated("horovod_tape", tmp_path, numbers, "x", "y"),
    ]
    done = train_in_turn(jobs, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    for job in jobs:
        last = records_of(job.job_dir, "eval")[-1]
        assert last["step"] == STEPS and np.isfinite(last["loss"]), job.folder


@pytest.mark.parametrize("code", sorted({row.code for table in (ESTIMATOR_TABLE, CONTRIB_TABLE, KERAS_TABLE,
                                                                  OPERATIONS_TABLE)
                                         for row in table.values() if "keras." in row.code}))  # fmt: skip
def test_what_is_named_of_keras_is_there(code: str) -> None:
    import keras

    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and (name := ast.unparse(node)).startswith("keras."):
            found = keras
            for part in name.split(".")[1:]:
                found = getattr(found, part)
