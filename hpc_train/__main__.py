"""`python -m hpc_train` is `hpc-train`."""

from __future__ import annotations

import sys
from contextlib import nullcontext

from hpc_train.resilience.signals import StopSignals


def main() -> None:
    """Entry point of the console script; stop signals are heard from here on, where the command takes them."""
    signals = StopSignals()
    with signals if sys.argv[1:2] in (["train"], ["evaluate"]) else nullcontext():
        from hpc_train.cli.app import run

        run(signals)


if __name__ == "__main__":
    main()
