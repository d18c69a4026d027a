"""One traceback for one failure, however many ranks it reaches."""

from __future__ import annotations

import traceback
from pathlib import Path

from hpc_train.errors import JobEndedError


class FailureReport:
    """The failure of one run, reported by the first rank that fails.

    Args:
        logs: A folder that all ranks share.
        run_id: Names the run; the report is logs/failure-<run_id>.txt.
    """

    def __init__(self, logs: Path, run_id: str) -> None:
        self.path = logs / f"failure-{run_id}.txt"

    def claim(self, rank: int, error: BaseException) -> str | None:
        """Writes the report, and returns it, unless another rank has done so already. Local.

        The exclusive creation of the file decides which rank is the first.
        """
        if isinstance(error, JobEndedError):
            report = f"hpc-train: error: {error}\n"
        else:
            report = f"rank {rank} failed:\n{''.join(traceback.format_exception(error))}"
        try:
            with open(self.path, "x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(report)
        except FileExistsError:
            return None
        except OSError as problem:  # a full or lost file system must not hide the traceback
            return f"{report}(not written to {self.path}: {problem})\n"
        return report
