"""How an ensemble is begun, or opened to go on: it is a study, whose trials are the members.

Its `tune` is made here, and recorded with the settings of study.json, as is `ensemble` with the full path of its study:
what was decided once stays, also where the study that gave parameters goes on, or is removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.diagnostics import Mistake, mistake_at, refuse
from hpc_train.config.ensemble import EnsembleSection
from hpc_train.config.job import JobConfig, job_in
from hpc_train.config.overrides import overridden
from hpc_train.config.settings import settings_of
from hpc_train.config.tune.space import Point
from hpc_train.config.tune.trial_settings import point_settings
from hpc_train.config.yaml_loader import Document, read_yaml
from hpc_train.errors import UserError
from hpc_train.jobs.record.job_dirs import DEFAULT_ROOT
from hpc_train.telemetry.units import counted
from hpc_train.tuning.begin import StudyRequest, asked_otherwise, begin_study, open_study
from hpc_train.tuning.search.folder import StudyFolder, StudySettings, described, differences
from hpc_train.tuning.search.state import Trial
from hpc_train.tuning.search.study import Study

SUFFIX = "_ensemble"
"""Of the folder of an ensemble, behind the job's name, where nobody says otherwise."""
SEEDS: dict[str, tuple[str, ...]] = {
    "seed": ("run.tf_random_seed", "data.train.seed"),
    "rows": ("data.train.bootstrap",),
    "params": (),
}
"""Keys of the job file that get a seed of each member's own, by what varies."""
LARGEST_SEED = 2**31 - 1
MOST_FAILED = 3
"""Members that have failed and are replaced by others, of other seeds; one more, and the ensemble has failed."""
_SECTION = TypeAdapter(EnsembleSection)


@dataclass(frozen=True)
class Ensemble:
    """The ensemble in a folder, as far as it has come.

    Attributes:
        study: Whose trials are its members, or whose only one has them as checkpoints.
    """

    study: Study
    settings: StudySettings
    section: EnsembleSection

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.study.folder.path

    def trained(self) -> list[Trial]:
        """The runs that have come to their end, by number; as many as there are to be."""
        return list(self.study.state.of("completed"))[: self.section.runs]

    def missing(self) -> int:
        """How many are not there yet."""
        return self.section.runs - len(self.trained())


def begin_ensemble(request: StudyRequest) -> tuple[StudyFolder, bool]:
    """Makes the folder of an ensemble, or finds the one that was made of the same job file; and whether it is new.

    Raises:
        UserError: With all that is wrong; nothing was written.
    """
    job_file = request.job_file.absolute()
    document = overridden(read_yaml(job_file), request.settings)
    job = job_in(document)
    section = _section_of(document, job)
    own = _settings_of_one_run(document, job, section)
    if own:
        document = overridden(document, own)
        job = job_in(document)
    place = request.folder or Path(DEFAULT_ROOT, f"{job.name}{SUFFIX}")
    folder = StudyFolder(place.absolute())
    if folder.is_one():
        _check_same(folder, job, section, request)
        return folder, False
    source = _study_of(document, section)
    tune = _study_section(document, job, section, source)
    written = (f"ensemble={_SECTION.dump_json(section).decode()}", f"tune={json.dumps(tune)}")
    return begin_study(StudyRequest(job_file, folder.path, (*request.settings, *own, *written), request.ranks))


def open_ensemble(folder: StudyFolder) -> Ensemble:
    """The ensemble in a folder.

    Raises:
        UserError: There is none, or it cannot be read.
    """
    section = _written(folder.settings())
    if section is None:
        raise UserError(f"{folder.path}: is a study, and no ensemble; hpc-train tune {folder.path} goes on with it")
    study, settings = open_study(folder)
    return Ensemble(study, settings, section)


def _written(settings: StudySettings) -> EnsembleSection | None:
    """The section that was recorded; None: the study is none of an ensemble."""
    try:
        return None if settings.ensemble is None else _SECTION.validate_json(settings.ensemble)
    except ValueError:
        return None


def _section_of(document: Document, job: JobConfig) -> EnsembleSection:
    """`ensemble` of the job file, with the full path of its study."""
    section = job.ensemble
    if section is None:
        raise UserError(f"{document.path}: has no `ensemble`, which says how many members there are and how they vary")
    if isinstance(job.model, GBDTModel):
        text = "an ensemble is one of Keras models; trees (builtin: gbdt) are one already: give `max_steps` more rounds"
        refuse(document.path, [mistake_at(document, ("ensemble",), f"ensemble: {text}")])
    if section.study is None:
        return section
    place = document.path.absolute().parent / Path(section.study).expanduser()
    return _SECTION.validate_python({**_SECTION.dump_python(section), "from": str(place)})


