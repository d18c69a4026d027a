"""What scaling.py makes of its measurements: records, targets, forecast and report. Nothing is trained here."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY, wait_for

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import scaling
from scale import emulated
from scale.forecast import curves_in, forecast, profile_of
from scale.hook import GpuUse, mean_use
from scale.jobs import ASYNC, DEDICATED, FULL, MEMORY, OWN, STRONG, SYNC, WEAK, Case, Run, arguments, read_run
from scale.measuring import Curve, check_room, measure_all, records
from scale.network import Link, Network, memory_rate, most_efficiency, passes
from scale.page import make_page, targets
from scale.workloads import CNN, MLP, VGG
from support.comparison import Measured, compare
from support.drawing import Stacks
from support.page import Report, as_text
from support.records import Record
from support.results import Results
from support.usage import UsageError

POINTS = ((SYNC, 1), (SYNC, 2), (ASYNC, 2), (DEDICATED, 2))
WEAK_MLP = Curve(WEAK, MLP.name, MLP.title, MEMORY, 64, POINTS)
SHARES = {"input": 0.01, "compute": 0.7, "communication": 0.2, "apply": 0.05, "other": 0.04}


def run_of(case: Case, efficiency: float = 0.8) -> Run:
    """As if each rank made 100 steps a second alone."""
    rate = (case.batch or 64) * 100 * (efficiency if case.workers > 1 or case.way != SYNC else 1.0)
    return Run((rate,) * case.workers, (0.01, 0.0101, 0.0099), SHARES, 7_600_000, "CPU", False, None)


def measured(curve: Curve, run, passes: int = 1) -> list[Record]:
    kept = records(curve, {case: [run(case)] * passes for case in curve.cases()})
    return [replace(record, config={**record.config, "unit": curve.unit}) for record in kept]


def records_at(efficiency: float, curve: Curve = WEAK_MLP) -> list[Record]:
    return measured(curve, lambda case: run_of(case, efficiency), 3)


def page_of(report: Report) -> str:
    return as_text(report, "2026-01-01")[0]


def test_weak_scaling_keeps_the_batch_of_a_rank_and_strong_scaling_that_of_all() -> None:
    assert {case.batch for case in WEAK_MLP.cases()} == {64}
    strong = replace(WEAK_MLP, kind=STRONG, batch=64, points=((SYNC, 2), (SYNC, 3), (SYNC, 4)))
    assert [(case.workers, case.batch) for case in strong.cases()] == [(1, 64), (2, 32), (4, 16)], "64 in 3: no"


def run_curve(folder: Path, monkeypatch, curve: Curve, broken: tuple[str, int] | None = None) -> tuple[Results, list]:
    """With jobs that only say that they ran; the one of `broken` fails."""
    ran = []

    def run(folder: Path, case: Case, settings, launch) -> Run:
        ran.append((case.way, case.workers))
        if ran[-1] == broken:
            raise RuntimeError("code 1")
        return run_of(case)

    monkeypatch.setattr("scale.measuring.run_case", run)
    with Results(folder, "scaling", {}) as results:
        measure_all([curve], replace(FULL, passes=2), folder, lambda *_: None, results)
    return results, ran


def test_points_are_run_there_and_back_and_one_that_fails_is_left_out_alone(tmp_path: Path, monkeypatch) -> None:
    results, ran = run_curve(tmp_path / "a", monkeypatch, WEAK_MLP)
    assert ran == [*POINTS, *reversed(POINTS)]
    assert len(results.records) == len(POINTS)
    results, ran = run_curve(tmp_path / "b", monkeypatch, WEAK_MLP, (ASYNC, 2))
    assert ran.count((ASYNC, 2)) == 1
    assert [record.config["way"] for record in results.records] == [SYNC, SYNC, DEDICATED]
    assert (results.left_out, results.failed) == ({f"{WEAK_MLP.unit}, async, 2 workers": "code 1"}, True)
    results, ran = run_curve(tmp_path / "c", monkeypatch, WEAK_MLP, (SYNC, 1))
    assert (results.records, ran, results.left_out) == ([], [(SYNC, 1)], {WEAK_MLP.unit: "code 1"})


def test_what_a_batch_cannot_be_shared_out_among_is_told(tmp_path: Path, monkeypatch) -> None:
    strong = replace(WEAK_MLP, kind=STRONG, batch=64, points=((SYNC, 3),))
    results, ran = run_curve(tmp_path, monkeypatch, strong)
    assert ran == [(SYNC, 1)] * 2
    assert "64 rows cannot be shared out among 3 workers" in next(iter(results.left_out.values()))
    assert results.failed


def test_the_split_of_a_step_is_shown_for_each_way_in_milliseconds() -> None:
    shares = {"input": 0.25, "compute": 0.5, "communication": 0.125, "apply": 0.0, "other": 0.125}
    found = measured(WEAK_MLP, lambda case: replace(run_of(case), shares=shares))
    [stacks] = [f for f in make_page(found, FULL, [], "").sections[0].figures if isinstance(f, Stacks)]
    told = dict(stacks.stacks)
    split = {"input": 2.5, "forward and backward": 5, "communication not hidden": 1.25, "other": 1.25}
    assert told["async, 2"] == told["sync, 2"] == pytest.approx(split)


def test_what_bounds_weak_scaling_is_told_by_part() -> None:
    """One rank alone: 10 ms, all of them compute. Two: 16 ms."""
    two = {"compute": 0.5625, "communication": 0.375, "input": 0.0625}

    def run(case: Case) -> Run:
        steps, shares = ((0.016,), two) if case.workers == 2 else ((0.01,), {"compute": 1.0})
        return replace(run_of(case), step_secs=steps, shares=shares)

    def texts(curve: Curve) -> str:
        return " ".join(make_page(measured(curve, run), FULL, [], "").sections[0].text)

    told = texts(WEAK_MLP)
    assert "a step of 2 ranks (sync) takes 6.0 ms longer than that of one rank alone" in told
    assert "communication not hidden +6.0, input +1.0, forward and backward -1.0." in told
    assert "the efficiency would be 1.00." in told
    assert "What bounds it" not in texts(replace(WEAK_MLP, points=((SYNC, 1),)))
    assert "What bounds it" not in texts(replace(WEAK_MLP, kind=STRONG))


def test_a_server_and_a_dedicated_chief_are_ranks_on_top_of_the_workers() -> None:
    assert {case.way: case.ranks for case in WEAK_MLP.cases() if case.workers == 2} == {SYNC: 2, ASYNC: 3, DEDICATED: 3}


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=5), st.floats(0.1, 1))
def test_efficiency_compares_runs_of_the_same_pass(rates: list[float], efficiency: float) -> None:
    """A machine that was slower in one pass slows both, and changes nothing."""
    one, two = Case(MLP.name, MEMORY, SYNC, 1, 64), Case(MLP.name, MEMORY, SYNC, 2, 64)
    curve = replace(WEAK_MLP, points=((SYNC, 1), (SYNC, 2)))
    found = {
        one: [replace(run_of(one), rates=(rate,)) for rate in rates],
        two: [replace(run_of(two), rates=(rate * efficiency,) * 2) for rate in rates],
    }
    alone, both = records(curve, found)
    assert (alone.baseline, alone.ratio) == (None, None)
    assert both.ratio == pytest.approx(efficiency)
    assert both.spread[0] <= both.value <= both.spread[1]


def test_bytes_sent_are_those_of_a_ring_or_of_a_push() -> None:
    sent = {(r.config["way"], r.config["workers"]): r.config["sent_bytes_a_step"] for r in records_at(0.8)}
    assert sent == {(SYNC, 1): 0, (SYNC, 2): 7_600_000, (ASYNC, 2): 7_600_000, (DEDICATED, 2): 7_600_000}


def test_what_ranks_told_becomes_a_run() -> None:
    told = [
        {"rank": r, "ends": [10.0, 10.5, 11.0], "wall": 1000.0, "gradient_bytes": 8, "device": "CPU", "nccl": False}
        for r in (1, 0)
    ]
    early = {"kind": "train", "time": 1009.0, "by_rank": {"input": [0.9, 0.9], "compute": [0.1, 0.1]}}
    late = {"kind": "train", "time": 1011.0, "by_rank": {"input": [0.1, 0.3], "compute": [0.5, None]}}
    run = read_run(told, [early, {"kind": "eval"}, late], batch=32)
    assert (run.rates, run.total, run.step_secs) == ([64.0, 64.0], 128.0, [0.5, 0.5])
    assert run.shares == {"input": pytest.approx(0.2), "compute": 0.5}
    with pytest.raises(RuntimeError, match="before two steps"):
        read_run([{**told[0], "ends": [1.0]}], [late], 32)


def test_targets_follow_what_was_measured() -> None:
    [target] = targets(records_at(0.9))
    assert target.reached
    [target] = targets(records_at(0.7))
    assert (target.reached, "0.700" in str(target)) == (False, True)
    assert targets(records_at(0.9, replace(WEAK_MLP, workload=VGG.name))) == [], "nothing was wanted of it"
    emulated = Curve(WEAK, "emulated", "emulated model", MEMORY, 32, ((SYNC, 8),), 100.0, 10**6)
    [target] = targets(records_at(0.99, emulated))
    assert not target.reached, "7.6 MB of gradients are not 1 MB"
    assert not target.measured
    [target, of_memory] = targets(records_at(0.99, emulated), memory_rate=10e9)
    assert (target.reached, of_memory.reached) == (False, True)
    [_, of_memory] = targets(records_at(0.5, emulated), memory_rate=10e9)
    assert not of_memory.reached
    [short] = targets(records_at(0.99, replace(emulated, points=(), emulate_step_ms=5.0)))
    assert (short.reached, short.measured[0][1]) == (False, "10"), "a step of 10 ms"


def test_an_emulated_device_works_in_order_beside_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

        def sleep(self, secs: float) -> None:
            self.now += secs

    clock = Clock()
    monkeypatch.setattr(emulated, "time", clock)
    device = emulated.Device()
    a_second = round(emulated.TRANSFER_BYTES_A_SEC)
    assert device.queue(4.0, 1 * a_second) == 5.0, "a step begins once its input is there"
    assert device.queue(4.0, 1 * a_second) == 9.0, "and once the step before is over; inputs come beside it"
    assert clock.now == 0.0, "the host does not wait"
    assert device.busy(2) == 1.0
    device.read()
    assert clock.now == 5.0
    device.read()
    device.read()
    assert clock.now == 9.0, "nothing is left to wait for"
    clock.now = 10.0
    assert device.queue(4.0, 0) == 14.0
    assert device.busy(3) == 12 / 13, "it has waited for the host from 9 to 10"
    assert device.busy(4) is None
    device.begin()
    device.read()
    assert clock.now == 10.0, "what was queued before is nobody's"


def test_what_does_not_fit_is_said_with_both_numbers() -> None:
    curve = Curve(WEAK, VGG.name, VGG.title, MEMORY, 4, ((SYNC, 2),))
    assert check_room(curve, [], left_bytes=64e9) is None
    assert "GB" in (check_room(curve, [], left_bytes=4e9) or "")
    small = Curve(WEAK, CNN.name, CNN.title, MEMORY, 64, ((SYNC, 1),))
    assert check_room(small, [], left_bytes=4e9) is None
    assert "GPU memory" in (check_room(curve, [{"name": "g", "memory_mib": 2000}]) or "")
    assert check_room(curve, [{"name": "g", "memory_mib": 0}]) is None, "nothing is known of it"
    emulated = Curve(WEAK, "emulated", "emulated model", MEMORY, 32, ((SYNC, 8),), 100.0, 8 * 10**9)
    assert "try --gradient-mb or --ranks" in (check_room(emulated, [], left_bytes=64e9) or "")
    assert check_room(replace(emulated, gradient_bytes=10**6), [], left_bytes=64e9) is None


def test_a_training_loop_that_became_slower_is_seen_by_a_comparison() -> None:
    def run_with(speed: float) -> Measured:
        def run(case: Case) -> Run:
            return replace(run_of(case), rates=[speed * rate for rate in run_of(case).rates])

        return Measured("a run", measured(WEAK_MLP, run, 4), {})

    changes = compare(run_with(1.0), run_with(0.7)).changes
    assert [(change.key[0].rpartition(", ")[2], change.verdict) for change in changes[:2]] == [
        ("1 worker", "slower"),
        ("2 workers", "within the spread"),
    ], "all slowed down alike: one rank by itself tells, and the ratios to it are what they were"


def test_an_own_job_has_one_server_as_it_is_counted_and_neither_evaluates_nor_exports(tmp_path: Path) -> None:
    case = Case(str(tmp_path / "job.yaml"), OWN, ASYNC, 2, 16)
    words = arguments(tmp_path, case, tmp_path / "run")
    told = {key: value for key, _, value in (word.partition("=") for word in words if "=" in word)}
    assert case.ranks == 3
    assert (told["run.strategy"], told["run.parameter_servers"]) == ("async", "1")
    assert (told["eval.steps"], told["eval.exporters"], told["evals"]) == ("1", "{}", "{}")
    assert told["data.train.batch_size"] == "16"


def test_the_model_is_checked_against_each_measured_point() -> None:
    link = Link(1e-5, 1e-10)
    fitted = Network(link, link, 2, "one node", "one node")
    [curve] = curves_in(records_at(0.8))
    assert profile_of(curve.alone).single_secs == pytest.approx(0.01, rel=0.01)
    found = forecast(curve, fitted, wanted=0.5)
    assert [point.way for point in found.checked] == [SYNC, DEDICATED, ASYNC]
    assert found.median_error is not None
    assert profile_of(curve.alone, served=True).apply_secs_per_byte == pytest.approx(0.05 * 0.01 / 7.6e6, rel=0.01)
    ring = dict(found.curves)[found.curves[0][0]]
    assert ring[0].efficiency == 1
    assert ring[-1].ranks == 1024
    page = page_of(make_page(list(curve.records), FULL, [found], fitted.words))
    assert "How many nodes?" in page
    assert "Error" in page
    assert "emulat" not in page.lower()


def test_emulation_is_marked() -> None:
    curve = Curve(WEAK, "emulated", "emulated model", MEMORY, 32, ((SYNC, 2),), 50.0, 10**6)
    found = records_at(0.9, curve)
    assert all("emulated 50 ms" in record.case and record.config["emulated_step_ms"] == 50 for record in found)
    assert "EMULATED" in page_of(make_page(found, FULL, [], ""))


@given(st.integers(1, 64), st.floats(1e-3, 1), st.floats(1e3, 1e9), st.floats(1e9, 1e11))
def test_more_ranks_on_one_memory_can_only_reach_less(n: int, step: float, nbytes: float, rate: float) -> None:
    assert most_efficiency(1, step, nbytes, rate) == 1
    assert 0 < most_efficiency(n + 1, step, nbytes, rate) < most_efficiency(n, step, nbytes, rate) <= 1
    assert passes(n) < passes(n + 1) < 8


def test_memory_is_as_fast_as_all_ranks_copy_the_largest_blocks() -> None:
    def copied(nbytes: int, secs: float, way: str = "memcpy") -> Record:
        config = {"operation": "allreduce", "place": "one node", "way": way, "bytes": nbytes, "secs": secs}
        return Record("collectives", "", 2, 1.0, "GB/s", None, None, 1, (1.0, 1.0), config, {})

    found = [copied(10**6, 1e-5), copied(10**8, 1e-2), copied(10**9, 1e-9, "MPI_Allreduce")]
    assert memory_rate(found) == pytest.approx(2 * 1e10)
    assert memory_rate([]) is None


def test_the_bound_stands_beside_an_emulated_curve_alone() -> None:
    emulated = Curve(WEAK, "emulated", "emulated model", MEMORY, 32, ((SYNC, 2), (SYNC, 8)), 50.0, 10**6)
    page = page_of(make_page(records_at(0.9, emulated), FULL, [], "", memory_rate=1e10))
    assert "memory allows" in page
    assert "(emulated)" in page
    assert "memory allows" not in page_of(make_page(records_at(0.9), FULL, [], "", memory_rate=1e10))


def test_gpu_columns_are_there_where_there_was_one() -> None:
    def on_gpu(case: Case) -> Run:
        return replace(run_of(case), device="H100", nccl=True, gpu_memory_bytes=3 * 10**9, gpu_use=0.87)

    page = page_of(make_page(measured(WEAK_MLP, on_gpu), FULL, [], ""))
    assert all(word in page for word in ("3.0 GB", "87%", "Horovod over NCCL", "H100"))
    assert "GPU in use" not in page_of(make_page(records_at(0.9), FULL, [], ""))


def test_use_is_the_mean_of_what_nvidia_smi_told(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mean_use("80\n 90\n[N/A]\n") == pytest.approx(0.85)
    assert mean_use("[Not Supported]\n") is None
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho 40; echo 60\necho "$*" > "$(dirname "$0")/asked"; exec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    asked, use = tmp_path / "asked", GpuUse("3")
    wait_for(lambda: "--id=3" in (asked.read_text() if asked.exists() else ""), "it is asked")
    assert use.stop() == pytest.approx(0.5)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert GpuUse("0").stop() is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kinds", "strong", "--emulate-step-ms", "5"), "--kinds: an emulated step"),
        (("--gradient-mb", "2"), "--gradient-mb is that of an emulated model"),
        (("--how-many-nodes", "1.5"), "--how-many-nodes: 1.5"),
        (("--job", "missing.yaml"), "--job: missing.yaml is not a file"),
        (("--ranks", "999"), "999 ranks but"),
        (("--models", "mlp", "--batch", "0"), "--batch: 0"),
        (("--gpu",), "--gpu: nvidia-smi finds no GPU here"),
        (("--collectives", "missing"), "--collectives: "),
    ],
)
def test_mistakes_are_told_before_anything_runs(tmp_path: Path, monkeypatch, capsys, words, said) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scaling, "check_mpirun", lambda: None)
    monkeypatch.setattr("support.machine.gpus", list)
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--out", "out", *words])
    with pytest.raises((SystemExit, UsageError)) as error:
        scaling.main()
    assert said in f"{error.value}{capsys.readouterr().err}"
    assert not list(tmp_path.iterdir())


def test_how_many_nodes_is_answered_or_is_no_success(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("scale.measuring.run_case", lambda folder, case, *_: run_of(case))
    monkeypatch.setattr(scaling, "check_mpirun", lambda: None)
    network = next((REPOSITORY / "benchmarks/results").glob("collectives_*"))
    always = [
        "--quick",
        "--ranks",
        "2",
        "--oversubscribe",
        "--how-many-nodes",
        "0.5",
        "--models",
        "mlp",
        "--kinds",
        "weak",
    ]
    monkeypatch.setattr(
        sys, "argv", ["scaling.py", "--out", str(tmp_path / "a"), "--collectives", str(network), *always]
    )
    assert scaling.main() == 0
    assert "How many nodes? Weak scaling, MLP" in capsys.readouterr().out
    (tmp_path / "records.jsonl").touch()
    monkeypatch.setattr(
        sys, "argv", ["scaling.py", "--out", str(tmp_path / "b"), "--collectives", str(tmp_path), *always]
    )
    assert scaling.main() == 1
    assert "no answer" in capsys.readouterr().err


def test_a_step_that_is_nearly_all_waiting_has_a_spread_to_reckon_with() -> None:
    link = Link(1e-5, 1e-10)
    [curve] = curves_in(records_at(0.8))
    config = curve.alone.config
    config["shares"]["compute"] = 1e-9
    config["step_secs"] |= {"0.25": 0.001, "0.5": 0.01, "0.75": 1.0}
    found = forecast(curve, Network(link, link, 2, "one node", "one node"), wanted=0.5)
    assert all(math.isfinite(point.efficiency) for _, points in found.curves for point in points)
