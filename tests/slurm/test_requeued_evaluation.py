"""Early stopping and exports of a job that Slurm starts again, on two nodes of a real Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import (
    MODEL,
    TRAIN_SH,
    ended_as,
    log,
    set_step_secs,
    starts,
    status,
    write_job,
)
from tests.support import records_of, wait_for

PEAK = 20
PATIENCE = 60
LAST = PEAK + PATIENCE + 1
"""The evaluation of step 80 is the first one that the rule acts on, and so the next step is the last one."""

SCORED_MODEL = (
    MODEL.replace('metrics=["accuracy"]', "metrics=[score_of(model)]")
    + f"""

HERE = Path(__file__).parent


def score_of(model):
    \"\"\"A metric that is best at step {PEAK}. For the last checkpoint it waits while there is a file `hold`.\"\"\"

    def wait():
        if (HERE / "runs/tiny/early_stop.json").exists():
            (HERE / "evaluates_the_last").touch()
            for _ in range(36_000):
                if not (HERE / "hold").exists():
                    return
                time.sleep(0.1)

    def score(y_true, y_pred):
        tf.py_function(wait, [], [])
        steps = tf.cast(model.optimizer.iterations, tf.float32)
        return tf.fill([tf.shape(y_pred)[0]], -tf.abs(steps - {PEAK}))

    return score
"""
)


def exported(job_dir: Path, exporter: str) -> list[int]:
    """The steps of an exporter's exports, oldest first."""
    folders = sorted((job_dir / "export" / exporter).glob("[0-9]*"))
    return [json.loads((folder / "hpc_train.json").read_text())["step"] for folder in folders]


def test_a_job_started_again_stops_early_as_if_it_had_run_through_and_exports_once(
    slurm_cluster: SlurmCluster, submit: Callable[..., int], folder: Path
) -> None:
    """Warned before its rule applies, it counts the evaluations made before; requeued in its last evaluation, after the
    decision, it trains no more. The best exporter remembers the first run's best.
    """
    job_dir = folder / "runs/tiny"
    (folder / "model.py").write_text(SCORED_MODEL)
    write_job(folder, max_steps=1000, save_checkpoints_steps=10)
    job_file = yaml.safe_load((folder / "job.yaml").read_text())
    rule = {"metric_name": "score", "max_steps_without_increase": PATIENCE, "run_every_steps": 1}
    job_file["train"]["early_stopping"] = {"stop_if_no_increase": rule}
    job_file["run"] |= {"save_summary_steps": 5, "report": True}
    job_file["eval"] |= {"start_delay_secs": 0, "exporters": {"final": {}, "best": {"metric": "score", "mode": "max"}}}
    (folder / "job.yaml").write_text(yaml.safe_dump(job_file))
    (folder / "hold").touch()
    set_step_secs(folder, 0.1)

    job = submit(folder, "--nodes=2", "--ntasks-per-node=1", TRAIN_SH, "job.yaml")
    wait_for(
        lambda: any(record["step"] > PEAK for record in records_of(job_dir, "eval")), "an evaluation that is worse"
    )
    slurm_cluster.scancel(job, "--batch", "--signal=USR1")
    assert slurm_cluster.wait(job, until=["PENDING"]).state == "PENDING", log(folder)
    warned = status(job_dir)["step"]
    assert PEAK < warned < LAST
    assert not (job_dir / "early_stop.json").exists()
    set_step_secs(folder, 0.0)

    wait_for((folder / "evaluates_the_last").exists, "the last evaluation")
    decision = (job_dir / "early_stop.json").read_text()
    assert json.loads(decision)["step"] == LAST
    assert exported(job_dir, "final") == []
    slurm_cluster.run(["scontrol", "requeue", str(job)])
    assert slurm_cluster.wait(job, until=["PENDING"]).state == "PENDING", log(folder)
    lines = (job_dir / "metrics.jsonl").read_text().splitlines()
    (folder / "hold").unlink()

    assert ended_as(slurm_cluster.wait(job)) == ("COMPLETED", 0, 2), log(folder)
    current = status(job_dir)
    assert (current["state"], current["step"]) == ("succeeded", LAST)
    assert current["stopped_early"] == {"step": LAST, "reason": json.loads(decision)["reason"]}
    assert f"best 0 at step {PEAK}, now at {LAST - 1}" in decision
    assert (job_dir / "early_stop.json").read_text() == decision
    assert starts(job_dir) == [0, warned, LAST]
    since = [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()[len(lines) :]]
    assert [record["kind"] for record in since] == ["start", "eval", "export", "end"]
    evaluated = {*range(10, LAST, 10), LAST} - {warned}  # a step that a warning comes at is saved, not evaluated
    assert [record["step"] for record in records_of(job_dir, "eval")] == sorted(evaluated)
    assert exported(job_dir, "best") == [10, PEAK]
    assert exported(job_dir, "final") == [LAST]
    assert current["evaluations"]["eval"]["score"] == PEAK - LAST
    assert Path(current["report"]).is_file()
