"""The tables of the report, and the key numbers above them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from hpc_train.jobdir.history import History
from hpc_train.jobdir.paths import export_path
from hpc_train.jobdir.records import NOT_METRICS, Record, as_number
from hpc_train.report import words
from hpc_train.report.numbers import (
    PARTS,
    SUMMED_UP,
    ByRank,
    OverRanks,
    best_of,
    by_rank,
    elapsed_of,
    entries_of_ranks,
    global_batch,
    last_of,
    metrics_of,
    of_ranks,
    over_ranks,
    rate_of,
    training_ranks,
)
from hpc_train.telemetry import staging
from hpc_train.telemetry.energy.account import amount, in_words
from hpc_train.telemetry.progress import GAP
from hpc_train.telemetry.start_timeline import PHASES
from hpc_train.telemetry.status import sound_energy, sound_staged
from hpc_train.telemetry.units import size

MOST_RANKS = 256
MOST_EVALUATIONS = 200
MOST_STARTS = 20


@dataclass(frozen=True)
class Table:
    """Rows of text below a header; the first `names` columns are names, the others numbers."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 1


class Link(str):
    """Text of a table or list that leads to `target`, which is relative to the page and safe in an attribute."""

    target: str

    def __new__(cls, text: str, target: str) -> Link:
        """As a str; without effect where `target` is empty."""
        made = super().__new__(cls, text)
        made.target = target
        return made


@dataclass(frozen=True)
class Fact:
    """A key number: what it is, and a remark on it."""

    name: str
    value: str
    more: str = ""


def key_numbers(history: History) -> list[Fact]:
    """What a reader asks first."""
    facts = []
    for kind in history.evaluation_sets:
        for name in metrics_of(history, kind)[:6]:
            best = best_of(history, kind, name)
            more = f"best {words.number(best.value)} at step {best.step:,}" if best else ""
            title = name if kind == "eval" else f"{words.named(kind)}: {name}"
            facts.append(Fact(words.label(title), words.number(last_of(history, kind, name)), more))
    if not facts and (loss := last_of(history, "train", "loss")) is not None:
        facts.append(Fact("loss in training", words.number(loss), "no evaluation yet"))
    if (rate := rate_of(history)) is not None:
        ranks = training_ranks(history)
        more = f"{words.number(round(rate / ranks))} a rank" if ranks and ranks > 1 else ""
        facts.append(Fact("examples a second", words.number(round(rate)), more))
    if batch := global_batch(history):
        facts.append(Fact("examples a step", words.number(batch)))
    elapsed, records = elapsed_of(history), history.records
    by_clock = f"{words.duration(records[-1].time - records[0].time)} by the clock" if history.restarts else ""
    facts.append(Fact("running time", words.duration(elapsed), by_clock))
    if "joules" in (used := sound_energy(history.status.get("energy")) or {}):
        value = amount(used["joules"])
        facts.append(Fact("energy of the last run", value, in_words(used).removeprefix(value).strip(",; ")))
    if (staged := sound_staged(history.status.get("staged"))) is not None:
        value, between, more = re.split("( on | to )", staging.in_words(staged), maxsplit=1)
        more = f"{between.strip()} {more}"
        facts.append(Fact("data staged on nodes", value, more))
    facts.append(Fact("exports", f"{len(export_paths(history)):,}", _less_exports(history)))
    if lag := _lag(history):
        facts.append(lag)
    return facts


def export_paths(history: History) -> list[tuple[str, str, str]]:
    """Exporter, step and path of each export, from the metrics, or from status.json where they have none."""
    records = history.all_of("export")
    if records:
        return [(r.text("exporter") or words.UNKNOWN, f"{r.step:,}", _path_of(history, r)) for r in records]
    paths = history.status.get("exports")
    return (
        [(words.UNKNOWN, words.UNKNOWN, export_path(history.job_dir.absolute(), str(path))) for path in paths]
        if isinstance(paths, list)
        else []
    )


def _path_of(history: History, record: Record) -> str:
    path = export_path(history.job_dir.absolute(), record.text("path") or "")
    return f"{path} (removed since)" if _is_gone(history, record) else path or words.UNKNOWN


def _is_gone(history: History, record: Record) -> bool:
    """Whether an exporter that keeps few has removed this export, of a job-dir that has others of it."""
    exporter, path = record.text("exporter"), record.text("path")
    there = history.exports.get(exporter or "", frozenset())
    return bool(there) and path is not None and PurePath(path).name not in there


