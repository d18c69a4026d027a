"""What hpc-train launch says of --hosts and --min-hosts before it starts a rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpc_train.cli.app import app
from hpc_train.jobs.launch import mpirun
from hpc_train.jobs.launch.hosts import host_list
from hpc_train.jobs.launch.rank_hosts import RankHosts
from tests.support import make_job_in


class Launched:
    """Runs the command; `hosts` is where the ranks would be, None where mpirun chooses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, text in {"mpirun": "", "ssh": "", "scontrol": "echo n1; echo n2"}.items():
            (folder / name).write_text(f"#!/bin/sh\n{text}\n")
            (folder / name).chmod(0o700)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        monkeypatch.setattr(mpirun, "launch", self._launch)
        self._job = make_job_in(folder / "job", "hosts", run={"chief": "dedicated"})
        self.hosts: RankHosts | None = None
        self.ranks = 0

    def _launch(self, mpirun: object, ranks: int, *others: object) -> int:
        self.ranks = ranks
        *_, hosts = others
        self.hosts = hosts if isinstance(hosts, RankHosts) else None
        return 0

    def says(self, *words: str) -> str:
        """The mistake that it finds; "" where it starts ranks."""
        done = CliRunner().invoke(app, ["launch", str(self._job.file), *words])
        assert done.exit_code in (0, 2), done.output
        return " ".join(done.output.split()) if done.exit_code else ""


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launched:
    return Launched(tmp_path, monkeypatch)


def test_a_slurm_allocation_is_the_hosts_of_min_hosts(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--min-hosts needs --max-restarts, and --hosts or a Slurm" in launched.says(
        "--min-hosts=1", "--max-restarts=1"
    )
    for name, value in {"ID": "7", "NODELIST": "n[1-2]"}.items():
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    assert "--min-hosts needs --max-restarts" in launched.says("--min-hosts=1")
    assert not launched.says("--max-restarts=1", "-n4")
    assert (launched.hosts, launched.ranks) == (None, 4)
    assert not launched.says("--max-restarts=1", "--min-hosts=1")
    assert launched.hosts is not None and launched.ranks == 4
    assert host_list(launched.hosts.hosts) == "n1:2,n2:2"
    assert "--min-hosts: 3 is not allowed" in launched.says("--max-restarts=1", "--min-hosts=3")


def test_min_hosts_suit_the_job(launched: Launched) -> None:
    words = "--max-restarts=1", "--min-hosts=1"
    assert not launched.says("--hosts=n1:2,n2:2", *words)
    said = launched.says("--hosts=n1:1,n2:1", *words)
    assert "--min-hosts: with 1 of 2 hosts the job could not go on: run.chief: dedicated leaves no rank" in said
