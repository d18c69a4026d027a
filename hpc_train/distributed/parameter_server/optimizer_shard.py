"""OptimizerShard: a server's part of a model's trainable variables, updated by the user's own Keras optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hpc_train.distributed.optimizer_trials import takes_rows
from hpc_train.distributed.optimizer_variables import OptimizerVariables, build, exclude_alike, held_as, of_parts
from hpc_train.distributed.parameter_server import window_layout as at
from hpc_train.distributed.parameter_server.window_layout import Mailbox, Rows
from hpc_train.distributed.partition import Partition
from hpc_train.distributed.tensors import copy_of, nbytes_of, on_host, places, reader_of, tensor_of, view_of
from hpc_train.lazy import keras, tf


class OptimizerShard:
    """The pieces of one server as variables, and the optimizer built on them. All lies in the host's memory.

    Whole variables are used as they are; a piece of one that is cut becomes a variable of its own.

    Args:
        variables: All trainable variables of the model that `optimizer` was compiled with.
        optimizer: Not built yet; used up by this.
        pushed: Whether there is a gradient, by variable.
        mean: Whether gradients of several workers are averaged before they are clipped and applied; else each is
            clipped by its worker, and here no more.
        scale: Whether `apply` may be asked for part of the learning rate.

    Attributes:
        pieces: This server's, and `variables` what holds them.
        optimizer_variables: The optimizer's, by piece.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        optimizer: keras.optimizers.Optimizer,
        partition: Partition,
        server: int,
        pushed: Sequence[bool],
        mean: bool = False,
        scale: bool = False,
    ) -> None:
        self._origin, self._mean = partition.cuts[server], mean
        self.pieces = partition.pieces(server)
        self._used = [number for number, piece in enumerate(self.pieces) if pushed[piece.variable]]
        rows = any(partition.variables[piece.variable].rows for piece in self.pieces)
        self._as_rows = rows and not mean and takes_rows(optimizer)
        with on_host():
            whole = [variables[piece.variable] for piece in self.pieces]
            self.variables = [
                variable if piece.shape == tuple(variable.shape) else held_as(variable, piece.shape)
                for variable, piece in zip(whole, self.pieces, strict=True)
            ]
            exclude_alike(optimizer, whole, self.variables)
            self.optimizer_variables: OptimizerVariables = build(optimizer, self.variables)
        self._optimizer = optimizer
        optimizer.loss_scale_factor = None  # workers send gradients of the loss itself
        self._weights = tf.Variable(1.0, trainable=False, dtype=tf.float64)
        self._rate = tf.Variable(1.0, trainable=False) if scale else None
        parts = of_parts(optimizer, self.variables)
        self._learning_rate = parts[0][0]._get_current_learning_rate if len(parts) == 1 else None
        for part, _ in parts:
            if not mean:
                part.clipnorm = part.global_clipnorm = part.clipvalue = None
            if self._rate is not None:
                part._get_current_learning_rate = partial(self._scaled, part._get_current_learning_rate)
        used = set(self._used)
        self._idle = [part for part, places in parts if part is not optimizer and not used.intersection(places)]
        self._apply = tf.function(self._update, reduce_retracing=True, autograph=False)
        self._tensors: dict[int, list[Any]] = {}
        self._checked_copies = self._copies = False
        self._read = reader_of(self.variables)
        slots, common = self.optimizer_variables.slots, self.optimizer_variables.common
        self.state = [*self.variables, *(slot for own in slots for slot in own), *common]
        self._read_state = reader_of(self.state)
        self._places, self.state_nbytes = places([nbytes_of(v) for v in self.state])

    def load(self, variables: Sequence[Any], whole: OptimizerVariables) -> None:
        """Takes over the values of a model's trainable variables and of an optimizer built on them."""
        for piece, held, slots in zip(self.pieces, self.variables, self.optimizer_variables.slots, strict=True):
            for mine, theirs in zip(
                [held, *slots], [variables[piece.variable], *whole.slots[piece.variable]], strict=True
            ):
                mine.assign(np.ravel(theirs.numpy())[piece.start : piece.stop].reshape(piece.shape))
        for mine, theirs in zip(self.optimizer_variables.common, whole.common, strict=True):
            mine.assign(theirs.numpy())

    def bind(self, boxes: Sequence[Mailbox]) -> None:
        """Sees the gradients in mailboxes as tensors, without a copy."""
        for box in boxes:
            gradients = [box.gradients[number] for number in self._used]
            self._tensors[box.worker] = [None if isinstance(g, Rows) else tensor_of(g) for g in gradients]

    def apply(self, boxes: Sequence[Mailbox], rate: float) -> None:
        """Applies the mean of the gradients in `boxes`, by their weights, with `rate` times the learning rate."""
        given = [self._gradients(box) for box in boxes]
        if self._rate is not None:
            self._rate.assign(rate)
        with on_host():
            if self._mean:
                self._weights.assign(sum(box.number(at.WEIGHT) for box in boxes))
            self._apply(given if self._mean else given[0])
        if not self._checked_copies:
            self._checked_copies = True
            self._detach_from(boxes[0])

    def _gradients(self, box: Mailbox) -> list[Any]:
        tensors = list(self._tensors[box.worker])
        for place, number in enumerate(self._used):
            gradient = box.gradients[number]
            if isinstance(gradient, Rows):
                count = int(gradient.count[0])
                tensors[place] = tensor_of(gradient.values[:count]), tensor_of(gradient.numbers[:count])
        return tf.nest.map_structure(copy_of, tensors) if self._copies else tensors

    def _detach_from(self, box: Mailbox) -> None:
        """Where the optimizer has kept a gradient as it is, it has kept the mailbox: gives it copies from now on."""
        arrays = [g.values if isinstance(g, Rows) else g for g in box.gradients]
        bounds = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays]
        for variable, tensor in zip(self.state, self._read_state(), strict=True):
            view = view_of(tensor)
            if any(low <= view.ctypes.data < high for low, high in bounds):
                self._copies = True
                variable.assign(copy_of(tensor))

    def _of_rows(self, gradients: list[Any]) -> list[Any]:
        found = []
        for number, gradient in zip(self._used, gradients, strict=True):
            if isinstance(gradient, tuple):
                shape = self.pieces[number].shape
                gradient = tf.IndexedSlices(*gradient, tf.constant(shape, tf.int64))
                if not self._as_rows:
                    gradient = tf.ensure_shape(tf.convert_to_tensor(gradient), shape)
            found.append(gradient)
        return found

    def _update(self, given: list[Any]) -> None:
        """Applies one worker's gradients, or the mean of all: summed in their order, so always the same to the bit."""
        from hpc_train.optimizers.fused import fused_updates

        if self._mean:
            every = zip(*map(self._of_rows, given), strict=True)
            gradients = [tf.add_n(alike) / tf.cast(self._weights, alike[0].dtype) for alike in every]
        else:
            gradients = self._of_rows(given)
        if self._used:
            with fused_updates(self._optimizer):
                self._optimizer.apply(gradients, [self.variables[number] for number in self._used])
        else:
            self._optimizer._iterations.assign_add(1)
        for idle in self._idle:  # it counts steps all the same, as on the other servers
            idle._iterations.assign_add(1)

    def write_parameters(self, into: np.ndarray) -> None:
        """Copies the parameters into `into` (uint8), laid out as the server's range of the arena."""
        for piece, tensor in zip(self.pieces, self._read(), strict=True):
            np.copyto(piece.view(into, self._origin), view_of(tensor))

    def write_state(self, into: np.ndarray) -> None:
        """Copies parameters, slots and the optimizer's other variables into `into` (uint8 `[state_nbytes]`)."""
        for place, tensor in zip(self._places, self._read_state(), strict=True):
            flat = np.ravel(view_of(tensor)).view(np.uint8)
            into[place : place + flat.size] = flat

    def _scaled(self, rate: Callable[[], Any]) -> Any:
        """A learning rate of the optimizer, times that part of it which `apply` is asked for."""
        return tf.cast(tf.convert_to_tensor(rate()), tf.float32) * self._rate

    @property
    def learning_rate(self) -> float | None:
        """That of the next update, were its gradient fresh; None of several optimizers (MultiOptimizer)."""
        return None if self._learning_rate is None else float(self._learning_rate())
