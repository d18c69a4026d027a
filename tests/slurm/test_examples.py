"""The example programs as jobs on a real Slurm: one replica, ranks with a collective of their own, and Horovod's."""

from __future__ import annotations

import json
from pathlib import Path

from tests.slurm.back_ends import BackEnd
from tests.slurm.cluster import SlurmCluster
from tests.support import REPOSITORY

ACROSS_NODES = ("--set=resources.nodes=2", "--set=resources.ranks_per_node=1")
JOBS = {
    "scikit_learn": ("--set=args=[--grid, 0.01, 1]",),
    "xgboost": ("--set=args=[--rounds, 10]", *ACROSS_NODES),
    "horovod_script": ("--set=args=[--steps, 60]", *ACROSS_NODES),
    "tf_distribute": ACROSS_NODES,
}


def test_the_examples_run_as_jobs(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    back_end = BackEnd(tmp_path, slurm_cluster)
    jobs = [
        back_end.submit_file(REPOSITORY / f"examples/{name}/job.yaml", name, *options) for name, options in JOBS.items()
    ]

    for job in jobs:
        assert job.end() == ("SUCCEEDED", 0), job.log()
        if job.job_dir.name == "tf_distribute":
            continue
        metrics = json.loads((job.job_dir / "model/metrics.json").read_text())
        assert metrics["accuracy"] > 0.7, metrics
    assert [job.status()["ranks"] for job in jobs] == [1, 2, 2, 2]
    assert [slurm_cluster.fields(job.number)["NodeList"] for job in jobs[1:]] == ["n[1-2]"] * 3
    found = json.loads((jobs[-1].job_dir / "result.json").read_text())
    assert found["step"] == 200 and abs(found["slope"] - 3) < 1e-3, found
