from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.forks import end_server
from tests.ranks import end_all
from tests.support import LIMIT_SECS, REPOSITORY, SITE, Job, collect_log, environment, examples, make_job_in

SESSIONS = "OMPI_MCA_orte_tmpdir_base"

# That something takes long says nothing on a busy machine.
settings.register_profile(
    "any machine", max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Random tests are marked as such, for `make soak`."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("random")


@pytest.fixture(scope="session", autouse=True)
def own_session_folder() -> Iterator[None]:
    """An mpirun of these tests shares its sessions' folder with none of other tests at the same time."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends pytest ends what it has started
    with tempfile.TemporaryDirectory(prefix="ompi-", ignore_cleanup_errors=True) as folder:
        os.environ[SESSIONS] = folder
        os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]  # for the jobs of queues, too
        os.environ["HOROVOD_CYCLE_TIME"] = "2"  # ms; looking for work 20 times as often, waiting ranks take cores away
        os.environ["LD_PRELOAD"] = f"{library('idle')}:{library('inject')}"
        yield
        end_all()
        end_server()
        for name in (SESSIONS, "HOROVOD_CYCLE_TIME", "LD_PRELOAD"):
            del os.environ[name]


def library(name: str) -> Path:
    """site/NAME.c, compiled, where every process of a test finds it, whatever its /tmp is."""
    found = REPOSITORY / "build" / f"{name}.so"
    found.parent.mkdir(exist_ok=True)
    fresh = found.with_name(f"{name}-{os.getpid()}.so")
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", fresh, SITE / f"{name}.c", "-ldl"]
    subprocess.run(command, check=True, timeout=LIMIT_SECS)
    return fresh.rename(found)


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    """Writes a job: `make_job(name, …)`, see make_job_in."""
    return partial(make_job_in, tmp_path)


@pytest.fixture(scope="module")
def make_shared_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """The same, for jobs that several tests of a file look at."""
    return partial(make_job_in, tmp_path_factory.mktemp("jobs"))


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The lines that the package logs, as the chief shows them."""
    logger = logging.getLogger("hpc_train")
    level = logger.level
    lines, handler = collect_log()
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)
