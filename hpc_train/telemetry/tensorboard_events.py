"""What TensorBoard's event files hold: scalars, histograms, text, graphs, hyper-parameters."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

BUCKETS = 30
SAMPLE = 2**18
"""Elements of a variable that its histogram is made from, at most."""
MAX_GRAPH_BYTES = 50_000_000
"""A larger graph is not written: TensorBoard's page cannot show it."""


def event_at(step: int) -> Event:
    """An event of `step` that holds nothing yet."""
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=time.time(), step=step)


def scalars(values: Mapping[str, float | None]) -> list[Summary.Value]:
    """Those of `values` that are known, by tag."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    return [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items() if value is not None]


def histogram(tag: str, buckets: np.ndarray) -> Summary.Value:
    """A histogram of `buckets` [k, 3]: lower and upper edge, count."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.histogram.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    tensor = make_tensor_proto(np.asarray(buckets, np.float64))
    return Summary.Value(tag=tag, metadata=create_summary_metadata(None, None), tensor=tensor)


def buckets_of(values: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """The histogram [k, 3] of the finite ones of `values`, each counted once or as often as `counts` says. Pure.

    30 buckets of one width between the least and the largest value; one bucket where those are equal; [0, 3] where
    there is none.
    """
    values = np.asarray(values).reshape(-1).astype(np.float64)
    kept = np.isfinite(values)
    weights = (np.ones(values.size) if counts is None else np.asarray(counts, np.float64).reshape(-1))[kept]
    values = values[kept]
    if not values.size:
        return np.zeros((0, 3))
    low, high = float(values.min()), float(values.max())
    half = high / 2 - low / 2  # of the range, which itself may be too large for a float
    parts = np.linspace(0.0, 1.0, BUCKETS + 1)
    edges = low * (1 - parts) + high * parts
    if half == 0 or not (np.diff(edges) > 0).all():
        return np.array([[low - 0.5, high + 0.5, weights.sum()]])
    places = np.clip(((values / 2 - low / 2) / half * BUCKETS).astype(np.int64), 0, BUCKETS - 1)
    found = np.bincount(places, weights, BUCKETS)
    return np.stack([edges[:-1], edges[1:], found], axis=1)


def buckets_of_variable(array: np.ndarray) -> np.ndarray | None:
    """The histogram of a variable of any numeric type; None of another.

    Of more than 262,144 elements that many are drawn, always the same ones, and their counts scaled up.
    """
    flat = np.asarray(array).reshape(-1)
    scale = max(1.0, flat.size / SAMPLE)
    if scale > 1:
        flat = flat[np.random.default_rng(0).integers(flat.size, size=SAMPLE)]
    try:
        buckets = buckets_of(flat)
    except (TypeError, ValueError):
        return None
    buckets[:, 2] *= scale
    return buckets


def text_event(tag: str, markdown: str) -> Event:
    """A text for the TEXT tab."""
    from tensorboard.plugins.text.summary_v2 import text_pb

    return _event_of(text_pb(tag, markdown))


def graph_event(function: Any) -> Event | None:
    """The graph of a concrete tf.function for the GRAPHS tab; None where it is larger than 50 MB."""
    try:
        graph_def = function.graph.as_graph_def(add_shapes=True)
        if graph_def.ByteSize() > MAX_GRAPH_BYTES:
            return None
    except ValueError:  # above 2 GB
        return None
    event = event_at(0)
    event.graph_def = graph_def.SerializeToString()
    return event


def hyperparameters_event(params: Mapping[str, Any], model_uri: str) -> Event:
    """What a row of the HPARAMS tab begins with; `params` as `flattened` returns them."""
    from tensorboard.plugins.hparams.summary import session_start_pb

    return _event_of(session_start_pb(params, model_uri=model_uri))


def ended_event(succeeded: bool) -> Event:
    """How a row of the HPARAMS tab ends."""
    from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
    from tensorboard.plugins.hparams.summary import session_end_pb

    return _event_of(session_end_pb(STATUS_SUCCESS if succeeded else STATUS_FAILURE))


def flattened(params: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """`params` with the names of nested ones joined by dots. Numbers, truth values and text stay. Pure.

    Others become text; numbers that are not finite, too, since TensorBoard shows none; None is left out.
    """
    flat: dict[str, bool | int | float | str] = {}
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{name}."))
        elif isinstance(value, bool | str) or (isinstance(value, int | float) and _is_a_double(value)):
            flat[name] = value
        elif value is not None:
            flat[name] = str(value)
    return flat


def _is_a_double(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _event_of(summary: Any) -> Event:
    """An event that holds `summary`, TensorBoard's or TensorFlow's."""
    event = event_at(0)
    event.summary.ParseFromString(summary.SerializeToString())
    return event
