"""Submits a prepared job: copies its code, writes its job-dir, and puts it into its queue; or leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hpc_train import stdio
from hpc_train.errors import UserError
from hpc_train.files import read_bytes, replacement
from hpc_train.folders import make_folder, remove, remove_folder, remove_tree
from hpc_train.jobdir.folder_identity import FolderIdentity
from hpc_train.jobdir.paths import (
    CANCELLED_FILE,
    CODE,
    LOG_FILE,
    PACKS_FILE,
    SCRIPT_FILE,
    SECRETS_FILE,
    SUBMISSION_FILE,
)
from hpc_train.jobs.prepare import PreparedJob
from hpc_train.jobs.record.installation import copy_code
from hpc_train.jobs.record.job_dirs import make_job_dir
from hpc_train.jobs.record.submission import Submission, read_submission
from hpc_train.jobs.schedulers import scheduler
from hpc_train.jobs.schedulers.base import ReportLine
from hpc_train.jobs.snapshot.snapshot import copy_snapshot
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.json_files import MAX_JSON_BYTES
from hpc_train.telemetry.status import mark_queued


def submit(prepared: PreparedJob, report: ReportLine) -> Submission:
    """Writes the job-dir and puts the job into its queue; the submission with its number.

    Nothing is left behind where that fails: no job in the queue, and in the job-dir what was there before.

    Raises:
        UserError: The job-dir cannot be written, the scheduler refuses the job, or somebody else has just resumed it.
        SchedulerError: The scheduler does not answer.
        KeyboardInterrupt: After Ctrl-C, SIGTERM or SIGHUP.
    """
    submission, job_dir = prepared.submission, prepared.job_dir
    stdio.open_closed()  # of the program that calls it; else a ticket or lock could get what it prints
    with _signals_noted() as interrupted, _new_or_as_before(job_dir, prepared.before):
        try:
            if prepared.plan is not None:
                code = asdict(copy_snapshot(prepared.plan, job_dir / CODE))
                submission = replace(submission, code=code)
            if submission.installation is not None:
                copy_code(submission.installation, job_dir)
            prepared.environment.make(job_dir, report)
            make_folder((job_dir / LOG_FILE).parent)
            submission = replace(submission, folder=FolderIdentity.of(job_dir))
            submission.save_secrets(job_dir)
            submission.save(job_dir)
            remove(job_dir / CANCELLED_FILE, missing_ok=True)
            mark_queued(job_dir)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
        if interrupted():
            raise KeyboardInterrupt
        return scheduler(submission.backend).submit(job_dir, submission, prepared.script, report, interrupted)


@contextmanager
def _signals_noted() -> Iterator[Callable[[], bool]]:
    """Notes Ctrl-C, SIGTERM and SIGHUP instead of acting on them; gives whether one has come.

    So none comes between the scheduler's answer and the noting of the number. Without effect outside the main thread.
    """
    came: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        noted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, lambda received, _: came.append(received)) for number in noted}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _new_or_as_before(job_dir: Path, before: str | None) -> Iterator[None]:
    """Makes the job-dir, or takes over that of the submission with the token `before`, for one process at a time.

    After an error a new one is gone, and of an old one what a submission replaces is back.
    """
    if before is None:
        parents = [parent for parent in job_dir.parents if not parent.exists()]
        make_job_dir(job_dir)
        try:
            yield
        except BaseException:
            remove_tree(job_dir)
            for parent in parents:
                with suppress(OSError):
                    remove_folder(parent)
            raise
        return
    folder = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = read_submission(job_dir)
        if found is None or found.token != before:
            raise UserError(f"{job_dir.name}: somebody else has just resumed it")
        names = (SUBMISSION_FILE, SECRETS_FILE, SCRIPT_FILE, STATUS_FILE, CANCELLED_FILE, PACKS_FILE)
        kept = {name: read_bytes(job_dir / name, MAX_JSON_BYTES) for name in names if (job_dir / name).is_file()}
        try:
            yield
        except BaseException:
            for name in names:
                remove(job_dir / name, missing_ok=True)
            for name, content in kept.items():
                with replacement(job_dir / name, mode=0o600) as file:
                    file.write(content)
            raise
    finally:
        os.close(folder)
