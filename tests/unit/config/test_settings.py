"""Settings of jobs by their path: compared, cut short, and what becomes of those that a job goes on with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hpc_train.config.settings import MAX_BYTES, Change, changes, differing, flattened, settings_of


class Model:
    pass


def test_flattened_settings() -> None:
    job = {"a": {"b": 1, "c": [1, None]}, "eval": [{"name": "x", "steps": None}, {"steps": True}], "d": {}}
    assert flattened(job) == {"a.b": "1", "a.c": "1, null", "eval[x].name": "x", "eval[x].steps": "null",
                              "eval[1].steps": "true", "d": "{}"}  # fmt: skip


def test_whatever_python_holds_is_the_same_text_in_each_process() -> None:
    job = {"params": {"array": np.arange(3), "number": np.float64(0.5), "model": Model(), "path": Path("a/b"),
                      "set": {"c", "a", "b"}, 7: (1, "x")}}  # fmt: skip
    assert settings_of(job) == {
        "params.array": "0, 1, 2",
        "params.number": "0.5",
        "params.model": "Model",
        "params.path": "a/b",
        "params.set": "a, b, c",
        "params.7": "1, x",
    }


def test_long_values_are_cut_and_still_compared() -> None:
    one, other = (settings_of({"params": {"words": ["word"] * 10**5 + [last]}}) for last in ("a", "b"))
    assert len(one["params.words"]) < 120 and one["params.words"].startswith("word, word, ")
    assert "(600,001 characters, sha256 " in one["params.words"]
    assert list(differing([one, other])) == ["params.words"]


def test_very_many_parameters_are_one_digest() -> None:
    one, other = (
        settings_of({"params": {f"word {n}": n for n in range(10**5)} | {"last": last}, "train": {"max_steps": 3}})
        for last in (1, 2)
    )
    assert one.keys() == {"params", "train.max_steps"} and len(json.dumps(one)) < MAX_BYTES
    assert list(differing([one, other])) == ["params"]


def test_a_setting_unknown_to_the_version_that_ran_is_no_difference() -> None:
    before, now = {"run.strategy": "sync", "params.a": "1"}, {"run.strategy": "sync", "run.new": "7", "params.b": "2"}
    assert differing([before, now]) == {"params.a": ["1", None], "params.b": [None, "2"]}
    assert differing([{}, now]) == {}


def test_what_becomes_of_changes() -> None:
    before = {
        "run.model_dir": "/a", "name": "a", "params.rate": "1", "run.tf_random_seed": "1", "train.max_steps": "10",
        "run.tf_random_seeds": "1", "optimizer.initial_scale": "2.0", "warm_start_from": "null",
    }  # fmt: skip
    now = {
        "run.model_dir": "/b", "name": "b", "params.rate": "2", "run.tf_random_seed": "2", "train.max_steps": "20",
        "run.tf_random_seeds": "2", "optimizer.initial_scale": "4.0", "warm_start_from": "null",
        "warm_start_from.path": "/c",
    }  # fmt: skip
    found = {change.key: change for change in changes(before, now)}
    assert found["params.rate"] == Change("params.rate", "1", "2")
    ignored = {key: change.ignored for key, change in found.items()}
    assert ignored == {
        "params.rate": "",
        "run.tf_random_seed": "the model's random states are those of the checkpoint",
        "train.max_steps": "",
        "run.tf_random_seeds": "",
        "optimizer.initial_scale": "the loss scale is that of the checkpoint",
        "warm_start_from.path": "the variables are those of the checkpoint",
    }
    over = {change.key: change.ignored for change in changes(before, now, is_over=True)}
    assert over["params.rate"] == over["optimizer.initial_scale"] == "nothing is left to train"
    assert over["train.max_steps"] == ""
    assert changes(None, now) == changes(before, before) == []
