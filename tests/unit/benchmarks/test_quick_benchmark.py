"""What quick.py judges, prints and exits with, and what becomes of a part that cannot run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import quick
from guard import parts, program, running
from guard.measured import Measured, Ran, read_measured, write_measured
from guard.neighbours import Clocks, busy_secs
from guard.parts import PARTS, Part
from guard.running import run_all, run_apart
from guard.showing import HEADER, MEANT_SECS, MISSED, REACHED, ending, rows, table
from support.records import Record
from support.report import Target
from support.usage import UsageError

from hpc_train.cli.terminal import console, show
from hpc_train.report.benchmark_comparison import read_run

QUICK = REPOSITORY / "benchmarks" / "quick.py"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]

numbers = st.tuples(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8), st.booleans())
some_targets = st.lists(st.builds(Target, st.text(), st.text(), st.lists(numbers, min_size=1, max_size=3)), max_size=4)


def target(*values: float, least: float = 0.98) -> Target:
    return Target("Against it", f"≥ {least}", [(f"model {i}", f"{v:.3f}", v >= least) for i, v in enumerate(values)])


def record() -> Record:
    return Record("overhead", "a step", 1, 2.0, "ms", None, None, 2, (1.0, 3.0), {"batch": 64}, {"python": "3"})


def found(**measured: Measured) -> dict[str, Ran]:
    return {part: Ran(one, 10.0) for part, one in measured.items()}


@given(some_targets, st.dictionaries(st.text(), st.text()))
def test_what_a_part_found_is_read_as_it_was(tmp_path_factory, targets, left_out):
    path = tmp_path_factory.mktemp("told") / "told.json"
    written = Measured([record()], targets, left_out)
    write_measured(path, written)
    assert read_measured(path) == written


@given(some_targets, st.dictionaries(st.text(), st.text(), max_size=1))
def test_a_part_has_reached_all_where_nothing_falls_short_and_nothing_is_left_out(targets, left_out):
    measured = Measured([], targets, left_out)
    reached = [ok for one in targets for _, _, ok in one.measured]
    assert measured.reached == (all(reached) and not left_out)
    assert len(list(measured.missed())) == reached.count(False)
    assert [row[-1] for row in rows(found(training=measured))] == [REACHED if ok else MISSED for ok in reached]


def test_the_table_has_each_number_beside_what_is_wanted(capsys: pytest.CaptureFixture):
    show(console(), table(found(training=Measured([], [target(0.991, 0.92)]), input=Measured([], [target(1.5)]))))
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == [name for name in HEADER if name]
    assert [line.split() for line in lines] == [
        ["training", "Against", "it", "≥", "0.98", "model", "0", "0.991", "reached"],
        ["model", "1", "0.920", "falls", "short"],
        ["input", "Against", "it", "≥", "0.98", "model", "0", "1.500", "reached"],
    ]


def test_the_end_names_what_falls_short_and_what_tells_for_sure():
    told = list(ending(found(training=Measured([], [target(0.991, 0.92)]), input=Measured([], [target(1.5)])), 21.0))
    assert told == [
        "1 of 3 fall short:",
        "  training: Against it, model 1: 0.920, wanted ≥ 0.98",
        "So short a run errs by some percent; for longer ones: benchmarks/overhead.py",
        "took 21 s: training 10 s, input 10 s",
    ]


def test_the_end_says_that_all_is_reached_what_was_not_measured_and_that_it_took_too_long():
    server = Measured(left_out={"server": "mpi4py: not installed"})
    training = Measured([], [target(1.0)], {"MLP, 2 ranks": "Horovod is not installed"})
    *told, times = ending(found(training=training, server=server), MEANT_SECS + 1)
    assert told == [
        "All 1 are reached.",
        "not measured  training, MLP, 2 ranks: Horovod is not installed",
        "not measured  server: mpi4py: not installed",
    ]
    assert times == "took 181 s, more than the 180 s that it is meant to take at most: training 10 s, server 10 s"
    assert "more than" not in list(ending(found(training=training), MEANT_SECS))[-1]


def test_a_part_that_fails_is_named_and_the_rest_goes_on():
    said: list[str] = []

    def run(part: str) -> Measured:
        if part == "allreduce":
            raise RuntimeError("mpirun: code 1")
        return Measured([], [target(1.0)])

    both = run_all(["allreduce", "input"], run, said.append)
    assert said == ["allreduce", "input"]
    assert both["allreduce"].measured.left_out == {"allreduce": "mpirun: code 1"}
    assert both["input"].measured.reached


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("mpirun: code 1"), "mpirun: code 1"),
        (ModuleNotFoundError("No module named 'horovod'"), "No module named 'horovod'"),
        (FileNotFoundError(), "FileNotFoundError"),
    ],
)
def test_why_a_part_cannot_run_is_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error, why):
    def measure(folder, results):
        raise error

    monkeypatch.setitem(program.PARTS, "input", Part(measure, "input_pipeline.py"))
    assert program.measure("input", tmp_path) == Measured(left_out={"input": why})


def test_a_part_has_a_folder_of_its_own_and_targets_nothing_was_measured_for_are_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def measure(folder, results):
        assert list(folder.iterdir()) == []
        results.add("a", [record()])
        results.leave_out("b", "too large")
        return [target(1.0), Target("On a GPU", "≥ 2", [])]

    monkeypatch.setitem(program.PARTS, "input", Part(measure, "input_pipeline.py"))
    measured = program.measure("input", tmp_path)
    assert measured.targets == [target(1.0)]
    assert measured.left_out == {"b": "too large"}
    assert [one.config["unit"] for one in measured.records] == ["a"]


def test_a_part_that_measures_nothing_of_what_is_asked_for_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    part = Part(lambda folder, results: [Target("On a GPU", "≥ 2", [])], "input_pipeline.py")
    monkeypatch.setitem(program.PARTS, "input", part)
    assert not program.measure("input", tmp_path).reached


@pytest.mark.parametrize(
    ("part", "gone", "why"),
    [("allreduce", "horovod", "horovod: not installed"), ("server", "mpi4py", "mpi4py: not installed")],
)
def test_a_missing_package_is_named_before_anything_starts(monkeypatch: pytest.MonkeyPatch, part, gone, why):
    monkeypatch.setattr(running.subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None if name == gone else object())
    with pytest.raises(UsageError, match=f"^{why}$"):
        run_apart(part, None)


def test_without_mpirun_only_what_needs_it_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("support.launch.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: object())

    def run(part: str) -> Measured:
        PARTS[part].check()
        return Measured()

    without = run_all(list(PARTS), run, lambda part: None)
    assert {part for part, ran in without.items() if not ran.measured.left_out} == {"input", "checkpoint"}
    assert "there is no mpirun on PATH" in without["training"].measured.left_out["training"]


def test_several_ranks_need_as_many_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parts, "slots", lambda: 1)
    why = "needs 2 cores, and this process may use 1"
    assert program.measure("allreduce", tmp_path) == Measured(left_out={"allreduce": why})


@given(*[st.integers(0, 10**9)] * 6)
def test_cores_are_busy_where_they_are_neither_idle_nor_wait_for_a_disk(user, system, idle, disk, steal, guest):
    text = f"cpu  {user} 0 {system} {idle} {disk} 0 0 {steal} {guest} 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert busy_secs(text) == pytest.approx((user + system + steal) / os.sysconf("SC_CLK_TCK"))


def test_cores_taken_by_others_are_those_that_were_busy_for_none_of_ours():
    begun = Clocks(secs=100.0, busy=5000.0, own=3.0)
    assert begun.taken_by_others(Clocks(110.0, 5019.0, 13.0)) == pytest.approx(0.9)
    assert begun.taken_by_others(Clocks(110.0, 5019.0, 23.0)) == 0
    assert begun.taken_by_others(begun) == 0


def test_what_this_process_and_its_children_take_is_not_taken_by_others():
    begun = Clocks.now()
    work = [sys.executable, "-c", "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"]
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.run({work!r})"], check=True, timeout=60)
    ended = Clocks.now()
    assert ended.own - begun.own >= 0.5
    assert ended.busy > begun.busy


def test_the_end_says_which_parts_were_disturbed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    measured = Measured([], [target(1.0)])
    told = list(ending({"training": Ran(measured, 10.0, 2.2), "input": Ran(measured, 10.0, 2.9)}, 20.0))
    assert told[1].startswith("Other processes took cores meanwhile (input 2.9): these figures mean little")
    assert len(told) == 3
    assert len(list(ending(found(training=measured), 20.0))) == 2


def _fake_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """`python -m guard.program` runs `text` instead."""
    package = tmp_path / "fake" / "guard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "program.py").write_text(text)
    monkeypatch.setattr(running, "environment", lambda: {**os.environ, "PYTHONPATH": str(package.parent)})


def test_a_process_that_crashes_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    _fake_program(monkeypatch, tmp_path, "import os\nprint('last words', flush=True)\nos.abort()\n")
    with pytest.raises(RuntimeError, match=r"^its process has ended with code -6\nlast words"):
        run_apart("input", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fake"], "data was left behind"


def test_a_part_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    told = tmp_path / "pid"
    text = f"import os, pathlib, time\npathlib.Path({str(told)!r}).write_text(str(os.getpid()))\ntime.sleep(60)\n"
    _fake_program(monkeypatch, tmp_path, text)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^still running after 1 s"):
        run_apart("input", tmp_path, limit_secs=1.0)
    assert time.monotonic() - begun < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), signal.SIG_DFL)


@pytest.mark.parametrize(("value", "strict", "code"), [(1.0, True, 0), (0.9, False, 0), (0.9, True, 1)])
def test_only_strict_fails_where_a_target_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, value, strict, code
):
    monkeypatch.setattr(quick, "run_apart", lambda part, parent: Measured([record()], [target(value)]))
    words = ["--parts", "server", "input", "--json", str(tmp_path / "out" / "records.jsonl")]
    monkeypatch.setattr(sys, "argv", ["quick.py", *words, *(["--strict"] if strict else [])])
    assert quick.main() == code
    out = capsys.readouterr().out
    assert ("2 of 2 fall short" in out) == (value < 0.98)
    lines = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    assert [line["case"] for line in lines] == ["input: a step", "server: a step"]
    assert all(list(line) == FIELDS for line in lines)
    assert read_run(tmp_path / "out" / "records.jsonl").benchmark == "quick", "can be compared with another run"


def test_strict_fails_where_a_part_could_not_run(monkeypatch: pytest.MonkeyPatch):
    def run(part: str, parent: Path | None) -> Measured:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(quick, "run_apart", run)
    monkeypatch.setattr(sys, "argv", ["quick.py", "--parts", "input", "--strict"])
    assert quick.main() == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--parts", "everything"], "invalid choice: 'everything'"),
        (["--dir", "missing"], "--dir: missing is not a folder"),
        (["--json", "."], "--json: . is a folder"),
    ],
)
def test_mistakes_end_with_code_2_before_anything_is_measured(tmp_path: Path, arguments, told):
    done = run_program([sys.executable, str(QUICK), *arguments], tmp_path, timeout=60)
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_all_parts_run_but_those_that_take_too_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["quick.py"])
    assert quick.arguments().parts == ["training", "allreduce", "input", "checkpoint", "server"]
    monkeypatch.setattr(sys, "argv", ["quick.py", "--parts", "emulated"])
    assert quick.arguments().parts == ["emulated"]


def test_make_help_names_it():
    done = run_program(["make", "help"], REPOSITORY, timeout=60)
    assert "bench-quick  measure the promised ratios" in done.stdout