def export_errors(history: History) -> list[tuple[str, str, str]]:
    """Exporter, step and error of each export that failed."""
    failures = [(r.text("exporter"), r.step, r.text("error")) for r in history.all_of("export_failed")]
    errors = history.status.get("export_errors")
    for entry in errors if isinstance(errors, list) and not failures else []:
        if isinstance(entry, dict):
            failures.append(
                (str(entry.get("exporter")), int(as_number(entry.get("step")) or 0), str(entry.get("error")))
            )
    return [(name or words.UNKNOWN, f"{step:,}", error or words.UNKNOWN) for name, step, error in failures]


def _less_exports(history: History) -> str:
    failed, gone = len(export_errors(history)), sum(_is_gone(history, r) for r in history.all_of("export"))
    found = (f"{gone:,} removed since" if gone else "", f"{words.count(failed, 'export')} failed" if failed else "")
    return "; ".join(filter(None, found))


def _lag(history: History) -> Fact | None:
    lag = history.status.get("evaluation_lag")
    steps, secs = (as_number(lag.get(name)) for name in ("steps", "secs")) if isinstance(lag, dict) else (None, None)
    records = [r for kind in history.evaluation_sets for r in history.series(kind) if "lag_steps" in r.values]
    if steps is None and records:
        last = max(records, key=lambda record: record.time)
        steps, secs = last.number("lag_steps"), last.number("lag_secs")
    if steps is None:
        return None
    more = f"{words.duration(secs)} behind training" if secs is not None else "behind training"
    return Fact("evaluation lag", words.count(int(steps), "step"), more)


def evaluations(history: History, kind: str) -> Table:
    """The evaluations of a set, oldest first; of very many, the newest."""
    records, names = history.series(kind)[-MOST_EVALUATIONS:], metrics_of(history, kind)
    titles = {"secs": "took (s)", "lag_steps": "lag (steps)", "lag_secs": "lag (s)"}
    more = [name for name in titles if any(name in record.values for record in records)]
    header = ("step", *map(words.label, names), *(titles[name] for name in more))
    return Table(header, [(f"{r.step:,}", *(_cell(r, name) for name in (*names, *more))) for r in records], names=0)


def _cell(record: Record, name: str) -> str:
    return words.number(record.number(name), 3 if name in NOT_METRICS else 4)


def restarts(history: History) -> Table:
    """Each restart: when, from which step, what was lost, and why."""
    rows = [
        (
            words.moment(restart.time),
            restart.reason or "it left no word of its end",
            f"{restart.step:,}",
            f"{max(0, restart.reached - restart.step):,}",
        )
        for restart in history.restarts
    ]
    return Table(("when", "how the run before ended", "from step", "steps done again"), rows, 2)


def starts(history: History) -> Table:
    """Of each run, the newest last, the seconds until its first step was over, and those of each phase."""
    records = [r for r in history.all_of("first_step") if isinstance(r.values.get("phases"), Mapping)][-MOST_STARTS:]
    found = [{phase: as_number(r.values["phases"].get(phase)) for phase in PHASES} for r in records]
    phases = [phase for phase in PHASES if any(own[phase] is not None for own in found)]
    rows = [
        (
            words.moment(r.time),
            f"{r.step:,}",
            *(words.number(n, 2) for n in (r.number("secs"), *(own[p] for p in phases))),
        )
        for r, own in zip(records, found, strict=True)
    ]
    return Table(("when", "step", "in all", *phases), rows)


def changes(history: History) -> Table:
    """Each setting that was changed between runs, and what became of it."""
    held: list[Record] = []
    for record in history.records:
        if record.kind == "start":  # it has found all changes since the checkpoint that it goes on from
            held = [change for change in held if change.step < record.step]
        elif record.kind == "change":
            held.append(record)
    names = ("key", "before", "now", "ignored")
    rows = [(f"{r.step:,}", *(r.text(name) or words.UNKNOWN for name in names)) for r in held]
    return Table(("at step", "setting", "before", "since then", "without effect, because"), rows, 5)


_SHARES = {**dict(zip(PARTS, PARTS, strict=True)), GAP: "device waits for host"}
"""Columns of `shares_by_rank`, by what records call them."""


