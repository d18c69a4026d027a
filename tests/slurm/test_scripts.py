"""Arrays, benchmarks, heterogeneous jobs, and users' own programs under slurm/ranks.sh, on a real Slurm of two nodes.

All jobs run at once, since most of their time is waiting: for Slurm to start one again, and for Python to start.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import JobResult, SlurmCluster, missing_requirements
from tests.slurm.jobs import (
    TRAIN_SH,
    ended_as,
    job_environment,
    make_folder,
    not_here,
    status,
    write_job,
)
from tests.support import REPOSITORY, wait_for

SLURM = REPOSITORY / "slurm"
BENCHMARK_SH = str(SLURM / "benchmark.sh")
TWO_NODES = ("--nodes=2", "--ntasks-per-node=1")
ONE_RANK = ("--nodes=1", "--ntasks=1")

PROGRAM = """\
import os
import signal
import sys
import time
from pathlib import Path

does, job_dir = sys.argv[1], Path(sys.argv[3])
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
print(f"rank {rank} has {os.environ['OF_THE_JOB']}", flush=True)
if does == "fails":
    if rank == int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) - 1:
        raise ValueError("no such data")
    time.sleep(3600)
if does == "saves":
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
seen = job_dir / f"seen-{rank}"
if not seen.exists():
    seen.write_text("")
    time.sleep(3600)
