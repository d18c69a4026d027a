"""JobModel: the one way to build the model of a job, from its job file or from its job-dir."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel

from hpc_train.config.builtin_model import BuiltinModel, GBDTModel, KerasModel, TabularModel
from hpc_train.config.diagnostics import validated
from hpc_train.config.estimator import Estimator
from hpc_train.config.functions import PARAMS, call, check_model
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.job import JobConfig
from hpc_train.config.job_schema import schema_of
from hpc_train.config.overrides import overridden
from hpc_train.config.run_config import RunConfig
from hpc_train.config.table_schema import TableSchema, read_schema
from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.config.yaml_loader import Document
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.loading.batch_source import ONE_THREAD, ReadResources
from hpc_train.data.loading.tf_dataset import InputContext, open_evaluation
from hpc_train.distributed.building import building
from hpc_train.errors import UserError, did_you_mean
from hpc_train.jobdir.code_paths import absolute_in
from hpc_train.jobdir.paths import CODE, SCHEMA_FILE
from hpc_train.lazy import keras
from hpc_train.model.builder import build_model
from hpc_train.model.own_steps import Updates, updates_of
from hpc_train.model.program_job import ProgramJob, refuse_unreachable
from hpc_train.models.function import BuiltinModelFunction

Config = TypeVar("Config", bound=BaseModel)

imported_for: ContextVar[str | None] = ContextVar("imported_for", default=None)
"""The function for which a file or module is being imported."""


@dataclass(frozen=True)
class JobModel:
    """The model of a job, and what it takes to build it. Making one imports none of the job's code.

    Attributes:
        job: The job's name; None where a program described it.
        model: The model function, as `file.py:function` or `package.module:function`, or a built-in model.
        code: The folder that goes first on the module search path.
        inputs: The first evaluation set and, last, the training data, as far as they are shards.
        kind: What the records of the first evaluation set are called.
    """

    job: str | None
    model: str | BuiltinModel
    params: dict[str, Any]
    config: RunConfig
    code: Path
    inputs: tuple[HDF5Input, ...]
    kind: str

    @classmethod
    def of_job(cls, job: JobConfig | ProgramJob, job_dir: Path, code: Path | None = None) -> JobModel:
        """The model of a job; `code` is None where the job-dir records where the code is.

        Raises:
            UserError: The model function of a program is one that another process cannot import.
        """
        code = code_folder_of(job_dir, job.model) if code is None else code
        if isinstance(job, ProgramJob):
            if isinstance(job.model, str):
                refuse_unreachable(job.model)
            kind = f"eval_{job.eval.name}" if job.eval.name else "eval"
            return cls(None, job.model, job.params, replace(job.run, model_dir=job_dir), code, job.shards, kind)
        inputs, kind = (job.data.eval, job.data.train), job.eval_specs()[0].kind
        return cls(job.name, job.model, job.params, job.run_config(job_dir), code, inputs, kind)

    @property
    def name(self) -> str:
        """What the model is called in messages."""
        return self.model if isinstance(self.model, str) else f"builtin {self.model.builtin}"

    @property
    def schema(self) -> TableSchema | None:
        """Of a built-in model of a table."""
        return schema_of(self.model)

    def load(self, name: str) -> Callable[..., Any]:
        """The function that the job names so; see load_function."""
        return load_function(name, self.code)

    def call(self) -> Any:
        """What the model function returns. Local."""
        if isinstance(self.model, GBDTModel):
            raise UserError(f"{self.name}: is no Keras model; trees are evaluated and exported while they are trained")
        if isinstance(self.model, KerasModel):
            return BuiltinModelFunction(self.model)()
        function = self.load(self.model)
        try:
            check_model(function, self.params)
        except ValueError as error:
            raise UserError(f"model: {self.model}: {error}") from None
        with building():
            return call(function, dict(self.params), PARAMS)

    def estimator(self, warm_start_from: WarmStartSettings | None = None) -> Estimator:
        """The Estimator of the job. Its model function imports the job's code when it is called, not before."""

        def model_fn(params: dict[str, Any]) -> Any:
            return replace(self, params=params).call()

        model_fn.__qualname__ = self.name
        return Estimator(model_fn, self.config, self.params, warm_start_from)

    def build(
        self,
        source: HDF5Input | Callable[..., Any],
        shards: ShardSet | None,
        context: InputContext,
        steps: int | None = 1,
        resources: ReadResources = ONE_THREAD,
    ) -> tuple[keras.Model, Any, Updates]:
        """The model, built for the batches of `source`, their element_spec, and what a step would update. Local.

        Args:
            shards: Of `source`; None where it is a function.
            context, steps: As in open_evaluation. A batch is read only where element_spec leaves shapes open.

        Raises: As build_model and load_function.
        """
        with open_evaluation(source, shards, context, steps, resources, self.load) as opened:
            model = build_model(self.estimator(), opened.dataset)
            return model, opened.dataset.element_spec, updates_of(model, opened.dataset, self.name)


