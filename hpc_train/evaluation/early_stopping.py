"""When a job stops early: decided by the chief from the evaluations, remembered in early_stop.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpc_train.config.early_stopping import (
    Rule,
    StopIfHigher,
    StopIfLower,
    StopIfNoDecrease,
    StopIfNoIncrease,
    as_mapping,
)
from hpc_train.errors import UserError, did_you_mean
from hpc_train.jobdir.job_dir import Evaluations, JobDir
from hpc_train.jobdir.paths import EARLY_STOP_FILE
from hpc_train.telemetry.json_files import write_json


@dataclass(frozen=True)
class Decision:
    """That training ends early: early_stop.json.

    Attributes:
        step: The last step. max_steps: what TrainSpec asked for then.
        rule: The rule as in a job file; None where a hook asked for it.
    """

    step: int
    reason: str
    rule: dict[str, Any] | None
    max_steps: int | None


def decide(rule: Rule, values: Mapping[int, float], step: int) -> str | None:
    """The reason to end training at `step`, or None. As in tf.estimator.experimental (TensorFlow 2.15).

    Evaluations before `rule.min_steps` don't count. Steps without a better value are counted from the best evaluation
    to the newest; a value that is NaN is never better, nor beyond a threshold.

    Args:
        values: Of the rule's metric, by the step of the evaluation.
    """
    if step < rule.min_steps:
        return None
    counted = sorted((at, value) for at, value in values.items() if at >= rule.min_steps)
    if not counted:
        return None
    name = f"{rule.kind or 'eval'} {rule.metric_name}"
    if isinstance(rule, StopIfLower | StopIfHigher):
        lower = isinstance(rule, StopIfLower)
        for at, value in counted:
            if value < rule.threshold if lower else value > rule.threshold:
                word = "lower" if lower else "higher"
                return f"{name} is {word} than {rule.threshold:g}: {value:g} at step {at}"
        return None
    if isinstance(rule, StopIfNoDecrease):
        word, sign, max_steps = "decreased", 1.0, rule.max_steps_without_decrease
    else:
        assert isinstance(rule, StopIfNoIncrease)
        word, sign, max_steps = "increased", -1.0, rule.max_steps_without_increase
    best, best_step = math.inf, counted[0][0]
    for at, value in counted:
        if sign * value < best:
            best, best_step = sign * value, at
    newest = counted[-1][0]
    if newest - best_step < max_steps:
        return None
    shown = f"best {sign * best:g}" if math.isfinite(best) else "first evaluated"
    return f"{name} has not {word} for {newest - best_step} steps: {shown} at step {best_step}, now at {newest}"


@dataclass
class EarlyStopper:
    """Decides for the chief. Local.

    Args:
        kinds: Of all evaluation sets, the first one first.
        max_steps: What TrainSpec asks for.
        history: Evaluations of earlier runs.
        since_step: Evaluations up to this step don't count (see counting_from).
    """

    rules: Sequence[Rule]
    kinds: Sequence[str] = ("eval",)
    max_steps: int | None = None
    history: Evaluations = field(default_factory=dict)
    since_step: int = 0
    decision: Decision | None = field(default=None, init=False)
    _looked: list[tuple[int, float] | None] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.history = {kind: {s: dict(m) for s, m in steps.items()} for kind, steps in self.history.items()}
        self._looked = [None] * len(self.rules)

    def saw(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Takes note of an evaluation of the checkpoint of `step`."""
        self.history.setdefault(kind, {})[step] = dict(metrics)

    def went_back(self, step: int) -> None:
        """Forgets what came after `step`, where a rollback has taken training."""
        for kind, steps in self.history.items():
            self.history[kind] = {s: metrics for s, metrics in steps.items() if s <= step}

    def check(self, step: int, now: float) -> Decision | None:
        """The decision that `step`, which is about to be taken, is the last one; `now` is a monotonic clock's.

        Each rule is checked as often as its settings ask, the first time at once. A decision once made is final.
        """
        if self.decision is not None:
            return self.decision
        for number, rule in enumerate(self.rules):
            if not self._is_due(rule, self._looked[number], step, now):
                continue
            self._looked[number] = step, now
            steps, name = self.history.get(rule.kind or self.kinds[0], {}), rule.metric_name
            values = {s: found[name] for s, found in steps.items() if s > self.since_step and name in found}
            if reason := decide(rule, values, step):
                self.decision = Decision(step, reason, as_mapping([rule]), self.max_steps)
                return self.decision
        return None

    @staticmethod
    def _is_due(rule: Rule, before: tuple[int, float] | None, step: int, now: float) -> bool:
        if before is None:
            return True
        if rule.run_every_steps is not None:
            return not 0 <= step - before[0] < rule.run_every_steps  # a rollback makes steps smaller
        return now - before[1] >= (rule.run_every_secs or 0)


