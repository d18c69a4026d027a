"""Jobs from Python, for this machine's queue and for a scheduler that is registered by one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpc_train as ht
from hpc_train.cli.app import app
from hpc_train.jobs.inspect import inspect_jobs
from hpc_train.jobs.record.job_dirs import name_at
from hpc_train.jobs.schedulers import SCHEDULERS, scheduler
from hpc_train.outcome import EXIT_CANCELLED
from tests.support import REPOSITORY

PROGRAM = """\
import argparse, sys, time
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--until")
parser.add_argument("--fail", action="store_true")
parser.add_argument("--job-dir", type=Path)
args = parser.parse_args()
print("begins")
while args.until is not None and not (args.job_dir / args.until).exists():
    time.sleep(0.05)
print("ends")
if args.fail:
    raise ValueError("no such data")
"""
UNTIL_GO = ["args=[--until, go]"]


@pytest.fixture(params=["local", "in_process"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Chosen by the environment, as a user may do."""
    monkeypatch.setitem(SCHEDULERS, "in_process", "tests.unit.jobs.schedulers.in_process:InProcessScheduler")
    for name, value in {
        "HPC_TRAIN_BACKEND": request.param,
        "HPC_TRAIN_ROOT": str(tmp_path / "runs"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PYTHONPATH": str(REPOSITORY),
    }.items():
        monkeypatch.setenv(name, value)
    return str(request.param)


@pytest.fixture
def job_file(tmp_path: Path, backend: str) -> Iterator[Path]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/task.py").write_text(PROGRAM)
    text = "name: tiny\nmodule: task\nresources: {tier: CUSTOM}\n"
    (tmp_path / "code/job.yaml").write_text(text)
    yield tmp_path / "code/job.yaml"
    for folder in (tmp_path / "runs").glob("*"):
        ht.Job(folder).cancel()


def begun(job: ht.Job) -> None:
    """Waits until it prints."""
    for line in job.logs(follow=True):
        if line == "begins":
            return
    raise AssertionError(f"it has not begun: {job.status()}")


def test_a_job_that_succeeds(job_file: Path, backend: str, tmp_path: Path) -> None:
    job = ht.submit(job_file, name="first", settings=UNTIL_GO)
    assert (job.name, job.job_dir, repr(job)) == ("first", tmp_path / "runs/first", f"Job({str(job.job_dir)!r})")
    begun(job)
    status = job.status()
    assert (status.name, status.backend, status.exit_code, status.ranks) == ("first", backend, None, 1)
    assert status.state in ("PREPARING", "RUNNING")
    number = status.job_id
    assert number is not None
    assert [ht.Job.find(way).job_dir for way in ("first", number, job.job_dir)] == [job.job_dir] * 3
    assert ht.Job.find("first", root=tmp_path / "runs").job_dir == job.job_dir
    with pytest.raises(TimeoutError, match=r"first is \w+ after 0 s; it goes on"):
        job.wait(timeout_secs=0)
    with pytest.raises(ht.UserError, match="only a job that has ended can be resumed"):
        job.resume()

    (job.job_dir / "go").touch()

    assert job.wait().state == "SUCCEEDED"
    assert job.result() == ({}, [])
    assert list(job.logs(follow=True))[-2:] == list(job.logs(tail=2))
    assert [line for line in job.logs() if line in ("begins", "ends")] == ["begins", "ends"]
    with pytest.raises(ht.UserError, match="1 is not allowed; first has the ranks 0 to 0"):
        job.logs(rank=1)
    assert list(job.logs(rank=0)) == list(job.logs())
    assert job.cancel().ended == "SUCCEEDED"


def test_a_job_that_fails_and_what_waits_for_it(job_file: Path, backend: str, tmp_path: Path) -> None:
    job = ht.submit(job_file, job_dir=tmp_path / "runs/failing", settings=["args=[--until, go, --fail]"])
    follower = ht.submit(job_file, name="follower", after=job)
    waiting = follower.status()
    assert (waiting.state, (waiting.reason or "").startswith("Dependency")) == ("QUEUED", True)

    (job.job_dir / "go").touch()

    with pytest.raises(ht.JobEndedError, match=rf"failing: FAILED: .*; exit code 1; .* {job.job_dir}/logs/job.out"):
        job.result()
    status = job.status()
    assert (status.exit_code, "ValueError: no such data" in (status.error or {})["lines"]) == (1, True)
    with pytest.raises(ht.JobEndedError) as caught:
        follower.result()
    assert caught.value.code == EXIT_CANCELLED
    with pytest.raises(ht.UserError, match="--after: failing has ended as FAILED"):
        ht.submit(job_file, after="failing")
    states = {found.name: found.state for found in inspect_jobs(sorted((tmp_path / "runs").iterdir()))}
    assert states == {"failing": "FAILED", "follower": "CANCELLED"}


def test_a_job_that_is_cancelled_and_goes_on(job_file: Path, backend: str) -> None:
    job = ht.submit(job_file, name="cancelled", settings=UNTIL_GO)
    begun(job)

    done = job.cancel()

    assert (done.before.state in ("PREPARING", "RUNNING"), done.ended, done.saves) == (True, None, False)
    assert job.wait().state == "CANCELLED"
    with pytest.raises(ht.JobEndedError, match="cancelled: CANCELLED: cancelled by ") as caught:
        job.result()
    assert caught.value.code == EXIT_CANCELLED

    (job.job_dir / "go").touch()
    again = job.resume()
    assert again.job_dir == job.job_dir
    assert again.result().metrics == {}
    printed = [line for line in job.logs() if line in ("begins", "ends")]
    assert printed == ["begins", "begins", "ends"]


def test_the_commands_know_each_scheduler(job_file: Path, backend: str) -> None:
    def run(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, list(map(str, words)))
        return done.exit_code, re.sub(" +\n", "\n", done.output)

    words = scheduler(backend).words
    code, submitted = run("submit", job_file, "--name", "typed", "--set", UNTIL_GO[0])
    found = re.match(rf"submitted typed: {words} (\d+), CUSTOM: 1 node, 1 rank\n", submitted)
    assert found is not None, submitted
    number = found[1]
    begun(ht.Job.find("typed"))
    assert f"queue      {words} {number}\n" in run("describe", "typed")[1]
    assert re.search(rf"(?m)^typed +{number} +(RUNNING|PREPARING)", run("list")[1])
    assert re.fullmatch(r"typed: cancelled \(it was (RUNNING|PREPARING)\)\n", run("cancel", number)[1])
    assert run("wait", "typed")[0] == EXIT_CANCELLED
    assert run("cancel", "typed")[1] == "typed: nothing to cancel: CANCELLED\n"
    (ht.Job.find("typed").job_dir / "go").touch()
    code, printed = run("resume", number, "--wait")
    assert (code, "begins\nends\n" in printed, "hpc-train: typed: SUCCEEDED\n" in printed) == (0, True, True)
    assert run("logs", "typed", "-n", 1)[1] in printed
    code, script = run("submit", job_file, "--dry-run")
    assert (code, "-m task" in script) == (0, True)


def test_what_is_wrong_is_said_at_once_and_leaves_nothing(job_file: Path, backend: str, tmp_path: Path) -> None:
    with pytest.raises(ht.UserError) as caught:
        ht.submit(job_file, name="1st", settings=["module=nowhere"], after="nobody")
    for part in ("'1st' is not allowed", "there is no module nowhere", "nobody: no such job"):
        assert part in str(caught.value)
    with pytest.raises(ht.UserError, match="backend: 'pbs' is not allowed; allowed: slurm, local, in_process"):
        ht.submit(job_file, backend="pbs")
    with pytest.raises(ht.UserError, match="nobody: no such job"):
        ht.Job.find("nobody")
    if backend == "in_process":
        with pytest.raises(ht.UserError, match="resources: nodes x ranks_per_node: 2 ranks wanted, but one is all"):
            ht.submit(job_file, settings=["resources.nodes=2"])
    assert not (tmp_path / "runs").exists()


def test_the_result_of_a_model_has_its_last_evaluation_and_exports(job_file: Path, backend: str) -> None:
    job = ht.submit(job_file, name="model")
    job.wait()
    status = json.loads((job.job_dir / "status.json").read_text())
    status |= {"step": 20, "evaluation": {"step": 20, "accuracy": 0.5}, "exports": ["/runs/model/export/final/1"]}
    (job.job_dir / "status.json").write_text(json.dumps(status))
    metrics, exports = job.result()
    assert (metrics, exports) == ({"accuracy": 0.5, "global_step": 20}, [Path("/runs/model/export/final/1")])


def test_jobs_are_imported_without_what_takes_long() -> None:
    code = "import sys, hpc_train; hpc_train.Job, hpc_train.submit; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for heavy in ("tensorflow", "numpy", "mpi4py", "h5py", "pydantic", "yaml"):
        assert f"'{heavy}'" not in done.stdout


def test_jobs_of_one_second_have_names_of_their_own(job_file: Path, backend: str, tmp_path: Path) -> None:
    now = time.time()
    others = [name_at("tiny", now + secs) for secs in range(3600)]
    for name in others:
        (tmp_path / "runs" / name).mkdir(parents=True)
    job = ht.submit(job_file, settings=UNTIL_GO)
    assert re.fullmatch(r"tiny_\d{8}_\d{6}", job.name) and job.name not in others
