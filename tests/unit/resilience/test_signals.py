from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpc_train.distributed.silence import CHATTER
from hpc_train.jobs.launch.launchers.mpirun import mpirun_command
from hpc_train.outcome import EXIT_AT_ONCE, STOP_CODES
from hpc_train.resilience.signals import StopSignals
from tests.support import LIMIT_SECS, environment, interrupt, wait_for

PROGRAM = ["python", "-m", "hpc_train", "train", "a; rm -rf ~.yaml"]


def test_mpirun_gets_arguments_not_a_command_line() -> None:
    command, settings = mpirun_command("mpirun", "mpirun (Open MPI) 4.1.8", 3, PROGRAM, as_root=True, env={})
    assert command[-len(PROGRAM) :] == PROGRAM
    unset = ["env", "-u", "OMPI_MCA_orte_local_tmpdir_base"]
    assert command[: -len(PROGRAM)] == ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "3", *unset]
    assert settings == {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command, settings = mpirun_command("mpirun", "HYDRA build details:", 2, PROGRAM, as_root=True, env={})
    assert command == ["mpirun", "-bind-to", "none", "-np", "2", *PROGRAM]
    assert settings == {}


def test_signals_only_set_a_flag_until_they_are_no_longer_wanted() -> None:
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)
    again = threading.Event()
    for _ in range(2):
        with StopSignals(again.set) as signals:
            assert signals.received is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signals.received == "SIGUSR1"
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.received == "SIGUSR1", "the first says what is to happen"
            time.sleep(0.1)
            assert not again.is_set()
            os.kill(os.getpid(), signal.SIGINT)
            wait_for(again.is_set, "what a signal does")
        again.clear()
        assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "stop signals"]
    assert {STOP_CODES[name] for name in ("SIGUSR1", "SIGTERM", "SIGINT")} == {3, 4, 5}


def test_signals_inside_signals() -> None:
    again = threading.Event()
    with StopSignals(again.set) as outer:
        with StopSignals() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert (inner.received, outer.received) == ("SIGTERM", "SIGINT")
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(again.is_set, "what a signal does")


def test_signals_are_left_alone_outside_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def enter() -> None:
        with StopSignals() as signals:
            seen.append((signals.received, signal.getsignal(signal.SIGTERM)))

    seen: list[object] = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(LIMIT_SECS)
    assert seen == [(None, before)]


STUCK = """
import ctypes, sys
from hpc_train.resilience.signals import StopSignals
with StopSignals():
    mutex, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    print("stuck", flush=True)
    libc.pthread_mutex_lock(mutex)
"""


def test_a_second_interrupt_leaves_at_once_whatever_the_main_thread_does() -> None:
    """It never returns to Python, as in a collective call that the other ranks never enter."""
    with subprocess.Popen(
        [sys.executable, "-c", STUCK], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(signal.SIGINT)
            time.sleep(1)  # two signals at one moment are one
            assert process.poll() is None
            interrupt(process)
            _, err = process.communicate(timeout=600)
        finally:
            process.kill()
    assert process.returncode == EXIT_AT_ONCE
    assert err == "hpc-train: interrupted twice: leaving at once, without saving\n"


@contextmanager
def signal_has(number: signal.Signals, handler: signal.Handlers) -> Iterator[None]:
    before = signal.signal(number, handler)
    yield
    signal.signal(number, before)


def test_a_forked_child_ends_when_it_is_told_to_and_its_signals_are_not_the_parents() -> None:
    again = threading.Event()
    with signal_has(signal.SIGTERM, signal.SIG_DFL), StopSignals(again.set) as signals:
        child = os.fork()
        if child == 0:
            while True:
                time.sleep(1)
        time.sleep(0.2)
        os.kill(child, signal.SIGINT)
        time.sleep(0.1)
        os.kill(child, signal.SIGINT)
        time.sleep(0.2)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert signals.received is None
        assert not again.is_set()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_a_late_signal_does_not_change_the_exit_code(number: signal.Signals) -> None:
    code = f"""
import os, signal, sys
from hpc_train.resilience.signals import StopSignals
try:
    with StopSignals():
        sys.exit(3)
finally:
    os.kill(os.getpid(), {int(number)})
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), timeout=600)
    assert done.returncode == 3


def test_chatter_is_dropped_and_errors_are_not() -> None:
    code = """
import os
from hpc_train.distributed.silence import without_chatter
with without_chatter():
    os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\\n")
    os.write(2, b"I0000 00:00:1795165239.239018    7069 port.cc:153] oneDNN custom operations are on.\\n")
    os.write(2, b"2026-11-20 09:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] Optimized\\n")
    os.write(2, b"E0000 00:00:1795165239.239018    7069 cuda.cc:1] no device\\n")
    os.write(2, b"last words")
    os.abort()
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGABRT
    assert done.stderr.splitlines() == ["E0000 00:00:1795165239.239018    7069 cuda.cc:1] no device", "last words"]
    assert not re.search(CHATTER, "Traceback (most recent call last):")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launch", "-n", "0", "job.yaml"], "--ranks"),
        (["launch", "job.yaml"], "job.yaml: cannot be read"),
        (["train"], "Missing argument"),
        (["trian", "job.yaml"], "No such command"),
    ],
)
def test_wrong_command_lines_exit_with_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "hpc_train", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert said in re.sub(r"\s+", " ", done.stderr)
    assert not list(tmp_path.iterdir())
