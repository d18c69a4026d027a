"""JobConfig: one job file, validated whole.

name: fashion_mnist
model: model.py:build_model          # file:function beside the job file, or package.module:function
params: {learning_rate: 0.001}
data:
  train: {shards: data/train-*.h5, features: image, label: label, batch_size: 64, shuffle: global, seed: 1}
  eval:  {shards: data/test-*.h5,  features: image, label: label, batch_size: 256}
run:   {strategy: sync, save_checkpoints_steps: 200, keep_checkpoint_max: 5}
train: {max_steps: 2000}
eval:  {steps: null, throttle_secs: 0, exporters: {final: {}}}
resources: {tier: BASIC}
"""

from __future__ import annotations

import dataclasses
import glob
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.config.mistakes import Mistake, explain, mistake_at, mistakes_of_yaml, refuse
from hpc_train.config.overrides import overridden
from hpc_train.config.resources import ResourcesSection
from hpc_train.config.specs import (
    FUNCTION_PATTERN,
    EvalOptions,
    EvalSpec,
    FinalExporter,
    HDF5Input,
    Name,
    RunConfig,
    RunOptions,
    TrainOptions,
    TrainSpec,
    read_once,
)
from hpc_train.config.yamlfile import Document, Location, read_yaml
from hpc_train.errors import UserError

_TAKEN = ("h5py", "horovod", "hpc_train", "keras", "mpi4py", "numpy", "tensorflow")

Config = TypeVar("Config", bound=BaseModel)


def hides_no_module(function: str) -> str:
    """ValueError where the file of `file.py:function` has the name of a module that this package needs."""
    file = function.rpartition(":")[0]
    if file.endswith(".py") and (Path(file).stem in _TAKEN or Path(file).stem in sys.stdlib_module_names):
        raise ValueError(f"a file called {Path(file).name} hides the module {Path(file).stem}; rename it")
    return function


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FinalExporterSection(_Section):
    """`final: {}`: export when training has ended."""


class ExportersSection(_Section):
    """Exporters by name."""

    final: FinalExporterSection | None = None


class DataSection(_Section):
    """`data:`: what to train on and what to evaluate on."""

    train: HDF5Input
    eval: HDF5Input

    @field_validator("train", "eval")
    @classmethod
    def _map_fn_hides_no_module(cls, source: HDF5Input) -> HDF5Input:
        if isinstance(source.map_fn, str):
            hides_no_module(source.map_fn)
        return source

    @field_validator("eval")
    @classmethod
    def _is_read_once(cls, source: HDF5Input) -> HDF5Input:
        read_once(source)
        return source


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class EvalSection(EvalOptions):
    """`eval:`: EvalSpec's options and exporters."""

    exporters: ExportersSection = dataclasses.field(default_factory=ExportersSection)


class JobConfig(_Section):
    """One job file. Paths in it are relative to the file's folder; here they are absolute."""

    name: Name
    model: Annotated[str, Field(pattern=FUNCTION_PATTERN)]
    params: dict[str, Any] = Field(default_factory=dict)
    data: DataSection
    run: RunOptions = Field(default_factory=RunOptions)
    train: TrainOptions = Field(default_factory=TrainOptions, validate_default=True)
    eval: EvalSection = Field(default_factory=EvalSection)
    resources: ResourcesSection = Field(default_factory=ResourcesSection)

    @field_validator("model")
    @classmethod
    def _hides_no_module(cls, model: str) -> str:
        return hides_no_module(model)

    @field_validator("train")
    @classmethod
    def _ends(cls, train: TrainOptions, info: ValidationInfo) -> TrainOptions:
        data = info.data.get("data")
        if data is not None and train.max_steps is None and data.train.epochs is None:
            raise ValueError("training would never end: give `train.max_steps` or `data.train.epochs`")
        return train

    def train_spec(self) -> TrainSpec:
        """The TrainSpec that `data.train` and `train` describe."""
        return TrainSpec(input_fn=self.data.train, **_own_fields(TrainOptions, self.train))

    def eval_spec(self) -> EvalSpec:
        """The EvalSpec that `data.eval` and `eval` describe."""
        exporters = (FinalExporter("final"),) if self.eval.exporters.final is not None else ()
        return EvalSpec(input_fn=self.data.eval, exporters=exporters, **_own_fields(EvalOptions, self.eval))

    def run_config(self, model_dir: Path) -> RunConfig:
        """The RunConfig that `run` describes, in `model_dir`."""
        return RunConfig(model_dir=model_dir, **_own_fields(RunOptions, self.run))


