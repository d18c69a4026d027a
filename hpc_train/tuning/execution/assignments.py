"""What a driver tells the ranks of a slot, and what they report: files in a folder that both know. Local to a node.

`<n>.json` is the n-th trial that the ranks are to train, counted from 0; `<n>.end.json` how it ended. All ranks read
the same files, so that none waits for another, and none keeps a core busy while there is nothing to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from hpc_train.files import open_to_read
from hpc_train.telemetry.json_files import UnreadableError, load_json, write_json

POLL_SECS = 0.02
LEAVE_FILE, BEGUN_FILE = "leave", "begun"


@dataclass(frozen=True)
class Assignment:
    """One run of a trial.

    Attributes:
        job_file: In the copy of the study's code.
        data_root: The folder that shards are relative to.
        log: To which the ranks append what they print.
        settings: `KEY=VALUE` each, laid over the job file.
        only_facts: Whether nothing is trained, and what the model is like is to be found out (ModelFacts).
        assigned: When, in seconds since 1970.
    """

    job_file: str
    data_root: str
    job_dir: str
    log: str
    settings: tuple[str, ...]
    assigned: float
    only_facts: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """What the model of a job is like.

    Attributes:
        names: The metrics of each evaluation, by its kind.
        variables: Path, type and shape of each, of the model and of its optimizer, but for learning rates.
    """

    names: dict[str, list[str]] = field(default_factory=dict)
    variables: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class AssignmentEnd:
    """How a run ended.

    Attributes:
        code: The exit code that the processes of a job of its own would have had.
        facts: Where they were asked for.
    """

    code: Annotated[int, Field(ge=0, le=255)]
    facts: ModelFacts = ModelFacts()


_ASSIGNMENT, _END = TypeAdapter(Assignment), TypeAdapter(AssignmentEnd)


@dataclass(frozen=True)
class AssignmentFolder:
    """The files of one start of a slot's ranks, in the folder `path`."""

    path: Path

    def assign(self, number: int, assignment: Assignment) -> None:
        """Gives the ranks their next trial."""
        write_json(self.path / f"{number}.json", asdict(assignment), to_disk=False)

    def report_begin(self) -> None:
        """The ranks are there. For the chief."""
        write_json(self.path / BEGUN_FILE, {}, to_disk=False)

    def report_life(self) -> None:
        """The ranks are still there. For the chief, again and again."""
        with suppress(OSError):
            os.utime(self.path / BEGUN_FILE)

    def last_life(self) -> int | None:
        """Another number after each `report_life`; None: the ranks never were there."""
        with suppress(OSError), open_to_read(self.path / BEGUN_FILE) as file:  # for which NFS asks the server
            return os.fstat(file.fileno()).st_mtime_ns
        return None

    def report_end(self, number: int, end: AssignmentEnd) -> None:
        """For the chief."""
        write_json(self.path / f"{number}.end.json", asdict(end), to_disk=False)

    def end(self, number: int) -> AssignmentEnd | None:
        """How a trial ended; None: it has not."""
        with suppress(OSError, UnreadableError, ValueError):
            return _END.validate_python(load_json(self.path / f"{number}.end.json"))
        return None

    def dismiss(self) -> None:
        """Has the ranks leave, once they have nothing to do."""
        write_json(self.path / LEAVE_FILE, {}, to_disk=False)

    def await_assignment(self, number: int, is_alone: Callable[[], bool]) -> Assignment | None:
        """Waits for the next trial; None: there will be none. For each rank.

        Args:
            is_alone: Whether nobody is left who could assign one.
        """
        name = f"{number}.json"
        while True:
            there = os.listdir(self.path)  # for which NFS asks the server, as it does not for a file that was missing
            if name in there:
                return _ASSIGNMENT.validate_python(load_json(self.path / name))
            if LEAVE_FILE in there or is_alone():
                return None
            time.sleep(POLL_SECS)