def load_function(name: str, code_folder: Path) -> Callable[..., Any]:
    """The function that `file.py:function` or `package.module:function` names.

    `code_folder` goes first on the module search path, so that the file can import its neighbours.

    Raises:
        UserError: No such file, module or function. Whatever the module raises when it is imported.
    """
    if str(code_folder) not in sys.path:
        sys.path.insert(0, str(code_folder))
    token = imported_for.set(name)
    try:
        return _load(name)
    finally:
        imported_for.reset(token)


def _load(name: str) -> Callable[..., Any]:
    place, _, function = name.rpartition(":")
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise UserError(f"{name}: there is no file {path}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        known = sys.modules.get(path.stem)
        if known is not None and getattr(known, "__file__", None) == str(path):
            module = known
        else:
            module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
            raise UserError(f"{name}: there is no module {place}") from None
    found: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(found):
        own = sorted(
            key for key, value in vars(module).items() if callable(value) and _is_public_of(module, key, value)
        )
        what = f"{did_you_mean(function, own)}it has {', '.join(own) or 'none'}"
        raise UserError(f"{name}: {place} has no function {function}; {what}")
    return found


def job_in_job_dir(document: Document, settings: Sequence[str] = ()) -> JobConfig | ProgramJob:
    """The job by the job.yaml that it has left, with `settings` (`KEY=VALUE`) laid over it; paths in it are absolute.

    Raises:
        UserError: It is of another version of this package, or a setting is not allowed.
    """
    found = _validated(overridden(document, settings), kind_of_job(document.value))
    described = found.model_dump(mode="json")
    placed = absolute_in(document.path.parent, described)
    found = found if placed == described else type(found).model_validate(placed)
    if isinstance(found.model, TabularModel) and isinstance(found.model.schema, Path):
        schema = read_schema(document.path.parent / SCHEMA_FILE, follow=False)
        return found.model_copy(update={"model": replace(found.model, schema=schema)})
    return found


def kind_of_job(described: Mapping[str, Any]) -> type[JobConfig | ProgramJob]:
    """Whether a job.yaml, or what `model_dump` made of it, is of a job file or of a program."""
    return JobConfig if "name" in described else ProgramJob


def code_folder_of(job_dir: Path, model: str | BuiltinModel) -> Path:
    """Where the job's code is: the copy that hpc-train submit has made, else the folder of the model's file."""
    if (job_dir / CODE).is_dir():
        return job_dir / CODE
    file = model.rpartition(":")[0] if isinstance(model, str) else ""
    return Path(file).parent if file.endswith(".py") else Path.cwd()


def _validated(document: Document, kind: type[Config]) -> Config:
    try:
        return validated(document, kind)
    except UserError as error:
        if document.overrides:
            raise
        why = "another version of hpc_train has written it, or it was changed since"
        raise UserError(f"{error}\n{document.path}: cannot be used as the description of a job; {why}") from None


def _is_public_of(module: ModuleType, name: str, value: object) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
