"""Seeds and permutations that stay the same for ever. Pure.

Seeds are derived with numpy's SeedSequence (O'Neill's seed_seq design,
https://www.pcg-random.org/posts/developing-a-seed_seq-alternative.html), whose stream numpy keeps for all its versions
(NEP 19). A permutation is computed place by place instead of being stored: a Feistel network is a bijection
whatever its round function (Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom
functions", SIAM J. Comput. 17, 1988), here of the pairs below (a, b) for some a x b just above n, with addition modulo
a and b in place of XOR; walking its cycles until a number falls below n makes it one of 0…n-1 (both from Black and
Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

ROUNDS = 16
"""So many give each order of five numbers equally often (tested); eight do not."""

PIECE = 16384
"""Places computed at a time: so many that numpy's call costs vanish, so few that they stay in a core's cache."""

_HALF = np.uint64(32)


@lru_cache(maxsize=256)
def derive_seed(seed: int, *key: int) -> int:
    """A 64-bit seed for `key`, such as (epoch, rank), of a job's `seed`."""
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0])


class Shuffle:
    """A permutation of 0…n-1 that takes no memory: any part of it can be had without the rest.

    Args:
        n: How many numbers, from 1 to 2**62.
        seed: Chooses the permutation, 64 bits.
    """

    def __init__(self, n: int, seed: int) -> None:
        if not 1 <= n <= 2**62:
            raise ValueError(f"n is {n}; it should be between 1 and 2**62")
        self._n = n
        self._low = max(2, math.isqrt(n - 1) + 1)
        self._high = max(2, -(-n // self._low))
        words = np.random.SeedSequence(seed).generate_state(2 * ROUNDS, np.uint64)
        self._keys = list(zip(words[::2], words[1::2] | np.uint64(1), strict=True))

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """The numbers at `places`: int64 `[k]`, each below n, to int64 `[k]`."""
        return self._walk(places, self._permute)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Where `numbers` are: int64 `[k]`, each below n, to int64 `[k]`; undoes a call."""
        return self._walk(numbers, self._permute_back)

    def _walk(self, start: np.ndarray, step: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        numbers = np.array(start, np.uint64)
        outside = np.arange(len(numbers))
        walking = numbers
        while len(outside):
            walking = step(walking)
            numbers[outside] = walking
            still = walking >= self._n
            outside, walking = outside[still], walking[still]
        return numbers.astype(np.int64)

    def _permute(self, numbers: np.ndarray) -> np.ndarray:
        high, low = np.divmod(numbers, np.uint64(self._low))
        mixed = np.empty_like(low)
        for i, (summand, factor) in enumerate(self._keys):
            source, target, modulus = (low, high, self._high) if i % 2 else (high, low, self._low)
            np.add(source, summand, out=mixed)
            mixed *= factor
            mixed >>= _HALF
            mixed *= np.uint64(modulus)  # 32 random bits, scaled to a number below the modulus
            mixed >>= _HALF
            target += mixed
            np.subtract(target, np.uint64(modulus), out=mixed)  # wraps round, to be the larger, where not needed
            np.minimum(target, mixed, out=target)
        high *= np.uint64(self._low)
        high += low
        return high

    def _permute_back(self, numbers: np.ndarray) -> np.ndarray:
        """The rounds of `_permute` from the last to the first, each subtracting what it had added."""
        high, low = np.divmod(numbers, np.uint64(self._low))
        mixed = np.empty_like(low)
        for i, (summand, factor) in reversed(list(enumerate(self._keys))):
            source, target, modulus = (low, high, self._high) if i % 2 else (high, low, self._low)
            np.add(source, summand, out=mixed)
            mixed *= factor
            mixed >>= _HALF
            mixed *= np.uint64(modulus)
            mixed >>= _HALF
            target -= mixed
            np.add(target, np.uint64(modulus), out=mixed)  # smaller only where the difference wrapped round
            np.minimum(target, mixed, out=target)
        high *= np.uint64(self._low)
        high += low
        return high


def permutation(n: int, seed: int) -> np.ndarray:
    """A permutation of 0…n-1, int64 `[n]`."""
    return Shuffle(n, seed)(np.arange(n))


def permutation_slice(n: int, seed: int, first: int, end: int) -> np.ndarray:
    """Numbers at places `first`…`end - 1` of `Shuffle(n, seed)`, int64 `[end - first]`."""
    pieces = [_piece(n, seed, k) for k in range(first // PIECE, -(-end // PIECE))]
    whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    start = first // PIECE * PIECE
    return whole[first - start : end - start]


@lru_cache(maxsize=8)
def _shuffle(n: int, seed: int) -> Shuffle:
    return Shuffle(n, seed)


@lru_cache(maxsize=16)
def _piece(n: int, seed: int, k: int) -> np.ndarray:
    return _shuffle(n, seed)(np.arange(k * PIECE, min((k + 1) * PIECE, n)))


def drawn_with_replacement(n: int, seed: int, places: np.ndarray) -> np.ndarray:
    """The numbers below n at `places` of an endless series of independent ones, int64 `[k]` to int64 `[k]`.

    The series is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
    """
    mixed = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(derive_seed(seed))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: np.ndarray = ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(n)).astype(np.int64)
    return found
