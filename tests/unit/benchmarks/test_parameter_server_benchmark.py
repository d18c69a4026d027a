"""What the parameter server benchmark makes of measured numbers: targets, records, the page; and the jobs it writes."""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from hpc_train.config.job import JobConfig
from hpc_train.distributed.parameter_server.partition import partition
from tests.support import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]
TARGETS = (
    "≥ 0.4 x memcpy of the same bytes",
    "≥ 0.8 of 2 / (2 + apply / memcpy)",
    "≥ 2 x Send/Recv of the same bytes",
    "≥ 1.12 x the examples/s of a plain Horovod loop on two ranks",
    "< 5% of a core",
)


@pytest.fixture(autouse=True)
def _imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def made_up(ours: float = 8.0, tcp: float = 0.5, idle: float = 0.04, trained: float = 1.2):
    """Results of one size, with memcpy at 20 GB/s."""
    from parameter_servers.results import Group, Results
    from parameter_servers.training import SLOW_WORKER, TO_LOSS, TRAINING

    results = Results()
    for where, value in (("one node", ours), ("two hosts, TCP", tcp)):
        group = Group("transfer", where, "8 MB", 1)
        results.add(group, "memcpy", [19.0, 20.0, 21.0], "GB/s", 2)
        results.add(group, "Send/Recv", [4.0, 3.9, 4.1], "GB/s", 2)
        results.add(group, "push and pull", [value] * 3, "GB/s", 2, ["memcpy", "Send/Recv"], {"bytes": 8_000_000})
    group = Group("transfer, SGD", "one node", "8 MB", 2)
    results.add(group, "memcpy", [20.0] * 2, "GB/s", 3)
    results.add(group, "apply alone", [5.0] * 2, "GB/s", 3)
    results.add(group, "push and pull", [ours / 1.5] * 2, "GB/s", 3, ["memcpy", "apply alone"])
    results.add(TRAINING, "plain Horovod", [6_900.0, 7_100.0], "examples/s", 2)
    results.add(TRAINING, "sync", [10_000.0] * 2, "examples/s", 2, ["plain Horovod"])
    results.add(TRAINING, "async", [7_000 * trained] * 2, "examples/s", 3, ["plain Horovod", "sync"])
    results.add(SLOW_WORKER, "async", [9_000.0], "examples/s", 3, config={"delay_ms": 0})
    slow = {"delay_ms": 40}
    results.add(SLOW_WORKER, "async, one slow worker", [6_000.0], "examples/s", 3, ["async"], slow)
    results.add(TO_LOSS, "sync", [4.0], "s", 2)
    results.add(Group("idle server", "one node", "", 1), "of a job", [idle], "of a core", 2)
    results.staleness["async"] = Counter({0: 20, 1: 70, 40: 10})
    results.left_out.append("Between two hosts: a private Slurm cluster needs root.")
    return results


def test_targets_compare_medians_and_ask_for_nothing_over_tcp():
    from parameter_servers.targets import targets

    memcpy, optimizer, send_recv, trained, idle = targets(made_up())
    assert memcpy.measured == [("8 MB, 1 server", "0.4", True)]
    assert send_recv.measured == [("8 MB, 1 server", "2", True)]
    assert optimizer.measured == [("8 MB, 2 servers", "0.8", True)]  # of 2 / (2 + 4)
    assert trained.measured == [("MLP 784-1024-1024-10", "1.200", True)]
    assert idle.measured == [("of a job, one node, 1 server", "4.00%", True)]


@pytest.mark.parametrize(
    ("changed", "missed"), [({"ours": 7.9}, {0, 1, 2}), ({"trained": 1.11}, {3}), ({"idle": 0.05}, {4})]
)
def test_a_target_is_missed_by_a_little(changed: dict[str, float], missed: set[int]):
    from parameter_servers.targets import targets

    assert {i for i, target in enumerate(targets(made_up(**changed))) if not target.reached} == missed


def test_what_was_not_measured_is_not_reached():
    from parameter_servers.results import Results
    from parameter_servers.targets import targets

    assert [target.reached for target in targets(Results())] == [False] * len(TARGETS)


