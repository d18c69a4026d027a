"""Exporters in jobs: what they leave, what they remember, and what their failures do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.ranks import hpc_train, train, train_in_turn
from tests.support import FINAL, MODEL, Job, records_of, run_program, variables

MakeJob = Callable[..., Job]

LEARNS_THEN_FORGETS = MODEL.replace(
    'keras.optimizers.Adam(params.get("learning_rate", 0.01))',
    "keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([20], [0.5, 50.0]))",
)
"""From step 21 on it gets worse."""

EXPORTERS = {"final": {}, "latest": {"exports_to_keep": 2}, "best": {"metric": "loss", "exports_to_keep": None}}

LOAD = """
import json, sys
sys.modules["hpc_train"] = sys.modules["keras"] = None
import numpy as np, tensorflow as tf
found = []
for path in sys.argv[1:]:
    serve = tf.saved_model.load(path).signatures["serving_default"]
    (name,) = serve.structured_input_signature[1]
    x = np.arange(24, dtype=np.float32).reshape(3, 8) / 24
    (many,), (one,) = serve(**{name: tf.constant(x)}).values(), serve(**{name: tf.constant(x[:1])}).values()
    np.testing.assert_allclose(one, many[:1], rtol=1e-5)
    found.append([name, many.numpy().tolist()])
print(json.dumps(found))
"""


def records(job: Job, kind: str) -> list[dict[str, Any]]:
    return records_of(job.job_dir, kind)


def status(job: Job) -> dict[str, Any]:
    return dict(json.loads((job.job_dir / "status.json").read_text()))


def exports(job: Job, name: str) -> dict[int, Path]:
    """An exporter's exports by their steps."""
    found = {}
    for path in sorted((job.job_dir / "export" / name).glob("[0-9]*")):
        if (path / "hpc_train.json").exists():
            found[json.loads((path / "hpc_train.json").read_text())["step"]] = path
    return found


def bests(job: Job) -> list[int]:
    """Steps of evaluations that were better than all before."""
    best, found = float("inf"), []
    for record in records(job, "eval"):
        if record["loss"] < best:
            best = record["loss"]
            found.append(record["step"])
    return found


def predicted(job: Job, step: int, x: np.ndarray) -> np.ndarray:
    """What the checkpoint's variables give, by NumPy alone."""
    arrays = {name.removeprefix("model/"): array for name, array in variables(job.job_dir, step).items()}
    inner, outer = sorted({name.rpartition(".")[0] for name in arrays if name.endswith(".kernel")}, key=len)
    hidden = np.tanh(x @ arrays[f"{inner}.kernel"] + arrays[f"{inner}.bias"])
    return np.asarray(hidden @ arrays[f"{outer}.kernel"] + arrays[f"{outer}.bias"])


def exporting_job(make_job: MakeJob, name: str, **run: Any) -> Job:
    return make_job(
        name,
        model=LEARNS_THEN_FORGETS,
        run={"save_checkpoints_steps": 5, "keep_checkpoint_max": 0, **run},
        eval={"exporters": EXPORTERS, "eval_every_checkpoint": True},
    )


def train_further(job: Job) -> None:
    job.file.write_text(job.file.read_text().replace("max_steps: 20", "max_steps: 30"))


