"""`horovodrun -H n1:2,n2:2` on the nodes of a real Slurm. It asks hosts by ssh, for which a step of srun stands in."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import ended_as, job_environment, log, not_here, starts, status

SSH = """#!/bin/bash
# ssh [-o OPTION]… HOST [-o OPTION]… COMMAND
while [[ $1 == -o ]]; do shift 2; done
host=$1
shift
while [[ $1 == -o ]]; do shift 2; done
echo "$host" >>"$(dirname "$0")/asked"
exec srun --overlap --nodes=1 --ntasks=1 --nodelist="$host" --input=none sh -c "$*"
"""
# horovodrun gives mpirun transports of its own, and on one machine the two nodes' ranks cannot share its memory.
SCRIPT = """#!/bin/bash
horovodrun --disable-cache -np 4 -H n1:2,n2:2 --network-interfaces lo env OMPI_MCA_btl=self,tcp \\
    python -m hpc_train train job.yaml
"""


def test_horovodrun_trains_on_two_nodes(slurm_cluster: SlurmCluster, folder: Path) -> None:
    env = {**job_environment(slurm_cluster), "OMPI_MCA_osc": "pt2pt"}
    if shutil.which("horovodrun", path=env["PATH"]) is None:
        not_here("no horovodrun: make setup has not built Horovod")
    programs = folder.parent / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(0o700)
    (folder / "job.sh").write_text(SCRIPT)
    words = ["--nodes=2", "--ntasks-per-node=2", f"--output={folder}/job.out", "job.sh"]
    job = slurm_cluster.sbatch(words, cwd=folder, env={**env, "PATH": f"{programs}:{env['PATH']}"})
    assert ended_as(slurm_cluster.wait(job)) == ("COMPLETED", 0, 0), log(folder)
    job_dir = folder / "runs/tiny"
    ended = status(job_dir)
    assert (ended["state"], ended["step"], ended["ranks"]) == ("succeeded", 20, 4), ended
    assert starts(job_dir) == [0], "one job of four ranks, not four jobs"
    assert sorted((programs / "asked").read_text().split()) == ["n1", "n2"]
    for node in ("n1", "n2"):
        assert f"Data for node: {node}\tNum slots: 2" in log(folder), log(folder)
