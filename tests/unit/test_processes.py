"""Which process a record means, whatever has its pid by now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from hpc_train.processes import identity, is_alive, kill, of_session, with_variable


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own."""
    with subprocess.Popen(
        ["sleep", "600"], env={**os.environ, "LIVENESS_TEST": str(os.getpid())}, start_new_session=True
    ) as process:
        yield process
        process.kill()


def test_a_process_is_alive_until_it_ends(child: subprocess.Popen[bytes]) -> None:
    record = identity(child.pid)

    assert record["host"] == os.uname().nodename
    assert record["pid"] == child.pid
    assert is_alive(record)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(record), "it is a zombie, and has its pid still"
    child.wait()
    assert not is_alive(record)
    assert identity(child.pid)["process_start"] is None


@pytest.mark.parametrize(
    "changed", [{"process_start": 1}, {"boot_id": "another"}, {"pid": 2**22 + 1}, {"pid": "x"}, {"pid": -1}]
)
def test_another_process_with_the_same_pid_is_not_it(changed: dict[str, object]) -> None:
    assert is_alive(identity())
    assert not is_alive({**identity(), **changed})


def test_a_pid_alone_is_alive_unless_its_process_is_younger_than_the_record() -> None:
    bare = {"host": os.uname().nodename, "pid": os.getpid()}
    born = psutil.Process().create_time()

    assert is_alive(bare)
    assert is_alive(bare, written=time.time())
    assert not is_alive(bare, written=born - 60)
    assert not is_alive({}, written=time.time())


def test_the_start_is_what_the_kernel_counts_and_no_clock_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    record = identity()
    assert record["process_start"] == ticks

    shift = 3600.0  # somebody sets the clock
    boot, created = psutil.boot_time, psutil.Process.create_time
    monkeypatch.setattr(psutil, "boot_time", lambda: boot() + shift)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + shift)
    assert is_alive(record)


def test_every_process_of_a_machine_has_one_name() -> None:
    code = "from hpc_train.processes import identity; import json; print(json.dumps(identity()))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        from_outside = identity(process.pid)
        from_inside, _ = process.communicate()
    assert f'"process_start": {from_outside["process_start"]}' in from_inside


def test_processes_are_found_by_session_and_environment(child: subprocess.Popen[bytes]) -> None:
    mark = str(os.getpid())

    assert [process.pid for process in of_session(child.pid)] == [child.pid]
    by_value = with_variable("LIVENESS_TEST", [mark, f"{mark}0"])
    assert {value: [process.pid for process in those] for value, those in by_value.items()} == {
        mark: [child.pid],
        f"{mark}0": [],
    }
    found = of_session(child.pid)
    kill(found)
    assert child.wait() == -signal.SIGKILL
    kill(found)  # gone: nothing is sent, whoever has the pid now
    assert of_session(child.pid) == with_variable("LIVENESS_TEST", [mark])[mark] == []
