"""The programs that examples/ runs as jobs: what they learn, and that they stop, go on and fail as a job has to."""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
import tensorflow as tf
import xgboost as xgb

from hpc_train.data import write_shards
from tests.forks import forked, forks
from tests.support import LIMIT_SECS, REPOSITORY, environment, mpirun, run_program, run_ranks, wait_for

SCIKIT_LEARN, XGBOOST, HOROVOD, TF_DISTRIBUTE = (
    REPOSITORY / "examples" / n for n in ("scikit_learn", "xgboost", "horovod_script", "tf_distribute")
)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
ENVIRONMENT |= {"HOROVOD_CYCLE_TIME": "0.1", "OMPI_MCA_mpi_yield_when_idle": "1"}
MANY = 1_000_000


def task(job_dir: Path, *more: object) -> list[str]:
    return ["-m", "trainer.task", "--job-dir", *map(str, (job_dir, *more))]


def run(example: Path, ranks: int, job_dir: Path, *more: object) -> subprocess.CompletedProcess[str]:
    """Runs an example's program as its job does: in its folder, with 0 ranks alone."""
    return run_ranks(ranks, task(job_dir, *more), example, **ENVIRONMENT)


def run_and_stop(
    example: Path, ranks: int, job_dir: Path, *more: object, after: str, number: int = signal.SIGUSR1
) -> tuple[int, str]:
    """The same; asks it to stop once `after` has been printed. The exit code, and all that was printed."""
    log = job_dir.with_suffix(".log")
    with open(log, "w") as out:
        process = subprocess.Popen(
            [*mpirun(ranks), *forked(task(job_dir, *more), environment())],
            cwd=example,
            env=environment(**ENVIRONMENT),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        for wanted, times in ((after, 1), ("asked to stop", 3)):  # it may come again while the program shuts down
            wait_for(lambda: wanted in log.read_text() or process.poll() is not None, log.read_text)
            assert wanted in log.read_text()
            for _ in range(times):
                process.send_signal(number)
                time.sleep(0.03)
        return process.wait(LIMIT_SECS), log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(LIMIT_SECS)


def succeed(done: subprocess.CompletedProcess[str], job_dir: Path) -> dict[str, Any]:
    """The metrics that a program has left."""
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((job_dir / "model" / "metrics.json").read_text())
    assert f"accuracy {found['accuracy']:.4f}" in done.stdout
    return found


def module_of(example: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"task_of_{example.name}", example / "trainer" / "task.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_three_ensembles_of_one_job_file(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "examples/ensemble", tmp_path / "ensemble")
    prepare = runpy.run_path(str(REPOSITORY / "examples/fashion_mnist/prepare.py"))
    for part, rows in zip(("train", "test"), prepare["from_digits"](), strict=True):
        write_shards(tmp_path / "fashion_mnist/data" / part, rows, shards=1)
    ways = {"mean": [], "snapshot": ["run.learning_rate_cycle=12"], "weights": ["ensemble.cycle=3"]}
    for way, more in ways.items():
        given = ["train.max_steps=24", "ensemble.members=2", f"ensemble.combine={way}", *more]
        words = [word for setting in given for word in ("--set", setting)]
        command = ["hpc-train", "ensemble", "ensemble/job.yaml", "--ensemble", f"runs/{way}", *words]
        done = run_program(command, tmp_path, **forks(environment()))
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads((tmp_path / "runs" / way / "ensemble.json").read_text())
        assert result["rows"] == 297 and (tmp_path / "runs" / way / result["export"] / "model.keras").is_file()
        losses = [member["loss"] for member in result["each"]]
        assert len(losses) == 2 and result["mean"]["loss"] < max(losses) + 0.1


def temporaries(job_dir: Path) -> list[str]:
    return [path.name for path in job_dir.rglob("*") if "tmp" in path.name]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 3), (signal.SIGTERM, 4)])
def test_scikit_learn_keeps_each_result_and_goes_on(tmp_path: Path, number: int, code: int) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    grid = ["--grid", 0.001, 0.1, 1, 10, 100, "--folds", 8]
    ended, said = run_and_stop(SCIKIT_LEARN, 0, stopped, *grid, after="C=0.001:", number=number)
    assert ended == code, said
    kept = {path.name for path in (stopped / "grid").iterdir()}
    assert "C=0.001.json" in kept and len(kept) < 5
    assert not (stopped / "model").exists()

    done = run(SCIKIT_LEARN, 0, stopped, *grid)
    metrics = succeed(done, stopped)
    assert done.stdout.count("kept from an earlier run") == len(kept)
    assert metrics == succeed(run(SCIKIT_LEARN, 0, whole, *grid), whole)
    assert metrics["accuracy"] > 0.93
    assert metrics["C"] == float(max(metrics["cross_validation"], key=metrics["cross_validation"].get)) > 0.001
    assert not temporaries(stopped)

    _, x, _, y = module_of(SCIKIT_LEARN).parse(["--job-dir", "unused"]).parts
    with np.load(stopped / "model" / "model.npz", allow_pickle=False) as model:
        scores = (x - model["mean"]) / model["scale"] @ model["coefficients"].T + model["intercept"]
        predicted = model["classes"][scores.argmax(axis=1)]
    assert (predicted == y).mean() == pytest.approx(metrics["accuracy"])
    assert len(y) == metrics["rows"]["test"] == 360


