"""What slurm/train.sh makes of every way in which a run can end; mpirun and scontrol are stand-ins, without a Slurm.

tests/faults/test_slurm.py has the real ones.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.jobs import TRAIN_SH
from tests.support import LIMIT_SECS, wait_for

MPIRUN = """\
#!/bin/bash
if [[ $1 == --version ]]; then
    echo "mpirun (Open MPI) 4.1.8"
    exit 0
fi
[[ -z $RANKS_END_WITH ]] || exit "$RANKS_END_WITH"
[[ $RANKS_END_ON_USR1_WITH == never ]] || trap 'exit $RANKS_END_ON_USR1_WITH' USR1
[[ $RANKS_END_ON_USR1_WITH != never ]] || trap '' USR1
touch ranks_are_running
for ((i = 0; i < 36000; i++)); do
    sleep 0.1
done
"""

SCONTROL = """\
#!/bin/bash
[[ ! -e scontrol_is_broken ]] || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
case $1 in
    show) cat record ;;
    requeue)
        echo "$2" >>requeued
        for process in ${ENDS_ALL:+$(ps -o pid= -s "$(ps -o sid= -p $$)")}; do # as Slurm does at once
            kill -TERM "$process" 2>/dev/null || true
        done
        echo "${REQUEUE_SAYS:-}" >&2
        [[ -z ${REQUEUE_SAYS:-} ]]
        ;;
