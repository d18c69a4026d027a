"""StudyFolder: what lies in the folder of a study, and how one is made.

study.json        what is studied, and how: the job file's name, its settings, its `tune`
code/             a copy of the job's code, which all trials run
decisions/        the journal
drivers/          a lock for each process that runs trials, while it does
trials/0000/ …    ordinary job-dirs
jobs/             what Slurm jobs that run trials are, and print
code/best_trial.yaml   the job file of the best trial so far, to be submitted as it is
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hpc_train.config.job import JobConfig, job_in
from hpc_train.config.overrides import overridden
from hpc_train.config.references import Kind, renamed
from hpc_train.config.settings import differing, settings_of
from hpc_train.config.tune.section import Goal, TuneSection
from hpc_train.config.tune.trial_settings import point_settings, trial_settings
from hpc_train.config.types import NAME_PATTERN
from hpc_train.config.yaml_loader import Document, dump_yaml, read_yaml
from hpc_train.errors import UserError
from hpc_train.files import replace_text, unforeseen
from hpc_train.folders import make_folder, make_new_folder, remove_tree, rename
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.paths import CODE, STUDY_FILE
from hpc_train.jobs.snapshot.snapshot import Plan, copy_snapshot
from hpc_train.telemetry.disk_space import shortage
from hpc_train.telemetry.json_files import UnreadableError, load_json, write_json
from hpc_train.text import visible
from hpc_train.tuning.search.state import Trial
from hpc_train.tuning.search.words import OF_ENSEMBLE, OF_STUDY, Nouns

BEST_FILE = "best_trial.yaml"
DECISIONS, DRIVERS, TRIALS, JOBS = "decisions", "drivers", "trials", "jobs"
LONGEST_NAME = 120
"""Of a study: its trials' names have five characters more."""


@dataclass(frozen=True)
class StudySettings:
    """What study.json records.

    Attributes:
        name: The study's.
        job_file: Where the job file lay, and `entry`, its name in the copy of the code.
        settings: What --set laid over it.
        ranks: Of each trial.
        created: Seconds since 1970.
        version: Of this package.
        job: The job, as settings by their path, to compare others with.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    job_file: str
    entry: str
    settings: tuple[str, ...]
    ranks: Annotated[int, Field(gt=0)]
    created: float
    version: str
    job: Mapping[str, str]

    @property
    def ensemble(self) -> str | None:
        """The section `ensemble` of the ensemble whose members the trials are, as JSON; None: they are none's."""
        if len(self.settings) < 2 or not self.settings[-1].startswith("tune="):
            return None
        key, _, text = self.settings[-2].partition("=")
        return text if key == "ensemble" else None

    @property
    def nouns(self) -> Nouns:
        """What the study and its trials are called."""
        return OF_STUDY if self.ensemble is None else OF_ENSEMBLE


_SETTINGS = TypeAdapter(StudySettings)


@dataclass(frozen=True)
class StudyFolder:
    """The study in the folder `path`. Local; making one reads nothing."""

    path: Path

    def is_one(self) -> bool:
        """Whether there is a study in it."""
        return (self.path / STUDY_FILE).is_file()

    @property
    def decisions(self) -> Path:
        return self.path / DECISIONS

    @property
    def drivers(self) -> Path:
        return self.path / DRIVERS

    @property
    def trials(self) -> Path:
        return self.path / TRIALS

    def job_dir(self, trial: Trial) -> JobDir:
        """That of a trial."""
        return JobDir(self.trials / trial.name)

    def settings(self) -> StudySettings:
        """What study.json says.

        Raises:
            UserError: There is none, or it cannot be read.
        """
        path = self.path / STUDY_FILE
        try:
            found = _SETTINGS.validate_python(load_json(path))
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{self.path}: is no study: it has no {STUDY_FILE}") from None
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        except (UnreadableError, ValidationError):
            raise UserError(f"{path}: is not as hpc-train tune writes it") from None
        if Path(found.entry).is_absolute() or ".." in Path(found.entry).parts:
            raise UserError(f"{path}: is not as hpc-train tune writes it (entry)")
        return found

    def create(self, settings: StudySettings, code: Plan) -> bool:
        """Makes the folder, whole or not at all; whether this process did. False: another one has made it meanwhile.

        Raises:
            UserError: It cannot be made, or something else is there.
        """
        temporary = unforeseen(self.path)
        try:
            make_folder(self.path.parent, follow=True)
            make_new_folder(temporary, 0o700)
            for name in (DECISIONS, DRIVERS, TRIALS):
                make_new_folder(temporary / name, 0o700)
            copy_snapshot(code, temporary / CODE)
            write_json(temporary / STUDY_FILE, asdict(settings))
            rename(temporary, self.path)
        except OSError as error:
            if self.is_one():
                return False
            if os.path.lexists(self.path):
                raise UserError(f"{self.path}: is there already, and is no study; give another folder") from None
            raise UserError(f"{self.path}: the study cannot be made: {error.strerror} ({error.filename})") from None
        finally:
            with suppress(OSError):
                remove_tree(temporary)
        return True


