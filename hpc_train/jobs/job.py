"""Jobs from Python: submit one, query it, wait for it, take its result. The commands do all of it through here."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpc_train.arguments import check_path, check_texts, check_type, checked_arguments
from hpc_train.errors import JobEndedError, UserError
from hpc_train.jobdir.paths import LOG_FILE, LOGS

if TYPE_CHECKING:
    from hpc_train.jobs.cancel import Cancellation
    from hpc_train.jobs.logs import JobOutput, Line
    from hpc_train.jobs.prepare import PreparedJob
    from hpc_train.jobs.record.status import JobStatus

FIRST_WAIT_SECS, LONGEST_WAIT_SECS = 0.5, 10.0

logger = logging.getLogger(__name__)


def _report(text: str) -> None:
    """Logs a line of what submitting reports."""
    warning = text.removeprefix("warning: ")
    logger.log(logging.INFO if warning == text else logging.WARNING, warning)


Watch = Callable[["JobStatus"], None]
"""Called with the status of a job each time that it is asked for."""


class JobResult(NamedTuple):
    """What a job that succeeded leaves, as `train_and_evaluate` returns it.

    Attributes:
        metrics: Of the last evaluation (of the first set) with `global_step`; empty for a program.
        exports: The folders of the exports made at the end.
    """

    metrics: dict[str, float]
    exports: list[Path]


@checked_arguments
def submit(
    job_file: str | Path,
    *,
    name: str | None = None,
    settings: Sequence[str] = (),
    job_dir: str | Path | None = None,
    root: str | Path | None = None,
    backend: str | None = None,
    after: str | Job | None = None,
    with_secrets: bool = False,
) -> Job:
    """Checks a job, copies its code into a job-dir and puts it into a queue, as `hpc-train submit` does.

    Args:
        job_file: The job file; relative paths in it start at its folder.
        name, job_dir: One of them names the job; neither: the job file's name and the time.
        settings: `KEY=VALUE` each, laid over the job file.
        root: The folder of job-dirs; None: $HPC_TRAIN_ROOT, or `runs`.
        backend: `slurm` or `local`; None: $HPC_TRAIN_BACKEND, or Slurm where there is an sbatch, else this machine.
        after: A job that has to succeed before.
        with_secrets: Copies files that look like secrets (.env, *.pem, id_* …), too.

    Writes the job-dir; what goes wrong but does not hinder the job is logged as a warning.

    Raises:
        UserError: With all that is wrong; nothing is queued, and nothing was written.
        SchedulerError: The scheduler does not answer; nothing is queued.
    """
    from hpc_train.jobs.prepare import Placement, Request, prepare

    check_path("submit", "job_file", job_file, "a job file")
    check_type("submit", "name", name, str | None, "a text, or None")
    check_texts("submit", "settings", settings)
    for argument, folder in (("job_dir", job_dir), ("root", root)):
        check_path("submit", argument, folder, "a folder", optional=True)
    _check_queue("submit", backend, after)
    check_type("submit", "with_secrets", with_secrets, bool, "True or False")
    placement = Placement(_root(root), backend, _named(after))
    directory = None if job_dir is None else Path(job_dir)
    request = Request(Path(job_file), placement, tuple(settings), name, directory, with_secrets=with_secrets)
    return _queued(prepare(request, _report))


@checked_arguments
class Job:
    """A job that was submitted, or that has run in a job-dir. It is known by its job-dir alone; any process can ask.

    Attributes:
        job_dir: From the root.
    """

    def __init__(self, job_dir: str | Path) -> None:
        check_path("Job", "job_dir", job_dir, "a job-dir")
        self.job_dir = Path(job_dir).absolute()

    def __repr__(self) -> str:
        return f"Job({str(self.job_dir)!r})"

    @property
    def name(self) -> str:
        """That of its job-dir."""
        return self.job_dir.name

    @classmethod
    def find(cls, job: str | Path, root: str | Path | None = None) -> Job:
        """The job with this name, job-dir or number.

        Args:
            root: The folder of job-dirs; None: $HPC_TRAIN_ROOT, or `runs`.

        Raises:
            UserError: There is none, or there are several that have not ended.
        """
        from hpc_train.jobs.record.job_dirs import find_job
        from hpc_train.jobs.schedulers import job_dir_in_queues

        return cls(find_job(str(job), _root(root), job_dir_in_queues))

    def status(self) -> JobStatus:
        """What is known of it now: `state`, `step`, `loss`, `evaluation`, `error` and more, as JobStatus has them.

        Where its scheduler does not answer, the state is that of the job-dir, and `note` says so.
        """
        from hpc_train.jobs.inspect import inspect_job

        return inspect_job(self.job_dir)

    def wait(self, timeout_secs: float | None = None, watch: Watch | None = None) -> JobStatus:
        """Waits until it has ended, and nothing of it runs any more; its status then.

        What a job that has reported its end leaves behind (a process that cannot be killed, a lost node) is waited for
        FINISH_SECS; then `note` names it.

        Args:
            timeout_secs: None: for ever.
            watch: Called with each status meanwhile.

        Raises:
            TimeoutError: It has not ended by then; it goes on.
        """
        from hpc_train.jobs.inspect import Patience

        check_type("Job.wait", "timeout_secs", timeout_secs, int | float | None, "seconds, or None")
        deadline = None if timeout_secs is None else time.monotonic() + timeout_secs
        secs, patience = FIRST_WAIT_SECS, Patience()
        while not (status := patience.with_(self.status())).has_ended:
            if watch is not None:
                watch(status)
            left = secs if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{status.name} is {status.state} after {timeout_secs:g} s; it goes on")
            secs = FIRST_WAIT_SECS if status.finishing else secs
            time.sleep(min(secs, left))
            secs = min(LONGEST_WAIT_SECS, 1.2 * secs)
        return status

    def logs(self, follow: bool = False, rank: int | None = None, tail: int | None = None) -> Iterator[str]:
        """The lines that it has printed, over all its runs, without their ends.

        Args:
            follow: Go on until it has ended.
            rank: Only what this rank has printed.
            tail: Only so many of the last lines (with `follow`, and those that come).

        Raises:
            UserError: It has no such rank, or what single ranks print was not kept apart.
        """
        output = self.output(rank, follow)
        return (line.text for line in self.lines(output, follow, tail) if line is not None)

    def output(self, rank: int | None = None, follow: bool = False) -> JobOutput:
        """The files that hold what it prints, or with `follow` will hold it; errors as in `logs`."""
        from hpc_train.jobs.logs import JobOutput, rank_files

        if rank is None:
            return JobOutput(self.job_dir, None)
        status = self.status()
        if rank < 0 or (status.ranks is not None and rank >= status.ranks):
            last = (status.ranks or 1) - 1
            raise UserError(f"--rank: {rank} is not allowed; {status.name} has the ranks 0 to {last}")
        output = JobOutput(self.job_dir, None if status.ranks == 1 else rank)
        kept = (self.job_dir / LOGS).is_dir() and not rank_files(self.job_dir)
        if (status.has_ended or not follow) and not output.is_there() and kept and status.started:
            raise UserError(
                f"--rank: what single ranks of {status.name} print was not kept apart: that takes Open MPI, and "
                "several ranks; look at all of its output"
            )
        return output

    def lines(
        self, output: JobOutput, follow: bool = False, tail: int | None = None, watch: Watch | None = None
    ) -> Iterator[Line | None]:
        """What `output` holds, with the rank and the stream where they are known; None where nothing comes for a while.

        Args:
            follow, tail: As in `logs`.
            watch: Called with the status now and then.
        """
        from hpc_train.jobs import logs
        from hpc_train.jobs.inspect import Patience

        patience = Patience()

        def has_ended() -> bool:
            status = patience.with_(self.status())
            if watch is not None:
                watch(status)
            return status.has_ended

        yield from logs.last_lines(output, tail, last=not follow)
        if follow:
            yield from logs.follow(output, has_ended)

    def cancel(self, save: bool = False) -> Cancellation:
        """Ends it: at once, or with `save` once its ranks have saved a checkpoint, which is not waited for.

        Returns:
            What became of that; `ended` is its state where there was nothing to cancel, else None.

        Writes cancelled.json in the job-dir.

        Raises:
            UserError: It is somebody else's, or was started by hand.
            SchedulerError: The scheduler does not answer; it is not cancelled.
        """
        from hpc_train.jobs.cancel import cancel

        return cancel(self.job_dir, save)

    def resume(
        self,
        settings: Sequence[str] = (),
        *,
        root: str | Path | None = None,
        backend: str | None = None,
        after: str | Job | None = None,
    ) -> Job:
        """Lets it go on in its job-dir, from its last checkpoint, with the code that was copied at its submission.

        Args:
            settings: Laid over the job file beside those of the submission before.
            root: Where `after` is looked for.
            backend: None: as before.
            after: A job that has to succeed before.

        Raises:
            UserError: It has not ended, or something else is wrong; nothing is queued.
            SchedulerError: The scheduler does not answer; nothing is queued.
        """
        from hpc_train.jobs.prepare import Placement, prepare_again

        check_texts("Job.resume", "settings", settings)
        check_path("Job.resume", "root", root, "a folder", optional=True)
        _check_queue("Job.resume", backend, after)
        placement = Placement(_root(root), backend, _named(after))
        return _queued(prepare_again(self.job_dir, settings, placement, _report))

    def result(self, timeout_secs: float | None = None) -> JobResult:
        """Waits until it has ended; the metrics and exports that it leaves.

        Args:
            timeout_secs: None: for ever.

        Raises:
            JobEndedError: It did not succeed. `code` is what `hpc-train wait` exits with, `rank` the rank that is to
                blame where it is known; the message has the error, and where its output is.
            TimeoutError: It has not ended by then; it goes on.
        """
        status = self.wait(timeout_secs)
        if status.exit_code:
            error = status.error or {}
            rank = error.get("rank")
            why = error.get("message") or status.reason
            by = f"rank {rank}: " if rank is not None else ""
            raise JobEndedError(
                f"{status.name}: {status.state}" + (f": {by}{why}" if why else "") + f"; exit code {status.exit_code}; "
                f"what it printed is in {self.job_dir / LOG_FILE}",
                status.exit_code,
                rank,
            )
        metrics = {key: value for key, value in (status.evaluation or {}).items() if key != "step"}
        step = (status.evaluation or {}).get("step", status.step)
        return JobResult(metrics if step is None else {**metrics, "global_step": step}, list(map(Path, status.exports)))


def _check_queue(where: str, backend: object, after: object) -> None:
    check_type(where, "backend", backend, str | None, "a text, or None")
    check_type(where, "after", after, str | Job | None, "an ht.Job, its name, job-dir or number as a text, or None")


def _queued(prepared: PreparedJob) -> Job:
    from hpc_train.jobs.submit import submit as put_in_queue

    put_in_queue(prepared, _report)
    return Job(prepared.job_dir)


def _root(given: str | Path | None) -> Path:
    from hpc_train.jobs.record.job_dirs import root_of

    return root_of(None if given is None else Path(given), os.environ)


def _named(after: str | Job | None) -> str | None:
    return str(after.job_dir) if isinstance(after, Job) else after
