"""Makes what is lacking in the folder of `hpc-train fit`, by the commands that one would give oneself, and trains."""

from __future__ import annotations

import glob
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.job import job_in, load_job
from hpc_train.config.table_schema import TableSchema, read_schema
from hpc_train.config.yaml_loader import Document
from hpc_train.data.hdf5.shards import find_shards, matches
from hpc_train.errors import UserError
from hpc_train.files import replace_text
from hpc_train.folders import make_folder
from hpc_train.jobs.fit.folder import FitFolder
from hpc_train.jobs.fit.job_file import job_document, text_of
from hpc_train.jobs.fit.request import MANY_ROWS, FitRequest
from hpc_train.jobs.launch.launchers.mpirun import Mpirun
from hpc_train.jobs.launch.run import launch
from hpc_train.outcome import STOP_CODES
from hpc_train.resilience.signals import StopSignals

LARGE_BYTES = 256 << 20
"""Of a table, from which on several ranks find its schema: starting them takes two seconds."""
ROWS_OF_A_RANK = 10_000
"""For fewer rows of training, one more rank is of no use: each has all cores that the others leave it."""
MOST_RANKS = 16
POLL_SECS = 0.1
ENDING_SECS = 30.0
"""How long a command may take to end once it is asked to."""


class StageError(Exception):
    """A command ended with another code than 0, and has said why.

    Attributes:
        code: With which this one is to end.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Stages:
    """What makes a model of a table, each stage of what the last one has left.

    A stage that has been done is not done again: the next one's first file shows it. Each command reports to the
    standard streams of this process. Not collective: no MPI runs here.

    Attributes:
        cores: That this process may use.
        report: Prints a line.
    """

    request: FitRequest
    folder: FitFolder
    mpirun: Mpirun
    cores: int
    report: Callable[[str], None]

    def run(self) -> int:
        """Makes all, trains, and returns the exit code of training.

        Raises:
            UserError: The folder is of something else, or a file cannot be used. StageError: a command failed.
        """
        try:
            with StopSignals() as signals:
                self._prepare(signals)
                self._go_on(signals)
            job = load_job(self.folder.job_file)
        except OSError as error:
            raise UserError(f"{error.filename or self.folder.path}: cannot be written: {error.strerror}") from None
        ranks = self.request.ranks or job.resources.ranks_per_node or 1
        words = ["launch", f"-n{ranks}", str(self.folder.job_file), f"--job-dir={self.folder.job_dir.path}"]
        self._show(words)
        return launch(self.mpirun, ranks, self.folder.job_file, self.folder.job_dir.path)

    def _prepare(self, signals: StopSignals) -> None:
        """Makes all that training needs."""
        job_file = self.folder.job_file
        if not job_file.exists() and (none := _lacking([*self.request.files, *self.request.eval])):
            raise UserError(f"{none}: no such file")
        _check_apart(self.request.files, self.request.eval)
        tables = {"files": _states(self.request.files), "eval": _states(self.request.eval)}
        self.folder.begin(self.request.to_json(), tables, self.request.schema is None)
        if not self.folder.schema.exists():
            self._make_schema(signals)
        if job_file.exists():
            return
        schema = _with_label(self.folder.schema)
        document = self._job_document(schema, schema.rows or 0)
        job_in(document)  # whose mistakes are those of --set
        make_folder(self.folder.data)
        for words in self.request.shard_words(self.folder.data, self.folder.schema, schema.rows or MANY_ROWS):
            self._command(words, signals)
        if self.request.schema is not None:  # whose statistics may be of other rows
            document = self._job_document(schema, self._rows(schema))
        replace_text(job_file, text_of(document))
        self.report(str(job_file))

    def _make_schema(self, signals: StopSignals) -> None:
        path, given = self.folder.schema, self.request.schema
        if given is not None:
            replace_text(path, _with_label(given).to_yaml())
            self.report(f"{path}: as {given}")
            return
        words = self.request.schema_words(path)
        self._command(words, signals, self.cores if _bytes(self.request.files) >= LARGE_BYTES else 1)

    def _rows(self, schema: TableSchema) -> int:
        """Those for training that the shards have."""
        pattern = str(Path(glob.escape(str(self.folder.data))) / "train-*.h5")
        source = HDF5Input((pattern,), features=tuple(schema.features), label=(str(schema.label),), batch_size=1)
        return find_shards(source, in_batches=False).rows

    def _job_document(self, schema: TableSchema, rows: int) -> Document:
        assert schema.task is not None, "as a schema with a label has"
        ranks = self.request.ranks or min(self.cores, MOST_RANKS, 1 + rows // ROWS_OF_A_RANK)
        asked = self.request
        return job_document(
            self.folder.job_file, self.folder.name, asked.model, schema.task, rows, ranks, asked.settings
        )

    def _command(self, words: Sequence[str], signals: StopSignals, ranks: int = 1) -> None:
        """Runs `hpc-train WORDS`; StageError where it fails, or is stopped."""
        program = [sys.executable, "-m", "hpc_train", *words]
        settings: dict[str, str] = {}
        if ranks > 1:
            program, settings = self.mpirun.command(ranks, program, os.environ)
        self._show(words, f"mpirun -np {ranks} " if ranks > 1 else "")
        with subprocess.Popen(program, env={**os.environ, **settings}, stdin=subprocess.DEVNULL) as process:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECS)
                if signals.received is not None:
                    process.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(ENDING_SECS)
                    process.kill()
        self._go_on(signals)
        if process.returncode != 0:
            raise StageError(process.returncode if process.returncode > 0 else 128 - process.returncode)

    def _go_on(self, signals: StopSignals) -> None:
        """StageError where this process was asked to stop."""
        if signals.received is not None:
            self.report("stopped; the same command goes on from here")
            raise StageError(STOP_CODES[signals.received])

    def _show(self, words: Sequence[str], before: str = "") -> None:
        self.report(f"$ {before}{shlex.join(['hpc-train', *words])}")


def _with_label(path: Path) -> TableSchema:
    """The schema in a file.

    Raises:
        UserError: It cannot be read, or has no label.
    """
    schema = read_schema(path)
    if schema.label is None:
        raise UserError(f"{path}: has no column with role label, which is what is to be predicted; give it to one")
    return schema


def _lacking(files: Sequence[str]) -> str | None:
    """The first pattern that names no file."""
    return next((pattern for pattern in files if not matches(pattern)), None)


def _check_apart(files: Sequence[str], evaluation: Sequence[str]) -> None:
    """UserError where a file is both to train on and to evaluate with."""
    ours = {path.resolve() for pattern in files for path in matches(pattern)}
    if both := [path for pattern in evaluation for path in matches(pattern) if path.resolve() in ours]:
        raise UserError(
            f"--eval {both[0]}: its rows are those to train on, too; give another table, or leave --eval out, which "
            "keeps some of the rows for evaluation"
        )


def _states(files: Sequence[str]) -> dict[str, list[int]]:
    """Of the files that are there, for FitFolder.begin."""
    found = {}
    for pattern in files:
        for path in matches(pattern):
            with suppress(OSError):
                about = path.stat()
                found[str(path.absolute())] = [about.st_size, about.st_mtime_ns]
    return found


def _bytes(files: Sequence[str]) -> int:
    """Of the files that are there; what is none of one is reported by who reads it."""
    found = 0
    for pattern in files:
        for path in matches(pattern):
            with suppress(OSError):
                found += Path(path).stat().st_size
    return found
