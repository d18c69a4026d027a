"""Exporters: when they export, what an export holds, and what stays when something fails."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

import hpc_train
from hpc_train.config.exporters import (
    KINDS,
    BestExporter,
    ExportersSection,
    FinalExporter,
    LatestExporter,
    exporters_from,
    refuse_same_names,
)

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from hpc_train.errors import UserError  # noqa: E402
from hpc_train.export.export_dir import ExportFolder  # noqa: E402
from hpc_train.export.exporters import ExporterRunner, is_better  # noqa: E402
from hpc_train.export.signature import signature_of  # noqa: E402
from hpc_train.processes import identity  # noqa: E402


class Job(BaseModel):
    exporters: ExportersSection = ()


def test_a_job_file_names_exporters_and_takes_the_type_from_the_name():
    job = Job.model_validate(
        {"exporters": {"best": {"metric": "acc", "mode": "max"}, "final": {}, "mine": {"type": "latest"}}}
    )
    assert job.exporters == (
        BestExporter("best", "acc", "max"),
        FinalExporter("final"),
        LatestExporter("mine"),
    )
    assert Job.model_validate(job.model_dump(mode="json")) == job
    assert tuple(exporters_from({"final": {}})) == (FinalExporter(),)
    assert Job().exporters == ()


def test_every_mistake_in_a_job_files_exporters_is_told_where_it_is():
    mistaken = {
        "finl": {},
        "best": {"mod": "max"},
        "latest": {"exports_to_keep": 0},
        "no spaces": {"type": "final"},
        "mine": {"type": "lates"},
        "both": {"type": "best", "mode": "max", "compare_fn": "a.py:better"},
        "final": {"serving_fn": "not a function"},
        "text": "best",
    }
    with pytest.raises(ValidationError) as caught:
        Job.model_validate({"exporters": mistaken})
    told = {".".join(map(str, e["loc"][1:])): e.get("ctx", {}).get("error", e["msg"]) for e in caught.value.errors()}
    assert told["finl"].startswith("unknown key; did you mean `final`?")
    assert told["best.mod"].startswith("unknown key; did you mean `mode`?")
    assert "greater than 0" in told["latest.exports_to_keep"]
    assert "pattern" in told["no spaces.name"]
    assert "did you mean `latest`?" in told["mine.type"]
    assert "not both" in told["both"]
    assert "file.py:function" in told["final.serving_fn"]
    assert "a mapping" in told["text"]


def test_two_exporters_with_one_name_are_refused():
    refuse_same_names([FinalExporter(), BestExporter()])
    with pytest.raises(ValueError, match="different names"):
        refuse_same_names([FinalExporter("a"), BestExporter("a")])


number = st.one_of(st.none(), st.floats())


@given(number, number, st.sampled_from(["min", "max"]))
def test_better_is_strict_and_never_nan(value, best, mode):
    better = is_better(value, best, mode)
    if value is None or math.isnan(value):
        assert not better
    elif best is None or math.isnan(best):
        assert better
    else:
        assert better == ((value < best) if mode == "min" else (value > best))
        assert not (better and is_better(best, value, mode))


@pytest.fixture(scope="module")
def model():
    made = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    )
    made.compile("adam", "mse")
    made.fit(np.zeros((8, 8)), np.zeros((8, 3)), verbose=0)
    return made


def failing(model):
    raise RuntimeError("no")


FUNCTIONS = {"a.py:more": lambda best, now: now["n"] > best["n"]}


@pytest.fixture
def exporting(model, tmp_path):
    def make(*exporters, serving_model=model, dtype=tf.float32, **more):
        signature = signature_of(serving_model, (tf.TensorSpec([None, 8], dtype), tf.TensorSpec([None])), ["image"])
        about = {"job": "tiny", "params": {}}
        return ExporterRunner(tmp_path, exporters, serving_model, signature, about, FUNCTIONS.__getitem__, **more)

    return make


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def exported(results) -> dict[str, bool]:
    """Exporters that exported, and whether they did it now."""
    assert all(result.error is None for result in results), results
    return {result.exporter: result.new for result in results}


def test_a_missing_metric_and_all_missing_assets_are_told_before_work_begins(exporting, tmp_path):
    (tmp_path / "there.txt").write_text("a")
    bad = exporting(
        BestExporter(metric="acuracy"), FinalExporter(assets=("no.txt", str(tmp_path / "there.txt"), "nor.txt"))
    )
    with pytest.raises(UserError) as caught:
        bad.check(["loss", "accuracy"])
    assert (
        "exporter 'best': metric 'acuracy' is none of this model; did you mean `accuracy`? allowed: loss, accuracy"
        in (str(caught.value))
    )
    assert "no.txt, nor.txt" in str(caught.value)
    assert names(tmp_path) == ["there.txt"]


def test_a_folder_in_the_way_is_told(exporting, tmp_path):
    (tmp_path / "export").write_text("a file")
    with pytest.raises(UserError, match="is not a folder"):
        exporting(FinalExporter()).check(["loss"])


def test_final_latest_and_best_export_when_they_are_due(exporting, tmp_path):
    exporters = (
        FinalExporter(),
        LatestExporter(exports_to_keep=2),
        BestExporter(),
        BestExporter("all", compare_fn="a.py:more"),
    )
    run = exporting(*exporters)
    run.check(["loss"])
    losses = [3.0, 2.0, math.nan, 2.0, 2.5]
    done = [
        exported(run.after_evaluation(10 * i, float(i), {"loss": loss, "n": i % 2}, last=i == 4))
        for i, loss in enumerate(losses)
    ]
    assert [sorted(d) for d in done] == [
        ["all", "best", "latest"],
        ["all", "best", "latest"],
        ["latest"],
        ["latest"],
        ["final", "latest"],
    ]
    assert len(list((tmp_path / "export" / "latest").glob("*"))) == 2
    best = json.loads((tmp_path / "export" / "best" / "best.json").read_text())
    assert (best["metric"], best["step"], best["metrics"]["loss"]) == ("loss", 10, 2.0)
    folders = sorted(int(p.name) for p in (tmp_path / "export" / "best").glob("[0-9]*"))
    assert len(folders) == 2 == len(set(folders))
    again = exporting(*exporters).after_evaluation(40, 4.0, {"loss": 2.5, "n": 0}, last=True)
    assert exported(again) == {"final": False, "latest": False}


@dataclasses.dataclass(frozen=True)
class RareExporter(LatestExporter):
    """One of one's own: the checkpoints of each 20th step."""

    name: str = "rare"

    def is_due(self, step: int, last: bool) -> bool:
        return step % 20 == 0


