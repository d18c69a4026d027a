"""How often each value occurs: of whole numbers, truth values and texts, in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from hpc_train.arguments import check_count, checked_arguments
from hpc_train.data.ragged import TEXT, Ragged
from hpc_train.data.sources.arrow import arrow_of_texts, texts_of_arrow
from hpc_train.errors import UserError
from hpc_train.mapreduce.reducer import Reducer

State = dict[str, Any]
MOST_VALUES = 1_000_000
TEXTS, NUMBERS = "texts", "numbers"


@checked_arguments
class Vocabulary(Reducer[State]):
    """All values of all rows with how often each occurs, the most frequent ones first, and by value among equals.

    Values are texts, whole numbers or truth values, `[rows, ...]`. The result is a dict of `values` (texts as object
    array of str, else int64, or uint64 where one needs it), `counts` int64, `error`, `count` of all values and
    `missing` (None among texts).

    While there are at most `most_distinct` values, all is exact, and `error` is 0. Beyond that the rarest are given up,
    and each count is too low by at most `error`, which is at most `count / most_distinct` (Misra and Gries, "Finding
    Repeated Elements", 1982; merged as Agarwal and others do, "Mergeable Summaries", 2012).

    Args:
        top: Of how many values the result is; None: of all that are known. most_distinct: see above.

    Raises:
        UserError: An argument is not allowed, or values are others.
    """

    def __init__(self, top: int | None = None, most_distinct: int = MOST_VALUES) -> None:
        if top is not None:
            check_count("Vocabulary", "top", top)
        check_count(type(self).__name__, "most_distinct", most_distinct)
        self._top, self._most = top, most_distinct

    def init(self) -> State:
        return {"kind": None, "counts": np.zeros(0, np.int64), "error": 0, "count": 0, "missing": 0}

    def add(self, state: State, values: Any) -> State:
        if not len(values):
            return state
        array, missing = arrow_of(values)
        counted = compute.value_counts(array)
        return self.add_counts(state, counted.field(0), _numpy(counted.field(1)), missing)

    def add_counts(self, state: State, values: Any, counts: np.ndarray, missing: int = 0) -> State:
        """`state` and `values`, an Arrow array of large_binary or whole numbers, each so often as `counts` has it."""
        kind = TEXTS if pa.types.is_large_binary(values.type) else NUMBERS
        new = {**self.init(), "kind": kind, "count": int(counts.sum()), "missing": missing}
        return self.merge(state, self._bounded(new, values, counts))

    def merge(self, first: State, second: State) -> State:
        if first["kind"] is None or second["kind"] is None:
            return second if first["kind"] is None else first
        if first["kind"] != second["kind"]:
            raise UserError(
                f"{type(self).__name__}: some values are numbers, others are texts; map all to one of these"
            )
        new = {"kind": first["kind"]}
        new |= {name: first[name] + second[name] for name in ("error", "count", "missing")}
        one, two = values_of(first), values_of(second)
        if one.type != two.type:  # int64 and uint64
            one, two = (values.cast(pa.uint64()) for values in _not_negative(one, two))
        both = pa.table({"value": pa.chunked_array([one, two]), "n": np.append(first["counts"], second["counts"])})
        summed = both.group_by("value", use_threads=False).aggregate([("n", "sum")])
        return self._bounded(new, summed["value"].combine_chunks(), _numpy(summed["n_sum"].combine_chunks()))

    def _bounded(self, state: State, values: Any, counts: np.ndarray) -> State:
        """`state` with these values, of which as many are given up as are too many."""
        if len(counts) > self._most:
            cut = int(np.partition(counts, len(counts) - self._most - 1)[len(counts) - self._most - 1])
            kept = np.flatnonzero(counts > cut)
            values, counts = values.take(pa.array(kept)), counts[kept] - cut
            state = {**state, "error": state["error"] + cut}
        if state["kind"] == TEXTS:
            texts = texts_of_arrow(values)
            return {**state, "letters": texts.values, "lengths": texts.lengths, "counts": counts}
        return {**state, "values": _numpy(values), "counts": counts}

    def result(self, state: State) -> Any:
        values, counts = values_of(state), state["counts"]
        table = pa.table({"value": values, "n": counts})
        order = compute.sort_indices(table, sort_keys=[("n", "descending"), ("value", "ascending")])[: self._top]
        chosen = values.take(order)
        found: Any = _numpy(chosen)
        if state["kind"] == TEXTS:
            found = np.empty(len(chosen), object)
            found[:] = [text.decode() for text in chosen.to_pylist()]
        about = {name: state[name] for name in ("error", "count", "missing")}
        return {"values": found, "counts": counts[_numpy(order).astype(np.int64)], **about}


@checked_arguments
class TopK(Vocabulary):
    """The `k` most frequent values, as Vocabulary gives them.

    Args:
        k: How many. most_distinct: So many values are counted, see Vocabulary.
    """

    def __init__(self, k: int, most_distinct: int = MOST_VALUES) -> None:
        check_count("TopK", "k", k)
        super().__init__(k, most_distinct)


def values_of(state: State) -> Any:
    """The values of a state, as Arrow has them: large_binary, int64 or uint64."""
    if state["kind"] == TEXTS:
        return arrow_of_texts(Ragged(state["letters"], state["lengths"]))
    return pa.array(state.get("values", np.zeros(0, np.int64)))


def _numpy(array: Any) -> np.ndarray:
    found: np.ndarray = array.to_numpy(zero_copy_only=False)
    return found


def _not_negative(one: Any, two: Any) -> tuple[Any, Any]:
    for values in (one, two):
        if pa.types.is_int64(values.type) and len(values) and compute.min(values).as_py() < 0:
            raise UserError(
                "Vocabulary: there are numbers below 0 and others beyond int64; map them to texts, or to one dtype"
            )
    return one, two


def arrow_of(values: Any) -> tuple[Any, int]:
    """All values in one array of large_binary, int64 or uint64; and how many are missing."""
    if isinstance(values, Ragged):
        if values.dtype == TEXT:
            return arrow_of_texts(Ragged(values.values, values.lengths.reshape(-1))), 0
        values = values.values
    array = np.asarray(values)
    kind = array.dtype.kind
    if kind in "biu" and array.ndim:
        wide = array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size and array.max() > 2**63 - 1
        return pa.array(array.reshape(-1).astype(np.uint64 if wide else np.int64)), 0
    if kind not in "SUO" or not array.ndim:
        what = f"numbers of {array.dtype}" if kind == "f" else f"a {type(values).__name__}"
        raise UserError(
            f"Vocabulary gets {what}; give an array of texts, whole numbers or truth values, with a row for each "
            "of the block's"
        )
    flat = [text for text in array.reshape(-1).tolist() if text is not None]
    try:
        texts = [text if isinstance(text, bytes) else text.encode() for text in flat]
    except UnicodeEncodeError as error:
        raise UserError(f"Vocabulary gets {error.object!r}, half a character, which UTF-8 cannot encode") from None
    except AttributeError:
        odd = next(text for text in flat if not isinstance(text, bytes | str))
        raise UserError(f"Vocabulary gets {odd!r} among texts; give texts alone, None where one is missing") from None
    return pa.array(texts, pa.large_binary()), array.size - len(flat)
