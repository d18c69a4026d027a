"""Which ranks are named slow, by made-up records of their own times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.config.run_config import RunConfig
from hpc_train.jobdir.slow_nodes import add_slow_node, next_start_without, read_slow_nodes
from hpc_train.telemetry.cpu_clock import CLOCK, TAKEN, CpuClock, in_words
from hpc_train.telemetry.gpu_clock import GPU_CLOCK, GPU_HELD, GpuClock
from hpc_train.telemetry.gpu_clock import in_words as of_gpu
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.metrics import METRICS_FILE, MetricsWriter
from hpc_train.telemetry.progress import OWN_SECS, TimeShares
from hpc_train.telemetry.slow_rank_log import KIND, SlowRankLog
from hpc_train.telemetry.slow_ranks import ENOUGH, SHORTEST_SECS, SlowRanks
from hpc_train.telemetry.status import StatusFile, read_status, sound_slow_ranks

SECS = 0.05


def named(rows: Any, factor: float = 1.2) -> dict[int, int]:
    """Rank to the number of the record at which it is named."""
    judge, found = SlowRanks(factor), {}
    for number, row in enumerate(rows, start=1):
        for slow in judge.judge(number, list(row)):
            assert slow.rank not in found, "once"
            found[slow.rank] = number
    return found


@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
def test_one_that_is_slower_by_a_third_is_named(ranks: int) -> None:
    random = np.random.default_rng(ranks)
    own = SECS * (1 + 0.03 * random.standard_normal((50, ranks)))
    own[:, 1] *= 1.3
    found = named(own)
    assert set(found) == {1} and ENOUGH <= found[1] <= 20


@pytest.mark.parametrize("secs", [SECS, 1.2 * SHORTEST_SECS, 0.9 * SHORTEST_SECS, 0.7 * SHORTEST_SECS])
def test_equal_ranks_are_not_named(secs: float) -> None:
    random, alarms = np.random.default_rng(1), 0
    for _ in range(300):  # noise of a tenth, and now and then a record half as long again
        own = secs * (1 + 0.1 * random.standard_normal((100, 4)))
        own[random.random(own.shape) < 0.1] *= 1.5
        alarms += len(named(own))
    assert alarms == 0


def test_all_slow_is_none_slow() -> None:
    own = np.full((60, 4), SECS)
    own[30:] *= 3
    assert named(own) == {}


def test_what_has_passed_is_forgotten() -> None:
    own = np.full((80, 3), SECS)
    own[: ENOUGH - 1, 2] *= 2
    own[40 : 40 + ENOUGH - 1, 2] *= 2
    assert named(own) == {}


def test_short_steps_and_single_ranks_are_not_judged() -> None:
    own = np.full((60, 2), SHORTEST_SECS / 4)
    own[:, 1] *= 3
    assert named(own) == {}
    assert named([[SECS]] * 60) == {}
    assert named([[None, SECS, 0.0]] * 60) == {}


def test_a_rank_without_a_number_is_left_out() -> None:
    assert named([[None, SECS, SECS, 2 * SECS]] * 30) == {3: ENOUGH}


def test_half_of_the_ranks_on_a_slow_node_are_named() -> None:
    own = np.full((40, 6), SECS)
    own[:, 4:] *= 1.5
    assert named(own) == {4: ENOUGH, 5: ENOUGH}


RANKS = [{"host": f"n{rank // 2}", "device": "CPU"} for rank in range(4)]


def slow_rank_log(folder: Path, **more: Any) -> tuple[SlowRankLog, MetricsWriter, StatusFile]:
    lenient = Lenient()
    metrics, status = MetricsWriter(folder, lenient), StatusFile(folder, folder / "failure", lenient)
    options = {"factor": 1.2, "ranks": RANKS, "judged": [True] * 4, **more}
    return SlowRankLog(metrics, status, **options), metrics, status


def test_a_slow_rank_is_told_once_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    excluded: list[str] = []
    log, metrics, status = slow_rank_log(tmp_path, exclude=lambda host, about: excluded.append(host))
    with metrics, caplog.at_level("WARNING", "hpc_train"):
        for step in range(1, 31):
            log.record(step, {OWN_SECS: [SECS, SECS, SECS, 1.5 * SECS], CLOCK: [1, 1, 1, 0.5], GPU_HELD: [0, 0, 0, 64]})
        log.sum_up()
        log.sum_up()
    status.write()
    (line,) = [record.message for record in caplog.records]
    assert line == (
        "rank 3 on n1 (CPU) is slow: its own part of a step takes 75ms, 1.50 times the median of the other ranks; "
        "its GPU is held down by heat; its core's clock is at 50% of the highest"
    )
    (entry,) = sound_slow_ranks(read_status(tmp_path)["slow_ranks"]) or []
    assert (entry["rank"], entry["host"], entry["ratio"], entry["step"]) == (3, "n1", 1.5, ENOUGH)
    assert excluded == ["n1"]
    records = [json.loads(line) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    assert [(r["kind"], r["step"]) for r in records] == [("slow_rank", ENOUGH), (KIND, 30)]
    assert records[1]["own_secs"] == [SECS, SECS, SECS, pytest.approx(1.5 * SECS)]


@pytest.mark.parametrize("more", [{"factor": None}, {"judged": [True, True, True, False]}])
def test_who_is_not_judged_is_not_named(more: dict[str, Any], tmp_path: Path) -> None:
    log, metrics, status = slow_rank_log(tmp_path, **more)
    with metrics:
        for step in range(1, 31):
            log.record(step, {OWN_SECS: [SECS, SECS, SECS, 1.5 * SECS]})
    status.write()
    assert "slow_ranks" not in read_status(tmp_path)


def test_own_time_leaves_out_what_is_waited_for() -> None:
    clock = iter([0.0, 1.0, 2.0])
    times = TimeShares(lambda: next(clock))
    times.resume(0.0)
    times.step(8, waited_secs=0.1, step_secs=0.8, communication_secs=0.3)
    times.checkpoint(5.0)
    times.step(8, waited_secs=0.2, step_secs=0.7, communication_secs=0.1)
    taken = times.take()
    assert taken is not None and taken[OWN_SECS] == pytest.approx((2.0 - 0.2 - 0.4) / 2)


@pytest.mark.parametrize("gap_secs", [None, 0.5])
def test_hooks_and_records_are_not_a_ranks_own_time(gap_secs: float | None) -> None:
    """Of a step in flight: as far as its device waited for the host."""
    clock = iter([0.0, 1.0, 2.0])
    times = TimeShares(lambda: next(clock))
    times.resume(0.0)
    times.step(8, 0.1, 0.4, gap_secs=gap_secs, beside_secs=0.3)
    times.step(8, 0.1, 0.2, gap_secs=gap_secs, beside_secs=0.6)
    taken = times.take()
    assert taken is not None and "beside" not in taken
    own = 2.0 - 0.1 - 0.3 - (0.6 if gap_secs is None else gap_secs)
    assert taken[OWN_SECS] == pytest.approx(own / 2)
    assert taken["other"] == pytest.approx((2.0 - 0.1 - 0.6) / 2), "they are in other"


def test_nodes_are_kept_for_the_next_start(tmp_path: Path) -> None:
    assert read_slow_nodes(tmp_path) == ()
    add_slow_node(tmp_path, "n2", {"rank": 3})
    add_slow_node(tmp_path, "n1.cluster", {"rank": 1})
    add_slow_node(tmp_path, "n2", {"rank": 4})
    assert read_slow_nodes(tmp_path) == ("n1.cluster", "n2")


def test_who_leaves_the_node_out_is_said(tmp_path: Path) -> None:
    assert next_start_without("n2", tmp_path, {}).startswith("nothing leaves n2 out when this job starts again")
    for host in ("n2", "n2.cluster.org"):
        said = next_start_without(host, tmp_path, job := {"SLURM_JOB_ID": "7"})
        assert said.startswith("to start the job without n2 give sbatch or salloc --exclude=n2;")
        said = next_start_without(host, tmp_path, {**job, "HPC_TRAIN_MIN_NODES": "1"})
        assert said.startswith("the next start in this allocation leaves n2 out where enough others are left; later")
    (tmp_path / "submission.json").touch()
    assert f"`hpc-train resume {tmp_path.name}` asks for other" in next_start_without("n2", tmp_path, {})


def test_a_node_is_excluded_only_where_ranks_are_named() -> None:
    assert RunConfig(on_slow_node="exclude").slow_rank_factor == 1.2
    assert RunConfig(slow_rank_factor=None).on_slow_node == "warn"
    with pytest.raises(
        ValueError, match=r"`on_slow_node: exclude` and `slow_rank_factor: null`, .*, exclude each other"
    ):
        RunConfig(on_slow_node="exclude", slow_rank_factor=None)
    with pytest.raises(ValueError, match="slow_rank_factor") as wrong:
        RunConfig(on_slow_node="exclude", slow_rank_factor=0.5)
    assert "exclude each other" not in str(wrong.value)


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": ["n1"]}', '{"nodes": {"--x": 1, "a,b": 1, "": 1, "n;1": {}}}'])
def test_what_others_wrote_there_is_not_believed(tmp_path: Path, text: str) -> None:
    (tmp_path / "slow_nodes.json").write_text(text)
    assert read_slow_nodes(tmp_path) == ()


@pytest.mark.parametrize("value", [None, 3, [3], [{"rank": "x"}], [{"rank": 1, "host": "n1"}]])
def test_what_others_wrote_into_the_status_is_not_believed(value: Any) -> None:
    assert not sound_slow_ranks(value)


def test_the_clock_is_told_where_the_machine_does(tmp_path: Path) -> None:
    assert CpuClock(1, tmp_path).taken() == {}
    for cpu in range(512):
        for name, number in (("cpufreq/scaling_cur_freq", 1_000_000), ("cpufreq/cpuinfo_max_freq", 2_000_000)):
            (tmp_path / f"cpu{cpu}" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"cpu{cpu}" / name).write_text(f"{number}\n")
    assert CpuClock(1, tmp_path).taken()[CLOCK] == 0.5
    assert in_words(1.0, 0.0, 0.1) == ""
    assert in_words(None, 4.0).startswith("its core was throttled 4 times")


class Gpu:
    """What pynvml shows of one GPU."""

    def __init__(self, **lacks: bool) -> None:
        self.asked, self.mhz, self.bits, self.lacks = 0, 990, 0x24, lacks

    def nvmlInit(self) -> None:
        if "init" in self.lacks:
            raise RuntimeError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return f"number {number}"

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        return name

    def nvmlDeviceGetMaxClockInfo(self, device: str, kind: int) -> int:
        assert (device, kind) in (("number 3", 1), ("GPU-7", 1))
        self.asked += 1
        return 1980

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:
        return self.mhz

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: str) -> int:
        if "reasons" in self.lacks:
            raise AttributeError("another version")
        return self.bits


@pytest.mark.parametrize("visible", ["3,5", "GPU-7"])
def test_what_holds_a_gpu_down_is_told(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    now, library = 0.0, Gpu()
    gpu = GpuClock(library, lambda: now)
    told = gpu.taken()
    assert told == {GPU_CLOCK: 0.5, GPU_HELD: 0x24}
    words = "its GPU is held down by its power limit and heat; its GPU's clock is at 50% of the highest"
    assert of_gpu(*told.values()) == words
    library.mhz, library.bits = 1980, 0x1
    assert gpu.taken() == told and library.asked == 1, "once a second at most"
    now = 1.0
    assert gpu.taken() == {GPU_CLOCK: 1.0, GPU_HELD: 1.0} and of_gpu(1.0, 1.0) == "", "idle is no reason"
    assert GpuClock(Gpu(reasons=True)).taken() == {GPU_CLOCK: 0.5}


@pytest.mark.parametrize(("visible", "lacks"), [("-1", {}), ("", {}), ("3", {"init": True}), ("MIG-1", {})])
def test_where_there_is_no_gpu_nothing_is_told(
    visible: str, lacks: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert GpuClock(Gpu(**lacks)).taken() == {}


@pytest.mark.parametrize("held", [float("nan"), float("inf"), -1.0, 1e300])
def test_what_is_no_set_of_bits_says_nothing(held: float) -> None:
    assert of_gpu(None, held) == ""


def test_cores_that_others_have_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, own, stat = 0.0, 0.0, tmp_path / "stat"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3})
    monkeypatch.setattr("os.sysconf", lambda _: 100)
    monkeypatch.setattr("os.times", lambda: (own, 0.0, 99.0, 99.0, 0.0))

    def busy(of_0: int, of_3: int) -> None:
        lines = [
            "cpu  9 9 9 9 9 9 9 9 9 9",
            *(f"cpu{n} {t} 0 0 5 5 0 0 0 0 0" for n, t in ((0, of_0), (1, 9), (3, of_3))),
        ]
        stat.write_text("\n".join([*lines, "intr 1 2 3", "ctxt 7", ""]))

    busy(1000, 1000)
    many, both, one = (CpuClock(cores, tmp_path, stat, lambda: now) for cores in (8, 2, 1))
    now, own = 0.5, 0.5
    busy(1100, 1100)
    assert both.taken() == one.taken() == {}, "it is too early"
    now, own = 10.0, 6.0
    busy(1900, 2000)  # 9 and 10 s in 10 s, 6 of which were this process's
    assert both.taken() == many.taken() == {TAKEN: pytest.approx(1.3 / 2)}, "it has no more than two"
    assert one.taken() == {TAKEN: pytest.approx(0.3)}, "what it may have beside its own core may be others'"
    now = 10.5
    assert one.taken() == {TAKEN: pytest.approx(0.3)}
    now = 20.0
    stat.write_text("cpu0 what 1 2\n")
    assert one.taken() == {}
    assert CpuClock(1, tmp_path / "none", tmp_path / "none").taken() == {}
    assert in_words(taken=0.4) == "other processes have 40% of the time of its cores"
