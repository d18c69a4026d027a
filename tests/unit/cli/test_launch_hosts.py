"""What hpc-train launch says of --hosts and --min-hosts before it starts a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpc_train.cli.app import app
from hpc_train.jobs.launch import run
from hpc_train.jobs.launch.hosts import host_list
from hpc_train.jobs.launch.launchers.base import Launcher
from hpc_train.jobs.launch.rank_hosts import RankHosts
from tests.support import make_job_in


class Launched:
    """Runs the command; `hosts` is where the ranks would be, None where mpirun chooses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, text in {"mpirun": "", "ssh": "", "scontrol": "echo n1; echo n2", "srun": ""}.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o700)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        monkeypatch.setattr(run, "launch", self._launch)
        self.programs = folder
        self._job = make_job_in(folder / "job", "hosts", run={"chief": "dedicated"})
        self.hosts: RankHosts | None = None
        self.launcher, self.ranks = "", 0

    def _launch(self, launcher: Launcher, ranks: int, *others: object) -> int:
        self.launcher, self.ranks = launcher.name, ranks
        *_, hosts = others
        self.hosts = hosts if isinstance(hosts, RankHosts) else None
        return 0

    def says(self, *words: str) -> str:
        """The mistake that it finds; "" where it starts ranks."""
        done = CliRunner().invoke(app, ["launch", str(self._job.file), *words])
        assert done.exit_code in (0, 2, 12), done.output
        return " ".join(done.output.split()) if done.exit_code else ""


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    return Launched(tmp_path, monkeypatch)


def enter_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process is in a Slurm job."""
    for name, value in {"ID": "7", "NODELIST": "n[1-2]"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")


def test_a_slurm_allocation_is_the_hosts_of_min_hosts(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--min-hosts needs --max-restarts, and --hosts or a Slurm" in launched.says(
        "--min-hosts=1", "--max-restarts=1"
    )
    enter_job(monkeypatch)
    assert "--min-hosts needs --max-restarts" in launched.says("--min-hosts=1")
    assert not launched.says("--max-restarts=1", "-n4")
    assert (launched.hosts, launched.ranks) == (None, 4)
    assert not launched.says("--max-restarts=1", "--min-hosts=1")
    assert launched.hosts is not None and launched.ranks == 4
    assert host_list(launched.hosts.hosts) == "n1:2,n2:2"
    assert "--min-hosts: 3 is not allowed" in launched.says("--max-restarts=1", "--min-hosts=3")


def test_hosts_that_are_given_need_no_scontrol(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_job(monkeypatch)
    (launched.programs / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    assert not launched.says("--max-restarts=1", "--hosts=192.0.2.1:2,192.0.2.2:2")
    assert launched.hosts is not None and launched.ranks == 4
    assert "does not name the nodes" in launched.says("--max-restarts=1", "--min-hosts=1")


def test_nodes_of_a_job_that_cannot_be_asked_are_a_mistake(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_job(monkeypatch)
    (launched.programs / "srun").unlink()
    monkeypatch.setenv("PATH", str(launched.programs))
    (launched.programs / "scontrol").write_text("#!/bin/sh\n[ $2 = hostnames ] && echo n1 && echo n2\n")
    assert "no srun on PATH" in launched.says("--max-restarts=1", "--min-hosts=1")
    assert not launched.says("--hosts=n1:2,n2:2"), "without restarts none is asked"


def test_srun_is_for_allocations_and_takes_no_hosts(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "--launcher srun needs a Slurm allocation" in launched.says("--launcher=srun", "-n2")
    assert "--launcher: 'mpiexec' is not allowed; allowed: mpirun, srun" in launched.says("--launcher=mpiexec")
    enter_job(monkeypatch)
    assert "srun here has no pmix" in launched.says("--launcher=srun", "-n2")
    monkeypatch.setenv("SLURM_MPI_TYPE", "pmix")
    assert "--hosts needs --launcher mpirun" in launched.says("--launcher=srun", "--hosts=n1:2,n2:2")
    assert "--min-hosts needs --launcher mpirun" in launched.says("--launcher=srun", "--min-hosts=1")
    assert not launched.says("--launcher=srun", "-n2")
    assert (launched.launcher, launched.ranks) == ("srun", 2)


def test_min_hosts_suit_the_job(launched: Launched) -> None:
    words = "--max-restarts=1", "--min-hosts=1"
    assert not launched.says("--hosts=192.0.2.1:2,192.0.2.2:2", *words)
    said = launched.says("--hosts=192.0.2.1:1,192.0.2.2:1", *words)
    assert "--min-hosts: with 1 of 2 hosts the job could not go on: run.chief: dedicated leaves no rank" in said
