"""`python -m hpc_train.tuning.execution.ranks FOLDER THREADS`: a rank of a slot, which trains trial after trial.

TensorFlow, Keras and MPI start once. All that a job leaves in a process is taken back between two trials, so that each
computes what it would in processes of its own, to the bit.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from hpc_train import stdio
from hpc_train.distributed.silence import without_chatter
from hpc_train.lazy import importing, keras, tf
from hpc_train.resilience.signals import JobStopped, StopSignals
from hpc_train.telemetry.start_timeline import start_timeline

if TYPE_CHECKING:
    from hpc_train.distributed.world import Threads

MOST_GROWTH_BYTES = 2 << 30
"""A rank whose memory has grown by so much since its first trial leaves: something in it is not freed."""


def serve(folder: Path, threads: Threads, signals: StopSignals) -> int:
    """Trains what is assigned in `folder`, until there is no more; the exit code of the last trial. Collective.

    Args:
        threads: As in join_world.
    """
    with importing():
        from hpc_train.config.job import JobConfig, load_job
        from hpc_train.distributed.excepthook import report_error
        from hpc_train.distributed.startup import join_world
        from hpc_train.jobs.train import train
        from hpc_train.outcome import STOP_CODES
        from hpc_train.telemetry.status import COMMAND_VARIABLE, OUTPUT_VARIABLE
        from hpc_train.tuning.execution.assignments import AssignmentEnd, AssignmentFolder, ModelFacts
        from hpc_train.tuning.execution.model_facts import facts_of
        from hpc_train.tuning.execution.supervision import Supervision

    assignments, driver = AssignmentFolder(folder), Supervision(folder.parent.parent)
    world = join_world(threads)
    _import_tensorflow()  # while nothing is assigned yet
    if world.is_chief:
        assignments.report_begin()
        driver.stops_by(signals, assignments.report_life)
    first_bytes, code = 0, 0
    for number in count():
        assigned = assignments.await_assignment(number, driver.has_ended)
        if assigned is None:
            break
        facts = ModelFacts()
        signals.received = None  # what came before was meant for the trial before
        job_file, job_dir, settings = Path(assigned.job_file), Path(assigned.job_dir), assigned.settings
        with _printing_to(Path(assigned.log)):
            os.environ[OUTPUT_VARIABLE] = assigned.log
            os.environ.pop(COMMAND_VARIABLE, None)
            start_timeline.begin("data")
            try:
                described = world.on_chief(
                    lambda: load_job(job_file, settings, assigned.data_root).masked().model_dump(mode="json")  # noqa: B023
                )
                job = JobConfig.model_validate(described)
                if assigned.only_facts:
                    facts = facts_of(world, job, job_file.parent) if world.is_chief else facts
                else:
                    train(world, job, job_dir, job_file.parent, signals)
                code = 0
            except JobStopped as stopped:
                code = stopped.exit_code
            except Exception as error:
                code = report_error(world, error)
        if world.is_chief:
            assignments.report_end(number, AssignmentEnd(code, facts))
        if code not in (0, *STOP_CODES.values()):
            break
        _forget(job_file.parent)
        used = psutil.Process().memory_info().rss
        first_bytes = first_bytes or used
        if world.first(True if used > first_bytes + MOST_GROWTH_BYTES else None):
            break
    return code


def _import_tensorflow() -> None:
    with without_chatter():
        _ = keras.Model, tf.function


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """What this process prints meanwhile, by Python or not, is appended to a file."""
    from hpc_train.files import open_to_append

    before = [(number, os.dup(number)) for number in (1, 2)]
    with open_to_append(log, 0o600) as file:
        for number, _ in before:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, kept in before:
            os.dup2(kept, number)
            os.close(kept)


def _forget(code: Path) -> None:
    """Takes back what a job has left in this process: Keras's state, and the modules of its code."""
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")
    tf.config.run_functions_eagerly(False)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).is_relative_to(code):
            del sys.modules[name]
    gc.collect()


if __name__ == "__main__":
    start_timeline.begin("imports")
    stdio.set_up()
    with StopSignals() as stop:
        sys.exit(serve(Path(sys.argv[1]), "serialized" if sys.argv[2] == "serialized" else "multiple", stop))
