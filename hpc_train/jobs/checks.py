"""What can be known to go wrong with a job before it is queued: its data, its code, its resources."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig
from hpc_train.config.references import Kind, names_in
from hpc_train.config.resources import Resources
from hpc_train.config.yaml_loader import Location
from hpc_train.data.hdf5.shards import matches
from hpc_train.errors import SchedulerError, UserError
from hpc_train.files import read_bytes
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobs.schedulers.base import AbsentError, ReportLine, Scheduler
from hpc_train.strategies import strategy_of
from hpc_train.training.data_check import checked_shards
from hpc_train.warm_start.source import check_path

MAX_CODE_BYTES = 16 << 20
"""A larger file is no Python that anybody has written."""


class Problems:
    """Gathers what is wrong, so that all of it is reported at once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keeps a UserError that is raised within, and goes on."""
        try:
            yield
        except UserError as error:
            self._texts += str(error).splitlines()

    def refuse(self) -> None:
        """UserError with all that was gathered, if there is any."""
        if self._texts:
            raise UserError("\n".join(dict.fromkeys(self._texts)))


def check_ranks(job: JobConfig | ProgramConfig, ranks: int) -> None:
    """UserError where `ranks` ranks are too few for the job's strategy, or its shards cannot be read by them."""
    if isinstance(job, ProgramConfig):
        return
    readers = strategy_of(job.run.strategy).roles(ranks, job.run).readers
    checked_shards(readers, job.train_spec(), job.eval_specs(), job.run.accumulate_steps)


def least_ranks(job: JobConfig | ProgramConfig) -> int:
    """So many ranks the job's strategy wants at least."""
    if isinstance(job, ProgramConfig):
        return 1
    return strategy_of(job.run.strategy).least_ranks(job.run)


def code_files(job: JobConfig | ProgramConfig) -> list[Path]:
    """The files that a job file names as code, and so wants in the snapshot."""
    names = _names(job)
    functions = [Path(name.rpartition(":")[0]) for _, kind, name in names if kind == "function" and ".py:" in name]
    assets = [Path(name) for _, kind, name in names if kind == "asset"]
    return [*functions, *(path for path in assets if path.is_file())]  # check_files reports the others


def data_files(job: JobConfig | ProgramConfig) -> list[Path]:
    """The shards of a job, which are read where they are."""
    return [path for _, kind, pattern in _names(job) if kind == "shard" for path in matches(pattern)]


def _names(job: JobConfig | ProgramConfig) -> list[tuple[Location, Kind, str]]:
    return [] if isinstance(job, ProgramConfig) else list(names_in(job.model_dump(mode="json")))


def check_code(job: JobConfig | ProgramConfig, folder: Path) -> None:
    """UserError where the code that a job names is not there, or is no Python. Runs none of it."""
    if isinstance(job, ProgramConfig):
        _check_module("module", job.module, folder)
        return
    problems = Problems()
    for location, kind, name in _names(job):
        if kind == "function":
            key = next(part for part in reversed(location) if isinstance(part, str))
            place, _, function = name.rpartition(":")
            with problems.gathered():
                if place.endswith(".py"):
                    _check_function(key, Path(place), function)
                else:
                    _check_module(key, place, folder)
    problems.refuse()


def check_files(job: JobConfig | ProgramConfig, job_dir: Path, after_dir: Path | None = None) -> None:
    """UserError where assets of exporters are not there, or nothing to warm-start from is; all of it. Reads names only.

    A job whose job-dir has checkpoints needs nothing to start from. What is to be in `after_dir`, the job-dir of a job
    that comes before, can be missing.
    """
    if isinstance(job, ProgramConfig):
        return
    problems = Problems()
    for spec in job.eval_specs():
        for exporter in spec.exporters:
            if missing := [str(path) for path in exporter.assets if not path.is_file()]:
                with problems.gathered():
                    raise UserError(f"exporter {exporter.name!r}: there is no file {', '.join(missing)} (assets)")
    if job.warm_start_from is not None and not JobDir(job_dir).checkpoints():
        source = job.warm_start_from.ckpt_to_initialize_from
        is_to_come = after_dir is not None and source.resolve().is_relative_to(after_dir.resolve())
        with problems.gathered():
            if not is_to_come:
                check_path(source, job_dir)
    problems.refuse()


def _check_function(key: str, path: Path, function: str) -> None:
    try:
        tree = ast.parse(read_bytes(path, MAX_CODE_BYTES, follow=True), str(path))
    except OSError as error:
        raise UserError(f"{key}: {path}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UserError(f"{key}: {path}{line}: not Python: {error.args[0]}") from None
    except (RecursionError, MemoryError):
        raise UserError(f"{key}: {path}: not Python: it is nested too deeply") from None
    if not any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in tree.body):
        names = set(_defined(tree.body))
        if function not in names:
            known = ", ".join(sorted(name for name in names if not name.startswith("_"))) or "none"
            raise UserError(f"{key}: {path} has no function {function}; what it defines: {known}")


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements give at the top level of a module."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for part in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _defined(handler.body)


def _check_module(key: str, module: str, folder: Path) -> None:
    first, path = module.partition(".")[0], folder.joinpath(*module.split("."))
    if (folder / first).is_dir() or (folder / f"{first}.py").is_file():
        of_package = path / ("__main__.py" if key == "module" else "__init__.py")
        places = [path.with_suffix(".py"), of_package]
        if not any(place.is_file() for place in places):
            raise UserError(f"{key}: there is no {module} in {folder}: neither {places[0]} nor {places[1]}")
    elif not _is_installed(first):
        raise UserError(f"{key}: there is no module {module}: neither in {folder} nor among the installed packages")


def _is_installed(module: str) -> bool:
    with suppress(ValueError):  # __main__
        return importlib.util.find_spec(module) is not None
    return False


def check_limits(wants: Resources, scheduler: Scheduler, report: ReportLine) -> None:
    """UserError with all that the scheduler's cluster or machine cannot give.

    Where the scheduler does not answer, that is reported, and the check is left to it.

    Raises:
        SchedulerError: There is no such scheduler here.
    """
    try:
        lacking = scheduler.limits()(wants)
    except AbsentError:
        raise
    except SchedulerError as error:
        report(f"warning: the partition and its limits are not checked: {error}")
        return
    if lacking:
        raise UserError("\n".join(f"resources: {text}" for text in lacking))
