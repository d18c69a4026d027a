from __future__ import annotations

import errno
import fcntl
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.doctor import files as doctor_files
from hpc_train.doctor.examine import demo_runs
from hpc_train.doctor.files import file_findings, mount_of
from hpc_train.doctor.machine import Gpu, energy_finding, gpu_finding, limits_finding, parse_gpus, shared_memory_finding
from hpc_train.doctor.mpi import (
    allreduce_finding,
    duration,
    mpi_finding,
    mpirun_finding,
    nccl_finding,
    nccl_version,
    one_sided_finding,
    parse_library,
)
from hpc_train.doctor.packages import horovod_finding, python_finding, tensorflow_finding
from hpc_train.doctor.slurm import (
    Partition,
    parse_mpi_kinds,
    parse_partitions,
    partitions_finding,
    pmi_finding,
    slurm_finding,
)
from hpc_train.doctor.tools import MARK, Finding, Outcome, Tool, Tools, last_words, marked
from hpc_train.telemetry.energy.counter import Counter
from hpc_train.telemetry.energy.node import NodeCounters
from tests.support import LIMIT_SECS, is_gone, wait_for

FINE = Outcome(0)
OPEN_MPI = "Open MPI v4.1.8, package: Open MPI user@host Distribution, ident: 4.1.8, Feb 04, 2025\0"
FENCE = "-" * 74


# ---- programs with a time limit


def sh(text: str, limit_secs: float = 10) -> Outcome:
    return Tool(["sh", "-c", text], limit_secs).outcome()


def test_a_program_is_told_of_by_what_it_wrote() -> None:
    assert sh("echo yes; echo no >&2") == Outcome(0, "yes\n", "no\n", None)
    assert sh("echo 'it is broken' >&2; exit 3").failure == "it is broken"
    assert sh("exit 3").failure == "sh ended with exit code 3"
    assert sh("kill -SEGV $$").failure == "sh was ended by SIGSEGV"
    assert Tool(["no-such-program"], 1).outcome() == Outcome(None, failure="there is no no-such-program on PATH")
    assert "cannot be started" in str(Tool(["/"], 1).outcome().failure)


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    done = sh(f"trap '' TERM; (trap '' TERM; sleep 3600) & echo $! $$ > {pids}; wait", 3)
    assert done.failure == "sh did not end within 3 s"
    both = [int(pid) for pid in pids.read_text().split()]
    wait_for(lambda: all(map(is_gone, both)), "SIGKILL takes effect, when a process is next given a core")


def test_what_outlives_a_program_keeps_nobody_waiting() -> None:
    start = time.monotonic()
    assert sh("sleep 3600 & echo done").out == "done\n"
    assert time.monotonic() - start < 3600


def test_a_program_nobody_waited_for_is_ended(tmp_path: Path) -> None:
    start = time.monotonic()
    with Tools() as tools:
        tools.start(["sh", "-c", f"echo $$ > {tmp_path / 'pid'}; exec sleep 3600"], 3600)
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "it runs")
    assert time.monotonic() - start < 3600
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("a\n\n---\n", "a"),
        ("Traceback (most recent call last):\nImportError: no libx.so\n\nSee https://…\n", "ImportError: no libx.so"),
        ("hpc-train: error: too small\nhpc-train: error: too old\nbye", "too old"),
        (
            "ValueError: gone: x\nI0000 00:00:1795211337.9 1 port.cc:153] oneDNN operations are on.",
            "ValueError: gone: x",
        ),
        (f"x\n{FENCE}\nNo slots for\nthis.\n\nAsk for more.\n{FENCE}\n", "No slots for this."),
        (
            f"{FENCE}\nIt ended.\n{FENCE}\n{FENCE}\nA rank exited on signal 11.\n{FENCE}\n",
            "A rank exited on signal 11.",
        ),
        ("\x1b[31mred\x1b[0m\x07", "red"),
    ],
)
def test_the_line_that_says_what_went_wrong(text: str, words: str) -> None:
    assert last_words(text) == words


@given(st.text())
def test_last_words_are_one_short_printable_line(text: str) -> None:
    words = last_words(text)
    assert len(words) <= 310
    assert not any(ord(character) < 32 for character in words)


def test_marked_lines_are_found_among_others() -> None:
    assert marked(f'noise\n{MARK}{{"a": 1}}\n[1,0]<stdout>:{MARK}{{"b": 2}}\n{MARK}{{broken\n{MARK}3\n') == {
        "a": 1,
        "b": 2,
    }


