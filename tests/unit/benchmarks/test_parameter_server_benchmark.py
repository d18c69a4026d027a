"""parameter_server.py: what jobs are started, what is read of them, targets and the page. Nothing is trained here."""

from __future__ import annotations

import sys

import pytest

from hpc_train.config.job import JobConfig
from hpc_train.distributed.partition import partition
from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from parameter_servers.cases import (
    ASYNC_JOB,
    BOUNDED_JOB,
    PREFETCH_JOB,
    SYNC_JOB,
    Group,
    job_file,
    measure_slow_worker,
    measure_training,
    read_metrics,
)
from parameter_servers.page import make_page, targets
from parameter_servers.settings import (
    APPLIED,
    BARE,
    FULL,
    IDLE,
    MEMCPY,
    ONE_HOST_TCP,
    OPTIMIZER,
    OURS,
    PLAIN_HOROVOD,
    QUICK,
    SEND_RECV,
    SIZES,
    SYNC,
    TRANSFER,
)
from parameter_servers.transfer_program import variables_of
from support.launch import environment
from support.page import as_text
from support.records import Found
from support.results import Results


def made_up(ours: float = 8.0, tcp: float = 0.5, idle: float = 0.04) -> Found:
    """Transfers of two sizes, over TCP, and servers that wait; memcpy is 16."""
    found = []
    for size in ("1 MB", "8 MB"):
        for what, others in ((TRANSFER, {SEND_RECV: 4.0}), (OPTIMIZER, {APPLIED: 8.0})):
            values = {MEMCPY: [16.0] * 4, OURS: [ours] * 4, **{way: [rate] * 4 for way, rate in others.items()}}
            group, compared = Group(what, size=size, servers=1), {OURS: (MEMCPY, *others)}
            found += group.records("GB/s", values, compared, dict.fromkeys(values, 2), {})
    values = {MEMCPY: [16.0] * 4, OURS: [tcp] * 4, SEND_RECV: [1.0] * 4}
    group = Group(TRANSFER, ONE_HOST_TCP, "1 MB", 1)
    found += group.records("GB/s", values, {OURS: (MEMCPY, SEND_RECV)}, dict.fromkeys(values, 2), {})
    found += Group(IDLE, servers=1).records("of a core", {BARE: [idle]}, {}, {BARE: 2}, {})
    return Found(found)


@pytest.mark.parametrize(
    ("changed", "missed"), [({}, set()), ({"ours": 6.3}, {0, 1, 2}), ({"idle": 0.051}, {4}), ({"tcp": 0.01}, set())]
)
def test_targets_are_those_of_one_node(changed, missed):
    """With apply at half of memcpy's rate, the bound is 2 / (2 + 2) = 0.5 of memcpy."""
    found = targets(made_up(**changed))
    assert {i for i, target in enumerate(found) if not target.reached} - {3} == missed
    assert not found[3].measured, "nothing was trained"
    assert not any(target.reached for target in targets(Found([])))


def metrics(losses=(2.0, 1.5, 1.0, 0.5, 0.9, 0.6, 0.5)) -> list[dict]:
    records = [{"kind": "start", "step": 0, "time": 90.0}]
    records += [{"kind": "train", "step": 20 * i, "time": 100.0 + i**2, "loss": n} for i, n in enumerate(losses, 1)]
    records[-1]["staleness"] = {"0": 3, "11": 4}
    return records


def test_rates_and_seconds_are_read_from_metrics():
    told = read_metrics(metrics(), 64, warm_up_secs=5.0, loss=0.85)
    assert told["rate"] == pytest.approx(64 * (140 - 60) / (48 - 8))
    assert told["secs_to_loss"] == 24.0, "one record of 0.5 is not enough"
    assert told["staleness"] == {"0": 3, "11": 4}
    assert read_metrics(metrics(), 64, 5.0, 0.1)["secs_to_loss"] is None
    with pytest.raises(RuntimeError, match="too short"):
        read_metrics(metrics(), 64, warm_up_secs=40.0, loss=1.0)


def test_jobs_run_in_turns_and_become_records_and_a_page(monkeypatch, tmp_path):
    ran = []

    def run_job(folder, job, examples, how):
        ran.append(job.way)
        return read_metrics(metrics(), 64 * job.batches_a_step, 5.0, 0.85 if job is not PREFETCH_JOB else 0.1)

    def plain(settings, folder):
        ran.append(PLAIN_HOROVOD)
        return {"rate": 100.0}

    monkeypatch.setattr("parameter_servers.cases.run_job", run_job)
    monkeypatch.setattr("parameter_servers.cases._plain_horovod", plain)
    with Results(tmp_path, "parameter_server", {}) as results:
        measure_training(FULL, tmp_path, results)
        assert ran == [PLAIN_HOROVOD, SYNC, "async", "async, prefetching", *ran[3::-1]]
        measure_slow_worker(FULL, tmp_path, results)
    found = Found(results.records)
    assert found.ratio(PLAIN_HOROVOD, way=SYNC, what="training") == pytest.approx(2.56)
    assert found.ratio(SYNC, way="async", what="training") == pytest.approx(0.5)
    assert found.ratio("async", way="async, one slow worker") == pytest.approx(1.0)
    assert list(results.left_out) == ["time to loss, async, prefetching"]
    text, _ = as_text(make_page(Found([*made_up(), *found]), QUICK), "2026-01-01")
    for words in ("Push and pull over TCP", "Time to a given loss", "One slow worker", "| async | 14 | 6.29 | 11 |"):
        assert words in text


def test_job_files_are_valid_and_train_on_as_many_examples():
    for job in (SYNC_JOB, ASYNC_JOB, PREFETCH_JOB, BOUNDED_JOB):
        made = job_file(job, 12_800)
        JobConfig.model_validate(made)
        assert made["train"]["max_steps"] * job.batches_a_step * 64 == 12_800
        assert made["params"]["learning_rate"] == pytest.approx(job.batches_a_step * 2e-4)
    assert job_file(BOUNDED_JOB, 12_800)["run"]["max_staleness"] == 2


def test_ranks_get_none_of_the_settings_that_change_what_is_measured(monkeypatch: pytest.MonkeyPatch):
    for name in ("HOROVOD_CYCLE_TIME", "OMPI_MCA_mpi_yield_when_idle", "HPC_TRAIN_SHARED_WINDOW"):
        monkeypatch.setenv(name, "1")
        assert name not in environment()
    assert environment({"OMPI_MCA_btl": "tcp,self"})["OMPI_MCA_btl"] == "tcp,self"


@pytest.mark.parametrize("servers", [1, 2])
def test_parameters_lie_without_gaps(servers: int):
    for nbytes in SIZES.values():
        plan = partition(variables_of(nbytes), servers)
        assert plan.nbytes == sum(variable.nbytes for variable in plan.variables)
        assert 0.999 * nbytes <= plan.nbytes <= nbytes
        assert plan.cut_variables == []
