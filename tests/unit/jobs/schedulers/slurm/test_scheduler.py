"""Slurm as a scheduler: what is completed, refused and left to sbatch before a job is queued."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hpc_train.config.resources import Resources
from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobs.checks import check_limits
from hpc_train.jobs.record.status import JobRecord, QueueState
from hpc_train.jobs.schedulers.base import AbsentError, Scheduler
from hpc_train.jobs.schedulers.local.scheduler import LocalScheduler
from hpc_train.jobs.schedulers.slurm import queue as slurm_queue
from hpc_train.jobs.schedulers.slurm.limits import parse_sinfo
from hpc_train.jobs.schedulers.slurm.records import parse_job
from hpc_train.jobs.schedulers.slurm.scheduler import SlurmScheduler
from tests.unit.jobs.submissions import a_submission

SLURM = SlurmScheduler()


def test_what_the_environment_says_to_sbatch_counts_where_nobody_else_says() -> None:
    env = {
        "SBATCH_PARTITION": "gpu",
        "SBATCH_ACCOUNT": "p1",
        "SBATCH_QOS": "",
        "SBATCH_CONSTRAINT": "a&b",
        "SBATCH_X": "",
    }
    wants = Resources(tier="T", account="mine", time=90, environment={"A": "1"})
    got = SLURM.completed(wants, env)
    assert (got.partition, got.account, got.qos, got.constraint) == ("gpu", "mine", None, "a&b")
    assert got == wants.model_copy(update={"partition": "gpu", "constraint": "a&b"}), "the rest stays"
    assert SLURM.completed(wants, {}) == wants
    with pytest.raises(UserError, match=r"SBATCH_PARTITION='a b': not allowed; unset it, or give the key under `res"):
        SLURM.completed(wants, {"SBATCH_PARTITION": "a b"})


def limits(scheduler: Scheduler, **wants: Any) -> tuple[list[str], list[str]]:
    """What is refused, and what is said."""
    said: list[str] = []
    try:
        check_limits(Resources(tier="T", **wants), scheduler, said.append)
    except UserError as error:
        return str(error).splitlines(), said
    return [], said


def test_what_this_machine_has_not() -> None:
    assert limits(LocalScheduler()) == ([], [])
    refused, _ = limits(LocalScheduler(), nodes=2, gpus_per_node=1)
    assert refused and all(line.startswith("resources: ") for line in refused)
    assert re.search("nodes", refused[0]) and re.search("GPU", "".join(refused))


def test_what_the_partition_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = parse_sinfo("test*|up|1:00:00|1-infinite|2|4|8000|(null)|(null)|idle\n")
    monkeypatch.setattr(slurm_queue, "partitions", lambda: found)
    assert limits(SLURM, nodes=2) == ([], [])
    for wants in ({"nodes": 3}, {"gpus_per_node": 1}, {"time": 120}, {"partition": "gpu"}):
        refused, said = limits(SLURM, **wants)
        assert len(refused) == 1
        assert refused[0].startswith("resources: ")
        assert said == []


def test_without_a_cluster_nothing_is_left_to_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AbsentError):
        limits(SLURM)


def test_a_cluster_that_does_not_answer_is_left_to_sbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    def down() -> Sequence[Any]:
        raise SchedulerError("Slurm does not answer: x")

    monkeypatch.setattr(slurm_queue, "partitions", down)
    refused, said = limits(SLURM, nodes=999)
    assert refused == []
    assert said == ["warning: the partition and its limits are not checked: Slurm does not answer: x"]


def records(tmp_path: Path, count: int, **changes: Any) -> list[JobRecord]:
    return [JobRecord(tmp_path, a_submission(backend="slurm", **changes), {}) for _ in range(count)]


def test_of_many_jobs_slurm_is_asked_once_which_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str] | None] = []
    monkeypatch.setattr(slurm_queue, "is_here", lambda: True)
    monkeypatch.setattr(slurm_queue, "known_jobs", lambda: {"7"})

    def seen(number: str, token: str, known: set[str] | None) -> QueueState:
        asked.append(known)
        return QueueState("running")

    monkeypatch.setattr(slurm_queue, "seen", seen)
    assert SLURM.query_all(records(tmp_path, 9)) == [QueueState("running")] * 9
    assert SLURM.query_all(records(tmp_path, 2)) == [QueueState("running")] * 2
    assert asked == [{"7"}] * 9 + [None] * 2


def test_a_job_whose_number_was_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found by its token, and its number noted then; for a while it may still be on its way."""
    monkeypatch.setattr(slurm_queue, "number_of", {"found": "12"}.get)
    monkeypatch.setattr(slurm_queue, "seen", lambda number, token, known: QueueState("waiting", f"{number} {token}"))
    (found,) = records(tmp_path, 1, job_id=None, token="found")
    assert SLURM.query(found) == QueueState("waiting", "12 found")
    assert json.loads((tmp_path / "submission.json").read_text())["job_id"] == "12"
    (new,) = records(tmp_path, 1, job_id=None)
    assert SLURM.query(new) == QueueState("waiting", "it is being submitted")
    (old,) = records(tmp_path, 1, job_id=None, submitted=0.0)
    assert SLURM.query(old) == QueueState("forgotten", "its submission was cut short")


def test_a_job_that_sbatch_was_given_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_queue, "seen", lambda number, token, known: QueueState("running", f"{number} {token}"))
    assert SLURM.query(JobRecord(tmp_path, None, {"state": "running", "job_id": "9"})) == QueueState(
        "running", "9 None"
    )
    assert SLURM.query(JobRecord(tmp_path, None, {"state": "failed", "job_id": "9"})) == QueueState("forgotten")


def test_an_allocation_is_not_cancelled_and_output_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = JobRecord(tmp_path, None, {"state": "running", "job_id": "9"})
    job = parse_job("JobId=9 JobState=RUNNING BatchFlag=0 StdOut=/home/me/hpc_train-9.out Power=")
    monkeypatch.setattr(slurm_queue, "cancel", lambda *_: pytest.fail("cancelled"))
    monkeypatch.setattr(slurm_queue, "show", lambda number: job if number == "9" else None)
    with pytest.raises(UserError, match=r"to end all of it: scancel 9$"):
        SLURM.cancel(record, False, False)
    assert SLURM.output_by_hand(record) == "Slurm keeps what it prints; type: tail -f /home/me/hpc_train-9.out"
    monkeypatch.setattr(slurm_queue, "show", lambda number: None)
    assert SLURM.output_by_hand(record).endswith(": tail -f hpc_train-9.out")


def test_who_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[object, ...]] = []
    monkeypatch.setattr(slurm_queue, "cancel", lambda *args: done.append(args))
    monkeypatch.setattr(slurm_queue, "cancel_all", lambda *args: done.append(args))
    (known,), (unknown,) = records(tmp_path, 1), records(tmp_path, 1, job_id=None, token="t")
    for record, save, waits in (
        (known, False, False),
        (known, True, False),
        (known, True, True),
        (unknown, False, True),
    ):
        SLURM.cancel(record, save, waits)
    assert done == [("7", False), ("7", True), ("7", False), ("t",)], "a job that waits has nothing to save"
