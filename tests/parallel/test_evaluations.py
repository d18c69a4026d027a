"""Several evaluation sets: which checkpoint each one gets, where its results go, and what is not done twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.ranks import train, train_in_turn
from tests.support import FINAL, Job, merge, records_of, variables, write_rows

MakeJob = Callable[..., Job]
LATE = {"start_delay_secs": 0, "throttle_secs": 100_000}
HARD = {"shards": "data/hard.h5", "features": "x", "label": "y", "batch_size": 7}


def make(make_job: MakeJob, name: str, hard: dict[str, Any] | None = None, **changes: Any) -> Job:
    """A job with the sets eval and hard; the rows of both are no multiple of anything, and the throttle is a day's."""
    evals = {"hard": {"data": HARD, "steps": None, **LATE, **(hard or {})}}
    job = make_job(name, test_rows=[53], **merge({"evals": evals, "run": {"best_metric": "loss"}}, changes))
    write_rows(job.folder / "data" / "hard.h5", 31, seed=9)
    return job


def change(job: Job, **changes: Any) -> None:
    job.file.write_text(yaml.safe_dump(merge(yaml.safe_load(job.file.read_text()), changes)))


def records(job: Job, *kinds: str) -> list[dict[str, Any]]:
    return records_of(job.job_dir, *kinds)


def steps(job: Job, kind: str) -> list[int]:
    return [record["step"] for record in records(job, kind)]


def status(job: Job) -> dict[str, Any]:
    return json.loads((job.job_dir / "status.json").read_text())


def in_one_process(job: Job, step: int, shards: str) -> dict[str, float]:
    """Loss and accuracy of the checkpoint of `step`, computed with NumPy alone."""
    import h5py

    weights = {name.removeprefix("model/"): value for name, value in variables(job.job_dir, step).items()}
    kernels = [value for name, value in weights.items() if name.endswith("kernel")]
    biases = [value for name, value in weights.items() if name.endswith("bias")]
    with h5py.File(job.folder / "data" / shards) as file:
        x, y = file["x"][()].astype(np.float64), file["y"][()]
    logits = np.tanh(x @ kernels[0] + biases[0]) @ kernels[1] + biases[1]
    loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    penalty = 1e-3 * np.square(kernels[0], dtype=np.float64).sum()
    return {"loss": float(loss.mean() + penalty), "accuracy": float((logits.argmax(axis=1) == y).mean())}


@pytest.mark.parametrize("ranks", [0, 3])
def test_each_set_by_itself_and_nothing_twice(ranks: int, make_job: MakeJob) -> None:
    every = make(make_job, "every", {"eval_every_checkpoint": True}, run={"save_checkpoints_steps": 4}, eval=LATE)
    stops = make(
        make_job,
        "stops",
        run={"save_checkpoints_steps": 4},
        train={
            "max_steps": 10**6,
            "early_stopping": {
                "stop_if_higher": {"metric_name": "loss", "threshold": 0.0, "min_steps": 6, "run_every_steps": 1}
            },
        },
    )
    ends = make(
        make_job,
        "ends",
        data={"train": {"epochs": 1}},
        run={"save_checkpoints_steps": 100},
        train={"max_steps": None},
        eval={**LATE, **FINAL},
    )
    jobs = [every, stops, ends]
    done = train_in_turn(jobs, ranks)
    assert done.returncode == 0, done.stderr

    assert steps(every, "eval_hard") == [4, 8, 12, 16, 20]
    assert steps(every, "eval") == [4, 20], "the first one, then the throttle, then the last one"
    assert steps(ends, "eval") == steps(ends, "eval_hard") == [status(ends)["step"]]
    early = status(stops)
    assert early["stopped_early"]["step"] == early["step"] < 20
    assert steps(stops, "eval")[-1] == steps(stops, "eval_hard")[-1] == early["step"]
    assert status(ends)["stopped_early"] is None

    for job in jobs:
        said = status(job)
        assert said["state"] == "succeeded"
        last = said["step"]
        assert set(said["evaluations"]) == {"eval", "eval_hard"}
        assert said["evaluation"] == said["evaluations"]["eval"]
        assert said["evaluation_lag"]["steps"] == 0
        assert 0 <= said["evaluation_lag"]["secs"] < 60
        for kind, shards in (("eval", "test-0.h5"), ("eval_hard", "hard.h5")):
            assert list((job.job_dir / kind).glob("events.out.tfevents.*")), kind
            record = records(job, kind)[-1]
            wanted = in_one_process(job, last, shards)
            for name, value in wanted.items():
                assert record[name] == pytest.approx(value, abs=2e-6), (job.folder, kind, name)
                assert said["evaluations"][kind] == {"step": last, **{n: record[n] for n in wanted}}
            assert len(steps(job, kind)) == len(set(steps(job, kind))), "none twice"

    # Finished jobs, started again: they look, and do nothing.
    before = {job: (records(job, "eval", "eval_hard"), status(job)["exports"]) for job in jobs}
    # A job that was lost after its last checkpoint, with the evaluations still to come.
    lines = (ends.job_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["kind"] not in ("eval_hard", "export", "end")]
    (ends.job_dir / "metrics.jsonl").write_text("".join(kept))
    done = train_in_turn(jobs, ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(evaluated before)") == 1
    assert f"nothing is left to train: {every.job_dir} is at step 20 of 20 (loss " in done.stdout
    assert f"nothing is left to train: {stops.job_dir} stopped early at step {early['step']} (eval loss " in done.stdout
    for job, (evaluations, exports) in before.items():
        again = records(job, "eval", "eval_hard")
        assert status(job)["state"] == "succeeded"
        assert status(job)["exports"] == exports
        if job is not ends:
            assert again == evaluations
            continue
        assert [(r["kind"], r["step"]) for r in again] == [(r["kind"], r["step"]) for r in evaluations]
        assert [{n: r[n] for n in ("loss", "accuracy")} for r in again] == [
            {n: r[n] for n in ("loss", "accuracy")} for r in evaluations
        ]


def test_a_kill_in_the_last_evaluation_leaves_it_to_the_next_run(make_job: MakeJob) -> None:
    """The first set has been evaluated; the process dies within the second one."""
    job = make(make_job, "killed", {"hooks": ["hooks.py:make"]}, eval={**LATE, **FINAL})
    (job.folder / "hooks.py").write_text(
        "import os, signal\n"
        "import hpc_train as ht\n"
        "class Kill(ht.Hook):\n"
        "    def before_evaluation_batch(self, *about):\n"
        "        if not os.path.exists('killed'):\n"
        "            open('killed', 'w').close()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "def make():\n"
        "    return Kill()\n"
    )
    change(job, run={"save_checkpoints_steps": 100})
    done = train(job)
    assert done.returncode == -9, done.stderr
    assert (steps(job, "eval"), steps(job, "eval_hard")) == ([20], [])
    (first,) = records(job, "eval")
    done = train(job)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(evaluated before)") == 1
    assert (steps(job, "eval"), steps(job, "eval_hard")) == ([20], [20])
    assert status(job)["evaluations"]["eval"]["loss"] == first["loss"]
    assert [Path(path).parent.name for path in status(job)["exports"]] == ["final"]