def _settings_of_one_run(document: Document, job: JobConfig, section: EnsembleSection) -> tuple[str, ...]:
    """What is laid over a job whose checkpoints are the members, so that they are there at its end."""
    if section.combine == "mean":
        return ()
    try:
        if job.train.max_steps is None:
            raise ValueError("members are counted in steps; give `train.max_steps`")
        if job.train.early_stopping or job.data.train.epochs is not None:
            raise ValueError("its run comes to `train.max_steps`; leave `early_stopping` and `epochs` out")
        first, second, *_ = section.snapshots(job.train.max_steps, job.run.learning_rate_cycle)
    except ValueError as error:
        refuse(document.path, [mistake_at(document, ("ensemble", "combine"), f"ensemble.combine: {error}")])
    apart = second - first
    given = job.run.save_checkpoints_steps
    every = given if given is not None and apart % given == 0 else apart
    return (f"run.save_checkpoints_steps={every}", "run.save_checkpoints_secs=null", "run.keep_checkpoint_max=0")


def _study_of(document: Document, section: EnsembleSection) -> tuple[Study, list[Trial]] | None:
    """The study that gives parameters, and the trials that do, best first."""
    if section.study is None:
        return None

    def wrong(key: str, text: str) -> None:
        refuse(document.path, [mistake_at(document, ("ensemble", key), f"ensemble.{key}: {text}")])

    folder = StudyFolder(Path(section.study))
    if not folder.is_one():
        wrong("from", f"{section.study} is no study; allowed: the folder of one, as hpc-train tune makes it")
    study = open_study(folder)[0]
    found = [trial for trial in study.state.of("completed") if trial.value is not None]
    found.sort(key=lambda trial: (trial.value or 0.0) * (-1 if study.goal.mode == "max" else 1))
    if len(found) < section.trials:
        has = f"{section.study} has {counted(len(found), 'completed trial')}"
        wrong(
            "from" if section.best is None else "best",
            f"{has}, fewer than {section.trials}; let it go on, or take fewer",
        )
    best = found[: section.trials]
    for trial in best:
        if trial.lineage is not None:
            text = f"trial {trial.name} of {section.study} is a fork: its values changed while it trained, and a member"
            wrong("from", f"{text} has one point; take a study without `population`")
    return study, best


def _study_section(
    document: Document, job: JobConfig, section: EnsembleSection, source: tuple[Study, list[Trial]] | None
) -> dict[str, Any]:
    """`tune` of the study whose trials are the members."""
    seeds = [key for name in section.vary for key in SEEDS[name]]
    points: list[Point] = [{}]
    space: dict[str, Any] = {}
    goal = {"metric": job.run.best_metric or "loss", "mode": job.run.best_mode}
    if source is not None:
        study, trials = source
        points = [{key: value for key, value in trial.point.items() if key not in seeds} for trial in trials]
        space |= study.job.document.value["tune"]["space"]
        goal = study.job.document.value["tune"]["goal"]
    mistakes = list(dict.fromkeys(m for point in points for m in _mistakes_with(document, job, point, seeds)))
    if mistakes:
        refuse(document.path, mistakes)
    replaced = MOST_FAILED if seeds else 0
    first = [points[number % len(points)] for number in range(section.runs + replaced)]
    return {
        "goal": goal,
        "space": space | {key: {"int": [0, LARGEST_SEED]} for key in seeds},
        "max_trials": section.runs,
        "max_failed_trials": replaced,
        "seed": section.seed,
        "first": first if source is not None else [],
    }


def _mistakes_with(document: Document, job: JobConfig, point: Point, seeds: list[str]) -> Iterator[Mistake]:
    """What is wrong with the job where it has the values of a point, and seeds."""
    where = ("ensemble", "from") if point else ("ensemble", "vary")
    given = {**point, **dict.fromkeys(seeds, 0)}
    for name in dict.fromkeys(key.split(".")[1] for key in point if key.startswith("params.")):
        if name not in job.params:
            text = f"the study varies params.{name}, which the job does not have; give it below `params`, too"
            yield mistake_at(document, where, f"{'.'.join(where)}: {text}")
    try:
        job_in(overridden(document, point_settings(given)))
    except UserError as error:
        for line in str(error).splitlines():
            yield mistake_at(document, where, f"{'.'.join(where)}: {line.partition(': ')[2]}")


def _check_same(folder: StudyFolder, job: JobConfig, section: EnsembleSection, request: StudyRequest) -> None:
    """UserError where the ensemble in `folder` is one of another job."""
    before = folder.settings()
    written = _written(before)
    if written is None:
        raise UserError(f"{folder.path}: is a study, and no ensemble; --ensemble names another folder")

    def own(values: Any) -> dict[str, str]:
        return {key: value for key, value in values.items() if key.split(".")[0] != "tune"}

    found = differences(own(before.job), own(described(job)))
    found += differences(*(settings_of({"ensemble": _SECTION.dump_python(one)}) for one in (written, section)))
    if told := asked_otherwise(before, request, found):
        raise UserError(
            f"{folder.path}: is an ensemble of another job: {told}; to go on with it: hpc-train ensemble "
            f"{folder.path}; for a new one, --ensemble names another folder"
        )
