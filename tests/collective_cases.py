"""Operations of Collectives with what numpy makes of them: for ranks of MPI, and for threads that play ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from hpc_train.distributed.collectives import Collectives

TOLERANCE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "int32": 0.0}
REST = (2, 3)


@dataclass
class Case:
    """One operation on the ranks of a group: what each gives, and what is to come out."""

    dtype: str
    call: Callable[[tf.Tensor], tf.Tensor]
    given: list[np.ndarray]
    by: list[np.ndarray]
    results: list[np.ndarray]
    gradients: list[np.ndarray]


def arrays(seed: int, rows: Sequence[int]) -> list[np.ndarray]:
    """Small integers, which 16 bits add without rounding."""
    random = np.random.default_rng(seed)
    return [random.integers(-4, 5, (count, *REST)).astype(np.float64) for count in rows]


def blocks(array: np.ndarray, rows: Sequence[int]) -> list[np.ndarray]:
    return np.split(array, np.cumsum(rows)[:-1])


def cases_of(c: Collectives, dtype: str, total: int) -> dict[str, Case]:
    """With `total` rows, which the ranks may not divide."""
    n = c.ranks
    parts = [len(part) for part in np.array_split(np.arange(total), n)]
    tables = {"even": [parts] * n, "any": [[(i + 2 * j + total) % 4 for j in range(n)] for i in range(n)]}
    cases = {}
    given, by = arrays(total, [total] * n), arrays(total + 1, [total] * n)
    for op in ("sum", "mean") if dtype != "int32" else ("sum",):
        share = n if op == "mean" else 1
        cases[f"allreduce {op}"] = Case(
            dtype,
            lambda x, op=op: c.allreduce([x], op)[0],
            given,
            by,
            [sum(given) / share] * n,
            [sum(by) / share] * n,
        )
        own = arrays(total + 2, parts)
        cases[f"reducescatter {op}"] = Case(
            dtype,
            lambda x, op=op: c.reducescatter(x, op),
            given,
            own,
            [part / share for part in blocks(sum(given), parts)],
            [np.concatenate(own) / share] * n,
        )
    own = arrays(total + 3, parts)
    cases["allgather"] = Case(
        dtype, lambda x: c.allgather(x, total), own, by, [np.concatenate(own)] * n, blocks(sum(by), parts)
    )
    for kind, table in tables.items():
        sent, received = [sum(row) for row in table], [sum(column) for column in zip(*table, strict=True)]
        given, by = arrays(total + 4, sent), arrays(total + 5, received)
        forth = [blocks(array, row) for array, row in zip(given, table, strict=True)]
        back = [blocks(array, column) for array, column in zip(by, zip(*table, strict=True), strict=True)]
        cases[f"alltoall {kind}"] = Case(
            dtype,
            lambda x, rows=None if kind == "even" else table: c.alltoall(x, rows),
            given,
            by,
            [np.concatenate([forth[i][j] for i in range(n)]) for j in range(n)],
            [np.concatenate([back[j][i] for j in range(n)]) for i in range(n)],
        )
        case = cases[f"alltoall {kind}"]
        cases[f"alltoallv {kind}"] = replace(
            case,
            call=lambda x, table=table: of_counts(c, x, table),
        )
    return {f"{dtype}, {total} rows, {name}": case for name, case in cases.items()}


def of_counts(c: Collectives, x: tf.Tensor, table: list[list[int]]) -> tf.Tensor:
    """`alltoallv` by a row of `table`, which has to tell of its column."""
    column = [given[c.rank] for given in table]
    found, received = c.alltoallv(x, tf.constant(table[c.rank]))
    assert tf.executing_eagerly() or found.shape[0] is None or c.ranks == 1
    with tf.control_dependencies(
        [tf.debugging.assert_equal(received, tf.constant(column, tf.int64))] * tf.inside_function()
    ):
        return tf.ensure_shape(found, [sum(column), *REST])


def all_cases(c: Collectives) -> dict[str, Case]:
    """All dtypes with rows that the ranks do not divide; float32 also with rows that they do, and with too few."""
    cases = {}
    for dtype in TOLERANCE:
        for total in [2 * c.ranks + 1, *([2 * c.ranks, c.ranks - 1] if dtype == "float32" else [])]:
            cases.update(cases_of(c, dtype, total))
    return cases


def compare(found: tf.Tensor, expected: np.ndarray, dtype: str, what: object) -> None:
    assert found.dtype == dtype, what
    numbers = tf.cast(found, tf.float64).numpy()
    np.testing.assert_allclose(numbers, expected, TOLERANCE[dtype], TOLERANCE[dtype], err_msg=str(what))
