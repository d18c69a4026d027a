"""Job files that run a program of the user's own: what they may say, and what it is started with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import UserError, load_job
from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig, load_any

JOB = """\
name: digits
module: trainer.task
args: [--data, "{folder}/data", --epochs, 3, --rate, 0.5, --shuffle, true, "--out={job_dir}/out"]
resources: {tier: BASIC, time: 90}
"""
MODEL = """\
name: tiny
model: model.py:build
data:
  train: {shards: a.h5, features: x, label: y, batch_size: 16}
  eval:  {shards: b.h5, features: x, label: y, batch_size: 16}
train: {max_steps: 20}
"""


def load(tmp_path: Path, text: str, *settings: str) -> JobConfig | ProgramConfig:
    (tmp_path / "job.yaml").write_text(text)
    return load_any(tmp_path / "job.yaml", settings)


def refused(tmp_path: Path, text: str, *settings: str) -> str:
    """The error, without the file's name."""
    with pytest.raises(UserError) as caught:
        load(tmp_path, text, *settings)
    return str(caught.value).replace(f"{tmp_path}/job.yaml:", "")


def test_a_good_file(tmp_path: Path) -> None:
    job = load(tmp_path, JOB)
    assert isinstance(job, ProgramConfig)
    assert (job.name, job.module, job.resources.tier, job.resources.time) == (
        "digits",
        "trainer.task",
        "BASIC",
        "01:30:00",
    )
    words = job.words(Path("/home/me/my code"), Path("/runs/digits_1"))
    assert words == [
        *("-m", "trainer.task", "--data", "/home/me/my code/data", "--epochs", "3", "--rate", "0.5"),
        *("--shuffle", "true", "--out=/runs/digits_1/out", "--job-dir", "/runs/digits_1"),
    ]


def test_the_least_that_it_says(tmp_path: Path) -> None:
    job = load(tmp_path, "name: a\nmodule: task\n")
    assert isinstance(job, ProgramConfig)
    assert (job.args, job.resources.tier) == ((), "BASIC")
    assert job.words(Path("/a"), Path("/b")) == ["-m", "task", "--job-dir", "/b"]


def test_settings_change_it(tmp_path: Path) -> None:
    job = load(tmp_path, JOB, "args=[--epochs, 5]", "resources.nodes=2", "module=other")
    assert isinstance(job, ProgramConfig)
    assert (job.module, job.args, job.resources.nodes) == ("other", ("--epochs", "5"), 2)


def test_a_file_of_a_model_is_read_as_ever(tmp_path: Path) -> None:
    job = load(tmp_path, MODEL, "train.max_steps=5")
    assert isinstance(job, JobConfig)
    assert job.train.max_steps == 5
    assert job == load_job(tmp_path / "job.yaml", ["train.max_steps=5"])
    elsewhere = load_any(tmp_path / "job.yaml", (), Path("/root"))
    assert isinstance(elsewhere, JobConfig)
    assert elsewhere.data.train.shards == ("/root/a.h5",)


@given(st.lists(st.text("ab{}$'\" \t%#\\", max_size=8), max_size=4))
def test_arguments_arrive_as_they_are(args: list[str]) -> None:
    job = ProgramConfig(name="a", module="m", args=args)
    assert job.words(Path("/f"), Path("/j")) == ["-m", "m", *args, "--job-dir", "/j"]