esac
"""

HPC_TRAIN = f"""\
#!/bin/bash
[[ ! -e hpc_train_is_broken ]] || exit 1
exec {shlex.quote(sys.executable)} -m hpc_train "$@"
"""


TIMEOUT = f"""\
#!/bin/bash
[[ "$2 $3" != "hpc-train record-end" ]] || echo "$1" >>record_secs
exec {shutil.which("timeout")} "$@"
"""
STAND_INS = {"mpirun": MPIRUN, "scontrol": SCONTROL, "hpc-train": HPC_TRAIN, "timeout": TIMEOUT}


@dataclass(frozen=True)
class End:
    """How a run of the script ended: its exit code, the jobs it had Slurm requeue, and what it printed."""

    code: int
    requeued: list[str]
    out: str


class Script:
    """slurm/train.sh in a folder of its own, with stand-ins. `job_dir` is that of a job which is running."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.job_dir = folder, folder / "a dir"
        shutil.copytree(Path(TRAIN_SH).parent, folder / "checkout/slurm")
        (folder / "bin").mkdir()
        for name, text in STAND_INS.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (self.job_dir / "checkpoints").mkdir(parents=True)
        self.write_status("running")

    def write_status(self, state: str) -> None:
        (self.job_dir / "status.json").write_text(json.dumps({"state": state, "step": 7, "started": time.time()}))

    def status(self) -> dict[str, Any]:
        return dict(json.loads((self.job_dir / "status.json").read_text()))

    def run(
        self,
        number: signal.Signals | None = None,
        ends_with: int | str = 3,
        record: str = "",
        restarts: int = 0,
        **env: str,
    ) -> End:
        """Runs the script; its ranks end with `ends_with`, once `number` has come or by themselves.

        `record` is what scontrol says of the job, beside what it says of every one.
        """
        usual = {"JobState": "RUNNING", "Reason": "None", "Requeue": "1", "Restarts": str(restarts)}
        usual |= {"EndTime": str(int(time.time()) + 3600), "PreemptTime": "None"}
        fields = usual | dict(item.split("=") for item in record.split())
        (self.folder / "record").write_text("\n".join(f"   {name}={value}" for name, value in fields.items()) + "\n")
        for name in ("requeued", "ranks_are_running"):
            (self.folder / name).unlink(missing_ok=True)
        slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_SUBMIT_DIR": str(self.folder)}
        home = {"HPC_TRAIN_HOME": str(self.folder / "checkout"), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        package = {"PYTHONPATH": str(Path(TRAIN_SH).parents[1]), "SLURM_RESTART_COUNT": str(restarts)}
        ranks = {"RANKS_END_WITH": "" if number else str(ends_with), "RANKS_END_ON_USR1_WITH": str(ends_with)}
        log = self.folder / "job.out"
        with open(log, "w") as out:
            process = subprocess.Popen(
                [self.folder / "checkout/slurm/train.sh", "job.yaml", "--job-dir", "a dir"],
                cwd=self.folder,
                env={**os.environ, **slurm, **home, **package, **ranks, **env},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            if number is not None:
                wait_for((self.folder / "ranks_are_running").exists, "ranks that run")
                process.send_signal(number)
            wait_for(lambda: process.poll() is not None or "is back in the queue" in log.read_text(), "an end")
            process.terminate()  # what Slurm does to the script of a job that it has requeued
            process.wait(LIMIT_SECS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        requeued = self.folder / "requeued"
        tried = requeued.read_text().split() if requeued.exists() else []
        return End(process.returncode, tried, log.read_text())


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


USR1, TERM = signal.SIGUSR1, signal.SIGTERM
PREEMPTED = "PreemptTime=1795186413"
CANCELLED = "JobState=COMPLETING"
PAST_LIMIT = "JobState=COMPLETING Reason=TimeLimit"


@pytest.mark.parametrize(
    ("number", "ends_with", "record"),
    [
        pytest.param(USR1, 3, "", id="warned, and saved"),
        pytest.param(USR1, 138, "", id="warned while Python started: the ranks were killed by USR1"),
        pytest.param(USR1, 6, "", id="warned, and a rank did not answer any more"),
        pytest.param(USR1, 3, PREEMPTED, id="preempted, and saved"),
        pytest.param(TERM, 3, PREEMPTED, id="preempted with TERM, and saved"),
        pytest.param(None, 1, PREEMPTED, id="preempted: Slurm ended the ranks of another node"),
        pytest.param(None, 205, "", id="mpirun lost a node"),
        pytest.param(None, 143, PAST_LIMIT, id="the time limit came without a warning"),
    ],
)
def test_a_job_that_is_not_finished_goes_back_into_the_queue_once(
    script: Script, number: signal.Signals | None, ends_with: int, record: str
) -> None:
    end = script.run(number, ends_with, record)
    assert end.requeued == ["7"], end.out
    assert script.status()["state"] == "requeued"


def test_a_requeue_is_told_where_slurm_ends_all_that_the_script_has_started_at_once(script: Script) -> None:
    end = script.run(USR1, 3, ENDS_ALL="1")
    assert end.requeued == ["7"], end.out
    assert "train.sh: the job is back in the queue (warning)\n" in end.out
    assert script.status()["state"] == "requeued"


@pytest.mark.parametrize(
    ("number", "ends_with", "record", "state"),
    [
        *(pytest.param(None, code, "", "failed", id=f"by itself with {code}") for code in (1, 6, 7, 9, 137)),
        *(pytest.param(USR1, code, "", "failed", id=f"failed with {code} after a warning") for code in (1, 7, 9)),
        *(pytest.param(None, code, PREEMPTED, "failed", id=f"failed with {code} at preemption") for code in (7, 9)),
        pytest.param(None, 2, "", "running", id="the job-dir was another's: untouched"),
        pytest.param(USR1, 0, "", "running", id="finished in spite of a warning"),
        pytest.param(TERM, 3, "", "stopped", id="stopped by hand"),
        pytest.param(USR1, 3, CANCELLED, "cancelled", id="cancelled after a warning"),
        pytest.param(TERM, 143, CANCELLED, "cancelled", id="cancelled"),
        pytest.param(TERM, 143, f"{CANCELLED} {PREEMPTED}", "failed", id="cancelled in its grace time"),
        pytest.param(USR1, 3, "Requeue=0", "stopped", id="submitted with --no-requeue"),
        pytest.param(None, 143, f"{PAST_LIMIT} Requeue=0", "failed", id="--no-requeue, and past its limit"),
        pytest.param(TERM, 137, "JobState=COMPLETING Restarts=1", "requeued", id="Slurm has requeued it already"),
    ],
)
def test_any_other_job_ends_with_the_code_of_its_ranks(
    script: Script, number: signal.Signals | None, ends_with: int, record: str, state: str
) -> None:
    end = script.run(number, ends_with, record)
    assert (end.code, end.requeued) == (ends_with, []), end.out
    assert script.status()["state"] == state


@pytest.mark.parametrize(("limit", "least", "most"), [("", 60, 60), ("Unknown", 60, 60), ("0", 10, 10), ("45", 10, 30)])
def test_recording_the_end_has_the_time_that_slurm_leaves(script: Script, limit: str, least: int, most: int) -> None:
    record = f"EndTime={int(time.time()) + int(limit) if limit.isdecimal() else limit}" if limit else ""
    script.run(USR1, 3, f"{record} Requeue=0")
    assert least <= int((script.folder / "record_secs").read_text()) <= most


def test_the_signal_that_killed_the_ranks_is_in_the_status(script: Script) -> None:
    script.run(None, 137)
    error = {"rank": None, "signal": "SIGKILL", "message": "the ranks ended with code 137 (killed by SIGKILL)"}
    assert script.status()["error"] == error


def test_a_task_of_an_array_requeues_itself_alone(script: Script) -> None:
    end = script.run(USR1, 3, SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="2", REQUEUE_SAYS="not now")
    assert end.requeued == ["5_2"]
    assert "sbatch --array=2 " in end.out


def break_scontrol(script: Script) -> dict[str, str]:
    (script.folder / "scontrol_is_broken").touch()
    return {}


def refuse_to_requeue(script: Script) -> dict[str, str]:
    return {"REQUEUE_SAYS": "Requested operation is presently disabled for job 7"}


@pytest.mark.parametrize(
    ("breaks", "says"),
    [(break_scontrol, "Unable to contact slurm controller"), (refuse_to_requeue, "is presently disabled")],
)
def test_where_scontrol_does_not_help_the_command_to_type_is_told(
    script: Script, breaks: Callable[[Script], dict[str, str]], says: str
) -> None:
    end = script.run(USR1, 3, **breaks(script))
    assert end.code == 8
    assert re.search(
        r"train.sh: stopped, and not back in the queue \(.*" + says + r".*: scontrol requeue 7$", end.out, re.M
    )
    submit = re.search(r"^train.sh: or.*: (sbatch .*)$", end.out, re.M)
    assert submit is not None
    assert shlex.split(submit[1])[1:] == [f"{script.folder}/checkout/slurm/train.sh", "job.yaml", "--job-dir", "a dir"]
    assert script.status()["state"] == "stopped"
    assert "could not be put back" in script.status()["error"]["message"]


def test_waiting_for_a_save_ends_before_slurm_kills_the_job(script: Script) -> None:
    """The last 15 s before the limit are kept for going back into the queue."""
    end = script.run(USR1, "never", f"EndTime={int(time.time()) + 17}")
    assert end.requeued == ["7"], end.out
    assert "no time is left to wait for the ranks' checkpoint" in end.out


def test_a_broken_hpc_train_keeps_no_job_from_going_on(script: Script) -> None:
    (script.folder / "hpc_train_is_broken").touch()
    assert script.run(USR1, 3).requeued == ["7"]


def test_a_job_that_saves_nothing_in_three_runs_is_not_started_again(script: Script) -> None:
    def run(restarts: int) -> End:
        if restarts:
            script.write_status("running")
        return script.run(USR1, 138, restarts=restarts)

    time.sleep(0.01)
    (script.job_dir / "checkpoints/step-00000040").mkdir()
    assert run(0).requeued == ["7"], "this run saved step 40"
    assert [run(1).requeued, run(2).requeued] == [["7"], ["7"]]
    end = run(3)
    assert (end.code, end.requeued) == (8, []), end.out
    assert "3 runs in a row have saved no checkpoint newer than step 40;" in end.out
    assert script.status()["state"] == "stopped"
    assert "3 runs in a row" in script.status()["error"]["message"]

    (script.job_dir / "checkpoints/step-00000050").mkdir()
    assert run(4).requeued == ["7"], "it makes progress again"


def test_a_job_that_does_not_get_as_far_as_its_job_dir_is_not_started_for_ever(script: Script) -> None:
    shutil.rmtree(script.job_dir)
    assert [script.run(USR1, 138, restarts=n).requeued for n in (0, 1)] == [["7"], ["7"]]
    end = script.run(USR1, 138, restarts=2)
    assert (end.code, end.requeued) == (8, []), end.out
    assert not script.job_dir.exists()


@pytest.mark.parametrize(
    ("nodes", "env", "said"),
    [
        ("4", {"HPC_TRAIN_MIN_NODES": "x"}, "HPC_TRAIN_MIN_NODES is 'x'; allowed: 1 to 4"),
        ("4", {"HPC_TRAIN_MIN_NODES": "5"}, "HPC_TRAIN_MIN_NODES is '5'; allowed: 1 to 4"),
        (
            "4",
            {"HPC_TRAIN_MIN_NODES": "4", "HPC_TRAIN_SPARE_NODES": "1"},
            "HPC_TRAIN_MIN_NODES is '4'; allowed: 1 to 3",
        ),
        ("4", {"HPC_TRAIN_MIN_NODES": "a[$(touch x)]"}, "allowed: 1 to 4"),
        ("4", {"HPC_TRAIN_SPARE_NODES": "3"}, "HPC_TRAIN_SPARE_NODES is '3'; allowed: a number that leaves two"),
        ("4", {"HPC_TRAIN_SPARE_NODES": "08"}, "HPC_TRAIN_SPARE_NODES is '08'"),
        ("1", {"HPC_TRAIN_SPARE_NODES": "1"}, "the job's 1 nodes"),
        ("4", {"HPC_TRAIN_MIN_NODES": "2", "SLURM_HET_SIZE": "0"}, "is not for heterogeneous jobs"),
    ],
)
def test_numbers_of_nodes_that_are_refused(script: Script, nodes: str, env: dict[str, str], said: str) -> None:
    end = script.run(ends_with=0, SLURM_JOB_NUM_NODES=nodes, **env)
    assert end.code == 2 and said in end.out, end.out
    assert not (script.folder / "x").exists()


SRUN = """\
#!/bin/bash
for word in "$@"; do
    case $word in
        --output=none) exec sleep 600 ;; # that looks after the batch node
        --nodelist="$DEAD") exit 1 ;;
    esac
done
exec "${@: -2}" # echo NODE
"""
SINFO = """\
#!/bin/bash
printf '%s\\n' n1=mixed n2=mixed n3=draining
"""
HOSTNAMES = '    show) [[ $2 != hostnames ]] || { printf "%s\\\\n" ${3//,/ }; exit; }; cat record ;;'
RUNS = """\
[[ -n $HPC_TRAIN_RESTARTS ]] || exit "$RANKS_FIRST_END_WITH"
echo "ranks: $* ($HPC_TRAIN_RESTARTS: $HPC_TRAIN_RESTART_REASON)"
"""


@pytest.mark.parametrize(
    ("first", "dead", "least", "code", "said"),
    [
        (205, "n2", 1, 0, ["-np 2 --host n1:2 ", "(1: n2 does not answer, n3 is draining, 2 ranks on 1 node: n1)"]),
        (137, "none", 2, 0, ["-np 4 --host n1:2,n2:2 ", "(1: n3 is draining, 4 ranks on 2 nodes: n1, n2)"]),
        (137, "n2", 2, 205, ["not enough nodes: n2 does not answer", "the job is back in the queue (lost-node)"]),
        (1, "none", 1, 1, []),
    ],
)
def test_ranks_are_started_again_on_the_nodes_left(
    script: Script, first: int, dead: str, least: int, code: int, said: list[str]
) -> None:
    stand_ins = {"srun": SRUN, "sinfo": SINFO, "scontrol": SCONTROL.replace("    show) cat record ;;", HOSTNAMES)}
    stand_ins["mpirun"] = MPIRUN.replace("[[ -z $RANKS_END_WITH", RUNS + "[[ -z $RANKS_END_WITH")
    for name, text in stand_ins.items():
        (script.folder / "bin" / name).write_text(text)
        (script.folder / "bin" / name).chmod(0o755)
    nodes = {"SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "n1,n2,n3", "SLURM_NTASKS": "6", "SLURMD_NODENAME": "n1"}
    env = {**nodes, "HPC_TRAIN_MIN_NODES": str(least), "DEAD": dead, "RANKS_FIRST_END_WITH": str(first)}
    end = script.run(ends_with=0, **env)
    assert end.code == code, end.out
    for words in said:
        assert words in end.out
    assert ("ranks: " in end.out) == (code == 0)
    assert bool(end.requeued) == (code == 205)


def test_runs_that_save_nothing_are_not_started_again_for_ever(script: Script) -> None:
    stand_ins = {"srun": SRUN, "sinfo": SINFO, "scontrol": SCONTROL.replace("    show) cat record ;;", HOSTNAMES)}
    for name, text in stand_ins.items():
        (script.folder / "bin" / name).write_text(text)
        (script.folder / "bin" / name).chmod(0o755)
    nodes = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n1,n2", "SLURM_NTASKS": "2", "HPC_TRAIN_MIN_NODES": "1"}
    end = script.run(ends_with=137, DEAD="none", **nodes)
    assert (end.code, end.requeued) == (8, []), end.out
    assert end.out.count("the ranks are started again") == 2
    assert "3 runs in a row have saved no checkpoint" in end.out
    assert (script.status()["state"], script.status()["exit_code"]) == ("stopped", 8)
