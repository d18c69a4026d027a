"""hpc-train bundle: one archive about a job, for those who are to help with it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from hpc_train.cli.command import Command
from hpc_train.cli.doctor import progress
from hpc_train.cli.jobs import JobName, Root
from hpc_train.cli.terminal import answer, console, errors, say, warn
from hpc_train.jobs.job import Job


@answer()
def bundle(
    job: JobName,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it. \\[default: JOB-bundle-TIME.tar.gz, here]"),
    ] = None,
    doctor: Annotated[
        bool, typer.Option("--doctor/--no-doctor", help="With the findings of hpc-train doctor, which take some 15 s.")
    ] = True,
    root: Root = None,
) -> None:
    """Write one archive about a job, without secrets, for those who are to help with it.

    It has the job's reports and logs, what Slurm and this machine say, and versions; not its code, data or weights.
    """
    from hpc_train.bundle.archive import write_bundle
    from hpc_train.bundle.collect import entries_of, redaction_of
    from hpc_train.telemetry.units import counted, size

    with errors():
        job_dir = Job.find(job, root).job_dir
        name = job_dir.name
        path = out or Path(f"{name}-bundle-{time.strftime('%Y%m%d_%H%M%S')}.tar.gz")
        path = path.absolute()
        with progress(console()) as report:
            written = write_bundle(path, name, entries_of(job_dir, doctor, report), redaction_of(job_dir))
    say(f"{path} ({size(written.bytes)}, {counted(written.entries, 'file')}; {written.redacted} places are ***)")
    if (unknown := written.notes.get("secrets.txt")) is not None:
        warn(f"warning: {unknown}")
    say(f"Look through it before you send it: tar -xzf {path.name}")


COMMANDS = (
    Command(
        "bundle",
        bundle,
        "Jobs",
        8,
        examples=("hpc-train bundle digits_20260131_120000", "hpc-train bundle runs/digits --out digits.tar.gz"),
    ),
)
