"""`hpc-train launch --hosts` goes on without a host that is lost. A script stands in for ssh and three hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.faults.launched import Launched, faulty
from tests.ranks import train
from tests.support import Job, variables

MakeJob = Callable[..., Job]

AGENT = """#!/bin/bash
# HOST COMMAND...: runs the command here, in a session of its own, unless the file lost-HOST is there
host=$1; shift
[ -e "$HOSTS/lost-$host" ] && exit 255
mkdir -p "$HOSTS_TMP/$host"
exec setsid env -u OMPI_MCA_orte_local_tmpdir_base TMPDIR="$HOSTS_TMP/$host" LOST="$HOSTS/lost-$host" sh -c "$*"
"""
LOSE_HOST = """
            open(os.environ["LOST"], "w").close()
            mine = b"LOST=" + os.environ["LOST"].encode()
            for path in Path("/proc").glob("[0-9]*"):
                try:
                    if mine in (path / "environ").read_bytes().split(b"\\0") and int(path.name) != os.getpid():
                        os.kill(int(path.name), signal.SIGKILL)
                except OSError:
                    pass
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_job_goes_on_without_a_host_as_one_resumed_on_fewer_ranks(
    make_job: MakeJob, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # mpirun would hand the tests' folder for sessions on to its helpers; of three in one folder, one may fail (mkdir).
    monkeypatch.delenv("OMPI_MCA_orte_tmpdir_base")
    long, run = {"max_steps": 30}, {"save_checkpoints_steps": 10}
    job = make_job("lost", model=faulty(LOSE_HOST, rank=2, call=15, runs="[0]"), train=long, run=run)
    agent = job.folder / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o700)
    reached = {
        "OMPI_MCA_plm_rsh_agent": str(agent),
        "HOSTS": str(job.folder),
        "HOSTS_TMP": str(memory_folder),
        "HPC_TRAIN_RESTARTS": "0",
    }
    given = ["--hosts", "n1,n2,n3", "--min-hosts", "2", "--max-restarts", "1"]
    with Launched(job, *given, ranks=3, anew=True, **reached) as launched:
        assert launched.end() == 0, str(launched)
    assert "restart 1 of 1 at once, from step 10\n" in launched.err
    status = launched.status
    assert (status["state"], status["step"], status["ranks"], status["restarts"]) == ("succeeded", 30, 2, 1)
    assert status["restart_reason"] == "n3 does not answer, 2 ranks on 2 hosts: n1, n2"

    whole = make_job("whole", model=faulty("pass"), train={"max_steps": 10}, run=run)
    assert train(whole, 3).returncode == 0
    whole.file.write_text(whole.file.read_text().replace("max_steps: 10", "max_steps: 30"))
    assert train(whole, 2).returncode == 0
    wanted, found = variables(whole.job_dir, 30), variables(job.job_dir, 30)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)

    for path in job.folder.glob("lost-*"):
        path.unlink()
    (job.folder / "lost-n2").touch()
    (job.folder / "lost-n3").touch()
    with Launched(job, *given, ranks=3, name="few", anew=True, **reached) as launched:
        assert launched.end() == 205, str(launched)
    few = "not restarted: n2 does not answer, n3 does not answer, 1 host left of 3, and --min-hosts is 2\n"
    assert launched.err.endswith(few)
