"""JobModel: the one way to build the model of a job, from its job file or from its job-dir."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from hpc_train.config.estimator import Estimator
from hpc_train.config.job import JobConfig, validated
from hpc_train.config.overrides import overridden
from hpc_train.config.specs import HDF5Input, RunConfig
from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.config.yaml_loader import Document
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.loading.batch_source import ONE_THREAD, ReadResources
from hpc_train.data.loading.tf_dataset import InputContext, open_evaluation
from hpc_train.errors import UserError
from hpc_train.jobdir.paths import CODE
from hpc_train.lazy import keras
from hpc_train.model.builder import build_model

Config = TypeVar("Config", bound=BaseModel)


@dataclass(frozen=True)
class JobModel:
    """The model of a job, and what it takes to build it. Making one imports none of the job's code.

    Attributes:
        job: The job's name; None where a program described it.
        function: The model function, as `file.py:function` or `package.module:function`.
        code: The folder that goes first on the module search path.
        inputs: The first evaluation set and the training data, as far as they are shards.
        kind: What the records of the first evaluation set are called.
    """

    job: str | None
    function: str
    params: dict[str, Any]
    config: RunConfig
    code: Path
    inputs: tuple[HDF5Input, ...]
    kind: str

    @classmethod
    def of_job(cls, job: JobConfig, job_dir: Path, code: Path | None = None) -> JobModel:
        """The model of a job file's job; `code` is None where the job-dir records where the code is."""
        code = code_folder_of(job_dir, job.model) if code is None else code
        inputs, kind = (job.data.eval, job.data.train), job.eval_specs()[0].kind
        return cls(job.name, job.model, job.params, job.run_config(job_dir), code, inputs, kind)

    @classmethod
    def of_document(cls, document: Document, job_dir: Path) -> JobModel:
        """The model of the job that has run in `job_dir`, by a job file or by a program; `document` is its job.yaml.

        Raises:
            UserError: It is of another version, or names a model function that another process cannot import.
        """
        if "name" in document.value:
            return cls.of_job(job_in_job_dir(document), job_dir)
        described = _validated(document, _ProgramJob)
        _refuse_unreachable(described.model)
        inputs = tuple(source for source in (described.data.eval, described.data.train) if source is not None)
        kind = f"eval_{described.eval.name}" if described.eval.name else "eval"
        config, code = replace(described.run, model_dir=job_dir), code_folder_of(job_dir, described.model)
        return cls(None, described.model, described.params, config, code, inputs, kind)

    def load(self, name: str) -> Callable[..., Any]:
        """The function that the job names so; see load_function."""
        return load_function(name, self.code)

    def call(self) -> Any:
        """What the model function returns. Local."""
        return self.load(self.function)(dict(self.params))

    def estimator(self, warm_start_from: WarmStartSettings | None = None) -> Estimator:
        """The Estimator of the job. Its model function imports the job's code when it is called, not before."""

        def model_fn(params: dict[str, Any]) -> Any:
            return self.load(self.function)(params)

        model_fn.__qualname__ = self.function
        return Estimator(model_fn, self.config, self.params, warm_start_from)

    def build(
        self,
        source: HDF5Input | Callable[..., Any],
        shards: ShardSet | None,
        context: InputContext,
        steps: int | None = 1,
        resources: ReadResources = ONE_THREAD,
    ) -> tuple[keras.Model, Any]:
        """The model, built for the batches of `source`, whose element_spec is returned beside it. Local.

        Args:
            shards: Of `source`; None where it is a function.
            context, steps: As in open_evaluation. A batch is read only where element_spec leaves shapes open.

        Raises: As build_model and load_function.
        """
        with open_evaluation(source, shards, context, steps, resources, self.load) as opened:
            return build_model(self.estimator(), opened.dataset), opened.dataset.element_spec


def load_function(name: str, code_folder: Path) -> Callable[..., Any]:
    """The function that `file.py:function` or `package.module:function` names.

    `code_folder` goes first on the module search path, so that the file can import its neighbours.

    Raises:
        UserError: No such file, module or function. Whatever the module raises when it is imported.
    """
    place, _, function = name.rpartition(":")
    if str(code_folder) not in sys.path:
        sys.path.insert(0, str(code_folder))
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
        raise UserError(f"{name}: {place} has no function {function}")
    return found


def job_in_job_dir(document: Document, settings: Sequence[str] = ()) -> JobConfig:
    """The job of a job file, by the job.yaml that it has left, with `settings` (`KEY=VALUE`) laid over it.

    Raises:
        UserError: It is of another version of this package, or a setting is not allowed.
    """
    return _validated(overridden(document, settings), JobConfig)


def code_folder_of(job_dir: Path, model: str) -> Path:
    """Where the job's code is: the copy that hpc-train submit has made, else the folder of the model's file."""
    if (job_dir / CODE).is_dir():
        return job_dir / CODE
    file = model.rpartition(":")[0]
    return Path(file).parent if file.endswith(".py") else Path.cwd()


def _validated(document: Document, kind: type[Config]) -> Config:
    try:
        return validated(document, kind)
    except UserError as error:
        if document.overrides:
            raise
        why = "another version of hpc_train has written it, or it was changed since"
        raise UserError(f"{error}\n{document.path}: cannot be used as the description of a job; {why}") from None


def _only_shards(source: Any) -> Any:
    return None if isinstance(source, str) else source


_Shards = Annotated[HDF5Input | None, BeforeValidator(_only_shards)]
"""An input; a function, which is described by a text, counts as none."""


def _anywhere(run: Any) -> Any:
    """A job-dir may have moved since."""
    return {**run, "model_dir": "."} if isinstance(run, dict) else run


class _Inputs(BaseModel):
    train: _Shards = None
    eval: _Shards = None


class _Evaluation(BaseModel):
    name: str | None = None


class _ProgramJob(BaseModel):
    """What building the model of a program's job takes; see training/job_description.describe."""

    model: str
    params: dict[str, Any] = Field(default_factory=dict)
    data: _Inputs = Field(default_factory=_Inputs)
    run: Annotated[RunConfig, BeforeValidator(_anywhere)]
    eval: _Evaluation = Field(default_factory=_Evaluation)


def _refuse_unreachable(model: str) -> None:
    """UserError where a program's model function cannot be imported by another process."""
    module, _, name = model.rpartition(":")
    if module == "__main__" or "<" in name or "." in name:
        why = "the program that was started" if module == "__main__" else "another function or class"
        raise UserError(
            f"the job's model function is {model}, inside {why}, where this command cannot import it; give the job an "
            "exporter, move the function to the top of a module, or use a job file"
        )
