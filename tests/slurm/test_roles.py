"""Roles with nodes of their own, through `hpc-train submit`, on a real Slurm: a heterogeneous job."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.slurm.back_ends import BackEnd
from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import make_folder, write_job
from tests.support import variables, wait_for

STEPS = 30


def test_jobs_by_roles_come_to_the_same_and_are_one_job(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "my job")
    write_job(folder, STEPS, STEPS)
    # With a limit: of jobs without one Slurm's backfill, which alone starts heterogeneous ones, expects no end.
    common = ("--set=resources.tier=CUSTOM", "--set=resources.time=10")
    alike = (*common, "--set=resources.nodes=2")
    roles = (*common, "--set=resources.chief={cores_per_rank: 2}", "--set=resources.workers={}")
    with BackEnd(tmp_path / "alike", slurm_cluster) as back_end:
        back_end.folder.mkdir()
        jobs = [
            back_end.submit_file(folder / "job.yaml", "alike", *alike),
            back_end.submit_file(folder / "job.yaml", "by_roles", *roles),
        ]
        blanks = {"TMPDIR": str(tmp_path / "my tmp")}
        (tmp_path / "my tmp").mkdir()
        go = str(tmp_path / "go")
        held = back_end.submit("held", "--until", go, workers={}, chief={}, time=10, environment=blanks)
        for job in jobs:
            assert job.end() == ("SUCCEEDED", 0), job.log()
            assert job.status()["ranks"] == 2
        wait_for(lambda: (held.job_dir / "pid-1").exists(), held.log)
        rows = {row["name"]: row["state"] for row in back_end.run("list", "--json").json()}
        assert rows == {"alike": "SUCCEEDED", "by_roles": "SUCCEEDED", "held": "RUNNING"}
        back_end.run("cancel", "held")
        assert held.end()[0] == "CANCELLED"
        slurm_cluster.wait(int(held.number))
    found, wanted = variables(jobs[1].job_dir, STEPS), variables(jobs[0].job_dir, STEPS)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    environment = json.loads((jobs[1].job_dir / "environment.json").read_text())
    assert [(rank["role"], rank["node"]) for rank in environment["ranks"]] == [("chief", "n1"), ("worker", "n2")]
