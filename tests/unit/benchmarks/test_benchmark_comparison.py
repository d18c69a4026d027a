"""`hpc-train report --compare`: slower and faster beyond the spread, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpc_train.cli.report import report
from hpc_train.errors import UserError
from hpc_train.report.benchmark_comparison import Change, Run, compare, less_is_better, make_run, read_run
from hpc_train.report.benchmark_words import by, lines, markdown, summary

app = typer.Typer()
app.command()(report)

MACHINE = {"cpu": "AMD EPYC", "cores": 2}


def record(case: str = "step", value: float = 10.0, unit: str = "ms", **more: Any) -> dict[str, Any]:
    given = {
        "benchmark": "overhead", "case": case, "ranks": 2, "value": value, "unit": unit, "baseline": None,
        "ratio": None, "repeats": 4, "spread": [0.95 * value, 1.05 * value], "config": {"machine": MACHINE},
        "versions": {"numpy": "2.0"},
    }  # fmt: skip
    return {**given, **more}


def run(*records: dict[str, Any], name: str = "A", **run_file: Any) -> Run:
    return make_run(name, records, run_file)


def verdict(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, str]:
    (change,) = compare(run(before), run(after, name="B")).changes
    return change.verdict, by(change)


def test_more_milliseconds_are_slower_and_more_examples_are_faster():
    assert verdict(record(), record(value=12.0)) == ("slower", "+20 %")
    assert verdict(record(), record(value=8.0)) == ("faster", "−20 %")
    assert verdict(record(unit="examples/s"), record(value=12.0, unit="examples/s")) == ("faster", "+20 %")
    assert verdict(record(unit="examples/s"), record(value=8.0, unit="examples/s")) == ("slower", "−20 %")


def test_where_the_spreads_overlap_nothing_is_said_to_have_changed():
    assert verdict(record(), record(value=11.0)) == ("within the spread", "+10 %")
    wide = record(value=12.0, spread=[10.0, 14.0])
    assert verdict(record(), wide) == ("within the spread", "+20 %")


@pytest.mark.parametrize("repeats", [1, 3])
def test_of_few_repeats_nothing_is_said(repeats):
    few = record(value=99.0, repeats=repeats, spread=[99.0, 99.0])
    assert verdict(record(), few)[0] == verdict(few, record())[0] == "too few repeats"


def test_ratios_are_compared_where_there_are_any_with_the_spread_in_their_measure():
    """The machine became twice as slow, and the baseline with it: the ratio is what it was."""
    before = record(value=10.0, baseline="memcpy", ratio=2.0)
    assert verdict(before, record(value=20.0, baseline="memcpy", ratio=2.0)) == ("within the spread", "+0.0 %")
    assert verdict(before, record(value=10.0, baseline="memcpy", ratio=2.5)) == ("slower", "+25 %")
    (change,) = compare(run(before), run(before)).changes
    assert (change.before.value, change.before.low, change.before.high) == pytest.approx((2.0, 1.9, 2.1))


def paired(value: float, ratio: float, *ends: object, repeats: int = 24) -> dict[str, Any]:
    """Blocks drifted by 15 % of the value, and both of a pair with them."""
    return record(
        value=value, unit="examples/s", baseline="by hand", ratio=ratio, spread=[0.85 * value, 1.15 * value],
        repeats=repeats, config={"machine": MACHINE, "ratio_spread": ends},
    )  # fmt: skip


def test_a_paired_ratio_has_the_spread_of_the_pairs():
    before = paired(100.0, 0.995, 0.99, 1.0)
    assert verdict(before, paired(100.0, 0.93, 0.925, 0.935)) == ("slower", "−6.5 %")
    assert verdict(before, paired(100.0, 1.05, 1.04, 1.06)) == ("faster", "+5.5 %")
    assert verdict(before, paired(80.0, 0.99, 0.985, 0.995)) == ("within the spread", "−0.5 %")
    assert verdict(before, paired(100.0, 0.93, 0.93, 0.93, repeats=1))[0] == "too few repeats"
    (change,) = compare(run(before), run(before)).changes
    assert (change.before.low, change.before.high) == (0.99, 1.0)


def test_the_spread_of_pairs_says_nothing_of_a_number_without_a_baseline():
    alone = record(config={"machine": MACHINE, "ratio_spread": [0.99, 1.0]})
    (change,) = compare(run(alone), run(alone)).changes
    assert (change.before.low, change.before.high) == (9.5, 10.5)


@pytest.mark.parametrize(
    ("unit", "less"),
    [
        ("s", True), ("ms", True), ("us", True), ("µs", True), ("ns", True), ("ms a step", True), ("bytes", True),
        ("bytes a step", True), ("MiB", True), ("% of step", True), ("of a core", True),
        ("GB/s", False), ("examples/s", False), ("steps/s", False), ("efficiency", False), ("", False), ("sum", False),
    ],
)  # fmt: skip
def test_units_of_which_less_is_better(unit: str, less: bool):
    assert less_is_better(unit) == less


NUMBERS = st.floats(min_value=1e-6, max_value=1e9)
RECORDS = st.builds(
    lambda case, value, low, high, unit, ratio, repeats: record(
        case, value, unit, spread=[value * low, value * high], repeats=repeats,
        baseline=None if ratio is None else "memcpy", ratio=ratio,
    ),
    st.sampled_from("abcdef"),
    NUMBERS,
    st.floats(0.5, 1.0),
    st.floats(1.0, 2.0),
    st.sampled_from(["ms", "GB/s"]),
    st.none() | NUMBERS,
    st.integers(1, 9),
)  # fmt: skip
RUNS = st.lists(RECORDS, min_size=1, max_size=8, unique_by=lambda one: (one["case"], one["baseline"])).map(
    lambda records: run(*records)
)
SLOWER_FASTER = {"slower": "faster", "faster": "slower"}


@given(RUNS, RUNS)
def test_the_other_way_round_what_was_slower_is_faster(a: Run, b: Run):
    there, back = compare(a, b), compare(b, a)
    found = {change.key: change.verdict for change in back.changes}
    assert {c.key: SLOWER_FASTER.get(c.verdict, c.verdict) for c in there.changes} == found
    assert there.only_before == back.only_after
    assert there.only_after == back.only_before


@given(RUNS, RUNS)
def test_every_number_is_told_once(a: Run, b: Run):
    found = compare(a, b)
    told = [*(c.key for c in found.changes), *found.only_before, *found.only_after, *(key for key, _ in found.unlike)]
    assert sorted(map(str, told)) == sorted(map(str, a.numbers.keys() | b.numbers.keys()))
    text = "\n".join(lines(found))
    assert all(case in text for case, _ in told)
    assert markdown(found)


@given(RUNS)
def test_nothing_changes_from_a_run_to_itself(a: Run):
    found = compare(a, a)
    assert {change.verdict for change in found.changes} <= {"within the spread", "too few repeats"}
    assert {change.factor for change in found.changes} == {1.0}
    assert not found.differing
    assert not found.warnings


@given(RUNS, RUNS)
def test_the_worst_comes_first(a: Run, b: Run):
    changes = compare(a, b).changes
    order = [{"slower": 0, "faster": 1}.get(change.verdict, 2) for change in changes]
    assert order == sorted(order)

    def losses(wanted: str) -> list[float]:
        return [change.loss for change in changes if change.verdict == wanted]

    assert losses("slower") == sorted(losses("slower"), reverse=True)
    assert all(loss > 0 for loss in losses("slower"))
    assert losses("faster") == sorted(losses("faster"))
    assert all(loss < 0 for loss in losses("faster"))


def test_a_number_that_was_nothing_can_become_slower():
    nothing = record(value=0.0, spread=[0.0, 0.0])
    assert verdict(nothing, record(value=1.0)) == ("slower", "–")
    assert verdict(record(value=1.0), nothing) == ("faster", "−100 %")
    (change,) = compare(run(nothing), run(nothing)).changes
    assert isinstance(change, Change)
    assert change.loss == 0


def test_other_units_and_ranks_are_not_compared():
    before = run(record("a"), record("b"), record("c"))
    after = run(record("a", unit="s"), record("b", ranks=4), record("c"), name="B")
    found = compare(before, after)
    assert [key for key, _ in found.unlike] == [("a", None), ("b", None)]
    assert "not compared: a: unit: ms, then s" in list(lines(found))
    assert summary(found) == "1 number compared: 0 slower, 0 faster, 1 within the spread"


def test_a_reader_is_told_what_differs_and_warned_of_another_machine():
    before = run(record(), settings={"quick": False}, ended="now")
    other = record(config={"machine": {**MACHINE, "cores": 64}}, versions={"numpy": "2.1"})
    after = run(other, name="B", settings={"quick": True})
    found = compare(before, after)
    assert found.differing == [("cores", "2", "64"), ("numpy", "2.0", "2.1"), ("setting quick", "false", "true")]
    warnings = " ".join(found.warnings)
    for words in ("machines differ (cores)", "B is a quick run", "B was interrupted"):
        assert words in warnings
    assert "A" not in warnings.split()


def folder(path: Path, *records: dict[str, Any], torn: str = "") -> Path:
    path.mkdir()
    (path / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records) + torn)
    return path


def invoke(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["--compare", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def test_two_folders_are_compared_in_lines_and_in_markdown(tmp_path: Path):
    a = folder(tmp_path / "a", record("step"), record("old", baseline="memcpy", ratio=1.5))
    b = folder(tmp_path / "b", record("step", 15.0), record("new"), torn='{"benchmark": "over')
    told = invoke(a, b).splitlines()
    assert told[0] == f"overhead: {a}, then {b}"
    assert "1 number compared: 1 slower, 0 faster, 0 within the spread" in told
    assert "slower, +50 %: step: 10 ms (9.5 to 10.5), then 15 ms (14.2 to 15.8)" in told
    assert f"only in {a}: old / memcpy" in told
    assert f"only in {b}: new" in told
    table = invoke(a, b, "--markdown")
    assert "| slower | +50 % | step | 10 ms (9.5 to 10.5) | 15 ms (14.2 to 15.8) |" in table
    assert invoke(a / "records.jsonl", b, "--out", tmp_path / "c.md").strip() == str(tmp_path / "c.md")
    assert "| slower | +50 % | step |" in (tmp_path / "c.md").read_text()


def test_bad_input_is_told_and_exits_with_2(tmp_path: Path):
    a = folder(tmp_path / "a", record())
    other = folder(tmp_path / "other", record(benchmark="scaling"))
    twice = folder(tmp_path / "twice", record(), record())
    mixed = folder(tmp_path / "mixed", record(), record("b", benchmark="scaling"))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "text.md").write_text("# no\n")
    (tmp_path / "part.jsonl").write_text(json.dumps({"case": "a", "value": "x"}) + "\n")
    for wrong, told in (
        ((a,), "takes two results of a benchmark, the earlier one first; 1 given"),
        ((a, a, a), "3 given"),
        ((a, tmp_path / "missing"), "missing: no such file or folder"),
        ((a, tmp_path), "is no results folder of a benchmark: it holds no records.jsonl"),
        ((a, other), "different benchmarks:"),
        ((a, twice), "step: is there twice"),
        ((a, mixed), "several benchmarks: overhead, scaling"),
        ((a, tmp_path / "empty.jsonl"), "holds no records"),
        ((a, tmp_path / "text.md"), "text.md, line 1: is no record"),
        ((a, tmp_path / "part.jsonl"), "part.jsonl, line 1: is no record"),
        ((a, a, "--out", tmp_path / "none" / "x"), "no such folder"),
    ):
        assert told in " ".join(invoke(*wrong, code=2).split()), wrong


def test_a_record_that_is_not_whole_is_none(tmp_path: Path):
    torn = {"baseline": "memcpy", "ratio": 2.0, "config": {"ratio_spread": [1.9]}}
    for broken in ({"spread": [1]}, {"value": float("nan")}, {"ratio": "much"}, {"repeats": None}, {"unit": 3}, torn):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps(record(**broken)) + "\n")
        with pytest.raises(UserError, match="line 1: is no record"):
            read_run(path)
