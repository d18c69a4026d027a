"""What a full disk lacked: in the messages of all that writes."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.data.sources.spool import writing
from hpc_train.telemetry import disk_space
from hpc_train.telemetry.disk_space import errno_in, shortage
from hpc_train.telemetry.json_files import Lenient


@pytest.fixture
def nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A file system of 1.2 MB free, mounted on tmp_path."""
    found = SimpleNamespace(f_bavail=300, f_frsize=4000, f_files=10, f_favail=5)
    monkeypatch.setattr(disk_space.os.path, "ismount", lambda path: Path(path) == tmp_path)
    monkeypatch.setattr(disk_space.os, "statvfs", lambda path: found)
    return found


def test_what_was_needed_and_what_there_was(tmp_path: Path, nearly_full: SimpleNamespace) -> None:
    path = tmp_path / "not/yet/there"
    assert shortage(errno.ENOSPC, path, 67_100_000) == f" (needed 67.1 MB; 1.2 MB free on {tmp_path})"
    assert shortage(errno.ENOSPC, path) == f" (1.2 MB free on {tmp_path})"
    quota = shortage(errno.EDQUOT, path, 1000)
    assert quota.startswith(f" (needed 1.0 kB; 1.2 MB free on {tmp_path}, of which the quota leaves less: `quota -s`")
    nearly_full.f_favail = 0
    assert "free" in shortage(errno.ENOSPC, path) and "but no inode" in shortage(errno.ENOSPC, path)
    for other in (None, errno.EIO, errno.EROFS):
        assert shortage(other, path, 1) == ""


def test_a_disk_that_cannot_be_asked_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Any) -> None:
        raise OSError(errno.ESTALE, "stale")

    monkeypatch.setattr(disk_space.os, "statvfs", gone)
    assert shortage(errno.ENOSPC, tmp_path, 1000) == " (needed 1.0 kB)"


def test_a_full_disk_is_known_by_the_words_of_a_library() -> None:
    assert errno_in(f"variables/part-0; {os.strerror(errno.ENOSPC)} [Op:SaveV2]") == errno.ENOSPC
    assert errno_in(os.strerror(errno.EDQUOT)) == errno.EDQUOT
    assert errno_in("Matrix size-incompatible") is None


def test_whoever_writes_says_it(tmp_path: Path, nearly_full: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    said = r"a\.h5: cannot be written: No space left on device \(needed 5\.0 kB; 1\.2 MB"
    with pytest.raises(OSError, match=said), writing(tmp_path / "a.h5", 5000):
        raise full
    with caplog.at_level(logging.WARNING), Lenient().writing(tmp_path / "status.json"):
        raise full
    assert f"(1.2 MB free on {tmp_path}); training goes on without" in caplog.text
