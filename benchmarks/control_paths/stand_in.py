"""What stands in for TensorFlow and Keras, so that hundreds of ranks of a job fit into one machine.

`install()` puts modules of these names, with the few functions that the control path asks for, in the place of the real
ones, and replaces the functions below, which build graphs. All the rest of a job is the package's own: joining, the
plan, the checks of shards and labels, the state of the model, batches out of HDF5, the loop, records, checkpoints,
evaluations, the watchdog, the end.

| replaced | by |
|---|---|
| tensorflow, keras | numpy: variables, nest, a generator; event files without checksums |
| tf.data's pipeline | the same reader, one batch after the other |
| model_fn, build_model, updates_of | a model of some small variables and its momentum |
| merging, signature, classes of the labels | what such a model would give: a mean that adds up, none, ten |
| Horovod, the compiled step | one MPI allreduce of loss, flags and a gradient; no update |
"""

from __future__ import annotations

import importlib.machinery
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, fields
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

CLASSES = 10
LAYERS, WIDTH = 4, 32
RATE = 0.1


class Shape(tuple):  # type: ignore[type-arg]
    """A shape of which all is known, as a TensorShape says it."""

    rank = property(len)

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return Shape(found) if isinstance(place, slice) else found

    def is_fully_defined(self) -> bool:
        return True


