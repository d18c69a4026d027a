from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support import Job, make_job_in


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    """Writes a job: `make_job(name, …)`, see make_job_in."""
    return partial(make_job_in, tmp_path)


@pytest.fixture(scope="module")
def make_shared_job(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """The same, for jobs that several tests of a file look at."""
    return partial(make_job_in, tmp_path_factory.mktemp("jobs"))
