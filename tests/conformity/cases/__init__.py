"""Small models in the manner of Keras's examples, by subject."""

from __future__ import annotations

from tests.conformity.cases import (
    applications,
    generative,
    layers,
    losses,
    metric_learning,
    metrics,
    optimizers,
    sequences,
    structured,
    text,
    training_steps,
    vision,
)
from tests.conformity.cases.case import Case

SUBJECTS = (
    structured,
    vision,
    applications,
    text,
    sequences,
    generative,
    metric_learning,
    losses,
    layers,
    optimizers,
    metrics,
    training_steps,
)

ALL: tuple[Case, ...] = tuple(case for subject in SUBJECTS for case in subject.CASES)


def by_name() -> dict[str, Case]:
    return {case.name: case for case in ALL}
