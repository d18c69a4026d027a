"""TuneSection: `tune:` of a job file.

tune:
  goal: {metric: accuracy, mode: max}
  space:
    params.learning_rate: {log: [1e-4, 1e-1]}
    data.train.batch_size: {choice: [32, 64, 128]}
  max_trials: 40
  early_stopping: asha
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.config.tune.parameter import Parameter, Value
from hpc_train.config.tune.population import Population, multiples
from hpc_train.config.tune.space import MOST_OF_A_GRID, Space
from hpc_train.config.types import STRICT, Count, Name
from hpc_train.config.validation import wrong_at

MOST_TRIALS = 100_000
NOT_FOLLOWED = "`tune` of the job file is for hpc-train tune; this is one job, with the values that the file has"
DEFAULT_RUNGS = 3
"""Of ASHA, below the whole length of a trial."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Goal:
    """What a study looks for: the metric of an evaluation, which is to be the largest or the smallest.

    Args:
        metric: As evaluation reports it.
        mode: "max" or "min".
        eval: The name of the evaluation set; None: the first one.
    """

    metric: Annotated[str, Field(min_length=1)]
    mode: Literal["min", "max"]
    eval: Name | None = None

    @property
    def kind(self) -> str:
        """What the records of its evaluation are called."""
        return "eval" if self.eval is None else f"eval_{self.eval}"

    def is_better(self, value: float, than: float | None) -> bool:
        """Whether a value is better than another one, which may not be there."""
        return than is None or (value > than if self.mode == "max" else value < than)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Asha:
    """Asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020).

    A trial stops at each rung. The best of those that have come so far, one in `factor` of them, go on to the next.

    Args:
        first_rung: The step of the lowest rung; None: such that there are three below `train.max_steps`.
        factor: How many times as far the next rung is, and one in how many trials goes on to it.
    """

    first_rung: Count | None = None
    factor: Annotated[Count, Field(ge=2)] = 3

    def rungs(self, max_steps: int) -> tuple[int, ...]:
        """Their steps, below `max_steps`, lowest first."""
        step, found = self.first_rung or max(1, max_steps // self.factor**DEFAULT_RUNGS), []
        while step < max_steps:
            found.append(step)
            step *= self.factor
        return tuple(found)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Median:
    """A trial ends where its best value so far is worse than the median of the others' at the same step.

    The rule of Golovin et al., "Google Vizier" (2017), section 3.2, on best values in place of averages.

    Args:
        every_steps: How often a trial is compared; None: ten times.
        first_step: Not before this step.
        least_trials: Not before so many others have come as far.
    """

    every_steps: Count | None = None
    first_step: Annotated[int, Field(ge=0, strict=True)] = 0
    least_trials: Count = 5

    def rungs(self, max_steps: int) -> tuple[int, ...]:
        """The steps at which trials are compared, below `max_steps`, lowest first."""
        return tuple(step for step in multiples(self.every_steps, max_steps) if step >= self.first_step)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EarlyStopping:
    """How trials that are worse than others end before their time: one of the two."""

    asha: Asha | None = None
    median: Median | None = None

    @property
    def rule(self) -> Asha | Median:
        found = self.asha or self.median
        assert found is not None, "validated"
        return found


def _early_stopping(value: Any) -> Any:
    if value == "none":
        return None
    if isinstance(value, str) and value in ("asha", "median"):
        return {value: {}}
    if isinstance(value, str):
        raise ValueError(f"{value!r} is not allowed; allowed: asha, median, none, or {{asha: {{first_rung: 100}}}}")
    if isinstance(value, dict):
        if value.get("asha") is not None and value.get("median") is not None:
            raise ValueError("asha and median exclude each other; give one of them")
        return {name: {} for name in value} if list(value.values()) == [None] else value
    return value


def _is_one(value: EarlyStopping | None) -> EarlyStopping | None:
    if value is not None and value.asha is None and value.median is None:
        raise ValueError("an empty mapping is not allowed; allowed: asha, median, none, or {asha: {first_rung: 100}}")
    return value


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TuneSection:
    """`tune:` of a job file: a study of hyper-parameters.

    Args:
        goal: What it looks for.
        space: Keys of the job file, such as params.learning_rate, and which values each may have.
        population: Trials that are forked from each other while they train; None: each trains by itself.
        max_trials: How many points of the space are tried; None, of a grid: all, of a population: as many as it forks.
        parallel_trials: How many trials run at once; None: as many as there is room for.
        max_failed_trials: The study ends once more trials than that have failed.
        max_hours: The study ends after so many hours in which trials have run.
        seed: Of all that is drawn.
        sampler: How the points are chosen: at random, all of a grid, or by Optuna's TPE or CMA-ES.
        early_stopping: How trials end early.
        first: Points to be tried before all others; keys that one lacks are drawn.
    """

    retired: ClassVar[Mapping[str, str]] = {
        "metric": "the metric is a key of `goal`: goal: {metric: accuracy, mode: max}",
        "mode": "the mode is a key of `goal`: goal: {metric: accuracy, mode: max}",
        "scheduler": "`early_stopping` says how trials end early: asha, median or none",
        "pruner": "`early_stopping` says how trials end early: asha, median or none",
        "n_trials": "`max_trials` says how many trials there are",
        "num_samples": "`max_trials` says how many trials there are",
    }

    goal: Goal
    space: dict[str, Parameter]
    population: Population | None = None
    sampler: Literal["random", "grid", "tpe", "cmaes"] = "random"
    max_trials: Annotated[Annotated[Count, Field(le=MOST_TRIALS)] | None, Field(validate_default=True)] = None
    parallel_trials: Annotated[Count, Field(le=10_000)] | None = None
    max_failed_trials: Annotated[int, Field(ge=0, strict=True)] = 3
    max_hours: PositiveFloat | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    early_stopping: Annotated[EarlyStopping | None, BeforeValidator(_early_stopping), AfterValidator(_is_one)] = None
    first: tuple[dict[str, Value], ...] = ()

    @field_validator("space")
    @classmethod
    def _is_a_space(cls, space: dict[str, Parameter]) -> dict[str, Parameter]:
        if not space:
            raise ValueError("it has no key; give one that is to vary, as in params.learning_rate: {log: [1e-4, 1e-1]}")
        Space(space)
        return space

    @field_validator("sampler")
    @classmethod
    def _goes_with_the_space(cls, sampler: str, info: ValidationInfo) -> str:
        space = info.data.get("space", {})
        if sampler != "random" and info.data.get("population") is not None:
            raise ValueError("a `population` draws its first trials at random, and forks the others; leave this out")
        if sampler == "cmaes" and len(space) == 1:
            raise ValueError("`cmaes` is for two keys and more; take tpe or random")
        for key, parameter in space.items() if sampler == "cmaes" else ():
            if parameter.choice is not None or parameter.when:
                what = "a choice" if parameter.choice is not None else "`when`"
                raise ValueError(f"`cmaes` is for ranges that always matter, and {key} has {what}; take tpe or random")
        for key, parameter in space.items() if sampler == "grid" else ():
            try:
                parameter.grid()
            except ValueError as error:
                raise ValueError(f"`grid`: {key}: {error}") from None
        return sampler

    @field_validator("max_trials")
    @classmethod
    def _ends(cls, max_trials: int | None, info: ValidationInfo) -> int | None:
        if "population" not in info.data:
            return max_trials  # what is wrong with it has been told
        population = info.data["population"]
        if population is not None:
            if max_trials is not None and max_trials < population.size:
                text = f"the population has {population.size} trials from the beginning; allow as many, or leave this"
                raise ValueError(f"{text} out")
            return max_trials
        if max_trials is None and info.data.get("sampler", "grid") != "grid":
            raise ValueError("`max_trials` is missing, and without it the study would never end")
        if max_trials is None and "space" in info.data:
            for number, _ in enumerate(Space(info.data["space"]).grid()):
                if number >= MOST_OF_A_GRID:
                    raise ValueError(f"the grid has more than {MOST_OF_A_GRID:,} points; give `max_trials`")
        return max_trials

    @field_validator("early_stopping")
    @classmethod
    def _is_the_only_rule(cls, stopping: EarlyStopping | None, info: ValidationInfo) -> EarlyStopping | None:
        if stopping is not None and info.data.get("population") is not None:
            raise ValueError("a `population` ends its worst trials by itself; leave one of the two out")
        return stopping

    @field_validator("first")
    @classmethod
    def _are_points(cls, first: tuple[dict[str, Value], ...], info: ValidationInfo) -> tuple[dict[str, Value], ...]:
        population = info.data.get("population")
        if population is not None and len(first) > population.size:
            raise ValueError(f"{len(first)} points are more than the population has trials ({population.size})")
        space = Space(info.data["space"]) if "space" in info.data else None
        for number, point in enumerate(first):
            if space is not None and (wrong := space.mistake_in(point)) is not None:
                raise wrong_at((number, wrong[0]), point.get(wrong[0]), wrong[1])
        return first

    @property
    def rule(self) -> Asha | Median | Population | None:
        """By which trials are compared while they train."""
        return self.early_stopping.rule if self.early_stopping is not None else self.population

    @cached_property
    def points(self) -> Space:
        """The space."""
        return Space(self.space)