def test_places_are_put_in_once() -> None:
    job = ProgramConfig(name="a", module="m", args=("{folder}:{job_dir}:{folder}", "{other}", "{{folder}}"))
    words = job.words(Path("/a{job_dir}"), Path("/b{folder}"))
    assert words[2:5] == ["/a{job_dir}:/b{folder}:/a{job_dir}", "{other}", "{/a{job_dir}}"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOB.replace("args: [", "args: [--job-dir, x, "), r"3: args: --job-dir is added to the arguments by itself"),
        (JOB.replace("args: [", "args: [--job-dir=x, "), r"3: args: --job-dir is added .* leave it out"),
        (JOB.replace("args: [", 'args: ["a\\nb", '), r"3: args: 'a\\nb' is not allowed; an argument is text of one"),
        (JOB.replace("args: [", 'args: ["a\\0b", '), r"3: args: 'a\\x00b' is not allowed"),
        (JOB.replace("args: [", 'args: ["\\ud800", '), r"3: args: '\\ud800' is not allowed: half a char"),
        (JOB.replace("args: [", "args: [null, "), r"3: args.0: None is not allowed"),
        (JOB.replace("args: [", "args: [[a], "), r"3: args.0: \['a'\] is not allowed; it should be a text"),
        (JOB.replace("args: [", "args: [{a: b}, "), r"3: args.0: a mapping is not allowed"),
        ("name: a\nmodule: m\nargs: --epochs 3\n", r"3: args: '--epochs 3' is not allowed"),
        ("name: a\nmodule: trainer/task.py\n", r"2: module: 'trainer/task.py' is not allowed; allowed: the dotted"),
        ("name: a\nmodule: trainer.task:main\n", r"2: module: .* as in trainer.task"),
        ("name: a\nmodule: -m\n", r"2: module: '-m' is not allowed"),
        ("name: a\nmodule: a..b\n", r"2: module: 'a..b' is not allowed"),
        ("name: a\nmodule: 1a\n", r"2: module: '1a' is not allowed"),
        ('name: a\nmodule: "a\\n"\n', r"2: module: 'a\\n' is not allowed"),
        ("name: a\nmodule: null\n", r"2: module: None is not allowed"),
        ("name: 1a\nmodule: m\n", r"1: name: '1a' is not allowed; allowed: a letter"),
        ("module: m\n", r"1: name: missing"),
        ("name: a\nmodule: m\narg: [x]\n", r"3: arg: unknown key; did you mean `args`\? allowed: name, module"),
        ("name: a\nmodule: m\nresources: {teir: BASIC}\n", r"3: resources.teir: unknown key; did you mean `tier`\?"),
        ("name: a\nmodule: m\ntrain: {max_steps: 3}\n", r"3: train: unknown key; allowed: name, module, args, clu"),
        ("name: a\nmodule: m\nname: b\n", r"3: name: given twice; first on line 1"),
        (JOB + "model: model.py:f\n", r"2: `module` and `model` exclude each other"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, text: str, said: str) -> None:
    assert re.match(said, refused(tmp_path, text))


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = "name: 1a\nmodule: a b\nargs: [--job-dir]\nresources: {nodes: 0, memory: 3}\nnam: b\n"
    lines = refused(tmp_path, text, "module=a-b").splitlines()
    assert [line.partition(" is ")[0].partition(";")[0] for line in lines] == [
        "1: name: '1a'",
        "--set module: module: 'a-b'",
        "3: args: --job-dir",
        "4: resources.memory: 3",
        "4: resources.nodes: 0",
        "5: nam: unknown key",
    ]


def test_both_kinds_at_once_by_a_setting(tmp_path: Path) -> None:
    assert refused(tmp_path, MODEL, "module=trainer.task").startswith("--set module: `module` and `model` exclude each")


@pytest.mark.parametrize("text", ["", "- module\n", "module\n"])
def test_what_is_no_mapping(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text).startswith("1: a job file is a mapping with the keys name, model")


def test_a_file_of_neither_kind_is_one_of_a_model(tmp_path: Path) -> None:
    assert "model: missing" in refused(tmp_path, "name: a\n")


def test_train_says_what_starts_a_program(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    with pytest.raises(UserError) as caught:
        load_job(tmp_path / "job.yaml")
    path = tmp_path / "job.yaml"
    assert str(caught.value) == f"{path}:2: this job runs a program of its own; start it by `hpc-train submit {path}`"


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"job.yaml: cannot be read: No such file"):
        load_any(tmp_path / "job.yaml")


def test_a_cluster_becomes_words_before_those_of_the_program(tmp_path: Path) -> None:
    job = load(tmp_path, "name: a\nmodule: t\ncluster: {chief: 1, worker: 2, ps: 1}\n")
    assert isinstance(job, ProgramConfig)
    assert job.words(Path("/f"), Path("/j"))[:4] == ["-m", "hpc_train.jobs.cluster", "chief=1,worker=2,ps=1", "/j"]


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("{master: 1}", "'master' is not a role; allowed: chief, worker, ps, evaluator"),
        ("{chief: 2}", "a cluster has one chief at most"),
        ("{worker: 1, evaluator: 2}", "a cluster has one evaluator at most"),
        ("{worker: 2, ps: 1}", "with `ps`, TensorFlow wants a `chief` and `worker`s, too"),
        ("{chief: 1, ps: 1}", "with `ps`, TensorFlow wants a `chief` and `worker`s, too"),
        ("{evaluator: 1}", "no role trains; add `worker`"),
        ("{worker: 0}", "cluster.worker: 0 is not allowed; it should be greater than 0"),
        ("{worker: two}", "cluster.worker: 'two' is not allowed; it should be a whole number"),
        ("{}", "cluster: no role trains; add `worker`"),
        ("[worker]", "cluster: ['worker'] is not allowed; it should be a mapping"),
    ],
)
def test_clusters_that_tensorflow_does_not_have(tmp_path: Path, cluster: str, said: str) -> None:
    assert said in refused(tmp_path, f"name: a\nmodule: t\ncluster: {cluster}\n")