def _own_fields(kind: type, options: Any) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}


def load_job(path: str | Path, settings: Sequence[str] = (), data_root: Path | None = None) -> JobConfig:
    """Reads and validates a job file of a model.

    Args:
        settings: `KEY=VALUE` each, laid over the file; VALUE is YAML.
        data_root: The folder that relative shards are relative to, if it is not the job file's.

    Raises:
        UserError: With every mistake of the file, each on a line of its own: file, line, what was given, what is
            allowed and the nearest valid name.
    """
    path = Path(path)
    return job_in(overridden(read_yaml(path), settings), data_root)


def job_in(document: Document, data_root: Path | None = None) -> JobConfig:
    """The job of a model that `document` describes; as load_job."""
    path = document.path
    if not isinstance(document.value, dict):
        raise UserError(f"{path}:1: a job file is a mapping with the keys {', '.join(JobConfig.model_fields)}")
    if "module" in document.value and "model" not in document.value:
        raise UserError(
            f"{document.where(('module',))}: this job runs a program of its own; start it by `hpc-train submit {path}`"
        )
    job = validated(document, JobConfig, lambda found: _outside(document, found))
    folder = path.absolute().parent
    return _with_absolute_paths(job, folder, (data_root or folder).absolute())


def validated(document: Document, kind: type[Config], more: Callable[[Config], list[Mistake]] = lambda _: []) -> Config:
    """`document` as a `kind`; `more` finds what is wrong beyond its fields.

    Raises:
        UserError: With every mistake of the file.
    """
    problems = mistakes_of_yaml(document)
    try:
        found = kind.model_validate(document.value)
        problems += more(found)
    except ValidationError as error:
        problems += [explain(document, dict(e), kind, PATTERNS) for e in error.errors()]
    if problems:
        refuse(document.path, problems)
    return found


def strategy_in(path: Path, settings: Sequence[str] = ()) -> str:
    """The `run.strategy` of a job file, which decides how MPI is started; "sync" where it cannot be read.

    The chief reads the whole of it, and tells what is wrong, once all ranks can be told.
    """
    try:
        document = overridden(read_yaml(path), settings).value
    except UserError:
        return "sync"
    run = document.get("run") if isinstance(document, dict) else None
    return "async" if isinstance(run, dict) and run.get("strategy") == "async" else "sync"


PATTERNS: dict[Location, str] = {
    ("name",): "a letter, then letters, digits and underscores, 128 characters at most",
    ("model",): "file.py:function or package.module:function",
    ("module",): "the dotted name of a module, as in trainer.task",
    ("resources", "tier"): "capital letters, digits and underscores, as in BASIC or STANDARD_1",
    **{
        ("resources", name): "one word of letters, digits and _ . , @ + : / -"
        for name in ("partition", "account", "qos", "modules")
    },
    ("resources", "constraint"): "features of nodes, as in skylake or gpu&ib",
}
"""What the patterns of a job file's texts allow, in words."""


def _outside(document: Document, job: JobConfig) -> list[Mistake]:
    """What names code outside the job file's folder: a job runs what is in it, or installed modules."""
    named: dict[Location, str | None] = {("model",): job.model}
    named |= {("data", part, "map_fn"): getattr(job.data, part).map_fn for part in ("train", "eval")}
    problems = []
    for location, name in named.items():
        file = Path((name or "").rpartition(":")[0])
        if file.suffix == ".py" and (file.is_absolute() or ".." in file.parts):
            dotted = ".".join(map(str, location))
            allowed = "a file in the job file's folder, or an installed package.module:function"
            problems.append(mistake_at(document, location, f"{dotted}: {name!r} is not allowed; allowed: {allowed}"))
    return problems


def _with_absolute_paths(job: JobConfig, folder: Path, data_root: Path) -> JobConfig:
    def function(name: str) -> str:
        file, _, rest = name.rpartition(":")
        return f"{folder / file}:{rest}" if file.endswith(".py") else name

    def place(source: HDF5Input) -> HDF5Input:
        shards = tuple(str(Path(glob.escape(str(data_root))) / shard) for shard in source.shards)
        return dataclasses.replace(source, shards=shards, map_fn=source.map_fn and function(source.map_fn))

    data = DataSection(train=place(job.data.train), eval=place(job.data.eval))
    return job.model_copy(update={"model": function(job.model), "data": data})