# ---- packages


@pytest.mark.parametrize(
    ("version", "result"),
    [((3, 9, 1), "fails"), ((3, 10, 0), "ok"), ((3, 13, 2), "ok"), ((3, 14, 0), "fails")],
)
def test_python(version: tuple[int, ...], result: str) -> None:
    finding = python_finding(version, "/usr/bin/python")
    assert (finding.result, bool(finding.advice), finding.needed) == (result, result == "fails", True)


@pytest.mark.parametrize(
    ("version", "sees", "gpus", "hidden", "result"),
    [
        ("2.16.2", 0, 0, False, "ok"),
        ("2.21.0", 2, 2, False, "ok"),
        ("2.15.1", 0, 0, False, "fails"),
        ("2.22.0-rc1", 0, 0, False, "warning"),
        ("2.21.0", 0, 2, False, "warning"),
        ("2.21.0", 0, 2, True, "ok"),
    ],
)
def test_tensorflow(version: str, sees: int, gpus: int, hidden: bool, result: str) -> None:
    said = {"tensorflow": version, "tensorflow_gpus": sees, "keras": "3.15"}
    assert tensorflow_finding(FINE, said, gpus, hidden).result == result


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("ModuleNotFoundError: No module named 'tensorflow'", "make setup"),
        ("ImportError: Traceback …\nImportError: libcudart.so.12: cannot open shared object file\n\nSee …", "CUDA"),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found", "GCC"),
        ("TypeError: something new", "make setup"),
    ],
)
def test_an_import_that_fails_is_explained(problem: str, advice: str) -> None:
    finding = tensorflow_finding(FINE, {"tensorflow_error": problem}, 0, False)
    assert finding.result == "fails"
    assert finding.needed
    assert "Error: " in finding.found
    assert "See" not in finding.found
    assert advice in str(finding.advice)


def test_an_import_that_crashes_or_hangs_is_explained() -> None:
    crashed = tensorflow_finding(Outcome(-4, failure="the import was ended by SIGILL"), {}, 0, False)
    assert crashed.result == "fails"
    assert "CPU" in str(crashed.advice)
    hung = horovod_finding(Outcome(None, failure="the import did not end within 120 s"), {"tensorflow": "2.21.0"}, 0)
    assert hung.result == "fails"
    assert "file system" in str(hung.advice)


@pytest.mark.parametrize(
    ("said", "gpus", "result"),
    [
        ({"horovod": "0.28.1", "mpi": True, "nccl": 0}, 0, "ok"),
        ({"horovod": "0.28.1", "mpi": True, "nccl": 22304}, 2, "ok"),
        ({"horovod": "0.28.1", "mpi": True, "nccl": 0}, 2, "warning"),
        ({"horovod": "0.27.0", "mpi": True, "nccl": 0}, 0, "warning"),
        ({"horovod": "0.28.1", "mpi": False, "nccl": 0}, 0, "fails"),
        ({"horovod_error": "ImportError: Extension horovod.tensorflow has not been built"}, 0, "fails"),
    ],
)
def test_horovod(said: dict[str, Any], gpus: int, result: str) -> None:
    finding = horovod_finding(FINE, {"tensorflow": "2.21.0", **said}, gpus)
    assert (finding.result, finding.advice is None) == (result, result == "ok")
    assert horovod_finding(FINE, said, gpus).result == "fails", "without TensorFlow there is no Horovod"


# ---- MPI


@pytest.mark.parametrize(
    ("text", "vendor", "version"),
    [
        (OPEN_MPI, "Open MPI", "4.1.8"),
        ("MPICH Version:      4.2.1\nMPICH Release date: …", "MPICH", "4.2.1"),
        ("Intel(R) MPI Library 2021.9 for Linux* OS\n", "Intel MPI", "2021.9"),
        ("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", "Cray MPICH", "8.1.25.17"),
        ("MVAPICH2 Version      :\t2.3.7\n", "MVAPICH", "2.3.7"),
        ("Another MPI 1.0\nand more", "Another MPI 1.0", ""),
        ("", "unknown", ""),
    ],
)
def test_the_library_is_known_by_its_own_words(text: str, vendor: str, version: str) -> None:
    assert parse_library(text) == (vendor, version)


