"""The launchers by name; srun's command, and what is made of what srun writes when ranks end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import UserError
from hpc_train.jobs.launch.error_excerpt import RunOutput, last_words
from hpc_train.jobs.launch.launcher_output import RankEnd
from hpc_train.jobs.launch.launchers import LAUNCHERS, launcher
from hpc_train.jobs.launch.launchers.srun import MPI_TYPE_VARIABLE, Srun, pmi_option
from hpc_train.jobs.launch.srun_output import SrunOutput, understand_srun

# As Slurm 22.05 writes them.
STEP_ENDS = "srun: launch/slurm: _step_signal: Terminating StepId=1.1\n"
OTHERS = f"{STEP_ENDS}srun: error: n1: task 0: Terminated\nsrun: Force Terminated StepId=1.1\n"
KILLED = f"srun: error: n2: task 1: Killed\n{OTHERS}"
LEFT = f"srun: error: n2: tasks 1-3,5: Exited with exit code 7\n{OTHERS}"
ABORTED = f"srun: error: n1: task 0: Killed\nsrun: error: n2: task 1: Exited with exit code 6\n{STEP_ENDS}"
CRASHED = f"srun: error: n2: task 1: Segmentation fault (core dumped)\n{OTHERS}"
CANCELLED = """srun: forcing job termination
srun: Job step aborted: Waiting up to 22 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 1.6 ON n1 CANCELLED AT 2026-11-28T18:54:12 ***
srun: error: n2: task 1: Killed
"""
NOTICES = {
    KILLED: (143, 137, "rank 1 on n2 was killed by SIGKILL"),
    LEFT: (143, 7, "rank 1 on n2 left with code 7 without finishing"),
    ABORTED: (6, 6, "rank 1 on n2 left with code 6 without finishing"),
    CRASHED: (143, 139, "rank 1 on n2 was killed by SIGSEGV"),
    CANCELLED: (137, 1, "None"),
}


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, kinds: str, default: str = "none") -> None:
    """An srun and a scontrol that say so; from now on this process is in a Slurm job."""
    for name, says in {"srun": kinds, "scontrol": f"MpiDefault              = {default}", "mpirun": "Open MPI"}.items():
        (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (folder / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv(MPI_TYPE_VARIABLE, raising=False)


@given(st.sampled_from(list(NOTICES)), st.lists(st.integers(1, 200), max_size=30))
def test_what_srun_says_is_understood_and_left_out(notice: str, cuts: list[int]) -> None:
    """However the stream is cut, and after a line that has no end."""
    code, ends_with, why = NOTICES[notice]
    output, out = SrunOutput(), b""
    rest = b"step 3 of 10" + b"\r" + notice.encode() + b"last words, of srun\n"
    for size in cuts:
        out, rest = out + output.feed(rest[:size]), rest[size:]
    out += output.feed(rest) + output.flush()
    assert out == b"step 3 of 10\rlast words, of srun\n"
    assert (output.settle(code), str(output.end)) == (ends_with, why)
    assert not output.reported


@pytest.mark.parametrize(
    "text",
    [
        "srun: error: Unable to create step for job 7: More processors requested than permitted\n",
        "slurmstepd-n1: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-28T18:54:12 DUE TO TIME LIMIT ***\n",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=5.0\n",
    ],
)
def test_what_else_srun_says_is_passed_on(text: str) -> None:
    output = SrunOutput()
    assert output.feed(text.encode()) == text.encode()
    assert (output.settle(1), output.end) == (1, None)


def test_a_failure_that_ranks_report_and_a_node_that_is_lost() -> None:
    output = SrunOutput()
    output.feed(b"rank 1 failed:\n" + LEFT.encode() + b"srun: error: Node failure on n2\n")
    assert output.reported and output.settle(143) == 205
    found = understand_srun("srun: error: n1: task 0: Out Of Memory")
    assert found == RankEnd(0, "n1", signal=9, why="out of memory")
    assert SrunOutput().settle(0) == 0


def test_the_log_of_a_job_names_the_rank(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\n  a\nValueError: odd\n" + KILLED)
    words = last_words(RunOutput(log, launcher="srun"), code=137)
    assert (words.rank, words.signal, words.message) == (1, "SIGKILL", "rank 1 on n2 was killed by SIGKILL")
    words = last_words(RunOutput(log), code=205)
    assert (words.rank, words.message) == (None, "ValueError: odd"), "mpirun's helpers are tasks, and no ranks"
    log.write_text("Traceback (most recent call last):\n  a\nValueError: odd\n" + ABORTED)
    words = last_words(RunOutput(log, launcher="srun"), code=6)
    assert (words.rank, words.signal, words.message) == (1, None, "ValueError: odd")


def test_launchers_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs(tmp_path, monkeypatch, "none pmix")
    assert {name: launcher(name).name for name in LAUNCHERS} == {name: name for name in LAUNCHERS}
    with pytest.raises(UserError, match="--launcher: 'prun' is not allowed; allowed: mpirun, srun"):
        launcher("prun")
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UserError, match=r"SLURM_JOB_ID is not set: start it as in salloc .* or take --launcher mpirun"):
        launcher("srun")


def test_the_command_of_srun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def command() -> list[str]:
        found, settings = Srun().command(4, ["train"], {"SLURM_CPUS_PER_TASK": "3"})
        assert not settings
        return found

    flags = ["--ntasks=4", "--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL", "--input=none"]
    rest = [*flags, "--cpus-per-task=3", "train"]
    programs(tmp_path, monkeypatch, "pmix none")
    assert command() == ["srun", "--mpi=pmix", *rest]
    assert Srun().command(4, ["train"], {})[0] == ["srun", "--mpi=pmix", *flags, "train"], "all cores of the nodes"
    monkeypatch.setenv(MPI_TYPE_VARIABLE, "pmix_v2")
    assert command() == ["srun", *rest]
    programs(tmp_path, monkeypatch, "pmix", default="cray_shasta")
    assert command() == ["srun", *rest]
    programs(tmp_path, monkeypatch, "pmi2 none")
    with pytest.raises(UserError, match=r"srun here has no pmix.*take --launcher mpirun"):
        Srun()


def test_the_kind_of_pmi_is_that_of_the_mpi() -> None:
    assert pmi_option({"none", "pmix_v3", "pmix_v4"}, True) == "--mpi=pmix_v4"
    assert pmi_option({"none", "pmi2"}, False) == "--mpi=pmi2"
    assert pmi_option({"pmix", "pmi2"}, False) == "--mpi=pmix"


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    output, text = SrunOutput(), b"srun: " + b"x" * (1 << 15)
    assert output.feed(text) == text
    assert not output.holding
