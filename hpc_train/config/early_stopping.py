"""Early stopping: rules on evaluation metrics. Names, arguments and defaults of tf.estimator.experimental's hooks.

train:
  max_steps: 20000
  early_stopping:
    stop_if_no_decrease: {metric_name: loss, max_steps_without_decrease: 500}
    stop_if_higher: {metric_name: accuracy, threshold: 0.99, eval_name: holdout}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from hpc_train.arguments import checked_arguments, shown
from hpc_train.config.estimator_arguments import EARLY_STOPPING
from hpc_train.config.types import STRICT, Count, as_sequence
from hpc_train.config.validation import specification

DEFAULT_RUN_EVERY_SECS = 60.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Rule:
    """What all rules have.

    Args:
        metric_name: As evaluation reports it.
        eval_name: The `name` of the evaluation set; None: the first one.
        min_steps: Evaluations before this global step don't count.
        run_every_secs, run_every_steps: How often the chief looks; one of the two. Where only `run_every_steps` is
            named, `run_every_secs` is None.

    Attributes:
        key: What the rule is called in a job file.
        condition: When training ends, in words: a format of the rule.
    """

    key = condition = ""
    retired: ClassVar[Mapping[str, str]] = EARLY_STOPPING

    metric_name: Annotated[str, Field(min_length=1)]
    eval_name: str | None = None
    min_steps: Annotated[int, Field(ge=0, strict=True)] = 0
    run_every_secs: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = DEFAULT_RUN_EVERY_SECS
    run_every_steps: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _steps_take_the_place_of_seconds(cls, given: Any) -> Any:
        named = given.kwargs if isinstance(given, ArgsKwargs) else given
        if not isinstance(named, dict) or named.get("run_every_steps") is None or "run_every_secs" in named:
            return given
        named = {**named, "run_every_secs": None}
        return ArgsKwargs(given.args, named) if isinstance(given, ArgsKwargs) else named

    @field_validator("run_every_steps")
    @classmethod
    def _one_interval(cls, steps: int | None, info: ValidationInfo) -> int | None:
        if "run_every_secs" in info.data and (steps is None) == (info.data["run_every_secs"] is None):
            raise ValueError("give `run_every_secs` or `run_every_steps`, one of the two; the other one is None")
        return steps

    @property
    def kind(self) -> str | None:
        """What records of its evaluation set are called; None: those of the first set."""
        return None if self.eval_name is None else f"eval_{self.eval_name}"

    def describe(self) -> str:
        """The rule in words."""
        name = f"{self.kind or 'eval'} {self.metric_name}"
        after = f", from step {self.min_steps} on" if self.min_steps else ""
        return f"stop if {name} {self.condition.format(self)}{after}"


@specification
@dataclass(frozen=True, kw_only=True, config=STRICT)
class StopIfNoDecrease(Rule):
    """See stop_if_no_decrease."""

    key, condition = "stop_if_no_decrease", "has not decreased for {0.max_steps_without_decrease} steps"
    max_steps_without_decrease: Count


@specification
@dataclass(frozen=True, kw_only=True, config=STRICT)
class StopIfNoIncrease(Rule):
    """See stop_if_no_increase."""

    key, condition = "stop_if_no_increase", "has not increased for {0.max_steps_without_increase} steps"
    max_steps_without_increase: Count


@specification
@dataclass(frozen=True, kw_only=True, config=STRICT)
class StopIfLower(Rule):
    """See stop_if_lower."""

    key, condition = "stop_if_lower", "is lower than {0.threshold:g}"
    threshold: Annotated[float, Field(allow_inf_nan=False)]


@specification
@dataclass(frozen=True, kw_only=True, config=STRICT)
class StopIfHigher(Rule):
    """See stop_if_higher."""

    key, condition = "stop_if_higher", "is higher than {0.threshold:g}"
    threshold: Annotated[float, Field(allow_inf_nan=False)]


@partial(checked_arguments, retired=EARLY_STOPPING)
def stop_if_no_decrease(
    metric_name: str,
    max_steps_without_decrease: int,
    eval_name: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = DEFAULT_RUN_EVERY_SECS,
    run_every_steps: int | None = None,
) -> StopIfNoDecrease:
    """Training ends when a metric of evaluation has not fallen below its smallest value for so many steps.

    See tf.estimator.experimental.stop_if_no_decrease_hook (TensorFlow 2.15). The rule is one of a TrainSpec's
    `early_stopping`.

    Args:
        metric_name: As evaluation reports it: `"loss"`, or the name of one of the model's metrics.
        max_steps_without_decrease: Global steps from the best evaluation to the newest one.
        eval_name: The `name` of the evaluation set; None: the first one.
        min_steps: Evaluations before this global step do not count.
        run_every_secs, run_every_steps: How often the chief looks; with `run_every_steps`, `run_every_secs` is None.

    Raises:
        UserError: A value out of range, or both intervals given.
    """
    return StopIfNoDecrease(
        metric_name=metric_name,
        max_steps_without_decrease=max_steps_without_decrease,
        eval_name=eval_name,
        min_steps=min_steps,
        run_every_secs=run_every_secs,
        run_every_steps=run_every_steps,
    )


@partial(checked_arguments, retired=EARLY_STOPPING)
def stop_if_no_increase(
    metric_name: str,
    max_steps_without_increase: int,
    eval_name: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = DEFAULT_RUN_EVERY_SECS,
    run_every_steps: int | None = None,
) -> StopIfNoIncrease:
    """Training ends when a metric of evaluation has not risen above its largest value for so many steps.

    Otherwise as stop_if_no_decrease.
    """
    return StopIfNoIncrease(
        metric_name=metric_name,
        max_steps_without_increase=max_steps_without_increase,
        eval_name=eval_name,
        min_steps=min_steps,
        run_every_secs=run_every_secs,
        run_every_steps=run_every_steps,
    )


@partial(checked_arguments, retired=EARLY_STOPPING)
def stop_if_lower(
    metric_name: str,
    threshold: float,
    eval_name: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = DEFAULT_RUN_EVERY_SECS,
    run_every_steps: int | None = None,
) -> StopIfLower:
    """Training ends when a metric of evaluation is lower than `threshold`. Otherwise as stop_if_no_decrease."""
    return StopIfLower(
        metric_name=metric_name,
        threshold=threshold,
        eval_name=eval_name,
        min_steps=min_steps,
        run_every_secs=run_every_secs,
        run_every_steps=run_every_steps,
    )


@partial(checked_arguments, retired=EARLY_STOPPING)
def stop_if_higher(
    metric_name: str,
    threshold: float,
    eval_name: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = DEFAULT_RUN_EVERY_SECS,
    run_every_steps: int | None = None,
) -> StopIfHigher:
    """Training ends when a metric of evaluation is higher than `threshold`. Otherwise as stop_if_no_decrease."""
    return StopIfHigher(
        metric_name=metric_name,
        threshold=threshold,
        eval_name=eval_name,
        min_steps=min_steps,
        run_every_secs=run_every_secs,
        run_every_steps=run_every_steps,
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EarlyStoppingSection:
    """The job file's `train.early_stopping`: a rule of each kind at most."""

    stop_if_no_decrease: StopIfNoDecrease | None = None
    stop_if_no_increase: StopIfNoIncrease | None = None
    stop_if_lower: StopIfLower | None = None
    stop_if_higher: StopIfHigher | None = None

    def rules(self) -> tuple[Rule, ...]:
        """Those that are given."""
        return tuple(rule for field in fields(self) if (rule := getattr(self, field.name)) is not None)


