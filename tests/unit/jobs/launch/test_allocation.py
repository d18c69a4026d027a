"""The nodes of a Slurm allocation: the ranks of each, and which can be used. Scripts stand in for Slurm's programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_train.errors import SchedulerError
from hpc_train.jobs.launch.allocation import allocated_nodes, hosts_of, problems
from hpc_train.jobs.launch.hosts import Host, host_list

INSIDE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}
SRUN = """#!/bin/sh
while [ "$1" != --nodelist ]; do shift; done
[ "$2" != "$DEAD" ] || exit 1
shift 2; exec "$@"
"""


@pytest.mark.parametrize(
    ("tasks", "ranks", "wanted"),
    [
        ("2(x3)", None, "n1:2,n2:2,n3:2"),
        ("2(x2),1", None, "n1:2,n2:2,n3:1"),
        ("2(x2),1", 3, "n1:2,n2:1"),
        ("2(x2),1", 7, "n1:3,n2:3,n3:1"),
        ("", None, "n1:1,n2:1,n3:1"),
        ("4", 2, "n1:1,n2:1"),
    ],
)
def test_ranks_go_to_nodes_as_mpirun_places_them(tasks: str, ranks: int | None, wanted: str) -> None:
    assert host_list(hosts_of(["n1", "n2", "n3"], tasks, ranks)) == wanted


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of Slurm. srun reaches all nodes but $DEAD."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    texts = {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho n1; echo n2; echo n3\n",
        "sinfo": "#!/bin/sh\necho n1=draining\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    return tmp_path


def test_nodes_are_left_out_that_do_not_answer_or_that_slurm_wants_left(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEAD", "n3")
    assert allocated_nodes(INSIDE) == ("n1", "n2", "n3")
    hosts = [Host(name) for name in ("n1", "n2", "n3")]
    assert problems(hosts, lambda: False) == {"n1": "n1 is draining", "n3": "n3 does not answer"}
    (programs / "sinfo").write_text("#!/bin/sh\nexit 1\n")
    assert problems(hosts, lambda: False) == {"n3": "n3 does not answer"}


def test_outside_of_an_allocation_there_are_no_nodes(programs: Path) -> None:
    assert allocated_nodes({}) == ()
    (programs / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(SchedulerError, match="does not name the nodes"):
        allocated_nodes(INSIDE)
