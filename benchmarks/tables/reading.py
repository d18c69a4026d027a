"""Reads a CSV file once, in one way; the chief writes the seconds, and the most memory that it took. A program.

python -m tables.reading WAY FOLDER OUT
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

import hpc_train as ht
from hpc_train.data.writing.convert import Options, convert
from hpc_train.distributed.startup import join_world
from hpc_train.tabular.inference import infer_schema

ARROW, SCHEMA, SHARD = "pyarrow.csv", "schema", "shard"
FILE, LABEL = "table.csv", "income"
BLOCK_BYTES, MADE_ROWS = 4 << 20, 500_000


def actions(folder: Path) -> Mapping[str, Callable[[], Any]]:
    """What can be measured, by name."""
    return {
        ARROW: lambda: read(folder / FILE),
        SCHEMA: lambda: write_schema(folder),
        SHARD: lambda: write_shards(folder),
    }


def read(path: Path) -> int:
    """Rows that pyarrow reads, block by block, in one thread."""
    options = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    return sum(batch.num_rows for batch in csv.open_csv(path, options))


def write_schema(folder: Path) -> None:
    """What `hpc-train schema` does."""
    found = infer_schema(join_world(), ht.Table(str(folder / FILE)), LABEL)
    if ht.is_chief():
        (folder / "schema.yaml").write_text(found.to_yaml())


def write_shards(folder: Path) -> None:
    """What `hpc-train shard --schema` does; the schema has been written."""
    prefix = folder / f"rows-{time.monotonic_ns()}"
    done = convert(prefix, [str(folder / FILE)], Options(schema=folder / "schema.yaml"))
    for path in (path for one in done for path in one.paths):
        path.unlink()


def write_table(folder: Path, rows: int) -> None:
    """Nine columns: whole numbers, numbers with fractions, texts of few and of many values, truth values, dates."""
    chance = np.random.default_rng(0)
    with open(folder / FILE, "wb") as file:
        for first in range(0, rows, MADE_ROWS):
            count = min(MADE_ROWS, rows - first)
            days = np.datetime64("1950-01-01") + chance.integers(0, 20_000, count).astype("timedelta64[D]")
            cities = chance.zipf(1.3, count).clip(0, 20_000).astype(str)
            columns = {
                "person": np.arange(first, first + count),
                "age": chance.integers(18, 90, count),
                "hours": chance.normal(40, 9, count).round(2),
                "gain": chance.lognormal(3, 2, count).round(1),
                "city": np.char.add("city ", cities),
                "work": np.array(["tech", "sales", "craft", "clerk", "farm"])[chance.integers(0, 5, count)],
                "member": np.array(["yes", "no"])[chance.integers(0, 2, count)],
                "born": days,
                LABEL: np.array(["<=50K", ">50K"])[chance.integers(0, 2, count)],
            }
            csv.write_csv(pa.table(columns), file, csv.WriteOptions(include_header=not first, quoting_style="needed"))


def main() -> None:
    way, folder, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    action = actions(folder)[way]
    if way == SCHEMA:
        join_world()
    begun = time.monotonic()
    action()
    secs = time.monotonic() - begun
    if ht.is_chief():
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        out.write_text(json.dumps({"secs": secs, "mib": most}))


if __name__ == "__main__":
    main()
