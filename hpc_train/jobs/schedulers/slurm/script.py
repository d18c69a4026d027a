"""The batch script of a submitted job: a header made for it, and the text of slurm/ranks.sh. Pure.

Every word that comes from a user is quoted by shlex.quote, and in the #SBATCH lines by Slurm's own rules.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_train.config.resources import Resources, parse_memory
from hpc_train.distributed.binding import BIND_VARIABLE
from hpc_train.errors import UserError
from hpc_train.jobdir.paths import CODE, LOG_FILE, PACKAGES, PACKS_FILE, SECRETS_FILE
from hpc_train.jobs.record.installation import remedy
from hpc_train.jobs.record.submission import Submission, job_command, train_arguments
from hpc_train.jobs.schedulers.base import DriverJobs
from hpc_train.jobs.site.site import exports
from hpc_train.resilience.guard import ALLOWED
from hpc_train.telemetry.environment import MASKED_VARIABLE

_NO_TEXT = re.compile(r"[\ud800-\udfff]")
"""What Python makes of bytes in names of files that are not UTF-8."""
_BEGIN = ("", "set -euo pipefail", "stop=", "trap 'stop=USR1' USR1", "trap 'stop=TERM' TERM")
"""After the options: signals are heard from here on."""
CHECK = "hpc_train.jobs.launch.installation_check"
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")


def sbatch_options(submission: Submission, job_dir: Path) -> list[str]:
    """The options of sbatch that the job's resources come to; `hetjob` stands between those of two components.

    Raises:
        UserError: The path of the job-dir cannot be written into a script.
    """
    wants, path = submission.wants, str(job_dir)
    if re.search(r"[\0-\x1f\x7f\\]", path):
        raise UserError(
            f"{path!r}: the path of a job-dir may hold no backslash, and no line break or other such character"
        )
    return [
        f"--job-name={submission.name}",
        f"--output={path.replace('%', '%%')}/{LOG_FILE}",
        f"--chdir={path}",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{wants.warns_secs}",
        *(["--no-kill"] if wants.least_nodes is not None else []),
        *_of_components(wants),
    ]


def _of_components(wants: Resources) -> list[str]:
    first, *others = ([*_sizes(one), *one.sbatch] for one in wants.components)
    return [*first, *(option for options in others for option in ("hetjob", *options))]


def _sizes(wants: Resources) -> list[str]:
    options = [
        f"--nodes={wants.asked_nodes}",
        f"--ntasks-per-node={wants.ranks_per_node}",
        f"--cpus-per-task={wants.cores_per_rank}",
    ]
    if wants.gpus_per_node:
        options.append(f"--gpus-per-node={wants.gpus_per_node}")
    if wants.memory is not None:
        options.append(f"--mem={parse_memory(wants.memory)}M")
    named = ((name, getattr(wants, name)) for name in ("time", "partition", "account", "qos", "constraint"))
    return [*options, *(f"--{name}={value}" for name, value in named if value is not None)]


def render(submission: Submission, job_dir: Path, python: Path, body: str, pack: str, container: str = "") -> str:
    """The script's text.

    Args:
        python: The interpreter that has this package; its folder goes first on PATH.
        body: The text of slurm/ranks.sh, after that of het.sh where roles differ.
        pack: That of slurm/pack.sh. container: that of slurm/container.sh.

    Raises:
        UserError: A path or a word cannot be written into a script.
    """
    for word in (str(job_dir), submission.job_file, *submission.settings, *submission.args):
        if _NO_TEXT.search(word):
            raise UserError(f"{word!r}: is not UTF-8, as a batch script has to be; rename it")
    wants, program = submission.wants, submission.kind == "program"
    if program:
        command = ["python", *job_command(job_dir, submission)]
    else:
        command = ["hpc-train", *train_arguments(job_dir, submission)]
    record = ["--job-dir", str(job_dir), "--submission", submission.token, "--log", str(job_dir / LOG_FILE)]
    lines = [
        "#!/bin/bash",
        "# shellcheck disable=SC2016 # a $ in the words of users is one",
        f"# The job {submission.name}, written by hpc-train submit. It runs the copy of the code in {CODE}/.",
        "",
        *(f"#SBATCH {quote_for_sbatch(option)}" for option in sbatch_options(submission, job_dir)),
        *_BEGIN,
        f"code_dir={shlex.quote(str(job_dir / CODE))}",
        'if ! cd "$code_dir"; then',
        "    echo 'hpc-train: the job-dir is gone: the submission was given up, or somebody has removed it' >&2",
        "    exit 2",
        "fi",
        *_modules(wants.modules),
        *_environment(job_dir, wants.environment),
        f"PATH={shlex.quote(str(python.parent))}:$PATH",
        *exports(submission.variables),
        *_installation(submission, job_dir),
        "export PYTHONUNBUFFERED=1 HPC_TRAIN_PROGRESS=lines",
        f"export HPC_TRAIN_WARNING_SECS={wants.warns_secs}",
        f"export {BIND_VARIABLE}={wants.bind}",
        *([f"export {ALLOWED}=1"] if submission.survives else []),
        *(["unset HPC_TRAIN_CONTAINER"] if wants.container is None else []),
        "",
        f"command=({shlex.join(command)})",
        f"record=({shlex.join(record)})",
        f"again=(hpc-train resume {shlex.quote(str(job_dir))})",
        f"log_dir={shlex.quote(str(job_dir / 'logs'))}",
        f"program={1 if program else ''}",
        f"alone={1 if program and wants.ranks == 1 else ''}",
        'threads="${OMP_NUM_THREADS:-}"' if "OMP_NUM_THREADS" in wants.environment else "threads=",
        f"min_nodes={wants.least_nodes or ''}",
        f"spare_nodes={wants.spare_nodes}",
        f"launcher={wants.launcher}",
        "me=hpc-train",
        *_packages(job_dir, wants, pack),
        *_part("container.sh", container if wants.container is not None else ""),
    ]
    return "\n".join([*lines, "", "# ---- slurm/ranks.sh, as it was at submission", body.rstrip(), ""])


def on_all_components(het: str) -> str:
    """What a heterogeneous job has before slurm/ranks.sh; `het` is the text of slurm/het.sh."""
    end = 'timeout 60 hpc-train record-end --code 2 "${record[@]}" ${program:+--program} || true'
    fail = f'fail() {{\n    echo "hpc-train: $1" >&2\n    {end}\n    exit 2\n}}'
    return f"{fail}\n{het}\n"


def render_drivers(jobs: DriverJobs, python: Path, body: str) -> str:
    """The script of an array of jobs that run a study.

    Args:
        python, body: As in `render`; the body is slurm/alone.sh.

    Raises:
        UserError: A path cannot be written into a script.
    """
    folder = str(jobs.folder)
    if re.search(r"[\0-\x1f\x7f\\]", folder) or any(_NO_TEXT.search(word) for word in (folder, *jobs.words)):
        raise UserError(
            f"{folder!r}: the path of a study may hold no backslash, and no line break or other such character"
        )
    options = [
        f"--job-name={jobs.name}",
        f"--array=0-{jobs.count - 1}",
        f"--output={folder.replace('%', '%%')}/%A_%a.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{jobs.wants.warns_secs}",
        *_sizes(jobs.wants),
        *jobs.wants.sbatch,
    ]
    lines = [
        "#!/bin/bash",
        "# shellcheck disable=SC2016 # a $ in the words of users is one",
        f"# Jobs for {jobs.name}, written by hpc-train {jobs.words[0]} --as-jobs. Each trains until nothing is left.",
        "",
        *(f"#SBATCH {quote_for_sbatch(option)}" for option in options),
        *_BEGIN,
        *_modules(jobs.wants.modules),
        *(f"export {name}={shlex.quote(value)}" for name, value in jobs.wants.environment.items()),
        f"PATH={shlex.quote(str(python.parent))}:$PATH",
        "export PYTHONUNBUFFERED=1",
        f"command=({shlex.join(['hpc-train', *jobs.words])})",
        "me=hpc-train",
    ]
    return "\n".join([*lines, "", "# ---- slurm/alone.sh, as it was at submission", body.rstrip(), ""])


def _environment(job_dir: Path, environment: Mapping[str, str]) -> list[str]:
    """Sets the variables of the job, whose values are in SECRETS_FILE alone."""
    if not environment:
        return []
    names = " ".join(environment)
    return [
        "# shellcheck source=/dev/null",
        f"if ! source {shlex.quote(str(job_dir / SECRETS_FILE))}; then # sets {names}",
        f"    echo 'hpc-train: {SECRETS_FILE} of the job-dir cannot be read: submit the job again' >&2",
        "    exit 2",
        "fi",
        f"export {MASKED_VARIABLE}='{names}'",
    ]


def _installation(submission: Submission, job_dir: Path) -> list[str]:
    """Has the job run the hpc_train that it was submitted with, or end before its first rank."""
    found = submission.installation
    if found is None:
        return []
    python, folder = shlex.quote(found.python), found.path(job_dir)
    gone = (
        f"hpc-train: error: the job does not start: it was submitted with {found}, whose interpreter {found.python} is "
    )
    gone += f"gone here; {remedy(job_dir)}"
    copy = "" if folder is None else f"PYTHONPATH={shlex.quote(str(folder))}${{PYTHONPATH:+:$PYTHONPATH}}"
    lines = [f"export {copy}"] if copy and submission.wants.pack == "none" else []  # a pack is no shared folder
    return [
        *lines,
        f"if [[ ! -x {python} ]]; then",
        f"    echo {shlex.quote(gone)} >&2",
        "    exit 2",
        "fi",
        "checked=0",
        f"(cd / && {copy}{' ' if copy else ''}exec {python} -m {CHECK} {shlex.quote(str(job_dir))}) || checked=$?",
        "if ((checked != 0)); then",
        "    ((checked == 2)) || echo 'hpc-train: error: whether its hpc_train is still there cannot be seen' >&2",
        "    exit $((checked == 2 ? 2 : 1))",
        "fi",
    ]


def _packages(job_dir: Path, wants: Resources, pack: str) -> list[str]:
    """Where the ranks' environment and packages are, if not only where the job was submitted."""
    if wants.pack != "none":
        name = f"pack_list={shlex.quote(str(job_dir / PACKS_FILE))}"
        return [name, "pack=", *_part("pack.sh", pack)]
    if wants.requirements is not None:
        return [f"export PYTHONPATH={shlex.quote(str(job_dir / PACKAGES))}${{PYTHONPATH:+:$PYTHONPATH}}"]
    return []


def _part(name: str, text: str) -> list[str]:
    return ["", f"# ---- slurm/{name}, as it was at submission", text.rstrip()] if text else []


def _modules(modules: Sequence[str]) -> list[str]:
    if not modules:
        return []
    complaint = "hpc-train: the job's tier has modules, but there is no command called module here"
    return [
        f"type module >/dev/null 2>&1 || {{ echo {shlex.quote(complaint)} >&2; exit 2; }}",
        "set +u # the module command reads variables that are not set",
        f"module load {shlex.join(modules)}",
        "set -u",
    ]


def quote_for_sbatch(option: str) -> str:
    """An option, without line breaks and backslashes, as one word of a #SBATCH line. Pure.

    sbatch splits such a line at blanks and ends it at a #, except within double quotes.
    """
    if _PLAIN.fullmatch(option):
        return option
    name, equals, value = option.partition("=")
    value = value.replace('"', '\\"')
    return f'{name}{equals}"{value}"'
