"""`python -m hpc_train` is `hpc-train`."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

from hpc_train import stdio
from hpc_train.lazy import importing
from hpc_train.resilience.guard import stand_guard
from hpc_train.resilience.signals import StopSignals
from hpc_train.telemetry.start_timeline import start_timeline


def main() -> None:
    """Entry point of the console script; stop signals are handled from here on, where the command takes them."""
    start_timeline.begin("imports")
    stdio.set_up()
    signals, asked = StopSignals(), _command(sys.argv[1:])
    if asked == "train":
        stand_guard(os.environ)
    with signals if asked in ("train", "evaluate") else nullcontext():
        with importing():
            from hpc_train.cli.app import run

        run(signals, asked)


def _command(arguments: list[str]) -> str | None:
    """The command among the arguments: the first that is no option, nor the value of one. Pure."""
    values = {number + 1 for number, argument in enumerate(arguments) if argument == "--log-level"}
    return next((a for n, a in enumerate(arguments) if n not in values and not a.startswith("-")), None)


if __name__ == "__main__":
    main()
