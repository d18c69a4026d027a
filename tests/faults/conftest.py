from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.support import Injector


@pytest.fixture
def injector(tmp_path: Path) -> Injector:
    """Makes faults happen; see Injector."""
    return Injector(tmp_path / "injected.log")


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory, where there is one: a test that waits for the disk hundreds of times need not."""
    shm = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        yield Path(folder)