def shares_by_rank(history: History) -> Table | None:
    """The mean share of the time that each rank spent on each part; of many ranks the lowest, the mean, the highest."""
    if of_many := {name: many.means() for part, name in _SHARES.items() if (many := over_ranks(history, part))}:
        rows = [(f"{name} of the ranks", *(words.percent(own[name]) for own in of_many.values())) for name in SUMMED_UP]
        return Table(("", *of_many), rows)
    by_part = {name: known.means() for part, name in _SHARES.items() if (known := by_rank(history, part))}
    if not by_part:
        return None
    names = sorted({rank for means in by_part.values() for rank in means})[:MOST_RANKS]
    rows = [(f"rank {rank}", *(words.percent(means.get(rank)) for means in by_part.values())) for rank in names]
    return Table(("", *by_part), rows)


_PEAKS = {"memory": "resident at most", "device_memory": "on the device at most"}
"""Columns of `memory`, by what records call them."""


def ranks(history: History) -> Table | None:
    """What each rank ran on."""
    entries = entries_of_ranks(history)
    columns = [
        name for name in ("rank", "role", "host", "cores", "device", "shards") if any(name in e for e in entries)
    ]
    if not columns:
        return None
    rows = [tuple(str(e.get(name, "")) for name in columns) for e in entries[:MOST_RANKS]]
    bound = [_bound(entry.get("binding")) for entry in entries[:MOST_RANKS]]
    if any(bound):
        columns, rows = [*columns, "bound to"], [(*row, text) for row, text in zip(rows, bound, strict=True)]
    return Table(tuple(columns), rows, 6)


def _bound(binding: Any) -> str:
    """What a rank is bound to, and by whom, or why it is not."""
    found = binding if isinstance(binding, dict) else {}
    if not found.get("by"):
        return f"not: {found['why']}" if found.get("why") else ""
    numa = f", NUMA {found['numa']}" if found.get("numa") else ""
    return f"{found.get('cpus', words.UNKNOWN)}{numa}, by {found['by']}"


def memory(history: History) -> Table | None:
    """Bytes that each rank holds, as computed, and has held at most, as measured; of many ranks of all together."""
    measured = {name: found for key, name in _PEAKS.items() if (found := of_ranks(history, key)) is not None}
    if any(isinstance(found, OverRanks) for found in measured.values()):
        rows = [
            (f"{which} of the ranks", *(_size(found.values[-1, place]) for found in measured.values()))
            for place, which in enumerate(SUMMED_UP)
        ]
        return Table(("", *measured), rows)
    entries = entries_of_ranks(history)[:MOST_RANKS]
    held = {rank: entry.get("memory") for entry in entries if (rank := as_number(entry.get("rank"))) is not None}
    computed = {int(rank): own for rank, own in held.items() if isinstance(own, dict)}
    each = [found for found in measured.values() if isinstance(found, ByRank)]
    peaks = [dict(zip(found.ranks, found.values[-1].tolist(), strict=True)) for found in each]
    names = list(dict.fromkeys(str(name) for own in computed.values() for name in own))
    rows = [
        (
            f"rank {rank}",
            *(_size(computed.get(rank, {}).get(name)) for name in names),
            *(_size(p.get(rank)) for p in peaks),
        )
        for rank in sorted({*computed, *(rank for peak in peaks for rank in peak)})
    ]
    return Table(("", *names, *measured), rows) if rows else None


def _size(count: Any) -> str:
    known = as_number(count)
    return words.UNKNOWN if known is None else size(known)


def versions(history: History) -> list[tuple[str, str]]:
    """Of this package, of what it depends on, and of the user's code."""
    environment = history.environment
    packages = environment.get("packages")
    rows = [("hpc_train", environment.get("hpc_train")), ("Python", environment.get("python"))]
    rows += list(packages.items()) if isinstance(packages, dict) else []
    rows += [("MPI", environment.get("mpi")), ("platform", environment.get("platform"))]
    rows += [("commit of the code", environment.get("commit"))]
    return [(str(name), str(value)) for name, value in rows if value]


def variables(history: History) -> list[tuple[str, str]]:
    """The environment variables that environment.json notes."""
    known = history.environment.get("environment")
    return [(str(name), str(value)) for name, value in known.items()] if isinstance(known, dict) else []


def warm_start(history: History) -> list[tuple[str, str]]:
    """Where the first values came from, and how many variables; each list by its length and its first names."""
    return [(str(name), _in_short(value)) for name, value in history.warm_start.items()]


def _in_short(value: Any) -> str:
    if isinstance(value, list | Mapping):
        names = [item if isinstance(item, str) else json.dumps(item) for item in value]
        more = ", …" if len(names) > 8 else ""
        return f"{len(names):,}" + (f": {', '.join(names[:8])}{more}" if names else "")
    return str(value)
