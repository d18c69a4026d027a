"""What the curves of a job come down to: best and last values, rates, where the time went. Pure."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hpc_train.jobdir.history import History
from hpc_train.jobdir.records import NOT_METRICS, Record, as_number

PARTS = ("compute", "communication", "apply", "input", "checkpoint", "other")
"""What a rank's time goes to: forward and backward pass, averaging gradients, updating variables, and the rest."""
NOT_TRAIN_METRICS = frozenset(
    {"examples_per_sec", "learning_rate", "input_wait", "staleness_mean", "staleness_max", "secs", "seconds", "joules"}
)
SMALLER = ("loss", "error", "mse", "mae", "rmse", "mape", "msle", "perplexity", "crossentropy", "divergence", "wer")
LARGER = ("acc", "auc", "precision", "recall", "f1", "iou", "dice", "score", "r2", "similarity", "bleu", "map")

LARGEST = 1e300
"""Beyond it there is no room for a margin."""

Points = Sequence[tuple[float, float | None]]
"""x and y of a curve by x; y None: a gap."""


@dataclass(frozen=True)
class Best:
    """The best value of a metric, and the step it was measured at."""

    value: float
    step: int


def metrics_of(history: History, kind: str) -> tuple[str, ...]:
    """The metrics that the records of a kind hold, the loss first."""
    left_out = NOT_TRAIN_METRICS if kind == "train" else NOT_METRICS
    names = dict.fromkeys(name for record in history.series(kind) for name in record.names())
    return tuple(sorted((name for name in names if name not in left_out), key=lambda name: name != "loss"))


def points_of(records: Sequence[Record], name: str) -> Points:
    """Step and value of the records that hold a value."""
    return [(float(record.step), record.number(name)) for record in records if name in record.values]


def mode_of(history: History, metric: str) -> Literal["min", "max"] | None:
    """Whether small or large values of a metric are good, by the job, or by its name; None: unknown."""
    for name, mode in _rules(history):
        if name == metric and mode in ("min", "max"):
            return "max" if mode == "max" else "min"
    return mode_by_name(metric)


def mode_by_name(metric: str) -> Literal["min", "max"] | None:
    """Whether small or large values of a metric of that name are good; None: the name does not tell. Pure."""
    words = metric.lower().replace("-", "_").split("_")
    if any(word.endswith(SMALLER) for word in words):
        return "min"
    return "max" if any(word.startswith(LARGER) for word in words) else None


def best_metrics_of(history: History) -> list[str]:
    """The metrics by which a job itself keeps its best checkpoint, and its best exports."""
    return [name for name, _ in reversed(_rules(history)) if isinstance(name, str)]


def _rules(history: History) -> list[tuple[Any, Any]]:
    best = [(exporter.get("metric", "loss"), exporter.get("mode", "min")) for exporter in _best_exporters(history.job)]
    return [*best, (setting(history, "run", "best_metric"), setting(history, "run", "best_mode"))]


