from __future__ import annotations

import random

import numpy as np

from hpc_train.distributed.world import World
from hpc_train.model import rng_state


def test_numbers_go_on_where_they_were() -> None:
    import tensorflow as tf

    def draw() -> list[float]:
        generator = tf.random.get_global_generator()
        return [random.random(), random.gauss(0, 1), *np.random.normal(size=3), float(generator.normal([]))]

    world = World(None, 0, 1)
    draw()
    states = rng_state.gather(world)
    assert {name: array.shape[0] for name, array in states.items()} == {"python": 1, "numpy": 1, "tensorflow": 1}
    expected = draw()
    draw()
    rng_state.restore(world, states, 0, 1)
    assert draw() == expected, "also the normal numbers that were held back"
    rng_state.restore(world, {name: np.concatenate([array, array]) for name, array in states.items()}, 0, 1)
    assert draw() != expected, "states of another number of ranks are left alone"
    rng_state.restore(world, None, 0, 1)
