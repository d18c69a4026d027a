"""One program under every launcher, and what it leaves behind."""

from __future__ import annotations

import json
import re
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

from tests.ranks import train
from tests.support import BIN, FINAL, REPOSITORY, SOAK, Job, run_program, run_ranks

MakeJob = Callable[..., Job]
PROGRAMS = Path(__file__).parent / "programs"

USE_EXPORT = """
import sys
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
serve = loaded.signatures["serving_default"]
(name, spec), = serve.structured_input_signature[1].items()
assert spec.shape[0] is None, spec
x = np.load(sys.argv[2])
(out,) = serve(**{name: tf.constant(x)}).values()
np.save(sys.argv[3], out.numpy())
assert not [m for m in sys.modules if m.startswith("hpc_train")]
"""


def test_a_job_leaves_what_the_documentation_says(make_job: MakeJob, tmp_path: Path) -> None:
    run = {"save_checkpoints_steps": 5, "keep_checkpoint_max": 2, "report": True}
    job = make_job(train_rows=[50, 77, 33], run=run, eval=FINAL)
    command = [sys.executable, "-m", "hpc_train", "launch", "-n", "2", str(job.file), "--job-dir", str(job.job_dir)]
    done = run_program(command, job.folder)
    assert done.returncode == 0, done.stderr
    first = "hpc-train: starting 2 ranks; Python, MPI and TensorFlow take some seconds each time\n"
    assert done.stderr == first, "TensorFlow's chatter is silenced"

    table = done.stdout.splitlines()[:3]
    assert table[0].split() == ["rank", "role", "host", "cores", "device", "shards", "seed"]
    assert [line.split()[:2] for line in table[1:]] == [["0", "chief"], ["1", "worker"]]
    assert "global batch 32 (16 x 2 ranks)" in done.stdout
    assert re.search(r"step 20/20  loss \d\.\d+  [\d,]+ examples/s", done.stdout)

    assert stat.S_IMODE(job.job_dir.stat().st_mode) == 0o700
    names = {path.name for path in job.job_dir.iterdir()}
    assert names == {
        "job.yaml", "environment.json", "data.json", "status.json", "metrics.jsonl",
        "checkpoints", "train", "eval", "ranks", "export", "logs", "report.html",
    }  # fmt: skip
    kept = ["best.json", "step-00000015", "step-00000020"]
    assert sorted(p.name for p in (job.job_dir / "checkpoints").iterdir()) == kept
    resolved = yaml.safe_load((job.job_dir / "job.yaml").read_text())
    assert resolved["run"]["keep_checkpoint_max"] == 2
    assert resolved["eval"]["steps"] is None
    environment = json.loads((job.job_dir / "environment.json").read_text())
    assert environment["packages"]["horovod"] == "0.28.1"
    assert len(environment["ranks"]) == 2
    status = json.loads((job.job_dir / "status.json").read_text())
    assert (status["state"], status["step"], status["max_steps"]) == ("succeeded", 20, 20)
    records = [json.loads(line) for line in (job.job_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(r["kind"], r["step"]) for r in records if r["kind"] != "checkpoint"] == [
        ("start", 0), ("first_step", 1), ("eval", 5), ("eval", 10), ("eval", 15), ("train", 20), ("eval", 20),
        ("export", 20), ("rank_times", 20), ("end", 20),
    ]  # fmt: skip
    assert [r["step"] for r in records if r["kind"] == "checkpoint"] == [5, 10, 15, 20]
    losses = [r["loss"] for r in records if r["kind"] == "eval"]
    assert 0 < losses[-1] < losses[0]
    for folder in ("train", "eval", "ranks/rank_0", "ranks/rank_1"):
        assert list((job.job_dir / folder).glob("events.out.tfevents.*"))
    assert status["report"] == str(job.job_dir / "report.html")

    (export,) = (job.job_dir / "export" / "final").iterdir()
    assert json.loads((export / "hpc_train.json").read_text())["step"] == 20
    x = np.random.default_rng(0).normal(size=(7, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    program = ["-c", USE_EXPORT, export, tmp_path / "x.npy", tmp_path / "out.npy"]
    done = run_ranks(0, program, tmp_path, anew=True)
    assert done.returncode == 0, done.stderr
    with h5py.File(job.job_dir / "checkpoints" / "step-00000020" / "state.h5") as file:
        weights = {name.split(".", 1)[1]: dataset[()] for name, dataset in file["model"].items()}
    hidden = np.tanh(x @ weights["dense.kernel"] + weights["dense.bias"])
    expected = hidden @ weights["dense_1.kernel"] + weights["dense_1.bias"]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("launcher", ["python", "mpirun", "horovodrun"])
def test_a_users_own_script(launcher: str, tmp_path: Path) -> None:
    """Input functions of the user's own, which end before max_steps and with different numbers of batches."""
    program = [PROGRAMS / "own_input.py", tmp_path / "run"]
    if launcher == "horovodrun":
        done = run_program(
            [str(BIN / "horovodrun"), "-np", "2", sys.executable, *map(str, program)], tmp_path, timeout=600
        )
    else:
        done = run_ranks({"python": 0, "mpirun": 2}[launcher], program, tmp_path, anew=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("script done ['global_step', 'loss', 'mae']") == (1 if launcher == "python" else 2)
    assert "(end of input)" in done.stdout


@pytest.mark.parametrize(("name", "steps"), [("job.yaml", 1000), ("async.yaml", 4200)])
def test_the_demo_on_four_ranks_with_uneven_shards(name: str, steps: int, tmp_path: Path) -> None:
    shutil.copytree(
        REPOSITORY / "examples" / "fashion_mnist", tmp_path / "demo", ignore=shutil.ignore_patterns("data", "*.pyc")
    )
    random = np.random.default_rng(1)
    for part, counts in (("train", [999, 64, 1, 700, 513]), ("test", [301, 55])):
        for i, rows in enumerate(counts):
            (tmp_path / "demo" / "data").mkdir(exist_ok=True)
            with h5py.File(tmp_path / "demo" / "data" / f"{part}-{i}.h5", "w") as file:
                file["image"] = random.integers(0, 256, (rows, 28, 28), dtype=np.uint8)
                file["label"] = random.integers(0, 10, rows, dtype=np.uint8)
    job = Job(tmp_path / "demo")
    described = (job.folder / name).read_text()
    assert f"max_steps: {steps}" in described
    job.file.write_text(described.replace(f"max_steps: {steps}", "max_steps: 25"))
    done = run_ranks(4, ["-m", "hpc_train", "train", job.file, "--job-dir", job.job_dir], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((job.job_dir / "status.json").read_text())["state"] == "succeeded"


@pytest.mark.random
@pytest.mark.skipif(SOAK == 1, reason="make soak: trains for two minutes; .ci/run makes the other demo")
def test_the_asynchronous_demo_reaches_its_accuracy(tmp_path: Path) -> None:
    shutil.copytree(
        REPOSITORY / "examples" / "fashion_mnist", tmp_path / "demo", ignore=shutil.ignore_patterns("data", "*.pyc")
    )
    done = run_program([sys.executable, "demo/demo.py", "--strategy", "async"], tmp_path, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_several_features_reach_the_model_by_name(make_job: MakeJob) -> None:
    """Trains a model with two inputs, two outputs and loss weights against the same in Keras alone."""
    model = """
import keras
from keras import layers

def build_model(params):
    keras.utils.set_random_seed(3)
    x, z = keras.Input((8,), name="x"), keras.Input((2,), name="z")
    hidden = layers.Dense(6, activation="tanh", kernel_regularizer="l2")(layers.Concatenate()([x, z]))
    y, b = layers.Dense(4, name="y")(hidden), layers.Dense(1, name="b")(hidden)
    model = keras.Model({"x": x, "z": z}, {"y": y, "b": b})
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
        loss={"y": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "b": "mse"},
        loss_weights={"y": 1.0, "b": 0.3},
    )
    return model
"""
    data = {"features": ("x", "z"), "label": ("y", "b"), "shuffle": "none"}
    job = make_job(train_rows=[64], model=model, data={"train": data, "eval": dict(data)}, train={"max_steps": 4})
    for path in (job.folder / "data").iterdir():
        with h5py.File(path, "a") as file:
            random = np.random.default_rng(5)
            file["z"] = random.normal(size=(len(file["x"]), 2)).astype(np.float32)
            file["b"] = random.normal(size=(len(file["x"]), 1)).astype(np.float32)
    done = train(job)
    assert done.returncode == 0, done.stderr
    code = f"""
import sys; sys.path.insert(0, {str(job.folder)!r})
import h5py, numpy as np
from model import build_model
with h5py.File({str(job.folder / "data" / "train-0.h5")!r}) as f:
    a = {{k: f[k][()] for k in f}}
model = build_model({{}})
model.fit({{"x": a["x"], "z": a["z"]}}, {{"y": a["y"], "b": a["b"]}}, batch_size=16, shuffle=False, verbose=0)
with h5py.File({str(job.job_dir / "checkpoints" / "step-00000004" / "state.h5")!r}) as f:
    saved = sorted(f["model"].values(), key=lambda d: d.attrs["index"])
    for variable, dataset in zip(model.variables, saved, strict=True):
        np.testing.assert_allclose(variable.numpy(), dataset[()], atol=1e-6)
print("equal")
"""
    done = run_ranks(0, ["-c", code], job.folder)
    assert done.stdout.endswith("equal\n"), done.stderr
