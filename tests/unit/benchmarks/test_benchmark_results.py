"""A benchmark's results folder: an interrupted run goes on, nothing is mixed, and both reports say the same numbers."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def record(case: str = "step", value: float = 2.0, **more):
    from support.records import Record

    given = {"baseline": None, "ratio": None, "config": {}, "versions": {}, **more}
    return Record("scaling", case, 2, value, "ms", repeats=3, spread=(0.9 * value, 1.1 * value), **given)


def open_folder(path: Path, settings: dict | None = None, benchmark: str = "scaling", **more):
    from support.results import ResultsFolder

    return ResultsFolder(path, benchmark, settings or {"ranks": [1, 2]}, **more)


def small_report(**more):
    from support.report import Report, Target

    return Report("Scaling", ["What it is."], [Target("Two ranks", "≥ 0.9", [("MLP", "0.8", False)])], [], **more)


def test_records_have_the_common_fields_and_say_what_they_were_measured_on(tmp_path: Path):
    with open_folder(tmp_path / "out") as results:
        results.add("two ranks", [record(config={"batch": 64}), record(baseline="one rank", ratio=0.9)])
    lines = [json.loads(line) for line in (tmp_path / "out/records.jsonl").read_text().splitlines()]
    assert [list(line) for line in lines] == [FIELDS, FIELDS]
    for line in lines:
        assert line["config"]["unit"] == "two ranks"
        assert line["config"]["machine"]["cores"] >= 1
        assert line["versions"]["python"]
    assert lines[0]["config"]["batch"] == 64


def test_a_finished_unit_is_not_measured_again_and_one_left_out_is(tmp_path: Path, capsys: pytest.CaptureFixture):
    with open_folder(tmp_path) as results:
        assert results.finished("a") is None
        kept = results.add("a", [record()])
        results.add("empty", [])
        results.leave_out("b", "no peer here")
        results.leave_out("a on 4 ranks", "it failed", for_good=True)
    with open_folder(tmp_path) as results:
        assert results.finished("a") == kept == results.records
        assert results.finished("empty") == []
        assert results.finished("b") is None
        assert results.left_out == {"a on 4 ranks": "it failed"}
        results.add("b", [record("other")])
        assert [found.case for found in results.records] == ["step", "other"]
    assert "2 of the run's parts are measured already; --fresh" in capsys.readouterr().err


@given(cut=st.integers(min_value=1, max_value=400))
def test_what_was_being_written_when_the_run_was_killed_is_measured_again(tmp_path_factory, cut: int):
    """The unit is written before run.json counts it: cut at any byte, all of it goes and all before it stays."""
    folder = tmp_path_factory.mktemp("run")
    with open_folder(folder) as results:
        first = results.add("a", [record("one"), record("two")])
        told = (folder / "run.json").read_text()
        begun = (folder / "records.jsonl").stat().st_size
        results.add("b", [record("three"), record("four")])
    (folder / "run.json").write_text(told)
    text = (folder / "records.jsonl").read_bytes()
    (folder / "records.jsonl").write_bytes(text[: min(begun + cut, len(text))])
    with open_folder(folder) as results:
        assert results.records == first
        assert results.finished("b") is None
        results.add("b", [record("three"), record("four")])
    assert len((folder / "records.jsonl").read_text().splitlines()) == 4


def test_a_unit_of_which_a_line_is_torn_is_not_finished(tmp_path: Path):
    with open_folder(tmp_path) as results:
        results.add("a", [record("one")])
        results.add("b", [record("two"), record("three")])
    file = tmp_path / "records.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    with open_folder(tmp_path) as results:
        assert [found.case for found in results.records] == ["one"]
        assert results.finished("b") is None


def test_a_line_that_is_no_record_is_told(tmp_path: Path):
    from support.usage import UsageError

    with open_folder(tmp_path) as results:
        results.add("a", [record("one")])
    file = tmp_path / "records.jsonl"
    file.write_text("nonsense\n" + file.read_text())
    with pytest.raises(UsageError, match=r"records.jsonl, line 1: is no record.*--fresh"), open_folder(tmp_path):
        pass


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"settings": {"ranks": [1, 2, 4]}}, r"ranks: \[1, 2\] there, \[1, 2, 4\] now"),
        ({"settings": {"ranks": [1, 2], "quick": True}}, "quick: null there, true now"),
        ({"benchmark": "overhead"}, "benchmark scaling, not overhead"),
    ],
)
def test_another_run_is_refused_and_stays(tmp_path: Path, changed: dict, told: str):
    from support.usage import UsageError

    with open_folder(tmp_path) as results:
        results.add("a", [record()])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=told), open_folder(tmp_path, **changed):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_figures_of_another_machine_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from support import machine
    from support.usage import UsageError

    with open_folder(tmp_path) as results:
        results.add("a", [record()])
    here = machine.describe()
    monkeypatch.setattr(machine, "describe", lambda: {**here, "cores": 99})
    with pytest.raises(UsageError, match=r"cores: .* there, 99 now"), open_folder(tmp_path):
        pass


def test_a_folder_of_something_else_is_refused_even_by_fresh(tmp_path: Path):
    from support.usage import UsageError

    (tmp_path / "thesis.txt").write_text("years")
    for fresh in (False, True):
        with pytest.raises(UsageError, match=r"holds no run\.json"), open_folder(tmp_path, fresh=fresh):
            pass
    with pytest.raises(UsageError, match="is a file"), open_folder(tmp_path / "thesis.txt"):
        pass


def test_two_runs_cannot_write_to_one_folder(tmp_path: Path):
    from support.usage import UsageError

    with open_folder(tmp_path), pytest.raises(UsageError, match="another process"), open_folder(tmp_path):
        pass
    with open_folder(tmp_path):
        pass


def test_a_script_that_does_not_go_on_throws_away_only_what_was_interrupted(tmp_path: Path):
    from support.usage import UsageError

    with open_folder(tmp_path, resumes=False) as results:
        results.add("a", [record()])
    with open_folder(tmp_path, resumes=False) as results:
        assert results.records == []
        results.add("a", [record()])
        results.write(small_report())
    with pytest.raises(UsageError, match=r"holds a finished run.*--fresh"), open_folder(tmp_path, resumes=False):
        pass
    with open_folder(tmp_path) as results:
        assert len(results.records) == 1


def test_a_quick_run_takes_no_finished_run_away(tmp_path: Path):
    from support.usage import UsageError

    with open_folder(tmp_path) as results:
        results.add("a", [record()])
        results.write(small_report())
    quick = {"ranks": [1, 2], "quick": True}
    with pytest.raises(UsageError, match="holds another run"), open_folder(tmp_path, quick):
        pass
    for _ in range(2):
        with open_folder(tmp_path / "quick", quick) as results:
            assert results.records == []
            results.add("a", [record()])
            results.write(small_report())


def test_where_nothing_can_be_written_is_told_before_anything_is_measured(tmp_path: Path):
    from support.usage import UsageError

    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"--out: .* cannot be made: Not a directory"):
        open_folder(tmp_path / "file" / "out").__enter__()
    with pytest.raises(UsageError, match="--json: nothing can be written in"):
        open_folder(tmp_path / "out", json_copy=tmp_path / "none" / "out.json").__enter__()


def test_fresh_throws_away_what_was_measured_and_drawn_and_nothing_else(tmp_path: Path):
    from support.figures import Line, LinePlot
    from support.report import Section

    plot = LinePlot("Old plot", "ranks", "x", [Line("a", [(1, 1.0), (2, 2.0)])])
    with open_folder(tmp_path) as results:
        results.add("a", [record()])
        results.write(small_report_with(Section("S", figures=[plot])))
    (tmp_path / "notes.txt").write_text("mine")
    with open_folder(tmp_path, {"ranks": [1]}, fresh=True) as results:
        assert results.records == []
    assert {path.name for path in tmp_path.iterdir()} == {"records.jsonl", "run.json", "notes.txt"}


def small_report_with(*sections):
    from support.report import Report

    return Report("Scaling", [], [], sections)


def test_the_same_number_twice_is_a_mistake(tmp_path: Path):
    with open_folder(tmp_path) as results:
        results.add("a", [record()])
        with pytest.raises(ValueError, match="finished already"):
            results.add("a", [record("other")])
        with pytest.raises(ValueError, match=r"step.*is there already"):
            results.add("b", [record()])
        with pytest.raises(ValueError, match="JSON"):
            results.add("c", [record("c", float("nan"))])
        assert len(results.records) == 1


def test_strict_and_the_copy_of_the_records(tmp_path: Path, capsys: pytest.CaptureFixture):
    with open_folder(tmp_path / "out", json_copy=tmp_path / "copy.jsonl") as results:
        results.add("a", [record()])
        results.leave_out("peer", "not installed")
        assert results.conclude(small_report()) == 0
        assert results.conclude(small_report(), strict=True) == 1
    assert (tmp_path / "copy.jsonl").read_text() == (tmp_path / "out/records.jsonl").read_text()
    out = capsys.readouterr().out
    assert "NOT REACHED  Two ranks ≥ 0.9: MLP: 0.8 (missed)" in out
    assert "not measured  peer: not installed" in out


def arguments_of(*words: str) -> argparse.Namespace:
    from support.results import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser, "scaling")
    return parser.parse_args(words)


def test_the_default_folder_is_of_today_or_of_the_interrupted_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from support import results

    monkeypatch.setattr(results, "RESULTS", tmp_path)
    settings = {"ranks": (1, 2)}  # a list, once it is JSON
    with results.open_results(arguments_of(), "scaling", settings) as first:
        assert re.fullmatch(r"scaling_[a-z0-9-]+-cores_\d{4}-\d\d-\d\d", first.path.name)
        first.add("a", [record()])
    yesterday = first.path.rename(tmp_path / re.sub(r"_[\d-]+$", "_2020-01-01", first.path.name))
    with results.open_results(arguments_of(), "scaling", settings) as second:
        assert second.path == yesterday
        assert second.finished("a")
        second.write(small_report())
    with results.open_results(arguments_of(), "scaling", settings) as third:
        assert third.path == first.path, "what has ended is not gone on with on another day"
        assert third.finished("a") is None
    with results.open_results(arguments_of("--quick"), "scaling", settings) as quick:
        assert quick.path.name == first.path.name + "_quick"


def test_a_quick_run_goes_on_until_it_has_ended_and_then_begins_anew(tmp_path: Path):
    from support.results import open_results

    args = arguments_of("--quick", "--out", str(tmp_path))
    with open_results(args, "scaling", {}) as results:
        results.add("a", [record()])
    with open_results(args, "scaling", {}) as results:
        assert results.finished("a")
        results.write(small_report())
    with open_results(args, "scaling", {}) as results:
        assert results.finished("a") is None


@given(st.lists(st.sampled_from(["1a", "2b", "3c"]), min_size=1, max_size=6))
def test_versions_of_a_run_that_went_on_are_all_told(versions: list[str]):
    from support.run_file import joined

    told = None
    for version in versions:
        told = joined(told, version)
    assert told.split(" then ") == [v for i, v in enumerate(versions) if i == 0 or versions[i - 1] != v]


def test_records_are_read_as_they_were_written(tmp_path: Path):
    from support.records import read_records, write_records

    records = [record(), record("other", baseline="memcpy", ratio=0.5)]
    write_records(tmp_path / "a.jsonl", records)
    assert [asdict(one) for one in read_records(tmp_path / "a.jsonl")] == [asdict(one) for one in records]