@dataclass(frozen=True)
class StudyJob:
    """The job that a study varies.

    Attributes:
        document: The job file in the copy of the code, with the settings laid over.
        job: Its job, with `tune`.
        data_root: The folder that shards are relative to.
    """

    document: Document
    job: JobConfig
    data_root: Path
    nouns: Nouns = OF_STUDY

    @classmethod
    def of(cls, folder: StudyFolder, settings: StudySettings) -> StudyJob:
        """The one in `folder`.

        Raises:
            UserError: It cannot be read, or has no study any more.
        """
        root = Path(settings.job_file).parent
        document = overridden(read_yaml(folder.path / CODE / settings.entry), settings.settings)
        job = job_in(document, root)
        if job.tune is None:
            raise UserError(f"{document.path}: has no `tune` any more; the study in {folder.path} cannot go on")
        return cls(document, job, root, settings.nouns)

    @property
    def tune(self) -> TuneSection:
        assert self.job.tune is not None, "looked at where it was read"
        return self.job.tune

    @property
    def goal(self) -> Goal:
        """That of `tune`, with the name of the first evaluation set where it names none and that one has a name."""
        return replace(self.tune.goal, eval=self.tune.goal.eval or self.job.eval.name)

    def settings_of(self, trial: Trial, name: str) -> list[str]:
        """What is laid over the document for a trial, of the study called `name`."""
        return trial_settings(self.job, trial.point, f"{name[:LONGEST_NAME]}_{trial.name}")

    def file_of(self, trial: Trial) -> str:
        """The job file of a trial, for the copy of the code: of one job alone, and with the full paths of data."""
        value = dict(overridden(self.document, point_settings(trial.point)).value)
        for key in ("tune", "ensemble"):
            value.pop(key, None)
        return dump_yaml(renamed(value, self._placed), lists_in_line=True)

    def _placed(self, kind: Kind, name: str) -> str:
        if kind == "shard":
            return str(Path(glob.escape(str(self.data_root))) / name)
        return str(self.data_root / Path(name).expanduser()) if kind == "source" else name


def described(job: JobConfig) -> dict[str, str]:
    """A job as settings by their path, to tell one study from another; what ensembles are made of it is left out."""
    return settings_of(job.model_dump(mode="json", exclude={"ensemble"}))


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Where two jobs differ, each as words."""
    found = differing([before, now])
    texts = {key: ["not there" if value is None else value for value in values] for key, values in found.items()}
    return [f"{key}: {text[1]} (was {text[0]})" for key, text in texts.items() if set(text) != {"not there", "null"}]


def write_best(folder: StudyFolder, job: StudyJob, trial: Trial, value: float, story: Sequence[str] = ()) -> Path:
    """Replaces BEST_FILE by the job file of `trial`, below its `story`; its path. UserError: it cannot be written."""
    goal, path = job.goal, folder.path / CODE / BEST_FILE
    lines = [f"Trial {trial.name}: {goal.kind} {goal.metric} {value:.6g}.", *story]
    about = "".join(f"# {visible(line)}\n" for line in lines)
    try:
        replace_text(path, about + job.file_of(trial), to_disk=False)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}{shortage(error.errno, path.parent)}") from None
    return path
