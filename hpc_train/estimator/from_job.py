"""A job file's model function, found and called."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_train.cluster.world import World
from hpc_train.config.job import JobConfig
from hpc_train.errors import UserError
from hpc_train.estimator.estimator import Estimator
from hpc_train.estimator.run import Result
from hpc_train.estimator.train_and_evaluate import run_job
from hpc_train.resilience.signals import StopSignals


def train_job(
    world: World, job: JobConfig, job_dir: Path, code_folder: Path, signals: StopSignals, delay_secs: float = 0.0
) -> Result:
    """Runs the job that `job` describes in `job_dir`; see train_and_evaluate. Collective.

    This rank sleeps `delay_secs` after each step.
    """

    def model_fn(params: dict[str, Any]) -> Any:
        # Imported as late as this, and so is map_fn's, so that TensorFlow starts after its settings are made.
        return load_function(job.model, code_folder)(params)

    model_fn.__qualname__ = job.model
    estimator = Estimator(model_fn, job.run_config(job_dir), job.params, job.warm_start_from)
    description = job.model_dump(mode="json")

    def load(name: str) -> Callable[..., Any]:
        return load_function(name, code_folder)

    specs = job.train_spec(), job.eval_specs()
    return run_job(world, estimator, *specs, description, code_folder, signals, load, delay_secs)


def load_function(name: str, code_folder: Path) -> Callable[..., Any]:
    """The function that `file.py:function` or `package.module:function` names.

    `code_folder` goes first on the module search path, so that the file can import its neighbours.

    Raises:
        UserError: No such file, module or function. Whatever the module raises when it is imported.
    """
    place, _, function = name.rpartition(":")
    if str(code_folder) not in sys.path:
        sys.path.insert(0, str(code_folder))
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise UserError(f"{name}: there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        known = sys.modules.get(path.stem)
        if known is not None and getattr(known, "__file__", None) == str(path):
            module = known
        else:
            module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
            raise UserError(f"{name}: there is no module {place}") from None
    found: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(found):
        raise UserError(f"{name}: {place} has no function {function}")
    return found
