"""Writes two slices of a table of 10,000 rows: the first tenth of its rows, and the other nine.

python prepare.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np


def main() -> None:
    """Writes them."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    values = np.sqrt(np.arange(10_000, dtype=np.float64))  # later rows are larger
    for name, part in (("a", values[:1_000]), ("b", values[1_000:])):
        with h5py.File(folder / f"slice-{name}.h5", "w") as file:
            file["x"] = part
        print(f"slice-{name}.h5: {len(part):,} rows")


if __name__ == "__main__":
    main()