def test_an_exporter_of_ones_own_is_a_class_and_its_name(exporting, monkeypatch):
    """In hpc_train/config/exporters.py, and among the public names; nothing else knows which there are."""
    monkeypatch.setitem(KINDS, "rare", RareExporter)
    (rare,) = exporters_from({"each_20th": {"type": "rare", "exports_to_keep": 1}})
    assert rare == RareExporter("each_20th", exports_to_keep=1)
    run = exporting(rare)
    run.check(["loss"])
    done = [exported(run.after_evaluation(step, float(step), {"loss": 1.0}, last=False)) for step in (10, 20, 30, 40)]
    assert done == [{}, {"each_20th": True}, {}, {"each_20th": True}]
    package = Path(hpc_train.__file__).parent
    knowing = [path for path in package.rglob("*.py") if "LatestExporter" in path.read_text()]
    named = sorted(str(path.relative_to(package)) for path in knowing)
    assert [path for path in named if not path.startswith("migration/")] == ["__init__.py", "config/exporters.py"]


def test_best_is_remembered_over_restarts_crashes_and_a_return_to_an_earlier_step(exporting, tmp_path):
    folder = tmp_path / "export" / "best"

    def after(step, loss, **options):
        return exported(exporting(BestExporter(**options)).after_evaluation(step, float(step), {"loss": loss}, False))

    assert after(10, 3.0) == after(20, 2.0) == {"best": True}
    assert after(15, 2.5) == {}  # the job went back: the best of step 20 is still there
    before = (folder / "best.json").read_text()
    assert after(30, 1.0) == {"best": True}
    (folder / "best.json").write_text(before)  # as a crash between the export and best.json leaves it
    assert after(30, 1.0) == {"best": False}
    assert after(40, 1.5) == {}
    (folder / "best.json").write_text("{")
    assert after(40, 1.5) == {}
    assert after(50, 1.0) == {}, "no better"
    assert after(60, 2.9, mode="max") == {}, "of the exports, that of step 10 is the largest"
    assert after(60, 3.5, mode="max") == {"best": True}
    for path in folder.glob("[0-9]*"):
        path.rename(tmp_path / f"moved-{path.name}")
    assert after(70, 9.0) == {"best": True}, "the exports are gone, and so is what was best"