def read_decision(job_dir: Path) -> Decision | None:
    """The last decision of a job, None where there is none or its file is damaged."""
    value = JobDir(job_dir).early_stop()
    try:
        decision = Decision(**{name: value[name] for name in ("step", "reason", "rule", "max_steps")})
    except KeyError:
        return None
    whole = isinstance(decision.step, int) and isinstance(decision.max_steps, int | None)
    return decision if whole and isinstance(decision.rule, dict | None) else None


def write_decision(job_dir: Path, decision: Decision) -> None:
    """Replaces early_stop.json, by rename. To be called before the checkpoint of `decision.step` is saved."""
    write_json(job_dir / EARLY_STOP_FILE, asdict(decision))


def still_holds(decision: Decision | None, max_steps: int | None, rules: Sequence[Rule], found_step: int) -> bool:
    """Whether a job that goes on from the checkpoint of `found_step` has ended by `decision` and trains no more.

    It has, unless that checkpoint is from before the decision, `max_steps` has been raised since, or the rule is no
    longer asked for.
    """
    if decision is None or found_step < decision.step:
        return False
    if decision.max_steps is not None and (max_steps is None or max_steps > decision.max_steps):
        return False
    return decision.rule is None or any(_same(decision.rule, as_mapping([rule])) for rule in rules)


def counting_from(decision: Decision | None, found_step: int) -> int:
    """The `since_step` of a job that goes on from the checkpoint of `found_step`: an old decision isn't made again."""
    return decision.step if decision is not None and decision.step <= found_step else 0


def _same(rule: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two rules stop at the same values, however often they are looked at."""

    def essence(rule: dict[str, Any]) -> Any:
        return {key: {k: v for k, v in values.items() if not k.startswith("run_every")} for key, values in rule.items()}

    return bool(essence(rule) == essence(other))


def check_metrics(rules: Sequence[Rule], names_by_kind: Mapping[str, Sequence[str]]) -> None:
    """UserError where a rule names a set or a metric that isn't evaluated.

    Args:
        names_by_kind: Metric names by kind ("eval", "eval_<name>"), the first set first.
    """
    kinds = list(names_by_kind)
    for rule in rules:
        kind = rule.kind or kinds[0]
        if kind not in names_by_kind:
            allowed = [k.removeprefix("eval_") for k in kinds if k != "eval"]
            near = did_you_mean(rule.eval_name or "", allowed)
            raise UserError(
                f"early stopping, {rule.key}: there is no evaluation set {rule.eval_name!r}; {near}"
                f"allowed: {', '.join(allowed) or 'none is named'}; leave eval_name out for the first one"
            )
        if rule.metric_name not in names_by_kind[kind]:
            allowed = list(names_by_kind[kind])
            raise UserError(
                f"early stopping, {rule.key}: {rule.metric_name!r} is no metric of this model; "
                f"{did_you_mean(rule.metric_name, allowed)}allowed: {', '.join(allowed)}"
            )
