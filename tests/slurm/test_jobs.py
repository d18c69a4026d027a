"""The life of jobs from `hpc-train submit` to their ends, the same on a Slurm of two nodes and in this machine's queue.

Most of the jobs are a program that starts in no time; one has a model. Where a job has to wait for Slurm, which starts
one again after 15 s, others go on meanwhile.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.back_ends import BackEnd, Submitted, make_program
from tests.slurm.cluster import SlurmCluster, missing_requirements
from tests.slurm.jobs import (
    MODEL,
    make_folder,
    newest_step,
    not_here,
    set_step_secs,
    starts,
    write_job,
)
from tests.support import is_gone, wait_for

FOREVER = ("--until", "{job_dir}/go")

FAILING_MODEL = "import os\n" + MODEL.replace(
    "    def wait(self):\n",
    """\
    def wait(self):
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1" and Path(__file__).with_name("fail").exists():
            raise RuntimeError("no such luck")
""",
)


@pytest.fixture(scope="module", params=["slurm", "local"])
def back_end(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackEnd]:
    """Each in turn, with all that is left of its jobs cancelled at the end."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "local":
        with BackEnd(folder, None) as found:
            yield found
        return
    if (reason := missing_requirements()) is not None:
        not_here(reason)
    with SlurmCluster() as cluster, BackEnd(folder, cluster) as found:
        yield found


@pytest.fixture(autouse=True)
def _leaves_no_jobs(back_end: BackEnd) -> Iterator[None]:
    """A test that fails leaves no job behind that would hold cores, for which the next ones wait."""
    before = len(back_end.submitted)
    yield
    back_end.cancel_all(back_end.submitted[before:])


def test_a_job_from_its_submission_to_its_output(back_end: BackEnd) -> None:
    job_file = make_program(back_end.code / "first", name="first", ranks_per_node=2, time="00:30:00")

    told = back_end.run("submit", job_file).out.splitlines()

    queue = "Slurm" if back_end.cluster is not None else "local"
    first = re.fullmatch(rf"submitted (first_\d{{8}}_\d{{6}}): {queue} job (\d+), CUSTOM: 1 node, 2 ranks, .*", told[0])
    assert first is not None, told
    name, number = first.groups()
    job = back_end.job(name, number)
    verbs = ("describe", "logs -f", "cancel")
    assert told[1:] == [
        f"job-dir {job.job_dir}",
        f"relative paths of the program, such as ./checkpoints, are below {job.job_dir}/code",
        "next: " + " │ ".join(f"hpc-train {verb} {name}" for verb in verbs),
    ]

    followed = back_end.run("logs", "-f", name)
    assert {"rank 0 of 2 says one", "rank 1 of 2 says one"} <= set(followed.out.splitlines())
    assert back_end.run("wait", number).err == f"hpc-train: {name}: SUCCEEDED\n"
    job.ends.append("SUCCEEDED")
    assert back_end.run("logs", number).out == job.log() == followed.out
    assert back_end.run("logs", job.job_dir, "--rank", 1).out == "rank 1 of 2 says one\n"
    assert back_end.run("logs", name, "--tail", 1).out == job.log().splitlines(keepends=True)[-1]
    assert back_end.run("logs", name, "--rank", 1, "--json").json() == [
        {"text": "rank 1 of 2 says one", "rank": 1, "stream": "stdout"}
    ]
    assert "--rank: 2 is not allowed" in back_end.run("logs", name, "--rank", 2, code=2).err
    described = re.split(" *\n", back_end.run("describe", job.job_dir).out)
    assert described[:2] == [f"name       {name}", "state      SUCCEEDED"]
    assert f"queue      {queue} job {number}" in described
    header, *rows = back_end.run("list").out.splitlines()
    assert header.split()[:3] == ["name", "number", "state"]
    assert [row.split()[:3] for row in rows if name in row] == [[name, number, "SUCCEEDED"]]
    assert back_end.run("cancel", name).out == f"{name}: nothing to cancel: SUCCEEDED\n"

    back_end.run("bundle", name, "--no-doctor", "--out", "bundle.tar.gz")
    with tarfile.open(back_end.folder / "bundle.tar.gz") as bundle:
        assert f"{name}/job/logs/job.out" in bundle.getnames()
        if back_end.cluster is not None:
            told_by_slurm = bundle.extractfile(f"{name}/slurm/job.txt")
            assert told_by_slurm is not None and f"JobId={number} " in told_by_slurm.read().decode()

    (listed,) = [status for status in back_end.run("list", "--json").json() if status["name"] == name]
    assert listed == job.status()
    assert (listed["state"], listed["exit_code"], listed["job_id"], listed["ranks"]) == ("SUCCEEDED", 0, number, 2)
    assert (listed["backend"], listed["kind"], listed["tier"]) == (back_end.name, "program", "CUSTOM")
    assert listed["submitted"] <= listed["started"] <= listed["updated"]
    assert back_end.run("cancel", name, "--json").json()[0]["cancelled"] is False