def test_records_have_the_common_fields_and_are_distinct():
    records = [asdict(record) for record in made_up().records({"machine": {"cores": 2}}, {"python": "3"})]
    for record in records:
        assert list(record) == FIELDS
        low, high = record["spread"]
        assert low <= record["value"] <= high
        assert (record["baseline"] is None) == (record["ratio"] is None)
        json.dumps(record)
    keys = [(record["case"], record["baseline"]) for record in records]
    assert len(keys) == len(set(keys))
    ours = {r["baseline"]: r for r in records if r["case"] == "transfer, one node, 8 MB, 1 server, push and pull"}
    assert ours["memcpy"]["ratio"] == pytest.approx(0.4)
    assert ours["Send/Recv"]["ratio"] == pytest.approx(2.0)
    assert ours["memcpy"]["config"]["bytes"] == 8_000_000


def test_page_says_what_was_measured_and_what_was_not(tmp_path: Path):
    from parameter_servers.page import make_page
    from parameter_servers.settings import FULL, QUICK
    from support.report import write_report

    write_report(tmp_path / "out.html", make_page(made_up(), FULL, {"cores": 2}))
    page = (tmp_path / "out.html").read_text()
    for words in (*(target.replace("<", "&lt;") for target in TARGETS), "a private Slurm cluster needs root", "4.70"):
        assert words in page
    for private in (socket.gethostname(), str(REPOSITORY), str(Path.home()), sys.prefix):
        assert private not in page
    assert "src=" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "A quick run" not in page
    assert any("A quick run" in text for text in make_page(made_up(), QUICK, {}).summary)


def test_jobs_take_turns_there_and_back():
    from parameter_servers.training import turns

    assert "".join(turns("ABC", 4)) == "ABCCBAABCCBA"


def test_job_files_are_valid_and_train_on_as_many_examples():
    from parameter_servers.jobs import job_file
    from parameter_servers.training import ASYNC_JOB, BOUNDED_JOB, PREFETCH_JOB, SYNC_JOB

    for job in (SYNC_JOB, ASYNC_JOB, PREFETCH_JOB, BOUNDED_JOB):
        made = job_file(job, 12_800)
        JobConfig.model_validate(made)
        assert made["train"]["max_steps"] * job.batches_a_step * 64 == 12_800
        assert made["params"]["learning_rate"] == pytest.approx(job.batches_a_step * 2e-4)
    assert job_file(BOUNDED_JOB, 12_800)["run"]["max_staleness"] == 2


def test_rates_and_seconds_are_read_from_metrics():
    from parameter_servers.jobs import read_told

    losses = (2.0, 1.5, 1.0, 0.5, 0.9, 0.6, 0.5)
    records = [{"kind": "start", "step": 0, "time": 90.0}]
    records += [{"kind": "train", "step": 20 * i, "time": 100.0 + i**2, "loss": n} for i, n in enumerate(losses, 1)]
    records[-1]["staleness"] = {"0": 3, "11": 4}
    told = read_told(records)
    assert told.secs == (0.0, 3.0, 8.0, 15.0, 24.0, 35.0, 48.0)
    assert told.rate(warm_up_secs=5.0) == pytest.approx((140 - 60) / (48 - 8))
    assert told.staleness == Counter({0: 3, 11: 4})
    assert told.secs_to(0.85) == 24.0, "one record of 0.5 is not enough"
    assert told.secs_to(0.1) is None
    with pytest.raises(RuntimeError, match="too short"):
        told.rate(warm_up_secs=40.0)


def test_ranks_get_none_of_the_settings_that_change_what_is_measured(monkeypatch: pytest.MonkeyPatch):
    from support.launch import environment

    for name in ("HOROVOD_CYCLE_TIME", "OMPI_MCA_mpi_yield_when_idle", "HPC_TRAIN_SHARED_WINDOW"):
        monkeypatch.setenv(name, "1")
        assert name not in environment()
    assert environment({"OMPI_MCA_btl": "tcp,self"})["OMPI_MCA_btl"] == "tcp,self"


@pytest.mark.parametrize("servers", [1, 2])
def test_parameters_lie_without_gaps(servers: int):
    from parameter_servers.settings import SIZES
    from parameter_servers.transfer_program import variables_of

    for nbytes in SIZES.values():
        plan = partition(variables_of(nbytes), servers)
        assert plan.nbytes == sum(variable.nbytes for variable in plan.variables)
        assert 0.999 * nbytes <= plan.nbytes <= nbytes
        assert plan.cut_variables == []
