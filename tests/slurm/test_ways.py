"""One job in every way that a site may start it: launcher, pack, container, roles. Its weights are equal to the bit."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import pytest

from tests.slurm.back_ends import BackEnd
from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import job_environment, make_folder
from tests.slurm.test_containers import ROLES, TWO_NODES, image
from tests.support import SOAK, variables

__all__ = ["image"]


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="packs all of TensorFlow, which takes a minute and 5 GB")
def test_weights_are_equal_in_every_way(
    slurm_cluster: SlurmCluster,
    image: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, contained = make_folder(tmp_path / "model"), f"--set=resources.container={image}"
    starts = {"the environment": (), "a pack": ("--set=resources.pack=auto",), "a container": (contained,)}
    ways = [
        (launcher, start, "alike", (f"--set=resources.launcher={launcher}", *options))
        for launcher, (start, options) in itertools.product(("mpirun", "srun"), starts.items())
    ]
    ways += [("mpirun", start, "by roles", (*ROLES, *starts[start])) for start in ("the environment", "a container")]
    rows = []
    with BackEnd(tmp_path, slurm_cluster) as slurm:
        slurm.env |= {**job_environment(slurm_cluster, anew=True), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        for number, (*way, settings) in enumerate(ways):
            job = slurm.submit_file(folder / "job.yaml", f"way_{number}", *TWO_NODES, *settings)
            assert job.end() == ("SUCCEEDED", 0), job.log()
            assert ("the environment is" in job.log(), "the ranks run in" in job.log()) == (
                way[1] == "a pack",
                way[1] == "a container",
            )
            digest = hashlib.sha256()
            for name, value in sorted(variables(job.job_dir, 20).items()):
                digest.update(name.encode() + value.tobytes())
            rows.append((*way, digest.hexdigest()[:16]))
    with capsys.disabled():
        print("\n| launcher | ranks start from | ranks are | SHA-256 of the weights |\n|---|---|---|---|")
        for row in rows:
            print(f"| {' | '.join(row)} |")
    assert len({row[-1] for row in rows}) == 1
