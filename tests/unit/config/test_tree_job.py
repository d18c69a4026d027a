"""What a job file says that trees do not follow is refused by name, all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.job import load_job
from hpc_train.errors import UserError
from hpc_train.models.function import builtin_model

SCHEMA = """\
task: binary
columns:
  x: {type: number, role: numeric}
  y: {type: boolean, role: label, vocabulary: [false, true]}
"""
JOB = """\
name: trees
model: {builtin: gbdt, schema: schema.yaml, max_depth: 3}
data:
  train: {shards: train-*.h5, batch_size: 64, seed: 3}
  eval: {shards: test-*.h5}
train:
  max_steps: 20
  class_weight: {1: 3.0}
  early_stopping: {stop_if_no_decrease: {metric_name: loss, max_steps_without_decrease: 5}}
run: {save_checkpoints_steps: 5, keep_checkpoint_max: 2, best_metric: auc, best_mode: max}
eval: {steps: null, throttle_secs: 0, exporters: {best: {metric: auc, mode: max}, final: {}}}
"""


def job(folder: Path, text: str, *settings: str) -> GBDTModel:
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "job.yaml").write_text(text)
    model = load_job(folder / "job.yaml", settings).model
    assert isinstance(model, GBDTModel)
    return model


def test_what_trees_follow_is_taken(tmp_path: Path) -> None:
    model = job(tmp_path, JOB)
    assert (model.max_depth, model.learning_rate, model.l2) == (3, 0.1, 1.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["run.strategy=async"], ["run.strategy: is not for trees"]),
        (["run.mixed_precision=bfloat16", "run.accumulate_steps=2"], ["run.mixed_precision: is", "run.accumulate_s"]),
        (["train.max_steps=null", "data.train.epochs=3"], ["train.max_steps: trees need a number", "epochs: is"]),
        (["eval.steps=5"], ["eval.steps: trees are evaluated on all rows; give null"]),
        (["eval.throttle_secs=60"], ["eval.throttle_secs: trees are evaluated after each checkpoint; give 0"]),
        (["eval.exporters.final.serving_fn=a.py:f"], ["eval.exporters.final.serving_fn: is not for trees"]),
        (["model.optimizer=adam"], ["model.optimizer: unknown key"]),
        (["model.max_depth=0"], ["model.max_depth: 0 is not allowed"]),
        (["model.learning_rate=1e-50"], ["model.learning_rate: 1e-50 is not allowed"]),
        (["model.gamma=1e39"], ["model.gamma: 1e+39 is not allowed"]),
        (["model.min_child_weight=.inf"], ["model.min_child_weight: inf is not allowed"]),
        (["warm_start_from=other"], ["warm_start_from: is not for trees"]),
        (["train.hooks=[a.py:f]"], ["train.hooks: is not for trees"]),
        (["data.train.stage=node"], ["data.train.stage: is not for trees"]),
    ],
)  # fmt: skip
def test_what_they_do_not_is_refused(settings: list[str], expected: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        job(tmp_path, JOB, *settings)
    lines = str(refused.value).splitlines()
    assert len(lines) == len(expected)
    for text in expected:
        assert any(text in line for line in lines), lines


def test_python_is_told_the_way_on(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    with pytest.raises(UserError, match="'gbdt' is no Keras model; give it in a job file"):
        builtin_model("gbdt", tmp_path / "schema.yaml")
