"""What jobs leave, written by hand: for tests of those who read it."""

import json

import yaml

NASTY = "<script>alert('x')</script> $x_1$ &amp; \ud800"
SHARES = ("input", "compute", "communication", "apply", "checkpoint", "other")


def record(kind, step, time, **values):
    return {"kind": kind, "step": step, "time": time, **values}


def write_job(folder, records, status=None, job=None, **files):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (folder / "status.json").write_text(json.dumps(status or {}))
    if job is not None:
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def a_job(folder, ranks=2, learning_rate=0.1, name="digits", nasty=NASTY):
    """A job with all there can be: a restart, two evaluation sets, exports, an early stop, an error, a warm start."""
    records = [record("start", 0, 1000.0, ranks=ranks, max_steps=60)]
    for step in range(10, 61, 10):
        time = 1000.0 + step + (500 if step > 30 else 0)
        if step == 40:
            records += [
                record("train", 40, 1045.0, loss=9.0),
                record("start", 30, 1530.0, ranks=ranks, max_steps=60),
            ]
        shares = {part: [0.2] * ranks for part in SHARES}
        rates = [100.0 + rank for rank in range(ranks)]
        records += [
            record("train", step, time, loss=None if step == 20 else 3.0 / step, examples_per_sec=sum(rates),
                   learning_rate=learning_rate, staleness_mean=1.0, staleness_max=2, staleness={"0": 3, "2": 5},
                   by_rank={"examples_per_sec": rates, **shares}),
            record("checkpoint", step, time + 1, secs=0.5, bytes=1000, stall_secs=0.1),
            record("eval", step, time + 2, loss=4.0 / step, accuracy=1 - 5 / step, secs=0.7, lag_steps=2, lag_secs=0.3),
            record(f"eval_{nasty}", step, time + 3, loss=5.0 / step, novelty=float(step), secs=0.7),
        ]  # fmt: skip
    records.insert(
        [r["kind"] for r in records].index("start", 1) + 1,
        record("change", 30, 1530.0, key="params.note", before=None, now=nasty, ignored=""),
    )
    records += [
        record("export", 60, 1570.0, exporter="best", path="/runs/x/export/best/1570"),
        record("export_failed", 60, 1571.0, exporter="mine", error=nasty),
        record("end", 60, 1572.0, state="stopped", reason="early"),
    ]
    status = {
        "state": "failed", "step": 60, "max_steps": 60, "ranks": ranks, "error": {"rank": 1, "message": nasty},
        "stopped_early": {"step": 60, "reason": f"no decrease {nasty}"}, "evaluation_lag": {"steps": 2, "secs": 0.3},
    }  # fmt: skip
    job = {
        "name": name, "params": {"learning_rate": learning_rate, "note": nasty.replace("\ud800", "")},
        "data": {"train": {"batch_size": 16}}, "run": {"strategy": "sync"}, "train": {"max_steps": 60},
    }  # fmt: skip
    environment = {
        "hpc_train": "1.2.3", "python": "3.11", "packages": {"keras": "3.15.1"}, "environment": {"TF_X": nasty},
        "ranks": [{"rank": r, "role": "worker", "host": f"n{r}", "cores": 1, "device": "CPU"} for r in range(ranks)],
    }  # fmt: skip
    more = {"environment": environment, "warm_start": {"source": "/old", "taken": ["a/kernel"], "skipped": []}}
    return write_job(folder, records, status, job, **more)
