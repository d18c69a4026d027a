"""Ranks that bind themselves, and jobs of one machine that share no CPU."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.distributed.topology import cpu_list, read_topology
from tests.support import FINAL, Job, run_program, run_ranks

PROGRAM = Path(__file__).parent / "programs" / "binding.py"
MASK = os.sched_getaffinity(0)
CORES = read_topology(MASK).cores
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")


def test_each_rank_has_cores_of_its_own_and_its_threads_with_it(tmp_path: Path) -> None:
    done = run_ranks(2, [PROGRAM], tmp_path, anew=True, HPC_TRAIN_BIND="core", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    said = re.findall(r"\['hpc_train', '([0-9,-]+)', '[0-9]*', 1\]", done.stdout)
    first, second = (cpu_list(text) for text in dict.fromkeys(said))
    assert first.isdisjoint(second) and {first, second} <= {core & MASK for core in CORES}, done.stdout


def test_more_ranks_than_cores_are_left_alone_with_a_warning(tmp_path: Path) -> None:
    ranks = len(CORES) + 1
    done = run_ranks(ranks, [PROGRAM], tmp_path, HPC_TRAIN_BIND="core", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['', '', 'bind: core: ") == ranks
    assert f"ranks are not bound as asked: bind: core: the node has {len(CORES)} cores for {ranks} ranks" in done.stdout


def test_what_mpirun_has_bound_stays(tmp_path: Path) -> None:
    command = ["mpirun", "--bind-to", "hwthread", "--map-by", "hwthread", "-np", "2", sys.executable, str(PROGRAM)]
    done = run_program(command, tmp_path, HPC_TRAIN_BIND="core", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert len(set(re.findall(r"\['launcher', '(\d+)'", done.stdout))) == 2, done.stdout
    assert "not bound as asked: the launcher has bound the ranks already" in done.stdout


def test_a_job_tells_what_its_ranks_are_bound_to(make_job: Callable[..., Job]) -> None:
    job = make_job(run={"save_checkpoints_steps": 10}, eval=FINAL)
    launch = [sys.executable, "-m", "hpc_train", "launch", "-n", "2", "--bind", "core", str(job.file)]
    done = run_program([*launch, "--job-dir", str(job.job_dir)], job.folder, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    ranks = json.loads((job.job_dir / "environment.json").read_text())["ranks"]
    bound = [rank["binding"] for rank in ranks]
    assert [one["by"] for one in bound] == ["hpc_train"] * 2 and bound[0]["cpus"] != bound[1]["cpus"]
    assert f"local rank 0 on {bound[0]['cpus']}" in " ".join(done.stdout.split())
    refused = run_program([*launch[:6], "--bind", "socket", str(job.file)], job.folder)
    assert refused.returncode == 2
    assert "HPC_TRAIN_BIND is 'socket'; allowed: none, core, numa, auto" in refused.stderr


MEETING = """
import os, pathlib, sys, time
own, other = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
text = " ".join(map(str, sorted(os.sched_getaffinity(0))))
own.with_suffix(".new").write_text(f"{text}|{os.environ['HPC_TRAIN_OWN_CPUS']}|{os.environ['HPC_TRAIN_BIND']}")
own.with_suffix(".new").rename(own)
while not other.exists():
    time.sleep(0.05)
"""


def test_two_jobs_at_once_share_no_cpu(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "meeting.py").write_text(MEETING)
    (folder / "job.yaml").write_text(
        "name: meeting\nmodule: meeting\nresources: {tier: CUSTOM, nodes: 1, ranks_per_node: 1, cores_per_rank: 1, "
        "bind: numa, time: '00:10:00'}\n"
    )
    queue = {"HPC_TRAIN_BACKEND": "local", "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "hpc_train"]
    for name, other in (("a", "b"), ("b", "a")):
        words = ["submit", "job.yaml", "--name", name, "--root", str(tmp_path / "runs")]
        done = run_program(
            [*command, *words, "--set", f"args=[{tmp_path / name}, {tmp_path / other}]"], folder, **queue
        )
        assert done.returncode == 0, done.stderr
    for name in "ab":
        done = run_program([*command, "wait", name, "--root", str(tmp_path / "runs")], folder, **queue)
        assert done.returncode == 0, done.stdout + done.stderr
    found = [(tmp_path / name).read_text().split("|") for name in "ab"]
    masks = [set(text.split()) for text, _, _ in found]
    assert [len(mask) for mask in masks] == [1, 1] and masks[0].isdisjoint(masks[1])
    assert [[given, bind] for _, given, bind in found] == [[*mask, "numa"] for mask in masks]
