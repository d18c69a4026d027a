from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.support import Injector


@pytest.fixture(scope="session")
def inject_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """inject.c, compiled. A C compiler is a requirement of the project: Horovod is built with it."""
    compiler = shutil.which("cc") or pytest.fail("there is no C compiler (cc)")
    library = tmp_path_factory.mktemp("inject") / "inject.so"
    source = Path(__file__).parent / "inject.c"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture
def injector(inject_library: Path, tmp_path: Path) -> Injector:
    """Makes faults happen; see Injector."""
    return Injector(inject_library, tmp_path / "injected.log")


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in memory, where there is one: a test that waits for the disk hundreds of times need not."""
    shm = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        yield Path(folder)
