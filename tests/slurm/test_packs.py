"""Packs on a real Slurm of two nodes: ranks start from them, they go with the job, and what does not fit is told."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_train.packs.archive import plan_pack, write_pack
from tests.slurm.back_ends import BackEnd
from tests.slurm.cluster import SlurmCluster
from tests.support import LIMIT_SECS, REPOSITORY, wait_for
from tests.unit.packs.test_requirements import make_wheel

LIGHT = (
    *("annotated_doc", "annotated_types", "click", "markdown_it", "mdurl", "psutil", "pydantic", "pydantic_core"),
    *("pygments", "rich", "shellingham", "typer", "typing_extensions.py", "typing_inspection", "yaml", "_yaml"),
)
"""What record-begin and record-end import: the pack is small, and mpirun stays that of the tests."""
PROGRAM = """\
import sys
import time
from pathlib import Path

import own_tool

job_dir = Path(sys.argv[1])
sys.stdout.write(f"starts from {sys.prefix} with {own_tool.VERSION}\\n")  # at once: another rank does so, too
sys.stdout.flush()
while not (job_dir / "go").exists():
    time.sleep(0.1)
"""


@pytest.fixture
def slurm(tmp_path: Path, slurm_cluster: SlurmCluster) -> Iterator[BackEnd]:
    with BackEnd(tmp_path, slurm_cluster) as found:
        yield found


@pytest.fixture
def light_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    venv = tmp_path / "light"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=LIMIT_SECS)
    (packages,) = venv.glob("lib/python3*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    for name in LIGHT:
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    for info in here.glob("hpc_train-*.dist-info"):
        (packages / info.name).symlink_to(info)
    (packages / "hpc_train").symlink_to(REPOSITORY / "hpc_train")
    script = venv / "bin/hpc-train"
    script.write_text(f"#!{venv}/bin/python3\nfrom hpc_train.__main__ import main\nmain()\n")
    script.chmod(0o755)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    write_pack(tmp_path / "light.tar", plan_pack(venv, print))
    return tmp_path / "light.tar"


def places(slurm: BackEnd) -> list[Path]:
    """Folders of packs on the nodes."""
    assert slurm.cluster is not None
    return list((slurm.cluster.root / "tmp").rglob("hpc_train-pack-*"))


def starts(log: str) -> list[tuple[str, str]]:
    """Where each rank says that it starts from, and the version of its package; of whole lines alone."""
    return re.findall(r"starts from (\S+)/env with (\S+)\n", log)


def test_ranks_start_from_a_pack_and_from_packages_of_the_job(slurm: BackEnd, light_pack: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "wheels").mkdir(parents=True)
    make_wheel(code / "wheels", "own_tool", "2.0")
    (code / "requirements.txt").write_text("--no-index\n--find-links wheels\nown-tool\n")
    (code / "task.py").write_text(PROGRAM)
    (code / "job.yaml").write_text(
        "name: packed\nmodule: task\nargs: ['{job_dir}']\nresources: {tier: CUSTOM, nodes: 2, ranks_per_node: 1, "
        "pack: ../light.tar, requirements: requirements.txt}\n"
    )
    job = slurm.submit_file(code / "job.yaml", "packed")
    wait_for(lambda: len(starts(job.log())) == 2, job.log)
    ((place, version),) = set(starts(job.log()))
    assert Path(place).name.startswith("hpc_train-pack-") and version == "2.0"
    assert f"the environment is {light_pack}, sent to 2 node(s)" in job.log()
    assert Path(place).stat().st_mode & 0o777 == 0o700
    assert not (job.job_dir / "packages").exists() and (job.job_dir / "packages.tar").is_file()

    assert slurm.cluster is not None  # back in the queue, it unpacks again
    slurm.cluster.run(["scontrol", "requeue", job.number])
    wait_for(lambda: not Path(place).exists(), job.log)
    slurm.cluster.run(["scontrol", "update", f"JobId={job.number}", "StartTime=now"])
    wait_for(lambda: len(starts(job.log())) == 4, job.log)
    job.let_go()
    assert job.end() == ("SUCCEEDED", 0), job.log()
    wait_for(lambda: not places(slurm), lambda: places(slurm))

    told = slurm.run("resume", job.name, f"--set=resources.requirements={code}/other.txt", code=2)
    assert "resources.requirements: are those of the job's first submission" in told.err
    light_pack.rename(tmp_path / "moved.tar")
    told = slurm.run("resume", job.name, code=2)
    assert f"resources.pack: {light_pack}, which the job had, is gone" in told.err

    for path, said_of in ((code / "task.py", "is no pack"), (tmp_path / "nothing.tar", "cannot be read: No such file")):
        told = slurm.run("submit", code / "job.yaml", "--name=no", f"--set=resources.pack={path}", code=2)
        assert f"{path}: {said_of}" in told.err
    (code / "requirements.txt").write_text("--no-index\nown-tool\n")
    told = slurm.run("submit", code / "job.yaml", "--name=no", "--set=resources.pack=none", code=2)
    assert "pip cannot install it (resources.requirements): " in told.err
    assert not (slurm.root / "no").exists()
