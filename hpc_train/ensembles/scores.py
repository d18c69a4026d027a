"""How good probabilities or values are, row by row. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hpc_train.ensembles.task import Kind
from hpc_train.errors import UserError

LEAST = 1e-7
"""What a probability counts as at least, as in Keras's losses."""
METRICS: dict[Kind, tuple[str, str]] = {
    "classes": ("loss", "accuracy"),
    "binary": ("loss", "accuracy"),
    "values": ("loss", "mae"),
}
"""The first is the negative log-likelihood of the label, or the squared error of values."""


def row_scores(kind: Kind, labels: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """METRICS of each row, float64 `[rows, 2]`.

    Args:
        labels: `[rows, ...]`: of classes their numbers, or shares of each of them as `outputs` has.
        outputs: `[rows, ...]` of one model.

    Raises:
        UserError: The labels are of another shape.
    """
    rows, found = len(outputs), outputs.astype(np.float64)
    if kind == "classes":
        found = found.reshape(rows, -1, outputs.shape[-1])
        if labels.size == found.size:
            shares = labels.reshape(found.shape).astype(np.float64)
            right = found.argmax(-1) == shares.argmax(-1)
            losses = -(shares * np.log(np.maximum(found, LEAST))).sum(-1)
        else:
            numbers = _of_shape(labels, found[..., 0].shape).astype(np.int64)
            right = found.argmax(-1) == numbers
            own = np.take_along_axis(found, numbers[..., None], -1)[..., 0]
            losses = -np.log(np.maximum(own, LEAST))
        return np.stack([losses.mean(-1), right.mean(-1)], axis=-1)
    found = found.reshape(rows, -1)
    wanted = _of_shape(labels, found.shape).astype(np.float64)
    if kind == "binary":
        yes, no = np.log(np.clip(found, LEAST, 1)), np.log(np.clip(1 - found, LEAST, 1))
        losses, second = -(wanted * yes + (1 - wanted) * no), (found > 0.5) == (wanted > 0.5)
    else:
        losses, second = (found - wanted) ** 2, np.abs(found - wanted)
    return np.stack([losses.mean(-1), second.mean(-1)], axis=-1)


def _of_shape(labels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if labels.size != np.prod(shape) or labels.dtype.kind not in "biuf":
        raise UserError(
            f"labels {labels.dtype.name} {list(labels.shape)} are not those of outputs {list(shape)}; an ensemble is "
            "evaluated on numbers, one for each output"
        )
    return labels.reshape(shape)


@dataclass
class Scores:
    """METRICS of several models over the batches of an evaluation; the ensemble's mean comes first."""

    kind: Kind
    rows: int = 0
    _weight: float = 0.0
    _sums: np.ndarray = field(default_factory=lambda: np.zeros(()))

    def add(self, labels: np.ndarray, mean: np.ndarray, members: np.ndarray, weights: np.ndarray | None) -> None:
        """Takes in a batch.

        Args:
            mean: `[rows, ...]`. members: `[rows, members, ...]`.
            weights: Of rows, `[rows]`; None: they are alike.
        """
        weight = np.ones(len(mean)) if weights is None else weights.reshape(len(mean), -1).mean(-1)
        models = [mean, *np.moveaxis(members, 1, 0)]
        found = np.stack([row_scores(self.kind, labels, outputs) for outputs in models])  # [models, rows, metrics]
        self._sums = self._sums + np.einsum("mrk,r->mk", found, weight)
        self._weight, self.rows = self._weight + float(weight.sum()), self.rows + len(mean)

    def results(self) -> list[dict[str, float]]:
        """The metrics of each model."""
        means = self._sums / self._weight
        return [dict(zip(METRICS[self.kind], map(float, each), strict=True)) for each in means]
