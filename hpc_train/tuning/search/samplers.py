"""Which point of the space a new trial tries. Pure: of the study's settings, the trial's number and what is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import islice
from typing import NamedTuple

from hpc_train.config.tune.exploration import explored
from hpc_train.config.tune.population import Population
from hpc_train.config.tune.section import TuneSection
from hpc_train.config.tune.space import Point
from hpc_train.tuning.search.decisions import Lineage
from hpc_train.tuning.search.state import StudyState

FIRST, FORK = "first", "fork"
"""The source of a point that the job file gives, and of one that was its parent's."""


class Suggestion(NamedTuple):
    """What a new trial tries, and who has chosen it; `lineage`: of a fork."""

    point: Point
    source: str
    lineage: Lineage | None = None


class Sampler(ABC):
    """One for a study.

    Attributes:
        name: As in the job file.
    """

    def __init__(self, settings: TuneSection) -> None:
        self._settings = settings
        self.name = settings.sampler

    def suggest(self, state: StudyState) -> Suggestion | None:
        """What the next trial tries; None where there is none left."""
        number = len(state.trials)
        if number < len(self._settings.first):
            given = self._settings.first[number]
            return Suggestion(self._settings.points.drawn(self._settings.seed, number, given), FIRST)
        point = self._suggested(state, number)
        return None if point is None else Suggestion(point, self.name)

    @abstractmethod
    def _suggested(self, state: StudyState, number: int) -> Point | None:
        """The point of trial `number`, which is none of those given."""


class RandomSampler(Sampler):
    """Draws each point by itself."""

    def _suggested(self, state: StudyState, number: int) -> Point | None:
        return self._settings.points.drawn(self._settings.seed, number)


class PopulationSampler(RandomSampler):
    """Draws the first trials, and then forks others, each in the place of one that was among the worst."""

    def __init__(self, settings: TuneSection, population: Population) -> None:
        super().__init__(settings)
        self._population = population

    def suggest(self, state: StudyState) -> Suggestion | None:
        if len(state.trials) < self._population.size:
            return super().suggest(state)
        lineage = next(iter(state.forks_to_come()), None)
        if lineage is None:
            return None
        parent, settings = state.trials[lineage.parent], self._settings
        point = explored(settings.points, parent.point, self._population, settings.seed, len(state.trials))
        return Suggestion(point, FORK, lineage)


class GridSampler(Sampler):
    """All points of the grid, in the order of the job file."""

    def _suggested(self, state: StudyState, number: int) -> Point | None:
        place = number - len(self._settings.first)
        return next(islice(self._settings.points.grid(), place, None), None)


def sampler_of(settings: TuneSection) -> Sampler:
    """The sampler that a study asks for.

    Raises:
        UserError: It is Optuna's, which is not installed.
    """
    if settings.sampler in ("tpe", "cmaes"):
        from hpc_train.tuning.search.optuna_sampler import OptunaSampler

        return OptunaSampler(settings)
    if settings.population is not None:
        return PopulationSampler(settings, settings.population)
    return GridSampler(settings) if settings.sampler == "grid" else RandomSampler(settings)
