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


def test_a_seed_is_of_all_generators() -> None:
    import tensorflow as tf

    held = tf.random.get_global_generator()

    def draw(seed: int, part: int) -> tuple[float, ...]:
        rng_state.seed_all(seed)
        rng_state.seed_part(seed, part)
        assert tf.random.get_global_generator() is held, "a model may have it already"
        return (random.random(), np.random.normal(), float(held.normal([])), float(tf.random.normal([])))

    first = draw(3, 0)
    assert draw(3, 0) == first
    assert all(a != b for a, b in zip(draw(4, 0), first, strict=True))
    other = draw(3, 1)
    assert other[2] != first[2] and draw(3, 1) == other
    assert len({draw(3, part)[2] for part in range(20)}) == 20
    before = held.state.numpy()
    rng_state.seed_all(None)
    rng_state.seed_part(None, 1)
    np.testing.assert_array_equal(held.state.numpy(), before, "no seed, nothing to change")
