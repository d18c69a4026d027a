from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hpc_train.config.early_stopping import (
    Rule,
    as_mapping,
    stop_if_higher,
    stop_if_lower,
    stop_if_no_decrease,
    stop_if_no_increase,
)
from hpc_train.config.specs import TrainOptions, TrainSpec
from hpc_train.errors import UserError
from hpc_train.evaluation.early_stopping import (
    Decision,
    EarlyStopper,
    check_metrics,
    counting_from,
    decide,
    read_decision,
    still_holds,
    write_decision,
)
from hpc_train.jobdir.paths import EARLY_STOP_FILE

OPTIONS = TypeAdapter(TrainOptions)
VALUES = st.floats(-10, 10) | st.just(math.nan)
EVALUATIONS = st.dictionaries(st.integers(0, 50), VALUES)


# Rules


def test_names_arguments_and_defaults_are_estimators() -> None:
    rule = stop_if_no_decrease("loss", 500)
    assert (rule.eval_name, rule.min_steps, rule.run_every_secs, rule.run_every_steps) == (None, 0, 60, None)
    assert stop_if_no_increase("a", max_steps_without_increase=3, run_every_secs=None, run_every_steps=7).key
    assert stop_if_higher("a", threshold=0.9, eval_name="b", min_steps=5).kind == "eval_b"
    assert stop_if_lower("a", -1).threshold == -1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: stop_if_no_decrease("loss", 0), "max_steps_without_decrease"),
        (lambda: stop_if_no_decrease("loss", 1.5), "max_steps_without_decrease"),  # type: ignore[arg-type]
        (lambda: stop_if_no_increase("", 3), "metric_name"),
        (lambda: stop_if_lower("loss", 1, min_steps=-1), "min_steps"),
        (lambda: stop_if_lower("loss", math.nan), "threshold"),
        (lambda: stop_if_higher("loss", 1, run_every_secs=0), "run_every_secs"),
        (lambda: stop_if_higher("loss", 1, run_every_secs=None, run_every_steps=0), "run_every_steps"),
        (lambda: stop_if_higher("loss", 1, run_every_steps=5), "one of the two"),
        (lambda: TrainSpec(len, max_steps=1, early_stopping=[3]), "3 is not allowed; allowed: what ht.stop_if"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_rule_tells_what_it_is() -> None:
    assert stop_if_no_decrease("loss", 500).describe() == "stop if eval loss has not decreased for 500 steps"
    rule = stop_if_higher("accuracy", 0.99, eval_name="holdout", min_steps=100)
    assert rule.describe() == "stop if eval_holdout accuracy is higher than 0.99, from step 100 on"


def test_a_job_file_gives_rules_by_key_and_gets_them_back() -> None:
    given_ = {
        "stop_if_no_decrease": {"metric_name": "loss", "max_steps_without_decrease": 500, "run_every_steps": 10},
        "stop_if_higher": {"metric_name": "accuracy", "threshold": 0.99},
        "stop_if_lower": None,
    }
    options = OPTIONS.validate_python({"early_stopping": given_})
    assert options.early_stopping == (
        stop_if_no_decrease("loss", 500, run_every_secs=None, run_every_steps=10),
        stop_if_higher("accuracy", 0.99),
    )
    dumped = json.loads(OPTIONS.dump_json(options))
    assert OPTIONS.validate_python(dumped) == options
    assert dumped["early_stopping"] == as_mapping(options.early_stopping)
    assert (
        TrainSpec(len, max_steps=1, early_stopping=options.early_stopping[0]).early_stopping
        == (options.early_stopping[:1])
    )


@pytest.mark.parametrize(
    ("given_", "where"),
    [
        ({"stop_if_lowr": {}}, ("stop_if_lowr",)),
        ({"stop_if_lower": {"metric_name": "x"}}, ("stop_if_lower", "threshold")),
        ({"stop_if_lower": {"metric_name": "x", "threshold": "a"}}, ("stop_if_lower", "threshold")),
        ({"stop_if_lower": 3}, ("stop_if_lower",)),
        (
            {"stop_if_lower": {"metric_name": "x", "threshold": 1, "run_every_secs": 1, "run_every_steps": 1}},
            ("stop_if_lower", "run_every_steps"),
        ),
    ],
)
def test_mistakes_are_found_where_they_are(given_: Any, where: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError) as raised:
        OPTIONS.validate_python({"early_stopping": given_})
    assert [error["loc"] for error in raised.value.errors()] == [("early_stopping", *where)]


# What they decide


def test_no_decrease_counts_steps_from_the_best_to_the_newest_evaluation() -> None:
    rule = stop_if_no_decrease("loss", 500)
    values = {1000: 0.5, 1200: 0.31, 1400: 0.31}
    assert decide(rule, values, 1500) is None
    assert decide(rule, {**values, 1700: 0.4}, 1800) == (
        "eval loss has not decreased for 500 steps: best 0.31 at step 1200, now at 1700"
    )
    assert decide(rule, {**values, 1700: 0.3}, 1800) is None


def test_a_threshold_is_crossed_once_and_for_all() -> None:
    rule = stop_if_higher("accuracy", 0.9, eval_name="b")
    assert decide(rule, {10: 0.9}, 20) is None
    assert decide(rule, {10: 0.95, 20: 0.8}, 30) == ("eval_b accuracy is higher than 0.9: 0.95 at step 10")


@given(EVALUATIONS, st.integers(1, 40), st.integers(0, 30), st.integers(0, 60))
def test_no_decrease_is_no_increase_of_the_negative(
    values: dict[int, float], patience: int, min_steps: int, step: int
) -> None:
    falling = decide(stop_if_no_decrease("x", patience, min_steps=min_steps), values, step)
    negative = {at: -value for at, value in values.items()}
    rising = decide(stop_if_no_increase("x", patience, min_steps=min_steps), negative, step)
    assert (falling is None) == (rising is None)


@given(EVALUATIONS, st.integers(1, 40), st.integers(0, 30))
def test_no_decrease_stops_exactly_where_patience_is_over(
    values: dict[int, float], patience: int, min_steps: int
) -> None:
    counted = sorted((at, value) for at, value in values.items() if at >= min_steps)
    finite = [(value, step) for step, value in counted if not math.isnan(value)]
    best = min(finite)[1] if finite else counted[0][0] if counted else 0
    expected = bool(counted) and counted[-1][0] - best >= patience
    assert (decide(stop_if_no_decrease("x", patience, min_steps=min_steps), values, 60) is not None) == expected


@given(EVALUATIONS, st.floats(-10, 10), st.integers(0, 30))
def test_thresholds_look_at_every_evaluation_that_counts(
    values: dict[int, float], threshold: float, min_steps: int
) -> None:
    counted = [value for at, value in values.items() if at >= min_steps]
    lower, higher = stop_if_lower("x", threshold, min_steps=min_steps), stop_if_higher("x", threshold)
    assert (decide(lower, values, 60) is not None) == any(v < threshold for v in counted)
    assert (decide(higher, values, 60) is not None) == any(v > threshold for v in values.values())


@given(EVALUATIONS, st.integers(0, 60))
def test_nothing_is_decided_before_min_steps(values: dict[int, float], min_steps: int) -> None:
    rule: Rule
    for rule in (stop_if_no_decrease("x", 1, min_steps=min_steps), stop_if_lower("x", 11, min_steps=min_steps)):
        assert all(decide(rule, values, step) is None for step in range(min_steps))


# The chief's decision


def test_the_chief_looks_as_often_as_the_rule_says_and_the_first_time_at_once() -> None:
    by_steps = EarlyStopper([stop_if_lower("x", 1, run_every_secs=None, run_every_steps=10)], max_steps=100)
    assert by_steps.check(5, 0.0) is None
    by_steps.saw("eval", 6, {"x": 0.5})
    assert [by_steps.check(step, 1e9) is not None for step in (7, 14, 15, 16)] == [False, False, True, True]
    by_secs = EarlyStopper([stop_if_lower("x", 1)], history={"eval": {3: {"x": 2.0}}})
    assert by_secs.check(5, 100.0) is None
    by_secs.saw("eval", 6, {"x": 0.5})
    assert by_secs.check(1000, 159.9) is None
    decision = by_secs.check(1001, 160.0)
    assert decision == Decision(1001, "eval x is lower than 1: 0.5 at step 6", as_mapping(by_secs.rules), None)
    assert by_secs.check(2000, 1e9) is decision


def test_rules_look_at_their_own_set_and_the_first_one_may_have_a_name() -> None:
    stopper = EarlyStopper([stop_if_lower("x", 1), stop_if_lower("x", 1, eval_name="b")], kinds=["eval_a", "eval_b"])
    stopper.saw("eval", 1, {"x": 0.0})
    assert stopper.check(2, 0) is None
    for kind in ("eval_a", "eval_b"):
        one = EarlyStopper(stopper.rules, stopper.kinds)
        one.saw(kind, 1, {"x": 0.0})
        assert one.check(2, 0) is not None


def test_what_an_old_decision_has_seen_does_not_count_again() -> None:
    history = {"eval": {100: {"loss": 0.1}, 700: {"loss": 0.2}}}
    rules = [stop_if_no_decrease("loss", 500)]
    first = EarlyStopper(rules, max_steps=1000, history=history).check(701, 0)
    assert first is not None
    again = EarlyStopper(rules, max_steps=5000, history=history, since_step=counting_from(first, 701))
    for step in (800, 1299):
        again.saw("eval", step, {"loss": 0.2})
        assert again.check(step, step * 100) is None
    again.saw("eval", 1300, {"loss": 0.3})
    assert again.check(1301, 1e9) is not None


def test_a_rollback_takes_evaluations_back() -> None:
    stopper = EarlyStopper([stop_if_lower("x", 1, run_every_secs=None, run_every_steps=10)])
    assert stopper.check(50, 0) is None
    stopper.saw("eval", 50, {"x": 0.0})
    stopper.went_back(40)
    assert [stopper.check(step, 0) for step in (41, 51, 60)] == [None, None, None]


@pytest.mark.parametrize(
    ("before", "now", "found", "same_rule", "holds"),
    [
        (1000, 1000, 700, True, True),
        (None, None, 700, True, True),
        (1000, 900, 800, True, True),
        (None, 1000, 700, True, True),
        (1000, 1001, 700, True, False),
        (1000, None, 700, True, False),
        (1000, 1000, 699, True, False),
        (1000, 1000, 700, False, False),
    ],
)
def test_a_stopped_job_trains_no_more_unless_asked_to(
    before: int | None, now: int | None, found: int, same_rule: bool, holds: bool
) -> None:
    rule = stop_if_lower("x", 1)
    asked = stop_if_lower("x", 1, run_every_secs=5) if same_rule else stop_if_lower("x", 0.5)
    decision = Decision(700, "because", as_mapping([rule]), before)
    assert still_holds(decision, now, [stop_if_higher("y", 3), asked], found) == holds
    assert counting_from(decision, found) == (700 if found >= 700 else 0)
    assert still_holds(Decision(700, "a hook", None, before), now, [], found) == (holds or not same_rule)
    assert not still_holds(None, now, [rule], found)
    assert counting_from(None, found) == 0


def test_decisions_are_written_whole_and_read_back(tmp_path: Path) -> None:
    assert read_decision(tmp_path) is None
    decision = Decision(700, "because", as_mapping([stop_if_no_decrease("loss", 5)]), None)
    write_decision(tmp_path, decision)
    assert read_decision(tmp_path) == decision
    assert json.loads((tmp_path / EARLY_STOP_FILE).read_text()) == asdict(decision)
    assert still_holds(read_decision(tmp_path), None, [stop_if_no_decrease("loss", 5)], 700)
    for damaged in ("", "{", "[]", '{"step": 1}', '{"step": "1", "reason": "", "rule": null, "max_steps": null}'):
        (tmp_path / EARLY_STOP_FILE).write_text(damaged)
        assert read_decision(tmp_path) is None


# Evaluations of the runs before


def line(kind: str, step: int, **values: Any) -> str:
    return json.dumps({"kind": kind, "step": step, "time": 1.0, **values})


def test_unknown_metrics_and_sets_are_told_with_those_there_are() -> None:
    names = {"eval": ["loss", "accuracy"], "eval_holdout": ["loss"]}
    check_metrics([stop_if_lower("loss", 1), stop_if_lower("loss", 1, eval_name="holdout")], names)
    with pytest.raises(UserError, match=r"'acuracy' is no metric.*did you mean `accuracy`\? allowed: loss, accuracy"):
        check_metrics([stop_if_lower("acuracy", 1)], names)
    with pytest.raises(UserError, match=r"no evaluation set 'holdot'; did you mean `holdout`\? allowed: holdout"):
        check_metrics([stop_if_lower("loss", 1, eval_name="holdot")], names)