def test_scikit_learn_takes_rows_of_ones_own_and_keeps_no_results_of_others(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(120, 3))
    np.savetxt(tmp_path / "rows.csv", np.column_stack([x, x[:, 0] > x[:, 1]]), delimiter=",")
    for rows in (120, 100):
        done = run(SCIKIT_LEARN, 0, tmp_path / "job", "--data", tmp_path / "rows.csv", "--rows", rows, "--grid", 1)
        assert succeed(done, tmp_path / "job")["accuracy"] > 0.85
        assert "kept" not in done.stdout
    for wrong, said in (
        (["--data", tmp_path / "none.csv"], "none.csv not found"),
        (["--grid", 0], "--grid: 0.0 is not allowed; allowed: numbers above 0"),
        (["--folds", 1], "--folds: 1 is not allowed; allowed: 2 to "),
    ):
        done = run(SCIKIT_LEARN, 0, tmp_path / "wrong", *wrong)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize("ranks", [0, 1, 2, 3])
def test_xgboost_learns_from_the_rows_of_all_ranks(tmp_path: Path, ranks: int) -> None:
    job_dir = tmp_path / "job"
    metrics = succeed(run(XGBOOST, ranks, job_dir, "--rounds", 15, "--save-rounds", 5), job_dir)
    assert (metrics["rounds"], metrics["ranks"]) == (15, ranks or 1)
    assert metrics["accuracy"] > 0.88
    kept = sorted(path.name for path in (job_dir / "checkpoints").iterdir())
    assert kept == ["round-000010.ubj", "round-000015.ubj"]

    x, y, _ = module_of(XGBOOST).load(None, None)
    held_out = metrics["rows"]["test"]
    assert held_out == 359 and metrics["rows"]["train"] == len(x) - held_out
    model = xgb.Booster(model_file=job_dir / "model" / "model.json")
    predicted = model.predict(xgb.DMatrix(x[:held_out])).argmax(axis=1)
    assert (predicted == y[:held_out]).mean() == pytest.approx(metrics["accuracy"])
    # A row of class k begins with the Hessian 0.18 = 2 * 0.1 * 0.9: the root of a tree tells how many rows it has seen.
    roots = [
        tree["sum_hessian"][0]
        for tree in json.loads(model.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"][:10]
    ]
    assert sum(roots) / 10 == pytest.approx(0.18 * metrics["rows"]["train"], rel=0.02)


def test_xgboost_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    code, said = run_and_stop(XGBOOST, 2, stopped, "--rounds", MANY, "--save-rounds", 3, after="round 3/")
    assert code == 3, said
    newest = max((stopped / "checkpoints").iterdir()).name
    *_, saved, ended = [line for line in said.splitlines() if line.startswith(("round ", "asked to stop"))]
    assert saved == f"round {int(newest[6:12])}/{MANY}: saved", said  # mpirun may have a word between the two
    assert ended.startswith("asked to stop")
    rounds = int(newest[6:12]) + 4

    done = run(XGBOOST, 2, stopped, "--rounds", rounds, "--save-rounds", 3)
    assert f"goes on from round {rounds - 4}, on 2 ranks" in done.stdout
    metrics = succeed(done, stopped)
    assert metrics == succeed(run(XGBOOST, 2, whole, "--rounds", rounds), whole)
    model = "model/model.json"
    assert (stopped / model).read_bytes() == (whole / model).read_bytes()
    assert not temporaries(stopped)

    more = succeed(run(XGBOOST, 3, stopped, "--rounds", rounds + 2), stopped)
    assert (more["rounds"], more["ranks"]) == (rounds + 2, 3)
    done = run(XGBOOST, 0, stopped, "--rounds", rounds + 4, "--depth", 2)
    assert done.returncode == 2
    assert "is of other settings or rows" in done.stderr


def test_xgboost_ends_all_ranks_where_one_cannot_go_on(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "checkpoints").write_text("a file")
    done = run(XGBOOST, 2, tmp_path / "job", "--rounds", 2)
    assert done.returncode == 1
    assert done.stderr.count("FileExistsError") == 1
    for ranks, wrong, said in (
        (2, ["--interface", "no0"], "--interface no0: No such device; allowed: "),
        (2, ["--rows", 19], "19 rows are too few for 2 ranks"),
        (0, ["--rounds", 0], "--rounds: 0 is not allowed; allowed: above 0"),
        (0, ["--data", tmp_path / "none.csv"], "none.csv not found"),
    ):
        done = run(XGBOOST, ranks, tmp_path / "wrong", *wrong)
        assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "wrong").exists()


