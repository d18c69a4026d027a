"""The folder of a run: what it measured, kept so that an interrupted run goes on; its records and its report."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from hpc_train.files import replace_text
from support import machine
from support.launch import REPOSITORY
from support.page import Report, Section, as_text
from support.records import Record, write_records
from support.timing import there_and_back
from support.usage import EXIT_MISSED, MissingError, UsageError, check_folder, in_short, tell

T = TypeVar("T")

RESULTS = REPOSITORY / "benchmarks" / "results"
RECORDS, MARKDOWN, RUN, KEPT = "records.jsonl", "report.md", "run.json", "measured.jsonl"
QUICK = "A quick run: it tries the benchmark, and none of its figures mean anything."
PACKAGES = ("hpc_train", "numpy", "h5py", "hdf5plugin", "mpi4py", "horovod", "tensorflow", "tensorflow-cpu", "keras")
LASTING = ("cpu", "cores", "gpus", "nodes")
"""Of a machine: what must not change between the parts of a run."""


class Results:
    """What one run of a benchmark measured, in a folder of its own. A context manager; local.

    `records.jsonl` has the records, one JSON object a line; `run.json` says how the run was started, on what, and what
    was left out; `report.md` is the report, with its drawings beside it. While the run goes on, `measured.jsonl` keeps
    what `once` measured: a run that finds its own unfinished folder goes on behind it.

    Args:
        settings: What must be equal for a run to go on; as JSON has it.
        fresh: Throw away what an earlier run left. json_copy: The records are written there, too.

    Attributes:
        kept: By key what `once` measured.

    Raises:
        UsageError: The folder holds something else: another benchmark's run, other settings, another machine's
            figures, a finished run, files that are no results; or another process is writing to it.
    """

    def __init__(
        self,
        path: Path,
        benchmark: str,
        settings: Mapping[str, Any],
        fresh: bool = False,
        json_copy: Path | None = None,
    ) -> None:
        self.path, self.benchmark, self._fresh, self._json_copy = path, benchmark, fresh, json_copy
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        self.machine: dict[str, Any] = {**machine.describe(), **machine.thread_settings()}
        if mpi := machine.mpi_version():
            self.machine["mpi"] = mpi
        self.versions = machine.versions(PACKAGES)
        self.records: list[Record] = []
        self.left_out: dict[str, str] = {}
        self.failed = False
        self.kept: dict[str, Any] = {}

    def __enter__(self) -> Results:
        self._check_places()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out: {self.path} cannot be made: {error.strerror}; give another folder") from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UsageError(f"--out: nothing can be written in {self.path}; give another folder")
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(f"--out: another process is measuring into {self.path}; give another folder") from None
        except OSError:
            pass  # a file system without locks
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def once(self, key: str, measure: Callable[[], Any]) -> Any:
        """What `measure` returns, as JSON has it; where this run was interrupted after it, what it returned then.

        It is safe on the disk when this returns.
        """
        if key not in self.kept:
            line = json.dumps([key, measure()], allow_nan=False)
            with open(self.path / KEPT, "a", encoding="utf-8") as file:
                file.write(f"{line}\n")
                file.flush()
                os.fsync(file.fileno())
            self.kept[key] = json.loads(line)[1]
        return self.kept[key]

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """What `measure` returns; None where it cannot be had here, or fails: that is noted, and the others go on."""
        try:
            return measure()
        except (MissingError, RuntimeError) as error:
            tell(f"{what}: left out: {error}")
            self.leave_out(what, in_short(error))
            self.failed |= isinstance(error, RuntimeError)
            return None

    def turns(self, unit: str, ways: Mapping[str, Callable[[], Any]], passes: int) -> dict[str, list[Any]]:
        """Runs jobs, each in processes of its own, there and back `passes` times: A B, B A; by name what each gave.

        What is kept of an interrupted run is not run again. A way that fails, or cannot be had, is noted and left out.

        Raises:
            RuntimeError, MissingError: The first of them failed, which the others are compared with.
        """
        found: dict[str, list[Any]] = {name: [] for name in ways}
        first = next(iter(ways))
        for name in there_and_back(list(ways), passes):
            if name not in found:
                continue
            key = f"{unit}, {name}, {len(found[name])}"

            def run(key: str = key, name: str = name) -> Any:
                return self.once(key, ways[name])

            told = run() if name == first else self.attempt(f"{unit}, {name}", run)
            if told is None:
                del found[name]
            else:
                found[name].append(told)
        return found

    def leave_out(self, what: str, why: str) -> None:
        """Notes that something is not measured, and why; it is tried again when the run goes on."""
        self.left_out[what] = why
        self._write_run()

    def add(self, unit: str, records: Iterable[Record]) -> list[Record]:
        """Adds the records of a unit, as this benchmark's, with machine and versions; returns them as they are kept.

        Raises:
            ValueError: A case and baseline is there already; or a number is not finite.
        """
        kept = [
            replace(
                one,
                benchmark=self.benchmark,
                config={"machine": self.machine, **one.config, "unit": unit},
                versions=self.versions,
            )
            for one in records
        ]
        self.records += kept
        write_records(self.path / RECORDS, self.records)
        return kept

    def conclude(self, report: Report, strict: bool = False) -> int:
        """Writes the report and prints its targets, and what was left out; returns the exit code.

        What was left out is a section of it, and its facts have machine, versions, commit, command and date.
        """
        quick = bool(self.settings.get("quick"))
        missing = [Section("Not measured", [f"{what}: {why}" for what, why in self.left_out.items()])]
        ends = {"command": self._run["command"], "begun": self._run["begun"], "written": _now()}
        whole = replace(
            report,
            summary=[*([QUICK] if quick else []), *report.summary],
            sections=[*(missing if self.left_out else []), *report.sections],
            facts={**self.machine, **report.facts, **self.versions, **ends},
        )
        text, drawings = as_text(whole, _today())
        for name, drawing in drawings.items():
            replace_text(self.path / name, drawing)
        for stale in set(self._run["drawings"]) - set(drawings):
            (self.path / stale).unlink(missing_ok=True)
        replace_text(self.path / MARKDOWN, text)
        if self._json_copy is not None:
            write_records(self._json_copy, self.records)
        self._run |= {"drawings": sorted(drawings), "ended": _now()}
        self._write_run()
        (self.path / KEPT).unlink(missing_ok=True)
        print(*report.targets, sep="\n", end="\n" if report.targets else "")
        for what, why in self.left_out.items():
            print(f"not measured  {what}: {why}")
        print(*([QUICK] if quick else []), self.path / MARKDOWN, sep="\n")
        return EXIT_MISSED if strict and (self.failed or not all(one.reached for one in report.targets)) else 0

    def _check_places(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"--out: {self.path} is a file; give a folder")
        if self._json_copy is None:
            return
        if self._json_copy.is_dir():
            raise UsageError(f"--json: {self._json_copy} is a folder; give the name of a file")
        if not os.access(self._json_copy.absolute().parent, os.W_OK):
            raise UsageError(f"--json: nothing can be written in {self._json_copy.absolute().parent}")

    def _open(self) -> None:
        before = read_run(self.path)
        if before is None and any(self.path.iterdir()):
            raise UsageError(f"--out: {self.path} is not empty and holds no {RUN}: give a new folder")
        if before is not None and not self._fresh:
            self._check_same(before)
        if before is not None and (self._fresh or "ended" in before):
            for name in (RECORDS, MARKDOWN, KEPT, *before["drawings"]):
                (self.path / Path(name).name).unlink(missing_ok=True)
            before = None
        own = {"benchmark": self.benchmark, "settings": self.settings, "machine": self.machine}
        own |= {"versions": self.versions, "begun": _now(), "command": command_line(), "drawings": []}
        self._run: dict[str, Any] = before or own
        self.kept = _read_kept(self.path / KEPT)
        if self.kept:
            tell(f"{self.path}: {len(self.kept)} measurements are there already; --fresh makes all anew")
        self._write_run()

    def _check_same(self, before: Mapping[str, Any]) -> None:
        now = {"benchmark": self.benchmark, "settings": self.settings, "machine": self.machine}
        found = differences(before, {**now, "versions": before["versions"] if "ended" in before else self.versions})
        if found:
            told = "\n".join(f"  {line}" for line in found)
            raise UsageError(
                f"--out: {self.path} holds another run:\n{told}\ngive another folder, or throw that run away by --fresh"
            )
        if "ended" in before and not self.settings.get("quick"):
            raise UsageError(
                f"--out: {self.path} holds a finished run; give another folder, or throw that run away by --fresh"
            )

    def _write_run(self) -> None:
        self._run["left_out"] = self.left_out
        replace_text(self.path / RUN, json.dumps(self._run, indent=2) + "\n")


def _read_kept(path: Path) -> dict[str, Any]:
    """What `once` wrote; a last line that was not written to its end is cut off."""
    if not path.exists():
        return {}
    whole, end, _ = path.read_text(encoding="utf-8").rpartition("\n")
    replace_text(path, whole + end)
    return dict(json.loads(line) for line in whole.splitlines())


def read_run(folder: Path) -> dict[str, Any] | None:
    """What run.json of a folder says; None where there is none, or it is none of ours."""
    try:
        told = json.loads((folder / RUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    needed = {"benchmark": str, "settings": dict, "machine": dict, "versions": dict, "drawings": list}
    return told if isinstance(told, dict) and all(isinstance(told.get(k), v) for k, v in needed.items()) else None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What keeps a run from going on, a line each: another benchmark, other settings, machine or versions. Pure."""
    if before["benchmark"] != now["benchmark"]:
        return [f"benchmark {before['benchmark']}, not {now['benchmark']}"]
    pairs = [(name, before["machine"].get(name), now["machine"].get(name)) for name in LASTING]
    for part in ("settings", "versions"):
        names = dict.fromkeys([*before[part], *now[part]])
        pairs += [(name, before[part].get(name), now[part].get(name)) for name in names]
    return [f"{name}: {json.dumps(old)} there, {json.dumps(new)} now" for name, old, new in pairs if old != new]


