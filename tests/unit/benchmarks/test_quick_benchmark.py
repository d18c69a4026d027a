"""What quick.py judges, prints and exits with, and what becomes of a part that cannot run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import quick
from guard import parts, program
from guard.parts import PARTS, Measured, Part
from quick import MEANT_SECS, Clocks, busy_secs, ending, lines, run_all, run_apart
from support.comparison import read_measured
from support.page import Target
from support.records import Record
from support.usage import UsageError

QUICK = REPOSITORY / "benchmarks" / "quick.py"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]


def target(*values: float, least: float = 0.98) -> Target:
    return Target("Against it", f"≥ {least}", [(f"model {i}", f"{v:.3f}", v >= least) for i, v in enumerate(values)])


def record() -> Record:
    return Record("overhead", "a step", 1, 2.0, "ms", None, None, 2, (1.0, 3.0), {"batch": 64}, {"python": "3"})


def test_each_number_is_printed_beside_what_is_wanted_and_the_end_names_what_falls_short():
    found = {"training": Measured([], [target(0.99, 0.5)], {}, 10.0), "input": Measured([], [], {"lzf": "gone"}, 5.0)}
    shown = list(lines(found))
    assert shown[0] == "training: Against it, wanted ≥ 0.98"
    assert [line.split()[-2:] for line in shown[1:]] == [["0.990", "reached"], ["falls", "short"]]
    assert list(ending(found, 20.0)) == [
        "1 of 2 fall short:",
        "  training: Against it, model 1: 0.500, wanted ≥ 0.98",
        "So short a run errs by some percent; for longer ones: benchmarks/overhead.py",
        "not measured  input, lzf: gone",
        "took 20 s: training 10 s, input 5 s",
    ]
    assert not any(one.reached for one in found.values())
    good = {"server": Measured([], [target(1.0)])}
    first, last = ending(good, MEANT_SECS + 1)
    assert (first, "more than the 180 s" in last) == ("All 1 are reached.", True)


def test_a_part_that_fails_is_named_and_the_rest_goes_on():
    def run(part: str) -> Measured:
        if part == "allreduce":
            raise RuntimeError("mpirun: code 1")
        return Measured([], [target(1.0)])

    both = run_all(["allreduce", "input"], run)
    assert both["allreduce"].left_out == {"allreduce": "mpirun: code 1"}
    assert both["input"].reached


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
    monkeypatch.setattr("support.launch.subprocess.Popen", lambda *_, **__: pytest.fail("started"))
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None if name == gone else object())
    with pytest.raises(UsageError, match=f"^{why}$"):
        quick.run(part, None)


def test_without_mpirun_only_what_needs_it_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("support.launch.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: object())

    def run(part: str) -> Measured:
        PARTS[part].check()
        return Measured()

    without = run_all(list(PARTS), run)
    assert {part for part, ran in without.items() if not ran.left_out} == {"input", "checkpoint"}
    assert "there is no mpirun on PATH" in without["training"].left_out["training"]


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
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.run({work!r})"], check=True, timeout=600)
    ended = Clocks.now()
    assert ended.own - begun.own >= 0.5
    assert ended.busy > begun.busy


def test_the_end_says_which_parts_were_disturbed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    measured = Measured([], [target(1.0)], {}, 10.0)
    told = list(ending({"training": replace(measured, taken=2.2), "input": replace(measured, taken=2.9)}, 20.0))
    assert told[1].startswith("Other processes took cores meanwhile (input 2.9): these figures mean little")
    assert len(told) == 3


def _fake_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    """`python -m guard.program` runs `text` instead."""
    package = tmp_path / "fake" / "guard"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "program.py").write_text(text)
    monkeypatch.setattr(quick, "environment", lambda: {**os.environ, "PYTHONPATH": str(package.parent)})


def test_a_process_that_crashes_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    _fake_program(monkeypatch, tmp_path, "import os\nprint('last words', flush=True)\nos.abort()\n")
    with pytest.raises(RuntimeError, match=r"^its process: code -6\nlast words"):
        run_apart("input", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["fake"], "data was left behind"


def test_a_part_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    told = tmp_path / "pid"
    text = f"import os, pathlib, time\npathlib.Path({str(told)!r}).write_text(str(os.getpid()))\ntime.sleep(60)\n"
    _fake_program(monkeypatch, tmp_path, text)
    with pytest.raises(RuntimeError, match=r"^its process: still running after 3 s"):
        run_apart("input", tmp_path, limit_secs=3.0)
    if told.exists():  # it had begun
        with pytest.raises(ProcessLookupError):
            os.kill(int(told.read_text()), signal.SIG_DFL)
    assert not list(tmp_path.glob("quick-*"))


@pytest.mark.parametrize(("value", "strict", "code"), [(1.0, True, 0), (0.9, False, 0), (0.9, True, 1)])
def test_only_strict_fails_where_a_target_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, value, strict, code
):
    monkeypatch.setattr(quick, "run", lambda part, parent: Measured([record()], [target(value)]))
    words = ["--parts", "server", "input", "--json", str(tmp_path / "records.jsonl")]
    monkeypatch.setattr(sys, "argv", ["quick.py", *words, *(["--strict"] if strict else [])])
    assert quick.main() == code
    out = capsys.readouterr().out
    assert ("2 of 2 fall short" in out) == (value < 0.98)
    lines = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [line["case"] for line in lines] == ["input: a step", "server: a step"]
    assert all(list(line) == FIELDS for line in lines)
    assert read_measured(tmp_path / "records.jsonl").records, "can be compared with another run"


def test_strict_fails_where_a_part_could_not_run(monkeypatch: pytest.MonkeyPatch):
    def run(part: str, parent: Path | None) -> Measured:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(quick, "run", run)
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
    done = run_program([sys.executable, str(QUICK), *arguments], tmp_path, timeout=600)
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
    done = run_program(["make", "help"], REPOSITORY, timeout=600)
    assert "bench-quick  measure the promised ratios" in done.stdout


def test_the_parts_that_start_ranks_measure_what_the_targets_speak_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With ranks that only say what real ones would."""
    from collective.plan import Run as Exchange
    from peers.measurement import Measurement
    from scale.jobs import Run as Scaled

    def rates(way: str, per_sec: float) -> dict:
        return {way: {"per_sec": [per_sec] * 4, "cpu_secs": [0.1] * 4}}

    def launch(ranks, arguments, folder, limit_secs):
        told = {"rates": rates("memcpy", 2e9) | rates("push and pull", 1e9) | rates("Send/Recv", 1e9), "rests": [0.01]}
        shared = {**told, "shared": True}
        Path(arguments[arguments.index("--out") + 1]).write_text(json.dumps([shared] * len(parts.PARAMETERS)))

    class Ranks:
        running = False

        def __init__(self, arguments, *_) -> None:
            about = {"nodes": 1, "ranks_per_node": 2, "device": "CPU", "nccl": False, "settings": {}}
            ways = {way: {"secs": [1e-3] * 6, "iterations": 3} for way in ("memcpy", "MPI_Allreduce", "Horovod, group")}
            first, out = arguments.index("--sizes") + 1, arguments[arguments.index("--out") + 1]
            sizes = [{"operation": "allreduce", "bytes": int(size), "ways": ways} for size in arguments[first:]]
            Path(out).write_text("".join(json.dumps(one) + "\n" for one in [{"about": about}, *sizes]))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait(self, limit_secs):
            pass

    def pair(folder, ranks, plan, limit_secs, launch):
        return [Measurement(10, (0.5,) * plan.pairs, (2.3, 1.0), 64 * ranks, (0.5,) * plan.pairs)] * 2

    def job(folder, case, settings, launch):
        return Scaled([100.0] * case.workers, [0.1, 0.1], {"compute": 1.0}, case.gradient_bytes, "CPU", False, None)

    monkeypatch.setattr(Exchange, "start", Ranks)
    monkeypatch.setattr("peers.measuring.run_job", pair)
    monkeypatch.setattr("scale.measuring.run_case", job)
    monkeypatch.setattr("parameter_servers.cases.here", lambda env=None: launch)
    monkeypatch.setattr(parts, "slots", lambda: 2)
    measured = {}
    for part in ("training", "allreduce", "server", "emulated"):
        (tmp_path / part).mkdir()
        measured[part] = program.measure(part, tmp_path / part)
        assert not measured[part].left_out
    assert [name for name, *_ in measured["training"].targets[0].measured] == [
        *("MLP 1.9 M, 1 rank", "MLP 1.9 M, 2 ranks", "CNN 0.7 M, 2 ranks")
    ]
    assert [target.what for target in measured["allreduce"].targets] == ["Horovod's bus bandwidth"]
    assert len(measured["server"].targets[0].measured) == 4
    assert measured["emulated"].reached