@pytest.mark.parametrize(
    ("library", "result", "advice"),
    [
        (OPEN_MPI, "ok", ""),
        ("MPICH Version: 4.2.1", "ok", ""),
        ("Open MPI v5.0.3, package: …", "fails", "Open MPI 5"),
        ("Open MPI v1.10.7, package: …", "fails", "too old"),
        ("Intel(R) MPI Library 2021.9 for Linux* OS", "warning", "not tried"),
    ],
)
def test_mpi(library: str, result: str, advice: str) -> None:
    finding = mpi_finding(FINE, {"mpi4py": "4.1.2", "library": library})
    assert finding.result == result
    assert advice in (finding.advice or "")


def test_an_mpi_that_cannot_be_loaded() -> None:
    problem = "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory"
    finding = mpi_finding(Outcome(1, failure=problem), {})
    assert (finding.result, finding.found) == ("fails", problem)
    assert "module" in str(finding.advice)


@pytest.mark.parametrize(
    ("says", "library", "result"),
    [
        ("mpirun (Open MPI) 4.1.8", OPEN_MPI, "ok"),
        ("mpirun (Open MPI) 4.0.2", OPEN_MPI, "warning"),
        ("mpirun (Open MPI) 5.0.1", OPEN_MPI, "fails"),
        ("HYDRA build details:\n    Version:    4.2.1\n", OPEN_MPI, "fails"),
        ("HYDRA build details:\n    Version:    4.2.1\n", "MVAPICH2 Version : 2.3.7", "ok"),
        ("mpirun (Open MPI) 4.1.8", "", "ok"),  # mpi4py's own failure is told of above
    ],
)
def test_mpirun_is_of_the_same_mpi(says: str, library: str, result: str) -> None:
    finding = mpirun_finding("/usr/bin/mpirun", Outcome(0, says), library)
    assert (finding.result, finding.advice is None) == (result, result == "ok")


def test_no_mpirun() -> None:
    finding = mpirun_finding(None, None, OPEN_MPI)
    assert (finding.result, finding.needed) == ("fails", True)
    assert mpirun_finding("/bin/mpirun", Outcome(None, failure="mpirun did not end within 10 s"), "").result == "fails"


RANKS: dict[str, Any] = {"allreduce_secs": 3e-4, "large_bytes": 8e6, "large_secs": 5e-3, "hosts": 1, "libraries": ["a"]}


def test_two_ranks() -> None:
    assert allreduce_finding(FINE, RANKS, False) == Finding(
        "two ranks", "ok", "an allreduce by Horovod takes 300 µs, of 8.0 MB 5 ms", needed=True
    )
    assert "between 2 nodes" in allreduce_finding(FINE, {**RANKS, "hosts": 2}, False).found
    assert allreduce_finding(None, {}, False).result == "fails"
    assert allreduce_finding(FINE, {}, False).result == "fails"
    assert allreduce_finding(FINE, {**RANKS, "libraries": ["/a/libmpi.so", "/b/libmpi.so"]}, False).result == "fails"
    badly_ended = allreduce_finding(Outcome(139, failure="a rank exited on signal 11"), RANKS, False)
    assert (badly_ended.result, badly_ended.needed) == ("fails", True)


@pytest.mark.parametrize(
    ("failure", "in_step", "advice"),
    [
        ("mpirun did not end within 90 s", False, "network interface"),
        ("mpirun did not end within 90 s", True, "SLURM_OVERLAP"),
        ("There are not enough slots available in the system", False, "--ntasks=2"),
        ("the launcher started 2 ranks, but MPI sees 1", False, "module"),
        ("something new", False, "make setup"),
    ],
)
def test_ranks_that_fail_are_explained(failure: str, in_step: bool, advice: str) -> None:
    code = None if "did not end" in failure else 1
    finding = allreduce_finding(Outcome(code, failure=failure), {}, in_step)
    assert (finding.result, finding.found, finding.needed) == ("fails", failure, True)
    assert advice in str(finding.advice)


def test_one_sided() -> None:
    said = {"put_secs": 1.5e-6, "get_secs": 2e-6, "add_secs": 8e-7, "shared": True}
    assert one_sided_finding(FINE, said, False).found.startswith("Put 1.5 µs, Get 2 µs, Fetch_and_op 800 ns in memory")
    for outcome in (None, FINE, Outcome(1, failure="MPI_ERR_WIN: invalid window")):
        finding = one_sided_finding(outcome, {}, False)
        assert (finding.result, finding.needed) == ("fails", False), "the demo is synchronous"


