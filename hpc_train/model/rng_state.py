"""What each rank has for itself in a checkpoint: states of generators outside the model, and of stateful layers."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hpc_train.data.sampling.shuffle import derive_seed
from hpc_train.distributed.world import World
from hpc_train.lazy import keras, tf


def seed_all(seed: int | None) -> None:
    """Seeds Python's, numpy's, Keras's and TensorFlow's generators, the global one included. Local.

    Args:
        seed: None leaves them as they are, but for a global generator that there must be: with
            `tf.config.experimental.enable_op_determinism` TensorFlow makes none by itself.
    """
    if seed is not None:
        keras.utils.set_random_seed(seed)
    try:
        generator = tf.random.get_global_generator()
    except RuntimeError:
        seed = secrets.randbits(32) if seed is None else seed
        tf.random.set_global_generator(tf.random.Generator.from_seed(seed))
        return
    if seed is not None:
        generator.reset_from_seed(seed)  # models may hold on to it


def seed_part(seed: int | None, part: int) -> None:
    """Has TensorFlow's global generator draw other numbers on the rank of each `part` > 0 than on that of part 0.

    Local; for after the model function, which finds the same state on all ranks. Nothing where there is no seed: the
    generators differ then.
    """
    if seed is not None and part > 0:
        tf.random.get_global_generator().reset_from_seed(derive_seed(seed, 0, part) % 2**63)


def gather(world: World, layers: Sequence[Any] = (), alike: int = 1) -> dict[str, np.ndarray]:
    """What each rank has for itself, `[ranks / alike, ...]` each, on the chief. Collective.

    The states of Python's, numpy's and TensorFlow's global generators, which matter to layers that draw numbers outside
    TensorFlow's graph; Keras's seed generators are variables of the model, and the input draws its numbers from seeds
    of its own. And `layers`: the variables of stateful layers.

    Args:
        alike: So many ranks with numbers one after the other have the same, as they read the same rows.
    """
    gathered = {name: world.gather_arrays(array) for name, array in _own(layers).items()}
    return {name: np.ascontiguousarray(s[::alike]) for name, s in gathered.items() if s is not None}


def room(parts: int, layers: Sequence[Any] = ()) -> dict[str, np.ndarray]:
    """Memory for what `gather` gives of so many ranks. Local."""
    return {name: np.empty((parts, *array.shape), array.dtype) for name, array in _own(layers).items()}


def restore(
    world: World, states: dict[str, np.ndarray] | None, part: int, parts: int, layers: Sequence[Any] = ()
) -> bool:
    """Gives each rank its states back, where as many ranks train as did; returns whether they do. Collective.

    Args:
        states: What `gather` gave, on the chief; None where there is nothing to restore.
        part: Of the data that this rank reads, of so many `parts`; one that takes no steps is given another one's.
    """
    own = _own(layers)
    same = states is not None and all(
        name in states and states[name].shape == (parts, *array.shape) for name, array in own.items()
    )
    if not world.broadcast(same):
        return False
    part_of = world.gather_arrays(np.array([part]))
    for name, array in own.items():
        by_rank = np.ascontiguousarray(states[name][part_of[:, 0]]) if states and part_of is not None else None
        own[name] = np.empty_like(array)
        world.scatter_arrays(by_rank, own[name])
    _set(own)
    for place, variable in enumerate(layers):
        variable.assign(own[f"layer_{place}"])
    return True


@contextmanager
def unchanged() -> Iterator[None]:
    """A context whose draws leave the generators as they were. Local."""
    states = _own()
    try:
        yield
    finally:
        _set(states)


def _own(layers: Sequence[Any] = ()) -> dict[str, np.ndarray]:
    _, words, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=True)
    return {
        "python": np.array([*words, *_bits(gauss)], np.uint32),
        "numpy": np.array([*legacy[1], legacy[2], *_bits(legacy[4] if legacy[3] else None)], np.uint32),
        "tensorflow": np.asarray(tf.random.get_global_generator().state.numpy(), np.int64),
        **{f"layer_{place}": np.array(variable.numpy()) for place, variable in enumerate(layers)},
    }


def _set(states: dict[str, np.ndarray]) -> None:
    version, _, _ = random.getstate()
    words = states["python"]
    random.setstate((version, tuple(int(w) for w in words[:-3]), _number(words[-3:])))
    words, gauss = states["numpy"][:-3], _number(states["numpy"][-3:])
    np.random.set_state(("MT19937", words[:-1], int(words[-1]), int(gauss is not None), gauss or 0.0))
    tf.random.get_global_generator().state.assign(states["tensorflow"])


def _bits(number: float | None) -> list[int]:
    """A normal number that a generator holds back for its next call: whether there is one, and its 64 bits."""
    low, high = np.array([number or 0.0], np.float64).view(np.uint32)
    return [int(number is not None), int(low), int(high)]


def _number(bits: np.ndarray) -> float | None:
    return float(np.ascontiguousarray(bits[1:], np.uint32).view(np.float64)[0]) if bits[0] else None
