"""Job-dirs by name, path or number: where they lie, and which job one is."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from hpc_train.config.types import NAME_PATTERN
from hpc_train.errors import UserError
from hpc_train.folders import make_folder, make_new_folder
from hpc_train.jobdir.folder_identity import FolderIdentity, identity_in
from hpc_train.jobdir.paths import STUDY_FILE, SUBMISSION_FILE
from hpc_train.jobs.record.submission import read_submission
from hpc_train.jobs.site.site import load_site
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.status import JOB_NUMBER, read_status, sound

DEFAULT_ROOT = "runs"
ROOT_VARIABLE = "HPC_TRAIN_ROOT"
TIME_FORMAT = "%Y%m%d_%H%M%S"
LONGEST_NAME = 128


def check_name(name: str, option: str = "--name") -> str:
    """`name`, which `option` gives, if a job may have it.

    Raises:
        UserError: It may not.
    """
    if not re.fullmatch(NAME_PATTERN[1:-1], name):
        raise UserError(
            f"{option}: {name!r} is not allowed as the name of a job; allowed: a letter, then letters, digits and "
            f"underscores, {LONGEST_NAME} characters at most"
        )
    return name


def name_at(name: str, when: float) -> str:
    """The name of a job submitted `when` (seconds since 1970): `name` and the local time, so that jobs sort. Pure.

    A long `name` loses its end, since the whole is LONGEST_NAME characters at most.
    """
    stamp = datetime.fromtimestamp(when).strftime(TIME_FORMAT)
    return f"{name[: LONGEST_NAME - len(stamp) - 1]}_{stamp}"


def root_of(given: Path | None, env: Mapping[str, str]) -> Path:
    """The folder that holds the job-dirs: `given`, else $HPC_TRAIN_ROOT, else the site's, else `runs`.

    Raises:
        UserError: The site file has mistakes.
    """
    if given is None and (named := env.get(ROOT_VARIABLE)):
        given = Path(named)
    return in_full(given or load_site(env).root or Path(DEFAULT_ROOT))


def in_full(path: Path) -> Path:
    """`path` from the root, with the home that a ~ means; ~somebody stays where there is nobody of that name."""
    with suppress(RuntimeError):
        path = path.expanduser()
    return path.absolute()


def make_job_dir(job_dir: Path) -> None:
    """Makes the job-dir of a new job, for its owner alone; of two who want it, one gets it.

    Raises:
        UserError: The name is in use, or the folder cannot be made.
    """
    try:
        make_folder(job_dir.parent, follow=True)
        make_new_folder(job_dir, 0o700)
    except (FileExistsError, NotADirectoryError):
        if not job_dir.parent.is_dir():
            raise UserError(f"{job_dir}: the job-dir cannot be made: {job_dir.parent} is not a folder") from None
        raise name_in_use(job_dir) from None
    except OSError as error:
        raise UserError(f"{job_dir}: the job-dir cannot be made: {error.strerror} ({error.filename})") from None


def name_in_use(job_dir: Path) -> UserError:
    """The message about a job-dir that is there already."""
    remedy = "take another --name"
    if is_job_dir(job_dir):
        remedy += f", or let the job in it go on: hpc-train resume {shlex.quote(str(job_dir))}"
    return UserError(f"{job_dir}: the name is in use; {remedy}")


def job_dirs(root: Path) -> Iterator[Path]:
    """The job-dirs under `root`, by name: folders in which a job was submitted or has run."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UserError(f"{root}: cannot be listed: {error.strerror}") from None
    for entry in entries:
        if is_job_dir(Path(entry.path)):
            yield Path(entry.path)


def is_job_dir(path: Path) -> bool:
    """Whether a job was submitted or has run in `path`, as far as this user can see."""
    with suppress(OSError, ValueError):
        return any(os.path.lexists(path / name) for name in (SUBMISSION_FILE, STATUS_FILE))
    return False


def find_job(given: str, root: Path, in_queue: Callable[[str], Path | None] = lambda _: None) -> Path:
    """The job-dir of the job that `given` names: its name under `root`, its job-dir, or its number.

    Args:
        in_queue: Gives the job-dir of a number, as far as its queue knows; asked where `root` has no such job.

    Raises:
        UserError: There is none, or there are several that have not ended.
    """
    if JOB_NUMBER.fullmatch(given):
        found = [path for path in job_dirs(root) if number_of(path) == given]
        living = [path for path in found if read_status(path).get("state") in ("queued", "running", "requeued")]
        if len(living) > 1:
            raise UserError(f"{given}: is the number of several jobs: {', '.join(path.name for path in living)}")
        if found:
            return living[0] if living else max(found, key=_submitted)
        if (path := in_queue(given)) is not None and is_job_dir(path):
            return path
    for place in (root / given, in_full(Path(given))):
        if is_job_dir(place):
            return place.absolute()
        with suppress(OSError):  # of a name that is too long
            if (place / STUDY_FILE).is_file():
                raise UserError(f"{place}: is a study; its jobs are in {place}/trials; see hpc-train tune --help")
    number = "; nor is it the number of one" if given.isdigit() else ""
    raise UserError(
        f"{given}: no such job: there is no job-dir {root / given}{number}; `hpc-train list` names those in {root} "
        f"(--root or {ROOT_VARIABLE} chooses another folder)"
    )


def find_job_dir(given: str, root: Path, in_queue: Callable[[str], Path | None] = lambda _: None) -> Path:
    """As find_job, also of a job that has left less than a status: metrics, or its job.yaml."""
    from hpc_train.jobdir.job_dir import JobDir

    try:
        return find_job(given, root, in_queue)
    except UserError:
        for place in (root / given, in_full(Path(given))):
            if JobDir(place).is_one():
                return place
        raise


def find_job_dirs(
    given: Sequence[str], root: Path, in_queue: Callable[[str], Path | None] = lambda _: None
) -> list[Path]:
    """The job-dirs that `given` names, each once: jobs, as find_job_dir takes them, and folders that hold job-dirs.

    Raises:
        UserError: With all that name neither.
    """
    from hpc_train.jobdir.job_dir import MARKS

    found: list[Path] = []
    mistakes = []
    for text in given:
        try:
            found.append(find_job_dir(text, root, in_queue))
            continue
        except UserError as error:
            path, why = in_full(Path(text)), str(error)
        if (path / STUDY_FILE).is_file():
            mistakes.append(why)
        elif inner := list(job_dirs(path)):
            found += inner
        elif path.is_dir():
            mistakes.append(f"{path}: is no job-dir, and holds none: a job leaves {', '.join(MARKS)} there")
        else:
            mistakes.append(why)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return list({path.absolute(): path for path in found}.values())


def number_of(job_dir: Path) -> str | None:
    """The number of the job, as it was submitted or, where it was not, as it has run; None of a copy of its job-dir."""
    submission, status = read_submission(job_dir), sound(read_status(job_dir))
    if is_copy(job_dir, submission.folder if submission is not None else identity_in(status)):
        return None
    return submission.job_id if submission is not None else status.get("job_id")


def is_copy(job_dir: Path, made: FolderIdentity | None) -> bool:
    """Whether `job_dir` is another folder than the one that was `made`; one that was renamed or moved is the same."""
    with suppress(OSError):
        return made is not None and not made.is_of(job_dir)
    return False


def _submitted(job_dir: Path) -> float:
    submission = read_submission(job_dir)
    return submission.submitted if submission is not None else 0.0
