"""Schema, statistics and sums of a table, as one JSON file: FILES LABEL FOLDER."""

import json
import sys
from pathlib import Path

import numpy as np

import hpc_train as ht
from hpc_train.config.row_split import RowSplit
from hpc_train.distributed.startup import join_world
from hpc_train.mapreduce.statistics import statistics
from hpc_train.tabular.inference import infer_schema

pattern, label, folder = sys.argv[1:]
world, r = join_world(), ht.reducers
table = ht.Table(pattern)
schema = infer_schema(world, table, label)
half = infer_schema(world, table, label, split=RowSplit(fraction=0.5, seed=1))
found = statistics(world, table)


def map_fn(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    assert rows["city"].dtype == object and rows["age"].dtype == np.float64
    return {"age": rows["age"], "city": rows["city"], "rows": np.ones(len(rows["age"]))}


sums = ht.map_reduce(map_fn, {"age": r.Mean(skip_nan=True), "city": r.Vocabulary(), "rows": r.Sum()}, table)
if ht.is_chief():
    cities = dict(zip(sums["city"]["values"].tolist(), sums["city"]["counts"].tolist(), strict=True))
    result = {
        "schema": schema.to_yaml(),
        "half": half.to_yaml(),
        "statistics": found,
        "sums": {"age": float(sums["age"]), "city": cities, "rows": float(sums["rows"])},
    }
    (Path(folder) / f"{world.size}.json").write_text(json.dumps(result))
