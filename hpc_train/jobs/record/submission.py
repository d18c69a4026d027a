"""What a submitted job's job-dir records of its submission, and of who has cancelled it."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, ValidationError

from hpc_train.config.resources import Resources
from hpc_train.config.secrets import MASK, masked, masked_settings, restored_settings
from hpc_train.config.types import NAME_PATTERN
from hpc_train.files import read_bytes, replacement
from hpc_train.folders import remove
from hpc_train.jobdir.folder_identity import FolderIdentity
from hpc_train.jobdir.paths import CANCELLED_FILE, CODE, SECRETS_FILE, SUBMISSION_FILE
from hpc_train.jobs.record.installation import Installation
from hpc_train.telemetry.json_files import MAX_JSON_BYTES, UnreadableError, load_json, read_json, write_json
from hpc_train.telemetry.status import JOB_NUMBER, LONGEST_TIME

MAX_WORDS = 10_000
MAX_MASKED = 1 << 16
"""Characters of all settings of `resources`, which are parsed to find variables in them."""


def _text(value: Any, longest: int = 4096) -> str:
    if not isinstance(value, str) or len(value) > longest or "\0" in value:
        raise ValueError("no text")
    return value


def _word(value: Any) -> str:
    return _text(value, 1 << 17)  # Linux has no longer arguments


def _settings(words: tuple[str, ...]) -> tuple[str, ...]:
    if sum(len(word) for word in words if word.startswith("resources")) > MAX_MASKED:
        raise ValueError("too long")
    return words


def _inner_path(value: Any) -> str:
    """A path that does not lead out of its folder."""
    if Path(_text(value)).is_absolute() or ".." in Path(value).parts:
        raise ValueError("leads elsewhere")
    return str(value)


Kind = Literal["model", "program"]
Text = Annotated[str, PlainValidator(lambda value: _text(value))]
Word = Annotated[str, PlainValidator(_word)]
Number = Annotated[str, Field(pattern=f"^{JOB_NUMBER.pattern}$")]


@dataclass(frozen=True)
class Submission:
    """One submission of a job, as SUBMISSION_FILE has it: there its secrets are masked, and in SECRETS_FILE.

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
        folder: Which folder its job-dir is, once it has been made.
        survives: Whether it goes on where a rank is lost.
        installation: Of hpc_train, that its ranks run with; None: whichever is there then, as with older versions.
        variables: Of the site, set for its ranks where nothing else sets them.
    """

    token: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    kind: Kind
    backend: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,63}$")]
    submitted: Annotated[float, Field(ge=0, lt=LONGEST_TIME)]
    user: Text
    host: Text
    job_file: Text
    entry: Annotated[str, PlainValidator(_inner_path)]
    settings: Annotated[tuple[Word, ...], Field(max_length=MAX_WORDS), AfterValidator(_settings)]
    resources: dict[str, Any]
    code: dict[str, Any]
    version: Text
    after: Number | None = None
    after_dir: Text | None = None
    job_id: Number | None = None
    args: Annotated[tuple[Word, ...], Field(max_length=MAX_WORDS)] = ()
    folder: FolderIdentity | None = None
    survives: bool = False
    installation: Installation | None = None
    variables: Annotated[dict[Text, Text], Field(max_length=MAX_WORDS)] = field(default_factory=dict)

    def save(self, job_dir: Path) -> None:
        """Replaces SUBMISSION_FILE in `job_dir`, without its secrets."""
        write_json(job_dir / SUBMISSION_FILE, asdict(self.masked))

    def save_secrets(self, job_dir: Path) -> None:
        """Replaces SECRETS_FILE in `job_dir` by lines that a shell can read, for nobody else; or removes it."""
        path, environment = job_dir / SECRETS_FILE, self.wants.environment
        if not environment:
            remove(path, missing_ok=True)
            return
        with replacement(path, mode=0o600) as file:
            for name, value in environment.items():
                file.write(f"export {name}={shlex.quote(value)}\n".encode(errors="surrogateescape"))

    @property
    def lost_secrets(self) -> list[str]:
        """Variables whose values are not known, since SECRETS_FILE is gone or another user's."""
        return [name for name, value in self.wants.environment.items() if value == MASK]

    @property
    def masked(self) -> Submission:
        """The same without its secrets."""
        environment = masked(self.resources.get("environment") or {})
        settings = masked_settings(self.settings)
        return replace(self, settings=settings, resources={**self.resources, "environment": environment})

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
    settings = [word for setting in masked_settings(submission.settings) for word in ("--set", setting)]
    entry = str(job_dir / CODE / submission.entry)
    return ["train", entry, "--job-dir", str(job_dir), "--data-root", str(folder), *settings]


def load_submission(job_dir: Path) -> Submission:
    """The content of SUBMISSION_FILE in `job_dir`, with its secrets where this user may read them.

    Raises:
        OSError: There is none, or it cannot be read.
        UnreadableError: It is not as submit writes it.
    """
    found = load_json(job_dir / SUBMISSION_FILE)
    secrets = _read_secrets(job_dir / SECRETS_FILE)
    try:
        submission = _SUBMISSION.validate_python(found)
        known = {name: value for name, value in submission.resources.items() if name in Resources.model_fields}
        submission = replace(submission, resources=known)  # another version may have more
        environment = {name: secrets.get(name, value) for name, value in submission.wants.environment.items()}
        resources = {**submission.resources, "environment": environment}
        return replace(submission, resources=resources, settings=restored_settings(submission.settings, secrets))
    except ValidationError as error:
        names = ", ".join(dict.fromkeys(str(problem["loc"][0]) for problem in error.errors() if problem["loc"]))
        raise UnreadableError(f"is not as hpc-train submit writes it ({names[:80]})") from None


_SUBMISSION = TypeAdapter(Submission)


def read_submission(job_dir: Path) -> Submission | None:
    """The same; None where there is none, or none that can be read."""
    with suppress(OSError, UnreadableError):
        return load_submission(job_dir)
    return None


def _read_secrets(path: Path) -> dict[str, str]:
    """The variables in SECRETS_FILE; none where there is none, or it is another user's."""
    found = {}
    with suppress(FileNotFoundError, PermissionError):
        for line in read_bytes(path, MAX_JSON_BYTES).decode(errors="surrogateescape").split("\n"):
            with suppress(ValueError):  # which is not as `save_secrets` writes it
                _, words = shlex.split(line)
                name, _, found[name] = words.partition("=")
    return found


MAX_BY = 200


def note_cancelled(job_dir: Path, token: str | None, user: str) -> None:
    """Writes CANCELLED_FILE: somebody has cancelled this submission."""
    write_json(job_dir / CANCELLED_FILE, {"token": token, "time": time.time(), "by": user})


def cancelled_by(job_dir: Path, submission: Submission | None) -> str | None:
    """Who has cancelled this submission, or None."""
    return cancellation(job_dir, submission)[0]


def cancellation(job_dir: Path, submission: Submission | None) -> tuple[str | None, float]:
    """The same, and when, in seconds since 1970."""
    found = read_json(job_dir / CANCELLED_FILE)
    by, when, mine = found.get("by"), found.get("time"), submission is None or found.get("token") == submission.token
    if not (mine and isinstance(by, str)):
        return None, 0.0
    return by[:MAX_BY], when if isinstance(when, float) and 0 <= when < LONGEST_TIME else 0.0
