"""The records that what ranks tell becomes, the numbers to reach, and the report. Pure.

A number to reach is never changed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from support.drawing import Line, Lines
from support.page import Report, Section, Table, Target, at_most
from support.records import Found, Record, Sample, records_of

from hpc_train.report import words

BENCHMARK = "control_path"
TO_FIRST_STEP = ("start", "join", "plan", "build", "first step")
PHASES = (*TO_FIRST_STEP, "steps", "record", "compare", "checkpoint", "evaluation", "end")
FIRST_STEP, BESIDE, WHOLE = "to the first step", "all but the steps", "all phases"
SUMS: Mapping[str, Sequence[str]] = {
    FIRST_STEP: TO_FIRST_STEP,
    BESIDE: tuple(phase for phase in PHASES if phase != "steps"),
    WHOLE: PHASES,
}
COUNTED = ("calls", "received", "files", "entries")
FEW, MANY = 8, 128
MOST_GROWTH, MOST_MEGABYTES = 3.0, 50.0

WHAT: Mapping[str, str] = {
    "start": "Python begins, the package is imported, logging is set up, the job-dir's lock is taken",
    "join": "MPI starts, ranks learn who shares their node (join_world)",
    "plan": "job-dir, checkpoint to go on from, shards checked by the chief (plan)",
    "build": "data opened, model's state shared and compared, labels checked, job-dir begun, watchdog, status (build)",
    "first step": "the first batch and the first step",
    "steps": "all further steps, without what follows",
    "record": "where each rank's time went, to metrics.jsonl, event files and status.json",
    "compare": "the variables of all ranks compared (check_replicas_steps)",
    "checkpoint": "the state copied, random states gathered; the thread that writes runs beside",
    "evaluation": "one evaluation set, shared by all ranks",
    "end": "the last checkpoint, the last evaluation, report.html, Python ends its threads",
}
SUMMARY = (
    "What a job costs beside its computing, and how that grows with its ranks. Each rank runs the package's own code "
    "from train_and_evaluate to its end, under mpirun; numpy stands in for TensorFlow, so that many ranks fit into one "
    "machine: graphs are not built, tf.data and Horovod are not there, and a step is one allreduce of 8 KB.",
    "A checkpoint is taken twice, evaluated the first time, and variables are compared; four records are written.",
)
CORRECTED = (
    "All ranks share this machine's {cores} cores, which no real job does, so seconds on the clock grow with the ranks "
    "whatever the package does. A rank that waits in MPI asks for its turn again and again, so all get equal shares of "
    "the cores; what counts here is therefore the CPU time of a rank, all its threads and its waits included: the "
    "seconds that it would take with a core of its own. The clock times cores over ranks gives the same within what "
    "mpirun and the kernel take. “own” leaves out what was spent inside of MPI calls, which is mostly waiting."
)
MESSAGES = (
    "Bytes that collective calls bring to a rank, as they are seen above MPI. The exchanges of steps (8 KB each) and "
    "the first values of the variables are in it. Of MPI's own work, what MPI_Comm_split learns of all ranks counts, "
    "as 8 bytes a rank."
)
FILES = (
    "Calls as Python makes them (open, stat, mkdir, rename, remove, listing), but those of HDF5's library and of the "
    "search for modules. “start” is the import of the package: the same on each rank, so a shared file system has "
    "this number times the ranks to answer when a job starts; a container image, or an environment on the node's own "
    "disk, takes that away."
)
MEMORY = (
    "PSS of /proc/self/smaps_rollup, taken when all ranks have trained and before any leaves: memory that several "
    "processes share counts in equal parts. “private” is no other process's; RSS counts shared memory whole."
)
STALLED = (
    "All ranks stand still after the first step, with stall_timeout_secs={secs:g}. From half of that on each writes a "
    "file of its own now and then; the lowest reads all of them once, judges, and ends the job. Calls are those of the "
    "median worker from the first step to the verdict."
)


def records(ranks: int, runs: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    """Of one count of ranks: a record for each phase, for memory, and for what is written."""
    yield from records_of(BENCHMARK, "s", _phases(ranks, runs))
    yield from records_of(BENCHMARK, "MB", [_memory(ranks, runs)])
    files = [run["written"]["files in job-dir"] for run in runs]
    config = {"what": "written", "written": dict(runs[0]["written"])}
    yield from records_of(BENCHMARK, "files", [Sample(f"{ranks} ranks, written", files, ranks=ranks, config=config)])


def _phases(ranks: int, runs: Sequence[Mapping[str, Any]]) -> Iterator[Sample]:
    """CPU seconds of the median worker, by repeat; what else is known of the phase in its config."""
    for name, parts in [*((one, (one,)) for one in PHASES), *SUMS.items()]:
        told = [[_sum(rank["phases"], parts) for rank in run["ranks"]] for run in runs]
        config: dict[str, Any] = {"what": "phase", "phase": name}
        config["wall"] = median(max(one["wall"] for one in run) for run in told)
        config["cpu_most"] = median(max(one["cpu"] for one in run) for run in told)
        for kind in ("cpu", "own", *COUNTED):
            config[f"{kind}_chief"] = median(run[0][kind] for run in told)
            config[f"{kind}_worker"] = median(_of_worker(run, kind) for run in told)
        yield Sample(f"{ranks} ranks, {name}", [_of_worker(run, "cpu") for run in told], ranks=ranks, config=config)


def _sum(phases: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    own = [phases[name] for name in names if name in phases]
    found = {kind: sum(one[kind] for one in own) for kind in ("wall", "cpu", "waited_cpu", *COUNTED)}
    return {**found, "own": found["cpu"] - found["waited_cpu"]}


def _of_worker(told: Sequence[Mapping[str, float]], kind: str) -> float:
    """The median of all ranks but the chief; the chief where it is alone."""
    return median(one[kind] for one in (told[1:] or told))


def _memory(ranks: int, runs: Sequence[Mapping[str, Any]]) -> Sample:
    told = [[rank["memory"] for rank in run["ranks"]] for run in runs]
    config: dict[str, Any] = {"what": "memory"}
    for kind in ("pss", "private", "most_rss"):
        config[f"{kind}_chief"] = median(run[0][kind] for run in told) / 1e6
        config[f"{kind}_worker"] = median(_of_worker(run, kind) for run in told) / 1e6
    more = [(run[0]["pss"] - _of_worker(run, "pss")) / 1e6 for run in told]
    return Sample(f"{ranks} ranks, memory of the chief beyond a worker's", more, ranks=ranks, config=config)


def stall_records(ranks: int, stall_secs: float, told: Mapping[str, Any]) -> Iterator[Record]:
    """Of a stalled job."""
    verdict = told["verdict"]
    steps = [rank["phases"]["steps"] for rank in told["ranks"]]
    config = {
        "what": "stall",
        "stall_secs": stall_secs,
        "message": verdict["message"].partition("; ended because")[0],
        "judge": verdict["judge"],
    }
    config |= {"files": verdict["files"], "bytes": verdict["bytes"]}
    config |= {f"{name}_ms": 1e3 * secs for name, secs in verdict["took"].items()}
    for kind in ("files", "entries"):
        config |= {f"{kind}_judge": steps[verdict["judge"]][kind], f"{kind}_worker": _of_worker(steps, kind)}
    value = config.get("read_ms", 0.0)
    yield from records_of(BENCHMARK, "ms", [Sample(f"{ranks} ranks, stalled", [value], ranks=ranks, config=config)])


def targets(found: Found) -> list[Target]:
    """All of them. Between counts of ranks that lie nearer together than 8 and 128, nothing is said of growth."""
    few, many = (found.where(what="phase", phase=FIRST_STEP, ranks=n) for n in (FEW, MANY))
    growth = [
        (name, many.records[0].config[key] / few.records[0].config[key] if few and many else None)
        for name, key in (("the slowest rank", "cpu_most"), ("the chief", "cpu_chief"), ("a worker", "cpu_worker"))
    ]
    received = [(n, one.config["received_worker"]) for n in (FEW, MANY) for one in found.where(phase=BESIDE, ranks=n)]
    allowed = math.log2(MANY) / math.log2(FEW)
    ratio = received[-1][1] / received[0][1] if len(received) == 2 else None
    memory = [(words.count(one.ranks, "rank"), one.value) for one in found.where(what="memory")]
    return [
        at_most(f"CPU seconds to the first step, {MANY} ranks to {FEW}", f"≤ {MOST_GROWTH:g} x", growth, MOST_GROWTH),
        at_most("Memory (PSS) of the chief beyond a worker's", f"≤ {MOST_MEGABYTES:g} MB", memory, MOST_MEGABYTES),
        at_most(
            f"Bytes that messages bring to a worker, {MANY} ranks to {FEW}",
            f"≤ {allowed:.2f} x, as log n grows",
            [("all but the steps", ratio)],
            allowed,
        ),
    ]


def make_page(kept: Sequence[Record], cores: int) -> Report:
    """The whole report."""
    found = Found(kept)
    sections = [_first_step(found, cores), _by_phase(found), _counted(found, "Messages", MESSAGES, "received")]
    sections += [_counted(found, "Calls of the file system", FILES, "files"), _memory_section(found), _written(found)]
    if stalled := found.where(what="stall"):
        sections.append(_stalled(stalled))
    return Report("The control path over the ranks of a job", SUMMARY, targets(found), sections)


def _line(found: Found, label: str, key: str) -> Line:
    return Line(label, [(one.ranks, one.config[key]) for one in sorted(found, key=lambda one: one.ranks)])


def _first_step(found: Found, cores: int) -> Section:
    own = found.where(what="phase", phase=FIRST_STEP)
    header = ("ranks", "on the clock, s", "x cores / ranks, s", "CPU s: slowest rank", "chief", "worker")
    rows = [
        (
            f"{one.ranks}",
            words.number(one.config["wall"], 3),
            words.number(one.config["wall"] * min(1.0, cores / one.ranks), 3),
            *(words.number(one.config[key], 3) for key in ("cpu_most", "cpu_chief", "cpu_worker")),
            *(words.number(one.config[key], 3) for key in ("own_chief", "own_worker")),
        )
        for one in own
    ]
    lines = [_line(own, who, key) for who, key in (("slowest rank", "cpu_most"), ("chief, own", "own_chief"))]
    lines.append(_line(own, "worker, own", "own_worker"))
    return Section(
        "To the first step",
        [CORRECTED.format(cores=cores)],
        [Lines("CPU seconds of a rank from its process's start to its first step", "ranks", "CPU s", lines)],
        [Table((*header, "chief, own", "worker, own"), rows)],
    )


def _by_phase(found: Found) -> Section:
    """CPU seconds of chief and worker in each phase, by ranks."""
    parts = [f"{phase}: {what}." for phase, what in WHAT.items()]
    tables = [_table(found, key, lambda value: words.number(value, 3), fold) for key, fold in FOLDS]
    own = found.where(what="phase")
    shown = [phase for phase in PHASES if phase != "start"]
    figures = [
        Lines(
            f"CPU seconds of {who} in each phase; the start of Python is left out",
            "ranks",
            "CPU s",
            [_line(own.where(phase=phase), phase, key) for phase in shown],
            log_y=True,
        )
        for who, key in (("the chief", "cpu_chief"), ("a worker", "cpu_worker"))
    ]
    return Section("Each phase", parts, figures, tables)


FOLDS = (
    ("cpu_chief", "CPU seconds of the chief"),
    ("own_chief", "CPU seconds of the chief, without its MPI calls"),
    ("cpu_worker", "CPU seconds of a worker"),
    ("own_worker", "CPU seconds of a worker, without its MPI calls"),
    ("wall", "seconds on the clock, of the slowest rank"),
)


def _table(found: Found, key: str, text: Any, fold: str = "") -> Table:
    """A row for each phase, a column for each count of ranks, and how much that grows from FEW to the most."""
    own = found.where(what="phase")
    counts = sorted(own.each("ranks"))
    base = FEW if FEW in counts else counts[0]
    rows = []
    for phase in (*PHASES, *SUMS):
        by_ranks = {one.ranks: one.config[key] for one in own.where(phase=phase)}
        growth = by_ranks[counts[-1]] / by_ranks[base] if by_ranks[base] else None
        rows.append((phase, *(text(by_ranks[n]) for n in counts), words.number(growth, 3)))
    header = ("phase", *(words.count(n, "rank") for n in counts), f"{counts[-1]} to {base}")
    return Table(header, rows, fold=fold)


def _counted(found: Found, title: str, text: str, key: str) -> Section:
    tables = [
        _table(found, f"{key}_{who}", lambda value: f"{value:,.0f}", f"{title} of {name}, by phase")
        for who, name in (("chief", "the chief"), ("worker", "a worker"))
    ]
    own = found.where(what="phase", phase=BESIDE)
    lines = [_line(own, name, f"{key}_{who}") for who, name in (("chief", "chief"), ("worker", "worker"))]
    label = "bytes received" if key == "received" else "calls"
    return Section(title, [text], [Lines(f"{title}: all but the steps", "ranks", label, lines, log_y=True)], tables)


def _memory_section(found: Found) -> Section:
    own = found.where(what="memory")
    keys = ("pss_chief", "pss_worker", "private_chief", "private_worker", "most_rss_chief", "most_rss_worker")
    rows = [
        (f"{one.ranks}", words.number(one.value, 3), *(words.number(one.config[key], 3) for key in keys)) for one in own
    ]
    header = (
        "ranks",
        "chief beyond worker",
        *(key.replace("most_rss", "highest RSS").replace("_", ", ") for key in keys),
    )
    lines = [_line(own, "chief", "pss_chief"), _line(own, "worker", "pss_worker")]
    return Section("Memory, MB", [MEMORY], [Lines("PSS of a rank", "ranks", "MB", lines)], [Table(header, rows)])


def _written(found: Found) -> Section:
    own = found.where(what="written")
    counts = [one.ranks for one in own]
    names = own.records[0].config["written"]
    rows = [(name, *(f"{one.config['written'][name]:,}" for one in own)) for name in names]
    return Section("What is written", tables=[Table(("", *(words.count(n, "rank") for n in counts)), rows)])


def _stalled(found: Found) -> Section:
    names: Mapping[str, str] = {
        "files": "files in the folder",
        "bytes": "their bytes",
        "read_ms": "the judge reads all of them, ms",
        "lower_ms": "the judge looks for lower ranks, longest, ms",
        "report_ms": "it writes its own, longest, ms",
        "files_judge": "calls of the judge",
        "files_worker": "calls of a worker",
        "entries_judge": "entries of folders that the judge lists",
        "entries_worker": "entries of folders that a worker lists",
    }
    rows = [(text, *(words.number(one.config.get(key), 3) for one in found)) for key, text in names.items()]
    header = ("", *(words.count(one.ranks, "rank") for one in found))
    said = [f"{words.count(one.ranks, 'rank')}: “{one.config['message']}”" for one in found]
    secs = found.records[0].config["stall_secs"]
    return Section("All ranks stall", [STALLED.format(secs=secs), *said], tables=[Table(header, rows)])