def test_a_queued_job_says_why_and_keeps_the_code_that_was_submitted(back_end: BackEnd) -> None:
    holder = back_end.submit("holder", *FOREVER, **back_end.all_cores)
    holder.wait_until_it_says("rank 0 of")
    waiting = back_end.submit("waiting", word="the old word")
    follower = back_end.submit("follower", after="waiting")
    unwanted = back_end.submit("unwanted")

    status = waiting.status()
    assert status["state"] == "QUEUED"
    assert re.match("Resources|Priority", status["reason"]), status
    assert follower.status()["reason"].startswith("Dependency")
    queued = back_end.run("list", "--state", "queued").out.splitlines()[1:]
    assert [row.split()[0] for row in queued] == ["follower", "unwanted", "waiting"]
    told = back_end.run("logs", "waiting")
    assert (told.out, told.err.startswith("hpc-train: waiting is QUEUED (")) == ("", True)
    assert back_end.run("cancel", unwanted.number).out == "unwanted: cancelled (it was QUEUED)\n"
    assert unwanted.end() == ("CANCELLED", 11)
    assert "rank 0" not in unwanted.log()

    code = back_end.code / "waiting"
    (code / "trainer/words.py").write_text("WORD = 'the new word'\n")
    shutil.rmtree(code / "trainer")
    (code / "job.yaml").write_text("")
    holder.let_go()
    assert holder.end() == ("SUCCEEDED", 0)
    assert follower.end() == ("SUCCEEDED", 0)
    assert waiting.log().splitlines()[-1] == "rank 0 of 1 says the old word"
    assert follower.status()["started"] >= waiting.status()["updated"]


def test_a_failure_names_the_rank_and_its_error_and_takes_along_what_waits_for_it(back_end: BackEnd) -> None:
    job = back_end.submit("failing", *FOREVER, "--fail-on", 1, ranks_per_node=2)
    waiting = back_end.submit("after_failing", after=job.number)
    job.let_go()

    assert job.end() == ("FAILED", 1)
    status = job.status()
    assert (status["error"]["rank"], status["error"]["message"]) == (1, "ValueError: no such data")
    assert '    raise ValueError("no such data")' in status["error"]["lines"]
    described = back_end.run("describe", "failing").out
    assert re.search(r"^error +rank 1: ValueError: no such data *$", described, re.M), described
    assert re.search(r'^ +raise ValueError\("no such data"\)$', described, re.M), described
    listed = back_end.run("list", "--state", "FAILED").out
    assert re.search(rf"^failing +{job.number} +FAILED.* rank 1: ValueError: no such data *$", listed, re.M), listed
    assert "ValueError: no such data" in back_end.run("logs", "failing", "--rank", 1).out

    assert waiting.end() == ("CANCELLED", 11)
    assert "rank 0" not in waiting.log()
    refused = back_end.run("submit", back_end.code / "failing" / "job.yaml", "--after", "failing", code=2)
    assert refused.err == (
        "hpc-train: error: --after: failing has ended as FAILED; resume it first, or leave --after out\n"
    )


def test_submit_wait_shows_the_output_and_exits_as_the_job_does(back_end: BackEnd) -> None:
    job_file = make_program(back_end.code / "awaited", ["--fail-on", 0])
    done = back_end.run("submit", job_file, "--name", "awaited", "--wait", code=1)
    assert "rank 0 of 1 says one\nTraceback (most recent call last):\n" in done.out
    assert "hpc-train: awaited: FAILED" in done.err
    assert (back_end.root / "awaited/trainer").exists() is False