def as_mapping(rules: Iterable[Rule]) -> dict[str, Any]:
    """`rules` as the job file has them: `{key: {metric_name: …, …}}`; several with one key as a list."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        found.setdefault(rule.key, []).append(asdict(rule))
    return {key: same[0] if len(same) == 1 else same for key, same in found.items()}


_SECTION = TypeAdapter(EarlyStoppingSection)


def _rules(value: Any) -> tuple[Rule, ...]:
    if isinstance(value, dict | EarlyStoppingSection):
        return _SECTION.validate_python(value).rules()
    given = as_sequence(value)
    for rule in given:
        if not isinstance(rule, Rule):
            raise ValueError(
                f"{shown(rule)} is not allowed; allowed: what ht.stop_if_no_decrease, stop_if_no_increase, "
                "stop_if_lower and stop_if_higher return; in a job file a mapping with these keys"
            )
    return tuple(given)


if TYPE_CHECKING:
    EarlyStoppingRules = tuple[Rule, ...]
else:
    EarlyStoppingRules = Annotated[
        EarlyStoppingSection | tuple[Rule, ...], PlainValidator(_rules), PlainSerializer(as_mapping)
    ]
"""`early_stopping` of TrainSpec (rules, or one) and of a job file (a mapping by key); written as a mapping."""
