"""What Slurm's commands print, and what is made of it: here they are scripts that answer as Slurm 22.05 does."""

from __future__ import annotations

import itertools
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.record.status import QueueState
from hpc_train.jobs.schedulers.base import AbsentError
from hpc_train.jobs.schedulers.slurm import queue as slurm_queue
from hpc_train.jobs.schedulers.slurm.records import SlurmJob, job_dir_of, parse_accounting, parse_job, seen_of

TOKEN = "d1ce"
DOWN = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Socket timed out on send/recv operation"
NOT_CONFIGURED = """\
sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
sbatch: error: fetch_config: DNS SRV lookup failed
sbatch: error: _establish_config_source: failed to fetch config
sbatch: fatal: Could not establish a configuration source
"""

PROGRAM = """\
#!/bin/bash
state={state} name=${{0##*/}}
printf '%s\\n' "$name $*" >>"$state/calls"
count=$(grep -c "^$name" "$state/calls")
while [[ ! -e $state/$name.$count ]]; do
    ((count--))
done
source "$state/$name.$count"
"""
ENTER = 'n=$(($(wc -l <"$state/queue") + 11)); echo "$n ${*: -2}" >>"$state/queue"; '
ACCEPT = ENTER + 'echo "$n"'
SHOW = 'cat "$state/queue"'
SHOW_NOTHING = ":"
CANCEL = 'grep -v "^${*: -1} " "$state/queue" >"$state/rest"; mv "$state/rest" "$state/queue"'


def fails(message: str, code: int = 1) -> str:
    return f'printf "%s" {shlex.quote(message)} >&2; exit {code}'


def unanswered(message: str = TIMED_OUT) -> str:
    return fails(f"sbatch: error: Batch job submission failed: {message}\n")


