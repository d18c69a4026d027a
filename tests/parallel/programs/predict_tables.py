"""Tables predicted on several ranks: EXPORT, a folder to write to, a table that is refused, and those that are not."""

from __future__ import annotations

import sys
from pathlib import Path

from hpc_train.distributed.startup import join_world
from hpc_train.errors import UserError
from hpc_train.inference.loaded_export import load_export
from hpc_train.inference.table_predictor import TableRequest, predict_table

export, out, bad, *good = sys.argv[1:]
world, loaded = join_world(), load_export(Path(export))
for name in ("p.csv", "p.parquet"):
    predict_table(world, loaded, TableRequest(tuple(good), Path(out, name), ("city", "sold")), print)
try:
    predict_table(world, loaded, TableRequest((*good, bad), Path(out, "q.csv")), print)
except UserError as error:
    sys.stdout.write(
        f"refused: {error}\n"
    )  # at once: print writes the end of a line by itself, and ranks share the pipe
