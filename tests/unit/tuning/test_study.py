"""Decisions about trials: of one process after the other, of several at once, and of some that die."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.config.yaml_loader import read_yaml
from hpc_train.jobdir.paths import CODE
from hpc_train.tuning.search.folder import BEST_FILE, StudyFolder
from hpc_train.tuning.search.study import NOTHING_LEFT, Leaving, Study
from tests.studies import (
    DRIVER,
    MAX_STEPS,
    SPACE,
    check_history,
    files_of,
    measured,
    opened,
    quality,
    run,
    study_in,
    train,
)
from tests.support import REPOSITORY, SOAK, run_program

OTHER = "f" * 16
ASHA, MEDIAN = "early_stopping: {asha: {factor: 3}}", "early_stopping: {median: {least_trials: 2}}"
POPULATION = "population: {size: 4, every_steps: 3}"
STUDIES = {
    "random": (SPACE, "max_trials: 12"),
    "grid": ("space: {params.learning_rate: {choice: [1, 0.1, 0.01]}, params.width: {int: [1, 3]}}", "sampler: grid"),
    "halving": (SPACE, "max_trials: 14", ASHA),
    "median": (SPACE, "max_trials: 14", MEDIAN),
    "tpe": (SPACE, "max_trials: 16", "sampler: tpe", ASHA),
    "population": (SPACE, POPULATION),
    "cmaes": (SPACE, "max_trials: 12", "sampler: cmaes"),
}


def summary(study: Study) -> list[tuple[object, ...]]:
    """What a study has come to, without when and in how many runs."""
    return [
        (
            trial.point,
            trial.source,
            trial.lineage,
            trial.state,
            trial.step,
            trial.value,
            [(r, j.value, j.verdict, j.parent) for r, j in trial.judged.items()],
        )
        for trial in study.state.trials
    ]


def disturbed(folder: StudyFolder, chance: random.Random) -> tuple[Study, int]:
    """Runs a study to its end with drivers that die at random, each of which is followed by another; how many died."""
    for number in count():
        study, driver = opened(folder), f"{number:016x}"
        for trial in study.orphans(lambda name, driver=driver: name == driver):
            step = max((judged.step for judged in trial.judged.values()), default=0)
            value = measured(trial.point, step) if step else None
            study.leave(trial, trial.driver, Leaving("waiting", step, value, "its driver died"))
        while (answer := study.ask(driver)).what == "run":
            dies_at = chance.choice([0, 0.5, 1, 1.5, 2.5]) if chance.random() < 0.3 else float("inf")
            if not train(study, answer, driver, dies_at):
                break
        else:
            assert answer.what == "over"
            return study, number
    raise AssertionError


@pytest.fixture(params=list(STUDIES))
def lines(request: pytest.FixtureRequest) -> tuple[str, ...]:
    if request.param in ("tpe", "cmaes"):
        pytest.importorskip("optuna")
    return STUDIES[request.param]


@pytest.mark.random
def test_a_study_with_drivers_that_die_tries_the_same_points_and_finds_the_same(
    tmp_path: Path, lines: tuple[str, ...]
) -> None:
    whole = opened(study_in(tmp_path / "whole", *lines))
    assert run(whole) == NOTHING_LEFT
    for seed in range(3 * SOAK):
        found, died = disturbed(study_in(tmp_path / f"disturbed{seed}", *lines), random.Random(seed))
        assert summary(found) == summary(whole)
        assert died > 0
        shutil.rmtree(found.folder.path)


def test_the_journal_is_all_there_is(tmp_path: Path, lines: tuple[str, ...]) -> None:
    study = opened(study_in(tmp_path / "study", *lines))
    run(study)
    again = opened(study.folder)
    assert vars(again.state) == vars(study.state)
    assert again.ask(OTHER).why == NOTHING_LEFT
    assert not any(path.suffix != ".json" for path in study.folder.decisions.iterdir())


def test_all_points_of_a_grid_are_tried(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study", *STUDIES["grid"]))
    run(study)
    assert [trial.point for trial in study.state.trials] == list(study.job.tune.points.grid())
    assert {trial.state for trial in study.state.trials} == {"completed"}


@pytest.mark.parametrize("trials", [1, 2, 5, 40])
def test_of_halving_one_comes_to_the_end_whatever_there_is(tmp_path: Path, trials: int) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, f"max_trials: {trials}", ASHA))
    run(study)
    completed = list(study.state.of("completed"))
    assert len(completed) >= 1
    assert len(list(study.state.of("paused"))) == trials - len(completed)
    if trials < 27:
        assert [trial.to_the_end for trial in completed] == [True]
        assert completed[0] == max(study.state.trials, key=lambda trial: trial.value), "which is the best"


def test_what_a_driver_is_told(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 2"))
    other = opened(study.folder)
    first, second = study.ask(DRIVER), other.ask(OTHER)
    assert first.trial is not None
    assert second.trial is not None
    assert (first.trial.number, second.trial.number) == (0, 1)
    assert (first.what, first.why, study.ask(DRIVER).what, study.ask(DRIVER).why) == (
        "run",
        "random",
        "wait",
        "2 trials may make room for others",
    )
    study.leave(first.trial, DRIVER, Leaving("waiting", 3, None, "it was stopped"))
    again = other.ask(OTHER)
    assert again.trial is not None
    assert (again.trial.number, again.why, again.trial.runs, again.trial.driver) == (0, "it was interrupted", 2, OTHER)
    study.leave(first.trial, DRIVER, Leaving("failed", 3, None, "of a driver that has lost it"))
    other.leave(again.trial, OTHER, Leaving("completed", 9, 0.5, ""))
    other.leave(second.trial, OTHER, Leaving("completed", 9, 0.6, ""))
    assert (study.ask(DRIVER).what, study.ask(DRIVER).why) == ("over", NOTHING_LEFT)
    assert [trial.state for trial in study.state.trials] == ["completed", "completed"]


def test_a_trial_is_judged_once_at_a_rung(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 3", ASHA))
    trial = study.ask(DRIVER).trial
    assert trial is not None
    first = study.judge(trial, 0, 1, 0.5)
    assert study.judge(trial, 0, 2, 0.9) == first
    assert first is not None
    assert (first.verdict, first.value, first.step) == ("paused", 0.5, 1)
    study.leave(trial, DRIVER, Leaving("waiting", 1, 0.5, "its driver died"))
    assert (trial.state, trial.why) == ("paused", first.why), "as was decided, not what its driver's end made of it"


def test_a_trial_without_a_number_is_the_worst(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 3", ASHA))
    for number, value in enumerate((None, 0.1, 0.2)):
        trial = study.ask(DRIVER).trial
        assert trial is not None
        study.judge(trial, 0, 1, value)
        study.leave(trial, DRIVER, Leaving("paused", 1, value, ""))
        assert number == trial.number
    assert study.ask(DRIVER).trial is study.state.trials[2]


def test_without_a_rule_nothing_is_compared(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study"))
    trial = study.ask(DRIVER).trial
    assert trial is not None
    assert study.judge(trial, 0, 1, 0.5) is None


def test_too_many_failures_end_a_study(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 9", "max_failed_trials: 1"))
    for _ in range(2):
        trial = study.ask(DRIVER).trial
        assert trial is not None
        study.leave(trial, DRIVER, Leaving("failed", 0, None, "no such file"))
    assert (study.ask(DRIVER).what, study.ask(DRIVER).why) == ("over", "2 trials failed, and max_failed_trials is 1")


def test_hours_in_which_trials_ran_end_a_study(tmp_path: Path) -> None:
    now = [0.0]
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 9", "max_hours: 2"), lambda: now[0])
    trial = study.ask(DRIVER).trial
    assert trial is not None
    now[0] = 3600.0
    assert study.hours_left() == 1.0
    study.leave(trial, DRIVER, Leaving("completed", 9, 0.5, ""))
    now[0] = 1e6
    assert study.hours_left() == 1.0, "while nothing runs, none goes by"
    study.ask(DRIVER)
    now[0] += 3600.0
    assert (study.hours_left(), study.ask(DRIVER).why) == (0.0, "the trials have run for max_hours (2)")
    study.allow_hours(3.0)
    assert study.ask(DRIVER).what == "run"
    assert opened(study.folder).hours_left() is not None
    assert opened(study_in(tmp_path / "other")).hours_left() is None


def test_a_clock_that_goes_back_is_no_harm(tmp_path: Path) -> None:
    times = iter([50.0, 50.0, 20.0])
    study = opened(study_in(tmp_path / "study"), lambda: next(times, 10.0))
    trial = study.ask(DRIVER).trial
    assert trial is not None
    study.leave(trial, DRIVER, Leaving("completed", 9, 0.5, ""))
    assert study.state.secs(60.0) == 0.0
    assert opened(study.folder).state.trials[0].state == "completed"


def test_a_study_is_stopped_and_goes_on(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study"))
    other = opened(study.folder)
    assert study.halt("hpc-train tune stop")
    assert not other.halt("again"), "it is known to be"
    assert (other.ask(OTHER).what, other.ask(OTHER).why) == ("over", "hpc-train tune stop")
    assert other.reopen()
    assert not study.reopen()
    assert study.ask(DRIVER).what == "run"


def test_more_trials(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 1"))
    run(study)
    study.add_trials(2)
    assert run(opened(study.folder)) == NOTHING_LEFT
    assert len(opened(study.folder).state.trials) == 3
    with pytest.raises(UserError, match="100,001 trials are not allowed; allowed: 100,000 in all"):
        study.add_trials(99_998)


def test_a_population_has_as_many_trials_as_are_allowed(tmp_path: Path) -> None:
    free = opened(study_in(tmp_path / "free", *STUDIES["population"]))
    assert run(free) == NOTHING_LEFT
    assert len(free.state.trials) > 6
    with pytest.raises(UserError, match="a population without `max_trials` forks as many trials as it replaces"):
        free.add_trials(1)
    study = opened(study_in(tmp_path / "study", *STUDIES["population"], "max_trials: 5"))
    assert not study.is_done()
    assert run(study) == NOTHING_LEFT
    assert study.is_done()
    with pytest.raises(UserError, match="study: all of the population have come to their ends, so there is none to be"):
        study.add_trials(1)
    assert len(study.state.trials) == 5
    states = Counter(trial.state for trial in study.state.trials)
    assert states == {"completed": 4, "stopped": 1}, "nobody is replaced any more"
    assert any("no further trial is allowed" in j.why for t in study.state.trials for j in t.judged.values())


def test_the_job_file_of_a_fork_says_how_its_result_came(tmp_path: Path) -> None:
    kinds = 'params.kind: {choice: [a, "b\\nparams: {}", c]}'
    space = SPACE.replace("params.width", kinds + ", params.width")
    study = opened(study_in(tmp_path / "study", space, "population: {size: 2, every_steps: 9, quantile: 0.5}"))
    first, second = study.ask(DRIVER).trial, study.ask(DRIVER).trial
    assert first is not None
    assert second is not None
    study.judge(first, 0, 9, 0.5)
    study.judge(second, 0, 9, 0.4)
    study.leave(second, DRIVER, Leaving("stopped", 9, 0.4, ""))
    fork = study.ask(DRIVER).trial
    assert fork is not None
    assert fork.lineage is not None
    assert (fork.lineage.parent, fork.lineage.step, fork.lineage.replaces, fork.source) == (0, 9, 1, "fork")
    study.leave(fork, DRIVER, Leaving("completed", MAX_STEPS, 0.9, ""))
    text = (study.folder.path / CODE / BEST_FILE).read_text()
    about = [line for line in text.splitlines() if line.startswith("#")]
    assert about[0] == "# Trial 0002: eval accuracy 0.9."
    assert "#   to step 9, as trial 0000: learning_rate=" in about[2]
    assert len(about) == 5
    assert "tune" not in read_yaml(study.folder.path / CODE / BEST_FILE).value


@pytest.mark.parametrize("number", ["parent", "replaces"])
def test_a_fork_of_a_trial_that_there_is_not_is_no_decision(tmp_path: Path, number: str) -> None:
    study = opened(study_in(tmp_path / "study", *STUDIES["population"]))
    run(study)
    path = next(p for p in sorted(study.folder.decisions.iterdir()) if '"replaces"' in p.read_text())
    decision = json.loads(path.read_text())
    decision["lineage"][number] = decision["trial"]
    path.write_text(json.dumps(decision))
    with pytest.raises(UserError, match=r"is no decision of a study"):
        opened(study.folder)


def test_trials_of_drivers_that_live_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = opened(study_in(tmp_path / "study"))
    mine, lost = study.ask(DRIVER).trial, study.ask(OTHER).trial
    assert study.orphans(lambda _: True) == []
    assert study.orphans(lambda name: name == DRIVER) == [lost]
    monkeypatch.setattr(
        "hpc_train.tuning.search.study.holder_of", lambda path: {"pid": 1} if path.name == "0001" else None
    )
    assert study.orphans(lambda _: False) == [mine], "whose ranks are there still"


def test_the_best_trials_job_file(tmp_path: Path) -> None:
    study = opened(study_in(tmp_path / "study", SPACE, "max_trials: 6"))
    run(study)
    best = max(study.state.trials, key=lambda trial: quality(trial.point))
    assert study.state.best is best
    path = study.folder.path / CODE / BEST_FILE
    assert path.read_text().startswith(f"# Trial {best.name}: eval accuracy {best.value:.6g}.\n")
    value = read_yaml(path).value
    assert "tune" not in value
    assert {f"params.{key}": value["params"][key] for key in ("learning_rate", "width")} == best.point
    assert value["data"]["train"]["shards"] == str(tmp_path / "study" / "train-*.h5")


def test_the_best_trials_job_file_is_right_whoever_writes_it_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process decides that its trial is the best, and writes that only after another one has found a better one."""
    study = opened(study_in(tmp_path / "study"))
    other = opened(study.folder)
    mine, better = study.ask(DRIVER).trial, other.ask(OTHER).trial
    assert mine is not None
    assert better is not None
    from hpc_train.tuning.search import study as module

    write = module.write_best

    def late(*args: object) -> object:
        monkeypatch.setattr(module, "write_best", write)
        other.leave(better, OTHER, Leaving("completed", MAX_STEPS, 0.9, ""))
        return write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "write_best", late)
    study.leave(mine, DRIVER, Leaving("completed", MAX_STEPS, 0.5, ""))
    assert (study.folder.path / CODE / BEST_FILE).read_text().startswith("# Trial 0001")


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = opened(study_in(tmp_path / "study"))
    trial = study.ask(DRIVER).trial
    assert trial is not None
    (study.folder.path / CODE / BEST_FILE).mkdir()
    with pytest.raises(UserError, match=r"best_trial\.yaml: cannot be written"):
        study.leave(trial, DRIVER, Leaving("completed", MAX_STEPS, 0.5, ""))


