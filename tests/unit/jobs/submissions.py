"""Submissions for tests."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import Any

from hpc_train.config.resources import Resources
from hpc_train.jobs.record.submission import Submission


def a_submission(**changes: Any) -> Submission:
    """A program's, in the local queue of this machine, with `changes`."""
    return replace(
        Submission(
            token="0123456789abcdef",
            name="a",
            kind="program",
            backend="local",
            submitted=time.time(),
            user="me",
            host=socket.gethostname(),
            job_file="/x/job.yaml",
            entry="job.yaml",
            settings=(),
            resources=Resources(tier="BASIC").model_dump(mode="json"),
            code={},
            version="1",
            job_id="7",
        ),
        **changes,
    )