def command_line() -> str:
    """How this script was started, from the checkout; without where its results go, and nobody's home is named."""
    script, *arguments = sys.argv
    kept, skip = [], False
    for word in arguments:
        takes = word in ("--out", "--json")
        if not (skip or takes or word == "--fresh" or word.startswith(("--out=", "--json="))):
            kept.append(word)
        skip = takes
    path = Path(script).resolve()
    name = str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else path.name
    line = shlex.join(["python", name, *kept])
    return line.replace(f"{REPOSITORY}/", "").replace(str(Path.home()), "~")


def default_folder(benchmark: str, settings: Mapping[str, Any], quick: bool = False) -> Path:
    """benchmarks/results/<benchmark>_<machine>_<date>, of today; or where the same run was interrupted earlier."""
    start, end = f"{benchmark}_{machine.slug()}_", "_quick" if quick else ""
    wanted = json.loads(json.dumps(dict(settings)))
    for folder in sorted(RESULTS.glob(f"{start}????-??-??{end}"), reverse=True):
        before = read_run(folder)
        if before is not None and "ended" not in before and before["settings"] == wanted:
            return folder
    return RESULTS / f"{start}{_today()}{end}"


def open_results(args: argparse.Namespace, benchmark: str, settings: Mapping[str, Any]) -> Results:
    """The folder that a script's arguments ask for, to be entered. A quick run that has ended begins anew.

    Raises:
        UsageError: `--dir` is no folder.
    """
    check_folder(args.dir)
    told = {**settings, "quick": args.quick}
    return Results(args.out or default_folder(benchmark, told, args.quick), benchmark, told, args.fresh, args.json)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _today() -> str:
    return datetime.now(timezone.utc).date().isoformat()
