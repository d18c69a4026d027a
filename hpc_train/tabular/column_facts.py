"""What is counted of a column, over the rows of all blocks, to decide what it is used as."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from hpc_train.config.table_schema import Type
from hpc_train.data.hdf5.reader import Rows
from hpc_train.data.ragged import Ragged
from hpc_train.data.sources.arrow import arrow_of_texts
from hpc_train.data.tables.hashes import hashes_of
from hpc_train.data.tables.words import words_of
from hpc_train.mapreduce.distinct import Distinct
from hpc_train.mapreduce.moments import MinMax, Moments
from hpc_train.mapreduce.quantiles import Quantiles
from hpc_train.mapreduce.reducer import Reducer
from hpc_train.mapreduce.vocabulary import Vocabulary

State = dict[str, Any]
DECILES = tuple(k / 10 for k in range(1, 10))
MOST_DISTINCT = 10_000
"""Values, words, and pairs of a value and a label are counted exactly, as long as there are no more."""
BETWEEN = b"\x1f"
"""Between the value and the label of a pair."""


@dataclass(frozen=True)
class ColumnFacts:
    """What was counted of a column.

    Attributes:
        type: As in schemas. count, missing: Rows with a value, and without one.
        distinct: How many values there are, an estimate where `is_exact` is False; None: not counted.
        values, counts: The most frequent values, and how often each occurs; of numbers with fractions none.
        mean, std, min, max, deciles: Of numbers and dates.
        words, word_counts, all_words: The most frequent words of texts, how often each occurs, and how many there are.
        equals_label: In how many rows it is what the label is.
        pairs: How many pairs of a value and a label there are; None: not counted, or too many.
    """

    type: Type
    count: int
    missing: int
    distinct: int | None = None
    is_exact: bool = True
    values: tuple[Any, ...] = ()
    counts: tuple[int, ...] = ()
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    deciles: tuple[float, ...] = ()
    words: tuple[str, ...] = ()
    word_counts: tuple[int, ...] = ()
    all_words: int = 0
    equals_label: int = 0
    pairs: int | None = None


@dataclass(frozen=True)
class FactsReducer(Reducer[State]):
    """Of the rows of a column, and those of the label, ColumnFacts.

    Args:
        type: Of the column. has_words: Whether words are counted.
        most_values: So many values and words are named.
        label: Of the label's type, where pairs are counted; None: they are not.
    """

    type: Type
    has_words: bool
    most_values: int
    label: Type | None
    _moments: Moments = field(default_factory=Moments)
    _range: MinMax = field(default_factory=MinMax)
    _quantiles: Quantiles = field(default_factory=lambda: Quantiles(DECILES))
    _vocabulary: Vocabulary = field(default_factory=lambda: Vocabulary(most_distinct=MOST_DISTINCT))
    _distinct: Distinct = field(default_factory=Distinct)

    @property
    def _has_values(self) -> bool:
        return self.type in ("text", "integer", "boolean")

    @property
    def _parts(self) -> dict[str, Reducer[Any]]:
        parts: dict[str, Reducer[Any]] = {}
        if self.type != "text":
            parts |= {"moments": self._moments, "range": self._range, "quantiles": self._quantiles}
        if self._has_values:
            parts |= {"values": self._vocabulary, "distinct": self._distinct}
        if self.has_words:
            parts["words"] = self._vocabulary
        if self.label is not None and self._has_values:
            parts["pairs"] = self._vocabulary
        return parts

    def init(self) -> State:
        return {"count": 0, "missing": 0, "equal": 0, **{name: part.init() for name, part in self._parts.items()}}

    def add(self, state: State, values: tuple[Rows, Rows | None]) -> State:
        rows, label = values
        there = rows.lengths > 0 if isinstance(rows, Ragged) else ~np.isnan(rows)
        kept = rows if there.all() else rows[there]
        new = {**state, "count": state["count"] + len(kept), "missing": state["missing"] + len(rows) - len(kept)}
        if not isinstance(kept, Ragged):
            finite = kept[np.isfinite(kept)]
            for name in ("moments", "range", "quantiles"):
                new[name] = self._parts[name].add(state[name], finite)
        if self._has_values:
            encoded = _arrow(kept, self.type).dictionary_encode()
            known, places = encoded.dictionary, np.asarray(encoded.indices)
            counts = np.bincount(places, minlength=len(known))
            new["values"] = self._vocabulary.add_counts(state["values"], known, counts)
            new["distinct"] = self._distinct.add(state["distinct"], hashes_of(known))
            if self.has_words:
                new["words"] = _with_words(self._vocabulary, state["words"], known, counts)
            if "pairs" in state and label is not None:
                new["pairs"] = self._with_pairs(state["pairs"], known, places, label[there])
        if label is not None:
            new["equal"] = state["equal"] + _equal(rows, label)
        return new

    def _with_pairs(self, state: State, known: Any, places: np.ndarray, label: Rows) -> State:
        """`state` and the pairs of values and labels; a block with too many of them has one for each value more."""
        assert self.label is not None
        there = label.lengths > 0 if isinstance(label, Ragged) else ~np.isnan(label)
        encoded = _arrow(label[there], self.label).dictionary_encode()
        labels, of = _as_texts(encoded.dictionary), np.asarray(encoded.indices)
        pairs, counts = np.unique(places[there] * max(1, len(labels)) + of, return_counts=True)
        if not len(pairs):
            return state
        first, second = np.divmod(pairs, len(labels))
        texts = compute.binary_join_element_wise(
            _as_texts(known).take(pa.array(first)), labels.take(pa.array(second)), pa.scalar(BETWEEN, pa.large_binary())
        )
        return self._vocabulary.add_counts(state, texts, counts)

    def merge(self, first: State, second: State) -> State:
        sums = {name: first[name] + second[name] for name in ("count", "missing", "equal")}
        return sums | {name: part.merge(first[name], second[name]) for name, part in self._parts.items()}

    def result(self, state: State) -> ColumnFacts:
        about: dict[str, Any] = {"count": state["count"], "missing": state["missing"], "equals_label": state["equal"]}
        found = {name: part.result(state[name]) for name, part in self._parts.items()}
        if "moments" in found and found["moments"]["count"]:
            moments = found["moments"]
            about |= {"mean": float(moments["mean"]), "std": float(np.sqrt(moments["variance"]))}
            about |= {name: float(found["range"][name]) for name in ("min", "max")}
            about["deciles"] = tuple(found["quantiles"]["values"].tolist())
        if "values" in found:
            values = found["values"]
            is_exact = not values["error"]
            about |= {
                "distinct": len(values["values"]) if is_exact else min(found["distinct"], state["count"]),
                "is_exact": is_exact,
            }
            kept = values["values"][: self.most_values].tolist()
            about["values"] = tuple(map(bool, kept)) if self.type == "boolean" else tuple(kept)
            about["counts"] = tuple(values["counts"][: self.most_values].tolist())
        if "words" in found:
            words = found["words"]
            about |= {"words": tuple(words["values"][: self.most_values].tolist()), "all_words": words["count"]}
            about["word_counts"] = tuple(words["counts"][: self.most_values].tolist())
        if "pairs" in found and not found["pairs"]["error"]:
            about["pairs"] = len(found["pairs"]["values"])
        return ColumnFacts(self.type, **about)


def _arrow(rows: Rows, kind: str) -> Any:
    """Rows, none of which is missing, as Arrow has them: large_binary or int64; other numbers by their bits."""
    if isinstance(rows, Ragged):
        return arrow_of_texts(rows)
    return pa.array(rows.astype(np.int64) if kind in ("integer", "boolean") else rows.view(np.int64))


def _as_texts(values: Any) -> Any:
    if str(values.type) == "large_binary":
        return values
    return values.cast(pa.large_string()).cast(pa.large_binary())


def _equal(rows: Rows, label: Rows) -> int:
    """In how many rows both have a value, and the same."""
    if isinstance(rows, Ragged) != isinstance(label, Ragged):
        return 0
    if not isinstance(rows, Ragged) or not isinstance(label, Ragged):
        return int((np.asarray(rows) == np.asarray(label)).sum())
    same = compute.equal(arrow_of_texts(rows), arrow_of_texts(label))
    return int((np.asarray(same) & (rows.lengths > 0)).sum())


def _with_words(vocabulary: Vocabulary, state: State, texts: Any, counts: np.ndarray) -> State:
    """`state` and the words of `texts`, each of which occurs so often as `counts` has it."""
    words, rows = words_of(texts)
    times = counts[rows]
    if not len(words):
        return state
    encoded = words.cast(pa.large_binary()).dictionary_encode()
    summed = np.bincount(np.asarray(encoded.indices), times, len(encoded.dictionary)).astype(np.int64)
    return vocabulary.add_counts(state, encoded.dictionary, summed)
