"""`tune:` of a job file: what is refused, where and in which words, and what a trial's job has of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_train import UserError
from hpc_train.config.job import JobConfig, job_in
from hpc_train.config.overrides import overridden
from hpc_train.config.tune.section import Asha, Goal, Median
from hpc_train.config.tune.trial_settings import check_study, rungs_of, trial_settings
from hpc_train.config.yaml_loader import read_yaml

JOB = """\
name: demo
model: model.py:build
params: {learning_rate: 0.1, width: 8, kind: a}
data:
  train: {shards: train-*.h5, features: x, label: y}
  eval: {shards: test-*.h5, features: x, label: y}
train: {max_steps: 270}
evals: {other: {data: {shards: other-*.h5, features: x, label: y}}}
tune:
"""
GOAL = "goal: {metric: accuracy, mode: max}"
SPACE = "space: {params.width: {int: [1, 8]}, params.learning_rate: {log: [1e-4, 1]}}"
TRIALS = "max_trials: 5"
LINE = 10
"""Of the first key of `tune`."""


def study(folder: Path, *lines: str, job: str = JOB) -> JobConfig:
    """The job of a file whose `tune` has these lines, checked."""
    path = folder / "job.yaml"
    path.write_text(job + "".join(f"  {line}\n" for line in lines))
    document = read_yaml(path)
    found = job_in(document)
    check_study(document, found)
    return found


def mistakes(folder: Path, *lines: str, job: str = JOB) -> list[str]:
    with pytest.raises(UserError) as caught:
        study(folder, *lines, job=job)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_what_is_not_said_is_the_default(tmp_path: Path) -> None:
    tune = study(tmp_path, GOAL, SPACE, TRIALS).tune
    assert tune is not None
    assert (tune.sampler, tune.seed, tune.max_failed_trials, tune.early_stopping, tune.first) == (
        "random",
        0,
        3,
        None,
        (),
    )
    assert tune.goal == Goal(metric="accuracy", mode="max")
    assert tune.goal.kind == "eval"
    assert study(tmp_path, GOAL, SPACE, TRIALS, "early_stopping: none").tune == tune


def test_a_study_travels_as_json(tmp_path: Path) -> None:
    job = study(
        tmp_path,
        "goal: {metric: loss, mode: min, eval: other}",
        "space:",
        "  params.kind: {choice: [a, 1, null, [1, 2]]}",
        "  params.width: {int: [1, 8], scale: log, points: 3, when: {params.kind: [1, null]}}",
        "  params.learning_rate: {uniform: [0, 1], when: {params.kind: a}}",
        "max_trials: 7",
        "parallel_trials: 2",
        "max_failed_trials: 0",
        "max_hours: 1.5",
        "seed: 9",
        "sampler: tpe",
        "early_stopping: {asha: {first_rung: 10, factor: 2}}",
        "first: [{params.kind: 1, params.width: 3}, {params.kind: [1, 2]}, {}]",
    )
    sent = json.dumps(job.model_dump(mode="json"))
    assert JobConfig.model_validate(json.loads(sent)) == job
    assert json.dumps(JobConfig.model_validate(json.loads(sent)).model_dump(mode="json")) == sent


WRONG = [
    # The goal.
    ("goal: accuracy", "goal: 'accuracy' is not allowed; it should be a mapping"),
    ("goal: {metric: a}", "goal.mode: missing"),
    ("goal: {mode: max}", "goal.metric: missing"),
    ('goal: {metric: "", mode: max}', "goal.metric: '' is not allowed"),
    ("goal: {metric: a, mode: maximize}", "goal.mode: 'maximize' is not allowed; allowed: 'min' or 'max'"),
    ("goal: {metric: a, mode: max, evl: b}", "goal.evl: unknown key; did you mean `eval`?"),
    (
        "goal: {metric: a, mode: max, eval: othr}",
        "goal.eval: 'othr' is no evaluation set; did you mean `other`? allowed: other",
    ),
    # Keys that do not exist, or cannot vary.
    ("space: {}", "space: it has no key"),
    ("space: {params.width: 3}", "space.params.width: 3 is not allowed; it should be a mapping"),
    ("space: {params.widht: {int: [1, 2]}}", "'widht' is not among the job's params; did you mean `width`?"),
    (
        "space: {data.train.batchsize: {int: [1, 2]}}",
        "with 1: data.train.batchsize: unknown key; did you mean `batch_size`?",
    ),
    ("space: {rn.strategy: {choice: [sync]}}", "rn: unknown key; did you mean `run`?"),
    ("space: {params.width: {int: [1, 8]}, a.b: {choice: [1]}}", "space.a.b: with 1: a: unknown key"),
    ("space: {model.builtin: {choice: [dnn]}}", "model.builtin: the job file has a value there, and no keys below it"),
    ("space: {job-dir: {choice: [a]}}", "'job-dir' is not a key of a job file"),
    ("space: {name: {choice: [a, b]}}", "name cannot vary: each trial gets a name of its own"),
    ("space: {tune.seed: {choice: [1, 2]}}", "tune.seed cannot vary: a study is one of jobs"),
    ("space: {resources.ranks: {choice: [1, 2]}}", "resources.ranks cannot vary: the trials of a study share slots"),
    (
        "space: {data.eval.shards: {choice: [a, b]}}",
        "data.eval.shards cannot vary: trials that are evaluated on other rows",
    ),
    ("space: {data.eval: {choice: [a, b]}}", "data.eval cannot vary"),
    (
        "space: {evals.other.steps: {choice: [1, 2]}}",
        "evals.other.steps cannot vary: trials that are evaluated otherwise",
    ),
    ("space: {run.best_metric: {choice: [a]}}", "run.best_metric cannot vary: it is the metric of the study's `goal`"),
    (
        "space: {params: {choice: [{}]}, params.width: {int: [1, 2]}}",
        "params.width lies below params, which varies, too",
    ),
    # Values.
    ("space: {params.width: {int: [2, 2]}}", "[2, 2] has one value alone"),
    ("space: {params.width: {int: [2, 1]}}", "[2, 1] is the wrong way round; allowed: [lowest, highest], as [1, 2]"),
    ("space: {params.width: {uniform: []}}", "[] is not allowed; allowed: [lowest, highest]"),
    ("space: {params.width: {uniform: [0, .inf]}}", "[0.0, inf] is not allowed; allowed: two finite numbers"),
    ("space: {params.width: {log: [0, 1]}}", "[0.0, 1.0] begins at 0 or below, which has no logarithm"),
    ("space: {params.width: {choice: []}}", "space.params.width.choice: [] is not allowed"),
    ("space: {params.width: {choice: [.nan, 1]}}", "allowed: what JSON can hold, with finite numbers"),
    ("space: {params.width: {loguniform: [1, 2]}}", "the ranges are called `uniform`, `log`, `int` and `choice`"),
    (
        "space: {train.max_steps: {int: [-1, 5]}}",
        "with -1: train.max_steps: -1 is not allowed; it should be greater than 0",
    ),
    ("space: {run.on_nan: {choice: [skip, b]}}", 'with "b": run.on_nan: '),
    # Conditions.
    (
        "space: {params.width: {int: [1, 2], when: {params.kind: a}}, params.kind: {choice: [a], "
        "when: {params.width: 1}}}",
        "space.params.width.when: matters only when it matters: params.width when params.kind when params.width",
    ),
    (
        "space: {params.width: {int: [1, 2], when: {params.knd: a}}}",
        "when.params.knd: 'params.knd' is no key of the space",
    ),
    # Samplers.
    ("sampler: rndom", "sampler: 'rndom' is not allowed"),
    ("sampler: grid", "sampler: `grid`: params.learning_rate: a grid needs to know how many values"),
    # Numbers.
    ("max_trials: 0", "max_trials: 0 is not allowed; it should be greater than 0"),
    ("max_trials: 100001", "max_trials: 100001 is not allowed; it should be less than or equal to 100000"),
    ("max_trials: null", "max_trials: `max_trials` is missing, and without it the study would never end"),
    ("n_trials: 3", "n_trials: `max_trials` says how many trials there are"),
    ("max_failed_trials: -1", "max_failed_trials: -1 is not allowed"),
    ("max_hours: 0", "max_hours: 0 is not allowed"),
    ("parallel_trials: 0", "parallel_trials: 0 is not allowed"),
    ("seed: -1", "seed: -1 is not allowed"),
    # Early stopping.
    ("early_stopping: hyperband", "early_stopping: 'hyperband' is not allowed; allowed: asha, median, none"),
    ("early_stopping: {}", "early_stopping: an empty mapping is not allowed"),
    ("early_stopping: {asha: {}, median: {}}", "early_stopping: asha and median exclude each other"),
    ("early_stopping: {asha: {factor: 1}}", "early_stopping.asha.factor: 1 is not allowed"),
    ("early_stopping: {asha: {first_rung: 270}}", "no step below train.max_steps (270) is left to compare trials at"),
    # Populations.
    ("population: 8", "population: 8 is not allowed; it should be a mapping"),
    ("population: {every_steps: 270}", "no step below train.max_steps (270) is left to compare trials at"),
    ("population: {size: 1}", "population.size: 1 is not allowed; it should be greater than or equal to 2"),
    ("population: {size: 3}", "none would ever be replaced; give a larger `size`, or a `quantile` of 0.3334"),
    ("population: {quantile: 0.6}", "population.quantile: 0.6 is not allowed"),
    ("population: {factors: [1, 1.0]}", "population.factors: factors of 1 change no value"),
    ("population: {factors: [0, 2]}", "population.factors: 0.0 is not allowed; allowed: numbers above 0"),
    ("population: {factors: []}", "population.factors: "),
    ("population: {resample: 2}", "population.resample: 2"),
    ("population: {every_step: 3}", "population.every_step: unknown key; did you mean `every_steps`?"),
    ("population: {perturbation_interval: 3}", "`every_steps` says how often trials are compared"),
    # The first points.
    ("first: [{params.width: 9}]", "first.0.params.width: 9 is not allowed; allowed: a whole number from 1 to 8"),
    (
        "first: [{}, {params.wdth: 1}]",
        "first.1.params.wdth: 'params.wdth' is no key of the space; did you mean `params.width`?",
    ),
    ("first: [3]", "first.0: 3 is not allowed; it should be a mapping"),
]


@pytest.mark.parametrize(("line", "words"), WRONG, ids=[line[:60] for line, _ in WRONG])
def test_a_mistake_is_told_once_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    given = {text.partition(":")[0]: text for text in (GOAL, SPACE, TRIALS)} | {line.partition(":")[0]: line}
    if line.startswith("population"):
        given["max_trials"] = "max_trials: null"
    (told,) = mistakes(tmp_path, *given.values())
    assert told.startswith(f"job.yaml:{LINE + list(given.values()).index(line)}: tune.")
    assert words in told


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ("{params.width: {int: [1, 8]}}", "`cmaes` is for two keys and more"),
        (
            "{params.width: {int: [1, 8]}, params.kind: {choice: [a, b]}}",
            "params.kind has a choice; take tpe or random",
        ),
        (
            "{params.width: {int: [1, 8]}, params.learning_rate: {uniform: [0, 1], when: {params.width: 3}}}",
            "params.learning_rate has `when`",
        ),
    ],
)
def test_cmaes_is_for_ranges_alone(tmp_path: Path, space: str, words: str) -> None:
    (told,) = mistakes(tmp_path, GOAL, f"space: {space}", TRIALS, "sampler: cmaes")
    assert told.startswith(f"job.yaml:{LINE + 3}: tune.sampler: `cmaes`")
    assert words in told


def test_a_study_that_would_never_end_is_refused(tmp_path: Path) -> None:
    assert mistakes(tmp_path, GOAL, SPACE) == [
        "job.yaml:9: tune: `max_trials` is missing, and without it the study would never end"
    ]
    grid = "space: {params.width: {int: [1, 400]}, params.learning_rate: {int: [1, 400]}}"
    (told,) = mistakes(tmp_path, GOAL, grid, "sampler: grid")
    assert told == "job.yaml:9: tune: the grid has more than 100,000 points; give `max_trials`"
    small = study(tmp_path, GOAL, "space: {params.width: {int: [1, 400]}}", "sampler: grid").tune
    assert small is not None
    assert small.max_trials is None


def test_a_key_that_early_stopping_compares_by_cannot_vary_then(tmp_path: Path) -> None:
    space = "space: {train.max_steps: {int: [10, 20]}, run.save_checkpoints_steps: {int: [1, 5]}}"
    study(tmp_path, GOAL, space, TRIALS)
    assert mistakes(tmp_path, GOAL, space, TRIALS, "early_stopping: median") == [
        "job.yaml:11: tune.space: run.save_checkpoints_steps cannot vary: "
        "`early_stopping` compares trials at the same steps",
        "job.yaml:11: tune.space: train.max_steps cannot vary: `early_stopping` compares trials at steps of one length",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("early_stopping: asha", "tune.early_stopping: a `population` ends its worst trials by itself"),
        ("sampler: tpe", "tune.sampler: a `population` draws its first trials at random"),
        ("max_trials: 3", "tune.max_trials: the population has 4 trials from the beginning"),
        (f"first: [{', '.join(['{}'] * 5)}]", "tune.first: 5 points are more than the population has trials (4)"),
    ],
)
def test_what_does_not_go_with_a_population(tmp_path: Path, line: str, words: str) -> None:
    (told,) = mistakes(tmp_path, GOAL, SPACE, "population: {size: 4}", line)
    assert told.startswith(f"job.yaml:{LINE + 3}: ")
    assert words in told


def test_keys_that_a_fork_would_not_follow_cannot_vary_in_a_population(tmp_path: Path) -> None:
    keys = ("run.tf_random_seed", "run.keep_checkpoint_max", "train.max_steps")
    space = f"space: {{{', '.join(f'{key}: {{int: [1, 9]}}' for key in keys)}}}"
    told = mistakes(tmp_path, GOAL, space, "population: {size: 4}")
    assert [line.partition("tune.space: ")[2] for line in told] == [
        "run.keep_checkpoint_max cannot vary: the study keeps the checkpoints that forks go on from",
        "run.tf_random_seed cannot vary: a fork does not follow it: "
        "the model's random states are those of the checkpoint",
        "train.max_steps cannot vary: `population` compares trials at steps of one length",
    ]


def test_the_trials_of_a_population_keep_what_forks_may_need(tmp_path: Path) -> None:
    job = study(tmp_path, GOAL, SPACE, "population: {every_steps: 100, size: 4}")
    assert job.tune is not None
    assert job.tune.max_trials is None
    assert rungs_of(job) == (100, 200)
    settings = trial_settings(job, {})
    assert "run.keep_checkpoint_max=0" in settings
    assert "run.save_checkpoints_steps=100" in settings
    assert "eval.eval_every_checkpoint=true" in settings


def test_early_stopping_counts_steps(tmp_path: Path) -> None:
    epochs = JOB.replace("max_steps: 270", "epochs: 3").replace("{shards: train", "{epochs: 3, shards: train")
    epochs = epochs.replace("train: {epochs: 3}\n", "")
    (told,) = mistakes(tmp_path, GOAL, SPACE, TRIALS, "early_stopping: asha", job=epochs)
    assert told.endswith("tune.early_stopping: it counts steps; give `train.max_steps`, also with epochs")
    secs = JOB.replace("tune:", "run: {save_checkpoints_secs: 60}\ntune:")
    (told,) = mistakes(tmp_path, GOAL, SPACE, TRIALS, "early_stopping: asha", job=secs)
    assert "give `run.save_checkpoints_steps` in place of seconds, or neither" in told
    rarely = JOB.replace("tune:", "run: {save_checkpoints_steps: 300}\ntune:")
    (told,) = mistakes(tmp_path, GOAL, SPACE, TRIALS, "early_stopping: asha", job=rarely)
    assert told.endswith("begin earlier, or save more often than every 300 steps")


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    told = mistakes(
        tmp_path,
        "goal: {metric: accuracy, mode: best}",
        "space:",
        "  params.width: {int: [8, 1]}",
        "  params.learning_rate: {log: [0, 1]}",
        "  params.kind: {choise: [a]}",
        "sampler: rand",
        "max_trials: 0",
        "seed: x",
        "early_stopping: ashe",
        "pruner: asha",
        job=JOB.replace("width: 8", "width: 8, width: 9"),
    )
    assert [line.split(": ")[:2] for line in told] == [
        ["job.yaml:3", "params.width"],
        ["job.yaml:10", "tune.goal.mode"],
        ["job.yaml:12", "tune.space.params.width.int"],
        ["job.yaml:13", "tune.space.params.learning_rate.log"],
        ["job.yaml:14", "tune.space.params.kind.choise"],
        ["job.yaml:15", "tune.sampler"],
        ["job.yaml:16", "tune.max_trials"],
        ["job.yaml:17", "tune.seed"],
        ["job.yaml:18", "tune.early_stopping"],
        ["job.yaml:19", "tune.pruner"],
    ]


def test_all_mistakes_of_keys_and_values_are_told_at_once(tmp_path: Path) -> None:
    lines = (
        "goal: {metric: a, mode: max, eval: otter}",
        "space:",
        "  name: {choice: [a]}",
        "  params.wide: {choice: [1]}",
    )
    assert [line.split(": ")[:2] for line in mistakes(tmp_path, *lines, TRIALS)] == [
        ["job.yaml:10", "tune.goal.eval"],
        ["job.yaml:12", "tune.space"],
        ["job.yaml:13", "tune.space"],
    ]
    lines = (
        "space:",
        "  train.max_steps: {int: [0, 5]}",
        "  run.on_nan: {choice: [a, b]}",
        "  data.train.batch_size: {choice: [x]}",
    )
    told = mistakes(tmp_path, GOAL, *lines, TRIALS)
    assert [line.split(": ")[0] for line in told] == ["job.yaml:12", "job.yaml:13", "job.yaml:13", "job.yaml:14"]


def test_a_value_is_tried_where_its_condition_holds(tmp_path: Path) -> None:
    space = "space: {params.kind: {choice: [a, b]}, train.max_steps: {choice: [5, -5], when: {params.kind: b}}}"
    (told,) = mistakes(tmp_path, GOAL, space, TRIALS)
    assert "with -5: train.max_steps: -5 is not allowed" in told


def test_a_job_without_a_study_is_told_so(tmp_path: Path) -> None:
    assert mistakes(tmp_path, job=JOB.replace("tune:\n", "")) == [
        "job.yaml: has no `tune`, which says what to vary and by which metric to choose"
    ]


def test_rungs() -> None:
    assert Asha().rungs(270) == (10, 30, 90)
    assert Asha(first_rung=100, factor=2).rungs(500) == (100, 200, 400)
    assert Asha().rungs(5) == (1, 3)
    assert Asha(first_rung=5).rungs(5) == ()
    assert Median().rungs(100) == tuple(range(10, 100, 10))
    assert Median(every_steps=30, first_step=31).rungs(100) == (60, 90)
    assert Median().rungs(1) == ()


def test_rungs_lie_at_checkpoints(tmp_path: Path) -> None:
    lines = (GOAL, SPACE, TRIALS, "early_stopping: asha")
    job = study(tmp_path, *lines)
    assert rungs_of(job) == (10, 30, 90)
    assert "run.save_checkpoints_steps=10" in trial_settings(job, {})
    job = study(tmp_path, *lines, job=JOB.replace("tune:", "run: {save_checkpoints_steps: 40}\ntune:"))
    assert rungs_of(job) == (40, 120), "each at the next one, once"
    assert not any(setting.startswith("run.save_checkpoints_steps") for setting in trial_settings(job, {}))


@pytest.mark.parametrize("early", ["none", "asha", "median"])
def test_a_trial_is_the_job_with_its_values(tmp_path: Path, early: str) -> None:
    job = study(tmp_path, GOAL, SPACE, TRIALS, f"early_stopping: {early}")
    settings = trial_settings(
        job, {"params.width": 3, "params.learning_rate": 1e-3, "data.train.batch_size": 7}, "demo_0001"
    )
    trial = job_in(overridden(read_yaml(tmp_path / "job.yaml"), settings))
    assert (trial.name, trial.tune, trial.data.train.batch_size) == ("demo_0001", None, 7)
    assert trial.params == {"width": 3, "learning_rate": 1e-3, "kind": "a"}
    assert (trial.run.best_metric, trial.run.best_mode, trial.run.report) == ("accuracy", "max", False)
    assert trial.eval.eval_every_checkpoint == (early != "none"), "else its rungs would have no values"


def test_a_trial_is_evaluated_by_the_evaluation_of_the_goal(tmp_path: Path) -> None:
    goal = "goal: {metric: accuracy, mode: max, eval: other}"
    job = study(tmp_path, goal, SPACE, TRIALS, "early_stopping: asha")
    trial = job_in(overridden(read_yaml(tmp_path / "job.yaml"), trial_settings(job, {})))
    assert (trial.evals["other"].eval_every_checkpoint, trial.eval.eval_every_checkpoint) == (
        True,
        job.eval.eval_every_checkpoint,
    )
    assert trial.run.best_metric == job.run.best_metric, "which is the first evaluation's"
