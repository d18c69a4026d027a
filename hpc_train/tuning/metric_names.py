"""`python -m hpc_train.tuning.metric_names JOB DATA_ROOT SETTINGS…`: what the evaluations of a job report.

Builds the model and tries each evaluation out, as training does before its first step, in a process of its own: so a
study knows before its first trial that its goal will be reported. Prints a JSON object of names by kind of evaluation.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hpc_train import stdio
from hpc_train.errors import UserError
from hpc_train.jobs.launch.error_excerpt import error_in

LIMIT_SECS = 600.0


def metric_names(job_file: Path, data_root: Path, settings: Sequence[str]) -> dict[str, list[str]]:
    """The metrics of each evaluation, by its kind; asked of a process that builds the model.

    Raises:
        UserError: The job cannot be started; with its own words.
    """
    words = [sys.executable, "-m", __spec__.name, str(job_file), str(data_root), *settings]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_SECS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{job_file}: building its model takes longer than {LIMIT_SECS:.0f} s") from None
    if done.returncode != 0:
        lines, message = error_in(done.stderr.decode(errors="replace"))
        raise UserError(
            f"{job_file}: the job cannot be started: {message or ' '.join(lines[-1:]) or 'no reason given'}"
        )
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(job_file: Path, data_root: Path, settings: Sequence[str]) -> dict[str, list[str]]:
    """What is printed."""
    from hpc_train.config.builtin_model import GBDTModel
    from hpc_train.config.job import load_job
    from hpc_train.config.job_schema import schema_of
    from hpc_train.data.hdf5.shards import find_shards
    from hpc_train.data.loading.batch_source import share_of_node
    from hpc_train.data.loading.tf_dataset import context_for
    from hpc_train.distributed.devices import set_up_tensorflow
    from hpc_train.distributed.startup import join_world
    from hpc_train.evaluation.evaluator import Evaluator
    from hpc_train.model.job_model import JobModel
    from hpc_train.models.heads import head_of

    job = load_job(job_file, settings, data_root)
    kinds = [spec.kind for spec in job.eval_specs()]
    if isinstance(job.model, GBDTModel):
        schema = schema_of(job.model)
        assert schema is not None, "read with the job"
        return {kind: ["loss", *(metric.name for metric in head_of(schema).metrics())] for kind in kinds}
    world = join_world()
    set_up_tensorflow(world)
    model_of = JobModel.of_job(job, job_file.parent, job_file.parent)
    resources, found = share_of_node(world.cores, 1), {}
    specs = job.eval_specs()
    shards = [find_shards(spec.input_fn) for spec in specs]
    contexts = [context_for(0, 1, spec.input_fn, job.run.tf_random_seed) for spec in specs]
    model, _, _ = model_of.build(specs[0].input_fn, shards[0], contexts[0], specs[0].steps, resources)
    for spec, own, context in zip(specs, shards, contexts, strict=True):
        evaluator = Evaluator(model, spec, own, context, resources, model_of.load, world)
        evaluator.check()
        evaluator.agree()
        found[spec.kind] = evaluator.metric_names()
    return found


if __name__ == "__main__":
    stdio.set_up()
    try:
        print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
    except UserError as error:
        for line in str(error).splitlines():
            print(f"hpc-train: error: {line}", file=sys.stderr)
        sys.exit(2)
