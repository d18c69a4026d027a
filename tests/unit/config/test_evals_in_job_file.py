"""Several evaluation sets: `evals:` of a job file, and lists of EvalSpecs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import hpc_train as ht
from hpc_train import UserError, load_job
from hpc_train.config.job import JobConfig
from hpc_train.config.specs import refuse_same_kinds

JOB = """\
name: several
model: model.py:build_model
data:
  train: {shards: data/train-*.h5}
  eval: {shards: data/test-*.h5}
train: {max_steps: 10}
eval: {name: NAME, exporters: {final: {}}}
evals:
  hard:
    data: {shards: data/hard-*.h5, batch_size: 8, map_fn: maps.py:f}
    steps: null
    eval_every_checkpoint: true
    exporters: {best: {metric: loss}}
  easy: {data: {shards: /else/easy.h5}, start_delay_secs: 5, throttle_secs: 7.5}
"""


def file_with(folder: Path, old: str = "name: NAME, ", new: str = "") -> Path:
    path = folder / "job.yaml"
    text = JOB.replace(old, new)
    assert text != JOB, old
    path.write_text(text.replace("name: NAME, ", ""))
    return path


def test_sets_by_name(tmp_path: Path) -> None:
    job = load_job(file_with(tmp_path))
    first, hard, easy = specs = job.eval_specs()
    assert [spec.kind for spec in specs] == ["eval", "eval_hard", "eval_easy"]
    assert [spec.name for spec in specs] == [None, "hard", "easy"]
    assert (hard.steps, hard.eval_every_checkpoint, hard.throttle_secs) == (None, True, 600)
    assert (easy.steps, easy.start_delay_secs, easy.throttle_secs) == (100, 5, 7.5)
    assert [[exporter.name for exporter in spec.exporters] for spec in specs] == [["final"], ["best"], []]
    assert first.input_fn == job.data.eval
    assert hard.input_fn.shards == (f"{tmp_path}/data/hard-*.h5",)
    assert (hard.input_fn.batch_size, hard.input_fn.map_fn) == (8, f"{tmp_path}/maps.py:f")
    assert easy.input_fn.shards == ("/else/easy.h5",)
    assert JobConfig.model_validate(json.loads(json.dumps(job.model_dump(mode="json")))) == job


def test_shards_of_all_sets_are_relative_to_the_data_root(tmp_path: Path) -> None:
    _, hard, easy = load_job(file_with(tmp_path), data_root=tmp_path / "x").eval_specs()
    assert hard.input_fn.shards == (f"{tmp_path}/x/data/hard-*.h5",)
    assert hard.input_fn.map_fn == f"{tmp_path}/maps.py:f"
    assert easy.input_fn.shards == ("/else/easy.h5",)


def test_settings_reach_a_set(tmp_path: Path) -> None:
    settings = ["evals.hard.steps=3", "evals.easy.data.batch_size=5", "evals.hard.exporters.best=null"]
    _, hard, easy = load_job(file_with(tmp_path), settings).eval_specs()
    assert (hard.steps, hard.exporters, easy.input_fn.batch_size) == (3, (), 5)


OPTIONS = "steps, start_delay_secs, throttle_secs, eval_every_checkpoint, hooks, data, exporters"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("NAME", "hard", "8: evals: `eval.name` is hard, too; give each evaluation a name of its own"),
        ("{best: {metric: loss}}", "{final: {}}", "8: evals: exporters need different names, not final, final"),
        (" easy:", " hard:", "14: evals.hard: given twice; first on line 9"),
        ("batch_size: 8", "epochs: 2", "10: evals.hard.data: `epochs` is for training; an evaluation reads its rows o"),
        ("    steps: null", "    stepps: 3", "11: evals.hard.stepps: unknown key; did you mean `steps`? allowed: "),
        ("batch_size: 8", "batch_sise: 8", "10: evals.hard.data.batch_sise: unknown key; did you mean `batch_size`? "),
        ("batch_size: 8", "batch_size: 0", "10: evals.hard.data.batch_size: 0 is not allowed; it should be greater"),
        ("throttle_secs: 7.5", "throttle_secs: -1", "14: evals.easy.throttle_secs: -1 is not allowed; "),
        ("start_delay_secs: 5", "name: x", "14: evals.easy.name: unknown key; "),
        ("data: {shards: /else/easy.h5}, ", "", "14: evals.easy.data: missing, and it has no default"),
        ("{best: {metric: loss}}", "{besst: {}}", "13: evals.hard.exporters.besst: unknown key; did you mean `best`?"),
        ("maps.py:f", "../maps.py:f", "10: evals.hard.data.map_fn: '../maps.py:f' is not allowed; allowed: a file in"),
        ("maps.py:f", "keras.py:f", "10: evals.hard.data.map_fn: a file called keras.py hides the module keras"),
        (" easy:", " 1easy:", "14: evals.1easy: '1easy' is not allowed; allowed: a letter, then letters, digits and "),
        ("NAME", "a-b", "7: eval.name: 'a-b' is not allowed; allowed: a letter, then letters, digits and underscores"),
        (" easy:", " ../up:", "14: evals.../up: '../up' is not allowed; allowed: a letter, then"),
    ],
)
def test_sets_that_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = file_with(tmp_path, old, new)
    with pytest.raises(UserError) as caught:
        load_job(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}:{said}"), line


def test_the_allowed_keys_of_a_set_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_job(file_with(tmp_path, "    steps: null", "    stepps: 3"))
    allowed = re.split("allowed: ", str(caught.value))[1].split(", ")
    assert sorted(allowed) == sorted(OPTIONS.split(", "))


def spec(name: str | None = None, *exporters: object) -> ht.EvalSpec:
    return ht.EvalSpec(lambda context: None, name=name, exporters=exporters)


def test_specs_with_names_of_their_own() -> None:
    refuse_same_kinds([spec(None, ht.FinalExporter("a")), spec("x", ht.FinalExporter("b")), spec("y")])
    for specs, said in (
        ([spec(), spec()], "several evaluations need different names; eval is there more than once"),
        ([spec("x"), spec(), spec("x")], "different names; eval_x is there more than once"),
        ([spec(None, ht.FinalExporter()), spec("x", ht.LatestExporter("final"))], "exporters need different names"),
    ):
        with pytest.raises(ValueError, match=said):
            refuse_same_kinds(specs)
    with pytest.raises(ValueError, match="`epochs` is for training; an evaluation reads its rows once"):
        ht.EvalSpec(ht.HDF5Input("a.h5", epochs=1))


@pytest.mark.parametrize(
    "specs", [[], [spec("x"), spec("x")], [spec(None, ht.FinalExporter()), spec("x", ht.FinalExporter())]]
)
def test_train_and_evaluate_refuses_such_lists_before_it_starts(tmp_path: Path, specs: list[ht.EvalSpec]) -> None:
    estimator = ht.Estimator(lambda params: None, ht.RunConfig(tmp_path / "run"))
    with pytest.raises(UserError, match=r"^train_and_evaluate: eval_spec: "):
        ht.train_and_evaluate(estimator, ht.TrainSpec(lambda context: None, max_steps=1), specs)
    assert not (tmp_path / "run").exists()
