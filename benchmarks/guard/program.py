"""One part in a process of its own: `python -m guard.program PART FOLDER`.

Each part sets up TensorFlow in its own way, once and for the whole process. FOLDER is empty; FOLDER/measured.json gets
what was measured (see `Measured`), or why it was not.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from support.results import Results
from support.usage import MissingError, UsageError, in_short, run_main

from guard.parts import PARTS, Measured

EXPECTED = (UsageError, MissingError, RuntimeError, OSError, ImportError)
"""What a part that cannot run here raises."""


def main() -> int:
    part, folder = sys.argv[1], Path(sys.argv[2])
    (folder / "measured.json").write_text(json.dumps(asdict(measure(part, folder))))
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