def test_xgboost_gives_other_hosts_an_address_that_they_reach() -> None:
    address = module_of(XGBOOST).reachable_address
    assert address(["n1", "n1"], None) == "127.0.0.1"
    assert address(["n1", "n1"], "lo") == "127.0.0.1"
    for hosts, interface in ((["n1", "127.0.0.2"], None), (["n1", "n2"], "lo")):
        with pytest.raises(ValueError, match=f"{hosts[1]} cannot reach n1 at 127.0.0.1; .* --interface"):
            address(hosts, interface)
    with pytest.raises(ValueError, match=r"n1 does not reach no-such-host\.invalid: .* --interface"):
        address(["n1", "no-such-host.invalid"], None)
    with pytest.raises(ValueError, match="--interface no0: No such device"):
        address(["n1", "n2"], "no0")


def test_horovod_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    code, said = run_and_stop(HOROVOD, 2, stopped, "--steps", MANY, "--save-steps", 10, after="step 10/")
    assert code == 3, said
    newest = max((stopped / "checkpoints").iterdir()).name
    steps = int(newest[5:13]) + 25
    assert f"step {steps - 25}/{MANY}" in said and "asked to stop" in said

    done = run(HOROVOD, 2, stopped, "--steps", steps, "--save-steps", 10)
    assert f"goes on from step {steps - 25}, on 2 ranks" in done.stdout
    metrics = succeed(done, stopped)
    assert metrics == succeed(run(HOROVOD, 2, whole, "--steps", steps), whole)
    assert (metrics["step"], metrics["ranks"], metrics["rows"]) == (steps, 2, 297)
    name = f"checkpoints/step-{steps:08d}.weights.h5"
    assert variables(stopped / name).keys() == variables(whole / name).keys()
    for path, values in variables(whole / name).items():
        np.testing.assert_array_equal(variables(stopped / name)[path], values, err_msg=path)
    assert not temporaries(stopped)


def variables(path: Path) -> dict[str, np.ndarray]:
    """All that a file of Keras's save_weights holds, by path."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    assert any(name.startswith("optimizer/") for name in found)
    return found


def test_horovod_script_learns_alone_and_leaves_a_model_for_keras(tmp_path: Path) -> None:
    job_dir = tmp_path / "job"
    metrics = succeed(run(HOROVOD, 0, job_dir, "--steps", 150), job_dir)
    assert metrics["accuracy"] > 0.85 and metrics["ranks"] == 1
    program = f"import keras; model = keras.models.load_model({str(job_dir / 'model' / 'model.keras')!r})"
    done = run_ranks(0, ["-c", f"{program}; print(model.output_shape, int(model.optimizer.iterations))"], tmp_path)
    assert done.stdout == "(None, 10) 150\n", done.stderr


def test_horovod_script_ends_all_ranks_where_one_cannot_go_on(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    done = run(HOROVOD, 2, tmp_path, "--steps", 2)
    assert done.returncode == 1
    assert done.stderr.count("FileExistsError") == 1
    done = run(HOROVOD, 0, tmp_path / "wrong", "--data", tmp_path)
    assert done.returncode == 2
    assert "has no train-*.h5; run examples/fashion_mnist/prepare.py" in done.stderr
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(("cluster", "ranks"), [("worker=2", 2), ("chief=1,worker=1,ps=1", 3)])
def test_tf_distribute_stops_together_and_goes_on(tmp_path: Path, cluster: str, ranks: int) -> None:
    """A job whose programs are members of TensorFlow's cluster, as `hpc-train submit` starts them."""

    def start(run: str, steps: int) -> subprocess.Popen[bytes]:
        program = ["-m", "hpc_train.jobs.cluster", cluster, str(tmp_path), *task(tmp_path, "--steps", steps)]
        return subprocess.Popen(
            [*mpirun(ranks), sys.executable, *program],
            cwd=TF_DISTRIBUTE,
            env=environment(HPC_TRAIN_LAUNCHED=run, **ENVIRONMENT),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    checkpoints = tmp_path / "checkpoints"
    first = start("1", MANY)
    try:
        wait_for(lambda: any(checkpoints.glob("*.index")) or first.poll() is not None, "a checkpoint")
        assert first.poll() is None
        first.send_signal(signal.SIGUSR1)
        assert first.wait(LIMIT_SECS) == 3
    finally:
        first.kill()
    stopped = tf.train.load_variable(str(checkpoints), "step/.ATTRIBUTES/VARIABLE_VALUE")
    assert 0 < stopped < MANY
    second = start("2", int(stopped) + 50)
    try:
        assert second.wait(LIMIT_SECS) == 0
    finally:
        second.kill()
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["step"] == stopped + 50 and abs(found["slope"] - 3) < 1e-3 and abs(found["shift"] + 1) < 1e-3
