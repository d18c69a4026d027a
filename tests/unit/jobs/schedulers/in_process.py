"""A scheduler as small as one can be: each job is a thread of this process, which starts the job's one rank.

It shows what a scheduler has to do. Its jobs end with this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.config.resources import Resources
from hpc_train.jobdir.paths import CODE, LOG_FILE
from hpc_train.jobs.record.status import JobRecord, QueueState
from hpc_train.jobs.record.submission import Submission, job_command
from hpc_train.jobs.schedulers.base import Limits, Scheduler
from hpc_train.telemetry.status import JOB_VARIABLE


@dataclass
class Thread:
    """A job: its process once it has begun, and its exit code once it has ended."""

    job_dir: Path
    submission: Submission
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None
    cancelled: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self, before: Thread | None) -> None:
        if before is not None:
            before.ended.wait()
            self.cancelled |= before.code != 0
        if not self.cancelled:
            with open(self.job_dir / LOG_FILE, "ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, *job_command(self.job_dir, self.submission)],
                    cwd=self.job_dir / CODE,
                    env={**os.environ, JOB_VARIABLE: str(self.submission.job_id), "PYTHONUNBUFFERED": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self.code = self.process.wait()
        self.ended.set()


THREADS: dict[str, Thread] = {}


class InProcessScheduler(Scheduler):
    """Runs jobs of one rank, all at once."""

    name, words = "in_process", "thread"

    def absence(self) -> str | None:
        return None

    def limits(self) -> Limits:
        def lacking(wants: Resources) -> list[str]:
            return [] if wants.ranks == 1 else [f"nodes x ranks_per_node: {wants.ranks} ranks wanted, but one is all"]

        return lacking

    def script(self, submission: Submission, job_dir: Path) -> str:
        return f"python {' '.join(job_command(job_dir, submission))}\n"

    def submit(
        self,
        job_dir: Path,
        submission: Submission,
        script: str,
        report: Callable[[str], None],
        interrupted: Callable[[], bool],
    ) -> Submission:
        numbered = submission.with_id(str(len(THREADS) + 1))
        numbered.save(job_dir)
        thread = THREADS[str(numbered.job_id)] = Thread(job_dir, numbered)
        before = THREADS[submission.after] if submission.after is not None else None
        threading.Thread(target=thread.run, args=(before,), daemon=True).start()
        return numbered

    def query(self, record: JobRecord) -> QueueState:
        thread = THREADS.get(record.number or "")
        if thread is None:
            return QueueState("forgotten")
        if thread.ended.is_set():
            return QueueState("ended", cancelled=thread.cancelled, exit_code=max(0, thread.code or 0))
        return QueueState("running") if thread.process is not None else QueueState("waiting", "Dependency")

    def cancel(self, record: JobRecord, save: bool, waits: bool) -> None:
        thread = THREADS[record.number or ""]
        thread.cancelled = True
        if thread.process is not None:
            thread.process.terminate() if save else thread.process.kill()
        thread.ended.wait()

    def job_dir_of(self, number: str) -> Path | None:
        return THREADS[number].job_dir if number in THREADS else None
