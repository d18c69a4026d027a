"""compare.py: slower and faster beyond the spread, and what cannot be compared."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from support.comparison import Measured, compare, less_is_better, read_measured
from support.records import Record
from support.usage import UsageError

MACHINE = {"cpu": "AMD EPYC", "cores": 2}


def record(case: str = "step", value: float = 10.0, unit: str = "ms", **more) -> Record:
    spread = more.pop("spread", (0.95 * value, 1.05 * value))
    config = {"machine": MACHINE, **more.pop("config", {})}
    made = Record("overhead", case, 2, value, unit, None, None, 4, spread, config, {"numpy": "2.0"})
    return replace(made, **more)


def verdict(before: Record, after: Record) -> tuple[str, str]:
    (change,) = compare(Measured("A", [before], {}), Measured("B", [after], {})).changes
    return change.verdict, change.by


def test_more_milliseconds_are_slower_and_more_examples_are_faster():
    assert verdict(record(), record(value=12.0)) == ("slower", "+20 %")
    assert verdict(record(), record(value=8.0)) == ("faster", "−20 %")
    assert verdict(record(unit="examples/s"), record(value=12.0, unit="examples/s")) == ("faster", "+20 %")
    assert verdict(record(unit="examples/s"), record(value=8.0, unit="examples/s")) == ("slower", "−20 %")


def test_where_the_spreads_overlap_or_repeats_are_few_nothing_is_said_to_have_changed():
    assert verdict(record(), record(value=11.0)) == ("within the spread", "+10 %")
    assert verdict(record(), record(value=12.0, spread=(10.0, 14.0))) == ("within the spread", "+20 %")
    assert verdict(record(), record(value=99.0, repeats=3))[0] == "too few repeats"


def test_ratios_are_compared_where_there_are_any_with_the_spread_of_their_pairs():
    """The machine became twice as slow, and the baseline with it: the ratio is what it was."""
    before = record(value=10.0, baseline="memcpy", ratio=2.0)
    assert verdict(before, record(value=20.0, baseline="memcpy", ratio=2.0)) == ("within the spread", "+0.0 %")
    assert verdict(before, record(value=10.0, baseline="memcpy", ratio=2.5)) == ("slower", "+25 %")
    narrow = [record(baseline="x", ratio=r, config={"ratio_spread": [r - 0.01, r + 0.01]}) for r in (1.0, 1.03)]
    assert verdict(*narrow) == ("slower", "+3.0 %")


@given(st.permutations([("a", 10.0), ("b", 20.0), ("c", 12.0), ("d", 5.0)]))
def test_what_became_slower_comes_first_the_worst_above(order):
    found = compare(
        Measured("A", [record(case) for case, _ in order], {}), Measured("B", [record(c, v) for c, v in order], {})
    )
    assert [change.key[0] for change in found.changes] == ["b", "c", "d", "a"]
    assert found.summary == "4 numbers compared: 2 slower, 1 faster, 1 within the spread"


def test_what_cannot_be_compared_is_named_and_other_machines_and_quick_runs_are_warned_of():
    before = Measured("A", [record("a"), record("both")], {"settings": {"quick": True}})
    after = Measured("B", [record("b"), record("both", unit="s")], {"machine": {"cpu": "Xeon"}})
    found = compare(before, after)
    assert not found.changes
    told = "\n".join([*found.warnings, *found.others])
    for words in ("machines differ (cpu, cores)", "A is a quick run", "B was interrupted", "unit: ms, then s"):
        assert words in told
    assert "only in A: a" in told
    assert "only in B: b" in told


def test_rates_and_ratios_are_better_where_they_are_more():
    assert all(less_is_better(unit) for unit in ("ms", "s", "µs a step", "MB", "of a core", "% of step"))
    assert not any(less_is_better(unit) for unit in ("GB/s", "examples/s", "x", "steps/s"))


def write(path: Path, *records: Record) -> Path:
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in records))
    return path


def test_what_is_no_run_of_one_benchmark_is_refused(tmp_path):
    mixed = write(tmp_path / "mixed.jsonl", record(), record(benchmark="scaling"))
    twice = write(tmp_path / "twice.jsonl", record(), record())
    (tmp_path / "bad.jsonl").write_text('{"case": 1}\n')
    (tmp_path / "none.jsonl").touch()
    for path, said in (
        (tmp_path / "gone", "No such file"),
        (tmp_path, "No such file"),
        (mixed, "records of overhead, scaling"),
        (twice, "step: is there twice"),
        (tmp_path / "bad.jsonl", "line 1: is no record"),
        (tmp_path / "none.jsonl", "no benchmark"),
    ):
        with pytest.raises(UsageError, match=said):
            read_measured(path)
    other = Measured("C", [record(benchmark="scaling")], {})
    with pytest.raises(UsageError, match="two runs of the same one"):
        compare(Measured("A", [record()], {}), other)


@pytest.mark.parametrize("folder", sorted((REPOSITORY / "benchmarks/results").iterdir()), ids=lambda path: path.name)
def test_committed_results_are_read_and_equal_themselves(folder):
    measured = read_measured(folder)
    assert not [one for one in compare(measured, measured).changes if one.verdict in ("slower", "faster")]


def test_the_command_prints_lines_and_markdown(tmp_path):
    a, b = write(tmp_path / "a.jsonl", record()), write(tmp_path / "b.jsonl", record(value=12.0))
    script = [sys.executable, str(REPOSITORY / "benchmarks/compare.py")]
    done = run_program([*script, str(a), str(b)], tmp_path, timeout=600)
    assert "slower, +20 %: step: 10 ms (9.5 to 10.5), then 12 ms (11.4 to 12.6)" in done.stdout, done.stderr
    done = run_program([*script, str(a), str(b), "--markdown"], tmp_path, timeout=600)
    assert "| slower | +20 % | step |" in done.stdout
    done = run_program([*script, str(a), "gone"], tmp_path, timeout=600)
    assert (done.returncode, "No such file" in done.stderr) == (2, True)