@pytest.mark.parametrize("ranks", [0, 2])
def test_what_exporters_leave_and_remember(make_job: MakeJob, ranks: int) -> None:
    jobs = [exporting_job(make_job, "one")]
    if ranks:
        jobs.append(exporting_job(make_job, "dedicated", chief="dedicated"))
    done = train_in_turn(jobs, ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    before = {}
    for job in jobs:
        assert [record["step"] for record in records(job, "eval")] == [5, 10, 15, 20]
        assert list(exports(job, "final")) == [20]
        assert list(exports(job, "latest")) == [15, 20]
        assert list(exports(job, "best")) == bests(job)
        assert len(bests(job)) > 1
        made = [(record["exporter"], record["step"]) for record in records(job, "export")]
        assert sorted(made) == sorted(
            [("final", 20), *(("latest", s) for s in (5, 10, 15, 20)), *(("best", s) for s in bests(job))]
        )
        before[job] = exports(job, "best")
        own = job.job_dir / "export" / "latest" / "7"
        own.mkdir()
        train_further(job)

    done = train_in_turn([*jobs, *jobs], ranks)  # the second start has nothing to do
    assert done.returncode == 0, done.stdout + done.stderr
    for job in jobs:
        assert [record["step"] for record in records(job, "eval")] == [5, 10, 15, 20, 25, 30]
        assert list(exports(job, "final")) == [20, 30]
        assert list(exports(job, "latest")) == [25, 30]
        assert (job.job_dir / "export" / "latest" / "7").is_dir(), "what this package did not make stays"
        assert bests(job)[-1] <= 20
        assert exports(job, "best") == before[job], "never a worse one, also after a restart"
        assert sorted(status(job)["exports"]) == sorted(map(str, (exports(job, n)[30] for n in ("final", "latest"))))
        assert not list((job.job_dir / "export").rglob("*.tmp"))
    if ranks:
        load_them(
            jobs[0], [exports(jobs[0], n)[s] for n, s in (("final", 20), ("latest", 30), ("best", bests(job)[0]))]
        )


def load_them(job: Job, paths: list[Path]) -> None:
    """Loads exports in a process that has TensorFlow alone."""
    done = run_program(["python", "-I", "-c", LOAD, *map(str, paths)], job.folder)
    assert done.returncode == 0, done.stderr
    x = np.arange(24, dtype=np.float32).reshape(3, 8) / 24
    for path, (name, values) in zip(paths, json.loads(done.stdout), strict=True):
        assert name == "x"
        step = json.loads((path / "hpc_train.json").read_text())["step"]
        np.testing.assert_allclose(values, predicted(job, step, x), rtol=1e-4, atol=1e-5)


def test_the_chief_of_an_asynchronous_job_exports(make_job: MakeJob) -> None:
    job = exporting_job(make_job, "async", strategy="async")
    done = train_in_turn([job], 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [record["step"] for record in records(job, "eval")] == [5, 10, 15, 20]
    assert (list(exports(job, "final")), list(exports(job, "latest"))) == ([20], [15, 20])
    assert list(exports(job, "best")) == bests(job)
    load_them(job, [exports(job, "final")[20], exports(job, "best")[bests(job)[0]]])


GONE = """
import os
import hpc_train as ht

class TakesAway(ht.Hook):
    chief_only = True

    def after_step(self, step, loss):
        if step == 12:
            os.rename(ASSET, ASSET + ".gone")

def make():
    return TakesAway()
"""


def test_an_exporter_that_fails_takes_no_checkpoint_with_it(make_job: MakeJob) -> None:
    """Its asset is taken away at step 12."""
    jobs = []
    for wish in ("continue", "halt"):
        job = make_job(
            wish,
            run={"on_export_error": wish},
            train={"hooks": ["hooks.py:make"]},
            eval={"exporters": {"latest": {"assets": "classes.txt"}, "final": {}}},
        )
        (job.folder / "classes.txt").write_text("shirt\n")
        (job.folder / "hooks.py").write_text(GONE.replace("ASSET", repr(str(job.folder / "classes.txt"))))
        jobs.append(job)
    done = train_in_turn(jobs, 2)
    assert done.returncode == 1, "the second one has failed"
    assert done.stdout.count("next job") == 1
    goes_on, halted = jobs
    for job in jobs:
        (error,) = status(job)["export_errors"]
        assert (error["exporter"], error["step"]) == ("latest", 20)
        assert "classes.txt" in error["error"]
        (failed,) = records(job, "export_failed")
        assert (failed["exporter"], failed["step"], failed["error"]) == ("latest", 20, error["error"])
        assert list(exports(job, "latest")) == [10], "nothing is left of it"
        assert (next(iter(exports(job, "latest").values())) / "assets" / "classes.txt").read_text() == "shirt\n"
        assert len(variables(job.job_dir, 20)) > 4
        assert [record["step"] for record in records(job, "eval")] == [10, 20]
    assert status(goes_on)["state"] == "succeeded"
    assert list(exports(goes_on, "final")) == [20]
    assert "warning: the exporter 'latest' failed at step 20: " in done.stdout
    assert status(halted)["state"] == "failed"
    assert "the exporter 'latest' failed at step 20, and on_export_error is halt" in done.stderr
    assert "the checkpoint stays" in status(halted)["error"]["message"]

    (halted.folder / "classes.txt").write_text("shirt\n")
    done = train_in_turn([halted], 2)
    assert done.returncode == 0, done.stderr
    assert status(halted)["state"] == "succeeded"
    assert (list(exports(halted, "latest")), list(exports(halted, "final"))) == ([10, 20], [20])
    assert [record["step"] for record in records(halted, "eval")] == [10, 20], "it was evaluated before"


def test_mistakes_are_told_before_work_begins(make_job: MakeJob) -> None:
    exporters = {"best": {"metric": "acuracy"}, "last": {"type": "lattest"}}
    further = {"throttle_secs": -1, "start_delay_secs": -2, "steps": 0, "exporters": {"final": {}}}
    data = {"shards": "data/test-*.h5", "features": "x", "label": "y"}
    in_file = make_job("in_file", eval={"exporters": exporters}, evals={"more": {"data": data, **further}})
    done = train(in_file, 2)
    assert done.returncode == 2
    for said in (
        r"eval\.exporters\.last\.type: 'lattest' is not allowed; did you mean `latest`\? allowed: final, latest, best",
        r"evals\.more\.throttle_secs: -1 is not allowed",
        r"evals\.more\.start_delay_secs: -2 is not allowed",
        r"evals\.more\.steps: 0 is not allowed",
    ):
        assert len(re.findall(said, done.stderr)) == 1, done.stderr
    assert not in_file.job_dir.exists()

    same = make_job("same", eval=FINAL, evals={"more": {"data": data, "exporters": {"final": {}}}})
    done = train(same)
    assert done.returncode == 2
    assert "exporters need different names, not final, final" in done.stderr
    assert not same.job_dir.exists()

    exporters = {"best": {"metric": "acuracy"}, "final": {"assets": ["no.txt", "nor.txt"]}}
    unknown = make_job("unknown", eval={"exporters": exporters})
    done = train(unknown, 2)
    assert done.returncode == 2
    said = "exporter 'best': metric 'acuracy' is none of this model; did you mean `accuracy`? allowed: loss, accuracy"
    assert done.stderr.count(said) == 1, done.stderr
    assert "exporter 'final': there is no file " in done.stderr
    assert not unknown.job_dir.exists()


def test_exporting_a_checkpoint_and_predicting_with_it(make_job: MakeJob) -> None:
    job = make_job(test_rows=(50, 33), eval=FINAL)
    assert train(job, 2).returncode == 0

    def command(ranks: int, *words: object) -> Any:
        return hpc_train(list(map(str, words)), ranks, job.folder)

    done = command(0, "export", job.job_dir, "--step", 10)
    assert done.returncode == 0, done.stderr
    (export,) = exports(job, "manual").values()
    assert done.stdout.strip().splitlines()[-1] == f"export of step 10: {export}"
    for ranks, chosen, step in ((0, export, 10), (2, job.job_dir / "export" / "final", 20)):
        done = command(ranks, "predict", chosen, "--shards", "data/test-*.h5", "--out", f"out-{ranks}/p-*.h5")
        assert done.returncode == 0, done.stderr
        assert "done: 83 rows predicted" in done.stdout
        for number, rows in enumerate((50, 33)):
            with h5py.File(job.folder / "data" / f"test-{number}.h5") as file:
                x = file["x"][()]
            with h5py.File(job.folder / f"out-{ranks}" / f"p-{number}.h5") as file:
                (given,) = [file[name][()] for name in file]
            assert len(given) == rows
            np.testing.assert_allclose(given, predicted(job, step, x), rtol=1e-4, atol=1e-5)
    done = command(0, "export", job.job_dir, "--step", 15)
    assert done.returncode == 2
    assert "no checkpoint of step 15; there are those of 10, 20" in done.stderr
    done = command(2, "predict", export, "--shards", "data/test-*.h5", "--out", "none/p-*.h5", "--features", "x=y")
    assert done.returncode == 2, done.stdout
    for number in (0, 1):
        said = f"test-{number}.h5: dataset 'y' is int64 [rows], but the export takes float32 [rows, 8]"
        assert done.stderr.count(said) == 1, done.stderr
    assert not (job.folder / "none").exists()