def _best_exporters(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    further = job.get("evals")
    for spec in (job.get("eval"), *(further.values() if isinstance(further, dict) else ())):
        exporters = spec.get("exporters") if isinstance(spec, dict) else None
        for name, settings in exporters.items() if isinstance(exporters, dict) else ():
            if isinstance(settings, dict) and settings.get("type", name) == "best":
                found.append(settings)
    return found


def best_of(history: History, kind: str, metric: str, mode: Literal["min", "max"] | None = None) -> Best | None:
    """The first of the best values of a metric; None where none is known, or what is good.

    Args:
        mode: What is good; None: as mode_of has it.
    """
    mode = mode or mode_of(history, metric)
    known = [(value, step) for step, value in points_of(history.series(kind), metric) if value is not None]
    if not known or mode is None:
        return None
    value, step = min(known, key=lambda point: (point[0] if mode == "min" else -point[0], point[1]))
    return Best(value, int(step))


def last_of(history: History, kind: str, metric: str) -> float | None:
    """The last value of a metric."""
    values = [value for _, value in points_of(history.series(kind), metric)]
    return values[-1] if values else None


def rate_of(history: History) -> float | None:
    """Examples a second that all ranks trained on together, the median of the records; None where unknown."""
    rates = [rate for record in history.series("train") if (rate := record.number("examples_per_sec")) is not None]
    return statistics.median(rates) if rates else as_number(history.status.get("examples_per_sec"))


def ranks_of(history: History) -> int | None:
    """With how many ranks the last run began."""
    starts = [ranks for record in history.all_of("start") if (ranks := record.number("ranks")) is not None]
    ranks = as_number(history.status.get("ranks")) or (starts[-1] if starts else None)
    return int(ranks) if ranks else None


def entries_of_ranks(history: History) -> list[dict[str, Any]]:
    """What environment.json notes of each rank."""
    ranks = history.environment.get("ranks")
    return [entry for entry in ranks if isinstance(entry, dict)] if isinstance(ranks, list) else []


def setting(history: History, *path: str) -> Any:
    """The value at `path` in the resolved job; None where there is none."""
    value: Any = history.job
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def training_ranks(history: History) -> int | None:
    """How many ranks train: without a dedicated chief, and without parameter servers."""
    ranks = ranks_of(history)
    if ranks is None:
        return None
    if setting(history, "run", "strategy") == "async":
        ranks -= int(as_number(setting(history, "run", "parameter_servers")) or 1)
    elif setting(history, "run", "chief") == "dedicated":
        ranks -= 1
    return max(1, ranks)


def global_batch(history: History) -> int | None:
    """Examples that one step takes, of all ranks; in an asynchronous job a step is one worker's.

    None where it is not known, and of trees, each of which takes all.
    """
    if setting(history, "model", "builtin") == "gbdt":
        return None
    own_steps = setting(history, "run", "strategy") == "async"
    known = [rows for record in history.all_of("start") if (rows := record.number("global_batch")) is not None]
    if known and not own_steps:
        return int(known[-1])
    batch = as_number(setting(history, "data", "train", "batch_size"))
    ranks = 1 if own_steps else training_ranks(history)
    alike = as_number(setting(history, "run", "mesh", "model")) or 1
    examples = None if batch is None or ranks is None else as_number(batch * ranks // alike)
    return None if examples is None else int(examples)


def elapsed_of(history: History) -> float | None:
    """Seconds that the job has been running, without the time between its runs."""
    if not history.records:
        return None
    updated, last = as_number(history.status.get("updated")), history.records[-1]
    more = max(0.0, updated - last.time) if updated is not None else 0.0
    started = as_number(history.status.get("started"))
    same_run = started is not None and started <= last.time
    return last.elapsed + (more if same_run else 0.0)


@dataclass(frozen=True)
class ByRank:
    """What `by_rank` records of one quantity.

    Attributes:
        ranks: Those that it is known of.
        values: float64 [records, ranks], NaN where unknown.
        secs: float64 [records], how long a time each record covers.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    values: np.ndarray
    secs: np.ndarray

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    def of_rank(self, column: int) -> Points:
        """The curve of one rank."""
        return self._curve(self.values[:, column])

    def over_ranks(self) -> list[Points]:
        """The curves of the lowest, the median and the highest of the ranks."""
        with _silent():
            return [self._curve(pick(self.values, axis=1)) for pick in (np.nanmin, np.nanmedian, np.nanmax)]

    def mean_over_ranks(self) -> Points:
        """The curve of the mean of the ranks, of values taken as shares, from 0 to 1."""
        with _silent():
            return self._curve(np.nanmean(np.clip(self.values, 0, 1), axis=1))

    def means(self) -> dict[int, float | None]:
        """Each rank's mean over time."""
        known = ~np.isnan(self.values)
        weights = known * (self.secs if self.secs.any() else np.ones_like(self.secs))[:, None]
        total = weights.sum(axis=0)
        sums = (np.where(known, self.values, 0.0) * weights).sum(axis=0)
        return {rank: float(sums[c] / total[c]) if total[c] > 0 else None for c, rank in enumerate(self.ranks)}

    def _curve(self, values: np.ndarray) -> Points:
        return [(float(step), None if y != y else y) for step, y in zip(self.steps, values.tolist(), strict=True)]


@contextmanager
def _silent() -> Iterator[None]:
    """NumPy warns of records in which no rank has a value."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def by_rank(history: History, name: str) -> ByRank | None:
    """One quantity of each training rank over the steps; None where no record has it."""
    steps, rows, secs, before = [], [], [], 0.0
    for record in history.series("train"):
        values = _quantity(record, "by_rank", name)
        if isinstance(values, list) and values:
            steps.append(record.step)
            rows.append(values)
            secs.append(max(0.0, record.elapsed - before))
        before = record.elapsed
    if not rows:
        return None
    whole = _as_array(rows)
    columns = np.flatnonzero(~np.isnan(whole).all(axis=0))
    if not columns.size:
        return None
    known = ((as_number(entry.get("rank")), entry.get("role")) for entry in entries_of_ranks(history))
    roles = {int(rank): role for rank, role in known if rank is not None}
    workers = sorted(rank for rank, role in roles.items() if role == "worker")
    are_workers = whole.shape[1] == len(workers) and whole.shape[1] != len(roles)
    ranks = tuple(workers[column] if are_workers else int(column) for column in columns)
    return ByRank(ranks, tuple(steps), whole[:, columns], np.array(secs))


@dataclass(frozen=True)
class OverRanks:
    """What is recorded of one quantity where ranks are too many for a number each.

    Attributes:
        count: Of how many ranks, at most.
        values: float64 [records, 4], lowest, median, highest and mean of the ranks, NaN where unknown.
        secs: float64 [records], how long a time each record covers.
    """

    count: int
    steps: tuple[int, ...]
    values: np.ndarray
    secs: np.ndarray

    @property
    def _columns(self) -> ByRank:
        return ByRank(tuple(range(len(SUMMED_UP))), self.steps, self.values, self.secs)

    def over_ranks(self) -> list[Points]:
        """The curves of the lowest, the median and the highest of the ranks."""
        return [self._columns.of_rank(column) for column in range(3)]

    def mean_over_ranks(self) -> Points:
        """The curve of the mean of the ranks, of values taken as shares, from 0 to 1."""
        return replace(self._columns, values=self.values[:, 3:]).mean_over_ranks()

    def means(self) -> dict[str, float | None]:
        """The means over time of the lowest, the median, the highest and the mean of the ranks."""
        return dict(zip(SUMMED_UP, self._columns.means().values(), strict=True))


SUMMED_UP = ("lowest", "median", "highest", "mean")
"""What a record has of many ranks (see telemetry.metrics.summed_up)."""


def over_ranks(history: History, name: str) -> OverRanks | None:
    """One quantity over all training ranks, by step; None where each record has the numbers of ranks one by one."""
    steps, rows, secs, before, count, summed = [], [], [], 0.0, 0, False
    for record in history.series("train"):
        values = [_quantity(record, kind, name) for kind in ("over_ranks", "by_rank")]
        row: list[Any] | None = None
        if isinstance(values[0], dict) and values[0]:
            summed, row = True, [values[0].get(key) for key in SUMMED_UP]
            count = max(count, int(as_number(values[0].get("ranks")) or 0))
        elif isinstance(values[1], list) and (known := [n for n in map(as_number, values[1]) if n is not None]):
            row = [min(known), statistics.median(known), max(known), statistics.fmean(known)]
            count = max(count, len(known))
        if row is not None:
            steps.append(record.step)
            rows.append(row)
            secs.append(max(0.0, record.elapsed - before))
        before = record.elapsed
    return OverRanks(count, tuple(steps), _as_array(rows), np.array(secs)) if summed else None


def _quantity(record: Record, kind: str, name: str) -> Any:
    quantities = record.values.get(kind)
    return quantities.get(name) if isinstance(quantities, dict) else None


def _as_array(rows: list[list[Any]]) -> np.ndarray:
    """float64 [rows, longest row]; NaN for what is no finite number."""
    width = max(map(len, rows))
    try:
        whole = np.array(rows, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        whole = np.zeros(0)
    if whole.shape != (len(rows), width):
        whole = np.full((len(rows), width), np.nan)
        for row, values in enumerate(rows):
            for column, value in enumerate(map(as_number, values)):
                whole[row, column] = np.nan if value is None else value
    whole[~np.isfinite(whole) | (np.abs(whole) > LARGEST)] = np.nan
    return whole


def of_ranks(history: History, name: str) -> ByRank | OverRanks | None:
    """One quantity of the training ranks over the steps: of many all of them together."""
    return over_ranks(history, name) or by_rank(history, name)


def shares(history: History) -> dict[str, Points]:
    """The share of the time (0 to 1) that went to each part, the mean of the training ranks, by step."""
    known = {part: ranks for part in PARTS if (ranks := of_ranks(history, part)) is not None}
    return {part: ranks.mean_over_ranks() for part, ranks in known.items()}
