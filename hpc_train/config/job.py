"""JobConfig: one job file, validated whole.

name: fashion_mnist
model: model.py:build_model          # file:function beside the job file, package.module:function, or {builtin: …}
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from hpc_train.arguments import check_path, check_texts, checked_arguments
from hpc_train.config.builtin_model import BuiltinModel, ModelSection, TabularModel
from hpc_train.config.diagnostics import Mistake, mistake_at, refuse, validated
from hpc_train.config.ensemble import EnsembleSection
from hpc_train.config.exporters import ExportersSection, refuse_same_names
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.job_schema import mistakes_of_schema, with_schema
from hpc_train.config.overrides import overridden
from hpc_train.config.references import Kind, names_in, renamed
from hpc_train.config.resources import ResourcesSection
from hpc_train.config.run_config import RunConfig, RunOptions
from hpc_train.config.secrets import masked
from hpc_train.config.specs import KEPT_IN_SYNC, EvalInput, EvalOptions, EvalSpec, EvalTimes, TrainOptions, TrainSpec
from hpc_train.config.table_schema import read_schema
from hpc_train.config.tune.section import TuneSection
from hpc_train.config.types import STRATEGIES, STRICT, Name
from hpc_train.config.validation import specification
from hpc_train.config.warm_start import WarmStart
from hpc_train.config.yaml_loader import Document, read_yaml
from hpc_train.errors import UserError
from hpc_train.text import visible

MODULES_IN_USE = ("h5py", "horovod", "hpc_train", "keras", "mpi4py", "numpy", "tensorflow")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSection(_Section):
    """`data:`: what to train on and what to evaluate on."""

    train: HDF5Input
    eval: EvalInput


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvalSection(EvalOptions):
    """`eval:`: EvalSpec's options and exporters."""

    exporters: ExportersSection = ()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FurtherEvalSection(EvalTimes):
    """One of `evals:`, further evaluation sets by name: its data, EvalSpec's options and exporters."""

    data: EvalInput
    exporters: ExportersSection = ()


@specification
class JobConfig(_Section):
    """One job file, as load_job gives it. Paths in it are relative to the file's folder; here they are absolute.

    Attributes:
        name: Names the job.
        model: The model function, as `file.py:function` or `package.module:function`, or a built-in model, whose schema
            has been read.
        params: Handed to the function.
        data, run, train, eval, evals, warm_start_from, resources, tune, ensemble: The sections of the file; see
            docs/job_file.md.

    Raises:
        UserError: With every mistake.
    """

    name: Name
    model: ModelSection
    params: dict[str, Any] = Field(default_factory=dict)
    data: DataSection
    run: RunOptions = Field(default_factory=RunOptions)
    train: TrainOptions = Field(default_factory=TrainOptions, validate_default=True)
    eval: EvalSection = Field(default_factory=EvalSection)
    evals: dict[Name, FurtherEvalSection] = Field(default_factory=dict)
    warm_start_from: WarmStart = None
    resources: ResourcesSection = Field(default_factory=ResourcesSection)
    tune: TuneSection | None = None
    ensemble: EnsembleSection | None = None
    _schema_file: Path | None = PrivateAttr(None)

    @property
    def schema_file(self) -> Path | None:
        """Where load_job has read the schema of a built-in model."""
        return self._schema_file

    @field_validator("params")
    @classmethod
    def _have_a_function(cls, params: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if params and isinstance(info.data.get("model"), BuiltinModel):
            raise ValueError("params are for a model function; a built-in model has its options below `model`")
        return params

    @field_validator("train")
    @classmethod
    def _classes_are_counted(cls, train: TrainOptions, info: ValidationInfo) -> TrainOptions:
        model = info.data.get("model")
        if train.class_weight == "balanced" and model is not None and not isinstance(model, TabularModel):
            raise ValueError(
                "`class_weight: balanced` is for a built-in model with a schema, which counts classes; give a mapping"
            )
        return train

    @field_validator("train")
    @classmethod
    def _ends(cls, train: TrainOptions, info: ValidationInfo) -> TrainOptions:
        data = info.data.get("data")
        if data is not None and train.max_steps is None and data.train.epochs is None:
            raise ValueError("training would never end: give `train.max_steps` or `data.train.epochs`")
        return train

    @field_validator("train")
    @classmethod
    def _keeps_what_there_is(cls, train: TrainOptions, info: ValidationInfo) -> TrainOptions:
        run, data = info.data.get("run"), info.data.get("data")
        if train.keep_global_batch and run is not None and run.strategy == "async":
            raise ValueError(KEPT_IN_SYNC)
        if train.keep_global_batch and data is not None and data.train.bucket_by is not None:
            raise ValueError(
                "`train.keep_global_batch` and `data.train.bucket_by`, by which the order of rows depends on "
                "`batch_size`, exclude each other"
            )
        return train

    def masked(self) -> JobConfig:
        """The same without the values of `resources.environment`."""
        environment = masked(self.resources.environment or {})
        return self.model_copy(update={"resources": self.resources.model_copy(update={"environment": environment})})

    def train_spec(self) -> TrainSpec:
        """The TrainSpec that `data.train` and `train` describe."""
        return TrainSpec(input_fn=self.data.train, **own_fields(TrainOptions, self.train))

    @field_validator("evals")
    @classmethod
    def _names_are_distinct(cls, evals: dict[str, FurtherEvalSection], info: ValidationInfo) -> Any:
        main = info.data.get("eval")
        if main is not None:
            if main.name in evals:
                raise ValueError(f"`eval.name` is {main.name}, too; give each evaluation a name of its own")
            refuse_same_names([e for section in (main, *evals.values()) for e in section.exporters])
        return evals

    def eval_specs(self) -> list[EvalSpec]:
        """The EvalSpecs that `data.eval` with `eval`, and `evals` describe."""
        first = own_fields(EvalOptions, self.eval)
        specs = [EvalSpec(input_fn=self.data.eval, exporters=self.eval.exporters, **first)]
        for name, section in self.evals.items():
            own = own_fields(EvalTimes, section)
            specs.append(EvalSpec(input_fn=section.data, name=name, exporters=section.exporters, **own))
        return specs

    def run_config(self, model_dir: Path) -> RunConfig:
        """The RunConfig that `run` describes, in `model_dir`."""
        return RunConfig(model_dir=model_dir, **own_fields(RunOptions, self.run))


def own_fields(kind: type, options: Any) -> dict[str, Any]:
    """The values that `options` has of the fields of the dataclass `kind`."""
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(kind)}


