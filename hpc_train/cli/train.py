"""hpc-train train and launch: a job file's job, on the ranks that there are, or on ranks of this machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpc_train.cli.command import Command, JobFile, Settings
from hpc_train.cli.terminal import errors, warn
from hpc_train.errors import SchedulerError, UserError
from hpc_train.lazy import importing
from hpc_train.outcome import EXIT_FAILED

if TYPE_CHECKING:
    from hpc_train.config.job import JobConfig
    from hpc_train.jobs.launch.rank_hosts import RankHosts

JobDir = Annotated[
    Path | None, typer.Option(help="Where the job keeps everything. \\[default: runs/<name of the job>]")
]
DebugDelay = Annotated[
    list[str] | None,
    typer.Option(metavar="RANK:MS", help="Let a rank sleep so long after each step, to see what slow ranks do."),
]


def train(
    context: typer.Context,
    job_file: JobFile,
    job_dir: JobDir = None,
    settings: Settings = None,
    debug_delay: DebugDelay = None,
    data_root: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train, evaluate and export. Run it alone for one rank, or on each rank under mpirun or horovodrun."""
    with importing():
        from hpc_train.config.job import JobConfig, load_job, strategy_in
        from hpc_train.config.tune.section import NOT_FOLLOWED
        from hpc_train.distributed.excepthook import report_error
        from hpc_train.distributed.startup import join_world
        from hpc_train.jobs.train import train as train_job
        from hpc_train.strategies import strategy_of

    with errors():
        delays = _delays(debug_delay or [])
        world = join_world(strategy_of(strategy_in(job_file, settings or [])).threads)
    try:
        job = JobConfig.model_validate(
            world.on_chief(lambda: load_job(job_file, settings or [], data_root).masked().model_dump(mode="json"))
        )
        folder = job_file.absolute().parent
        first = job.run.parameter_servers if job.run.strategy == "async" else 0
        if first < world.size and any(not first <= rank < world.size for rank in delays):
            raise UserError(f"--debug-delay: the ranks that train are {first} to {world.size - 1}")
        if job.tune is not None and world.is_chief:
            warn(NOT_FOLLOWED)
        chosen = job_dir or Path("runs") / job.name
        train_job(world, job, chosen, folder, context.obj, delays.get(world.rank, 0.0))
    except Exception as error:
        sys.exit(report_error(world, error))
    except SystemExit as stopped:
        if world.apart:
            world.leave(stopped.code if isinstance(stopped.code, int) else EXIT_FAILED)
        raise
    if world.apart:
        world.leave(0)


