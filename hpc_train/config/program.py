"""ProgramConfig: a job file that runs a user's own training program.

name: digits
module: trainer.task                 # run as: python -m trainer.task ARGS --job-dir JOBDIR, in a copy of this folder
args: [--data, "{folder}/data", --epochs, 3]
resources: {tier: BASIC}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from hpc_train.config.cluster import Cluster, words_of
from hpc_train.config.diagnostics import validated
from hpc_train.config.job import JobConfig, job_in
from hpc_train.config.overrides import overridden
from hpc_train.config.resources import ResourcesSection
from hpc_train.config.types import Name
from hpc_train.config.yaml_loader import read_yaml
from hpc_train.errors import UserError

MODULE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
JOB_DIR_OPTION = "--job-dir"
MEMBER = "hpc_train.jobs.cluster"
"""The module that runs a program as a member of a cluster."""
_PLACE = re.compile(r"\{folder\}|\{job_dir\}")


def _as_words(value: Any) -> Any:
    """Numbers and switches as the texts they are on a command line."""
    if not isinstance(value, list | tuple):
        return value
    return tuple(str(word).lower() if isinstance(word, bool) else str(word) if isinstance(word, int | float) else word
                 for word in value)  # fmt: skip


class ProgramConfig(BaseModel):
    """A job that runs `python -m module args --job-dir JOBDIR`, on one rank or many.

    Attributes:
        name: Names the job's job-dir.
        module: A module of the job file's folder, or an installed one.
        args: Its arguments. `{folder}` in one is replaced by the job file's folder, `{job_dir}` for the job-dir.
        cluster: How many ranks have which role of TensorFlow's (`{chief: 1, worker: 2, ps: 1}`), in the order of the
            ranks: each gets TF_CONFIG. None: no cluster.
        resources: What it runs on. With one rank it is started alone, with several by mpirun.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    module: Annotated[str, Field(pattern=MODULE_PATTERN)]
    args: Annotated[tuple[str, ...], BeforeValidator(_as_words)] = ()
    cluster: Cluster | None = None
    resources: ResourcesSection = Field(default_factory=ResourcesSection)

    @field_validator("args")
    @classmethod
    def _leaves_job_dir_to_us(cls, args: tuple[str, ...]) -> tuple[str, ...]:
        for word in args:
            if word == JOB_DIR_OPTION or word.startswith(f"{JOB_DIR_OPTION}="):
                raise ValueError(f"{JOB_DIR_OPTION} is added to the arguments by itself; leave it out")
            if "\0" in word or "\n" in word:
                raise ValueError(f"{word!r} is not allowed; an argument is text of one line")
            try:
                word.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{word!r} is not allowed: half a character, which UTF-8 cannot encode") from None
        return args

    def words(self, folder: Path, job_dir: Path) -> list[str]:
        """What follows `python`: the module with its arguments, as a member of the cluster where there is one."""
        places = {"{folder}": str(folder), "{job_dir}": str(job_dir)}
        args = [_PLACE.sub(lambda match: places[match[0]], word) for word in self.args]
        begin = [] if self.cluster is None else ["-m", MEMBER, words_of(self.cluster), str(job_dir)]
        return [*begin, "-m", self.module, *args, JOB_DIR_OPTION, str(job_dir)]


def load_any(
    path: str | Path, settings: Sequence[str] = (), data_root: Path | None = None
) -> JobConfig | ProgramConfig:
    """Reads and validates a job file of either kind; as load_job.

    Raises:
        UserError: With every mistake of the file.
    """
    document = overridden(read_yaml(Path(path)), settings)
    if not isinstance(document.value, dict) or "module" not in document.value:
        return job_in(document, data_root)
    if "model" in document.value:
        raise UserError(
            f"{document.where(('module',))}: `module` and `model` exclude each other: a program of your own, or a model"
        )
    return validated(document, ProgramConfig)
