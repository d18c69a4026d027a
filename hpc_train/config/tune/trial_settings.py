"""What a trial's job has of its study: the point that it tries, and what makes it comparable. Pure.

A trial is the job file with `KEY=VALUE` laid over it, as `--set` does, so that anybody can run it by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.diagnostics import Mistake, mistake_at, refuse
from hpc_train.config.job import JobConfig, job_in
from hpc_train.config.overrides import KEY, overridden
from hpc_train.config.settings import NO_EFFECT
from hpc_train.config.tune.parameter import key_of
from hpc_train.config.tune.section import TuneSection
from hpc_train.config.tune.space import Point
from hpc_train.config.yaml_loader import Document, Location
from hpc_train.errors import UserError, did_you_mean

SPACE: Location = ("tune", "space")
FIXED = {
    "name": "each trial gets a name of its own",
    "tune": "a study is one of jobs, not of studies",
    "ensemble": "a study is one of jobs, not of ensembles",
    "resources": "the trials of a study share slots of one size",
    "data.eval": "trials that are evaluated on other rows cannot be compared",
    "eval": "trials that are evaluated otherwise cannot be compared",
    "evals": "trials that are evaluated otherwise cannot be compared",
    "run.best_metric": "it is the metric of the study's `goal`",
    "run.best_mode": "it is the mode of the study's `goal`",
    "run.report": "`hpc-train report` writes the page of a trial",
}
"""Keys that no space can have, nor what is below them, and why."""
FIXED_BY_RUNGS = {
    "train.max_steps": "`{rule}` compares trials at steps of one length",
    "run.save_checkpoints_steps": "`{rule}` compares trials at the same steps",
    "run.save_checkpoints_secs": "`{rule}` compares trials at the same steps",
}
FIXED_BY_FORKS = {
    "run.keep_checkpoint_max": "the study keeps the checkpoints that forks go on from",
    "run.keep_checkpoint_every_n_hours": "the study keeps the checkpoints that forks go on from",
    **{key: f"a fork does not follow it: {why}" for key, why in NO_EFFECT.items()},
}

FILES, MOST_OF_FILES = ("model", "data", "warm_start_from", "run.strategy", "run.chief", "run.mesh"), 20
"""Keys that name files, or by which ranks read them, and how many of a study's jobs are looked at for that."""


def point_settings(point: Point) -> list[str]:
    """The values of a point, as `KEY=VALUE`."""
    return [f"{key}={key_of(value)}" for key, value in point.items()]


def trial_settings(job: JobConfig, point: Point, name: str | None = None) -> list[str]:
    """What is laid over the job file of `job`, which has a study, for the trial of a point."""
    assert job.tune is not None, "a study"
    goal, settings = job.tune.goal, ["tune=null", "ensemble=null", "run.report=false"]
    if name is not None:
        settings.append(f"name={name}")
    if goal.eval in (None, job.eval.name):
        settings += [f"run.best_metric={key_of(goal.metric)}", f"run.best_mode={goal.mode}"]
    if job.tune.population is not None:
        settings.append("run.keep_checkpoint_max=0")
    if job.tune.rule is not None:
        section = f"evals.{goal.eval}" if goal.eval in job.evals else "eval"
        settings += [f"{section}.eval_every_checkpoint=true", f"{section}.start_delay_secs=0"]
        settings += [f"{section}.throttle_secs=0"]
        if job.run.save_checkpoints_steps is None and (rungs := rungs_of(job)):
            settings.append(f"run.save_checkpoints_steps={rungs[0]}")
    return [*settings, *point_settings(point)]


