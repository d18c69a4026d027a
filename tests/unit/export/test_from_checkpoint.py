"""`hpc-train export`: a job's model out of one of its checkpoints, without training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from hpc_train.checkpoint.format import Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.config.job import load_job
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from tests.support import FINAL, MODEL, make_job_in

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hpc_train.export import from_checkpoint, table_shards  # noqa: E402
from hpc_train.export.from_checkpoint import export_checkpoint  # noqa: E402
from hpc_train.inference.exported_model import load_exported_model  # noqa: E402
from hpc_train.inference.loaded_export import load_export  # noqa: E402
from hpc_train.model.job_model import load_function  # noqa: E402
from hpc_train.model.model_state import ModelState  # noqa: E402
from hpc_train.model.own_steps import updates_of  # noqa: E402

AVERAGED = MODEL.replace('Adam(params.get("learning_rate", 0.01))', "Adam(0.01, use_ema=True, ema_momentum=0.5)")


WITH_TABLES = """
import hpc_train as ht
import keras

def build_model(params):
    x = keras.Input((8,))
    ids = keras.ops.cast(keras.ops.abs(x) * 100, "int32") % 13
    tables = [ht.parallel.ShardedEmbedding(13, 4, dtype=dtype)(ids) for dtype in ("float32", "bfloat16")]
    model = keras.Model(x, keras.layers.Dense(4)(keras.layers.Flatten()(keras.layers.Concatenate()(tables))))
    model.compile(keras.optimizers.Adam(0.01, use_ema=EMA), keras.losses.SparseCategoricalCrossentropy(True))
    return model