def test_an_exporter_that_fails_is_told_and_leaves_nothing(exporting, model, tmp_path, monkeypatch):
    run = exporting(FinalExporter("bad", serving_fn=failing), LatestExporter("good"), BestExporter())
    results = run.after_evaluation(1, 1.0, {"loss": 1.0}, last=True)
    assert [(r.exporter, r.path is None, r.error) for r in results] == [
        ("bad", True, "RuntimeError: no"),
        ("good", False, None),
        ("best", False, None),
    ]
    assert names(tmp_path / "export") == ["best", "good"]

    def full(*args, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(model), "save", full)
    (result,) = exporting(BestExporter()).after_evaluation(2, 2.0, {"loss": 0.5}, last=True)
    assert result.path is None and "No space left" in result.error
    assert len(names(tmp_path / "export" / "best")) == 2
    monkeypatch.undo()

    def full_for_tensorflow(_, path, **more):
        raise tf.errors.ResourceExhaustedError(None, None, f"{path}/variables/part-0; No space left on device")

    monkeypatch.setattr(type(keras.export.ExportArchive()), "write_out", full_for_tensorflow)
    (result,) = exporting(BestExporter()).after_evaluation(2, 2.0, {"loss": 0.5}, last=True)
    wrong = "OSError: the SavedModel cannot be written: variables/part-0; No space left on device"
    assert result.path is None
    assert re.fullmatch(rf"{re.escape(wrong)} \(needed \d+ B; \S+ \wB free on /.*\)", result.error)
    assert len(names(tmp_path / "export" / "best")) == 2
    monkeypatch.undo()
    assert exported(exporting(BestExporter()).after_evaluation(3, 3.0, {"loss": 0.5}, last=True)) == {"best": True}


def test_only_exports_of_this_package_are_pruned_and_left_overs_removed(exporting, tmp_path):
    folder = tmp_path / "export" / "latest"
    for name in ("12", "notes", "0013"):
        (folder / name).mkdir(parents=True)
    (folder / "notes" / "hpc_train.json").write_text('{"checkpoint_time": 1}')
    (folder / ".14.elsewhere-1.tmp").mkdir()
    for i in range(3):
        exporting(LatestExporter(exports_to_keep=1)).after_evaluation(i, float(i), {"loss": 1.0}, False)
    left = names(folder)
    assert {"12", "notes", "0013"} < set(left) and len(left) == 4


def test_numbers_rise_even_where_the_clock_goes_back(tmp_path):
    future = str(2**33)
    (tmp_path / future).mkdir()
    assert ExportFolder(tmp_path).write(lambda folder: None).name == str(2**33 + 1)