def launch(
    job_file: JobFile,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", min=1, help="How many ranks to start. \\[default: 1, or all of the hosts]"),
    ] = None,
    job_dir: JobDir = None,
    settings: Settings = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="How often to start again after a crash.")] = 0,
    hosts: Annotated[
        str | None, typer.Option(metavar="HOST:RANKS,…", help="Start them there, reached as mpirun does, by ssh.")
    ] = None,
    min_hosts: Annotated[
        int | None,
        typer.Option(help="After a crash, go on with so many of --hosts, or of the nodes of Slurm. \\[default: all]"),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(
            metavar="none|core|numa|auto", help="What ranks are bound to. \\[default: HPC_TRAIN_BIND, or auto]"
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            metavar="mpirun|srun",
            help="What starts them; srun: in a Slurm allocation. \\[default: HPC_TRAIN_LAUNCHER, or mpirun]",
        ),
    ] = None,
    debug_delay: DebugDelay = None,
    data_root: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train on several ranks of this machine, or of others: runs mpirun, or srun, with the right flags."""
    with importing(), errors():
        from hpc_train.jobs.launch.launchers import launcher as launcher_named
        from hpc_train.jobs.launch.run import launch as launch_ranks

        launcher = launcher or os.environ.get("HPC_TRAIN_LAUNCHER") or "mpirun"
        chosen_launcher = launcher_named(launcher)
        from hpc_train.config.job import load_job
        from hpc_train.config.secrets import masked_settings
        from hpc_train.distributed.binding import BIND_VARIABLE, wanted_binding
        from hpc_train.jobs.site.site import adopt
        from hpc_train.resilience.guard import ALLOWED
        from hpc_train.telemetry.units import counted

    with errors():
        adopt(os.environ)
        job = load_job(job_file, settings or [], data_root)
        if launcher == "srun":
            _check_for_srun(job, hosts, min_hosts)
        places = _rank_hosts(job, hosts, ranks, min_hosts, max_restarts)
        ranks = (ranks or 1) if places is None else places.ranks
        _delays(debug_delay or [])
        os.environ[BIND_VARIABLE] = wanted_binding({**os.environ, **({} if bind is None else {BIND_VARIABLE: bind})})
        if job.run.on_lost_worker == "continue":
            os.environ.setdefault(ALLOWED, "1")
        more = [f"--debug-delay={given}" for given in debug_delay or []]
        more += [f"--set={setting}" for setting in masked_settings(settings or [])]
        more += [f"--data-root={data_root}"] if data_root is not None else []
        warn(f"starting {counted(ranks, 'rank')}; Python, MPI and TensorFlow take some seconds each time")
        chosen = job_dir or Path("runs") / job.name
        sys.exit(launch_ranks(chosen_launcher, ranks, job_file, chosen, max_restarts, more, places))


def _check_for_srun(job: JobConfig, hosts: str | None, min_hosts: int | None) -> None:
    """Raises a UserError where a job is to run in a way in which srun cannot start its ranks."""
    wanted = {"--hosts": hosts is not None, "--min-hosts": min_hosts is not None}
    wanted["run.on_lost_worker: continue"] = job.run.on_lost_worker == "continue"
    for name, is_wanted in wanted.items():
        if is_wanted:
            raise UserError(f"{name} needs --launcher mpirun; leave it out to start the ranks with srun")


def _rank_hosts(
    job: JobConfig, text: str | None, ranks: int | None, min_hosts: int | None, max_restarts: int
) -> RankHosts | None:
    """Where the ranks run: on --hosts; with --min-hosts alone on the nodes of the Slurm allocation; None: as ever."""
    if text is None and min_hosts is None:
        return None
    from hpc_train.jobs.checks import why_not_on
    from hpc_train.jobs.launch.allocation import allocated_nodes, hosts_of, problems
    from hpc_train.jobs.launch.host_probe import agent_command, names_of_this_machine, silent
    from hpc_train.jobs.launch.hosts import parse_hosts
    from hpc_train.jobs.launch.rank_hosts import RankHosts, check_counts

    try:
        nodes = allocated_nodes(os.environ)
    except SchedulerError:
        if text is None:
            raise
        nodes = ()
    if min_hosts is not None and (max_restarts == 0 or (text is None and not nodes)):
        raise UserError(
            "--min-hosts needs --max-restarts, and --hosts or a Slurm allocation, as in --hosts n1:2,n2:2 "
            "--min-hosts 1 --max-restarts 3"
        )
    given = hosts_of(nodes, os.environ.get("SLURM_TASKS_PER_NODE", ""), ranks) if text is None else parse_hosts(text)
    agent = () if {host.name for host in given} <= {*nodes} else agent_command(os.environ)
    here: frozenset[str] = frozenset()
    if max_restarts > 0 and agent:
        here = names_of_this_machine([host.name for host in given])
    elif max_restarts > 0 and shutil.which("srun") is None:
        raise UserError("--max-restarts: no srun on PATH to ask the nodes of this job with; load Slurm's programs")
    least = check_counts(given, ranks, min_hosts)
    equal = len({host.slots for host in given}) == 1
    if least < len(given) and equal and (problem := why_not_on(job, least * given[0].slots)) is not None:
        raise UserError(f"--min-hosts: with {least} of {len(given)} hosts the job could not go on: {problem}")
    return RankHosts(
        given,
        least,
        lambda asked, is_over: (
            silent([host.name for host in asked if host.name not in here], agent, is_over)
            if agent
            else problems(asked, is_over)
        ),
        lambda ranks: why_not_on(job, ranks) is None,
    )


def _delays(given: list[str]) -> dict[int, float]:
    """Seconds by rank, from `RANK:MS` texts."""
    delays = {}
    for text in given:
        rank, _, ms = text.partition(":")
        try:
            delays[int(rank)] = float(ms) / 1000
        except ValueError:
            raise UserError(f"--debug-delay: {text!r} is not allowed; allowed: RANK:MS, as in 2:50") from None
        if int(rank) < 0 or not 0 <= delays[int(rank)] <= 3600:
            raise UserError(f"--debug-delay: {text!r} is not allowed; a rank from 0, and 0 to 3600000 ms")
    return delays


COMMANDS = (
    Command(
        "train",
        train,
        "Train",
        place=1,
        examples=(
            "hpc-train train job.yaml",
            "mpirun -np 4 hpc-train train job.yaml",
            "hpc-train train job.yaml --job-dir runs/longer --set train.max_steps=4000",
        ),
    ),
    Command(
        "launch",
        launch,
        "Train",
        place=2,
        examples=(
            "hpc-train launch -n 2 job.yaml",
            "hpc-train launch -n 2 job.yaml --job-dir runs/sure --max-restarts 3",
            "hpc-train launch --hosts n1:2,n2:2 --min-hosts 1 --max-restarts 3 job.yaml",
        ),
    ),
)