@dataclass
class Stubs:
    """Slurm's commands in a folder of their own; each call of one gives its next answer, the last one again."""

    folder: Path
    said: list[str] = field(default_factory=list)

    def answer(self, name: str, *answers: str) -> None:
        program = self.folder / "bin" / name
        program.write_text(PROGRAM.format(state=shlex.quote(str(self.folder))))
        program.chmod(0o755)
        for number, text in enumerate(answers, 1):
            (self.folder / f"{name}.{number}").write_text(text)

    def calls(self, name: str = "") -> list[str]:
        """The calls with their arguments, of one command or of all."""
        path = self.folder / "calls"
        return [line for line in path.read_text().splitlines() if line.startswith(name)] if path.exists() else []

    def queue(self) -> list[str]:
        """The numbers of the jobs that are in the queue."""
        return [line.split()[0] for line in (self.folder / "queue").read_text().splitlines()]

    def submit(self, *options: str) -> str:
        return slurm_queue.submit(self.folder / "my runs/a_1/job.sh", TOKEN, options, self.said.append)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stubs:
    """A Slurm whose queue is empty, and which answers to all."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "queue").write_text("")
    stubs = Stubs(tmp_path)
    for name, answer in (("sbatch", ACCEPT), ("squeue", SHOW), ("scancel", CANCEL)):
        stubs.answer(name, answer)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(slurm_queue, "RETRY_SECS", 0.01)
    monkeypatch.setattr(slurm_queue, "SETTLE_SECS", 0.0)
    return stubs


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH without any of its commands."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


# ---- submission


def test_a_submission(slurm: Stubs) -> None:
    assert slurm.submit("--dependency=afterok:5") == "11"
    script = slurm.folder / "my runs/a_1/job.sh"
    assert slurm.calls() == [f"sbatch --parsable --dependency=afterok:5 -- {script} {TOKEN}"]
    assert slurm.said == []


def test_the_number_on_one_of_several_clusters(slurm: Stubs) -> None:
    slurm.answer("sbatch", 'echo "sbatch: warning: x" >&2; echo "12;big"')
    assert slurm.submit() == "12"


def test_options_of_the_users_environment_do_not_change_it(slurm: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"SLURM_CONF": "/etc/mine", "MY_DATA": "x", "SLURM_JOB_ID": "3"}
    others = ["SBATCH_PARTITION", "SQUEUE_FORMAT", "SLURM_CLUSTERS", "SLURM_CPUS_PER_TASK", "SLURM_NTASKS"]
    others += ["SLURM_MEM_PER_NODE", "SLURM_GPUS", "SLURM_TRES_PER_TASK", "SINFO_FORMAT", "SLURM_TIME_FORMAT"]
    for name, value in [*mine.items(), *((name, "theirs") for name in others)]:
        monkeypatch.setenv(name, value)
    slurm.answer("sbatch", 'env >"$state/env"; echo 5')
    slurm.submit()
    env = dict(line.partition("=")[::2] for line in (slurm.folder / "env").read_text().splitlines())
    assert {name: env[name] for name in mine} == mine
    assert env["SLURM_TIME_FORMAT"] == "%s"
    assert "theirs" not in env.values()


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        (
            "sbatch: error: invalid partition specified: nope\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
            "sbatch refuses the job: invalid partition specified: nope; Batch job submission failed: Invalid partition "
            "name specified",
        ),
        ("sbatch: error: x\nsbatch: error: x\n\n", "sbatch refuses the job: x"),
        ("", "sbatch refuses the job: it does not say why"),
    ],
)
def test_a_refusal_is_not_tried_again(slurm: Stubs, stderr: str, said: str) -> None:
    slurm.answer("sbatch", fails(stderr))
    with pytest.raises(UserError) as caught:
        slurm.submit()
    assert str(caught.value) == said
    assert len(slurm.calls()) == 1


@pytest.mark.parametrize("message", [DOWN, TIMED_OUT, "Zero Bytes were transmitted or received", "Connection refused"])
def test_a_controller_that_comes_back(slurm: Stubs, message: str) -> None:
    slurm.answer("sbatch", unanswered(message), unanswered(message), ACCEPT)
    assert slurm.submit() == "11"
    assert (slurm.queue(), len(slurm.calls("sbatch")), slurm.calls("scancel")) == (["11"], 3, [])
    assert len(slurm.said) == 2
    assert slurm.said[0].startswith(
        f"Slurm does not answer: sbatch: error: Batch job submission failed: {message}; try"
    )


def test_a_job_whose_number_was_lost_is_found_by_its_token(slurm: Stubs) -> None:
    (slurm.folder / "queue").write_text(f"3 (null)\n4 /x/{TOKEN}/job.sh other\n5_[1-3] /x y/job.sh\n6 {TOKEN}x\n")
    slurm.answer("sbatch", ENTER + unanswered())
    assert slurm.submit() == "15"
    assert len(slurm.calls("sbatch")) == 1
    assert slurm.calls("squeue")[0].startswith("squeue --noheader --states=all --me")
    assert slurm.calls("scancel") == []


def test_a_lost_one_may_show_late(slurm: Stubs) -> None:
    slurm.answer("sbatch", ENTER + unanswered())
    slurm.answer("squeue", SHOW_NOTHING, SHOW)
    assert slurm.submit() == "11"
    assert len(slurm.calls("sbatch")) == 1


def test_it_is_looked_for_once_the_controller_is_back(slurm: Stubs) -> None:
    slurm.answer("sbatch", ENTER + unanswered())
    slurm.answer("squeue", fails(f"slurm_load_jobs error: {DOWN}"), fails("slurm_load_jobs error: strange"), SHOW)
    assert slurm.submit() == "11"
    assert len(slurm.calls("sbatch")) == 1
    assert slurm.said[2].startswith("squeue: slurm_load_jobs error: strange; trying again for ")


def test_of_two_that_were_queued_one_is_cancelled(slurm: Stubs) -> None:
    """The first shows up in the queue only after it was submitted again."""
    (slurm.folder / "queue").write_text("3 /other/job.sh other\n")
    slurm.answer("sbatch", ENTER + unanswered(), ACCEPT)
    slurm.answer("squeue", SHOW_NOTHING, SHOW_NOTHING, SHOW)
    assert slurm.submit() == "13"
    assert slurm.calls("scancel") == ["scancel -- 12"]
    assert slurm.queue() == ["3", "13"]


def test_a_number_that_is_known_is_not_lost_again(slurm: Stubs) -> None:
    """The controller goes down a second time, just when it would be asked after a twin."""
    slurm.answer("sbatch", unanswered(), ACCEPT)
    slurm.answer("squeue", SHOW_NOTHING, SHOW_NOTHING, fails(f"slurm_load_jobs error: {DOWN}"))
    assert slurm.submit() == "11"
    assert slurm.queue() == ["11"]
    assert "job 11 is queued" in slurm.said[-1]


def test_a_controller_that_stays_down(slurm: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()  # one more at each look at the clock
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: next(seconds)})
    monkeypatch.setattr(slurm_queue, "time", clock)
    monkeypatch.setattr(slurm_queue, "SUBMIT_SECS", 10)
    slurm.answer("sbatch", unanswered(DOWN))
    slurm.answer("squeue", fails(f"slurm_load_jobs error: {DOWN}"))
    with pytest.raises(SchedulerError, match=r"^Slurm does not answer: .*Unable to contact.*; the job is not queued\."):
        slurm.submit()
    assert len(slurm.calls("sbatch")) == 1, "as long as it cannot be asked whether the first was queued"
    assert slurm.said


def test_an_sbatch_that_hangs(slurm: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_queue, "ASK_SECS", 0.3)
    slurm.answer("sbatch", ENTER + "exec sleep 60", ACCEPT)
    assert slurm.submit() == "11"
    assert slurm.said[0].startswith("sbatch has not answered for 0 s; trying again for ")
    assert slurm.queue() == ["11"]


def test_there_is_no_sbatch(no_slurm: None, tmp_path: Path) -> None:
    assert not slurm_queue.is_here()
    said: list[str] = []
    with pytest.raises(AbsentError, match="there is no sbatch on PATH: is this a node of the cluster"):
        slurm_queue.submit(tmp_path / "job.sh", TOKEN, (), said.append)
    assert said == [], "not tried again"
    assert slurm_queue.job_dir_in_slurm("5") is None
    assert slurm_queue.seen("5").phase == "unasked"
    with pytest.raises(SchedulerError, match="there is no sinfo on PATH"):
        slurm_queue.partitions()


def test_there_is_an_sbatch_and_no_cluster(slurm: Stubs) -> None:
    slurm.answer("sbatch", fails(NOT_CONFIGURED))
    with pytest.raises(AbsentError, match=r"sbatch finds no Slurm here .*configuration source.*--backend local"):
        slurm.submit()
    assert slurm.said == []
    assert len(slurm.calls()) == 1, "not tried again"


def test_all_of_a_submission_is_cancelled(slurm: Stubs) -> None:
    (slurm.folder / "queue").write_text(f"9 /a/job.sh {TOKEN}\n10 /b/job.sh other\n11 /a/job.sh {TOKEN}\n")
    slurm_queue.cancel_all(TOKEN)
    assert slurm.queue() == ["10"]
    slurm_queue.cancel_all(TOKEN)
    assert len(slurm.calls("scancel")) == 2


# ---- how a job stands

LINE = (
    "JobId=2 JobName=fashion_mnist_20261120_081500 UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=0 Nice=0 "
    "Account=(null) QOS=(null) JobState=CANCELLED Reason=JobHeldUser Dependency=(null) Requeue=1 Restarts=0 "
    "BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:00 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1795210772 "
    "EligibleTime=Unknown AccrueTime=Unknown StartTime=1795210772 EndTime=1795210773 Deadline=N/A "
    "PreemptEligibleTime=1795210771 PreemptTime=None SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795210772 "
    "Scheduler=Main Partition=test "
    "AllocNode:Sid=localhost:8962 ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=1 NumCPUs=1 NumTasks=1 "
    "CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=1,node=1,billing=1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* "
    "MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 "
    "Licenses=(null) Network=(null) Command=/tmp/x6/my job%d/job.sh tok-124 WorkDir=/tmp/x6/my job%d "
    "Comment=a JobState=b  StdErr=/tmp/x6/x.log StdIn=/dev/null StdOut=/tmp/x6/x.log Power= "
)


def line(**changes: str) -> str:
    """LINE, with other values of fields."""
    words = LINE.split(" ")
    return " ".join(
        f"{word.partition('=')[0]}={changes[word.partition('=')[0]]}" if word.partition("=")[0] in changes else word
        for word in words
    )


def test_what_scontrol_tells_of_a_job() -> None:
    assert parse_job(LINE) == SlurmJob(
        job_id="2",
        state="CANCELLED",
        reason="JobHeldUser",
        requeues=0,
        exit_code=0,
        signal=0,
        start=1795210772,
        end=1795210773,
        nodes=None,
        command="/tmp/x6/my job%d/job.sh tok-124",
        output="/tmp/x6/x.log",
        batch=True,
    )


def test_other_values_of_a_job() -> None:
    assert parse_job(LINE.replace("StdOut=/tmp/x6/x.log", "StdOut=/tmp/my x/x-2.out")).output == "/tmp/my x/x-2.out"
    assert not parse_job(line(BatchFlag="0")).batch, "an allocation of salloc"
    job = parse_job(line(Reason="None", Restarts="3", ExitCode="7:9", StartTime="Unknown", NodeList="n[1-2]"))
    assert (job.reason, job.requeues, job.exit_code, job.signal) == (None, 3, 7, 9)
    assert (job.start, job.end, job.nodes) == (None, 1795210773, "n[1-2]")
    assert parse_job(line(NodeList="(null)", EndTime="Unknown")).end is None


@given(st.text(max_size=40))
def test_no_text_is_an_error(text: str) -> None:
    assert parse_job(text).requeues >= 0
    assert parse_accounting(text).phase in ("ended", "forgotten")


def test_the_job_dir_of_a_job() -> None:
    def of(command: str) -> Path | None:
        return job_dir_of(parse_job(LINE.replace("/tmp/x6/my job%d/job.sh tok-124", command)))

    assert of("/tmp/x6/my job%d/job.sh tok-124") == Path("/tmp/x6/my job%d")
    assert of("/runs/a_1/job.sh 1234") == Path("/runs/a_1")
    assert of("/runs/a_1/other.sh 1234") is None
    assert of("(null)") is of("") is of("/runs/a_1/job.sh") is of("job.sh tok") is None


WAITING = ["PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"]
RUNNING = ["RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"]
BAD_ENDS = ["FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED"]


def seen(**changes: str) -> QueueState:
    return seen_of(parse_job(line(**changes)))


@pytest.mark.parametrize("state", WAITING)
def test_jobs_that_wait(state: str) -> None:
    assert seen(JobState=state, Reason="Resources", Restarts="2") == QueueState("waiting", "Resources", 2)
    assert seen(JobState=state, Reason="None").reason == "waiting to be scheduled"


@pytest.mark.parametrize("state", RUNNING)
def test_jobs_that_run(state: str) -> None:
    found = seen(JobState=state, Reason="None", Restarts="1", NodeList="n[1-2]")
    ends = "Slurm ends it (COMPLETING on n[1-2])" if state == "COMPLETING" else None
    assert found == QueueState("running", ends, 1, 1795210772, 1795210773, where="n[1-2]")
    assert seen(JobState=state, EndTime="Unknown").limit is None


@pytest.mark.parametrize("state", BAD_ENDS)
def test_jobs_that_ended_badly(state: str) -> None:
    found = seen(JobState=state, Reason="NonZeroExitCode", ExitCode="7:0", NodeList="n1")
    assert found == QueueState(
        "ended", f"Slurm: {state}, exit code 7", started=1795210772, exit_code=7, cancelled=False, where="n1"
    )
    assert seen(JobState=state, Reason="TimeLimit", ExitCode="0:15").reason == f"Slurm: {state} (TimeLimit), signal 15"
    assert seen(JobState=state, Reason="None").reason == f"Slurm: {state}"


def test_jobs_that_ended_otherwise() -> None:
    done = seen(JobState="COMPLETED", Reason="None")
    assert (done.phase, done.reason, done.exit_code, done.cancelled) == ("ended", None, 0, False)
    cancelled = seen(JobState="CANCELLED", Reason="None", ExitCode="0:15")
    assert (cancelled.phase, cancelled.reason, cancelled.cancelled) == ("ended", "Slurm: CANCELLED, signal 15", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("COMPLETED|0:0", QueueState("ended")),
        ("FAILED|7:0", QueueState("ended", "Slurm: FAILED, exit code 7", exit_code=7)),
        ("TIMEOUT|0:15", QueueState("ended", "Slurm: TIMEOUT, signal 15", signal=15)),
        ("CANCELLED by 1000|0:15", QueueState("ended", "Slurm: CANCELLED, signal 15", cancelled=True, signal=15)),
        ("NODE_FAIL|", QueueState("ended", "Slurm: NODE_FAIL")),
        *((f"{state}|0:0", QueueState("forgotten")) for state in WAITING + RUNNING),
        ("|", QueueState("forgotten")),
        ("", QueueState("forgotten")),
        ("what is this|0:0", QueueState("forgotten")),
    ],
)
def test_what_sacct_tells_of_a_job(text: str, expected: QueueState) -> None:
    assert parse_accounting(text) == expected


def test_a_job_that_slurm_knows(slurm: Stubs) -> None:
    slurm.answer("scontrol", f"printf '%s\\n' {shlex.quote(line(JobState='PENDING'))}")
    assert slurm_queue.seen("2") == QueueState("waiting", "JobHeldUser")
    assert slurm_queue.job_dir_in_slurm("2") == Path("/tmp/x6/my job%d")
    assert slurm.calls("scontrol")[0] == "scontrol --oneliner show job 2"


def test_a_job_that_is_not_among_those_known_is_not_asked_for(slurm: Stubs) -> None:
    slurm.answer("sacct", "")
    assert slurm_queue.seen("7", None, {"6"}).phase == "forgotten"
    assert slurm.calls("scontrol") == []


def test_who_interrupts_has_nothing_in_the_queue(slurm: Stubs, tmp_path: Path) -> None:
    slurm.answer("sbatch", "echo 7")
    slurm.answer("squeue", "echo '7 job.sh tok'")
    slurm.answer("scancel", "")
    answers = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        slurm_queue.submit(tmp_path / "job.sh", "tok", interrupted=lambda: next(answers))
    assert slurm.calls("scancel") == ["scancel -- 7"]


@pytest.mark.parametrize("message", ["slurm_load_jobs error: Invalid job id specified", "Job 1_2 not found"])
def test_a_job_that_slurm_has_forgotten(slurm: Stubs, message: str) -> None:
    slurm.answer("scontrol", fails(f"{message}\n"))
    assert slurm_queue.show("1_2") is None
    slurm.answer("sacct", fails("Slurm accounting storage is disabled\n"))
    assert slurm_queue.seen("1_2") == QueueState("forgotten")
    slurm.answer("sacct", ":")
    assert slurm_queue.seen("1_2") == QueueState("forgotten"), "nor does accounting know it"
    slurm.answer("sacct", "echo 'PREEMPTED|0:0'; echo 'CANCELLED by 0|0:15'")
    assert slurm_queue.seen("1_2").cancelled
    assert slurm.calls("sacct")[-1].endswith("--jobs=1_2 --format=State,ExitCode")
    slurm.answer("sacct", fails(DOWN))
    told = slurm_queue.seen("1_2")
    assert (told.phase, (told.note or "").startswith("sacct: Slurm does not answer")) == ("forgotten", True)
    assert slurm_queue.job_dir_in_slurm("1_2") is None


def test_where_there_is_no_accounting(slurm: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.answer("scontrol", fails("slurm_load_jobs error: Invalid job id specified\n"))
    monkeypatch.setattr(slurm_queue.shutil, "which", lambda _: None)
    assert slurm_queue.seen("9") == QueueState("forgotten")


@pytest.mark.parametrize("message", [f"slurm_load_jobs error: {DOWN}", "slurm_load_jobs error: Access denied", ""])
def test_a_controller_that_does_not_tell(slurm: Stubs, message: str) -> None:
    slurm.answer("scontrol", fails(message))
    found = slurm_queue.seen("2")
    assert found.phase == "unasked"
    assert (message or "no message") in (found.note or "")
    assert slurm_queue.job_dir_in_slurm("2") is None


def test_partitions(slurm: Stubs) -> None:
    slurm.answer("sinfo", "echo 'test*|up|1:00:00|1-infinite|2|4|8000|(null)|(null)|idle'")
    assert [partition.name for partition in slurm_queue.partitions()] == ["test"]
    slurm.answer("sinfo", fails("sinfo: error: strange"))
    with pytest.raises(SchedulerError, match="sinfo: sinfo: error: strange"):
        slurm_queue.partitions()


# ---- cancelling


def test_cancelling(slurm: Stubs) -> None:
    (slurm.folder / "queue").write_text("5 x\n")
    slurm_queue.cancel("5", save=True)
    slurm_queue.cancel("5")
    assert slurm.calls() == ["scancel --batch --signal=TERM -- 5", "scancel -- 5"]


def test_a_job_that_is_gone_is_cancelled(slurm: Stubs) -> None:
    slurm.answer("scancel", fails("scancel: error: Kill job error on job id 5: Invalid job id specified\n"))
    slurm_queue.cancel("5")


def test_a_job_of_somebody_else(slurm: Stubs) -> None:
    slurm.answer("scancel", fails("scancel: error: Kill job error on job id 5: Access/permission denied\n"))
    with pytest.raises(UserError, match=r"^scancel refuses: Kill job error on job id 5: Access/permission denied$"):
        slurm_queue.cancel("5")


def test_cancelling_while_the_controller_is_down(slurm: Stubs) -> None:
    slurm.answer("scancel", fails(f"scancel: error: {DOWN}\n"))
    with pytest.raises(SchedulerError, match="Slurm does not answer: scancel: error: Unable to contact"):
        slurm_queue.cancel("5")


def test_a_job_without_a_time_limit_has_no_end_to_come() -> None:
    """Slurm tells an EndTime of such a job, too: a year from its start."""
    line = "JobId=7 JobState=RUNNING TimeLimit=UNLIMITED StartTime=1795210772 EndTime=1826746772 NodeList=n1"

    assert parse_job(line).end is None
