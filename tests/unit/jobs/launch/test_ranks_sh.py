"""slurm/ranks.sh where nodes are chosen, with scripts in place of Slurm, mpirun and hpc-train; each notes its calls."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import LIMIT_SECS, REPOSITORY, wait_for

PROGRAMS = {
    "mpirun": """[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.8" && exit
code=$(cat "$CODE"); echo 0 >"$CODE"; exit "$code"
""",
    "scontrol": """case $2 in
hostnames) echo n1; echo n2; echo n3 ;;
job) echo "JobId=7 JobState=RUNNING Reason=None Requeue=0 Restarts=0" ;;
esac
""",
    "sinfo": "",
    "srun": """case " $* " in *" --nodelist=$STUCK "*) exec sleep 600 ;; esac
while [ "$1" != echo ]; do shift; done
exec "$@"
""",
    "hpc-train": """[ "$1" = next-run ] && cat "$ANSWER"
exit 0
""",
}
SCRIPT = """
command=(train) record=() again=(again) program='' alone='' log_dir='' min_nodes=1 threads='' me=test stop=''
source "$RANKS_SH"
"""


class Script:
    """ranks.sh in a job of three nodes of a rank each, in which mpirun ends once with `code`."""

    def __init__(self, folder: Path, code: int, **env: str) -> None:
        self._folder = folder
        for name, text in PROGRAMS.items():
            path = folder / name
            note = f'note=$(echo {name} "$@" | tr \'\\n\' \' \'); echo "$note" >>"$CALLS"'
            path.write_text(f"#!/bin/sh\n{note}\n{text}")
            path.chmod(0o700)
        (folder / "code").write_text(f"{code}\n")
        (folder / "answer").write_text("end\nnothing\n")
        (folder / "calls").touch()
        slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "3", "SLURM_JOB_NODELIST": "n[1-3]"}
        files = {name.upper(): str(folder / name) for name in ("calls", "code", "answer")}
        more = {"RANKS_SH": str(REPOSITORY / "slurm/ranks.sh"), "PATH": f"{folder}:{os.environ['PATH']}", **env}
        self._env = {**os.environ, **slurm, **files, **more}
        self.process: subprocess.Popen[str]

    def answers(self, text: str) -> None:
        """What next-run prints."""
        (self._folder / "answer").write_text(text)

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["bash", "-c", SCRIPT], env=self._env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def calls(self, begin: str) -> list[str]:
        return [line for line in (self._folder / "calls").read_text().splitlines() if line.startswith(begin)]

    def left(self) -> list[psutil.Process]:
        """What still runs of it."""
        mark = str(self._folder / "calls")
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("CALLS") == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def struck(tmp_path: Path) -> Iterator[Script]:
    """Its ranks are killed, and the node n2 says nothing."""
    script = Script(tmp_path, 137, STUCK="n2")
    yield script
    for process in script.left():
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_that_comes_while_nodes_are_asked_is_noticed(struck: Script, number: signal.Signals) -> None:
    struck.start()
    wait_for(lambda: len(struck.calls("srun ")) == 3, "three questions")
    struck.process.send_signal(number)
    out, _ = struck.process.communicate(timeout=LIMIT_SECS)
    assert struck.process.returncode == 137, out
    assert not struck.calls("hpc-train next-run"), "which would count the run"
    assert len(struck.calls("hpc-train record-end")) == 1
    wait_for(lambda: not struck.left(), lambda: f"the end of {struck.left()}")


def test_the_ranks_go_on_where_next_run_says(tmp_path: Path) -> None:
    script = Script(tmp_path, 205)
    script.answers("run n1 n3\nn2 is down, 2 ranks on 2 nodes: n1, n3\n")
    script.start()
    out, _ = script.process.communicate(timeout=LIMIT_SECS)
    assert (script.process.returncode, out) == (
        0,
        "test: the ranks are started again: n2 is down, 2 ranks on 2 nodes: n1, n3\n",
    )
    (asked,) = script.calls("hpc-train next-run")
    assert "--allocated n1 n2 n3 --used n1 n2 n3 --answering n" in asked and "--code 205" in asked
    first, second = (call for call in script.calls("mpirun") if "-np" in call)
    assert "--host" not in first and "-np 2 --host n1:1,n3:1" in second


def test_the_first_start_with_spare_nodes_leaves_out_slow_ones(tmp_path: Path) -> None:
    for number, (answer, hosts) in enumerate(
        {
            "run n1 n3\nn2 is slow, 2 ranks on 2 nodes: n1, n3": "n1:1,n3:1",
            "": "n1:1,n2:1",
            "end\n": "n1:1,n2:1",
        }.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = Script(folder, 0, spare_nodes="1")
        script.answers(answer)
        script.start()
        out, _ = script.process.communicate(timeout=LIMIT_SECS)
        assert script.process.returncode == 0
        assert out == ("test: n2 is slow, 2 ranks on 2 nodes: n1, n3\n" if "slow" in answer else "")
        (asked,) = script.calls("hpc-train next-run")
        assert "--answering n1 n2 n3 --states  " in asked + "  " and "--code" not in asked
        assert f"-np 2 --host {hosts}" in script.calls("mpirun -np")[0]
        assert not script.calls("srun")
