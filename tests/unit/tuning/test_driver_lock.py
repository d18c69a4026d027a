"""Which drivers live."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hpc_train import UserError
from hpc_train.tuning.search.driver_lock import DriverLock
from tests.support import run_program


def test_a_driver_lives_until_it_has_left(tmp_path: Path) -> None:
    with DriverLock(tmp_path) as one, DriverLock(tmp_path) as other:
        assert one.name != other.name
        assert one.lives(other.name)
        assert other.lives(one.name)
        assert not one.lives("0" * 16), "there never was one"
    assert not other.lives(one.name)
    assert list(tmp_path.iterdir()) == [], "nothing is left"


def test_a_driver_that_was_killed_does_not_live(tmp_path: Path) -> None:
    lines = ["from hpc_train.tuning.search.driver_lock import DriverLock", "import os, pathlib, sys"]
    lines += ["lock = DriverLock(pathlib.Path(sys.argv[1]))", "lock.__enter__()", "print(lock.name, flush=True)"]
    done = run_program([sys.executable, "-c", "\n".join([*lines, "os.kill(os.getpid(), 9)"]), str(tmp_path)], tmp_path)
    name = done.stdout.strip()
    assert (done.returncode, [path.name for path in tmp_path.iterdir()]) == (-9, [name])
    with DriverLock(tmp_path) as one, DriverLock(tmp_path) as other:
        assert not one.lives(name)
        forgotten: list[str] = []
        one.sweep(forgotten.append)
        assert forgotten == [], "it may be about to take its lock"
        for folder in tmp_path.iterdir():
            os.utime(folder, (0, 0))
        one.sweep(forgotten.append)
        assert forgotten == [name]
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([one.name, other.name])


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"/none/[0-9a-f]{16}: cannot be made"), DriverLock(tmp_path / "none"):
        pass