@given(st.integers(0, 2**20), st.sampled_from([ASHA, MEDIAN, POPULATION, ""]), st.integers(1, 4))
def test_several_drivers_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, seed: int, stopping: str, drivers: int
) -> None:
    chance = random.Random(seed)
    folder = study_in(tmp_path_factory.mktemp("studies") / "study", *filter(None, (SPACE, "max_trials: 9", stopping)))
    studies = [opened(folder, map(float, count()).__next__) for _ in range(drivers)]
    steps: dict[int, Callable[[], object]] = {}
    over: set[int] = set()
    while len(over) < drivers:
        number = chance.randrange(drivers)
        study, driver = studies[number], f"{number:016x}"
        if number in steps:
            steps.pop(number)()
            continue
        answer = study.ask(driver)
        if answer.what == "run":
            steps[number] = lambda study=study, answer=answer, driver=driver: train(study, answer, driver)
        elif answer.what == "over":
            over.add(number)
    trials = len(opened(folder).state.trials)
    assert trials <= 9 if "population" in stopping else trials == 9
    check_history(folder, trials)
    assert not list(opened(folder).state.of("running", "waiting"))
    shutil.rmtree(folder.path)


@pytest.mark.random
@pytest.mark.parametrize("seed", range(1 if SOAK == 1 else 3))
def test_processes_that_ask_and_tell_at_once_and_are_killed_lose_and_double_no_trial(tmp_path: Path, seed: int) -> None:
    """Two hundred trials in all; each of the eight two hundred, under `make soak`."""
    trials, kills = (200, 15) if SOAK == 1 else (1600, 200)
    folder = study_in(tmp_path / "study", SPACE, f"max_trials: {trials}", ASHA)
    program = REPOSITORY / "tests" / "programs" / "deciders.py"
    done = run_program([*map(str, [sys.executable, program, "ask", folder.path, 8, trials, kills, seed])], tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "some were killed"
    assert len(list(files_of(folder))) > 2 * trials
    check_history(folder, trials)
    study = opened(folder)
    assert [trial.point for trial in study.state.trials] == [study.job.tune.points.drawn(0, n) for n in range(trials)]
    assert {trial.state for trial in study.state.trials} == {"paused", "completed"}
    best = study.state.best
    assert best is not None
    assert (folder.path / CODE / BEST_FILE).read_text().startswith(f"# Trial {best.name}:")


def test_the_goal_is_of_the_first_evaluation_set_whatever_its_name(tmp_path: Path) -> None:
    folder = study_in(tmp_path / "study")
    job_file = folder.path / CODE / "job.yaml"
    assert opened(folder).goal.kind == "eval"
    job_file.write_text(f"eval: {{name: own}}\n{job_file.read_text()}")
    assert opened(folder).goal.kind == "eval_own"
