"""ProgramJob: the job of a program that called train_and_evaluate, by the job.yaml that it has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from hpc_train.config.builtin_model import BuiltinModel, model_from
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.job import own_fields
from hpc_train.config.run_config import RunConfig
from hpc_train.config.specs import EvalOptions, EvalSpec, EvalTimes
from hpc_train.errors import UserError
from hpc_train.jobdir.code_paths import FUNCTION

Load = Callable[[str], Callable[..., Any]]


def _anywhere(run: Any) -> Any:
    """A job-dir may have moved since."""
    return {**run, "model_dir": "."} if isinstance(run, dict) else run


def _without_objects(section: Any) -> Any:
    """Hooks and exporters are objects of the program, of which job.yaml has the names alone."""
    if not isinstance(section, dict):
        return section
    return {key: value for key, value in section.items() if key not in ("hooks", "exporters")}


Input = HDF5Input | Annotated[str, Field(pattern=f"^{FUNCTION}")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Inputs(_Section):
    train: Input
    eval: Input


class _FurtherEvaluation(_Section):
    data: Input
    times: EvalTimes


def _further(section: Any) -> Any:
    if not isinstance(section, dict) or "times" in section:
        return section
    return {"data": section.get("data"), "times": {k: v for k, v in _without_objects(section).items() if k != "data"}}


class ProgramJob(_Section):
    """What evaluating and exporting take of training/job_description.describe."""

    model: Annotated[str | BuiltinModel, BeforeValidator(lambda m: m if isinstance(m, str) else model_from(m))]
    params: dict[str, Any] = Field(default_factory=dict)
    data: _Inputs
    run: Annotated[RunConfig, BeforeValidator(_anywhere)]
    train: dict[str, Any] = Field(default_factory=dict)
    eval: Annotated[EvalOptions, BeforeValidator(_without_objects)] = EvalOptions()
    evals: dict[str, Annotated[_FurtherEvaluation, BeforeValidator(_further)]] = Field(default_factory=dict)
    warm_start_from: Any = None

    @property
    def shards(self) -> tuple[HDF5Input, ...]:
        """The first evaluation set and the training data, as far as they are shards."""
        return tuple(source for source in (self.data.eval, self.data.train) if isinstance(source, HDF5Input))

    def eval_specs(self, load: Load) -> list[EvalSpec]:
        """The evaluation sets, without hooks and exporters; functions that read data are found by `load`.

        Raises:
            UserError: A function cannot be reached from another process. What `load` raises.
        """
        options = own_fields(EvalOptions, self.eval)
        specs = [EvalSpec(input_fn=_source(self.data.eval, load), **options)]
        for name, section in self.evals.items():
            times = own_fields(EvalTimes, section.times)
            specs.append(EvalSpec(input_fn=_source(section.data, load), name=name, **times))
        return specs


def _source(source: Input, load: Load) -> Any:
    if isinstance(source, HDF5Input):
        return source
    name = source.removeprefix(FUNCTION)
    refuse_unreachable(name, "input_fn")
    return load(name)


def refuse_unreachable(function: str, what: str = "model function") -> None:
    """UserError where a program's function cannot be imported by another process."""
    place, _, name = function.rpartition(":")
    if place == "__main__" or "<" in name or "." in name:
        why = "a session without a file" if place == "__main__" else "another function or class"
        raise UserError(
            f"the job's {what} is {function}, inside {why}, where this command cannot import it; move the function to "
            "the top of a file, give the job an exporter, or use a job file"
        )