def test_nccl() -> None:
    assert nccl_finding(0, 0, {}, FINE).result == "not here"
    assert nccl_finding(2, 0, {}, FINE).result == "warning"
    assert "mpi-gpu" in nccl_finding(2, 0, {"takes_gpu_memory": True}, FINE).advice
    assert nccl_finding(1, 22304, {}, FINE).advice is not None
    assert nccl_finding(2, 22304, {"gpu_tried": True, "gpu_secs": 1e-3}, FINE).result == "ok"
    broken = nccl_finding(2, 22304, {"gpu_tried": True}, Outcome(1, failure="ncclSystemError: oh"))
    assert (broken.result, broken.needed) == ("fails", True)
    assert allreduce_finding(Outcome(1, failure="oh"), {**RANKS, "gpu_tried": True}, False).result == "ok", "told there"
    assert (nccl_version(22304), nccl_version(2708)) == ("2.23.4", "2.7.8")


@pytest.mark.parametrize(("secs", "text"), [(2, "2 s"), (0.0123, "12.3 ms"), (1.67e-6, "1.67 µs"), (3e-9, "3 ns")])
def test_durations(secs: float, text: str) -> None:
    assert duration(secs) == text


# ---- the machine


def test_gpus() -> None:
    text = "NVIDIA H200, 550.54.15, 143771\nNVIDIA H200, 550.54.15, 143771\nOld, 470.1, [N/A]\n"
    assert parse_gpus(text) == [Gpu("NVIDIA H200", "550.54.15", 143771 << 20)] * 2 + [Gpu("Old", "470.1", None)]
    assert gpu_finding(Outcome(0, text), True).found == "2 × NVIDIA H200, 150.8 GB each; 1 × Old; driver 550.54.15"
    missing = Outcome(None, failure="there is no nvidia-smi on PATH")
    assert gpu_finding(missing, False).result == "not here"
    assert gpu_finding(missing, True).result == "warning"
    lost = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert gpu_finding(Outcome(9, lost, failure=lost), False).result == "warning"
    assert gpu_finding(Outcome(0, "No devices were found\n"), True).result == "warning"
    hung = gpu_finding(Outcome(None, failure="nvidia-smi did not end within 10 s"), True)
    assert "administrators" in str(hung.advice)


@given(st.text())
def test_gpus_of_any_text(text: str) -> None:
    assert all(gpu.name == gpu.name.strip() for gpu in parse_gpus(text))


def test_shared_memory() -> None:
    assert shared_memory_finding(25 * 10**9).result == "ok"
    assert "--shm-size" in str(shared_memory_finding(64 << 20).advice)
    assert shared_memory_finding(None).result == "warning"


def test_limits() -> None:
    unlimited = resource.RLIM_INFINITY
    assert limits_finding(8 << 20, 1024, []).result == "ok"
    assert limits_finding(unlimited, unlimited, ["mlx5_0"]).found == (
        "no limit of locked memory, no limit of open files; InfiniBand: mlx5_0"
    )
    assert "ulimit -l" in str(limits_finding(8 << 20, 1024, ["mlx5_0"]).advice)
    assert "ulimit -n" in str(limits_finding(unlimited, 256, []).advice)


# ---- Slurm


def test_slurm_that_answers() -> None:
    ping = "Slurmctld(primary) at head1 is DOWN\nSlurmctld(backup1) at head2 is UP\n"
    finding = slurm_finding(Outcome(0, "slurm-wlm 22.05.8\n"), Outcome(0, ping))
    assert finding == Finding("Slurm", "ok", "22.05.8, slurmctld on head2 answers")


@pytest.mark.parametrize(
    ("ping", "found", "advice"),
    [
        (Outcome(1, "Slurmctld(primary) at head is DOWN\n", failure="x"), "at head is DOWN", "administrators"),
        (Outcome(None, failure="scontrol did not end within 10 s"), "did not end within 10 s", "administrators"),
        (
            Outcome(1, "", "scontrol: fatal: Could not establish a configuration source", "scontrol: fatal: …"),
            "fatal",
            "SLURM_CONF",
        ),
        (Outcome(1, "", "error: Munge encode failed", "error: Munge encode failed"), "Munge", "munged"),
    ],
)
def test_slurm_that_does_not_answer(ping: Outcome, found: str, advice: str) -> None:
    finding = slurm_finding(Outcome(0, "slurm 23.11.4"), ping)
    assert (finding.result, finding.needed) == ("warning", False)
    assert finding.found.startswith("23.11.4; no slurmctld answers")
    assert found in finding.found
    assert advice in str(finding.advice)


