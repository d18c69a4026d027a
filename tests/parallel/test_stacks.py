"""Ranks that hang show where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import run_ranks

HANGS = """
import threading
from mpi4py import MPI

def in_a_thread():
    threading.Event().wait()

def in_mpi():
    MPI.COMM_WORLD.Recv(bytearray(1))

threading.Thread(target=in_a_thread, daemon=True).start()
in_mpi()
"""


def test_the_stacks_of_all_threads_are_shown(tmp_path: Path) -> None:
    for limit in (5, 50, 500):  # seconds in which both ranks begin, on however busy a machine
        with pytest.raises(pytest.fail.Exception, match="still running") as failed:
            run_ranks(2, ["-c", HANGS], tmp_path, limit)
        shown = str(failed.value)
        if shown.count(" in in_a_thread\n") == shown.count(" in in_mpi\n") == 2:
            return
    pytest.fail(shown)