@checked_arguments
def load_job(path: str | Path, settings: Sequence[str] = (), data_root: str | Path | None = None) -> JobConfig:
    """Reads and validates a job file of a model.

    Args:
        path: The job file.
        settings: `KEY=VALUE` each, laid over the file; VALUE is YAML.
        data_root: The folder that relative shards are relative to, if it is not the job file's.

    Raises:
        UserError: With every mistake of the file, each on a line of its own: file, line, what was given, what is
            allowed and the nearest valid name.
    """
    check_path("load_job", "path", path, "a job file")
    check_texts("load_job", "settings", settings)
    check_path("load_job", "data_root", data_root, "a folder", optional=True)
    path = Path(path)
    return job_in(overridden(read_yaml(path), settings), None if data_root is None else Path(data_root))


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
    placed = _with_absolute_paths(job, folder, (data_root or folder).absolute())
    return _with_schema(document, placed) if isinstance(placed.model, TabularModel) else placed


def _with_schema(document: Document, job: JobConfig) -> JobConfig:
    """`job`, of a built-in model, with its schema, which is read here."""
    assert isinstance(job.model, TabularModel)
    given = job.model.schema
    schema = read_schema(given) if isinstance(given, Path) else given
    problems = [
        mistake_at(document, at, f"{'.'.join(map(str, at))}: {text}") for at, text in mistakes_of_schema(job, schema)
    ]
    if problems:
        refuse(document.path, problems)
    found = with_schema(job, schema)
    found._schema_file = given if isinstance(given, Path) else None
    return found


def strategy_in(path: Path, settings: Sequence[str] = ()) -> str:
    """The `run.strategy` of a job file, which decides how MPI is started; "sync" where it cannot be read.

    The chief reads the whole of it, and reports what is wrong, once it can reach all ranks.
    """
    try:
        document = overridden(read_yaml(path), settings).value
    except UserError:
        return "sync"
    run = document.get("run") if isinstance(document, dict) else None
    name = run.get("strategy") if isinstance(run, dict) else None
    return name if isinstance(name, str) and name in STRATEGIES else "sync"


def _outside(document: Document, job: JobConfig) -> list[Mistake]:
    """What names code outside the job file's folder: a job runs what is in it, or installed modules."""
    problems = []
    model = job.model
    if isinstance(model, TabularModel) and isinstance(model.schema, Path) and _leads_out(model.schema):
        at = ("model", "schema")
        text = f"{str(model.schema)!r} is not allowed; allowed: a file in the job file's folder, which submit copies"
        problems.append(mistake_at(document, at, f"model.schema: {text}"))
    for location, kind, name in names_in(job.model_dump(mode="json")):
        file = Path(name.rpartition(":")[0])
        if kind != "function" or file.suffix != ".py":
            continue
        if _leads_out(file):
            allowed = "a file in the job file's folder, or an installed package.module:function"
            text = f"{name!r} is not allowed; allowed: {allowed}"
        elif file.stem in MODULES_IN_USE or file.stem in sys.stdlib_module_names:
            text = f"a file called {file.name} hides the module {file.stem}; rename it"
        else:
            continue
        problems.append(mistake_at(document, location, f"{'.'.join(map(str, location))}: {text}"))
    return problems


def _leads_out(path: Path) -> bool:
    return path.is_absolute() or ".." in path.parts


def _with_absolute_paths(job: JobConfig, folder: Path, data_root: Path) -> JobConfig:
    def absolute(kind: Kind, name: str) -> str:
        if kind == "shard":
            return str(Path(glob.escape(str(data_root))) / name)
        if kind != "function":
            return str((data_root if kind == "source" else folder) / Path(name).expanduser())
        file, _, rest = name.rpartition(":")
        return f"{folder / file}:{rest}" if file.endswith(".py") else name

    try:
        placed = JobConfig.model_validate(renamed(job.model_dump(mode="json"), absolute))
    except ValidationError:
        text = "a job cannot be in a folder of this name; allowed: names without line breaks"
        raise UserError(f"{visible(str(folder))}: {text}") from None
    # What the file leaves out of `resources` comes from the tier; after a round through JSON all of it would be given.
    return placed.model_copy(update={"resources": job.resources})
