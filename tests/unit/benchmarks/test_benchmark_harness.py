"""What all benchmarks share: turns, records, a folder that an interrupted run goes on in, targets, pages, mistakes."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from support.drawing import Bar, Bars, Line, Lines, Stacks
from support.page import Report, Section, Table, at_least, at_most, numbers
from support.records import Found, Sample, read_records, records_of
from support.results import Results, command_line
from support.timing import Competitor, interleave, paired_ratio, there_and_back
from support.usage import MissingError, UsageError, in_short

BENCHMARKS = REPOSITORY / "benchmarks"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py"))
positive = st.floats(0.1, 10)


def test_competitors_take_turns_there_and_back():
    ran: list[str] = []
    group = [Competitor(name, lambda name=name: ran.append(name) or 1) for name in "ABC"]
    rates = interleave(group, rounds=2)
    assert "".join(ran) == "ABC" + "ABCCBA" * 2  # the first turn warms up
    assert all(len(found.per_sec) == 4 for found in rates.values())
    assert list(there_and_back("AB", 3)) == ["A", "B", "B", "A", "A", "B"]


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=20))
def test_a_ratio_is_the_median_of_pairs_and_does_not_see_a_slow_machine(pairs):
    a, b = zip(*pairs, strict=True)
    middle, low, high = paired_ratio(a, b)
    assert low <= middle <= high
    slowed = [3.0 if i % 2 else 1.0 for i in range(len(pairs))]
    again = paired_ratio(*([x * s for x, s in zip(own, slowed, strict=True)] for own in (a, b)))
    assert again == pytest.approx((middle, low, high))


def two() -> list[Sample]:
    return [Sample("step, ours", [2.0, 4.0, 3.0], {"other": [1.0, 2.0, 2.0]}, 2, {"way": "ours"}), Sample("x", [1.0])]


def test_a_record_has_the_common_fields_medians_and_the_ratio_of_pairs(tmp_path):
    with Results(tmp_path / "out", "b", {}, json_copy=tmp_path / "copy.jsonl") as results:
        results.add("unit", records_of("b", "ms", two()))
        results.conclude(Report("B", [], [], []))
    assert (tmp_path / "copy.jsonl").read_text() == (tmp_path / "out/records.jsonl").read_text()
    ours, other = (json.loads(line) for line in (tmp_path / "copy.jsonl").read_text().splitlines())
    assert list(ours) == list(other) == FIELDS
    assert (ours["value"], ours["spread"], ours["ratio"], ours["repeats"], ours["ranks"]) == (
        3.0,
        [2.0, 4.0],
        2.0,
        3,
        2,
    )
    assert ours["config"]["ratio_spread"] == [1.75, 2.0]
    assert (other["baseline"], other["ratio"]) == (None, None)
    assert ours["config"]["machine"]["cores"] >= 1
    assert ours["versions"]["python"]
    found = Found(read_records(tmp_path / "copy.jsonl"))
    assert found.where(way="ours", ranks=2).ratio("other") == 2.0
    assert found.where(way="theirs").ratio("other") is None


def test_a_number_that_is_not_finite_or_measured_twice_is_refused(tmp_path):
    with Results(tmp_path, "b", {}) as results:
        with pytest.raises(ValueError, match="JSON"):
            results.add("unit", records_of("b", "ms", [Sample("x", [float("nan")])]))
        results.records.clear()
        results.add("unit", records_of("b", "ms", two()))
        with pytest.raises(ValueError, match="measured twice"):
            results.add("again", records_of("b", "ms", two()))


def jobs(ran: list[str], broken: str = "", error: type[Exception] = RuntimeError):
    def run(name: str) -> str:
        ran.append(name)
        if name == broken:
            raise error("it broke\nlast words")
        return name

    return {name: lambda name=name: run(name) for name in ("A", "B", "C")}


def test_jobs_take_turns_and_an_interrupted_run_goes_on_behind_the_last(tmp_path):
    ran: list[str] = []
    with Results(tmp_path, "b", {"n": 1}) as results, pytest.raises(KeyboardInterrupt):
        results.turns("unit", jobs(ran, "C", KeyboardInterrupt), 2)
    with open(tmp_path / "measured.jsonl", "a") as file:
        file.write('["unit, C, 0", "cut o')
    with Results(tmp_path, "b", {"n": 1}) as results:
        found = results.turns("unit", jobs(ran), 2)
        assert found == {name: [name, name] for name in "ABC"}
        assert results.conclude(Report("B", [], [], [])) == 0
    assert "".join(ran) == "ABC" + "CCBA"
    assert not (tmp_path / "measured.jsonl").exists()


def test_a_contestant_that_fails_is_left_out_and_the_others_go_on(tmp_path, capsys):
    ran: list[str] = []
    with Results(tmp_path, "b", {}) as results:
        assert set(results.turns("unit", jobs(ran, "B"), 2)) == {"A", "C"}
        assert "".join(ran) == "ABCCA"  # it is not tried again
        assert results.attempt("other", lambda: results.turns("other", jobs([], "A"), 2)) is None
        assert results.left_out == {"unit, B": "it broke; last words", "other": "it broke; last words"}
        assert results.conclude(Report("B", [], [], []), strict=True) == 1
    assert "not measured  unit, B: it broke; last words" in capsys.readouterr().out
    assert "## Not measured" in (tmp_path / "report.md").read_text()


def test_what_cannot_be_had_here_is_left_out_and_is_no_failure(tmp_path):
    with Results(tmp_path, "b", {}) as results:
        assert set(results.turns("unit", jobs([], "C", MissingError), 1)) == {"A", "B"}
        assert results.conclude(Report("B", [], [], []), strict=True) == 0


@pytest.mark.parametrize(
    ("benchmark", "settings", "said"),
    [("b", {"n": 2}, "n: 1 there, 2 now"), ("c", {"n": 1}, "benchmark b, not c"), ("b", {"n": 1}, "a finished run")],
)
def test_the_folder_of_another_run_is_refused_until_it_is_thrown_away(tmp_path, benchmark, settings, said):
    with Results(tmp_path, "b", {"n": 1}) as results:
        results.conclude(Report("B", [], [], []))
    with pytest.raises(UsageError, match=said), Results(tmp_path, benchmark, settings):
        pass
    with Results(tmp_path, benchmark, settings, fresh=True) as results:
        assert not results.records
        with pytest.raises(UsageError, match="another process"), Results(tmp_path, benchmark, settings):
            pass


def test_other_machines_versions_and_files_are_refused(tmp_path):
    with Results(tmp_path / "out", "b", {}):
        pass
    run = tmp_path / "out" / "run.json"
    told = json.loads(run.read_text())
    for part, name in (("machine", "cpu"), ("versions", "numpy")):
        run.write_text(json.dumps({**told, part: {**told[part], name: "another"}}))
        with pytest.raises(UsageError, match=f'{name}: "another" there'), Results(tmp_path / "out", "b", {}):
            pass
    run.unlink()
    (tmp_path / "out" / "notes").touch()
    with pytest.raises(UsageError, match=r"holds no run\.json"), Results(tmp_path / "out", "b", {}):
        pass
    with (
        pytest.raises(UsageError, match=r"--json: .* is a folder"),
        Results(tmp_path / "new", "b", {}, json_copy=tmp_path),
    ):
        pass


def test_a_quick_run_begins_anew_and_says_that_its_figures_mean_nothing(tmp_path, capsys):
    for _ in range(2):
        with Results(tmp_path, "b", {"quick": True}) as results:
            results.add("unit", records_of("b", "ms", two()))
            assert results.conclude(Report("B", [], [at_least("x", "≥ 1", [], 1.0)], [])) == 0
    assert "none of its figures mean anything" in (tmp_path / "report.md").read_text()
    assert "NOT REACHED  x ≥ 1: not measured" in capsys.readouterr().out


@given(st.lists(st.tuples(st.text("ab"), st.none() | positive), max_size=4), positive)
def test_a_target_is_reached_where_something_was_measured_and_all_of_it_is_enough(found, bound):
    known = [value for _, value in found if value is not None]
    assert at_least("x", "", found, bound).reached == (bool(known) and min(known) >= bound)
    assert at_most("x", "", found, bound).reached == (bool(known) and max(known) <= bound)


def test_a_page_has_targets_tables_drawings_and_nothing_of_the_machine(tmp_path):
    figures = [
        Bars("Ratios", [Bar("ours", 0.5, 0.9), Bar("missing", None)]),
        Lines("Curves", "bytes", "GB/s", [Line("a|b", [(4, 1.0), (4096, 2.0)], [(4, 0.5, 1.5)])], limits={"memcpy": 3}),
        Stacks("Split", "ms", [("1 rank", {"input": 1.0}), ("2 ranks", {"input": 1.0, "wait": 2.0})]),
    ]
    table = numbers(records_of("b", "ms", two()), {"Way": "way"})
    report = Report(
        "A *title*",
        ["What it is."],
        [at_least("Two ranks", "≥ 0.9", [("MLP", 0.8)], 0.9)],
        [Section("Part", ["Text."], figures, [table, Table(("a",), [("1 | 2",)], fold="More")])],
    )
    with Results(tmp_path, "b", {}) as results:
        assert results.conclude(report, strict=True) == 1
    page = (tmp_path / "report.md").read_text()
    assert "| Two ranks | ≥ 0.9 | MLP: 0.8 (missed) | not reached |" in page
    assert "| ours | 3 | 2 to 4 | 2 (1.75 to 2) |" in page
    assert "1 \\| 2" in page
    assert "A \\*title\\*" in page
    drawings = re.findall(r"!\[[^]]*\]\(([^)]*)\)", page)
    assert len(set(drawings)) == 3
    for name in drawings:
        assert (tmp_path / name).read_text().startswith("<?xml")
    for private in (socket.gethostname(), str(REPOSITORY), str(Path.home()), sys.prefix, str(tmp_path)):
        assert private not in page
    assert "cores" in page


def test_a_command_line_names_neither_a_home_nor_where_results_go(monkeypatch):
    words = ["--quick", "--out", "/x", "--json=y", "--fresh", "--dir", str(Path.home() / "d")]
    monkeypatch.setattr(sys, "argv", [str(BENCHMARKS / "scaling.py"), *words])
    assert command_line() in (
        "python benchmarks/scaling.py --quick --dir ~/d",
        "python benchmarks/scaling.py --quick --dir '~/d'",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "RuntimeError"),
        ("mpirun -np 2 x: code 1\nfirst\na\nb\nc", "mpirun: code 1; a; b; c"),
        ("mpirun -np 2 x: code 1\n-----\nrule 1\nrule 2\n-----", "mpirun: code 1; rule 1; rule 2"),
        ("x" * 300, f"{'x' * 159}…"),
    ],
)
def test_a_failure_is_told_in_one_line(text, said):
    assert in_short(RuntimeError(text)) == said


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_itself_without_tensorflow_or_mpi(tmp_path, script):
    program = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(BENCHMARKS)!r})\n"
        f"sys.argv = [{str(BENCHMARKS / script)!r}, '--help']\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'tensorflow', 'mpi4py', 'horovod'} & set(sys.modules) or script_needs\n"
    ).replace("or script_needs", "or True" if script in ("checkpoint.py", "input_pipeline.py") else "")
    (tmp_path / "help.py").write_text(program)
    done = run_program([sys.executable, "help.py"], tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("--json FILE" in done.stdout) == (script != "compare.py")


def test_a_mistake_ends_with_code_2_before_anything_is_written(tmp_path):
    done = run_program(
        [sys.executable, str(BENCHMARKS / "checkpoint.py"), "--dir", "nowhere", "--out", "out"], tmp_path, timeout=600
    )
    assert done.returncode == 2
    assert "checkpoint.py: error: --dir: nowhere is not a folder" in done.stderr
    assert not (tmp_path / "out").exists()
