"""Trains each case in this one process, as Keras does: `python -m tests.conformity.cases.check [--export] [NAME…]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from tests.conformity.cases import ALL, by_name
from tests.conformity.cases.case import Case


def batches(case: Case, seed: int = 0) -> Iterator[tuple[Any, ...]]:
    """The batches of a case, one a step."""
    data = case.data(np.random.default_rng(seed), case.batch * case.steps)
    leaves = keras.tree.flatten(data)
    assert all(isinstance(leaf, np.ndarray) and len(leaf) == case.batch * case.steps for leaf in leaves), (
        "not an array with a row an example"
    )
    for step in range(case.steps):
        piece = slice(step * case.batch, (step + 1) * case.batch)
        yield keras.tree.map_structure(lambda rows, piece=piece: rows[piece], data)


def built(case: Case) -> keras.Model:
    keras.utils.set_random_seed(1)
    return case.build({})


def step(model: keras.Model, batch: tuple[Any, ...]) -> dict[str, Any]:
    """What a step of `fit` says of `batch`; train_on_batch hands (x, y, None) on where fit hands (x, y)."""
    model.make_train_function()
    model.reset_metrics()
    logs = model.train_function(iter([keras.tree.map_structure(tf.convert_to_tensor, batch)]))
    return keras.tree.map_structure(np.asarray, logs)


def check(case: Case, export: bool = False) -> str:
    """Losses of the first and the last step; AssertionError where something is not as it should be."""
    first, model = built(case), built(case)
    assert not {id(v) for v in first.variables} & {id(v) for v in model.variables}, "models share variables"
    for one, other in zip(first.variables, model.variables, strict=True):
        assert np.array_equal(one.numpy(), other.numpy()), f"{one.path} differs"
    own = (
        type(model).train_step is not keras.Model.train_step  # of its class
        or "train_step" in vars(model)
    )
    assert own == case.own_train_step, "own_train_step"
    losses, before = [], None
    for batch in batches(case):
        if before is None:
            if case.exports and not all(layer.built for layer in model._flatten_layers()):
                model(keras.tree.map_structure(tf.convert_to_tensor, batch[0]))
            before = [v.numpy() for v in model.trainable_variables]
            assert before, "nothing to train"
        logs = step(model, batch)
        assert all(np.isfinite(value).all() for value in keras.tree.flatten(logs)), f"not finite: {logs}"
        losses.append(float(logs["loss"] if "loss" in logs else next(v for k, v in logs.items() if k.endswith("loss"))))
    moved = [
        np.abs(v.numpy().astype("float64") - old.astype("float64")).max()
        for v, old in zip(model.trainable_variables, before, strict=True)
    ]
    assert all(np.isfinite(moved)), "weights are not finite"
    assert max(moved) > 1e-4, f"weights moved by {max(moved):g} at most"
    still = [v.path for v, change in zip(model.trainable_variables, moved, strict=True) if change == 0]
    x = batch[0]
    if case.exports:
        outputs = model.predict_on_batch(x)
        assert all(np.isfinite(value.astype("float32")).all() for value in keras.tree.flatten(outputs))
        if export:
            with tempfile.TemporaryDirectory() as folder:
                model.export(folder, verbose=False)
    return f"loss {losses[0]:.4g} -> {losses[-1]:.4g}, moved {max(moved):.3g}" + (f"; not {still}" if still else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--export", action="store_true", help="also export each model that can be")
    arguments = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names), "two cases have one name"
    failed = []
    for case in [by_name()[name] for name in arguments.names] or ALL:
        start = time.perf_counter()
        try:
            result = check(case, arguments.export)
        except Exception:
            traceback.print_exc(limit=-3)
            result = "FAILED"
            failed.append(case.name)
        print(f"{case.name:32} {time.perf_counter() - start:5.1f} s  {result}", flush=True)
        keras.backend.clear_session()
    print(f"{len(failed)} failed{': ' if failed else ''}{' '.join(failed)}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
