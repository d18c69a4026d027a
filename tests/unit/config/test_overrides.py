"""`--set KEY=VALUE`: what it changes of a job file, and where its mistakes are said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_train import UserError, load_job
from hpc_train.config.job import strategy_in
from hpc_train.config.overrides import overridden
from hpc_train.config.yaml_loader import Document, read_yaml

JOB = """\
name: tiny
model: code/model.py:build_model
params: {learning_rate: 1e-3}
data:
  train: {shards: [data/train-*.h5, /there/more.h5], features: x, label: y, batch_size: 16}
  eval:  {shards: data/test-*.h5, features: x, label: y, batch_size: 16, map_fn: aug.py:augment}
run: {}
train: {max_steps: 20}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def document(job_file: Path, text: str = JOB) -> Document:
    job_file.write_text(text)
    return read_yaml(job_file)


def refused(job_file: Path, *settings: str) -> list[str]:
    """The lines of the error."""
    with pytest.raises(UserError) as caught:
        load_job(job_file, settings)
    return str(caught.value).splitlines()


def test_a_key_gets_another_value_and_the_rest_stays(job_file: Path) -> None:
    before = read_yaml(job_file)
    after = overridden(before, ["train.max_steps=500", "params.learning_rate=0.5"])
    assert after.value == {**before.value, "train": {"max_steps": 500}, "params": {"learning_rate": 0.5}}
    assert before == read_yaml(job_file), "the document itself is as it was"


def test_keys_are_made_where_there_are_none(job_file: Path) -> None:
    settings = ["run.strategy=async", "resources.environment.A=b", "params.deep.deeper=1"]
    value = overridden(document(job_file, JOB.replace("run: {}", "run:")), settings).value
    assert value["run"] == {"strategy": "async"}, "where there was null"
    assert value["resources"] == {"environment": {"A": "b"}}, "where there was nothing"
    assert value["params"] == {"learning_rate": 0.001, "deep": {"deeper": 1}}


def test_the_last_one_wins(job_file: Path) -> None:
    settings = ["train.max_steps=1", "train={}", "train.max_steps=2", "train.max_steps=3"]
    assert overridden(read_yaml(job_file), settings).value["train"] == {"max_steps": 3}
    assert overridden(read_yaml(job_file), ["train.max_steps=1", "train={}"]).value["train"] == {}


def test_an_empty_file_takes_keys(job_file: Path) -> None:
    assert overridden(document(job_file, ""), ["a.b=1"]).value == {"a": {"b": 1}}
    assert overridden(document(job_file, ""), []).value is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 0.001),
        ("yes", "yes"),
        ("true", True),
        ("1:30", "1:30"),
        ("", None),
        ("null", None),
        ("a b", "a b"),
        ("a=b", "a=b"),
        ("--x=1", "--x=1"),
        ("[a, 1, {b: c}]", ["a", 1, {"b": "c"}]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ('"1"', "1"),
        ("'a: b # c'", "a: b # c"),
        ("größe", "größe"),
    ],
)
def test_values_are_yaml(job_file: Path, text: str, value: Any) -> None:
    found = overridden(read_yaml(job_file), [f"params.x={text}"]).value["params"]["x"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "setting",
    ["", "=", "=1", "train", "train.max_steps", "train.=1", ".train=1", "a..b=1", "a b=1", "1a=2", "a[0]=1", "a-b=1",
     "a:1", "a\n=1", " a=1", "größe=1"],
)  # fmt: skip
def test_what_is_no_setting(job_file: Path, setting: str) -> None:
    with pytest.raises(UserError, match=r"is not allowed; allowed: KEY=VALUE, as in train\.max_steps=500") as caught:
        overridden(read_yaml(job_file), ["train.max_steps=1", setting])
    assert repr(setting) in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("a=[1", "--set a: '[1' is not valid YAML"),
        ("a={b", "--set a: '{b' is not valid YAML"),
        ("a=--- 1\n--- 2", "is not valid YAML"),
        ("a=\0", "is not valid YAML"),
        ("a=&x 1", ""),
        ("a=*x", "--set a:1: an alias (*name); write the value out"),
        ("a={b: 1, b: 2}", "--set a: b: given twice"),
        ("a=!!python/object:os.system {}", "--set a: the tag 'tag:yaml.org,2002:python/object:os.system' is not"),
        ("a=" + "[" * 5000, "--set a:1: nested deeper than 32 levels"),
        ("a=[" + "1," * 20_001 + "]", "--set a:1: more than 20,000 keys and values"),
        ("a=" + "1" * 101, "is not a number that can be used"),
    ],
)
def test_values_that_are_refused(job_file: Path, setting: str, said: str) -> None:
    if not said:  # an anchor that nothing names does no harm
        assert overridden(read_yaml(job_file), [setting]).value["a"] == 1
        return
    with pytest.raises(UserError) as caught:
        overridden(read_yaml(job_file), [setting])
    assert said in str(caught.value)


