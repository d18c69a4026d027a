"""An uncaught exception: reported once, by the rank that raised it, and no rank left waiting for another."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from hpc_train.distributed.world import World
from hpc_train.errors import JobEndedError, RankError, UserError
from hpc_train.outcome import EXIT_BAD_INPUT, EXIT_FAILED
from hpc_train.text import LINES, visible


def report_error(world: World, error: BaseException) -> int:
    """Prints `error` unless another rank does, and returns the exit code. Local.

    Where the other ranks know nothing of it, they are ended here; MPI would have this rank wait for them at its end.
    """
    known = world.knows_of(error)
    code = EXIT_BAD_INPUT if isinstance(error, UserError) else EXIT_FAILED
    if isinstance(error, JobEndedError):
        code = error.code
    if isinstance(error, UserError | JobEndedError):
        if world.is_chief or not known:
            for line in visible(str(error), LINES).split("\n"):
                print(f"hpc-train: error: {line}", file=sys.stderr)
    elif not isinstance(error, RankError):
        if world.size > 1:
            print(f"rank {world.rank} failed:", file=sys.stderr)
        print(visible("".join(traceback.format_exception(error)), LINES), end="", file=sys.stderr)
    if not known:
        world.abort(code)
    return code


def install_excepthook(world: World) -> None:
    """Has `report_error` print uncaught exceptions and choose the exit code. For jobs of several ranks."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            raise SystemExit(report_error(world, error))
        before(kind, error, trace)

    sys.excepthook = hook
