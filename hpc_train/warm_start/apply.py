"""Gives a new job's model the values of an older one's, before the chief shares its state with all ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.distributed.share import share_of
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.jobdir.paths import WARM_START_FILE
from hpc_train.lazy import keras, tf
from hpc_train.model.model_state import by_path
from hpc_train.warm_start.estimator_names import Layer
from hpc_train.warm_start.plan import Plan, VariableType, plan, some
from hpc_train.warm_start.source import Source, check_path, read_source


@dataclass(frozen=True)
class WarmStartResult:
    """What a warm start has done.

    Attributes:
        record: For warm_start.json: from, kind, step (null where unknown), vars_to_warm_start,
            var_name_to_prev_var_name, and the names of all variables: taken ({name, from}), skipped, missing, unused;
            left_aside: of a checkpoint of TensorFlow, how many of what else it has (optimizer, counter, text, other).
        lines: The same in short, for the terminal. warning: what is not there, if anything is missing.
    """

    record: dict[str, Any]
    lines: tuple[str, ...]
    warning: str | None


def warm_start(world: World, model: keras.Model, settings: WarmStartSettings, job_dir: Path) -> WarmStartResult | None:
    """Gives variables of `model`, which is built, the values that `settings` name. Collective.

    The chief chooses what there is to be read, and reads what it takes. Of variables of which ranks hold parts each
    reads the same, and keeps its own; of a job's checkpoint it reads no more.

    Only for a job without a checkpoint. The optimizer keeps its initial state, and steps count from 0.

    Returns:
        What was done, on the chief.

    Raises:
        UserError: There is nothing to start from, it cannot be read, or does not go with the model; nothing has been
            assigned by this rank.
    """
    variables = by_path(model.variables)
    with ExitStack() as held:  # until all have read it

        def begin() -> tuple[WarmStartResult, Source, Plan] | None:
            return _begin(model, settings, job_dir, held) if world.is_chief else None

        begun = world.each(begin)
        path = world.broadcast(str(begun[1].folder or begun[1].path) if begun else "")
        others = world.broadcast([begun[2].taken.get(name) for name in variables] if begun else [])
        pairs = zip(variables.items(), others, strict=True)  # by place: names of layers may have other numbers here
        taken = {name: other for (name, v), other in pairs if other is not None and share_of(v) is not None}
        if taken:
            world.each(lambda: None if world.is_chief else _take(taken, Path(path), variables))
        return begun[0] if begun else None


def _begin(
    model: keras.Model, settings: WarmStartSettings, job_dir: Path, held: ExitStack
) -> tuple[WarmStartResult, Source, Plan]:
    """What the chief does."""
    check_path(settings.ckpt_to_initialize_from, job_dir)
    source = read_source(settings.ckpt_to_initialize_from, held)
    variables = by_path(model.variables)
    here = {name: VariableType(tuple((share_of(v) or v).shape), str(v.dtype)) for name, v in variables.items()}
    there = {name: VariableType(tuple(array.shape), array.dtype.name) for name, array in source.arrays.items()}
    _check_map(source, settings)
    numbered = {_snake_case(type(layer).__name__) for layer in model._flatten_layers()}
    made = plan(here, there, settings, numbered, _dense_layers(model))
    apply(made.taken, source, variables)
    warning = None
    if made.missing:
        warning = f"warm start: not there, so they keep their initial values: {some(made.missing, 4)}"
    return WarmStartResult(record(made, source, settings), lines(made, source), warning), source, made


def _take(taken: Mapping[str, str], path: Path, variables: Mapping[str, Any]) -> None:
    """What the other ranks do, from what the chief has chosen and checked."""
    with ExitStack() as held:
        apply(taken, read_source(path, held, digests=False), variables)


def _check_map(source: Source, settings: WarmStartSettings) -> None:
    named = [name for name in settings.var_name_to_prev_var_name.values() if name in source.others]
    if named:
        listed = ", ".join(f"{name} ({source.others[name]})" for name in named)
        raise UserError(
            f"var_name_to_prev_var_name: {source.path} has {listed}, which no variable of a model takes; name its "
            "variables of numbers"
        )


def _dense_layers(model: keras.Model) -> list[Layer]:
    """Its Dense layers in the order of its variables."""
    paths = {id(variable): path for path, variable in by_path(model.variables).items()}
    places = {path: place for place, path in enumerate(paths.values())}
    layers = [
        {variable.name: paths[id(variable)] for variable in layer.variables}
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Dense)
    ]
    return sorted((layer for layer in layers if "kernel" in layer), key=lambda layer: places[layer["kernel"]])


def _snake_case(name: str) -> str:
    """As Keras names a layer of the class `name` (keras.src.utils.naming.to_snake_case)."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def apply(taken: Mapping[str, str], source: Source, variables: Mapping[str, Any]) -> None:
    """Gives `variables` what this rank holds of those of `source` that they take, cast to their dtype. Local.

    Raises:
        UserError: A value is NaN, or too large for the variable's dtype; nothing has been assigned.
    """
    values = {}
    for name, array in source.read({name: (other, share_of(variables[name])) for name, other in taken.items()}):
        dtype = tf.as_dtype(variables[name].dtype).as_numpy_dtype
        with np.errstate(over="ignore"):
            values[name] = array.astype(dtype)
        if _spoilt(array, values[name]):
            raise UserError(
                f"warm start: {taken[name]} of {source.path} holds NaN, or numbers too large for "
                f"{variables[name].dtype}"
            )
    for name, value in values.items():
        variables[name].assign(value)


def _spoilt(given: np.ndarray, cast: np.ndarray) -> bool:
    if "float" not in cast.dtype.name:
        return False
    return bool(np.any(np.isnan(cast) | (np.isinf(cast) & ~np.isinf(given))))


def record(made: Plan, source: Source, settings: WarmStartSettings) -> dict[str, Any]:
    """What warm_start.json holds; see WarmStartResult."""
    return {
        "from": str(source.path),
        "kind": source.kind,
        "step": source.step,
        "vars_to_warm_start": list(settings.vars_to_warm_start),
        "var_name_to_prev_var_name": dict(settings.var_name_to_prev_var_name),
        "taken": [{"name": name, "from": other} for name, other in made.taken.items()],
        "skipped": list(made.skipped),
        "missing": list(made.missing),
        "unused": list(made.unused),
        "left_aside": dict(Counter(source.others.values())),
    }


def lines(made: Plan, source: Source) -> tuple[str, ...]:
    """At most five lines for the terminal."""
    total = len(made.taken) + len(made.skipped) + len(made.missing)
    step = "" if source.step is None else f", step {source.step}"
    found = [f"warm start from {source.path} ({source.kind}{step}): {len(made.taken)} of {total} variables taken"]
    renamed = [f"{name} from {other}" for name, other in made.taken.items() if name != other]
    aside = [f"{count:,} ({kind})" for kind, count in sorted(Counter(source.others.values()).items())]
    others = {
        "by another name": renamed,
        "skipped": made.skipped,
        "there, but not used": made.unused,
        "there, but of no model": aside,
    }
    found += [f"  {what}: {some(names, 4)}" for what, names in others.items() if names]
    if len(found) > 1:
        found[0] += f"; all are listed in {WARM_START_FILE}"
    return tuple(found)