def test_another_process_s_temporary_folder_is_left_alone_unless_nobody_else_writes(tmp_path):
    here = os.uname().nodename
    me = identity()
    own, start, boot = f".5.{here}-{os.getpid()}", me["process_start"], me["boot_id"]
    alive = [f"{own}.tmp", f"{own}@{start}@{boot}.tmp", f".5.elsewhere-{2**22 + 1}@1@x.tmp"]
    reused = [f"{own}@{start - 1}@{boot}.tmp", f"{own}@{start}@another.tmp"]
    older = f".6.{here}-{os.getpid()}.tmp"  # than the process that has its pid by now
    dead = [older, f".5.{here}-{2**22 + 1}.tmp", f".5.{here}-{2**22 + 1}@{start}@{boot}.tmp", *reused]
    for name in (*alive, *dead):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / older, (0, 0))
    made = []
    ExportFolder(tmp_path, sole=False).write(lambda folder: made.append(folder.resolve().name))
    assert set(alive) < set(names(tmp_path)) and not set(names(tmp_path)) & set(dead)
    assert made[0].endswith(f".{here}-{os.getpid()}@{start}@{boot}.tmp")


PREDICT = """
import json, sys
import tensorflow as tf
call = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print(json.dumps(call(raw=tf.ones([3, 8], tf.uint8))["scaled"].numpy().tolist()))
assert "hpc_train" not in sys.modules
"""


def scaled(model):
    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.uint8, name="raw")])
    def serve(raw):
        return {"scaled": model(tf.cast(raw, tf.float32) / 255)}

    return serve


def of_words(model):
    words = keras.layers.StringLookup(vocabulary=["one", "two"])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["one"], [5.0]), 0.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
    def serve(word):
        return {"number": words(word), "value": table.lookup(word), "scores": model(tf.zeros([1, 8]))}

    return serve


def test_layers_and_tables_that_a_serving_fn_makes_are_in_the_export(exporting):
    (done,) = exporting(FinalExporter(serving_fn=of_words)).after_evaluation(7, 1.5, {"loss": 1.0}, last=True)
    found = tf.saved_model.load(str(done.path)).signatures["serving_default"](word=tf.constant(["two", "one", "six"]))
    assert found["number"].numpy().tolist() == [2, 1, 0]
    assert found["value"].numpy().tolist() == [0.0, 5.0, 0.0]