"""

JOB_SH = """\
#!/bin/bash
set -euo pipefail
stop=
trap 'stop=USR1' USR1
trap 'stop=TERM' TERM
export OF_THE_JOB=both
cd {folder}
command=(python task.py {does} --job-dir {job_dir})
record=(--job-dir {job_dir} --submission token --log {job_dir}/logs/job.out)
again=(hpc-train resume {name})
program=1
alone={alone}
log_dir={job_dir}/logs
{ranks_sh}"""


@dataclass(frozen=True)
class Program:
    """A job that runs PROGRAM as `hpc-train submit` has it run."""

    cluster: SlurmCluster
    job_dir: Path
    number: int

    def result(self) -> JobResult:
        return self.cluster.wait(self.number)

    def status(self) -> dict[str, Any]:
        return status(self.job_dir)

    def log(self) -> str:
        return (self.job_dir / "logs/job.out").read_text()

    def rank_prints(self, run: int, rank: int, stream: str = "stdout") -> str:
        return (self.job_dir / f"logs/run-{run}/1/rank.{rank}/{stream}").read_text()


def submit_program(
    cluster: SlurmCluster, env: Mapping[str, str], folder: Path, does: str, *args: str, alone: bool = False
) -> Program:
    name = f"{does}{'_alone' if alone else ''}"
    job_dir = folder / "job dirs" / name
    (job_dir / "logs").mkdir(parents=True)
    (folder / "task.py").write_text(PROGRAM)
    (job_dir / "submission.json").write_text(json.dumps({"token": "token"}))
    (job_dir / "status.json").write_text(json.dumps({"state": "queued"}))
    words = {"folder": folder, "does": does, "job_dir": job_dir, "name": name, "alone": "1" if alone else ""}
    quoted = {key: shlex.quote(str(value)) for key, value in words.items()}
    script = job_dir / "job.sh"
    script.write_text(JOB_SH.format(**quoted, ranks_sh=(SLURM / "ranks.sh").read_text()))
    more = [f"--output={job_dir}/logs/job.out", "--open-mode=append", "--requeue"]
    return Program(cluster, job_dir, cluster.sbatch([*args, *more, str(script)], folder, env))


@dataclass(frozen=True)
class Started:
    """All the jobs: `programs` by name, and the numbers of the others, whose output is `folder/<name>-….out`."""

    cluster: SlurmCluster
    folder: Path
    programs: dict[str, Program]
    array: int
    benchmark: int
    scaling: int
    no_benchmark: int
    heterogeneous: int

    def out(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """The jobs, two of which have been warned as at a time limit, and one of which has been cancelled."""
    if (reason := missing_requirements()) is not None:
        not_here(reason)
    with SlurmCluster(cpus_per_node=16) as cluster:
        env = job_environment(cluster)
        folder = make_folder(tmp_path_factory.mktemp("jobs") / "my jobs")
        home = {**env, "HPC_TRAIN_HOME": str(REPOSITORY)}
        tiny = ["checkpoint", "--quick", "--sizes", "1 MB"]
        benchmark = cluster.sbatch(["--nodelist=n2", "--output=checkpoint.out", BENCHMARK_SH, *tiny], folder, home)
        shared = [*TWO_NODES, "--oversubscribe", "--output=scaling.out"]  # not --exclusive: other jobs need not wait
        tiny = ["scaling", "--quick", "--models", "mlp", "--kinds", "weak", "--ranks", "1", "2"]
        scaling = cluster.sbatch([*shared, BENCHMARK_SH, *tiny], folder, home)
        no_benchmark = cluster.sbatch(["--output=none.out", BENCHMARK_SH, "tiny"], folder, env)
        (folder / "overrides.txt").write_text("# two tasks\n\ntrain.max_steps=12 params.units=4\ntrain.max_steps=14")
        flags = ["--array=0-2", "--ntasks-per-node=1", f"--output={folder}/array-%a.out"]
        array = cluster.sbatch([*flags, str(SLURM / "array.sh"), "job.yaml", "overrides.txt"], folder, env)
        both = make_folder(folder / "both")
        write_job(both, max_steps=60, save_checkpoints_steps=60, run={"strategy": "async", "tf_random_seed": 1})
        components = ["--ntasks-per-node=1", "--nodelist=n1", ":", "--ntasks-per-node=2", "--nodelist=n2"]
        heterogeneous = cluster.sbatch([f"--output={folder}/het.out", *components, TRAIN_SH, "job.yaml"], both, env)
        programs = {
            "fails": submit_program(cluster, env, folder, "fails", *TWO_NODES),
            "fails alone": submit_program(cluster, env, folder, "fails", *ONE_RANK, alone=True),
            "saves": submit_program(cluster, env, folder, "saves", *TWO_NODES),
            "knows no signals": submit_program(cluster, env, folder, "sleeps", *ONE_RANK, alone=True),
            "cancelled": submit_program(cluster, env, folder, "is cancelled", *TWO_NODES),
        }
        for name, ranks, *options in (
            ("saves", 2, "--batch", "--signal=USR1"),
            ("knows no signals", 1, "--batch", "--signal=USR1"),
            ("cancelled", 2),
        ):
            job = programs[name]
            seen = [job.job_dir / f"seen-{rank}" for rank in range(ranks)]
            wait_for(lambda: all(path.exists() for path in seen), f"{name} runs")
            assert job.status()["state"] == "running"
            cluster.scancel(job.number, *options)
        yield Started(cluster, folder, programs, array, benchmark, scaling, no_benchmark, heterogeneous)


def test_each_task_of_an_array_has_its_own_settings_and_job_dir(started: Started) -> None:
    for task, (steps, units) in enumerate(((12, 4), (14, 8))):
        result = started.cluster.wait(f"{started.array}_{task}")
        assert ended_as(result) == ("COMPLETED", 0, 0), started.out(f"array-{task}")
        job_dir = started.folder / f"runs/tiny-{started.array}_{task}"
        current = status(job_dir)
        assert (current["state"], current["step"]) == ("succeeded", steps)
        assert re.search(rf"^ *units: {units}$", (job_dir / "job.yaml").read_text(), re.M)


def test_a_task_without_a_line_is_told_how_many_there_are(started: Started) -> None:
    assert started.cluster.wait(f"{started.array}_2").exit_code == 2
    assert "overrides.txt has 2 lines of settings, so there is none for task 2" in started.out("array-2")


def results_of(started: Started, name: str, number: int) -> list[dict[str, Any]]:
    """The records of a benchmark, whose job has to succeed and to leave the report beside them."""
    assert ended_as(started.cluster.wait(number))[:2] == ("COMPLETED", 0), started.out(name)
    results = started.folder / f"runs/benchmark_{name}-{number}"
    assert {"records.jsonl", "report.md"} <= {path.name for path in results.iterdir()}
    return [json.loads(line) for line in (results / "records.jsonl").read_text().splitlines()]


def test_a_benchmark_leaves_its_results(started: Started) -> None:
    results_of(started, "checkpoint", started.benchmark)


def test_a_benchmark_trains_in_a_job_of_several_nodes(started: Started) -> None:
    records = results_of(started, "scaling", started.scaling)
    assert [record["config"]["workers"] for record in records] == [1, 2]
    assert {record["config"]["machine"]["nodes"] for record in records} == {2}
    assert not list((started.folder / "runs").glob("scaling-*")), "what the ranks shared was left behind"


def test_an_unknown_benchmark_is_told_which_there_are(started: Started) -> None:
    assert started.cluster.wait(started.no_benchmark).exit_code == 2
    there = sorted(path.stem for path in (REPOSITORY / "benchmarks").glob("*.py"))
    assert {"checkpoint", "collectives", "input_pipeline", "overhead", "parameter_server", "scaling"} <= set(there)
    assert f"there is no benchmark 'tiny'; there are: {' '.join(there)}\n" in started.out("none")


def test_the_ranks_of_a_heterogeneous_job_are_on_all_of_its_components(started: Started) -> None:
    """The chief, which holds the parameters, on the first one."""
    result = started.cluster.wait(started.heterogeneous)
    assert ended_as(result) == ("COMPLETED", 0, 0), started.out("het")
    current = status(started.folder / "both/runs/tiny")
    assert (current["state"], current["ranks"], current["steps_by_rank"].keys()) == ("succeeded", 3, {"1", "2"})
    maps = re.findall(r"Data for node: (\S+).*Num procs: (\d)", started.out("het"))
    assert maps[:2] == [("n1", "1"), ("n2", "2")]


def test_the_rank_of_a_program_that_fails_is_named_with_its_error(started: Started) -> None:
    job = started.programs["fails"]
    assert ended_as(job.result()) == ("FAILED", 1, 0), job.log()
    current = job.status()
    assert (current["state"], current["exit_code"], current["ranks"]) == ("failed", 1, 2)
    assert (current["error"]["rank"], current["error"]["message"]) == (1, "ValueError: no such data")
    assert 'raise ValueError("no such data")' in "\n".join(current["error"]["lines"])
    assert "no such data" in job.rank_prints(0, 1, "stderr")


def test_a_program_that_runs_alone_has_no_rank_but_0(started: Started) -> None:
    job = started.programs["fails alone"]
    assert ended_as(job.result()) == ("FAILED", 1, 0), job.log()
    error = job.status()["error"]
    assert (error["rank"], error["message"]) == (0, "ValueError: no such data")


def test_a_program_that_saves_at_the_warning_goes_on(started: Started) -> None:
    job = started.programs["saves"]
    assert ended_as(job.result()) == ("COMPLETED", 0, 1), job.log()
    current = job.status()
    assert (current["state"], current["exit_code"], current["job_id"]) == ("succeeded", 0, str(job.number))
    assert (current["program"], current["requeues"], current["restarts"]) == (True, 1, 1)
    assert "the job is back in the queue (warning)" in job.log()
    for run in (0, 1):
        assert [job.rank_prints(run, rank) for rank in (0, 1)] == ["rank 0 has both\n", "rank 1 has both\n"]


def test_a_program_that_the_warning_kills_goes_back_all_the_same(started: Started) -> None:
    job = started.programs["knows no signals"]
    assert ended_as(job.result()) == ("COMPLETED", 0, 1), job.log()
    assert (job.status()["state"], job.status()["ranks"]) == ("succeeded", 1)


def test_a_program_that_is_cancelled_says_so(started: Started) -> None:
    job = started.programs["cancelled"]
    assert job.result().state == "CANCELLED", job.log()
    current = job.status()
    assert current["state"] == "cancelled", job.log()
    assert 0 < current["exit_code"] < 256
    assert "error" not in current
