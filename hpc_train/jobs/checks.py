"""What can be known to go wrong with a job before it is queued: its data, its files, its resources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hpc_train.config.cluster import words_of
from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig
from hpc_train.config.references import names_of
from hpc_train.config.resources import Resources
from hpc_train.data.hdf5.shards import matches
from hpc_train.data.staging import folder
from hpc_train.errors import SchedulerError, UserError
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobs.problems import Problems
from hpc_train.jobs.schedulers.base import AbsentError, ReportLine, Scheduler
from hpc_train.strategies import strategy_of
from hpc_train.telemetry.units import counted
from hpc_train.training.data_check import checked_shards
from hpc_train.warm_start.source import check_path


def check_ranks(job: JobConfig | ProgramConfig, ranks: int) -> None:
    """UserError where `ranks` ranks do not fit the job's strategy or cluster, or its shards cannot be read by them."""
    if isinstance(job, ProgramConfig):
        if (problem := why_not_on(job, ranks)) is not None:
            raise UserError(problem)
        return
    readers = strategy_of(job.run.strategy).roles(ranks, job.run).readers
    checked_shards(readers, job.train_spec(), job.eval_specs(), job.run.accumulate_steps)


def check_nodes(job: JobConfig | ProgramConfig, wants: Resources, report: ReportLine) -> None:
    """Reports where ranks among which a copy of the model is divided would be on several nodes."""
    mesh = None if isinstance(job, ProgramConfig) else job.run.mesh
    if mesh is None or wants.nodes == 1 or wants.ranks_per_node % mesh.model == 0:
        return
    report(
        f"warning: run.mesh: the {mesh.model} ranks of a copy of the model exchange in each layer, but with "
        f"resources.ranks_per_node: {wants.ranks_per_node} some are on several nodes; a multiple of {mesh.model} keeps "
        "them on one"
    )


def check_roles(job: JobConfig | ProgramConfig, wants: Resources) -> None:
    """UserError where roles with nodes of their own are not those of the job's strategy or cluster.

    The ranks of a role have to be as many as the strategy has, from the first one that the role has.
    """
    if not wants.roles:
        return
    ranks = dict(zip(wants.roles, (one.ranks for one in wants.components), strict=True))
    if isinstance(job, ProgramConfig):
        if job.cluster is not None:
            _check_cluster(job.cluster, ranks)
        return
    if "evaluator" in ranks:
        raise UserError("resources.evaluator: is for the cluster of a program; `slurm/evaluate.sh` evaluates this job")
    if ranks.get("chief", 1) != 1:
        raise UserError(f"resources.chief: has {ranks['chief']} ranks, and rank 0 alone is the chief; allowed: 1")
    if job.run.strategy == "async":
        servers = ranks.get("chief", 0) + ranks.get("parameter_servers", 0)
        if servers != job.run.parameter_servers:
            raise UserError(
                f"resources: chief and parameter_servers have {counted(servers, 'rank')}, and run.parameter_servers is "
                f"{job.run.parameter_servers}; allowed: as many (the first server is the chief)"
            )
    elif "parameter_servers" in ranks:
        raise UserError(
            "resources.parameter_servers: run.strategy: sync has none; leave it out, or take strategy: async"
        )


def _check_cluster(cluster: Mapping[str, int], ranks: Mapping[str, int]) -> None:
    names = {"parameter_servers": "ps", "workers": "worker"}
    given = {names.get(role, role): count for role, count in ranks.items()}
    if given == dict(cluster) and list(given) != list(cluster):
        raise UserError(f"cluster: write its roles in the order of `resources`: {words_of(given)}")
    if given != dict(cluster):
        raise UserError(f"cluster: {words_of(cluster)} is not what `resources` gives: {words_of(given)}")


def check_min_nodes(job: JobConfig | ProgramConfig, wants: Resources) -> None:
    """UserError where the job's strategy cannot go on with `min_nodes` nodes."""
    if wants.min_nodes is None or wants.min_nodes == wants.nodes:
        return
    if (problem := why_not_on(job, wants.min_nodes * wants.ranks_per_node)) is not None:
        raise UserError(
            f"resources.min_nodes: with {wants.min_nodes} of {wants.nodes} nodes the job could not go on: {problem}"
        )


def check_launcher(job: JobConfig | ProgramConfig, wants: Resources) -> None:
    """UserError where srun is to start ranks that go on without a lost one, which only mpirun lets them."""
    if wants.launcher == "srun" and isinstance(job, JobConfig) and job.run.on_lost_worker == "continue":
        raise UserError(
            "run.on_lost_worker: continue needs resources.launcher: mpirun, since srun ends all ranks with the first; "
            "take that, or `end`"
        )


def check_stage_dir(job: JobConfig | ProgramConfig) -> None:
    """UserError where the job's `stage_dir` is on this machine, too, and cannot be written, or is no node's own.

    Of one that only the nodes have nothing is known here; they look themselves before training begins.
    """
    if isinstance(job, ProgramConfig) or job.data.train.stage != "node" or job.data.train.stage_dir is None:
        return
    if os.path.lexists(stage_dir := job.data.train.stage_dir):
        folder.check(Path(stage_dir), "stage_dir")


def why_not_on(job: JobConfig | ProgramConfig, ranks: int) -> str | None:
    """Why the job's strategy cannot do with `ranks` ranks, or None."""
    if isinstance(job, ProgramConfig):
        return why_not_as(job, ranks)
    try:
        strategy_of(job.run.strategy).roles(ranks, job.run)
    except UserError as error:
        return str(error)
    return None


def why_not_as(program: ProgramConfig, ranks: int) -> str | None:
    """Why the program's cluster is not one of `ranks` ranks, or None."""
    if program.cluster is None or (wanted := sum(program.cluster.values())) == ranks:
        return None
    return (
        f"cluster: {words_of(program.cluster)} is {counted(wanted, 'rank')}, and `resources` gives {ranks}; "
        f"nodes x ranks_per_node, of all roles together, has to be {wanted}"
    )


def least_ranks(job: JobConfig | ProgramConfig) -> int:
    """So many ranks the job's strategy or cluster wants at least."""
    if isinstance(job, ProgramConfig):
        return 1 if job.cluster is None else sum(job.cluster.values())
    return strategy_of(job.run.strategy).least_ranks(job.run)


def code_files(job: JobConfig | ProgramConfig) -> list[Path]:
    """The files that a job file names as code, and so wants in the snapshot."""
    names = names_of(job)
    functions = [Path(name.rpartition(":")[0]) for _, kind, name in names if kind == "function" and ".py:" in name]
    assets = [Path(name) for _, kind, name in names if kind == "asset"]
    if isinstance(job, JobConfig) and job.schema_file is not None:
        assets.append(job.schema_file)
    return [*functions, *(path for path in assets if path.is_file())]  # check_files reports the others


def data_files(job: JobConfig | ProgramConfig) -> list[Path]:
    """The shards of a job, which are read where they are."""
    return [path for _, kind, pattern in names_of(job) if kind == "shard" for path in matches(pattern)]


def check_files(job: JobConfig | ProgramConfig, job_dir: Path, after_dir: Path | None = None) -> None:
    """UserError where assets of exporters are not there, or nothing to warm-start from is; all of it.

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
