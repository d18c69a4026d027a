"""One traceback for one failure, however many ranks it reaches."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import JobEndedError
from hpc_train.files import create
from hpc_train.resilience.cause import Cause, cause_of
from hpc_train.telemetry.environment import without_secrets


@dataclass(frozen=True)
class Failure:
    """How a rank has failed.

    Attributes:
        rank: Who is to blame; None where it is not a single one.
        cause: Without the values of secret variables.
        doing: What the rank was at, in words, as in "training step 8"; None where that is not known.
        step: The last step that it had done by then; None where ranks do not keep step.
    """

    rank: int | None
    cause: Cause
    doing: str | None = None
    step: int | None = None

    @property
    def error(self) -> dict[str, object]:
        """The field `error` of status.json."""
        more = {"doing": self.doing, "where": self.cause.where}
        known = {name: value for name, value in more.items() if value is not None}
        return {"rank": self.rank, "message": self.cause.message, **known}

    def __str__(self) -> str:
        """For people: rank 1 failed (training step 8): ValueError: no label may be 42 (model.py, line 7, in f)."""
        doing = f" ({self.doing})" if self.doing else ""
        where = f" ({self.cause.where})" if self.cause.where else ""
        return f"rank {self.rank} failed{doing}: {self.cause.message}{where}"


class FailureReport:
    """The failure of one run, reported by the first rank that fails.

    Args:
        logs: A folder that all ranks share.
        run_id: Names the run; the report is logs/failure-<run_id>.txt.

    Attributes:
        at: Gives what this rank is at, in words, and the last step that it has done, where they are known.
    """

    def __init__(self, logs: Path, run_id: str) -> None:
        self.path = logs / f"failure-{run_id}.txt"
        self.at: Callable[[], tuple[str | None, int | None]] = lambda: (None, None)

    def describe(self, rank: int, error: BaseException) -> Failure:
        """What is to be recorded of `error`, which this rank has met. Local."""
        found, (doing, step) = cause_of(error), self.at()
        cause = Cause(without_secrets(found.message, os.environ), found.where)
        return Failure(error.rank if isinstance(error, JobEndedError) else rank, cause, doing, step)

    def claim(self, rank: int, error: BaseException) -> str | None:
        """Writes the report, and returns it, unless another rank has done so already. Local.

        The exclusive creation of the file decides which rank is the first.
        """
        if isinstance(error, JobEndedError):
            report = f"hpc-train: error: {error}\n"
        else:
            trace = "".join(traceback.format_exception(error))
            report = without_secrets(f"rank {rank} failed:\n{trace}{self.describe(rank, error)}\n", os.environ)
        try:
            with open(create(self.path), "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(report)
        except FileExistsError:
            return None
        except OSError as problem:  # a full or lost file system must not hide the traceback
            return f"{report}(not written to {self.path}: {problem})\n"
        return report
