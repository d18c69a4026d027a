"""Optuna's samplers: TPE (Bergstra et al., 2011) and CMA-ES (Hansen and Ostermeier, 2001).

Optuna chooses points and keeps nothing: for each new trial it is given the trials that there are, and a seed that
belongs to the trial's number. So the suggestion is one of what is known, whichever process asks for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from hpc_train.config.tune.parameter import Parameter, Value, key_of
from hpc_train.config.tune.section import TuneSection
from hpc_train.config.tune.space import Point, share
from hpc_train.errors import UserError
from hpc_train.lazy import importing
from hpc_train.tuning.search.samplers import Sampler
from hpc_train.tuning.search.state import StudyState, Trial

STARTUP_TRIALS = 10
"""So many points are drawn at random before TPE has enough to model."""


class OptunaSampler(Sampler):
    """`sampler: tpe` and `sampler: cmaes`.

    Raises:
        UserError: Optuna, or what it needs for CMA-ES, is not installed.
    """

    def __init__(self, settings: TuneSection) -> None:
        super().__init__(settings)
        more = ("cmaes",) if settings.sampler == "cmaes" else ()  # Optuna imports it when it samples
        self._optuna = optuna_for(f"tune.sampler: {settings.sampler}", *more, otherwise="; or take random or grid")
        self._known: dict[tuple[int, str, float | None], Any] = {}

    def _suggested(self, state: StudyState, number: int) -> Point:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what Optuna calls experimental
            study = self._optuna.create_study(
                direction="maximize" if state.goal.mode == "max" else "minimize", sampler=self._sampler(number)
            )
            if self.name == "cmaes":
                for trial in state.trials:
                    self._repeat(study, trial)
            else:
                study.add_trials([self._frozen(trial) for trial in state.trials])
            return self._point(study.ask())

    def _sampler(self, number: int) -> Any:
        seed, samplers = self._seed(number), self._optuna.samplers
        if self.name == "cmaes":  # which draws by itself while no trial is completed
            return samplers.CmaEsSampler(seed=self._seed(0), independent_sampler=samplers.RandomSampler(seed=seed))
        several = bool(any(parameter.when for parameter in self._settings.space.values()))
        return samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, group=several, constant_liar=True
        )

    def _seed(self, number: int) -> int:
        return int(share(self._settings.seed, number, "optuna") * (1 << 32))

    def _repeat(self, study: Any, trial: Trial) -> None:
        """Has Optuna ask for a trial's point again: CMA-ES keeps its state in the trials that it has asked for."""
        study.enqueue_trial(self._encoded(trial.point))
        asked = study.ask()
        self._point(asked)
        states = self._optuna.trial.TrialState
        if trial.state == "completed" and trial.value is not None:
            study.tell(asked, trial.value)
        elif trial.state not in ("running", "waiting"):
            study.tell(asked, state=states.FAIL)

    def _frozen(self, trial: Trial) -> Any:
        value = trial.value if trial.state != "running" else None
        key = (trial.number, trial.state, value)
        if key not in self._known:
            self._known = {other: made for other, made in self._known.items() if other[0] != trial.number}
            self._known[key] = self._made(trial)
        return self._known[key]

    def _made(self, trial: Trial) -> Any:
        states = self._optuna.trial.TrialState
        steps = {judged.step: judged.value for judged in trial.judged.values() if judged.value is not None}
        if trial.state == "completed" and trial.value is not None:
            kind = states.COMPLETE
        elif trial.state in ("paused", "stopped") and steps:
            kind = states.PRUNED
        else:
            kind = states.RUNNING if trial.state in ("running", "waiting") else states.FAIL
        return self._optuna.trial.create_trial(
            state=kind,
            params=self._encoded(trial.point),
            distributions={name: self._distributions[name] for name in trial.point},
            value=trial.value if kind == states.COMPLETE else None,
            intermediate_values=steps,
        )

    @cached_property
    def _distributions(self) -> Mapping[str, Any]:
        return distributions_of(self._settings.space)

    def _encoded(self, point: Point) -> dict[str, Value]:
        return encoded(self._settings.space, point)

    def _point(self, asked: Any) -> Point:
        """The point of a trial of Optuna's, which is asked for the value of each key that matters."""
        point: dict[str, Value] = {}
        for key in self._settings.points.order:
            if self._settings.points.matters(key, point):
                parameter = self._settings.space[key]
                if parameter.choice is not None:
                    keys = [key_of(value) for value in parameter.choice]
                    point[key] = parameter.choice[keys.index(asked.suggest_categorical(key, keys))]
                elif parameter.int is not None:
                    point[key] = asked.suggest_int(key, *parameter.int, log=parameter.is_logarithmic)
                else:
                    bounds = parameter.bounds or ()
                    point[key] = parameter.rounded(asked.suggest_float(key, *bounds, log=parameter.is_logarithmic))
        return point


def optuna_for(what: str, *more: str, otherwise: str = "") -> Any:
    """Optuna, silent, for `what`, which also needs the modules `more`.

    Raises:
        UserError: It is not installed; `otherwise`: what else can be done.
    """
    try:
        with importing():
            for name in ("optuna", *more):
                import_module(name)
    except ImportError:
        raise UserError(
            f"{what} needs Optuna, which is not installed: pip install 'hpc_train[tune]'{otherwise}"
        ) from None
    optuna = import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def distributions_of(space: Mapping[str, Parameter]) -> dict[str, Any]:
    """Optuna's distribution of each key."""
    made = import_module("optuna").distributions

    def of(parameter: Parameter) -> Any:
        if parameter.choice is not None:
            return made.CategoricalDistribution([key_of(value) for value in parameter.choice])
        kind = made.IntDistribution if parameter.int is not None else made.FloatDistribution
        return kind(*(parameter.bounds or ()), log=parameter.is_logarithmic)

    return {key: of(parameter) for key, parameter in space.items()}


def encoded(space: Mapping[str, Parameter], point: Point) -> dict[str, Value]:
    """A point as Optuna has it: choices, which may be lists, as their keys."""
    return {key: key_of(value) if space[key].choice is not None else value for key, value in point.items()}
