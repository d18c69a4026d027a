"""What becomes of a step's gradients: ranks exchange them, and the optimizer is given what is to be applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from hpc_train.distributed.agreement import agreeing, all_finite, sum_of
from hpc_train.distributed.allreduce import GradientAllreduce
from hpc_train.distributed.optimizer_pieces import OptimizerPieces
from hpc_train.distributed.optimizer_trials import leaves_rows
from hpc_train.distributed.rows import each_once
from hpc_train.distributed.share import averaged_over
from hpc_train.lazy import keras, tf


class Update:
    """The update of one optimizer: exchange, then apply. Called inside a tf.function; collective.

    Args:
        variables: The model's that it updates. pieces: this rank's, where the optimizer is sharded.
        rows_apart: Leave the gradients of embeddings as rows, which some optimizers of Keras treat otherwise than the
            whole gradient. For one rank, and for tables in parts, of which each row has one rank.

    Attributes:
        apart: Whether ranks see other parts of the gradients.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[Any],
        allreduce: GradientAllreduce,
        pieces: OptimizerPieces | None = None,
        rows_apart: bool = False,
    ) -> None:
        self._optimizer, self._allreduce, self._pieces = optimizer, allreduce, pieces
        self._held = pieces.held if pieces else list(variables)
        self._over = [averaged_over(variable) for variable in variables]
        self._cut = pieces.cut if pieces else set()
        self.apart = allreduce.ranks > 1 and (bool(self._cut) or set(self._over) != {"world"})
        in_parts = "alone" in self._over and (rows_apart or leaves_rows(optimizer))
        whole = rows_apart and allreduce.ranks == 1
        self._as_rows = [in_parts if over == "alone" else whole for over in self._over]
        # It makes gradients overflow to find the largest scale that does not, and leaves such steps out by itself.
        self._may_overflow = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)

    def given(self, number: int, gradient: Any) -> Any:
        """The gradient of a variable as ranks exchange it, and the optimizer and norms get it.

        Whole, on any number of ranks: Adam and clipping treat rows that occur twice otherwise. Or, of a table in parts
        and for an optimizer that is to have them, rows, each once.
        """
        if not (self._as_rows[number] and isinstance(gradient, tf.IndexedSlices)):
            return tf.convert_to_tensor(gradient)
        return each_once(gradient) if self._over[number] == "alone" else gradient

    def exchanged(
        self, used: Sequence[int], own: Sequence[Any], exact: Sequence[Any], over: Sequence[str]
    ) -> tuple[list[Any], list[Any]]:
        """This rank's gradients as they are to be applied, and the means of `exact`.

        Args:
            used: Numbers of the variables that have a gradient; `own`: these gradients.
            over: Among whom each of `exact` is averaged.
        """
        pieces, found = self._pieces, dict[int, Any]()
        if pieces is not None:
            cut = {k: gradient for k, gradient in zip(used, own, strict=True) if k in self._cut}
            found = pieces.scattered(cut, self._allreduce.scattered)
        kept = [(k, gradient) for k, gradient in zip(used, own, strict=True) if k not in self._cut]
        among = [*(self._over[k] for k, _ in kept), *over]
        means, exact = self._allreduce.average([gradient for _, gradient in kept], list(exact), among)
        found.update(zip((k for k, _ in kept), means, strict=True))
        return [found[k] for k in used], exact

    def all_finite(self, gradients: Sequence[Any]) -> tf.Tensor | None:
        """Whether the gradients that ranks see are finite on all of them; None where all see the same. Collective."""
        return all_finite(self._allreduce.collectives, gradients) if self.apart else None

    def finite(self, gradients: Sequence[Any], loss: tf.Tensor, on_all: tf.Tensor | None = None) -> tf.Tensor:
        """Whether loss and gradients are finite, as far as the optimizer does not look itself.

        Args:
            on_all: What `all_finite` has said of the gradients; None: this rank sees them all.
        """
        loss = tf.cast(loss, tf.float32)
        if self._may_overflow:
            return tf.math.is_finite(loss)
        if on_all is not None:
            return tf.logical_and(tf.math.is_finite(loss), on_all)
        return tf.math.is_finite(tf.add_n([loss, *sum_of(gradients)]))

    def own(self, used: Sequence[int], gradients: Sequence[Any]) -> list[Any]:
        """Of gradients that ranks have averaged already, what is to be applied."""
        if self._pieces is None:
            return list(gradients)
        found = self._pieces.own({k: g for k, g in zip(used, gradients, strict=True) if k in self._cut})
        return [found.get(k, gradient) for k, gradient in zip(used, gradients, strict=True)]

    def apply(
        self,
        used: Sequence[int],
        gradients: Sequence[Any],
        on_all: tf.Tensor | None,
        apply: Callable[[list[Any], list[Any]], Any] | None = None,
        alike: Callable[[list[Any]], None] | None = None,
    ) -> None:
        """Gives the optimizer what was exchanged, and the model's variables what it has made of its pieces.

        Args:
            on_all: What `all_finite` has said of the gradients.
            apply: Instead of the optimizer's `apply_gradients`.
            alike: Is told of tensors that are the same on all ranks.
        """
        from hpc_train.optimizers.fused import fused_updates

        held = [self._held[k] for k in used]
        fused = nullcontext() if apply else fused_updates(self._optimizer)
        with fused, self._agreed(used, held, on_all, alike):
            if apply:
                apply(list(gradients), held)
            else:
                self._optimizer.apply_gradients(zip(gradients, held, strict=True))

    @contextmanager
    def _agreed(
        self,
        used: Sequence[int],
        held: Sequence[Any],
        on_all: tf.Tensor | None,
        alike: Callable[[list[Any]], None] | None,
    ) -> Iterator[None]:
        if on_all is None:
            yield
            return
        groups = self._allreduce.groups
        ranks = {"world": groups.every.ranks, "data": groups.data.ranks, "alone": groups.model.ranks}
        copies = [1 if k in self._cut else ranks[self._over[k]] for k in used]
        updating = self._pieces.updating(groups, alike) if self._pieces else nullcontext()
        with agreeing(self._optimizer, held, copies, groups.every, on_all, alike), updating:
            yield
