"""TensorFlow's cluster: who has which role, what TF_CONFIG says, and how ranks meet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train import UserError
from hpc_train.config.cluster import cluster_in, words_of
from hpc_train.jobs.cluster.rendezvous import Rendezvous
from hpc_train.jobs.cluster.roles import is_server, members, tf_config
from tests.support import LIMIT_SECS, environment, wait_for

SERVED = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}


@given(
    st.dictionaries(st.sampled_from(["worker", "ps"]), st.integers(1, 9)).map(
        lambda counts: {"chief": 1, "worker": 1, **counts}
    )
)
def test_each_rank_has_one_role_and_all_know_the_same_cluster(cluster: dict[str, int]) -> None:
    assert cluster_in(words_of(cluster)) == cluster
    ranks = members(cluster)
    assert len(set(ranks)) == len(ranks) == sum(cluster.values())
    addresses = [f"n{rank}:20000" for rank in range(len(ranks))]
    told = [json.loads(tf_config(cluster, addresses, rank)) for rank in range(len(ranks))]
    assert all(one["cluster"] == told[0]["cluster"] for one in told)
    for rank, one in enumerate(told):
        task = one["task"]
        assert one["cluster"][task["type"]][task["index"]] == addresses[rank]


def test_an_evaluator_is_beside_the_cluster_and_servers_are_those_of_the_chief() -> None:
    told = json.loads(tf_config(SERVED, [f"n{rank}:1" for rank in range(5)], 4))
    assert told["task"] == {"type": "evaluator", "index": 0}
    assert told["cluster"] == {"chief": ["n0:1"], "worker": ["n1:1", "n2:1"], "ps": ["n3:1"]}
    assert [str(one) for one in members(SERVED) if is_server(one, SERVED)] == ["worker 0", "worker 1", "ps 0"]
    alike = {"worker": 2}
    assert not any(is_server(one, alike) for one in members(alike))


def test_ranks_meet_with_ports_of_their_own_and_forget_earlier_runs(tmp_path: Path) -> None:
    earlier = Rendezvous(tmp_path, "run 1", 0, 1)
    earlier.open().close()
    assert earlier.addresses() and not earlier.has_ended
    earlier.end()
    earlier.end()
    assert earlier.has_ended
    ranks = [Rendezvous(tmp_path, "run 2", rank, 3) for rank in range(3)]
    found: dict[int, list[str]] = {}

    def meet(one: Rendezvous) -> None:
        with one.open():
            found[one.rank] = one.addresses(LIMIT_SECS)

    threads = [threading.Thread(target=meet, args=(one,)) for one in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECS)
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 3 and all(address.startswith("localhost:") for address in found[0])
    assert len(list((tmp_path / "cluster").iterdir())) == 1 and not ranks[0].has_ended
    assert next((tmp_path / "cluster").iterdir()).stat().st_mode & 0o777 == 0o700


def test_who_does_not_come_is_named_and_what_others_wrote_is_refused(tmp_path: Path) -> None:
    one = Rendezvous(tmp_path, "run", 1, 4)
    with one.open(), pytest.raises(UserError, match=r"rank 0, 2, 3 of 4 has not told its address within 0 s"):
        one.addresses(0)
    file = next(tmp_path.glob("cluster/*/rank-1.json"))
    for wrong in ("", "[]", '{"host": "a b", "port": 1}', '{"host": "a", "port": "1"}', '{"host": "a", "port": 70000}'):
        file.write_text(wrong)
        with pytest.raises(UserError, match="is not as a rank of the cluster writes it"):
            one.addresses(0)
    file.unlink()
    file.symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="is not as a rank of the cluster writes it"):
        one.addresses(0)


SERVER = """
import os, signal, sys, time
from pathlib import Path
role = __import__("json").loads(os.environ["TF_CONFIG"])["task"]["type"]
if role == "chief":
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
Path(sys.argv[1], "." + role).write_text(str(os.getpid()))
Path(sys.argv[1], "." + role).rename(Path(sys.argv[1], role))
while role != "chief" or not Path(sys.argv[1], "go").exists():
    time.sleep(0.02)
"""


def start(folder: Path, rank: int, run: str = "1", cluster: str = "chief=1,worker=1,ps=1") -> subprocess.Popen[str]:
    """One rank of three whose program waits: the chief's for the file `go`."""
    (folder / "server.py").write_text(SERVER)
    place = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
    return subprocess.Popen(
        [sys.executable, "-m", "hpc_train.jobs.cluster", cluster, str(folder), "server.py", str(folder)],
        cwd=folder,
        env=environment(HPC_TRAIN_LAUNCHED=run, **place),
        stderr=subprocess.PIPE,
        text=True,
    )


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_servers_end_with_their_chief_and_are_not_asked_to_stop(tmp_path: Path) -> None:
    ranks = [start(tmp_path, rank) for rank in range(3)]
    wait_for(lambda: all((tmp_path / role).exists() for role in ("chief", "worker", "ps")), "all programs")
    for rank in ranks[1:]:
        rank.send_signal(signal.SIGUSR1)
    (tmp_path / "go").touch()
    assert [rank.wait(LIMIT_SECS) for rank in ranks] == [0, 0, 0]

    (tmp_path / "go").unlink()
    for role in ("chief", "worker", "ps"):
        (tmp_path / role).unlink()
    ranks = [start(tmp_path, rank, "2") for rank in range(3)]
    wait_for(lambda: all((tmp_path / role).exists() for role in ("chief", "worker", "ps")), "all programs")
    pids = {role: int(wait_for((tmp_path / role).read_text, role)) for role in ("chief", "worker", "ps")}
    ranks[0].send_signal(signal.SIGUSR1)
    assert ranks[0].wait(LIMIT_SECS) == 3, "the chief has saved; now the launcher ends the others"
    ranks[1].terminate()
    ranks[2].kill()
    assert ranks[1].wait(LIMIT_SECS) == 128 + signal.SIGTERM
    wait_for(lambda: has_ended(pids["worker"]) and has_ended(pids["ps"]), "the end of the programs")


def test_ranks_that_are_not_those_of_the_cluster_and_a_start_by_hand_are_refused(tmp_path: Path) -> None:
    few = start(tmp_path, 0, cluster="worker=2")
    assert (few.wait(LIMIT_SECS), few.stderr.read() if few.stderr else "") == (
        2,
        "hpc-train: error: cluster: worker=2 has 2 members, and there are 3 ranks\n",
    )
    by_hand = start(tmp_path, 0, run="")
    assert by_hand.wait(LIMIT_SECS) == 2
    assert "start it by that" in (by_hand.stderr.read() if by_hand.stderr else "")
