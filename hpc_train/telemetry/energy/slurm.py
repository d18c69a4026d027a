"""What Slurm counts of a job's energy, where its site has it count (AcctGatherEnergyType)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from hpc_train.telemetry.energy.counter import Counter, NotMeasuredError
from hpc_train.telemetry.status import JOB_VARIABLE, job_fields

ASK_SECS = 10.0
MOST_TEXT = 1 << 20
_NO_VALUE = 0xFFFFFFFE
"""Slurm's NO_VAL, which it shows where a node does not count."""


def slurm_counter(env: Mapping[str, str]) -> Counter:
    """Of all steps of the job that `env` is of, on all its nodes. Local; asks Slurm, with a time limit.

    Raises:
        NotMeasuredError: This is no job of Slurm's, or it does not count.
    """
    job = job_fields({name: value for name, value in env.items() if name != JOB_VARIABLE})["job_id"]
    if not isinstance(job, str) or not re.fullmatch("[0-9]{1,18}(_[0-9]{1,9})?", job):
        raise NotMeasuredError("no job of Slurm's")
    kind = re.search(r"^AcctGatherEnergyType\s*=\s*(\S+)", _answer("scontrol", "show", "config"), re.MULTILINE)
    if kind is None or kind[1].endswith("none") or kind[1] == "(null)":
        raise NotMeasuredError("Slurm does not count it here (AcctGatherEnergyType)")

    def read() -> float:
        try:
            return sum_of(_answer("sstat", "-a", "-n", "-P", "-j", job, "--format=JobID,ConsumedEnergyRaw"))
        except NotMeasuredError as error:
            raise OSError(str(error)) from None

    counter = Counter("Slurm", read)
    try:
        counter.read()
    except (OSError, ValueError) as error:
        raise NotMeasuredError(f"Slurm does not tell: {error}") from None
    return counter


def sum_of(text: str) -> float:
    """Joules of all steps in what sstat prints, `JobID|ConsumedEnergyRaw` a line. Pure.

    Raises:
        ValueError: It has no figure of some step, or none at all.
    """
    total, seen = 0, False
    for line in filter(None, map(str.strip, text.splitlines())):
        step, _, joules = line.partition("|")
        if not joules.isdecimal() or len(joules) > 18 or int(joules) >= _NO_VALUE:
            raise ValueError(f"sstat has no energy of step {step[:40]}")
        total, seen = total + int(joules), True
    if not seen:
        raise ValueError("sstat shows no step")
    return float(total)


def _answer(*command: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ASK_SECS, stdin=subprocess.DEVNULL
        )
        if done.returncode == 0 and len(done.stdout) < MOST_TEXT:
            return done.stdout
    raise NotMeasuredError(f"{command[0]} does not answer")
