"""The mean of a table that lies in slices of different sizes: wrong without weights, right with them.

python -m mean --data FOLDER --job-dir DIR                  # alone
mpirun -np 2 python -m mean --data FOLDER --job-dir DIR     # the same to the bit
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import hpc_train as ht

r = ht.reducers


def no_rows() -> dict[str, float]:
    """The state of no rows."""
    return {"sum": 0.0, "rows": 0}


def add(state: dict[str, float], x: np.ndarray) -> dict[str, float]:
    """The rows of one block."""
    return {"sum": state["sum"] + float(x.sum()), "rows": state["rows"] + len(x)}


def merge(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """What two ranks, or two blocks, have found: each row counts once, wherever it was."""
    return {"sum": first["sum"] + second["sum"], "rows": first["rows"] + second["rows"]}


def mean(state: dict[str, float]) -> float:
    """The result, of all rows."""
    return state["sum"] / state["rows"]


def main() -> None:
    """Prints three means, and writes them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="folder of the slices")
    parser.add_argument("--job-dir", type=Path, required=True, help="where mean.json is written")
    args = parser.parse_args()
    slices = sorted(map(str, args.data.glob("slice-*.h5")))
    if not slices:
        parser.error(f"--data: {args.data} has no slice-*.h5; run prepare.py")

    def table(*paths: str) -> ht.HDF5Input:
        return ht.HDF5Input(paths, features="x", label=())

    means = [ht.map_reduce(None, r.Mean(), table(path)) for path in slices]
    found = {
        "mean of the slices' means": float(sum(means) / len(means)),
        "by hand": float(ht.map_reduce(None, r.Custom(no_rows, add, merge, mean), table(*slices))),
        "ht.reducers.Mean": float(ht.map_reduce(None, r.Mean(), table(*slices))),
    }
    if ht.is_chief():
        for name, value in found.items():
            print(f"{name}: {value:.6f}")
        args.job_dir.mkdir(parents=True, exist_ok=True)
        (args.job_dir / "mean.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