class TensorSpec:
    """Shape and dtype of one tensor of a batch."""

    def __init__(self, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype = Shape(shape), np.dtype(dtype)


class DType:
    """A numpy dtype, with what is asked of TensorFlow's."""

    def __init__(self, dtype: Any) -> None:
        self.as_numpy_dtype = np.dtype(dtype)
        self.is_floating = self.as_numpy_dtype.kind == "f"


class Variable:
    """A variable of a model or an optimizer, in a numpy array."""

    def __init__(self, path: str, array: Any) -> None:
        self.path, self.name, self._array = path, path, np.asarray(array)
        self.shape, self.dtype = self._array.shape, self._array.dtype.name
        self.value = SimpleNamespace(handle=self._array, dtype=self._array.dtype)

    def numpy(self) -> np.ndarray:
        return self._array

    def assign(self, value: Any) -> None:
        np.copyto(self._array, value)

    def __float__(self) -> float:
        return float(self._array)


class Generator:
    """TensorFlow's global generator."""

    def __init__(self) -> None:
        self.state = Variable("generator", np.zeros(3, np.int64))

    def reset_from_seed(self, seed: int) -> None:
        self.state.assign([seed, 0, 0])


class TFRecordWriter:
    """Writes each record as it is, without lengths and checksums."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab")  # noqa: SIM115 (closed by its owner)
        self.write, self.flush, self.close = self._file.write, self._file.flush, self._file.close


class Mean:
    """A metric that keeps a sum and a count."""

    name, built = "loss", True

    def __init__(self) -> None:
        self.variables = [Variable("loss/total", np.zeros((), np.float32)), Variable("loss/count", np.zeros(()))]

    def add(self, value: float) -> None:
        for variable, more in zip(self.variables, (value, 1), strict=True):
            variable.assign(variable.numpy() + more)

    def result(self) -> float:
        total, count = (float(variable.numpy()) for variable in self.variables)
        return total / count if count else 0.0


class Optimizer:
    """SGD with momentum, which is never applied."""

    learning_rate: Any

    def __init__(self, variables: Sequence[Variable]) -> None:
        momenta = [Variable(f"sgd/{one.path}_momentum", np.zeros(one.shape, np.float32)) for one in variables]
        self.learning_rate = Variable("sgd/learning_rate", np.array(RATE, np.float32))
        self.variables = [Variable("sgd/iteration", np.array(0)), self.learning_rate, *momenta]

    def get_config(self) -> dict[str, Any]:
        return {"momentum": 0.9}

    def finalize_variable_values(self, variables: Sequence[Variable]) -> None:
        """There are no averages."""


class KerasModel:
    """keras.Model, from which a model with steps of its own differs."""

    def train_step(self, batch: Any) -> Any:
        raise NotImplementedError

    test_step = predict_step = compute_loss = call = train_step


class Model(KerasModel):
    """Some small variables, their optimizer, and the mean of the labels for a loss."""

    run_eagerly, steps_per_execution, inputs = False, 1, ()
    non_trainable_variables: Sequence[Variable] = ()

    def __init__(self) -> None:
        shapes = [(WIDTH, WIDTH)] * LAYERS
        self.variables = [Variable(f"dense_{n}/kernel", np.full(s, 0.5, np.float32)) for n, s in enumerate(shapes)]
        self.trainable_variables, self.optimizer, self.metrics = self.variables, Optimizer(self.variables), [Mean()]
        self.metrics_variables = self.metrics[0].variables

    def _flatten_layers(self) -> list[Any]:
        return []

    def train_step(self, batch: Any) -> dict[str, float]:
        return {}

    def test_step(self, batch: Any) -> dict[str, float]:
        self.metrics[0].add(float(np.mean(batch[-1])))
        return {}

    def reset_metrics(self) -> None:
        for variable in self.metrics_variables:
            variable.assign(0)


class Batches:
    """The batches of a reader, one after the other, as tf.data's pipeline gives them."""

    def __init__(self, reader: Any, shards: Any, batch_size: int) -> None:
        self._reader, self._size = reader, batch_size
        self.element_spec = tuple(TensorSpec((batch_size, *c.shape), c.dtype) for c in shards.columns)

    def __iter__(self) -> Iterator[Any]:
        groups = self._reader.groups
        number = 0
        while groups.end is None or number * groups.steps < groups.end - groups.first:
            arrays = groups.group(number)
            for step in range(len(groups.steps_of(number))):
                yield tuple(array[step * self._size : (step + 1) * self._size] for array in arrays)
            number += 1


def install() -> None:
    """Takes TensorFlow's and Keras's place in this process; before anything of them is used."""
    generator = Generator()
    tensorflow = _module(
        "tensorflow",
        config=SimpleNamespace(
            list_physical_devices=lambda kind: [],
            list_logical_devices=lambda kind: [],
            threading=SimpleNamespace(
                set_intra_op_parallelism_threads=lambda count: None,
                set_inter_op_parallelism_threads=lambda count: None,
            ),
        ),
        random=SimpleNamespace(get_global_generator=lambda: generator),
        nest=SimpleNamespace(flatten=_flatten, map_structure=_map_structure),
        raw_ops=SimpleNamespace(ReadVariableOp=lambda resource, dtype: resource),
        io=SimpleNamespace(TFRecordWriter=TFRecordWriter),
        errors=SimpleNamespace(OpError=OSError),
        data=SimpleNamespace(Dataset=Batches),
        as_dtype=DType,
        identity=np.array,
        zeros=np.zeros,
        zeros_like=np.zeros_like,
        string=np.dtype(object),
        TensorSpec=TensorSpec,
        function=_function,
        make_tensor_proto=_tensor_proto,
        compat=SimpleNamespace(v1=_Protocols()),
    )
    optimizers = SimpleNamespace(LossScaleOptimizer=type("LossScaleOptimizer", (), {}))
    keras = _module("keras", Model=KerasModel, Variable=Variable, optimizers=optimizers)
    sys.modules |= {"tensorflow": tensorflow, "keras": keras}
    _replace()


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(members)
    return module


def _function(python: Callable[..., Any], **_: Any) -> Any:
    """What tf.function makes: the function itself, which is never traced."""

    def call(*given: Any) -> Any:
        return python(*given)

    call.get_concrete_function = lambda *specs: call  # type: ignore[attr-defined]
    return call


def _flatten(tree: Any) -> list[Any]:
    return [leaf for part in tree for leaf in _flatten(part)] if isinstance(tree, tuple | list) else [tree]


def _map_structure(change: Callable[[Any], Any], tree: Any) -> Any:
    return tuple(_map_structure(change, part) for part in tree) if isinstance(tree, tuple | list) else change(tree)


def _tensor_proto(value: Any) -> Any:
    """TensorBoard's own, for what it writes of hyper-parameters."""
    from tensorboard.util.tensor_util import make_tensor_proto

    return make_tensor_proto(value)


class _Protocols:
    """tf.compat.v1's Summary and SummaryMetadata are TensorBoard's own."""

    def __getattr__(self, name: str) -> Any:
        from tensorboard.compat.proto import summary_pb2

        return getattr(summary_pb2, name)


def _replace() -> None:
    """Puts what builds no graph in the place of what does."""
    from hpc_train.data.loading import tf_dataset
    from hpc_train.evaluation import evaluator
    from hpc_train.evaluation.merging import Merging
    from hpc_train.model.own_steps import Updates
    from hpc_train.strategies.synchronous import strategy
    from hpc_train.training import announce, build, components, data_check

    def updates_of(model: Model, dataset: Any, name: str, mesh: Any) -> Updates:
        return Updates(((model.optimizer, tuple(model.trainable_variables)),), (1,))

    replaced: dict[Any, dict[str, Any]] = {
        tf_dataset: {"_opened": opened},
        build: {"build_model": lambda estimator, dataset: estimator.model_fn(), "updates_of": updates_of},
        announce: {"_graph": lambda model, spec: None},
        evaluator: {"merging": lambda model, dataset, ranks: Merging()},
        components: {"_signature": lambda *given: (None, "a stand-in has no signature")},
        data_check: {"sparse_classes": lambda model, labels: dict.fromkeys(labels, (CLASSES, None))},
        strategy: {"gradient_allreduce": allreduce_of, "_train_step": train_step},
    }
    for module, functions in replaced.items():
        for name, function in functions.items():
            assert hasattr(module, name), f"{module.__name__} has no {name} any more: mend control_paths/stand_in.py"
            setattr(module, name, function)


@contextmanager
def opened(
    source: Any,
    shards: Any,
    reading: AbstractContextManager[Any],
    threads: int,
    load: Any,
    rows: int | None = None,
) -> Iterator[Any]:
    """As tf_dataset._opened, without TensorFlow."""
    from hpc_train.data.loading.tf_dataset import OpenInput

    with reading as reader:
        yield OpenInput(Batches(reader, shards, source.batch_size), "", reader.sampler, reader.order, reader.notes, [])


def allreduce_of(world: Any, config: Any, roles: Any) -> Any:
    """In place of strategy.gradient_allreduce: what `train_step` exchanges by."""
    return world.each(lambda: SimpleNamespace(world=world, groups=None))


def train_step(context: Any, allreduce: Any) -> Callable[[Any, Any], Any]:
    """A step that computes nothing: one allreduce of the loss, the flags and as many numbers as a layer has."""
    from hpc_train.engine.step_report import Flags, StepReport

    count, world = len(fields(Flags)), allreduce.world

    def step(batch: Any, flags: Flags) -> Callable[[], StepReport]:
        sent = np.zeros(1 + count + WIDTH * WIDTH)
        sent[0], sent[1 : 1 + count] = float(np.mean(batch[-1])), astuple(flags)
        begun = time.perf_counter()
        total = world.sum(sent)
        waited = time.perf_counter() - begun
        raised = Flags(*(bool(number > 0) for number in total[1 : 1 + count]))
        report = StepReport(total[0] / world.size, raised, True, False, communication_secs=waited)
        return lambda: report

    return step
