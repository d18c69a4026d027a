"""ensemble: an ensemble from a program of one's own, and what became of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_train.arguments import checked_arguments
from hpc_train.ensembles.begin import Ensemble, begin_ensemble, open_ensemble
from hpc_train.ensembles.combine import results_in
from hpc_train.ensembles.train import train_members
from hpc_train.errors import JobEndedError
from hpc_train.outcome import EXIT_FAILED
from hpc_train.tuning.drive import DriveRequest
from hpc_train.tuning.execution.driver import Listeners
from hpc_train.tuning.tune import check_end, checked_request, print_line


@dataclass(frozen=True)
class MemberResult:
    """One member of an ensemble.

    Attributes:
        trial, step: The checkpoint that it is.
        job_dir: Of its run.
        scores: Its metrics.
    """

    trial: int
    step: int
    job_dir: Path
    scores: Mapping[str, float | None]


@dataclass(frozen=True)
class EnsembleResult:
    """What an ensemble has come to.

    Attributes:
        folder: Of the ensemble.
        members: In their order.
        export: The folder of the SavedModel and model.keras.
        scores: The metrics of that model.
        evaluation, rows: The evaluation set that they are of, and how many rows it has.
    """

    folder: Path
    members: tuple[MemberResult, ...]
    export: Path
    scores: Mapping[str, float | None]
    evaluation: str
    rows: int


@checked_arguments
def ensemble(
    job_file: str | Path,
    folder: str | Path | None = None,
    settings: Sequence[str] = (),
    ranks: int | None = None,
    parallel: int | None = None,
    keep_ranks: bool = True,
) -> EnsembleResult:
    """Trains the ensemble that a job file describes below `ensemble`, and exports its model. Local; starts ranks.

    What is there already is not trained again. The members are combined in a process of its own.

    Args:
        job_file: The job file.
        folder: In which all is kept; None: runs/<name of the job>_ensemble.
        settings: `KEY=VALUE` each, laid over the file, as `ensemble.members=5`.
        ranks: Of each member; None: as `resources` says.
        parallel: Members at once; None: as many as there are cores and GPUs for.
        keep_ranks: Whether the ranks of a slot stay for its next member; else each starts its own.

    Returns:
        `folder`; `members`, each with `trial`, `step`, `job_dir` and `scores`; `export`, the folder of the model, its
        `scores` by metric, the `evaluation` set that they are of, and its `rows`.

    Writes, in the folder: what tune writes, export/ensemble/ and ensemble.json.

    Raises:
        UserError: With all mistakes of the job file; the folder is of another ensemble.
        JobEndedError: Too many members have failed, or they cannot be combined.
        SystemExit: With code 3, 4 or 5, after SIGUSR1, SIGTERM or SIGINT, once all members have saved.
    """
    request = checked_request("ensemble", job_file, {"folder": folder}, settings, ranks, parallel, keep_ranks)
    place, is_new = begin_ensemble(request)
    found = open_ensemble(place)
    code = train_members(found, DriveRequest(parallel, keep_ranks, is_new), Listeners(print_line))
    check_end(found.study, code)
    return _result_of(found)


def _result_of(found: Ensemble) -> EnsembleResult:
    if (results := results_in(found)) is None:
        command = [sys.executable, "-m", "hpc_train", "ensemble", str(found.path)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        results = results_in(found)
        if done.returncode != 0 or results is None:
            why = (done.stderr.strip().splitlines() or ["nothing was said"])[-1].removeprefix("hpc-train: error: ")
            raise JobEndedError(f"{found.path}: its members cannot be combined: {why}", done.returncode or EXIT_FAILED)
    members = tuple(
        MemberResult(member.trial, member.step, found.study.folder.trials / f"{member.trial:04d}", scores)
        for member, scores in zip(results.members, results.each, strict=True)
    )
    export = found.path / results.export
    return EnsembleResult(found.path, members, export, results.mean, results.evaluation, results.rows)