def rungs_of(job: JobConfig) -> tuple[int, ...]:
    """The steps at which the trials of the study are compared: of its rule, each at the next checkpoint."""
    assert job.tune is not None, "a study"
    if job.tune.rule is None or job.train.max_steps is None:
        return ()
    every = job.run.save_checkpoints_steps
    steps = job.tune.rule.rungs(job.train.max_steps)
    placed = [step if every is None else -(-step // every) * every for step in steps]
    return tuple(dict.fromkeys(step for step in placed if step < job.train.max_steps))


def check_study(document: Document, job: JobConfig, data_root: Path | None = None) -> None:
    """Checks that a job file's study can be made: that each key of its space can have each of its values.

    Args:
        document: What `job` was read from.

    Raises:
        UserError: With all mistakes; also where the file has no `tune`.
    """
    if job.tune is None:
        raise UserError(f"{document.path}: has no `tune`, which says what to vary and by which metric to choose")
    mistakes = [*_of_keys(document, job, job.tune), *_of_goal(document, job, job.tune)]
    mistakes += _of_rungs(document, job, job.tune)
    if not mistakes:  # else each of them would come again
        mistakes += _of_values(document, job, job.tune, data_root)
    if mistakes:
        refuse(document.path, mistakes)


def _of_keys(document: Document, job: JobConfig, tune: TuneSection) -> Iterator[Mistake]:
    fixed = dict(FIXED)
    if tune.rule is not None:
        fixed |= {key: why.format(rule=_section_of_rule(tune)) for key, why in FIXED_BY_RUNGS.items()}
    if tune.population is not None:
        fixed |= FIXED_BY_FORKS
    for key in tune.space:
        at = (*SPACE, key)
        if not KEY.fullmatch(key):
            text = "is not a key of a job file; allowed: words with dots between them, as in params.learning_rate"
            yield mistake_at(document, at, f"tune.space: {key!r} {text}")
        elif why := next((why for name, why in fixed.items() if f"{key}.".startswith(f"{name}.")), None):
            yield mistake_at(document, at, f"tune.space: {key} cannot vary: {why}")
        elif key.startswith("params.") and (name := key.split(".")[1]) not in job.params:
            allowed = ", ".join(job.params) or "none"
            hint = did_you_mean(name, job.params)
            text = (
                f"{name!r} is not among the job's params; {hint}allowed: {allowed}; give it there, too, where it is new"
            )
            yield mistake_at(document, at, f"tune.space: {key}: {text}")
        elif why := _beyond(document, key):
            yield mistake_at(document, at, f"tune.space: {key}: {why}")
    for key in tune.space:
        if above := next((other for other in tune.space if key.startswith(f"{other}.")), None):
            text = f"tune.space: {key} lies below {above}, which varies, too; give the values of {above} whole"
            yield mistake_at(document, (*SPACE, key), text)


def _beyond(document: Document, key: str) -> str:
    """Why `key` cannot be given to the job file, whatever the value; empty: it can."""
    try:
        overridden(document, [f"{key}=null"])
    except UserError as error:
        return str(error).partition(": ")[2]
    return ""


def _of_goal(document: Document, job: JobConfig, tune: TuneSection) -> Iterator[Mistake]:
    names = [name for name in (job.eval.name, *job.evals) if name is not None]
    if tune.goal.eval is not None and tune.goal.eval not in names:
        allowed = ", ".join(names) or "none, since the job has one evaluation set without a name; leave it out"
        text = f"{tune.goal.eval!r} is no evaluation set; {did_you_mean(tune.goal.eval, names)}allowed: {allowed}"
        yield mistake_at(document, ("tune", "goal", "eval"), f"tune.goal.eval: {text}")


def _section_of_rule(tune: TuneSection) -> str:
    return "early_stopping" if tune.population is None else "population"


def _of_rungs(document: Document, job: JobConfig, tune: TuneSection) -> Iterator[Mistake]:
    if tune.rule is None:
        return
    at: Location = ("tune", name := _section_of_rule(tune))
    if tune.population is not None and isinstance(job.model, GBDTModel):
        yield mistake_at(document, at, "tune.population: trees are not forked; take `early_stopping`, or neither")
    if job.train.max_steps is None:
        yield mistake_at(document, at, f"tune.{name}: it counts steps; give `train.max_steps`, also with epochs")
    elif not rungs_of(job):
        text = f"no step below train.max_steps ({job.train.max_steps}) is left to compare trials at; begin earlier"
        if job.run.save_checkpoints_steps is not None:
            text += f", or save more often than every {job.run.save_checkpoints_steps} steps"
        yield mistake_at(document, at, f"tune.{name}: {text}")
    if job.run.save_checkpoints_secs is not None:
        text = "trials are compared at checkpoints; give `run.save_checkpoints_steps` in place of seconds, or neither"
        yield mistake_at(document, at, f"tune.{name}: {text}")


def _of_values(document: Document, job: JobConfig, tune: TuneSection, data_root: Path | None) -> Iterator[Mistake]:
    """Each mistake once, where the key that it is about is in the space, or else the point that shows it."""
    tried: list[tuple[Location, Point]] = [((*SPACE, key), point) for key, point in tune.points.examples()]
    for number, given in enumerate(tune.first):
        tried.append((("tune", "first", number), tune.points.drawn(tune.seed, number, given)))
    seen: set[str] = set()
    for at, point in tried:
        for text in _mistakes_of(document, trial_settings(job, point), data_root):
            if text in seen:
                continue
            seen.add(text)
            about = next((key for key in point if _is_within(text.partition(": ")[0], key)), None)
            place = at if about is None else (*SPACE, about)
            value = point.get(str(place[-1]))
            tells = f"with {key_of(value)}: " if place[:-1] == SPACE else ""
            yield mistake_at(document, place, f"{'.'.join(map(str, place))}: {tells}{text}")


def _is_within(told: str, key: str) -> bool:
    """Whether what is told of a setting may be about `key`: the same, or one above or below."""
    return f"{told}.".startswith(f"{key}.") or f"{key}.".startswith(f"{told}.")


def jobs_of_files(document: Document, job: JobConfig) -> Iterator[tuple[str, JobConfig]]:
    """The jobs of a study that name other files than `job` does, or read them otherwise, and in which way, in words.

    Each value of a choice and both ends of a range, of keys of FILES; the study was checked.
    """
    assert job.tune is not None, "a study"
    tried = ((key, point) for key, point in job.tune.points.examples() if any(_is_within(key, one) for one in FILES))
    for key, point in islice(tried, MOST_OF_FILES):
        trial = job_in(overridden(document, trial_settings(job, point)))
        yield f"tune.space.{key}: with {key_of(point[key])}", trial


def _mistakes_of(document: Document, settings: Sequence[str], data_root: Path | None) -> list[str]:
    try:
        job_in(overridden(document, settings), data_root)
    except UserError as error:
        return [line.partition(": ")[2] for line in str(error).splitlines()]
    return []
