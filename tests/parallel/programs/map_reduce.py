"""Statistics on some ranks: a digest, adapted layers, and what a slow rank takes. Arguments: shards, folder."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hpc_train as ht
from hpc_train.distributed.dealer import deal
from hpc_train.distributed.startup import join_world
from hpc_train.mapreduce.packing import pack

shards, out = sys.argv[1], Path(sys.argv[2])
world = join_world()
r = ht.reducers
source = ht.HDF5Input(shards, features=("x", "code", "word"), label=())
reducers = {
    "moments": r.Moments(),
    "mean": r.Mean(),
    "sum": r.Sum(),
    "ends": r.MinMax(),
    "histogram": r.Histogram(),
    "quantiles": r.Quantiles(error=0.02),
    "words": r.Vocabulary(),
    "few": r.TopK(5, most_distinct=20),
    "order": r.Custom(list, lambda seen, values: [*seen, len(values)], lambda one, two: one + two),
}


def values_of(rows: dict[str, np.ndarray]) -> dict[str, Any]:
    x, code, word = rows["x"], rows["code"], rows["word"]
    return {"moments": x, "mean": x, "sum": code, "ends": x, "histogram": x, "quantiles": x, "words": word, "few": code,
            "order": x}  # fmt: skip


found = ht.map_reduce(values_of, reducers, source)
found["words"]["values"] = found["words"]["values"].astype("U")
found["order"] = np.array(found["order"])
digest = hashlib.sha256(pack(found)).hexdigest()
assert world.all_gather(digest) == [digest] * world.size, "the same on all ranks"

layers = {"x": keras.layers.Normalization(), "word": keras.layers.StringLookup()}
ht.adapt(layers, source)
adapted = [np.asarray(layers["x"].mean).tolist(), layers["word"].get_vocabulary()]
assert world.all_gather(json.loads(json.dumps(adapted))) == [adapted] * world.size

taken: list[int] = []


def done_by_others() -> int:
    return sum(path.stat().st_size for path in out.glob(f"done-{world.size}-*"))


def work(block: int) -> None:
    taken.append(block)
    if 0 < world.rank == world.size - 1:
        while done_by_others() < 150:  # the last rank is slow: it is not done before the others have done most
            time.sleep(0.01)
    else:
        with open(out / f"done-{world.size}-{world.rank}", "ab") as file:
            file.write(b".")


deal(world, 200, work)
counts = world.all_gather(len(taken))
blocks = sorted(block for own in world.all_gather(taken) for block in own)
assert blocks == list(range(200)), "each block once"
assert world.size == 1 or counts[-1] <= 50, "the slow rank takes fewer"

deal(world, 0, work)
if world.is_chief:
    mean = found["mean"].tolist()
    (out / f"{world.size}.json").write_text(json.dumps({"digest": digest, "mean": mean, "adapted": adapted}))