def test_an_export_predicts_in_a_process_without_this_package(exporting, model, tmp_path):
    asset = tmp_path / "classes.txt"
    asset.write_text("shirt\n")
    (done,) = exporting(FinalExporter(serving_fn=scaled, assets=str(asset))).after_evaluation(
        7, 1.5, {"loss": 1.0, "bad": math.inf}, last=True
    )
    assert (done.path / "assets" / "classes.txt").read_text() == "shirt\n"
    about = json.loads((done.path / "hpc_train.json").read_text())
    assert about["signature"] == {
        "inputs": {"raw": {"dtype": "uint8", "shape": [None, 8]}},
        "outputs": {"scaled": {"dtype": "float32", "shape": [None, 3]}},
    }
    assert (about["step"], about["job"], about["input_order"]) == (7, "tiny", ["raw"])
    assert about["metrics"] == {"loss": 1.0, "bad": None}
    assert set(about["versions"]) == {"hpc_train", "tensorflow", "keras", "python"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [sys.executable, "-I", "-c", PREDICT, str(done.path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    expected = model(tf.ones([3, 8]) / 255, training=False).numpy()
    np.testing.assert_allclose(json.loads(ended.stdout), expected, rtol=1e-5)


def test_a_keras_file_comes_along_without_the_optimizer_and_training_goes_on(exporting, model):
    before = [w.numpy() for w in model.variables]
    optimizer = model.optimizer
    (done,) = exporting(LatestExporter()).after_evaluation(1, 1.0, {"loss": 1.0}, last=False)
    assert model.optimizer is optimizer and model.compiled
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    loaded = keras.models.load_model(done.path / "model.keras")
    assert not loaded.compiled
    np.testing.assert_allclose(loaded(np.ones((2, 8))), model(np.ones((2, 8))), rtol=1e-6)
    saved = dict(tf.train.list_variables(str(done.path / "variables" / "variables")))
    weights = sum(int(np.prod(v.shape)) for v in model.variables)
    kept = [n for n in saved if n.startswith("variables/")]
    assert sum(int(np.prod(saved[n])) for n in kept) == weights, "the optimizer's are left out"
    iterations = int(optimizer.iterations.numpy())
    model.fit(np.zeros((8, 8)), np.zeros((8, 3)), verbose=0)
    assert int(optimizer.iterations.numpy()) == iterations + 1


class Unsavable(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)

    def get_config(self):
        raise NotImplementedError("no configuration")


def test_a_model_that_has_no_keras_file_says_why(exporting):
    model = Unsavable()
    model.compile("sgd", "mse")
    model(np.zeros((1, 8)))
    (done,) = exporting(LatestExporter(), serving_model=model).after_evaluation(1, 1.0, {"loss": 1.0}, last=False)
    about = json.loads((done.path / "hpc_train.json").read_text())
    assert (about["keras_file"], about["keras_error"]) == (None, "NotImplementedError: no configuration")
    assert not (done.path / "model.keras").exists()


LOADED = """
import sys
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
np.save(sys.argv[2], model(np.load(sys.argv[3])))
assert "hpc_train" not in sys.modules
"""


def of_whole_layers() -> keras.Model:
    p, tokens = hpc_train.parallel, keras.Input((8,), dtype="int64")
    x = p.ShardedEmbedding(50, 8, keras.initializers.RandomNormal(seed=3), mask_zero=True, name="users")(tokens)
    x = keras.layers.Add()([x, p.Embedding(50, 8)(tokens)])
    x = p.MultiHeadAttention(2, 4, name="attention")(x, x, use_causal_mask=True)
    block = [p.ColumnDense(16, "gelu"), p.Dropout(0.5), p.RowDense(8, kernel_regularizer="l2")]
    x = keras.layers.TimeDistributed(p.ColumnDense(8, gather_output=True))(keras.Sequential(block)(x))
    inner = keras.Input((8, 8))
    return keras.Model(tokens, keras.Model(inner, p.RowDense(3, input_is_parallel=False)(inner))(x))


def test_the_keras_file_of_layers_of_parallel_holds_keras_s_own(exporting, tmp_path):
    model, ids = of_whole_layers(), np.random.default_rng(1).integers(0, 50, (5, 8))
    model.compile("sgd", "mse")
    expected, kinds = np.asarray(model(ids)), [type(layer) for layer in model._flatten_layers()]
    run = exporting(LatestExporter(), serving_model=model, dtype=tf.int64)
    (done,) = run.after_evaluation(1, 1.0, {"loss": 1.0}, last=False)
    assert done.error is None
    assert "keras_needs" not in json.loads((done.path / "hpc_train.json").read_text())
    assert [type(layer) for layer in model._flatten_layers()] == kinds
    np.testing.assert_array_equal(model(ids), expected)
    np.save(tmp_path / "ids.npy", ids)
    files = [str(done.path / "model.keras"), str(tmp_path / "found.npy"), str(tmp_path / "ids.npy")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "-I", "-c", LOADED, *files],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    assert np.load(tmp_path / "found.npy").tobytes() == expected.tobytes()
    here = keras.models.load_model(done.path / "model.keras")
    assert [layer.name for layer in here.layers] == [layer.name for layer in model.layers]


@keras.saving.register_keras_serializable("tests")
class Calling(keras.Model):
    """A model whose code makes and calls its layers."""

    def __init__(self, **more):
        super().__init__(**more)
        self.blocks = [hpc_train.parallel.ColumnDense(4, "relu"), hpc_train.parallel.RowDense(3)]

    def call(self, x):
        return self.blocks[1](self.blocks[0](x))


def test_layers_that_code_makes_stay_and_the_export_says_what_to_import(exporting):
    model = Calling()
    model.compile("sgd", "mse")
    model(np.zeros((1, 8)))
    (done,) = exporting(LatestExporter(), serving_model=model).after_evaluation(1, 1.0, {"loss": 1.0}, last=False)
    assert json.loads((done.path / "hpc_train.json").read_text())["keras_needs"] == "hpc_train.parallel"
    np.testing.assert_array_equal(
        keras.models.load_model(done.path / "model.keras")(np.ones((2, 8))), model(np.ones((2, 8)))
    )