def test_ctrl_c_leaves_the_job_running_and_cancel_ends_all_its_ranks(back_end: BackEnd) -> None:
    job = back_end.submit("cancelled", *FOREVER, ranks_per_node=2, time="00:30:00")
    status = job.wait_for("RUNNING", lambda _: len(job.pids()) == 2)
    assert 0 < status["limit_secs_left"] <= 1800
    with back_end.start("logs", "-f", "cancelled") as shown:
        shown.wait_until_it_says("rank 1 of 2")
        shown.interrupt()
        assert (shown.end().code, shown.end().err) == (130, "hpc-train: stopped showing; cancelled goes on\n")
    assert job.status()["state"] == "RUNNING"
    refused = back_end.run("resume", "cancelled", code=2)
    assert "cancelled: is RUNNING; only a job that has ended can be resumed" in refused.err

    assert back_end.run("cancel", "cancelled").out == "cancelled: cancelled (it was RUNNING)\n"

    assert job.end() == ("CANCELLED", 11)
    assert job.status()["reason"].startswith("cancelled by ")
    wait_for(lambda: all(map(is_gone, job.pids())), "its ranks have ended")
    job.let_go()
    assert job.again().end() == ("SUCCEEDED", 0)
    assert job.log().count("rank 1 of 2 says one\n") == 2
    assert back_end.run("logs", "cancelled", "--rank", 1).out.count("rank 1 of 2 says one\n") == 2


def test_stopped_and_saved_jobs_go_on(back_end: BackEnd) -> None:
    saved = back_end.submit("saved", *FOREVER)
    stopped = back_end.submit("stopped", *FOREVER)

    saved.wait_until_it_says("rank 0 of")
    told = back_end.run("cancel", "saved", "--save", "--json").json()
    assert told == [{"name": "saved", "job_dir": str(saved.job_dir), "was": "RUNNING", "cancelled": True}]
    stopped.wait_until_it_says("rank 0 of")
    stopped.send(signal.SIGTERM)

    assert saved.end() == ("CANCELLED", 11)
    assert stopped.end() in (("STOPPED", 3), ("STOPPED", 4))
    for job in (saved, stopped):
        assert (job.job_dir / "saved-0").exists(), job.log()
        job.let_go()
    after = back_end.submit("after_saved", after=saved.again().number)
    assert stopped.again().end() == ("SUCCEEDED", 0)
    assert after.end() == ("SUCCEEDED", 0)
    assert saved.status()["state"] == "SUCCEEDED"


@pytest.fixture(scope="module")
def requeued(back_end: BackEnd) -> Submitted:
    """A job that has been warned as before its time limit, and is back in the queue, behind one that has ended."""
    job = back_end.submit("requeued", *FOREVER)
    job.wait_until_it_says("rank 0 of")
    holder = back_end.submit("second", *FOREVER, **back_end.all_cores)
    job.send(signal.SIGUSR1)
    holder.wait_for("RUNNING")
    status = job.wait_for("REQUEUED")
    assert (status["requeues"], status["exit_code"]) == (1, None)
    assert status["reason"], "why it waits"
    assert (job.job_dir / "saved-0").exists()
    job.let_go()
    holder.let_go()
    return job


def test_a_job_that_is_requeued_waits_for_its_turn(requeued: Submitted) -> None:
    assert "the job is back in the queue" in requeued.log()


