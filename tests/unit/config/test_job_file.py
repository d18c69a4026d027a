from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpc_train import UserError, load_job
from hpc_train.config.job import JobConfig
from hpc_train.config.resources import ResourceOptions, resolve

GOOD = """\
name: fashion_mnist
model: model.py:build_model
params: {learning_rate: 1e-3, note: yes, time: 1:30}
data:
  train: {shards: data/train-*.h5, features: image, label: label, batch_size: 64, shuffle: global, seed: 1}
  eval:  {shards: [data/test-*.h5, more.h5],  features: [a, b],  label: label, batch_size: 256}
run:   {strategy: sync, save_checkpoints_steps: 200, keep_checkpoint_max: 5}
train: {max_steps: 2000}
eval:  {steps: null, throttle_secs: 0, exporters: {final: {}}}
resources: {tier: BASIC}
"""

BAD = """\
name: 1bad
modle: model.py:build_model
params: {learning_rate: 1e-3}
params: {x: 1}
data:
  train: {shards: data/train-*.h5, batch_size: 0, shufle: global, shuffle: globl, seed: 1}
  eval:  {features: [a, b],  label: a, batch_size: "256"}
run:   {strategy: synk, save_checkpoints_steps: 200, save_checkpoints_secs: 3, keep_checkpoint_max: 5.5}
train: {max_steps: 0}
eval:  {steps: null, throttle_secs: -1, exporters: {final: {}, finl: {}}}
resources: {tier: basic}
foo: !!python/object:os.system {}
"""


def read(tmp_path: Path, text: str) -> str:
    """The error of a job file."""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_job(path)
    assert not [p for p in tmp_path.iterdir() if p != path]
    return str(caught.value).replace(f"{path}:", "")


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(GOOD)
    job = load_job(path)
    assert job.params == {"learning_rate": 0.001, "note": "yes", "time": "1:30"}
    assert job.model == f"{tmp_path}/model.py:build_model"
    assert job.data.train.shards == (f"{tmp_path}/data/train-*.h5",)
    assert job.data.eval.features == ("a", "b")
    train, [evaluation], run = job.train_spec(), job.eval_specs(), job.run_config(tmp_path / "run")
    assert (train.max_steps, train.input_fn) == (2000, job.data.train)
    assert (evaluation.steps, evaluation.throttle_secs, evaluation.start_delay_secs) == (None, 0, 120)
    assert [e.name for e in evaluation.exporters] == ["final"]
    assert (run.model_dir, run.save_checkpoints_steps, run.checkpoint_interval_secs) == (tmp_path / "run", 200, None)


