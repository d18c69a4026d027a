"""Slurm as a scheduler: batch scripts for sbatch, and what its commands report of jobs."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_train.config.resources import Resources
from hpc_train.errors import SchedulerError, UserError
from hpc_train.files import replace_text, replacement
from hpc_train.jobdir.paths import CANCELLED_FILE, SCRIPT_FILE, SLOW_NODES_FILE
from hpc_train.jobdir.slow_nodes import read_slow_nodes
from hpc_train.jobs.record.status import JobRecord, QueueState
from hpc_train.jobs.record.submission import Submission
from hpc_train.jobs.schedulers.base import DriverJobs, Limits, NodeKind, ReportLine, Scheduler
from hpc_train.jobs.schedulers.slurm import queue
from hpc_train.jobs.schedulers.slurm.energy import joules_of
from hpc_train.jobs.schedulers.slurm.exclusion import exclusion
from hpc_train.jobs.schedulers.slurm.limits import shortfalls
from hpc_train.jobs.schedulers.slurm.script import on_all_components, render, render_drivers

SCRIPTS = Path(__file__).parents[2] / "launch" / "scripts"
"""slurm/ of the checkout, which is installed with the package."""
ASKED_AT_ONCE = 8
FEW_JOBS = 3
"""Of more, it is asked at once which ones Slurm knows."""
LONG_CANCELLED_SECS = 3600.0
BEING_SUBMITTED_SECS = 2 * queue.SUBMIT_SECS
"""For so long a submission without a number may still be on its way."""


class SlurmScheduler(Scheduler):
    """Has Slurm run jobs on the nodes of its cluster."""

    name, words = "slurm", "Slurm job"

    def absence(self) -> str | None:
        if queue.is_here():
            return None
        return (
            "sbatch is not on PATH: submit from a login node of the cluster, load its module, or take --backend local "
            "to run the job on this machine"
        )

    def limits(self) -> Limits:
        partitions = queue.partitions()
        return lambda wants: shortfalls(wants, partitions)

    def node_kinds(self) -> list[NodeKind]:
        kinds: Counter[NodeKind] = Counter()
        for partition in (found for found in queue.partitions() if found.up):
            for group in partition.groups:
                kind = NodeKind(
                    partition=partition.name,
                    default=partition.default,
                    count=0,
                    cores=group.cores,
                    gpus=group.gpus,
                    gpu=group.gpu,
                    max_time_secs=partition.max_time_secs,
                    max_nodes=partition.max_nodes,
                )
                kinds[kind] += group.count
        found = [replace(kind, count=count) for kind, count in kinds.items()]
        return sorted(found, key=lambda kind: not kind.default)

    def completed(self, wants: Resources, env: Mapping[str, str]) -> Resources:
        """With SBATCH_PARTITION and its like, which sbatch itself would let win over the script."""
        given = {
            name: env[variable]
            for name in ("partition", "account", "qos", "constraint")
            if getattr(wants, name) is None and env.get(variable := f"SBATCH_{name.upper()}")
        }
        try:
            return Resources(**{**wants.model_dump(), **given})
        except ValueError:
            listed = ", ".join(f"SBATCH_{name.upper()}={value!r}" for name, value in given.items())
            raise UserError(f"{listed}: not allowed; unset it, or give the key under `resources`") from None

    def script(self, submission: Submission, job_dir: Path) -> str:
        found = submission.installation
        python = Path(sys.executable if found is None else found.python)
        body, pack, container = ((SCRIPTS / name).read_text() for name in ("ranks.sh", "pack.sh", "container.sh"))
        if len(submission.wants.components) > 1:
            body = on_all_components((SCRIPTS / "het.sh").read_text()) + body
        return render(submission, job_dir, python, body, pack, container)

    def submit(
        self, job_dir: Path, submission: Submission, script: str, report: ReportLine, interrupted: Callable[[], bool]
    ) -> Submission:
        try:
            replace_text(job_dir / SCRIPT_FILE, script)
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
        options = []
        if submission.after is not None:
            options = [f"--dependency=afterok:{submission.after}", "--kill-on-invalid-dep=yes"]
        slow = read_slow_nodes(job_dir)
        left_out = exclusion(slow, queue.nodes() if slow else None, submission.wants.sbatch)
        for note in left_out.notes:
            report(note)

        def queued(*more: str) -> str:
            return queue.submit(job_dir / SCRIPT_FILE, submission.token, [*options, *more], report, interrupted)

        if left_out.option is None:
            number = queued()
        else:
            names = ", ".join(left_out.nodes)
            try:
                number = queued(left_out.option)
                report(f"without {names}, named slow; to have all nodes remove {job_dir / SLOW_NODES_FILE}")
            except UserError as error:  # too few others may be left
                number = queued()
                report(f"{names}: named slow, but without, {error}; it is submitted as if not named")
        numbered = submission.with_id(number)
        try:
            numbered.save(job_dir)
        except OSError as error:
            report(
                f"warning: the job is queued as {number}, which cannot be noted in {error.filename}: {error.strerror}"
            )
        return numbered

    def submit_drivers(self, jobs: DriverJobs, report: ReportLine) -> str:
        if (why := self.absence()) is not None:
            raise UserError(why)
        path = jobs.folder / f"drivers-{secrets.token_hex(4)}.sh"
        text = render_drivers(jobs, Path(sys.executable), (SCRIPTS / "alone.sh").read_text())
        try:
            with replacement(path, mode=0o600) as file:  # its variables may be secrets
                file.write(text.encode())
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from None
        return queue.submit(path, secrets.token_hex(8), report=report)

    def query(self, record: JobRecord) -> QueueState:
        return self._query(record, None)

    def cancelled_by_hand(self, record: JobRecord) -> str:
        return f"to cancel it by its number: scancel {record.number or 'NUMBER'}"

    def joules(self, record: JobRecord) -> float | None:
        return None if record.number is None else joules_of(record.number)

    def query_all(self, records: Sequence[JobRecord]) -> list[QueueState]:
        """Several are queried at once, since Slurm takes its time."""
        known = queue.known_jobs() if len(records) > FEW_JOBS and queue.is_here() else None
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            return list(pool.map(lambda record: self._query(record, known), records))

    def _query(self, record: JobRecord, known: set[str] | None) -> QueueState:
        """`known` are the numbers of all jobs that Slurm knows, where they have been asked for."""
        submission, number = record.submission, record.number
        if submission is None:
            has_begun = record.status.get("state") in ("running", "requeued")
            return queue.seen(str(number), None, known) if has_begun else QueueState("forgotten")
        if _was_cancelled_long_ago(record.job_dir):
            return QueueState("forgotten")
        if number is None:
            number = queue.number_of(submission.token)
            if number is None and time.time() - submission.submitted < BEING_SUBMITTED_SECS:
                return QueueState("waiting", "it is being submitted")
            if number is None:
                return QueueState("forgotten", "its submission was cut short")
            with suppress(OSError):  # it may be another user's
                submission.with_id(number).save(record.job_dir)
        return queue.seen(number, submission.token, known)

    def output_by_hand(self, record: JobRecord) -> str:
        number = str(record.number)
        with suppress(SchedulerError, UserError):
            if (job := queue.show(number)) is not None and job.output is not None:
                return f"Slurm keeps what it prints; type: tail -f {shlex.quote(job.output)}"
        return (
            f"Slurm no longer knows where job {number} printed; where it was submitted, look for *{number}.out, as in: "
            f"tail -f hpc_train-{number}.out"
        )

    def cancel(self, record: JobRecord, save: bool, waits: bool) -> None:
        if record.submission is None and (job := queue.show(str(record.number))) is not None and not job.batch:
            raise UserError(
                f"{record.job_dir.name}: runs in job {record.number}, an allocation in which other things may run; to "
                f"end all of it: scancel {record.number}"
            )
        if record.number is not None:
            queue.cancel(record.number, save and not waits)
        elif record.submission is not None:
            queue.cancel_all(record.submission.token)

    def job_dir_of(self, number: str) -> Path | None:
        return queue.job_dir_in_slurm(number)

    def runs_unsubmitted(self, status: Mapping[str, Any]) -> bool:
        return status.get("job_id") is not None


def _was_cancelled_long_ago(job_dir: Path) -> bool:
    """Whether a cancelled job must have ended, so that Slurm need not be asked."""
    try:
        return time.time() - (job_dir / CANCELLED_FILE).stat().st_mtime > LONG_CANCELLED_SECS
    except OSError:
        return False