def test_a_model_that_raises_in_a_step_goes_on_once_that_is_mended(back_end: BackEnd, requeued: Submitted) -> None:
    """`requeued`: it waits for Slurm meanwhile."""
    folder = make_folder(back_end.code / "my model")
    (folder / "model.py").write_text(FAILING_MODEL)
    write_job(folder, max_steps=30_000, save_checkpoints_steps=20)
    job = back_end.submit_file(folder / "job.yaml", "trained", "--set", "eval.start_delay_secs=0")
    set_step_secs(job.job_dir / "code", 0.02)

    job.wait_for("PREPARING")
    wait_for(lambda: newest_step(job.job_dir) >= 20, "it saves")
    status = job.wait_for("RUNNING", lambda status: (status["step"] or 0) >= 20 and status["evaluation"])
    assert (status["kind"], status["max_steps"], status["tier"]) == ("model", 30_000, "BASIC")
    assert status["loss"] > 0 and status["examples_per_sec"] > 0 and status["secs_left"] > 10
    assert 0 < status["limit_secs_left"] <= 3600
    described = back_end.run("describe", "trained").out
    for pattern in (
        r"step +[\d,]+/30,000, [\d,.]+ examples/s, loss \d.*",
        r"evaluation +.*accuracy \d.*\(step [\d,]+\)",
        r"time left +about .*\d:\d\d:\d\d",
        r"time limit in +0:\d\d:\d\d",
    ):
        assert re.search(f"^{pattern} *$", described, re.M), described
    listed = back_end.run("list").out
    row = r"^trained +\d+ +RUNNING +[\d,]+/30,000 +[\d,]+ +\d\S* +accuracy \d\S* +\d+:\S+ +0:\d\d:\d\d"
    assert re.search(row, listed, re.M), listed

    (job.job_dir / "code/fail").touch()
    assert job.end() == ("FAILED", 1), job.log()
    status = job.status()
    assert (status["error"]["rank"], "no such luck" in status["error"]["message"]) == (1, True), status
    assert "no such luck" in "\n".join(status["error"]["lines"]), status
    assert status["error"]["message"] == "RuntimeError: no such luck", "and not what TensorFlow makes of it"
    assert status["error"]["where"].endswith("in wait"), status
    assert status["error"]["doing"] == f"training step {status['step'] + 1}", status

    (job.job_dir / "code/fail").unlink()
    set_step_secs(job.job_dir / "code", 0)
    saved = newest_step(job.job_dir)
    assert job.again("--set", f"train.max_steps={saved + 10}").end() == ("SUCCEEDED", 0), job.log()
    status = job.status()
    assert (status["step"], status["max_steps"], status["error"]) == (saved + 10, saved + 10, None)
    assert starts(job.job_dir) == [0, saved]
    assert [Path(path).is_dir() for path in status["exports"]] == [True]


def test_a_requeued_job_comes_back(requeued: Submitted) -> None:
    assert requeued.end() == ("SUCCEEDED", 0)
    status = requeued.status()
    assert (status["requeues"], status["restarts"]) == (1, 1)
    assert requeued.log().count("rank 0 of 1 says one\n") == 2


def test_a_job_that_its_queue_has_forgotten_is_lost(back_end: BackEnd) -> None:
    """Slurm: the controller has lost what it knew. Else: what looks after the job was killed, and its ranks go on."""
    ended = back_end.submit("ended")
    assert ended.end() == ("SUCCEEDED", 0)
    job = back_end.submit("lost", *FOREVER, ranks_per_node=2)
    job.wait_for("RUNNING", lambda _: len(job.pids()) == 2)
    if back_end.cluster is not None:
        back_end.cluster.forget_jobs(next_number=int(job.number))
    else:
        os.kill(job.runner(), signal.SIGKILL)

    assert job.end() == ("LOST", 10)
    assert job.status()["reason"]
    assert ended.status()["state"] == "SUCCEEDED", "an end that was written stays known"
    if back_end.cluster is None:
        assert "lost: processes of it still run" in back_end.run("resume", "lost", code=2).err
        assert back_end.run("cancel", "lost").out == "lost: cancelled (it was LOST)\n"
    wait_for(lambda: all(map(is_gone, job.pids())), "its ranks have ended")
    ended_as = "LOST" if back_end.cluster is not None else "CANCELLED"
    assert back_end.run("cancel", "lost").out == f"lost: nothing to cancel: {ended_as}\n"

    other = back_end.submit("other", *FOREVER)
    assert (other.number == job.number) == (back_end.cluster is not None)
    other.wait_for("RUNNING")
    assert job.status()["state"] == ended_as
    other.let_go()
    job.let_go()
    assert other.end() == ("SUCCEEDED", 0)
    assert job.again().end() == ("SUCCEEDED", 0)
