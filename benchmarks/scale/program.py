"""One rank of a job that trains a workload: `python -m scale.program CASE.json`, under mpirun where there are several.

Uses the package as a program of a user's own does. CASE.json says what: see `Case` in jobs.py.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpc_train as ht
from scale.hook import make_hooks
from scale.workloads import WORKLOADS, make_rows

if TYPE_CHECKING:
    import tensorflow as tf

FOREVER = 10**7
"""Steps; the hook ends the job long before."""


def rows_in_memory(case: dict[str, Any], context: ht.InputContext) -> tf.data.Dataset:
    """One batch of random rows, over and over: input that costs nothing."""
    import numpy as np
    import tensorflow as tf

    if case["emulate_step_ms"] is not None:
        x, y = np.zeros((case["batch"], 1), np.float32), np.zeros((case["batch"], 1), np.float32)
    else:
        x, y = make_rows(WORKLOADS[case["workload"]], case["batch"], context.input_pipeline_id)
    return tf.data.Dataset.from_tensors((x, y)).repeat()


def build_model(params: dict[str, Any]) -> Any:
    if params["emulate_step_ms"] is not None:
        from scale import emulated

        return emulated.build_model(params)
    from scale import workloads

    return workloads.build_model(params)


def stand_in(case: dict[str, Any]) -> AbstractContextManager[None]:
    if not case["stand_in"]:
        return nullcontext()
    from support.second_device import second_device

    return second_device()


def main() -> None:
    case = json.loads(Path(sys.argv[1]).read_text())
    source: Any = partial(rows_in_memory, case)
    if case["data"] == "hdf5":
        source = ht.HDF5Input(case["shards"], batch_size=case["batch"], features="x", label="y", seed=1)
    config = ht.RunConfig(
        model_dir=Path(case["job_dir"]), tf_random_seed=1, save_summary_steps=case["record_steps"],
        log_step_count_steps=FOREVER, best_metric=None, **case["run"],
    )  # fmt: skip
    estimator = ht.Estimator(build_model, config, case)
    train = ht.TrainSpec(source, max_steps=FOREVER, hooks=(make_hooks(),))
    with stand_in(case):
        ht.train_and_evaluate(estimator, train, ht.EvalSpec(source, steps=1, start_delay_secs=0))


if __name__ == "__main__":
    main()
