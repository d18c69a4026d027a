"""The numbers to reach, and what was measured beside them. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from support.report import Target

from inputs.cases import DATASET, ORDERS, READER, Settings
from inputs.results import Case, Results
from inputs.step import STEP_SECS

MEMCPY_RATIO = {"none": 0.7, "global": 0.35, "block": 0.25}
TFRECORD_RATIO = 5.0
ZLIB_TIME = 1.2
TWO_THREADS = 1.6
WAIT_SHARE = 0.01
WORDS = {"none": "Sequential", "block": "Block shuffle", "global": "Global shuffle"}
ALL_ROWS = ("784 B", "3 KB", "150 KB")


def targets(results: Results, settings: Settings) -> list[Target]:
    """All targets, in the order of the issue that set them."""
    return [
        *_against_memcpy(results, settings),
        *_against_tfrecord(results, settings),
        *_gzip(results, settings),
        *_step(results),
    ]


def _against_memcpy(results: Results, settings: Settings) -> Iterator[Target]:
    for order, wanted in MEMCPY_RATIO.items():
        rows = ("3 KB",) if order == "global" else ALL_ROWS
        ways = dict.fromkeys(((READER, 1), (READER, settings.threads), (DATASET, settings.threads)))
        for way, threads in ways:
            cases = [Case(name, "contiguous", order, way, threads) for name in rows]
            of = f"{threads} thread{'s' if threads > 1 else ''}"
            what = f"{WORDS[order]}, contiguous{', rows of 3 KB' if order == 'global' else ''}: {way}, {of}"
            yield _at_least(results, what, f"≥ {wanted} x memcpy", cases, "memcpy", wanted)


def _against_tfrecord(results: Results, settings: Settings) -> Iterator[Target]:
    for order in ORDERS:
        for cores, threads, words in (("one", 1, "both on one core"), ("all", settings.threads, "ours on all cores")):
            cases = [Case(name, "contiguous", order, DATASET, threads, cores) for name in ALL_ROWS]
            what = f"{WORDS[order]}, contiguous: tf.data, {words}"
            yield _at_least(results, what, f"≥ {TFRECORD_RATIO:g} x TFRecord", cases, "TFRecord", TFRECORD_RATIO)


def _gzip(results: Results, settings: Settings) -> Iterator[Target]:
    cases = [Case(name, "gzip", "none", READER, 1) for name in ALL_ROWS]
    yield _judge(
        results,
        "gzip, sequential, one thread: reader",
        f"≤ {ZLIB_TIME:g} x the time of zlib",
        cases,
        lambda ratios: 1 / ratios["zlib"],
        lambda value: value <= ZLIB_TIME,
    )
    ways = ((READER, 2), (DATASET, 2)) if settings.threads == 2 else ((READER, 2),)
    for way, threads in ways:
        cases = [Case(name, "gzip", "none", way, threads) for name in ALL_ROWS]
        what = f"gzip, sequential, two threads: {way}"
        yield _at_least(results, what, f"≥ {TWO_THREADS:g} x one thread", cases, "1 thread", TWO_THREADS)


def _step(results: Results) -> Iterator[Target]:
    found = {step.order: step.wait_share for step in results.steps}
    measured = [(WORDS[order], f"{share:.2%}", share <= WAIT_SHARE) for order, share in found.items()]
    wanted = f"≤ {WAIT_SHARE:.0%} of the step"
    yield Target(f"Wait for input in a training step of {1000 * STEP_SECS:g} ms, rows of 3 KB", wanted, measured)


def _at_least(results: Results, what: str, wanted: str, cases: Sequence[Case], baseline: str, ratio: float) -> Target:
    return _judge(results, what, wanted, cases, lambda ratios: ratios[baseline], lambda value: value >= ratio)


def _judge(
    results: Results,
    what: str,
    wanted: str,
    cases: Sequence[Case],
    value_of: Callable[[dict[str, float]], float],
    reached: Callable[[float], bool],
) -> Target:
    measured = []
    for case in cases:
        found = results.get(case)
        if found is not None:
            value = value_of(dict(found.ratios))
            measured.append((case.rows, f"{value:.3g}", reached(value)))
    return Target(what, wanted, measured)