def test_each_input_names_its_own_datasets(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(GOOD.replace("features: [a, b],  label: label,", "features: {image: x_test}, label: y_test,"))
    job = load_job(path)
    assert (job.data.eval.features, job.data.eval.label) == ({"image": "x_test"}, ("y_test",))
    assert JobConfig.model_validate(job.model_dump(mode="json")) == job
    path.write_text(GOOD.replace("features: [a, b],", "features: {image: [a, b]},"))
    with pytest.raises(
        UserError, match=r"job\.yaml:6: data\.eval\.features: {'image': \['a', 'b'\]} is not allowed; al"
    ):
        load_job(path)


def test_what_resources_leave_out_the_tier_gives(tmp_path: Path) -> None:
    path, tier = tmp_path / "job.yaml", ResourceOptions(memory="4G", partition="batch", time="01:00:00")
    path.write_text(GOOD.replace("{tier: BASIC}", "{tier: BASIC, memory: null, time: 2-00:00:00}"))
    found = resolve(load_job(path).resources, tier)
    assert (found.memory, found.partition, found.time) == (None, "batch", "2-00:00:00")


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    lines = read(tmp_path, BAD).splitlines()
    expected = [
        ("1", "model: missing"),
        ("1", "name: '1bad' is not allowed"),
        ("2", "modle: unknown key; did you mean `model`?"),
        ("4", "params: given twice; first on line 3"),
        ("6", "data.train.batch_size: 0 is not allowed; it should be greater than 0"),
        ("6", "data.train.shuffle: 'globl' is not allowed; .*did you mean `global`?"),
        ("6", "data.train.shufle: unknown key; did you mean `shuffle`?"),
        ("7", "data.eval.batch_size: '256' is not allowed"),
        ("7", "data.eval.label: names a more than once among"),
        ("7", "data.eval.shards: missing"),
        ("8", "run.keep_checkpoint_max: 5.5 is not allowed"),
        ("8", "run.save_checkpoints_secs: give `save_checkpoints_steps` or `save_checkpoints_secs`, not both"),
        ("8", "run.strategy: 'synk' is not allowed; allowed: 'sync'"),
        ("9", "train.max_steps: 0 is not allowed"),
        ("10", "eval.exporters.finl: unknown key; did you mean `final`?"),
        ("10", "eval.throttle_secs: -1 is not allowed"),
        ("11", "resources.tier: 'basic' is not allowed"),
        ("12", "foo: unknown key; allowed: name, model, params"),
        ("12", "the tag 'tag:yaml.org,2002:python/object:os.system' is not allowed"),
    ]
    assert len(lines) == len(expected), "\n".join(lines)
    for (number, text), line in zip(expected, lines, strict=True):
        assert re.match(rf"{number}: {text.replace('?', chr(92) + '?')}", line), line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1: a job file is a mapping"),
        ("- a\n", "1: a job file is a mapping"),
        ("name: [a\n", "not valid YAML"),
        ("name: a\n\tb: c\n", "2: not valid YAML"),
        ("name: &x a\nmodel: *x\n", "2: an alias"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper than 32"),
        ("a: " + "[" * 5000, "nested deeper than 32"),
        ("a: [" + "1," * 20_000 + "]", "1: more than 20,000 keys and values"),
        (GOOD.replace("1e-3", "1" * 101), "3: '1{60}…' is not a number that can be used"),
        ("name: " + "a" * (1 << 20), "larger than 1024 KiB"),
        ("name: a; rm -rf ~\n", "name: 'a; rm -rf ~' is not allowed; allowed: a letter"),
        ("name: ../up\n", "name: '../up' is not allowed"),
        ("name: a\nmodel: nothing\n", "model: 'nothing' is not allowed; allowed: file.py:function"),
        (GOOD.replace("train: {max_steps: 2000}", ""), "training would never end"),
        (GOOD.replace("max_steps: 2000", "max_steps: -5"), "train.max_steps: -5 is not allowed"),
        (GOOD.replace("batch_size: 256", "epochs: 3"), "6: data.eval: `epochs` is for training"),
        (GOOD.replace("max_steps: 2000", "max_steps: 2000, epochs: 3"), "train.epochs: unknown key"),
        (GOOD.replace("batch_size: 256", "map_fn: 5"), "6: data.eval.map_fn: 5 is not allowed; allowed: a function"),
        (GOOD.replace("batch_size: 256", "map_fn: aug.py"), "6: data.eval.map_fn: 'aug.py' is not allowed; allowed"),
        (GOOD.replace("batch_size: 256", "map_fn: numpy.py:f"), "data.eval.map_fn: .* hides the module numpy"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    assert re.search(said, read(tmp_path, text))


def test_map_fn_is_relative_to_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(GOOD.replace("batch_size: 256", "map_fn: input/aug.py:f, batch_size: 256"))
    job = load_job(tmp_path / "job.yaml")
    assert job.data.eval.map_fn == f"{tmp_path}/input/aug.py:f"
    assert JobConfig.model_validate(json.loads(json.dumps(job.model_dump(mode="json")))) == job


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"job.yaml: cannot be read: No such file"):
        load_job(tmp_path / "job.yaml")
