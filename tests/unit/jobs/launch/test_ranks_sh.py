"""slurm/ranks.sh where nodes are chosen, with scripts in place of Slurm, mpirun and hpc-train; each notes its calls."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import LIMIT_SECS, REPOSITORY, wait_for

ASKED, WATCHING = "600", "601"
"""How many seconds the steps sleep."""
PROGRAMS = {
    "mpirun": """[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.8" && exit
code=$(cat "$CODE"); echo 0 >"$CODE"; exit "$code"
""",
    "scontrol": """case "$1 $2" in
"show hostnames") echo n1; echo n2; echo n3 ;;
"show job") echo "JobId=7 JobState=RUNNING Reason=None Requeue=$REQUEUE Restarts=0" ;;
requeue*) echo "it is refused"; exit 1 ;;
esac
""",
    "sinfo": "",
    "srun": f"""case " $* " in
*" --no-kill "*) exec sleep {WATCHING} ;;
*" --nodelist=$STUCK "*) exec sleep {ASKED} ;;
esac
while [ "$1" != echo ]; do shift; done
exec "$@"
""",
    "hpc-train": """[ "$1" = next-run ] && cat "$ANSWER"
while [ "$1" = record-end ] && [ -e "$HOLD" ]; do sleep 0.1; done
exit 0
""",
}
SCRIPT = """
command=(train) record=() again=(again) program='' alone='' log_dir='' min_nodes=1 threads='' me=test stop=''
source "$RANKS_SH"
"""


OUTSIDE = ("PATH", "HOME", "LANG", "TMPDIR")
"""What the scripts have of the environment of the tests, which may run in a Slurm job."""


class Script:
    """ranks.sh in a job of three nodes of a rank each, in which mpirun ends once with `code`."""

    def __init__(self, folder: Path, code: int, **env: str) -> None:
        self._folder = folder
        folder.mkdir()
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
        more = {"RANKS_SH": str(REPOSITORY / "slurm/ranks.sh"), "PATH": f"{folder}:{os.environ['PATH']}"}
        outside = {name: os.environ[name] for name in OUTSIDE if name in os.environ}
        self._env = {**outside, "REQUEUE": "0", **slurm, **files, **more, **env}
        self.process: subprocess.Popen[str]

    def answers(self, text: str) -> None:
        """What next-run prints."""
        (self._folder / "answer").write_text(text)

    def start(self) -> None:
        self.process = subprocess.Popen(
            ["bash", "-c", SCRIPT], env=self._env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def ends(self) -> tuple[int, str]:
        """Its exit code, and what it printed."""
        out, _ = self.process.communicate(timeout=LIMIT_SECS)
        return self.process.returncode, out

    def calls(self, begin: str) -> list[str]:
        return [line for line in (self._folder / "calls").read_text().splitlines() if line.startswith(begin)]

    def left(self, *command: str) -> list[psutil.Process]:
        """What still runs of it, or of this command in it."""
        mark = str(self._folder / "calls")
        found = []
        for process in psutil.process_iter():
            try:
                own = process.environ().get("CALLS") == mark and process.status() != psutil.STATUS_ZOMBIE
                if own and (not command or process.cmdline() == [*command]):
                    found.append(process)
            except psutil.Error:
                continue
        return found


MakeScript = Callable[..., Script]


@pytest.fixture
def make_script(tmp_path: Path) -> Iterator[MakeScript]:
    """Makes scripts, of which nothing is left after the test."""
    made: list[Script] = []

    def make(code: int, **env: str) -> Script:
        made.append(Script(tmp_path / str(len(made)), code, **env))
        return made[-1]

    yield make
    for process in [process for script in made for process in script.left()]:
        process.kill()


@pytest.mark.parametrize(
    ("number", "code", "requeue"),
    [(signal.SIGUSR1, 137, "0"), (signal.SIGTERM, 137, "0"), (signal.SIGTERM, 205, "1")],
)
def test_a_signal_that_comes_while_nodes_are_asked_is_noticed(
    make_script: MakeScript, number: signal.Signals, code: int, requeue: str
) -> None:
    script = make_script(code, STUCK="n2", REQUEUE=requeue)
    script.start()
    wait_for(lambda: len(script.calls("srun ")) == 3, "three questions")
    script.process.send_signal(number)
    assert script.ends() == (code, "")
    assert not script.calls("hpc-train next-run"), "which would count the run"
    assert len(script.calls("hpc-train record-end")) == 1
    assert not script.calls("scontrol requeue"), "who sends TERM wants it to end"
    wait_for(lambda: not script.left(), lambda: f"the end of {script.left()}")


def test_the_batch_node_is_watched_after_a_question_was_ended(make_script: MakeScript, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    script = make_script(137, STUCK="n2", SLURMD_NODENAME="n1", HOLD=str(hold))
    script.start()
    wait_for(lambda: script.left("sleep", ASKED) and script.left("sleep", WATCHING), "the questions and the watcher")
    script.process.send_signal(signal.SIGUSR1)
    wait_for(lambda: script.calls("hpc-train record-end") and not script.left("sleep", ASKED), "the questions' end")
    assert script.left("sleep", WATCHING)
    hold.unlink()
    assert script.ends()[0] == 137


def test_the_ranks_go_on_where_next_run_says(make_script: MakeScript) -> None:
    script = make_script(205)
    script.answers("run n1 n3\nn2 is down, 2 ranks on 2 nodes: n1, n3\n")
    script.start()
    assert script.ends() == (0, "test: the ranks are started again: n2 is down, 2 ranks on 2 nodes: n1, n3\n")
    (asked,) = script.calls("hpc-train next-run")
    assert "--allocated n1 n2 n3 --used n1 n2 n3 --answering n" in asked and "--code 205" in asked
    first, second = (call for call in script.calls("mpirun") if "-np" in call)
    assert "--host" not in first and "-np 2 --host n1:1,n3:1" in second


@pytest.mark.parametrize(
    ("code", "requeue", "requeued"),
    [(137, "1", True), (6, "1", True), (1, "1", False), (17, "1", False), (137, "0", False)],
)
def test_without_an_answer_of_next_run_the_job_is_requeued(
    make_script: MakeScript, code: int, requeue: str, requeued: bool
) -> None:
    script = make_script(code, REQUEUE=requeue)
    script.answers("")
    script.start()
    ended, out = script.ends()
    assert out.startswith("test: cannot find out on which nodes to go on: hpc-train next-run has not answered\n")
    assert bool(script.calls("scontrol requeue 7")) == requeued
    assert ended == (8 if requeued else code), "Slurm refuses it here"


def test_the_first_start_with_spare_nodes_leaves_out_slow_ones(make_script: MakeScript) -> None:
    for answer, hosts in {
        "run n1 n3\nn2 is slow, 2 ranks on 2 nodes: n1, n3": "n1:1,n3:1",
        "": "n1:1,n2:1",
        "end\n": "n1:1,n2:1",
    }.items():
        script = make_script(0, spare_nodes="1")
        script.answers(answer)
        script.start()
        assert script.ends() == (0, "test: n2 is slow, 2 ranks on 2 nodes: n1, n3\n" if "slow" in answer else "")
        (asked,) = script.calls("hpc-train next-run")
        assert "--answering n1 n2 n3 --states  " in asked + "  " and "--code" not in asked
        assert f"-np 2 --host {hosts}" in script.calls("mpirun -np")[0]
        assert not script.calls("srun")
