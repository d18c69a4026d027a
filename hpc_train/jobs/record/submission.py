"""What a submitted job's job-dir records of its submission, and how jobs are found by name, job-dir or number."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from hpc_train.config.resources import Resources
from hpc_train.config.types import NAME_PATTERN
from hpc_train.errors import UserError
from hpc_train.jobdir.paths import CANCELLED_FILE, CODE, SUBMISSION_FILE
from hpc_train.telemetry.files import STATUS_FILE
from hpc_train.telemetry.json_files import read_json, write_json
from hpc_train.telemetry.status import read_status

DEFAULT_ROOT = "runs"
ROOT_VARIABLE = "HPC_TRAIN_ROOT"
TIME_FORMAT = "%Y%m%d_%H%M%S"
LONGEST_NAME = 128

Kind = Literal["model", "program"]


@dataclass(frozen=True)
class Submission:
    """One submission of a job, as SUBMISSION_FILE has it.

    Attributes:
        token: Known to nothing else: by it the job is found in the queue where sbatch could not report its number.
        name: The job's, and its job-dir's.
        kind: A model that this package trains, or a program of the user's.
        backend: Who runs it.
        submitted: Seconds since 1970.
        user, host: Who submitted it, and where.
        job_file: Where the job file lay, and `entry`, its name in the snapshot.
        settings: What --set laid over it.
        resources: As Resources.
        code: What of the user's code was copied.
        version: Of this package.
        after, after_dir: The number and the job-dir of the job that has to succeed before.
        job_id: Its number in the queue; None while it is being submitted.
        args: What follows `python` in a program's command.
    """

    token: str
    name: str
    kind: Kind
    backend: str
    submitted: float
    user: str
    host: str
    job_file: str
    entry: str
    settings: tuple[str, ...]
    resources: dict[str, Any]
    code: dict[str, Any]
    version: str
    after: str | None = None
    after_dir: str | None = None
    job_id: str | None = None
    args: tuple[str, ...] = ()

    def save(self, job_dir: Path) -> None:
        """Replaces SUBMISSION_FILE in `job_dir`."""
        write_json(job_dir / SUBMISSION_FILE, asdict(self))

    def with_id(self, job_id: str) -> Submission:
        """The same, once it has its number."""
        return replace(self, job_id=job_id)

    @property
    def wants(self) -> Resources:
        """What it runs on."""
        return Resources(**self.resources)


def job_command(job_dir: Path, submission: Submission) -> list[str]:
    """What each rank runs after `python`, in the folder of the job's code. Pure."""
    if submission.kind == "program":
        return list(submission.args)
    return ["-m", "hpc_train", *train_arguments(job_dir, submission)]


def train_arguments(job_dir: Path, submission: Submission) -> list[str]:
    """The arguments of hpc-train, for a model. Pure."""
    folder = Path(submission.job_file).parent
    settings = [word for setting in submission.settings for word in ("--set", setting)]
    entry = str(job_dir / CODE / submission.entry)
    return ["train", entry, "--job-dir", str(job_dir), "--data-root", str(folder), *settings]


def read_submission(job_dir: Path) -> Submission | None:
    """The content of SUBMISSION_FILE in `job_dir`; None where there is none, or none that can be read."""
    try:
        found = read_json(job_dir / SUBMISSION_FILE)
        known = {field.name: found[field.name] for field in fields(Submission) if field.name in found}
        for name in {"settings", "args"} & known.keys():
            known[name] = tuple(known[name])
        submission = Submission(**known)
        _ = submission.wants  # as submit has written it, or it counts as none
        return submission
    except (ValueError, TypeError, KeyError):
        return None


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
    """The folder that holds the job-dirs."""
    return in_full(given or Path(env.get(ROOT_VARIABLE) or DEFAULT_ROOT))


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
        job_dir.parent.mkdir(parents=True, exist_ok=True)
        job_dir.mkdir(mode=0o700)
    except FileExistsError:
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
    with suppress(OSError):
        return any((path / name).is_file() for name in (SUBMISSION_FILE, STATUS_FILE))
    return False


def find_job(given: str, root: Path, in_queue: Callable[[str], Path | None] = lambda _: None) -> Path:
    """The job-dir of the job that `given` names: its name under `root`, its job-dir, or its number.

    Args:
        in_queue: Gives the job-dir of a number, as far as its queue knows; asked where `root` has no such job.

    Raises:
        UserError: There is none, or there are several that have not ended.
    """
    if re.fullmatch(r"\d+(_\d+)?", given):
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
    number = "; nor is it the number of one" if given.isdigit() else ""
    raise UserError(
        f"{given}: no such job: there is no job-dir {root / given}{number}; `hpc-train list` names those in {root} "
        f"(--root or {ROOT_VARIABLE} chooses another folder)"
    )


def number_of(job_dir: Path) -> str | None:
    """The number of the job, as it was submitted or, where it was not, as it has run."""
    submission = read_submission(job_dir)
    return submission.job_id if submission is not None else read_status(job_dir).get("job_id")


def _submitted(job_dir: Path) -> float:
    submission = read_submission(job_dir)
    return submission.submitted if submission is not None else 0.0


def note_cancelled(job_dir: Path, token: str | None, user: str) -> None:
    """Writes CANCELLED_FILE: somebody has cancelled this submission."""
    write_json(job_dir / CANCELLED_FILE, {"token": token, "time": time.time(), "by": user})


def cancelled_by(job_dir: Path, submission: Submission | None) -> str | None:
    """Who has cancelled this submission, or None."""
    found = read_json(job_dir / CANCELLED_FILE)
    mine = submission is None or found.get("token") == submission.token
    return str(found["by"]) if mine and "by" in found else None
