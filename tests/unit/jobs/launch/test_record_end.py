"""What hpc-train record-end notes of a Slurm job's end, and when it says that starting it again leads nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpc_train.cli.app import app
from hpc_train.jobdir.paths import REQUEUES_FILE
from hpc_train.jobs.launch.error_excerpt import RunOutput
from hpc_train.jobs.launch.progress_check import CutRun, idle_runs
from hpc_train.jobs.launch.record_end import (
    Requeue,
    find_job_dir,
    newest_step,
    record_begin,
    record_end,
)


@pytest.fixture
def job_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a job that has run for a minute."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    write_status(tmp_path / "run", "running")
    return tmp_path / "run"


def write_status(job_dir: Path, state: str, **more: Any) -> None:
    fields = {"state": state, "step": 7, "started": time.time() - 60, **more}
    (job_dir / "status.json").write_text(json.dumps(fields))


def status(job_dir: Path) -> dict[str, Any]:
    return dict(json.loads((job_dir / "status.json").read_text()))


def runs(*saved: bool, step: int | None = 40) -> list[CutRun]:
    return [CutRun("7", step, one) for one in saved]


@pytest.mark.parametrize(
    ("past", "restarts", "idle"),
    [
        (runs(True), 0, 0),
        (runs(True, False), 1, 1),
        (runs(True, False, False, False), 3, 3),
        (runs(False, False, True), 2, 0),
        (runs(False), 5, 1),
        ([], 0, 1),
        ([], 2, 3),
        (runs(False, step=None), 2, 3),
    ],
)
def test_runs_that_saved_nothing_are_counted_from_the_last(past: list[CutRun], restarts: int, idle: int) -> None:
    assert idle_runs(past, restarts) == idle


def cut_run(job_dir: Path, why: Requeue = "warning") -> int:
    """record_end of a run that is cut; the next one begins."""
    code = record_end(job_dir, 3, why)
    begin_next_run()
    return code


def begin_next_run() -> None:
    os.environ["SLURM_RESTART_COUNT"] = str(int(os.environ["SLURM_RESTART_COUNT"]) + 1)


@pytest.mark.parametrize("state", ["running", "requeued"])
def test_what_killed_ranks_left_becomes_failed(job_dir: Path, state: str) -> None:
    write_status(job_dir, state)
    assert record_end(job_dir, 137, None) == 0
    message = "the ranks ended with code 137 (killed by SIGKILL)"
    assert status(job_dir)["state"] == "failed"
    assert status(job_dir)["error"] == {"rank": None, "message": message, "signal": "SIGKILL"}
    assert status(job_dir)["step"] == 7, "the rest stays"
    assert status(job_dir)["updated"] == pytest.approx(time.time(), abs=600)


@pytest.mark.parametrize("state", ["succeeded", "stopped", "failed"])
def test_what_the_job_has_said_of_its_end_stays(job_dir: Path, state: str) -> None:
    write_status(job_dir, state, error={"rank": 1, "message": "mine"})
    before = status(job_dir)
    assert record_end(job_dir, 137, None) == 0
    assert status(job_dir) == before


def test_a_job_that_was_refused_touches_nothing(job_dir: Path) -> None:
    """With code 2 the job-dir may be that of another job, which runs."""
    before = status(job_dir)
    assert record_end(job_dir, 2, None) == 0
    assert record_end(job_dir, 2, "preemption") == 0
    assert status(job_dir) == before


def test_requeued_and_not_requeued(job_dir: Path) -> None:
    assert record_end(job_dir, 3, "preemption") == 0
    assert status(job_dir)["state"] == "requeued"
    assert not (job_dir / REQUEUES_FILE).exists(), "preemption is not the job's fault"
    assert record_end(job_dir, 8, None) == 0
    assert status(job_dir)["state"] == "stopped"
    assert "could not be put back" in status(job_dir)["error"]["message"]


def test_the_first_run_of_a_job_may_go_on_from_checkpoints_of_another(
    job_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = job_dir / "checkpoints/step-00000040"
    old.mkdir()
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    assert [cut_run(job_dir) for _ in range(3)] == [0, 0, 8]
    assert "3 runs in a row have saved no checkpoint newer than step 40" in capsys.readouterr().out
    assert status(job_dir)["state"] == "stopped"


def test_progress_and_another_job_begin_the_count_anew(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job_dir / "checkpoints/step-00000040").mkdir()
    assert [cut_run(job_dir) for _ in range(3)] == [0, 0, 0], "the first of them saved it"
    (job_dir / "checkpoints/step-00000050").mkdir()
    assert [cut_run(job_dir, "lost-node") for _ in range(3)] == [0, 0, 0]
    assert cut_run(job_dir) == 8
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert cut_run(job_dir) == 0


def test_a_line_that_a_full_disk_has_cut_off_is_passed_over(job_dir: Path) -> None:
    (job_dir / "logs").mkdir()
    (job_dir / REQUEUES_FILE).write_text('{"job": "7", "st\n{"job": "7"}\n[]\n')
    (job_dir / "checkpoints/step-00000040").mkdir()
    assert record_end(job_dir, 3, "warning") == 0


def test_only_whole_checkpoints_have_steps(job_dir: Path) -> None:
    for name in ("step-00000010", "step-00000020.damaged", ".step-00000030.host-1.tmp"):
        (job_dir / "checkpoints" / name).mkdir()
    assert newest_step(job_dir) == 10
    assert newest_step(job_dir / "absent") is None


def test_nothing_is_made_where_there_is_no_job_dir(job_dir: Path) -> None:
    absent = job_dir / "absent"
    for code, requeue in ((137, None), (3, "preemption"), (3, "warning"), (8, None)):
        assert record_end(absent, code, requeue) == 0  # type: ignore[arg-type]
        assert record_end(None, code, requeue) == 0  # type: ignore[arg-type]
    assert not absent.exists()


def test_a_disk_that_takes_nothing_is_no_error(job_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpc_train.files.os.replace", full)
    monkeypatch.setattr(Path, "mkdir", full)
    assert record_end(job_dir, 137, None) == 0
    assert record_end(job_dir, 3, "warning") == 0
    assert status(job_dir)["state"] == "running"


def test_the_job_dir_is_that_of_train(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    assert find_job_dir(file, Path("a/b")) == Path("a/b")
    assert find_job_dir(file, None) is None, "there is no such file"
    assert find_job_dir(file, None, ["train.max_steps=3", "name=b"]) == Path("runs/b")
    for text, expected in (
        ("name: a_1\n", Path("runs/a_1")),
        ("name: ../a\n", None),
        ("- name\n", None),
        ("a: [", None),
    ):
        file.write_text(text)
        assert find_job_dir(file, None) == expected


@pytest.fixture
def submitted(job_dir: Path) -> Path:
    """The job-dir of a submission that has been queued and has not begun."""
    (job_dir / "submission.json").write_text(json.dumps({"token": "mine"}))
    (job_dir / "status.json").write_text(json.dumps({"state": "queued"}))
    return job_dir


def test_a_submitted_job_that_was_refused_has_failed(submitted: Path) -> None:
    log = submitted / "job.out"
    log.write_text("of a run before\nhpc-train: error: old\n")
    begin = log.stat().st_size
    with open(log, "a") as file:
        file.write("hpc-train: error: job.yaml: line 3: `trian`: no such key\nhpc-train: error: `train`: missing\n")
    assert record_end(submitted, 2, None, "mine", printed=RunOutput(log, begin)) == 0
    found = status(submitted)
    assert (found["state"], found["exit_code"], found["job_id"], found["requeues"]) == ("failed", 2, "7", 0)
    assert found["error"]["message"] == "job.yaml: line 3: `trian`: no such key"
    assert len(found["error"]["lines"]) == 2


def test_the_job_dir_of_another_submission_is_left_alone(submitted: Path) -> None:
    before = status(submitted)
    record_begin(submitted, "theirs", 1, 1)
    for code, requeue in ((2, None), (137, None), (3, "preemption"), (8, None)):
        assert record_end(submitted, code, requeue, "theirs") == 0  # type: ignore[arg-type]
    assert status(submitted) == before


def test_of_a_submission_every_end_has_its_code(submitted: Path) -> None:
    ours = {"job_id": "7", "requeues": 0}
    write_status(submitted, "failed", error={"rank": 1, "message": "mine"}, **ours)
    record_end(submitted, 7, None, "mine")
    assert status(submitted)["exit_code"] == 7
    assert status(submitted)["error"] == {"rank": 1, "message": "mine"}

    write_status(submitted, "succeeded", job_id="6", requeues=0)  # the submission before, which `resume` followed
    record_end(submitted, 137, None, "mine")
    assert (status(submitted)["state"], status(submitted)["exit_code"]) == ("failed", 137)


@pytest.mark.parametrize("said", ["running", "requeued", "stopped", "failed"])
def test_a_cancelled_job_has_its_code_and_no_error(submitted: Path, said: str) -> None:
    write_status(submitted, said, error={"rank": 1, "message": "killed"}, job_id="7", requeues=0)
    assert record_end(submitted, 143, None, "mine", cancelled=True) == 0
    found = status(submitted)
    assert (found["state"], found["exit_code"], found["step"]) == ("cancelled", 143, 7)
    assert "error" not in found


def test_what_cancelling_leaves_alone(submitted: Path) -> None:
    before = status(submitted)
    assert record_end(submitted, 143, None, "theirs", cancelled=True) == 0
    assert status(submitted) == before
    write_status(submitted, "succeeded", job_id="7", requeues=0)
    record_end(submitted, 143, None, "mine", cancelled=True)
    assert status(submitted)["state"] == "succeeded"


def test_cancelled_before_it_said_anything(submitted: Path) -> None:
    record_end(submitted, 3, None, "mine", True, cancelled=True)
    found = status(submitted)
    assert (found["state"], found["exit_code"], found["job_id"], found["program"]) == ("cancelled", 3, "7", True)


@pytest.mark.parametrize(("said", "state"), [("running", "cancelled"), ("failed", "failed")])
def test_of_a_job_by_hand_an_end_that_it_has_said_stays(job_dir: Path, said: str, state: str) -> None:
    write_status(job_dir, said)
    record_end(job_dir, 143, None, cancelled=True)
    assert status(job_dir)["state"] == state


@pytest.mark.parametrize("code", ["-1", "256"])
def test_codes_that_are_none(submitted: Path, code: str) -> None:
    before = status(submitted)
    words = ["record-end", "--code", code, "--job-dir", str(submitted), "--submission", "mine"]
    assert CliRunner().invoke(app, words).exit_code == 2
    assert status(submitted) == before


def test_the_command_says_that_it_was_cancelled(submitted: Path) -> None:
    words = ["record-end", "--code", "143", "--cancelled", "--job-dir", str(submitted), "--submission", "mine"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (status(submitted)["state"], status(submitted)["exit_code"]) == ("cancelled", 143)


PROGRAM_OUTPUT = """\
Traceback (most recent call last):
  File "task.py", line 3, in <module>
    raise ValueError("boom\\nand more")
