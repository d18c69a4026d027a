"""16-bit numbers, pieces of batches, profiles and histograms in jobs of job files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.ranks import train_in_turn
from tests.support import MODEL, Job, variables

MakeJob = Callable[..., Job]

SCALED = MODEL.replace(
    'optimizer=keras.optimizers.Adam(params.get("learning_rate", 0.01))',
    "optimizer=keras.optimizers.LossScaleOptimizer("
    "keras.optimizers.Adam(0.01), initial_scale=2.0**24, dynamic_growth_steps=3)",
)
"""The loss scale is too large at first, and is doubled after every third good step."""


class Further(Job):
    """A job that goes on, by another job file."""

    @property
    def file(self) -> Path:
        return self.folder / "further.yaml"


def evaluations(job: Job) -> dict[int, float]:
    records = map(json.loads, (job.job_dir / "metrics.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if record["kind"] == "eval"}


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_jobs_learn_and_go_on_to_the_bit(make_job: MakeJob) -> None:
    def job(name: str, max_steps: int = 20, model: str = MODEL, **run: Any) -> Job:
        run = {"save_checkpoints_steps": 10, "check_replicas_steps": 10, **run}
        return make_job(name, model=model, run=run, train={"max_steps": max_steps})

    learning = [
        job("bfloat16", mixed_precision="bfloat16", save_histograms_steps=10, profile_steps=[3, 5]),
        job("float16", mixed_precision="float16"),
        job("pieces", accumulate_steps=3, compression="bf16"),
    ]
    all_of_it = {"mixed_precision": "float16", "compression": "bf16", "accumulate_steps": 2}
    halves, straight = job("halves", 10, SCALED, **all_of_it), job("straight", 20, SCALED, **all_of_it)
    second_half = Further(halves.folder)
    second_half.file.write_text(halves.file.read_text().replace("max_steps: 10", "max_steps: 20"))
    refused = job("refused", accumulate_steps=17)
    jobs = [*learning, halves, straight, second_half]
    done = train_in_turn([*jobs, refused], 2)
    assert done.stdout.count("next job") == len(jobs), done.stdout + done.stderr
    assert done.returncode == 2
    said = "run.accumulate_steps: a batch of 16 rows (data.train.batch_size) cannot be cut into 17"
    assert done.stderr.count(said) == 1
    assert not refused.job_dir.exists()

    for one in learning:
        found = evaluations(one)
        assert found[20] < found[10], (one, found)
    resumed, uninterrupted = variables(halves.job_dir, 20), variables(straight.job_dir, 20)
    assert set(resumed) == set(uninterrupted)
    for name, array in uninterrupted.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)
    for step in (10, 20):
        (scale,) = [a for name, a in variables(straight.job_dir, step).items() if name.endswith("dynamic_scale")]
        assert 0 < scale != 2.0**24, "the loss scale moves"

    shown = learning[0].job_dir / "train"
    assert list(shown.glob("plugins/profile/*/*.xplane.pb"))
    found = events(shown)
    tags = found.PluginTagToContent("histograms")
    assert len(tags) == 4, "one of each variable"
    assert all([event.step for event in found.Tensors(tag)] == [10, 20] for tag in tags)
    assert not list((learning[1].job_dir / "train").glob("plugins"))
