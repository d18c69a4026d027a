"""What a job file names beside itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hpc_train import load_job
from hpc_train.config.references import names_in, renamed

JOB = """\
name: all
model: model.py:build_model
params: {shards: not-a-shard, hooks: [not-a-hook.py:f]}
data:
  train: {shards: [a-*.h5, b.h5], map_fn: maps.py:train, features: shards, epochs: 1, external: more/*.h5}
  eval: {shards: c.h5, features: {shards: x, map_fn: z}, label: {external: y}}
train: {hooks: [hooks.py:one, package.module:two], saving_listeners: listeners.py:make}
eval:
  hooks: hooks.py:three
  exporters:
    final: {serving_fn: serve.py:f, assets: [words.txt, more/labels.txt]}
    mine: {type: best, metric: loss, compare_fn: compare.py:better}
evals:
  hard: {data: {shards: hard-*.h5, map_fn: maps.py:eval}, hooks: [hooks.py:four]}
  label: {data: {shards: odd.h5, features: {hooks: x}}, exporters: {features: {type: latest, assets: few.txt}}}
  assets: {data: {shards: odd.h5}, exporters: {odd: {type: latest, assets: odd.txt}}}
warm_start_from: {ckpt_to_initialize_from: ../before, var_name_to_prev_var_name: {shards: map_fn}}
"""

NAMED = [
    ("model", "function", "model.py:build_model"),
    ("data.train.shards.0", "shard", "a-*.h5"),
    ("data.train.shards.1", "shard", "b.h5"),
    ("data.train.external.0", "shard", "more/*.h5"),
    ("data.train.map_fn", "function", "maps.py:train"),
    ("data.eval.shards.0", "shard", "c.h5"),
    ("train.hooks.0", "function", "hooks.py:one"),
    ("train.hooks.1", "function", "package.module:two"),
    ("train.saving_listeners.0", "function", "listeners.py:make"),
    ("eval.hooks.0", "function", "hooks.py:three"),
    ("eval.exporters.final.serving_fn", "function", "serve.py:f"),
    ("eval.exporters.final.assets.0", "asset", "words.txt"),
    ("eval.exporters.final.assets.1", "asset", "more/labels.txt"),
    ("eval.exporters.mine.compare_fn", "function", "compare.py:better"),
    ("evals.hard.hooks.0", "function", "hooks.py:four"),
    ("evals.hard.data.shards.0", "shard", "hard-*.h5"),
    ("evals.hard.data.map_fn", "function", "maps.py:eval"),
    ("evals.label.data.shards.0", "shard", "odd.h5"),
    ("evals.label.exporters.features.assets.0", "asset", "few.txt"),
    ("evals.assets.data.shards.0", "shard", "odd.h5"),
    ("evals.assets.exporters.odd.assets.0", "asset", "odd.txt"),
    ("warm_start_from.ckpt_to_initialize_from", "source", "../before"),
]


def loaded(tmp_path: Path) -> Any:
    (tmp_path / "job.yaml").write_text(JOB)
    return load_job(tmp_path / "job.yaml")


def found_in(job: dict[str, Any]) -> list[tuple[str, str, str]]:
    return sorted((".".join(map(str, at)), kind, name) for at, kind, name in names_in(job))


def absolute(kind: str, name: str, folder: Path) -> str:
    return name if name.startswith("package.") else f"{folder}/{name}"


def test_all_that_is_named_is_found_and_made_absolute(tmp_path: Path) -> None:
    found = found_in(loaded(tmp_path).model_dump(mode="json"))
    assert found == sorted((at, kind, absolute(kind, name, tmp_path)) for at, kind, name in NAMED)


def test_what_is_not_a_name_stays(tmp_path: Path) -> None:
    job = loaded(tmp_path)
    assert job.params == {"shards": "not-a-shard", "hooks": ["not-a-hook.py:f"]}
    assert job.data.train.features == ("shards",)
    assert job.warm_start_from.var_name_to_prev_var_name == {"shards": "map_fn"}


def test_renaming_and_back(tmp_path: Path) -> None:
    job = loaded(tmp_path).model_dump(mode="json")
    changed = renamed(job, lambda kind, name: f"{kind}<{name}>")
    assert found_in(changed) == sorted((at, kind, f"{kind}<{name}>") for at, kind, name in found_in(job))
    assert renamed(changed, lambda kind, name: name[len(kind) + 1 : -1]) == job
    assert renamed(job, lambda kind, name: name) == job


def test_what_is_found_before_a_job_is_checked() -> None:
    """Sections may be absent or None, as in a job file that says little."""
    job = {**yaml.safe_load(JOB), "evals": None, "warm_start_from": None, "eval": {"exporters": {"final": None}}}
    assert found_in(job)
    assert renamed(job, lambda kind, name: name) == job
    assert found_in({"model": "model.py:f"}) == [("model", "function", "model.py:f")]