def test_partitions() -> None:
    text = "cpu*|up|10|1-00:00:00\ncpu*|up|2|1-00:00:00\ngpu|up|4|infinite\nold|drain|1|30:00\nnonsense\n"
    assert parse_partitions(text) == [
        Partition("cpu", 12, "1-00:00:00", True, True),
        Partition("gpu", 4, "infinite", True, False),
        Partition("old", 1, "30:00", False, False),
    ]
    assert partitions_finding(Outcome(0, text)).found == (
        "cpu (default, 12 nodes, up to 1-00:00:00), gpu (4 nodes), old (1 node, up to 30:00, down)"
    )
    many = "\n".join(f"p{i}|up|1|infinite" for i in range(20))
    assert partitions_finding(Outcome(0, many)).found.endswith("p5 (1 node) and 14 more")
    assert partitions_finding(Outcome(0, "")).result == "warning"
    assert partitions_finding(Outcome(0, "old|down|1|30:00")).result == "warning"
    assert partitions_finding(Outcome(None, failure="sinfo did not end within 10 s")).result == "warning"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (
            "MPI plugin types are...\n\tpmix\n\tnone\n\tcray_shasta\nspecific pmix plugin versions available: pmix_v4",
            ["pmix", "cray_shasta", "pmix_v4"],
        ),
        ("srun: MPI types are...\nsrun: none\nsrun: pmi2\nsrun: openmpi\n", ["pmi2", "openmpi"]),
        ("", []),
    ],
)
def test_what_srun_can_start(text: str, kinds: list[str]) -> None:
    assert parse_mpi_kinds(text) == kinds


def test_pmi() -> None:
    pmix, loads = Outcome(0, "MPI plugin types are...\n\tpmix\n"), Outcome(0, "", "srun: Job 1 to start at …\n")
    assert pmi_finding(pmix, loads).found == "srun knows pmix: resources.launcher may be srun"
    text = "srun: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:195: pmi/pmix: can not load PMIx library\n"
    found = pmi_finding(pmix, Outcome(1, "", text + "srun: error: Invalid MPI type 'pmix', --mpi=list for …\n", "1"))
    assert (found.result, "libpmix-dev" in str(found.advice)) == ("warning", True)
    assert "mpirun" in pmi_finding(Outcome(0, "", "srun: MPI types are...\nsrun: pmi2\n"), loads).found
    assert pmi_finding(Outcome(1, failure="srun: fatal: oh"), loads).result == "warning"


# ---- the file system of a job-dir

MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw,local_lock=none 0 0
scratch /scratch/my\\040disk lustre rw,localflock 0 0
tmpfs /home/me/tmp tmpfs rw 0 0
/dev/vdb /home/me/tmp xfs rw 0 0
broken
"""
SAID: dict[str, Any] = {
    "folder": "/home/me", "fstype": "nfs4", "options": "rw", "free_bytes": 10**12, "renamed": True,
    "locks": "exclusive", "written_bytes": 256 << 20, "write_secs": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fstype"),
    [
        ("/data", "ext4"),
        ("/home", "nfs4"),
        ("/homes", "ext4"),
        ("/home/me", "nfs4"),
        ("/home/me/tmp/x", "xfs"),
        ("/scratch/my disk/x", "lustre"),
        ("/", "ext4"),
    ],
)
def test_the_file_system_of_a_path(path: str, fstype: str) -> None:
    assert mount_of(path, MOUNTS)[0] == fstype


def results(said: dict[str, Any], outcome: Outcome = FINE) -> dict[str, str]:
    return {finding.check: finding.result for finding in file_findings(outcome, said)}


def test_a_good_file_system() -> None:
    findings = file_findings(FINE, SAID)
    assert [finding.result for finding in findings] == ["ok", "ok", "ok"]
    assert findings[0].found == "/home/me: nfs4 (network), 1000.0 GB free"
    assert findings[2].found == "268 MB/s (256 MiB with fsync)"


@pytest.mark.parametrize(
    ("changes", "check", "result"),
    [
        ({"fstype": "tmpfs"}, "job-dir", "warning"),
        ({"fstype": "fuse.s3fs"}, "job-dir", "warning"),
        ({"fstype": "fuse.sshfs"}, "job-dir", "ok"),
        ({"free_bytes": 10**9}, "job-dir", "warning"),
        ({"locks": "shared"}, "locks", "fails"),
        ({"locks": "No locks available"}, "locks", "warning"),
        ({"options": "rw,localflock"}, "locks", "warning"),
        ({"options": "rw,local_lock=all,vers=3"}, "locks", "warning"),
        ({"options": "rw,local_lock=none"}, "locks", "ok"),
        ({"write_secs": 10.0}, "write speed", "warning"),
    ],
)
def test_a_worse_file_system(changes: dict[str, Any], check: str, result: str) -> None:
    found = results({**SAID, **changes})
    assert found.pop(check) == result
    assert set(found.values()) == {"ok"}
    assert demo_runs(file_findings(FINE, {**SAID, **changes}))


@pytest.mark.parametrize(
    ("told", "said", "check", "needed"),
    [
        (["error"], {"error": "/home/me: nothing can be written there: Permission denied"}, "job-dir", True),
        ([], {}, "job-dir", True),
        (["folder", "fstype", "free_bytes", "options", "renamed"], {}, "locks", False),
        (["folder", "fstype", "free_bytes", "options", "renamed", "locks"], {}, "write speed", True),
    ],
)
def test_a_file_system_that_hangs_or_refuses(told: list[str], said: dict[str, Any], check: str, needed: bool) -> None:
    outcome = Outcome(None, failure="the check did not end within 60 s")
    said = {**{name: SAID[name] for name in told if name in SAID}, **said}
    findings = file_findings(outcome, said)
    assert (findings[-1].check, findings[-1].result, findings[-1].needed) == (check, "fails", needed)
    assert findings[-1].advice
    assert demo_runs(findings) != needed


def test_two_processes_and_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_files._try_flock(tmp_path / "a") == "exclusive"
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lambda *_: None)
        assert doctor_files._try_flock(tmp_path / "b") == "shared"

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert doctor_files._try_flock(tmp_path / "c") == "No locks available"


def test_a_slow_disk_is_given_less_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_files._write(tmp_path / "fast", 20 << 20)[0] == 20 << 20
    assert (tmp_path / "fast").stat().st_size == 20 << 20
    monkeypatch.setattr(doctor_files, "WRITE_SECS", 0.3)
    monkeypatch.setattr(os, "fsync", lambda file: time.sleep(0.15))
    written, _ = doctor_files._write(tmp_path / "slow", 256 << 20)
    assert written == (tmp_path / "slow").stat().st_size < 64 << 20


def test_the_check_leaves_nothing_behind(tmp_path: Path) -> None:
    done = Tool([*doctor_files.command(tmp_path / "not" / "yet")], LIMIT_SECS).outcome()
    assert done.failure is None
    said = marked(done.out)
    assert (said["folder"], said["locks"], said["renamed"]) == (str(tmp_path), "exclusive", True)
    assert said["written_bytes"] in (256 << 20, 64 << 20)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    done = Tool([*doctor_files.command(tmp_path / "file" / "runs")], LIMIT_SECS).outcome()
    assert results(marked(done.out), done) == {"job-dir": "fails"}


def test_the_demo_runs_unless_something_that_it_needs_fails() -> None:
    assert demo_runs([Finding("a", "ok", "", needed=True), Finding("b", "fails", ""), Finding("c", "not here", "")])
    assert demo_runs([Finding("a", "warning", "", needed=True)])
    assert not demo_runs([Finding("a", "fails", "", needed=True)])


def test_neither_tensorflow_nor_mpi_is_imported_to_find_out() -> None:
    program = (
        "import hpc_train.doctor.examine, hpc_train.cli.doctor, sys\n"
        "print({'tensorflow', 'mpi4py', 'horovod', 'keras'} & {*sys.modules})"
    )
    assert Tool([sys.executable, "-c", program], LIMIT_SECS).outcome().out == "set()\n"


def test_energy() -> None:
    counters = (Counter("package-0", lambda: 0.0), Counter("package-0/dram", lambda: 0.0))
    found = energy_finding(NodeCounters(counters, "processors and memory", "GPUs: pynvml is not installed"))
    assert (found.result, found.found) == ("ok", "processors and memory: 2 counters; not GPUs: pynvml is not installed")
    assert energy_finding("no counters") == Finding("energy", "not here", "not measured: no counters")
