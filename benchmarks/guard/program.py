"""One part in a process of its own: `python -m guard.program PART FOLDER OUT`.

Each part sets up TensorFlow in its own way, once and for the whole process. FOLDER is empty; OUT gets what was measured
(see `Measured`), or why it was not.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from support.results import Results
from support.usage import MissingError, UsageError, in_short, run_main

from guard.parts import PARTS
from guard.running import Measured
from hpc_train.telemetry.json_files import write_json

EXPECTED = (UsageError, MissingError, RuntimeError, OSError, ImportError)
"""What a part that cannot run here raises."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    write_json(args.out, asdict(measure(args.part, args.folder)))
    return 0


def measure(part: str, folder: Path) -> Measured:
    """All of a part, or why it cannot run here."""
    work = folder / "work"
    work.mkdir()
    try:
        with Results(folder / "results", part, {}) as results:
            targets = [target for target in PARTS[part].measure(work, results) if target.measured]
            if not (targets or results.left_out):
                raise RuntimeError("it has measured nothing that a target speaks of")
            return Measured(results.records, targets, results.left_out)
    except EXPECTED as error:
        return Measured(left_out={part: in_short(error)})


if __name__ == "__main__":
    run_main(main)