ValueError: boom
and more
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[27379,1],11]
  Exit code:    1
--------------------------------------------------------------------------
"""


def test_a_program_from_its_beginning_to_its_failure(submitted: Path) -> None:
    record_begin(submitted, "mine", 12, 5)
    begun = status(submitted)
    assert {name: begun[name] for name in ("state", "program", "ranks", "restarts", "requeues", "job_id", "pid")} == {
        **{"state": "running", "program": True, "ranks": 12, "restarts": 0, "requeues": 0, "job_id": "7", "pid": 5}
    }
    log = submitted / "job.out"
    log.write_text(PROGRAM_OUTPUT)
    record_end(submitted, 1, None, "mine", True, RunOutput(log))
    found = status(submitted)
    assert (found["state"], found["exit_code"], found["started"]) == ("failed", 1, begun["started"])
    assert (found["error"]["rank"], found["error"]["message"]) == (11, "ValueError: boom")
    assert found["error"]["lines"] == PROGRAM_OUTPUT.splitlines()[:5]


def test_a_program_succeeds_or_stops_by_its_code(submitted: Path) -> None:
    for code, state in ((0, "succeeded"), (3, "stopped"), (143, "failed")):
        record_begin(submitted, "mine", 1, 5)
        record_end(submitted, code, None, "mine", True)
        assert (status(submitted)["state"], status(submitted)["exit_code"]) == (state, code)
    assert status(submitted)["error"]["rank"] == 0, "there is no other"


def test_a_program_that_leaves_no_new_file_in_three_runs_is_not_started_again(
    submitted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(requeues: int, writes: str = "") -> int:
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(requeues))
        record_begin(submitted, "mine", 1, 5)
        if writes:
            (submitted / writes).parent.mkdir(exist_ok=True)
            (submitted / writes).write_text("x")
        time.sleep(0.01)
        return record_end(submitted, 138, "warning", "mine", True)

    assert [run(0, "state/model.pkl"), run(1), run(2, "logs/mine.txt")] == [0, 0, 0], "logs/ does not count"
    assert run(3, "job.sh") == 8
    assert "3 runs in a row have written nothing into" in capsys.readouterr().out
    assert (status(submitted)["state"], status(submitted)["exit_code"]) == ("stopped", 8)
    assert run(4, "state/model.pkl") == 0
    assert status(submitted)["state"] == "requeued"
    assert "exit_code" not in status(submitted), "it has not ended"


def test_files_of_preempted_runs_count(submitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (submitted / "model.pkl").write_text("x")
    os.utime(submitted / "model.pkl", (time.time() - 60, time.time() - 60))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "6")
    record_begin(submitted, "mine", 1, 5)
    assert record_end(submitted, 138, "warning", "mine", True) == 0, "the first idle run"


def test_the_command_takes_the_arguments_of_train_and_starts_fast(job_dir: Path) -> None:
    """It runs in the seconds before Slurm kills the job: without TensorFlow, and pydantic's models of job files."""
    (job_dir.parent / "job.yaml").write_text("name: run\n")
    (job_dir.parent / "runs").symlink_to(job_dir.parent)
    program = (
        "import sys; from hpc_train.cli.app import app; code = 0\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        "slow = {'tensorflow', 'keras', 'numpy', 'h5py', 'mpi4py', 'hpc_train.config.job'} & set(sys.modules)\n"
        "assert not slow, slow\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "record-end", "--code", "137", "job.yaml", "--unknown", "x"]
    done = subprocess.run(command, cwd=job_dir.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert status(job_dir)["state"] == "failed"


def ask_next_run(*words: str) -> list[str]:
    sizes = ["--nodes=2", "--min-nodes=1", "--ranks-per-node=1", "--allocated=n1 n2", "--used=n1 n2"]
    done = CliRunner().invoke(app, ["next-run", *sizes, "--log-from", "7", *words])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_the_next_run_is_noted(job_dir: Path) -> None:
    words = ("--code=205", "--answering=n1\n", "--states=n1=mixed n2=down*", "job.yaml", "--job-dir", str(job_dir))
    assert ask_next_run(*words) == ["run n1", "n2 is down, 1 rank on 1 node: n1"]
    assert status(job_dir)["state"] == "requeued"
    begin_next_run()
    assert ask_next_run(*words)[0] == "run n1"
    begin_next_run()
    assert ask_next_run(*words)[0] == "stop", "three runs have saved nothing"
    assert (status(job_dir)["state"], status(job_dir)["exit_code"]) == ("stopped", 8)


def test_a_run_is_counted_once(job_dir: Path) -> None:
    """Where a signal comes when next-run has just noted it, the job is requeued."""
    for idle in range(3):
        said = ask_next_run("--code=205", "--answering=n1", "job.yaml", "--job-dir", str(job_dir))
        assert said[0] == ("run n1" if idle < 2 else "stop")
        assert record_end(job_dir, 205, "lost-node") == (0 if idle < 2 else 8)
        assert len((job_dir / REQUEUES_FILE).read_text().splitlines()) == idle + 1
        begin_next_run()


def test_a_requeue_is_left_to_record_end(job_dir: Path) -> None:
    words = ("--code=205", "--answering=", "job.yaml", "--job-dir", str(job_dir))
    assert ask_next_run(*words)[0] == "requeue"
    assert status(job_dir)["state"] == "running"
    assert not (job_dir / REQUEUES_FILE).exists()


def test_a_job_without_a_job_dir_is_not_started_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    said = []
    for restarts in range(4):
        monkeypatch.setenv("HPC_TRAIN_RESTARTS", str(restarts))
        words = ["--code=132", "--answering=n1 n2", "--job-dir", str(tmp_path / "none")]
        said.append(ask_next_run(*words)[0].split()[0])
    assert said == ["run", "run", "stop", "stop"]


def test_a_mesh_is_not_started_on_too_few_ranks(job_dir: Path) -> None:
    shards = "{shards: x, features: x, label: y, batch_size: 8}"
    text = f"name: a\nmodel: m.py:b\ndata: {{train: {shards}, eval: {shards}}}\n"
    job_file = job_dir / "job.yaml"
    job_file.write_text(text + "run: {mesh: {model: 2}}\ntrain: {max_steps: 5}\n")
    words = ("--code=205", "--answering=n1", str(job_file), "--job-dir", str(job_dir))
    assert ask_next_run(*words)[0] == "requeue"
    assert ask_next_run("--code=205", "--answering=n1 n2", *words[2:])[0] == "run n1 n2"
