"""Counters of stand-ins for /sys, NVML and Slurm: what is counted, once, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.telemetry.energy.counter import Counter, NotMeasuredError, read_number
from hpc_train.telemetry.energy.gpus import nvml, used
from hpc_train.telemetry.energy.node import SHARED_VARIABLE, node_counters, rapl
from hpc_train.tuning.execution.slots import Wanted, slots_of
from hpc_train.tuning.execution.trial_run import rank_settings
from tests.unit.telemetry.energy.machine import Machine


class Gpus:
    """What pynvml shows of two GPUs, one of which it lists twice."""

    class NVMLError(Exception):
        pass

    def __init__(self, counts: bool = True, **kinds: str) -> None:
        self.millijoules, self.counts = {"GPU-a": 1000, "GPU-b": 5000}, counts
        self.kinds = {f"GPU-{name}": kind for name, kind in kinds.items()}

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return ["GPU-a", "GPU-b", "GPU-a"][number]

    def nvmlDeviceGetUUID(self, device: str) -> str:
        return device

    def nvmlDeviceGetName(self, device: str) -> str:
        return self.kinds.get(device, "a GPU")

    def nvmlDeviceGetTotalEnergyConsumption(self, device: str) -> int:
        if not self.counts:
            raise self.NVMLError("Not Supported")
        return self.millijoules[device]


def values(counters: Any) -> dict[str, float]:
    return {counter.name: counter.read() for counter in counters}


def test_packages_and_memory_are_counted_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0", 1_000_000)
    machine.zone("intel-rapl:0/intel-rapl:0:0", "core", 400_000)
    machine.zone("intel-rapl:0/intel-rapl:0:1", "dram", 250_000)
    machine.zone("intel-rapl:1", "package-1", 2_000_000)
    machine.zone("intel-rapl:1/intel-rapl:1:0", "dram", 500_000)
    machine.zone("intel-rapl:2", "psys", 9_000_000)
    machine.zone("intel-rapl-mmio:0", "package-0", 1_100_000)
    machine.zone("intel-rapl-mmio:0/intel-rapl-mmio:0:0", "dram", 260_000)
    found = rapl(tmp_path)
    assert values(found) == {"package-0": 1.0, "package-0/dram": 0.25, "package-1": 2.0, "package-1/dram": 0.5}
    assert found[0].wraps_at == pytest.approx(262143.328850)


def test_what_root_alone_may_read_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0", 1_000_000)
    machine.zone("intel-rapl:1", "package-1", 2_000_000)
    refused = str(machine.zone("intel-rapl:1/intel-rapl:1:0", "dram", 1) / "energy_uj")

    def read(path: Path, unit: str = "") -> int:
        if str(path) == refused:
            raise PermissionError(13, "Permission denied", refused)
        return read_number(path, unit)

    monkeypatch.setattr("hpc_train.telemetry.energy.node.read_number", read)
    with pytest.raises(NotMeasuredError, match="readable by root alone"):
        rapl(tmp_path)


def test_cray_counts_the_whole_node(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0", 1_000_000)
    machine.cray("384 J 1700000000 us\n")
    found = node_counters(tmp_path, Gpus())
    assert (values(found.counters), found.covers, found.lacks) == ({"energy": 384.0}, "the whole node", "")
    machine.cray("384 W 1700000000 us\n")  # not the file that it should be: the next source is asked
    assert node_counters(tmp_path, Gpus()).covers == "processors and memory and GPUs"


def test_gpus_are_counted_once_each_and_said_to_be_all_there_is(tmp_path: Path) -> None:
    assert values(nvml(Gpus())) == {"GPU-a": 1.0, "GPU-b": 5.0}
    found = node_counters(tmp_path, Gpus())
    assert (found.covers, found.lacks) == ("GPUs", "processors and memory: the machine shows no counters (RAPL)")
    with pytest.raises(NotMeasuredError, match=r"RAPL.*; GPUs: NVML does not tell: Not Supported"):
        node_counters(tmp_path, Gpus(counts=False))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([], []),
        ([""], []),
        (["-1"], []),
        (["1"], [1]),
        (["0", "0"], [0]),
        (["2,0", "1"], [0, 1, 2]),
        (["GPU-b"], [1]),
        (["GPU-", "7"], [0, 1, 2]),
        (["1,9,0"], [1]),  # CUDA takes those before one that there is not
        (["1", None], [0, 1, 2]),
    ],
)
def test_gpus_of_the_ranks(devices: list[str | None], expected: list[int]) -> None:
    assert used(["GPU-a", "GPU-b", "GPU-c"], devices, alike=True) == expected


def test_gpus_that_are_not_known_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    two = Gpus(a="fast", b="slow")  # CUDA numbers the fastest first
    with pytest.raises(NotMeasuredError, match="which are the job's is not known"):
        nvml(two, ["0"])
    assert values(nvml(two, ["GPU-b"])) == {"GPU-b": 5.0}
    assert set(values(nvml(two, [None]))) == {"GPU-a", "GPU-b"}
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert values(nvml(two, ["1"])) == {"GPU-b": 5.0}
    with pytest.raises(NotMeasuredError, match="MIG"):
        nvml(two, ["MIG-7"])
    with pytest.raises(NotMeasuredError, match="GPU-c is not shown to the rank"):
        nvml(two, ["GPU-b", "GPU-c"])
    with pytest.raises(NotMeasuredError, match="each rank may open its own alone"):
        nvml(two, None)


def test_an_old_library_names_gpus_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpus, "nvmlDeviceGetUUID", lambda _, device: device.encode())
    assert values(nvml(Gpus(), ["GPU-b"])) == {"GPU-b": 5.0}


def test_trials_that_share_a_node_are_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(range(4), ["0", "1"], Wanted(1), None)
    (alone,) = slots_of(range(4), [], Wanted(4), None)
    settings = [rank_settings(slot, "driver", 1) for slot in (*slots, alone)]
    assert [SHARED_VARIABLE in one for one in settings] == [True, True, False]
    machine = Machine(tmp_path)
    machine.zone("intel-rapl:0", "package-0", 1_000_000)
    monkeypatch.setenv(SHARED_VARIABLE, settings[0][SHARED_VARIABLE])
    assert node_counters(tmp_path, Gpus()).covers == "processors and memory with other trials there and GPUs"
    machine.cray("384 J 1700000000 us\n")
    assert node_counters(tmp_path).covers == "the whole node with other trials there"


def test_a_bare_machine_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotMeasuredError, match=r"processors and memory: the machine shows no counters \(RAPL\)"):
        node_counters(tmp_path)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1" * 21, "1 J J", "1 W", "12 J 5", "\x001", "9" * 5000])
def test_other_content_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "counter").write_text(text)
    with pytest.raises((ValueError, OSError)):
        read_number(tmp_path / "counter", "J")


@given(st.floats(0, 1e6), st.floats(0, 9e4), st.floats(1e5, 1e6))
def test_a_counter_that_wraps_loses_nothing(begin: float, used: float, wraps_at: float) -> None:
    counter = Counter("c", lambda: 0.0, wraps_at)
    before = begin % wraps_at
    assert counter.since(before, (before + used) % wraps_at) == pytest.approx(used, abs=1e-6)


def test_a_counter_that_goes_back_is_refused() -> None:
    with pytest.raises(ValueError, match="gone back"):
        Counter("c", lambda: 0.0).since(2.0, 1.0)
