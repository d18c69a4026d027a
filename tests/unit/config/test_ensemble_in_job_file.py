"""`ensemble:` of a job file: what is refused, where and in which words."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.config.ensemble import EnsembleSection
from hpc_train.config.job import JobConfig, load_job

JOB = """\
name: demo
model: model.py:build
data:
  train: {shards: train-*.h5, features: x, label: y}
  eval: {shards: test-*.h5, features: x, label: y}
train: {max_steps: 270}
ensemble:
"""


def job(folder: Path, *lines: str, before: str = JOB) -> JobConfig:
    path = folder / "job.yaml"
    path.write_text(before + "".join(f"  {line}\n" for line in lines))
    return load_job(path)


def ensemble(folder: Path, *lines: str) -> EnsembleSection:
    found = job(folder, *lines).ensemble
    assert found is not None
    return found


def mistakes(folder: Path, *lines: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        job(folder, *lines)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_what_is_not_said_is_the_default(tmp_path: Path) -> None:
    found = ensemble(tmp_path, "members: 5")
    assert (found.members, found.vary, found.study, found.best, found.checkpoint, found.seed) == (
        5,
        ("seed",),
        None,
        None,
        "best",
        0,
    )


def test_a_study_may_give_parameters(tmp_path: Path) -> None:
    found = ensemble(tmp_path, "members: 5", "vary: [seed, params]", "from: runs/demo_study", "best: 3")
    assert (found.study, found.best, found.trials) == ("runs/demo_study", 3, 3)
    assert ensemble(tmp_path, "members: 5", "vary: params", "from: runs/demo_study").trials == 5


def test_a_job_reads_what_it_has_written(tmp_path: Path) -> None:
    found = job(tmp_path, "members: 5", "vary: [seed, params]", "from: runs/demo_study")
    assert JobConfig.model_validate(found.model_dump(mode="json")) == found


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["members: 1"], "job.yaml:8: ensemble.members: 1 is not allowed; it should be greater than or equal to 2"),
        (["vary: [seed]"], "job.yaml:7: ensemble.members: missing, and it has no default"),
        (["members: 2", "vary: []"], "job.yaml:9: ensemble.vary: [] is not allowed; it should be a list of 1 at least"),
        (["members: 2", "vary: [seed, seed]"], "job.yaml:9: ensemble.vary: names seed more than once"),
        (
            ["members: 2", "vary: [seeds]"],
            "job.yaml:9: ensemble.vary.0: 'seeds' is not allowed; allowed: 'seed', 'rows' or 'params'; "
            "did you mean `seed`?",
        ),
        (
            ["members: 2", "vary: [params]"],
            "job.yaml:9: ensemble.vary: `params` are those of a study's best trials; give its folder as `from`",
        ),
        (
            ["members: 2", "from: runs/x"],
            "job.yaml:7: ensemble: `from` gives parameters, which do not vary; give `vary: [params]`, or leave it out",
        ),
        (
            ["members: 2", "best: 2"],
            "job.yaml:9: ensemble.best: says how many trials of a study are taken, and there is none; give its folder "
            "as `from`",
        ),
        (
            ["members: 2", "vary: params", "from: x", "best: 3"],
            "job.yaml:11: ensemble.best: 3 trials are more than the 2 members, each of which takes one",
        ),
        (
            ["members: 3", "vary: params", "from: x", "best: 2"],
            "job.yaml:11: ensemble.best: 2 trials for 3 members would give some of them twice the same model; let "
            "`seed` or `rows` vary, too",
        ),
        (
            ["members: 2", "form: x"],
            "job.yaml:9: ensemble.form: unknown key; did you mean `from`? allowed: members, from, vary, best, "
            "checkpoint, seed, combine, cycle",
        ),
        (
            ["members: 2", "vary: rows", "checkpoint: last", "combine: snapshot"],
            "job.yaml:11: ensemble.combine: `snapshot` is of checkpoints of one run; leave vary, checkpoint out",
        ),
        (
            ["members: 2", "cycle: 9"],
            "job.yaml:9: ensemble.cycle: is for checkpoints of one run; give `combine: snapshot` or `weights`, too",
        ),
        (["members: 2", "study: x"], "job.yaml:9: ensemble.study: the folder of the study is the value of `from`"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, lines: list[str], wanted: str) -> None:
    assert mistakes(tmp_path, *lines) == [wanted]


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    found = mistakes(tmp_path, "members: 1", "vary: [x]", "checkpoint: newest", "seed: -1", "sized: 3")
    assert [line.split(": ")[1] for line in found] == [
        "ensemble.members",
        "ensemble.vary.0",
        "ensemble.checkpoint",
        "ensemble.seed",
        "ensemble.sized",
    ]


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("data.train.shuffle=block", "--set data.train: `bootstrap` draws from all rows"),
        ("data.eval.bootstrap=1", "`bootstrap` is for training; an evaluation reads its rows once"),
    ],
)
def test_rows_are_drawn_where_they_can_be(tmp_path: Path, setting: str, wanted: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.partition("ensemble")[0])
    assert load_job(path, ["data.train.bootstrap=1"]).data.train.bootstrap == 1
    with pytest.raises(UserError, match=wanted.partition(": ")[2] or wanted):
        load_job(path, ["data.train.bootstrap=1", setting])


@given(
    st.sampled_from(["snapshot", "weights"]),
    st.integers(2, 9),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 9),
    st.integers(1, 300),
)
def test_members_of_one_run_are_its_last_checkpoints_a_cycle_apart(
    combine: str, members: int, cycle: int | None, rate: int | None, max_steps: int
) -> None:
    section = EnsembleSection(members=members, combine=combine, cycle=cycle)
    parts = members if combine == "snapshot" else 4 * members
    given = cycle or rate
    try:
        steps = section.snapshots(max_steps, rate)
    except ValueError:
        bad = max_steps % given or max_steps < members * given if given else max_steps % parts or max_steps < parts
        assert bad or (cycle and rate and cycle % rate)
        return
    assert len(steps) == members and steps[-1] == max_steps and steps[0] > 0
    apart = {second - first for first, second in itertools.pairwise(steps)}
    assert apart == {given or max_steps // parts} and all(step % (steps[1] - steps[0]) == 0 for step in steps)
