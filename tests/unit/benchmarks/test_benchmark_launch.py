"""How benchmarks find out what there is (slots, GPUs) and start ranks there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import LIMIT_SECS, REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SRUN_"))] + ["CUDA_VISIBLE_DEVICES"]:
        monkeypatch.delenv(name, raising=False)


def test_slots_are_slurms_tasks_or_the_cores_of_this_process(monkeypatch: pytest.MonkeyPatch):
    from support.launch import slots

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5})
    assert slots() == 3
    monkeypatch.setenv("SLURM_NTASKS", "16")
    assert slots() == 16


@pytest.mark.parametrize(
    ("cpus", "count"), [("64(x2),32", 160), ("64,32(x3)", 160), ("128(x2)", 256), ("2,4", 6), ("", 3)]
)
def test_slots_of_several_nodes_are_their_cpus_where_no_tasks_are_told(
    monkeypatch: pytest.MonkeyPatch, cpus: str, count: int
):
    from support.launch import slots

    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", cpus)
    assert slots() == count


def test_ranks_of_several_nodes_work_in_a_folder_that_all_of_them_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from support.launch import working_parent

    monkeypatch.chdir(tmp_path)
    results = Path("runs/benchmark_scaling-7")
    assert working_parent(None, results) is None
    assert working_parent(Path("here"), results) == tmp_path / "here"
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert working_parent(None, results) == tmp_path / "runs"
    assert working_parent(Path("here"), results) == tmp_path / "here"


def test_more_ranks_than_slots_are_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    from support.launch import check_ranks
    from support.usage import UsageError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    check_ranks([1, 2], oversubscribe=False)
    check_ranks([1, 8], oversubscribe=True)
    with pytest.raises(UsageError, match=r"4 ranks but 2 slots \(cores .*--oversubscribe"):
        check_ranks([1, 4, 2], oversubscribe=False)
    for wrong in ([], [0], [2, -1]):
        with pytest.raises(UsageError, match="--ranks"):
            check_ranks(wrong, oversubscribe=True)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    with pytest.raises(UsageError, match=r"2 ranks but 1 slots \(tasks.*sbatch gives more by --ntasks-per-node"):
        check_ranks([2], oversubscribe=False)


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ({}, 4),
        ({"SLURM_NTASKS": "2"}, 2),
        ({"SLURM_NTASKS": "64"}, 4),
        ({"SLURM_NTASKS": "64", "SLURM_JOB_NUM_NODES": "32", "SLURM_TASKS_PER_NODE": "3(x31),1"}, 3),
        ({"SLURM_NTASKS": "64", "SLURM_JOB_NUM_NODES": "32"}, 2),
        ({"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "64(x2)"}, 4),
    ],
)
def test_slots_of_one_node_are_its_cores_and_no_more_than_its_tasks(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, str], count: int
):
    from support.launch import check_ranks, slots
    from support.usage import UsageError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert slots(one_node=True) == count
    check_ranks([1, count], oversubscribe=False, one_node=True)
    check_ranks([count + 1], oversubscribe=True, one_node=True)
    with pytest.raises(UsageError, match=f"{count + 1} ranks but {count} slots .cores that this process may use"):
        check_ranks([count + 1], oversubscribe=False, one_node=True)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(UsageError, match=r"tasks of this Slurm job on this node.*--ntasks-per-node$"):
        check_ranks([count + 1], oversubscribe=False, one_node=True)


H100 = "GPU-aaaa-1, NVIDIA H100 80GB HBM3, 81559"
L4 = "GPU-bbbb-2, NVIDIA L4, 23034"


def fake_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str, code: int = 0) -> None:
    """An nvidia-smi on PATH that prints `lines`, as CSV without a header and units."""
    program = folder / "nvidia-smi"
    text = "\n".join(lines)
    program.write_text(f"#!/bin/sh\n[ \"$2\" = --format=csv,noheader,nounits ] || exit 9\necho '{text}'\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]),
        ("1", ["NVIDIA L4"]),
        ("1,0", ["NVIDIA L4", "NVIDIA H100 80GB HBM3"]),
        ("GPU-bbbb", ["NVIDIA L4"]),
        ("0,7,1", ["NVIDIA H100 80GB HBM3"]),
        ("-1", []),
        ("", []),
        ("MIG-cccc", ["NVIDIA H100 80GB HBM3", "NVIDIA L4"]),
    ],
)
def test_gpus_are_those_that_the_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
):
    from support.machine import gpus

    fake_nvidia_smi(tmp_path, monkeypatch, H100, L4)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu["name"] for gpu in gpus()] == names
    assert all(gpu["memory_mib"] in (81559, 23034) for gpu in gpus())


def test_no_driver_no_gpus_and_unknown_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from support.machine import gpus

    fake_nvidia_smi(tmp_path, monkeypatch, "NVIDIA-SMI has failed, because it could, not", code=9)
    assert gpus() == []
    fake_nvidia_smi(tmp_path, monkeypatch, "GPU-dd, NVIDIA GB10, [N/A]")
    assert gpus() == [{"name": "NVIDIA GB10", "memory_mib": 0}]
    monkeypatch.setenv("PATH", str(tmp_path / "nothing here"))
    assert gpus() == []


@pytest.mark.parametrize(
    ("cpu", "lines", "slug"),
    [
        ("AMD EPYC", [], "amd-epyc-2-cores"),
        ("Intel(R) Xeon(R) CPU @ 2.20GHz", [], "intel-xeon-2-cores"),
        ("AMD EPYC 7763 64-Core Processor", [], "amd-epyc-7763-2-cores"),
        ("AMD EPYC", [H100, H100.replace("aaaa", "eeee")], "2-x-nvidia-h100-80gb-hbm3-2-cores"),
    ],
)
def test_a_machine_is_called_by_its_gpus_or_its_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: str, lines: list[str], slug: str
):
    from support import machine

    fake_nvidia_smi(tmp_path, monkeypatch, *lines)
    monkeypatch.setattr(machine, "_cpu_model", lambda: cpu)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert machine.slug() == slug


def test_ranks_here_know_nothing_of_slurm_and_gpus_and_those_of_an_allocation_do(monkeypatch: pytest.MonkeyPatch):
    from support.launch import SESSION_VARIABLE, environment

    given = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "4",
        "SRUN_CPUS_PER_TASK": "3",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMPI_MCA_btl_tcp_if_include": "ib0",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "HOROVOD_CYCLE_TIME": "9",
        "PMIX_RANK": "0",
        "HPC_TRAIN_PROGRESS": "1",
        SESSION_VARIABLE: "/tmp/of-another",
        "OMPI_MCA_orte_local_tmpdir_base": "/tmp/of-the-tests",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    here, there = environment(), environment(allocation=True)
    assert here["CUDA_VISIBLE_DEVICES"] == "-1"
    assert not given.keys() & (here.keys() - {"CUDA_VISIBLE_DEVICES"})
    kept = {name: there.get(name) for name in given}
    assert {name for name, value in kept.items() if value is not None} == {
        "SLURM_JOB_ID", "SLURM_NTASKS", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_btl_tcp_if_include",
    }  # fmt: skip
    assert there["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert there["SLURM_EXPORT_ENV"] == "ALL"
    assert environment({"OMPI_MCA_btl": "tcp,self"})["OMPI_MCA_btl"] == "tcp,self"


MPIRUN = """#!{python}
import os, subprocess, sys, time
program = sys.argv[sys.argv.index("-np") + 2:]
print("session", os.environ["OMPI_MCA_orte_tmpdir_base"], flush=True)
sys.exit(subprocess.call(program))
"""


@pytest.fixture
def mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An mpirun that runs one rank, and the folder to run in."""
    from support import launch

    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "mpirun"
    program.write_text(MPIRUN.format(python=sys.executable))
    program.chmod(0o755)
    real = launch.environment
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    monkeypatch.setattr(
        launch, "environment", lambda more=None, allocation=False: {**real(more, allocation), "PATH": path}
    )
    monkeypatch.setenv("PATH", path)
    return tmp_path


def test_each_mpirun_has_a_session_folder_of_its_own_that_is_gone_afterwards(mpirun: Path):
    from support.launch import Ranks

    with Ranks(2, ["-c", "print('hello')"], mpirun) as ranks:
        ranks.wait(LIMIT_SECS)
        session, said = ranks.log.read_text().splitlines()
        assert Path(session.split()[1]).is_dir()
    assert said == "hello"
    assert not Path(session.split()[1]).exists()


def test_a_failure_tells_what_the_ranks_printed_last(mpirun: Path):
    from support.launch import here

    with pytest.raises(RuntimeError, match=r"(?s)code 3.*out of memory"):
        here()(1, ["-c", "print('out of memory'); raise SystemExit(3)"], mpirun, LIMIT_SECS)
    with pytest.raises(RuntimeError, match="still running after 0 s"):
        here()(1, ["-c", "import time; time.sleep(30)"], mpirun, 0.2)


def test_leaving_ends_the_ranks(mpirun: Path):
    from support.launch import Ranks

    with Ranks(1, ["-c", "import time; time.sleep(60)"], mpirun) as ranks:
        assert ranks.running
        pid = ranks._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
