"""What the model of a job is like, found out before the first trial: by building it once."""

from __future__ import annotations

from pathlib import Path

from hpc_train.config.builtin_model import GBDTModel
from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.config.job import JobConfig
from hpc_train.config.job_schema import schema_of
from hpc_train.data.hdf5.shards import find_shards
from hpc_train.data.loading.batch_source import share_of_node
from hpc_train.data.loading.tf_dataset import context_for
from hpc_train.distributed.devices import set_up_tensorflow
from hpc_train.distributed.world import World
from hpc_train.evaluation.evaluator import Evaluator
from hpc_train.model.job_model import JobModel
from hpc_train.model.learning_rate import is_rate
from hpc_train.model.model_state import ModelState
from hpc_train.models.heads import head_of
from hpc_train.tuning.execution.assignments import ModelFacts


def facts_of(world: World, job: JobConfig, code_folder: Path) -> ModelFacts:
    """The facts of a job. Local, for one rank of `world`; writes nothing.

    Raises:
        UserError: The model or the data cannot be used. Whatever the model raises.
    """
    specs = job.eval_specs()
    if isinstance(job.model, GBDTModel):
        schema = schema_of(job.model)
        assert schema is not None, "read with the job"
        return ModelFacts({s.kind: ["loss", *(metric.name for metric in head_of(schema).metrics())] for s in specs})
    set_up_tensorflow(world)
    alone = World.alone()
    model_of, resources = JobModel.of_job(job, code_folder, code_folder), share_of_node(world.cores, 1)
    shards = [find_shards(spec.input_fn) if isinstance(spec.input_fn, HDF5Input) else None for spec in specs]
    contexts = [context_for(0, 1, spec.input_fn, job.run.tf_random_seed) for spec in specs]
    model, _, updates = model_of.build(specs[0].input_fn, shards[0], contexts[0], specs[0].steps, resources)
    found = {}
    for spec, own, context in zip(specs, shards, contexts, strict=True):
        evaluator = Evaluator(model, spec, own, context, resources, model_of.load, alone)
        evaluator.check()
        evaluator.agree()
        found[spec.kind] = evaluator.metric_names()
    signatures = ModelState(model, alone, updates).signatures()
    return ModelFacts(found, [one for one in signatures if not is_rate(one.partition(" ")[0])])
