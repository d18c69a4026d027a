"""tuning.py: what becomes of its measurements, and what it refuses. Nothing is trained here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import tuning
from peers.models import MLP
from peers.settings import FULL, QUICK
from peers.told import Told
from support.report import as_html
from support.usage import UsageError


def test_a_change_is_compared_with_the_job_beside_it() -> None:
    record = tuning.record_of(MLP, 2, tuning.CHANGES[0], own=[50.0, 110.0], plain=[100.0, 200.0])
    assert record.ratio == pytest.approx((0.5 + 0.55) / 2)
    assert (record.value, record.spread, record.repeats) == (80.0, (50.0, 110.0), 2)
    assert record.config["as_it_is"] == 150.0
    page = as_html(tuning.make_page([record], MLP, 2, FULL), "2026-01-01")
    assert all(word in page for word in ("no yield", "0.525", "As it is"))


def test_both_run_in_turn_with_what_the_change_says(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    seen: list[tuple] = []

    def job(folder, model, ranks, *, run, launch, **how):
        seen.append((dict(run), launch))
        return [Told(10, (0.1,) * 8, (2.3, 1.0), 64 * ranks, (0.1,) * 8)]

    monkeypatch.setattr(tuning, "run_job", job)
    monkeypatch.setattr(tuning, "here", lambda env, options: (dict(env), tuple(options)))
    change = tuning.Change("both", "", env={"A": "1"}, run={"compression": "fp16"}, options=("--bind-to", "core"))
    record = tuning.measure(tmp_path, MLP, 2, change, FULL)
    plain, changed = ({}, ({}, ())), ({"compression": "fp16"}, ({"A": "1"}, ("--bind-to", "core")))
    assert seen == [plain, changed, changed, plain] * 2
    assert record.ratio == 1
    seen.clear()
    tuning.measure(tmp_path, MLP, 2, change, QUICK)
    assert len(seen) == 2


@pytest.mark.parametrize(("strict", "code"), [(False, 0), (True, 1)])
def test_a_change_that_fails_is_noted_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, strict: bool, code: int
) -> None:
    def measure(folder, model, ranks, change, settings):
        if change.name == "no yield":
            raise RuntimeError("mpirun -np 2 python: code 1\nValueError: no")
        return tuning.record_of(model, ranks, change, own=[50.0, 110.0], plain=[100.0, 200.0])

    monkeypatch.setattr(tuning, "measure", measure)
    monkeypatch.setattr(tuning, "write_data", lambda *_: None)
    monkeypatch.setattr(tuning, "check_mpirun", lambda: None)
    words = ["--changes", "no yield", "TCP", "--oversubscribe", "--quick", *(["--strict"] if strict else [])]
    monkeypatch.setattr(sys, "argv", ["tuning.py", "--out", str(tmp_path / "out"), *words])
    assert tuning.main() == code
    page = (tmp_path / "out" / "report.md").read_text()
    assert "no yield: mpirun: code 1; ValueError: no" in page
    assert "0.525" in page


def test_a_report_of_nothing_can_be_made() -> None:
    assert as_html(tuning.make_page([], MLP, 2, FULL), "2026-01-01")


def test_an_unknown_change_is_told_which_there_are() -> None:
    with pytest.raises(UsageError, match="no 'ield'; there are: no yield, cycle"):
        tuning.chosen(["ield"])
    assert [change.name for change in tuning.chosen(["TCP", "no yield"])] == ["no yield", "TCP"]
