"""What the chief reports of training, and how a worker's summaries reach it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.telemetry.energy.account import EnergyAccount
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.metrics import METRICS_FILE, MetricsWriter
from hpc_train.telemetry.progress import TrainingProgress, make_console
from hpc_train.telemetry.reporter import NodeReports, Reporter, StatusLists, StepSummary, by_rank
from hpc_train.telemetry.slow_rank_log import SlowRankLog
from hpc_train.telemetry.start_timeline import StartTimeline
from hpc_train.telemetry.status import StatusFile, read_status


def no_nodes(metrics: MetricsWriter, status: StatusFile) -> NodeReports:
    return NodeReports(EnergyAccount({}, None, None), SlowRankLog(metrics, status, None, [], []))


def summary(step: int, **more: Any) -> StepSummary:
    return StepSummary(step, 0.5, 100.0, 90.0, 12.0, False, **more)


@pytest.fixture
def reporter(tmp_path: Path) -> Any:
    lenient = Lenient()
    with MetricsWriter(tmp_path, lenient) as metrics:
        status = StatusFile(tmp_path, tmp_path / "failure", lenient)
        yield Reporter(
            metrics,
            status,
            TrainingProgress(make_console(), 0, 100, 10),
            StatusLists(),
            "read it in blocks",
            no_nodes(metrics, status),
        )


def records(job_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job_dir / METRICS_FILE).read_text().splitlines()]


def test_only_records_go_to_the_metrics(reporter: Reporter, tmp_path: Path) -> None:
    reporter.report(summary(1))
    shares = {"examples_per_sec": [None, 40.0, 60.0], "input": [None, 0.05, 0.02]}
    reporter.report(summary(2, record=True, learning_rate=0.01, by_rank=shares, more={"staleness_mean": 1.5}))
    reporter.report(summary(3))
    (record,) = records(tmp_path)
    assert {key: record[key] for key in ("kind", "step", "loss", "examples_per_sec", "learning_rate")} == {
        "kind": "train", "step": 2, "loss": 0.5, "examples_per_sec": 100.0, "learning_rate": 0.01,
    }  # fmt: skip
    assert record["by_rank"] == shares
    assert (record["input_wait"], record["staleness_mean"]) == (0.05, 1.5)
    reporter.status.update(state="running")
    status = read_status(tmp_path)
    assert (status["step"], status["examples_per_sec"], status["input_wait"]) == (3, 90.0, 0.05)


def test_the_start_is_recorded_with_the_first_step_and_the_rest_is_written_with_the_first_record(
    tmp_path: Path,
) -> None:
    lenient, written = Lenient(), []
    start = StartTimeline(began=time.time() - 5, launched=time.time() - 8)
    start.begin("first step")
    with MetricsWriter(tmp_path, lenient) as metrics:
        status, progress = (
            StatusFile(tmp_path, tmp_path / "failure", lenient),
            TrainingProgress(make_console(), 0, 9, 1),
        )
        reporter = Reporter(
            metrics, status, progress, StatusLists(), "", no_nodes(metrics, status), lambda: written.append(1), start
        )
        reporter.report(summary(4))
        assert not written
        for step in (5, 6):
            reporter.report(summary(step, record=True))
    assert written == [1]
    first, *others = records(tmp_path)
    assert [other["kind"] for other in others] == ["train", "train"]
    assert (first["kind"], first["step"], list(first["phases"])) == (
        "first_step",
        4,
        ["launch", "Python", "first step"],
    )
    assert first["phases"]["launch"] == pytest.approx(3, abs=0.1)
    assert first["secs"] == pytest.approx(sum(first["phases"].values()), abs=0.01)


def test_without_a_learning_rate_or_shares(reporter: Reporter, tmp_path: Path) -> None:
    reporter.report(summary(2, record=True))
    reporter.report(summary(3, record=True, by_rank={"input": [None, None]}, staleness={2: 5, 0: 1}))
    first, second = records(tmp_path)
    assert not {"learning_rate", "input_wait", "by_rank"} & set(first)
    assert "input_wait" not in second
    assert second["staleness"] == {"0": 1, "2": 5}


def test_much_waiting_for_input_is_logged_once(reporter: Reporter, tmp_path: Path, logged: list[str]) -> None:
    for step, shares in ((10, [None, 0.1, 0.02]), (20, [None, 0.02, 0.34]), (30, [None, 0.9, 0.02])):
        reporter.report(summary(step, record=True, by_rank={"input": shares}))
    warnings = [line for line in logged if line.startswith("warning")]
    assert warnings == ["warning: rank 2 waited for input 34% of the time up to step 20; read it in blocks"]
    assert [record["input_wait"] for record in records(tmp_path)] == [0.1, 0.34, 0.9]


def test_ranks_that_measure_nothing_are_none() -> None:
    assert by_rank([{"input": 0.1, "compute": 0.9}, None, {"input": 0.2}], 1) == {
        "input": [None, 0.1, None, 0.2],
        "compute": [None, 0.9, None, None],
    }
    assert by_rank([], 2) == by_rank([None, None], 0) == {}


measured = st.none() | st.dictionaries(st.sampled_from("abc"), st.floats(0, 1))


@given(st.lists(measured, max_size=5), st.integers(0, 3))
def test_each_name_has_a_number_for_each_rank_of_the_job(taken: list[dict[str, float] | None], idle: int) -> None:
    found = by_rank(taken, idle)
    assert set(found) == {name for own in taken for name in own or {}}
    for name, numbers in found.items():
        assert numbers == [*[None] * idle, *[(own or {}).get(name) for own in taken]]


numbers = st.floats(allow_infinity=False, allow_nan=False)


@given(st.integers(0), numbers, st.none() | numbers, st.booleans(), st.lists(measured, max_size=4))
def test_what_is_told_passes_through_json(
    step: int, loss: float, left: float | None, last: bool, taken: list[dict[str, float] | None]
) -> None:
    one = StepSummary(step, loss, 1.5, 2.5, left, last, True, 0.1, by_rank(taken, 1), {"loss_scale": 2.0**15})
    assert StepSummary(**json.loads(json.dumps(asdict(one)))) == one


def test_what_another_program_left_in_the_status_is_passed_over() -> None:
    good = {"step": 4, "loss": 0.5}
    for junk in (None, 3, "x", [3], {"step": "x"}, {"step": None}, {"step": [[]]}, {"step": 10**400}):
        found = StatusLists.of({"evaluations": {"eval": good, "odd": junk}, "export_errors": [junk, good]}, 4)
        assert (found.evaluations, found.export_errors) == ({"eval": good}, [good])
        assert StatusLists.of({"evaluations": junk, "export_errors": junk}, 4).export_errors == []
