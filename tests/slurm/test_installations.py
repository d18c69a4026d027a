"""A job runs the hpc_train that it was submitted with, whatever becomes of the checkout; and a site's first submit.

On a Slurm of two nodes and in this machine's queue.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.back_ends import BackEnd, make_program
from tests.slurm.cluster import SlurmCluster, missing_requirements
from tests.slurm.jobs import not_here
from tests.support import REPOSITORY, SITE

SAYS = """\
import os
import sys

import hpc_train

sys.stdout.write(f"runs {hpc_train.MARK} from {hpc_train.__file__}, UCX_TLS {os.environ.get('UCX_TLS')}\\n")
"""


@pytest.fixture(scope="module", params=["slurm", "local"])
def back_end(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackEnd]:
    """Each in turn, with a copy of this package in `checkout`, which may be changed and all commands import."""
    folder = tmp_path_factory.mktemp(request.param)
    cluster = None
    if request.param == "slurm" and (reason := missing_requirements()) is not None:
        not_here(reason)
    checkout = folder / "checkout"
    shutil.copytree(REPOSITORY / "hpc_train", checkout / "hpc_train", ignore=shutil.ignore_patterns("__pycache__"))
    set_mark(checkout, "one")
    if request.param == "local":
        with BackEnd(folder, cluster) as found:
            yield importing(found, checkout)
        return
    with SlurmCluster() as cluster, BackEnd(folder, cluster) as found:
        yield importing(found, checkout)


def importing(back_end: BackEnd, checkout: Path) -> BackEnd:
    back_end.env.pop("TESTS_FORKS", None)  # of processes that have imported the package itself
    back_end.env["PYTHONPATH"] = os.pathsep.join([str(SITE), str(checkout)])
    return back_end


def set_mark(checkout: Path, mark: str) -> None:
    path = checkout / "hpc_train/__init__.py"
    path.write_text(path.read_text().partition("MARK = ")[0] + f"MARK = {mark!r}\n")


def make_saying_program(folder: Path) -> Path:
    job_file = make_program(folder, ranks_per_node=2)
    (folder / "trainer/task.py").write_text(SAYS)
    return job_file


def test_a_job_runs_what_it_was_submitted_with(back_end: BackEnd) -> None:
    checkout = back_end.folder / "checkout"
    job_file = make_saying_program(back_end.code / "says")
    holder = back_end.submit("holder", "--until", "{job_dir}/go")
    job = back_end.submit_file(job_file, "waits", "--after", "holder")
    lost = back_end.submit_file(job_file, "lost", "--after", "holder")
    set_mark(checkout, "two")
    (copy,) = (job.job_dir / "installation").iterdir()
    assert copy.stat().st_mode & 0o077 == 0
    (lost_copy,) = (lost.job_dir / "installation").iterdir()
    damaged = lost_copy / "hpc_train/trees/__init__.py"
    damaged.write_text(damaged.read_text() + "\n")
    holder.let_go()

    assert job.end() == ("SUCCEEDED", 0), job.log()
    assert job.log().count(f"runs one from {copy}/hpc_train/__init__.py") == 2, job.log()
    assert lost.end() == ("FAILED", 2), lost.log()
    assert "the job does not start: it was submitted with hpc_train" in lost.log()
    assert "runs one" not in lost.log()

    assert job.again().end() == ("SUCCEEDED", 0), job.log()
    assert job.log().count(f"runs one from {copy}") == 4, job.log()
    assert job.again("--with-this-version").end() == ("SUCCEEDED", 0), job.log()
    assert job.log().count(f"runs two from {job.job_dir}/installation/") == 2, job.log()
    recorded = json.loads((job.job_dir / "submission.json").read_text())["installation"]
    assert (recorded["package"], recorded["copied"]) == (str(checkout / "hpc_train"), True)

    refused = back_end.run("resume", "lost", code=2).err
    assert "holds hpc_train" in refused
    assert "--with-this-version" in refused


def test_the_first_version_of_a_site_file_is_enough_to_submit(back_end: BackEnd, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    tmp_path.chmod(0o700)
    back_end.run("doctor", "--site", "--out", site)
    assert "cannot be written: File exists" in back_end.run("doctor", "--site", "--out", site, code=2).err
    with site.open("a") as file:
        file.write("mpi: {UCX_TLS: tcp}\n")
    job_file = make_saying_program(back_end.code / "first")
    job_file.write_text("{name: first, module: trainer.task}\n")
    env = {"HPC_TRAIN_SITE": str(site)}
    (told,) = back_end.run("submit", job_file, "--name", "first", "--json", **env).json()
    job = back_end.job("first", told["job_id"])
    assert job.end() == ("SUCCEEDED", 0), job.log()
    assert job.log().count("UCX_TLS tcp") == 2, job.log()
    tiers = back_end.run("tiers", "--json", **env).json()
    own = [tier for tier in tiers if tier["file"] == str(site)]
    assert bool(own) == (back_end.cluster is not None)
    assert not any(tier["problems"] for tier in own)
