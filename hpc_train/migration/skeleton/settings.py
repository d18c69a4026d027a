"""Settings of programs where a job file has them: those of RunConfig, specs, exporters, flags. Pure."""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

from hpc_train.config.exporters import KINDS
from hpc_train.config.run_config import RunOptions
from hpc_train.config.specs import EvalOptions
from hpc_train.migration.counterparts.row import Counterpart
from hpc_train.migration.counterparts.tables import row_of
from hpc_train.migration.replacement import arguments_of
from hpc_train.migration.source import Source
from hpc_train.migration.values import UNKNOWN

_RUN = frozenset(field.name for field in dataclasses.fields(RunOptions))
_EVAL = frozenset(field.name for field in dataclasses.fields(EvalOptions)) - {"hooks", "name"}
_EXPORTERS = {f"tf.estimator.{kind.__name__}": (name, kind) for name, kind in KINDS.items()}
_STOPPING = re.compile(r"tf\.estimator\.experimental\.(stop_if_\w+)_hook")
_ASYNCHRONOUS = ("tf.distribute.experimental.ParameterServerStrategy", "tf.distribute.ParameterServerStrategy")


class Settings:
    """Settings by key, as a job file has them; the first that the programs show counts.

    Attributes:
        found: By section and key.
        todo: What the programs say and no key does.
    """

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.todo: list[str] = []

    def put(self, key: tuple[str, ...], value: Any) -> None:
        """Sets a key that has no value yet; not to UNKNOWN."""
        if value is UNKNOWN:
            return
        place = self.found
        for part in key[:-1]:
            place = place.setdefault(part, {})
        place.setdefault(key[-1], value)

    def read(self, source: Source) -> None:
        """The settings of one program: those of its calls before those of its flags."""
        for node in ast.walk(source.program.tree):
            if isinstance(node, ast.Call):
                self._read_call(node, source)
        for flag in source.values.flags.values():
            place = flag.place or ""
            if "." in place and not place.endswith(".shards"):
                self.put(tuple(place.split(".")), _given(flag.default))

    def _read_call(self, call: ast.Call, source: Source) -> None:
        name = source.names.called(call)
        row = row_of(name)
        values = source.values
        if row is None or name is None:
            self._read_plain(call, source)
            return
        given = {key: values.of(value) for key, value in arguments_of(call, row).given.items()}
        if name in ("tf.estimator.RunConfig", "tf.estimator.RunConfig.replace"):
            self._put_all(("run",), given, _RUN)
        elif name == "tf.estimator.TrainSpec":
            self._put_all(("train",), given, {"max_steps"})
        elif name == "tf.estimator.EvalSpec":
            self._put_all(("eval",), given, _EVAL)
        elif name == "Estimator.train":
            self.put(("train", "max_steps"), _given(given.get("max_steps", given.get("steps", UNKNOWN))))
        elif name == "Estimator.evaluate":
            self.put(("eval", "steps"), given.get("steps", UNKNOWN))
        elif name in _EXPORTERS:
            self._put_exporter(name, given)
        elif match := _STOPPING.fullmatch(name):
            self._put_rule(match[1], given, row)
        elif name == "tf.estimator.WarmStartSettings":
            self.put(("warm_start_from",), given.get("ckpt_to_initialize_from", UNKNOWN))
        elif name in _ASYNCHRONOUS:
            self.put(("run", "strategy"), "async")
        elif name == "hvd.DistributedOptimizer":
            self._put_optimizer(call, source)
        elif name.startswith("tf.estimator.inputs."):
            self.put(("data", "train", "batch_size"), given.get("batch_size", UNKNOWN))
        elif name == "tf.set_random_seed":
            self.put(("run", "tf_random_seed"), values.of(call.args[0]) if call.args else UNKNOWN)
        if name.startswith("tf.estimator.") and isinstance(given.get("warm_start_from"), str):
            self.put(("warm_start_from",), given["warm_start_from"])

    def _read_plain(self, call: ast.Call, source: Source) -> None:
        """Calls of tf.data, and of Keras's fit."""
        if not isinstance(call.func, ast.Attribute):
            return
        given = {keyword.arg: source.values.of(keyword.value) for keyword in call.keywords if keyword.arg}
        if call.func.attr == "batch" and (call.args or "batch_size" in given):
            size = source.values.of(call.args[0]) if call.args else given["batch_size"]
            self.put(("data", "train", "batch_size"), size)
        elif call.func.attr == "fit":
            self.put(("data", "train", "batch_size"), given.get("batch_size", UNKNOWN))
            self._put_end(given.get("epochs"), given.get("steps_per_epoch"))

    def _put_end(self, epochs: Any, steps: Any) -> None:
        """When Keras's fit ends; None: it is not given."""
        if isinstance(epochs, int) and isinstance(steps, int):
            self.put(("train", "max_steps"), epochs * steps)
            return
        self.put(("data", "train", "epochs"), _given(epochs))
        if steps is not None:
            self.todo.append(
                "train.max_steps: the program trains epochs * steps_per_epoch steps, not all rows an epoch"
            )

    def _put_all(self, section: tuple[str, ...], given: dict[str, Any], known: Any) -> None:
        for key in sorted(known & given.keys()):
            self.put((*section, key), given[key])

    def _put_exporter(self, name: str, given: dict[str, Any]) -> None:
        kind, made = _EXPORTERS[name]
        called = given.get("name")
        called = called if isinstance(called, str) else kind
        options = {} if called == kind else {"type": kind}
        keep = given.get("exports_to_keep", UNKNOWN)
        if keep is not UNKNOWN and any(field.name == "exports_to_keep" for field in dataclasses.fields(made)):
            options["exports_to_keep"] = keep
        self.put(("eval", "exporters", called), options)

    def _put_rule(self, key: str, given: dict[str, Any], row: Counterpart) -> None:
        known = {name: value for name, value in given.items() if name not in row.gone}
        if UNKNOWN not in known.values():
            self.put(("train", "early_stopping", key), known)

    def _put_optimizer(self, call: ast.Call, source: Source) -> None:
        for keyword in call.keywords:
            if keyword.arg == "compression" and source.names.resolve(keyword.value) == "hvd.Compression.fp16":
                self.put(("run", "compression"), "fp16")
            elif keyword.arg == "backward_passes_per_step":
                self.put(("run", "accumulate_steps"), source.values.of(keyword.value))


def params_given(source: Source) -> dict[str, Any]:
    """What a program gives Estimator(params={…}), or HParams; None of what its text does not show."""
    found: dict[str, Any] = {}
    for node in ast.walk(source.program.tree):
        name = source.names.called(node)
        if not isinstance(node, ast.Call) or name is None:
            continue
        if name.endswith(".HParams"):
            found |= {kw.arg: _or_none(source.values.of(kw.value)) for kw in node.keywords if kw.arg}
        given = next((kw.value for kw in node.keywords if kw.arg == "params"), None)
        whole = source.values.constant(given) if given is not None and name.startswith("tf.estimator.") else None
        if isinstance(whole, ast.Dict):
            for key, value in zip(whole.keys, whole.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found[key.value] = _or_none(source.values.of(value))
    return found


def _or_none(value: Any) -> Any:
    return None if value is UNKNOWN else value


def _given(value: Any) -> Any:
    """A value, where it is not None."""
    return UNKNOWN if value is None else value