"""


@pytest.fixture(scope="module")
def job_dir(tmp_path_factory) -> Path:
    return left_in(tmp_path_factory.mktemp("export"), AVERAGED)


def left_in(folder: Path, code: str) -> Path:
    """A job-dir with checkpoints of the steps 10 and 20, as training leaves it."""
    job = make_job_in(folder, model=code, eval=FINAL)
    job.job_dir.mkdir()
    config = load_job(job.file)
    (job.job_dir / "job.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    model = load_function(config.model, job.folder)({})
    manager = CheckpointManager(job.job_dir / "checkpoints", Retention())
    state = ModelState(model, World.alone(), updates_of(model, None, "model"))
    for step in (10, 20):
        for number, variable in enumerate(v for v in model.optimizer.variables if "average" in v.path):
            variable.assign(step + number + keras.random.uniform(variable.shape, seed=number) * (code != AVERAGED))
        manager.save(state.snapshot(Snapshot({}, {}, DataProgress(step), None, 1, 0.0, {}, 1)))
    taken = manager.load(20).time
    records = [
        {"kind": "eval", "step": 20, "time": 1.0, "secs": 0.1, "loss": 0.5, "accuracy": 0.75, "checkpoint_time": taken},
        {"kind": "eval", "step": 20, "time": 2.0, "loss": 0.1, "checkpoint_time": taken - 100},  # trained anew since
    ]
    (job.job_dir / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return job.job_dir


def weights(path: Path) -> list[float]:
    """What each of the exported variables begins with, in order."""
    loaded = tf.saved_model.load(str(path))
    return [float(np.ravel(variable.numpy())[0]) for variable in loaded.variables]


def test_the_newest_checkpoint_is_exported_with_its_averages_and_metrics(job_dir):
    made = export_checkpoint(job_dir)
    assert (made.step, made.path.parent) == (20, job_dir / "export" / "manual")
    assert weights(made.path) == [20.0, 21.0, 22.0, 23.0]
    about = json.loads((made.path / "hpc_train.json").read_text())
    assert about["metrics"] == {"loss": 0.5, "accuracy": 0.75}
    assert about["data"] == {"features": ["x"], "labels": ["y"]}
    assert about["signature"]["inputs"] == {"x": {"dtype": "float32", "shape": [None, 8]}}
    assert (made.path / "model.keras").exists()


def test_a_step_and_a_folder_can_be_chosen(job_dir, tmp_path):
    made = export_checkpoint(job_dir, 10, out=tmp_path / "mine")
    assert (made.step, made.path.parent) == (10, tmp_path / "mine")
    assert weights(made.path) == [10.0, 11.0, 12.0, 13.0]


def test_what_cannot_be_exported_is_told(job_dir, tmp_path):
    with pytest.raises(UserError, match="no checkpoint of step 11; there are those of 10, 20"):
        export_checkpoint(job_dir, 11)
    with pytest.raises(UserError, match="the job has an exporter of that name"):
        export_checkpoint(job_dir, name="final")
    with pytest.raises(UserError, match="--name"):
        export_checkpoint(job_dir, name="../up")
    with pytest.raises(UserError, match="has no checkpoints"):
        export_checkpoint(tmp_path)


def test_the_data_may_be_gone_where_the_model_tells_its_inputs(job_dir, tmp_path):
    copied = tmp_path / "job"
    shutil.copytree(job_dir, copied)
    job = yaml.safe_load((copied / "job.yaml").read_text())
    for part in ("train", "eval"):
        job["data"][part]["shards"] = [str(tmp_path / "gone-*.h5")]
    (copied / "job.yaml").write_text(yaml.safe_dump(job))
    about = json.loads((export_checkpoint(copied).path / "hpc_train.json").read_text())
    assert list(about["signature"]["inputs"]) == ["x"]


def test_a_function_of_the_program_itself_cannot_be_imported(job_dir, tmp_path):
    copied = tmp_path / "job"
    shutil.copytree(job_dir, copied)
    for model in ("__main__:build", "tests.support:make.<locals>.build"):
        data = dict.fromkeys(("train", "eval"), "function train:read")
        described = {"model": model, "params": {}, "data": data, "run": {}, "train": {}, "eval": {}}
        (copied / "job.yaml").write_text(yaml.safe_dump(described))
        with pytest.raises(UserError, match="cannot import it"):
            export_checkpoint(copied)


@pytest.mark.parametrize("averages", [True, False])
def test_tables_go_into_the_model_or_into_shards_beside_it_block_by_block(averages, tmp_path, monkeypatch):
    job_dir = left_in(tmp_path, WITH_TABLES.replace("EMA", str(averages)))
    made = {tables: export_checkpoint(job_dir, tables=tables) for tables in ("whole", "auto")}
    assert [one.in_shards for one in made.values()] == [False, False]
    monkeypatch.setattr(from_checkpoint, "available_bytes", lambda: 1000)
    monkeypatch.setattr(from_checkpoint, "BLOCK_BYTES", 64)
    monkeypatch.setattr(table_shards, "SHARD_BYTES", 100)
    shards = [export_checkpoint(job_dir, tables=tables) for tables in ("auto", "shards")]
    assert [one.in_shards for one in shards] == [True, True]
    x = np.random.default_rng(1).normal(size=(64, 8)).astype(np.float32)
    wanted = np.asarray(load_exported_model(made["whole"].path)(x))
    called = load_export(made["whole"].path).predict({"x": x})
    for one in shards:
        assert json.loads((one.path / "hpc_train.json").read_text())["tables"] == "shards"
        assert not (one.path / "saved_model.pb").exists()
        model = load_exported_model(str(one.path.parent), check_digests=True)
        assert np.asarray(model(x)).tobytes() == wanted.tobytes()
        # Rows in other batches, compiled: on some processors to rounding alone.
        np.testing.assert_allclose(model.predict(x, verbose=0), wanted, rtol=1e-5, atol=1e-6)
        export = load_export(one.path)
        assert (list(export.inputs), list(export.datasets), export.step) == (["x"], ["x"], 20)
        found = export.predict({"x": x})
        assert {name: array.tobytes() for name, array in found.items()} == {k: v.tobytes() for k, v in called.items()}
    assert json.loads((made["auto"].path / "hpc_train.json").read_text())["tables"] == "whole"


def test_shards_of_a_model_without_tables_are_refused(job_dir):
    with pytest.raises(UserError, match=r"--tables shards: .* has no ht.parallel.ShardedEmbedding"):
        export_checkpoint(job_dir, tables="shards")