@pytest.mark.parametrize("setting", ["name.x=1", "train.max_steps.x=1", "data.train.shards.a=1"])
def test_there_are_no_keys_below_a_value(job_file: Path, setting: str) -> None:
    with pytest.raises(UserError, match=rf"^--set {setting[:-2]}: the job file has a value there, and no keys"):
        overridden(read_yaml(job_file), [setting])


def test_a_file_that_is_a_list_has_no_keys(job_file: Path) -> None:
    with pytest.raises(UserError, match=r"^--set a: the job file has a value there, and no keys below it"):
        overridden(document(job_file, "- x\n"), ["a=1"])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.max_steps=0", "--set train.max_steps: train.max_steps: 0 is not allowed; it should be greater than 0"),
        ("name=1bad", "--set name: name: '1bad' is not allowed; allowed: a letter, then"),
        ("train={max_steps: 0}", "--set train: train.max_steps: 0 is not allowed"),
        ("train={max_stps: 1}", "--set train: train.max_stps: unknown key; did you mean `max_steps`?"),
        ("run={parameter_server: [1]}", "--set run: run.parameter_server: unknown key; did you mean `parameter_ser"),
        ("data.train={shards: [3]}", "--set data.train: data.train.shards.0: 3 is not allowed"),
        ("train.max_stps=1", "--set train.max_stps: train.max_stps: unknown key; did you mean `max_steps`?"),
        ("trian.max_steps=1", "--set trian.max_steps: trian: unknown key; did you mean `train`?"),
        ("resources.teir.x=1", "--set resources.teir.x: resources.teir: unknown key; did you mean `tier`?"),
        ("resources.tier=basic", "--set resources.tier: resources.tier: 'basic' is not allowed; allowed: capital"),
        ("run.strategy=synk", "--set run.strategy: run.strategy: 'synk' is not allowed; allowed: 'sync'"),
        ("model=../up.py:f", "--set model: model: '../up.py:f' is not allowed; allowed: a file in the job file's"),
        ("data.eval.map_fn=/a.py:f", "--set data.eval.map_fn: data.eval.map_fn: '/a.py:f' is not allowed"),
    ],
)
def test_a_mistake_is_where_it_was_made(job_file: Path, setting: str, said: str) -> None:
    lines = refused(job_file, setting)
    assert lines[0].startswith(said), lines
    assert len(lines) == 1


def test_mistakes_of_the_file_keep_their_lines(job_file: Path) -> None:
    job_file.write_text(JOB.replace("batch_size: 16}", "batch_size: 0}").replace("name: tiny", "name: 1x"))
    lines = refused(job_file, "train.max_steps=-1", "params.x=1", "data.train.seed=x")
    starts = [
        f"{job_file}:1: name: '1x'",
        "--set data.train.seed: data.train.seed: 'x'",
        f"{job_file}:5: data.train.batch_size: 0",
        "--set train.max_steps: train.max_steps: -1",
    ]
    assert [line[: len(start)] for line, start in zip(lines, starts, strict=True)] == starts


def test_the_option_that_came_last_is_named(job_file: Path) -> None:
    assert refused(job_file, "train={}", "train.max_steps=0")[0].startswith("--set train.max_steps: ")
    assert refused(job_file, "train.max_steps=1", "train={max_steps: 0}")[0].startswith("--set train: ")


def test_a_setting_mends_a_file(job_file: Path) -> None:
    job_file.write_text(JOB.replace("name: tiny", "name: 1x"))
    assert load_job(job_file, ["name=tiny2", "train.max_steps=500"]).name == "tiny2"


def test_data_lie_elsewhere_and_code_beside_the_job_file(job_file: Path, tmp_path: Path) -> None:
    root = tmp_path / "of [1] user"
    job = load_job(job_file, ["data.eval.shards=[a.h5, b/*.h5]"], root)
    assert job.model == f"{tmp_path}/code/model.py:build_model"
    assert job.data.eval.map_fn == f"{tmp_path}/aug.py:augment"
    escaped = f"{tmp_path}/of [[]1] user"
    assert job.data.train.shards == (f"{escaped}/data/train-*.h5", "/there/more.h5"), "an absolute one stays"
    assert job.data.eval.shards == (f"{escaped}/a.h5", f"{escaped}/b/*.h5")


def test_a_relative_data_root_is_that_of_the_working_directory(
    job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_job(job_file, (), Path("root")).data.eval.shards == (f"{tmp_path}/elsewhere/root/data/test-*.h5",)
    assert load_job(Path("../job.yaml")).data.eval.shards[0].endswith("/data/test-*.h5")


def test_the_strategy_as_it_is_set(job_file: Path) -> None:
    assert strategy_in(job_file) == "sync"
    assert strategy_in(job_file, ["run.strategy=async"]) == "async"
    assert strategy_in(job_file, ["run.strategy=async", "run={}"]) == "sync"
    assert strategy_in(job_file, ["wrong"]) == strategy_in(job_file, ["run=async"]) == "sync"
    assert strategy_in(job_file.with_name("absent.yaml"), ["run.strategy=async"]) == "sync"
