"""The folder of a run: what it measured, unit by unit, so that an interrupted run goes on; and its report."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from support import machine
from support.launch import REPOSITORY
from support.markdown import as_text
from support.records import Record, as_lines, read_records, write_records
from support.report import Report, Section, as_html, replace_text, today
from support.run_file import RUN, command_line, differences, joined, now, read_run
from support.usage import EXIT_MISSED, UsageError

RESULTS = REPOSITORY / "benchmarks" / "results"
RECORDS, HTML, MARKDOWN = "records.jsonl", "report.html", "report.md"
QUICK = "A quick run: it tries the benchmark, and none of its figures mean anything."
PACKAGES = ("hpc_train", "numpy", "h5py", "mpi4py", "horovod", "tensorflow", "tensorflow-cpu", "keras")


class ResultsFolder:
    """What one run of a benchmark measured, in a folder of its own. A context manager; local.

    `records.jsonl` has the records, one JSON object a line, and grows by a unit at a time; `run.json` says how the run
    was started, on what, which units are finished and what was left out. A run that finds its own unfinished folder
    goes on in it.

    Args:
        settings: What must be equal for a run to go on; as JSON has it.
        fresh: Throw away what an earlier run measured. json_copy: `write` writes the records there, too.
        resumes: Go on with it; otherwise what was interrupted is measured anew, and what is finished refused.

    Raises:
        UsageError: The folder holds something else: another benchmark's run, other settings, another machine's
            figures, files that are no results; or another process is writing to it.
    """

    def __init__(
        self,
        path: Path,
        benchmark: str,
        settings: Mapping[str, Any],
        fresh: bool = False,
        json_copy: Path | None = None,
        packages: Sequence[str] = PACKAGES,
        resumes: bool = True,
    ) -> None:
        self.path, self.benchmark, self._resumes = path, benchmark, resumes
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        self.machine: dict[str, Any] = {**machine.describe(), **machine.thread_settings()}
        if mpi := machine.mpi_version():
            self.machine["mpi"] = mpi
        self.versions = machine.versions(packages)
        self.left_out: dict[str, str] = {}
        self._for_good: set[str] = set()
        self._json_copy, self._fresh = json_copy, fresh
        self._units: dict[str, list[Record]] = {}
        self._run: dict[str, Any] = {}

    def __enter__(self) -> ResultsFolder:
        self._check_places()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out: {self.path} cannot be made: {error.strerror}; give another folder") from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UsageError(f"--out: nothing can be written in {self.path}; give another folder")
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            self._lock_folder()
            self._open()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    @property
    def records(self) -> list[Record]:
        """Everything measured, in the order in which it was."""
        return [record for records in self._units.values() for record in records]

    def finished(self, unit: str) -> list[Record] | None:
        """What this run, or an earlier part of it that was interrupted, measured of a unit; None: not finished."""
        return self._units.get(unit)

    def add(self, unit: str, records: Sequence[Record]) -> list[Record]:
        """Adds a finished unit, safe on the disk when this returns; returns the records as they are kept.

        Their `config` gets the unit, and the machine where it does not say; `versions` those of this process where
        there are none.

        Raises:
            ValueError: The unit, or a record's case and baseline, is there already; or a number is not finite.
        """
        if unit in self._units:
            raise ValueError(f"{unit} is finished already")
        kept = [
            replace(
                record,
                config={"machine": self.machine, **record.config, "unit": unit},
                versions=record.versions or self.versions,
            )
            for record in records
        ]
        _check_distinct([*self.records, *kept])
        with open(self.path / RECORDS, "ab") as file:
            file.write(as_lines(kept).encode())
            file.flush()
            os.fsync(file.fileno())
        self._units[unit] = kept
        self.left_out.pop(unit, None)
        self._write_run()
        return kept

    @property
    def run_id(self) -> str:
        """Of the run that this goes on with; no two are the same."""
        return str(self._run["id"])

    def leave_out(self, unit: str, why: str, for_good: bool = False) -> None:
        """Notes that a unit is not measured, and why; it is tried again when the run goes on, unless `for_good`."""
        self.left_out[unit] = why
        self._for_good |= {unit} if for_good else set()
        self._write_run()

    def write(self, report: Report) -> tuple[Path, Path]:
        """Writes report.html and report.md with the drawings it shows; returns the two. Each appears in one rename.

        What was left out is a section of both, and their facts have machine, versions, commit, command and date.
        """
        summary = list(report.summary)
        if self.settings.get("quick") and not any(text.startswith("A quick run") for text in summary):
            summary.insert(0, QUICK)
        sections = [*self._not_measured(), *report.sections]
        whole = replace(report, summary=summary, sections=sections, facts=self._facts(report.facts))
        text, drawings = as_text(whole, today())
        for name, drawing in drawings.items():
            replace_text(self.path / name, drawing)
        for stale in set(self._run["drawings"]) - set(drawings):
            (self.path / stale).unlink(missing_ok=True)
        replace_text(self.path / HTML, as_html(whole, today()))
        replace_text(self.path / MARKDOWN, text)
        if self._json_copy is not None:
            write_records(self._json_copy, self.records)
        self._run |= {"drawings": sorted(drawings), "ended": now()}
        self._write_run()
        return self.path / HTML, self.path / MARKDOWN

    def conclude(self, report: Report, strict: bool = False, failed: bool = False) -> int:
        """Writes the report and prints its targets, and what was left out; returns the exit code.

        failed: Something of what was left out has failed, which is no success where `strict` is asked for.
        """
        page, _ = self.write(report)
        print(*report.targets, sep="\n", end="\n" if report.targets else "")
        for unit, why in self.left_out.items():
            print(f"not measured  {unit}: {why}")
        if self.settings.get("quick"):
            print(QUICK)
        print(page)
        return EXIT_MISSED if strict and (failed or not all(target.reached for target in report.targets)) else 0

    def _check_places(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"--out: {self.path} is a file; give a folder")
        if self._json_copy is None:
            return
        if self._json_copy.is_dir():
            raise UsageError(f"--json: {self._json_copy} is a folder; give the name of a file")
        if not os.access(self._json_copy.absolute().parent, os.W_OK):
            raise UsageError(f"--json: nothing can be written in {self._json_copy.absolute().parent}")

    def _lock_folder(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--out: another process is measuring into {self.path}; give another folder") from None
        except OSError:
            pass  # a file system without locks

    def _open(self) -> None:
        before = read_run(self.path)
        if before is None and any(self.path.iterdir()):
            raise UsageError(f"--out: {self.path} is not empty and holds no {RUN}: give a new folder")
        begun: dict[str, Any] = {"benchmark": self.benchmark, "settings": self.settings, "units": {}, "drawings": []}
        begun |= {
            "id": uuid4().hex,
            "begun": now(),
            "command": command_line(),
            "machine": self.machine,
            "versions": self.versions,
        }
        if before is None:
            self._run = begun
        elif self._fresh or self._is_to_be_replaced(before):
            self._throw_away(before)
            self._run = begun
        else:
            self._go_on(before)
        write_records(self.path / RECORDS, self.records)
        self._write_run()

    def _is_to_be_replaced(self, before: Mapping[str, Any]) -> bool:
        self._check_same(before)
        ended, quick = "ended" in before, self.settings.get("quick")
        if not self._resumes and ended and not quick:
            raise UsageError(
                f"--out: {self.path} holds a finished run; give another folder, or throw that run away by --fresh"
            )
        return not self._resumes or bool(quick and ended)

    def _check_same(self, before: Mapping[str, Any]) -> None:
        found = differences(before, {"benchmark": self.benchmark, "settings": self.settings, "machine": self.machine})
        if found:
            told = "\n".join(f"  {line}" for line in found)
            raise UsageError(
                f"--out: {self.path} holds another run:\n{told}\ngive another folder, or throw that run away by --fresh"
            )

    def _go_on(self, before: dict[str, Any]) -> None:
        try:
            records = read_records(self.path / RECORDS)
        except (OSError, ValueError) as error:
            raise UsageError(f"--out: {error}; --fresh throws that run away") from None
        for unit, count in before["units"].items():
            own = [record for record in records if record.config.get("unit") == unit]
            if len(own) >= count:
                self._units[unit] = own[-count:] if count else []
        self._for_good = set(before.get("for_good", ()))
        self.left_out = {unit: why for unit, why in before.get("left_out", {}).items() if unit in self._for_good}
        versions = {name: joined(before["versions"].get(name), own) for name, own in self.versions.items()}
        self._run = {"id": uuid4().hex, **before, "versions": versions}
        if self._units:
            told = f"{self.path}: {len(self._units)} of the run's parts are measured already; --fresh measures all anew"
            print(told, file=sys.stderr, flush=True)

    def _throw_away(self, before: Mapping[str, Any]) -> None:
        for name in (RECORDS, HTML, MARKDOWN, *before["drawings"]):
            (self.path / Path(name).name).unlink(missing_ok=True)

    def _write_run(self) -> None:
        units = {unit: len(records) for unit, records in self._units.items()}
        self._run |= {"units": units, "left_out": self.left_out, "for_good": sorted(self._for_good)}
        replace_text(self.path / RUN, json.dumps(self._run, indent=2) + "\n")

    def _not_measured(self) -> list[Section]:
        told = [f"{unit}: {why}" for unit, why in self.left_out.items()]
        return [Section("Not measured", told)] if told else []

    def _facts(self, more: Mapping[str, object]) -> dict[str, object]:
        ends = {"command": self._run["command"], "begun": self._run["begun"], "written": now()}
        return {**self.machine, **more, **self._run["versions"], **ends}


def _check_distinct(records: Sequence[Record]) -> None:
    seen: set[tuple[str, str | None]] = set()
    for record in records:
        if (record.case, record.baseline) in seen:
            raise ValueError(f"{record.case}, against {record.baseline}: is there already")
        seen.add((record.case, record.baseline))


def default_folder(benchmark: str, settings: Mapping[str, Any] | None = None, quick: bool = False) -> Path:
    """benchmarks/results/<benchmark>_<machine>_<date>, of today; or where the same run was interrupted earlier."""
    start, end = f"{benchmark}_{machine.slug()}_", "_quick" if quick else ""
    wanted = json.loads(json.dumps(dict(settings or {})))
    for folder in sorted(RESULTS.glob(f"{start}????-??-??{end}"), reverse=True):
        before = read_run(folder)
        if before is not None and "ended" not in before and before["settings"] == wanted:
            return folder
    return RESULTS / f"{start}{today()}{end}"


def add_arguments(parser: argparse.ArgumentParser, benchmark: str) -> None:
    """Adds what every script of benchmarks/ takes."""
    where = f"benchmarks/results/{benchmark}_<machine>_<date>"
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where records and report go (default: {where})")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the records there, too, one JSON object a line"
    )
    parser.add_argument("--fresh", action="store_true", help="throw away what an earlier run left in the folder")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 where a target is missed, or something fails"
    )
    parser.add_argument("--quick", action="store_true", help="try everything once: the figures mean nothing")


def open_results(
    args: argparse.Namespace,
    benchmark: str,
    settings: Mapping[str, Any],
    packages: Sequence[str] = PACKAGES,
    resumes: bool = True,
) -> ResultsFolder:
    """The folder that a script's arguments ask for, to be entered.

    A quick run that has ended begins anew; a script that does not go on (`resumes`) throws away what one has left that
    was interrupted, and nothing else.
    """
    told = {**settings, "quick": args.quick}
    path = args.out or default_folder(benchmark, told, args.quick)
    return ResultsFolder(path, benchmark, told, args.fresh, args.json, packages, resumes)
