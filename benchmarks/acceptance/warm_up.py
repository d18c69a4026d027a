"""The model of your own job, with a warm-up before whatever learning rate its optimizer has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpc_train as ht
from hpc_train.config.functions import PARAMS, call
from hpc_train.errors import UserError
from hpc_train.model.job_model import load_function

if TYPE_CHECKING:
    import keras

WARM_UP = "HPC_BENCHMARK_WARM_UP"
"""JSON: the job's model `function`, the folder of its `code`, and the `steps` of the warm-up."""


def build_model(params: dict[str, Any]) -> keras.Model:
    """As a job file names it.

    Raises:
        UserError: The model is not compiled, so there is no learning rate.
    """
    told = json.loads(os.environ[WARM_UP])
    model = call(load_function(told["function"], Path(told["code"])), params, PARAMS)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise UserError(f"{told['function']}: the model has no optimizer, so there is no learning rate to warm up")
    add_warm_up(getattr(optimizer, "inner_optimizer", optimizer), told["steps"])
    return model


def add_warm_up(optimizer: keras.optimizers.Optimizer, steps: int) -> None:
    """Puts a warm-up of so many steps before the optimizer's rate, which may be a number or a schedule."""
    optimizer.learning_rate = ht.WarmUp(optimizer.get_config()["learning_rate"], steps)
