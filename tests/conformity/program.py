"""Trains cases on these ranks by hpc_train, and holds each against Keras alone in the same run.

    [mpirun -n RANKS] python -m tests.conformity.program RESULTS [--async] [--float64] [NAME…]

Adds a JSON object a case to the file RESULTS: see `Outcome`.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpc_train.distributed.startup import join_world

world = join_world("serialized" if "--async" in sys.argv else "multiple")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import hpc_train as ht  # noqa: E402
from hpc_train.checkpoint.manager import CheckpointManager  # noqa: E402
from hpc_train.checkpoint.names import Retention  # noqa: E402
from hpc_train.model.batch import fixed_rows  # noqa: E402
from hpc_train.model.own_steps import applied_by  # noqa: E402
from tests.conformity.cases import ALL, by_name  # noqa: E402
from tests.conformity.cases.case import Case  # noqa: E402

SEED = 7


@dataclass
class Outcome:
    """Of one case on so many ranks.

    Attributes:
        weights, updates: How far the trained weights, and what training has added to them, are from Keras's, relative
            to their norms over all variables.
        metrics: How far the metrics of an evaluation are, at most, relative to each.
        resumed: Whether training in two halves gives the same to the bit. exported: how far what the export gives is
            from the model. None: not tried.
        warned: Whether the loss was said to be that of each rank's own rows. error: what was raised instead.
    """

    case: str
    ranks: int
    strategy: str
    weights: float = 0.0
    updates: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    resumed: bool | None = None
    exported: float | None = None
    warned: bool = False
    error: str = ""
    secs: float = 0.0


def rows(data: Any, first: int, stop: int) -> Any:
    return keras.tree.map_structure(lambda array: array[first:stop], data)


class Warnings(logging.Handler):
    """Notes what is said of losses."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Trial:
    """A case on the ranks of this job."""

    def __init__(self, case: Case, asynchronous: bool, folder: Path) -> None:
        self.case, self.asynchronous, self.folder = case, asynchronous, folder
        self.workers = world.size - 1 if asynchronous else world.size
        self.data = case.data(np.random.default_rng(0), case.batch * case.steps)
        if "--float64" in sys.argv:
            self.data = keras.tree.map_structure(_double, self.data)
        self.part = case.batch // self.workers

    def trained(self, job_dir: Path, steps: int, export: bool = False) -> tuple[dict[str, float], list[str]]:
        """Trains by hpc_train, each rank on its part of every batch."""
        case, part = self.case, self.part

        def train(context: ht.InputContext) -> tf.data.Dataset:
            places = [step * case.batch + context.input_pipeline_id * part for step in range(case.steps)]
            numbers = np.concatenate([np.arange(place, place + part) for place in places])
            mine = keras.tree.map_structure(lambda array: array[numbers], self.data)
            return tf.data.Dataset.from_tensor_slices(mine).batch(part, drop_remainder=True)

        def evaluated(context: ht.InputContext) -> tf.data.Dataset:
            """As many batches as Keras evaluates, of as many rows, whatever the ranks."""
            every = tf.data.Dataset.from_tensor_slices(self.data).batch(part, drop_remainder=True)
            return every.shard(context.num_input_pipelines, context.input_pipeline_id)

        config: dict[str, Any] = {"tf_random_seed": SEED, "report": False, "save_checkpoints_steps": 1000}
        if self.asynchronous:
            config |= {"strategy": "async", "max_staleness": 0}
        exporters = [ht.FinalExporter("final")] if export else []
        return ht.train_and_evaluate(
            ht.Estimator(lambda params: case.build(params), ht.RunConfig(job_dir, **config), {"rows": part}),
            ht.TrainSpec(train, max_steps=steps),
            ht.EvalSpec(evaluated, steps=None, exporters=exporters),
        )

    def variables(self, job_dir: Path) -> list[np.ndarray]:
        """Those of the newest checkpoint, in the model's order."""
        manager = CheckpointManager(job_dir / "checkpoints", Retention())
        return list(manager.load(manager.steps()[-1]).model.values())

    def reference(self) -> tuple[keras.Model, list[np.ndarray], dict[str, float]]:
        """The model as Keras trains it, its weights before, and its metrics. Embeddings get whole gradients."""
        case = self.case
        keras.utils.set_random_seed(SEED)
        model = case.build({"rows": case.batch})
        if not case.own_train_step and model.built:
            model.optimizer.build(model.trainable_variables)  # as fit does it
        model.make_train_function()

        def dense(optimizer: Any, gradients: list[Any], variables: list[Any], apply: Callable[..., None]) -> None:
            apply([None if g is None else tf.convert_to_tensor(g) for g in gradients], variables)

        before: list[np.ndarray] = []
        with applied_by(dense):
            for step in range(case.steps):
                batch = rows(self.data, step * case.batch, (step + 1) * case.batch)
                if not before:
                    _build(model, batch)
                    before = [np.array(variable.numpy(), np.float64) for variable in model.trainable_variables]
                model.train_function(iter([keras.tree.map_structure(tf.convert_to_tensor, batch)]))
        return model, before, {}

    def outcome(self) -> Outcome:
        case, begun = self.case, time.monotonic()
        found = Outcome(case.name, world.size, "async" if self.asynchronous else "sync")
        job_dir = self.folder / case.name
        whole = not self.asynchronous
        heard = Warnings()
        logging.getLogger("hpc_train.model.loss_plan").addHandler(heard)
        try:
            metrics, exports = self.trained(job_dir, case.steps, export=whole and case.exports)
        except Exception as error:
            found.error = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            metrics, exports = {}, []
        found.warned = any("ht.all_gather" in line for line in heard.lines)
        errors = world.all_gather(found.error)
        found.error = next(filter(None, errors), "")
        if found.error:
            return found
        if whole:
            halves = self.folder / f"{case.name}_halves"
            self.trained(halves, case.steps // 2)
            self.trained(halves, case.steps)
            if world.is_chief:
                pairs = zip(self.variables(job_dir), self.variables(halves), strict=True)
                found.resumed = all(np.array_equal(one, other) for one, other in pairs)
        if world.is_chief:
            try:
                self._compare(found, job_dir, metrics, exports)
            except Exception as error:
                found.error = f"comparing: {traceback.format_exc()[-600:]}" if error else ""
        found.secs = time.monotonic() - begun
        return found

    def _compare(self, found: Outcome, job_dir: Path, metrics: dict[str, float], exports: list[str]) -> None:
        model, before, _ = self.reference()
        names = {id(v): place for place, v in enumerate(model.variables)}
        ours = self.variables(job_dir)
        mine = [np.asarray(ours[names[id(v)]], np.float64) for v in model.trainable_variables]
        keras_ = [np.asarray(v.numpy(), np.float64) for v in model.trainable_variables]
        difference = _norm([a - b for a, b in zip(mine, keras_, strict=True)])
        found.weights = difference / _norm(keras_)
        found.updates = difference / _norm([a - b for a, b in zip(keras_, before, strict=True)])
        if getattr(model.optimizer, "use_ema", False):
            model.optimizer.finalize_variable_values(model.trainable_variables)
        else:
            for variable, value in zip(model.variables, ours, strict=True):
                variable.assign(value)
        metrics = {name: value for name, value in metrics.items() if name != "global_step"}
        if metrics and fixed_rows(model) in (None, self.part):
            model.reset_metrics()
            for layer in model._flatten_layers():
                if getattr(layer, "stateful", False):
                    layer.reset_state()  # Keras begins where training ended, an evaluation of a job with zeros
            for first in range(0, self.case.batch * self.case.steps, self.part):
                logs = model.test_step(
                    keras.tree.map_structure(tf.convert_to_tensor, rows(self.data, first, first + self.part))
                )
            try:
                expected = _flat(model._get_metrics_result_or_logs(logs))
            except ValueError:  # Keras cannot evaluate where train_step leaves the metrics of compile out
                expected = _flat(logs)
            for name in {*expected, *metrics}:
                pair = expected.get(name, np.nan), metrics.get(name, np.nan)
                found.metrics[name] = float(abs(pair[0] - pair[1]) / (abs(pair[0]) + 1e-7))
        if exports:
            loaded = tf.saved_model.load(exports[0])
            served = loaded.signatures["serving_default"]
            x = rows(self.data[0], 0, self.part)
            flat = keras.tree.flatten(x)
            given = served.structured_input_signature[1]
            named = dict(zip(sorted(given), flat, strict=True)) if not isinstance(x, dict) else x
            out = served(**{k: tf.cast(tf.constant(v), given[k].dtype) for k, v in named.items()})
            own = keras.tree.flatten(model(keras.tree.map_structure(tf.convert_to_tensor, x), training=False))
            theirs = keras.tree.flatten(dict(out))
            found.exported = min(_apart(own, theirs), _apart(own, list(reversed(theirs))))


def _flat(logs: dict[str, Any]) -> dict[str, float]:
    """As Keras flattens logs; of a vector each element."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        if isinstance(value, dict):
            found |= _flat(value)
        elif np.ndim(value):
            found |= {f"{name}_{place}": float(one) for place, one in enumerate(np.ravel(value))}
        else:
            found[name] = float(value)
    return found


def _double(array: np.ndarray) -> np.ndarray:
    return array.astype("float64") if array.dtype == "float32" else array


def _apart(ours: list[Any], theirs: list[Any]) -> float:
    pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(ours, theirs, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max(float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) + 1e-7)) for a, b in pairs)


def _norm(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(float(np.sum(np.square(array))) for array in arrays)))


def _build(model: keras.Model, batch: Any) -> None:
    """Makes the variables that Keras would make in its first step, without one; a GAN has its own and no call."""
    if not model.built:
        with suppress(NotImplementedError):
            model(keras.tree.map_structure(tf.convert_to_tensor, batch[0]))


def main() -> None:
    given = [name for name in sys.argv[2:] if not name.startswith("--")]
    asynchronous = "--async" in sys.argv
    cases = [by_name()[name] for name in given] or list(ALL)
    if "--float64" in sys.argv:
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
    folder = Path(world.on_chief(lambda: tempfile.mkdtemp(prefix="conformity-")))
    with open(sys.argv[1], "a") if world.is_chief else open("/dev/null", "w") as file:
        for case in cases:
            outcome = Trial(case, asynchronous, folder).outcome()
            if world.is_chief:
                file.write(json.dumps(asdict(outcome)) + "\n")
                file.flush()
    if world.is_chief:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
