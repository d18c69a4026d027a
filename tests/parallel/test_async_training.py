"""What asynchronous training promises, on real ranks. Runs are shared: most of their time is TensorFlow's start."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from tests.ranks import in_turn
from tests.support import FINAL, MODEL, Job, largest_staleness, merge, records_of, run_program, run_ranks, variables

MakeJob = Callable[..., Job]
PROGRAMS = Path(__file__).parent / "programs"
ONCE = {"start_delay_secs": 1000}
"""Evaluate at the end alone."""
TCP = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_osc": "pt2pt"}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

ADAM_MODEL = MODEL.replace('params.get("learning_rate", 0.01)', "0.01, clipvalue=0.05")

RICH_MODEL = """
import keras
from keras import layers

def build_model(params):
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 2, "int32") % 10),
        layers.Embedding(10, 3),
        layers.Flatten(),
        layers.Dense(16, activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.3),
        layers.Dense(4),
    ])
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 40)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, clipnorm=0.5, use_ema=True, ema_momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
"""
"""Dropout, batch normalisation, a sparse gradient, a schedule, clipping, averaged weights."""

WIDE_MODEL = """
import atexit, json, os
import keras
from keras import layers

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])

def build_model(params):
    model = keras.Sequential([
        keras.Input((8,)),
        layers.Dense(64, activation="relu"),
        layers.BatchNormalization(),
        layers.Dense(512, activation="relu"),
        layers.Dense(4),
    ])
    model.compile(
        optimizer=keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.005, 200), clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    averages = lambda: {v.path.split("/")[-1]: v.numpy().tolist() for v in model.non_trainable_variables}
    atexit.register(lambda: open(f"{params['out']}/{rank}.json", "w").write(json.dumps(averages())))
    return model
"""
"""Rank r leaves its averages of batch normalisation in <out>/<r>.json at its end."""

ZERO_MODEL = """
import keras
from keras import layers

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(48, activation="tanh"), layers.Dense(4)])
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.PiecewiseConstantDecay([9], [0.01, 0.0])),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        loss_weights=[params["loss_weight"]],
    )
    return model
"""
"""After ten steps the learning rate is 0; with loss_weight 0 the gradient is, too."""


def write_changes(job: Job, **changes: Any) -> None:
    job.file.write_text(yaml.safe_dump(merge(yaml.safe_load(job.file.read_text()), changes)))


def trained(ranks: int, *jobs: Job | tuple[Job, str], **env: str) -> list[str]:
    """Trains jobs one after the other in the same ranks, some with an option; what each printed."""
    pairs = [job if isinstance(job, tuple) else (job, "") for job in jobs]
    commands = [["train", str(j.file), "--job-dir", str(j.job_dir), *filter(None, [option])] for j, option in pairs]
    done = in_turn(commands, ranks, [job.folder for job, _ in pairs], fresh=True, **env)
    for each in done:
        assert each.returncode == 0, each.stdout + each.stderr
        assert "Traceback" not in each.stderr, each.stderr
    return [each.stdout for each in done]


def status(job: Job) -> dict[str, Any]:
    return dict(json.loads((job.job_dir / "status.json").read_text()))


def records(job: Job, kind: str) -> list[dict[str, Any]]:
    return records_of(job.job_dir, kind)


def saved_steps(job: Job) -> list[int]:
    return sorted(int(path.name[5:]) for path in (job.job_dir / "checkpoints").glob("step-*"))


def rows_read(job: Job, step: int) -> int:
    return CheckpointManager(job.job_dir / "checkpoints", Retention(0)).progress(step)[0].rows_read


def assert_same(ours: Job, theirs: Job, step: int, atol: float = 0.0, but: Sequence[str] = ()) -> None:
    one, two = variables(ours.job_dir, step), variables(theirs.job_dir, step)
    assert one.keys() == two.keys()
    for name, array in one.items():
        if not any(part in name for part in but):
            np.testing.assert_allclose(array, two[name], rtol=0, atol=atol, err_msg=name)


def iteration_of(saved: dict[str, np.ndarray]) -> int:
    """Updates that the optimizer has made."""
    (name,) = [name for name in saved if name.startswith("optimizer/") and name.endswith("iteration")]
    return int(saved[name])


def counts_of(job: Job) -> dict[int, int]:
    """Steps by rank."""
    return {int(rank): count for rank, count in status(job)["steps_by_rank"].items()}


# ---- the same batches as synchronous training


@dataclass(frozen=True)
class Begun:
    """Jobs trained synchronously on two ranks; `zero` is to go on with parameter servers."""

    rich: Job
    adam: Job
    zero: Job
    delayed: Job


@pytest.fixture(scope="module")
def begun(make_shared_job: MakeJob) -> Begun:
    jobs = Begun(
        make_shared_job("rich", model=RICH_MODEL, eval=ONCE),
        make_shared_job("adam", model=ADAM_MODEL, eval=ONCE),
        make_shared_job("zero", model=ZERO_MODEL, eval=ONCE, params={"loss_weight": 1.0}, train={"max_steps": 10}),
        make_shared_job("delayed", model=MODEL, eval=ONCE, train={"max_steps": 8}),
    )
    told = trained(2, jobs.rich, jobs.adam, jobs.zero, (jobs.delayed, "--debug-delay=1:250"))
    assert len(told) == 4
    return jobs


KEEP_MORE = "--set=run.keep_checkpoint_max=7"
"""With a setting changed, a job that has been trained to its end begins all the same."""


@dataclass(frozen=True)
class Three:
    """Jobs trained on one server and two workers."""

    rich: Job
    adam: Job
    averages: Job
    told: list[str]


@pytest.fixture(scope="module")
def three(make_shared_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> Three:
    run = {"strategy": "async", "max_staleness": 0}
    averages = make_shared_job(
        "averages",
        model=WIDE_MODEL,
        params={"out": str(tmp_path_factory.mktemp("averages"))},
        run={"strategy": "async", "max_staleness": 2, "save_checkpoints_steps": 6},
    )
    rich = make_shared_job("rich-async", model=RICH_MODEL, run=run, eval=ONCE)
    adam = make_shared_job("adam-async", model=ADAM_MODEL, run=run, eval=FINAL)
    return Three(rich, adam, averages, trained(3, rich, adam, averages, (adam, KEEP_MORE)))


@pytest.mark.parametrize(("name", "atol"), [("rich", 2e-6), ("adam", 0.0)])
def test_without_staleness_it_is_synchronous_training(begun: Begun, three: Three, name: str, atol: float) -> None:
    ours, theirs = getattr(three, name), getattr(begun, name)
    for step in (10, 20):
        assert_same(ours, theirs, step, atol)
        assert rows_read(ours, step) == rows_read(theirs, step) == step * 32
    metrics, expected = status(ours)["evaluation"], status(theirs)["evaluation"]
    assert metrics == pytest.approx(expected, rel=1e-5)
    (record,) = records(ours, "train")
    assert record["staleness"] == {"0": 40}, "gradients, of which two make a step"
    assert "global batch 32 (16 x 2 workers)" in three.told[0]
    for job in (ours, theirs):
        begun_once = records(job, "first_step")[0]
        assert {"data", "model", "exchange", "trace", "first step"} <= set(begun_once["phases"])
        assert begun_once["secs"] > 0


def test_averages_of_batch_normalisation_are_means_over_the_workers(three: Three) -> None:
    job = three.averages
    out = Path(yaml.safe_load(job.file.read_text())["params"]["out"])
    own = [json.loads((out / f"{rank}.json").read_text()) for rank in (1, 2)]
    saved = variables(job.job_dir, 20)
    for name in ("moving_mean", "moving_variance"):
        values = np.array([worker[name] for worker in own], np.float64)
        assert np.abs(values[0] - values[1]).max() > 1e-4
        (path,) = [path for path in saved if name in path]
        np.testing.assert_allclose(saved[path], values.mean(axis=0), rtol=1e-6, atol=1e-7)
    assert np.isfinite(status(job)["evaluation"]["loss"])
    assert [record["step"] for record in records(job, "eval")][-1] == 20


# ---- exact steps, staleness


@dataclass(frozen=True)
class Five:
    """Jobs trained on two servers and three workers."""

    exact: Job
    ahead: Job
    told: list[str]


@pytest.fixture(scope="module")
def five(make_shared_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> Five:
    def make(name: str, **run: Any) -> Job:
        out = tmp_path_factory.mktemp(name)
        run = {
            "strategy": "async",
            "parameter_servers": 2,
            "save_checkpoints_steps": 50,
            "save_summary_steps": 40,
            **run,
        }
        data = {"train": {"batch_size": 8}}
        params = {"out": str(out)}
        evaluation = FINAL if name == "exact" else ONCE
        return make_shared_job(
            name, model=WIDE_MODEL, eval=evaluation, data=data, params=params, run=run, train={"max_steps": 130}
        )

    exact = make("exact")
    ahead = make("ahead", prefetch_parameters=True, scale_lr_by_staleness=True, max_staleness=1)
    return Five(exact, ahead, trained(5, exact, ahead))


@pytest.mark.parametrize("name", ["exact", "ahead"])
def test_max_steps_is_exact_over_all_workers(five: Five, name: str) -> None:
    job = getattr(five, name)
    assert (status(job)["state"], status(job)["step"]) == ("succeeded", 130)
    assert sum(counts_of(job).values()) == 130
    assert counts_of(job).keys() == {2, 3, 4}
    assert saved_steps(job) == [50, 100, 130]
    for step in (50, 100, 130):
        saved = variables(job.job_dir, step)
        assert iteration_of(saved) == step
        assert all(np.isfinite(array).all() for array in saved.values())
        assert rows_read(job, step) == step * 8
    trained_at = [record["step"] for record in records(job, "train")]
    assert trained_at == [40, 80, 120, 130]
    for record in records(job, "train"):
        assert sum(record["staleness"].values()) == record["step"]
        assert max(map(int, record["staleness"])) == record["staleness_max"]
        mean = sum(int(value) * n for value, n in record["staleness"].items()) / record["step"]
        assert record["staleness_mean"] == pytest.approx(mean)
    assert histogram_sums(job.job_dir / "train", "staleness") == trained_at
    largest = status(job)["staleness"]["max"]
    assert largest == records(job, "train")[-1]["staleness_max"]
    if name == "ahead":
        assert largest <= largest_staleness(3, 1, prefetch=True)
        assert max(counts_of(job).values()) - min(counts_of(job).values()) <= 2


def histogram_sums(folder: Path, tag: str) -> list[float]:
    """How many numbers each histogram called `tag` counts, in the event files of `folder`."""
    from tensorboard.compat.proto.event_pb2 import Event

    sums = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = Event.FromString(data[place + 12 : place + 12 + length])
            place += length + 16
            for value in event.summary.value:
                if value.tag == tag:
                    sums.append(float(np.frombuffer(value.tensor.tensor_content).reshape(-1, 3)[:, 2].sum()))
    return sums


def test_it_learns_evaluates_and_exports(five: Five) -> None:
    for job in (five.exact, five.ahead):
        assert status(job)["evaluation"]["accuracy"] > 0.5, "four classes"
        assert [record["step"] for record in records(job, "eval")][-1] == 130
    (export,) = (five.exact.job_dir / "export" / "final").iterdir()
    assert (export / "saved_model.pb").exists()
    assert json.loads((export / "hpc_train.json").read_text())["step"] == 130
    roles = [line.split()[:2] for line in five.told[0].splitlines()[1:6]]
    assert roles == [["0", "chief"], ["1", "server"], ["2", "worker"], ["3", "worker"], ["4", "worker"]]
    assert "batch 8, a step being one gradient of one of 3 workers" in five.told[0]
    assert "done: step 130 (max_steps)" in five.told[0]


def test_a_finished_job_trains_no_more(three: Three) -> None:
    job, (*_, again) = three.adam, three.told
    assert "going on from step 20 to step 20" in again
    assert "done: step 20 (max_steps)" in again
    assert saved_steps(job) == [10, 20]
    (last,) = [record for record in records(job, "eval") if record["step"] == 20]
    assert f"eval at step 20: loss {last['loss']:.4f}" in again
    assert "(evaluated before)" in again, "not evaluated twice"
    assert status(job)["state"] == "succeeded"
    assert len(list((job.job_dir / "export" / "final").iterdir())) == 1, "not exported twice"


# ---- other numbers of ranks and servers, slow workers


@dataclass(frozen=True)
class Four:
    """Jobs trained on four ranks; `zero` was begun on two without servers, and is left as it was at each step."""

    zero: Job
    adam: Job
    delayed: Job
    bounded: Job
    told: list[str]


@pytest.fixture(scope="module")
def four(make_shared_job: MakeJob, begun: Begun) -> Four:
    two = {"strategy": "async", "parameter_servers": 2}
    write_changes(begun.zero, run=two, params={"loss_weight": 0.0}, train={"max_steps": 17})
    adam = make_shared_job("adam-served", model=ADAM_MODEL, eval=ONCE, run={**two, "max_staleness": 0})
    free = {"strategy": "async", "keep_checkpoint_max": 0}
    delayed = make_shared_job("delayed-async", model=RICH_MODEL, eval=ONCE, run=free, train={"max_steps": 120})
    bounded = make_shared_job("bounded-delayed", eval=ONCE, run={"strategy": "async", "max_staleness": 2})
    told = trained(4, begun.zero, adam, (delayed, "--debug-delay=1:1000"), (bounded, "--debug-delay=2:80"))
    return Four(begun.zero, adam, delayed, bounded, told)


def test_two_servers_without_staleness_are_synchronous_training(begun: Begun, four: Four) -> None:
    assert_same(four.adam, begun.adam, 20)
    assert counts_of(four.adam) == {2: 20, 3: 20}


def test_a_slow_worker_slows_synchronous_training_and_hardly_the_other(begun: Begun, four: Four) -> None:
    counts = counts_of(four.delayed)
    assert counts.keys() == {1, 2, 3}
    assert sum(counts.values()) == 120
    assert counts[1] <= 30 < min(counts[2], counts[3]), counts
    assert status(begun.delayed)["examples_per_sec"] < 1.1 * 2 * 16 / 0.25


def test_checkpoints_hold_the_seed_of_the_first_worker(four: Four) -> None:
    """Also those from before its first gradient; the others' seeds derive from it at each start."""
    seeds = set()
    for step in saved_steps(four.delayed):
        saved = variables(four.delayed.job_dir, step)
        seeds.update(int(array[0]) for name, array in saved.items() if name.endswith("seed_generator_state"))
    assert len(seeds) == 1, seeds


def test_max_staleness_makes_fast_workers_wait_for_a_slow_one(four: Four) -> None:
    counts = counts_of(four.bounded)
    assert sum(counts.values()) == 20
    assert max(counts.values()) - min(counts.values()) <= 3, counts
    assert status(four.bounded)["staleness"]["max"] <= largest_staleness(3, 2)


PARTS = ("input", "compute", "communication", "other")


def shares_of(job: Job, servers: int) -> list[dict[str, float]]:
    """Where the time of each worker went, as the last record has it."""
    lines = map(json.loads, (job.job_dir / "metrics.jsonl").read_text().splitlines())
    told = [record["by_rank"] for record in lines if record["kind"] == "train"][-1]
    assert all(told[part][:servers] == [None] * servers for part in PARTS)
    by_worker = zip(*(told[part][servers:] for part in PARTS), strict=True)
    return [dict(zip(PARTS, shares, strict=True)) for shares in by_worker]


def test_where_the_time_of_each_worker_went_is_told(four: Four) -> None:
    """A worker that sleeps, outside of all that is told by name, and two that wait for it."""
    fast, slow, too = shares_of(four.bounded, 1)
    assert slow["other"] > 0.2
    for shares in (fast, too):
        assert shares["other"] < slow["other"]
        assert shares["communication"] > slow["communication"]


def test_no_time_of_a_worker_is_told_twice(five: Five, four: Four) -> None:
    """Neither where parameters are pulled beside the step nor elsewhere."""
    workers = [*shares_of(five.exact, 2), *shares_of(five.ahead, 2), *shares_of(four.bounded, 1)]
    assert len(workers) == 9
    for shares in workers:
        assert min(shares.values()) >= 0
        assert min(shares["compute"], shares["communication"]) > 0
        assert sum(shares.values()) <= 1.001


@dataclass(frozen=True)
class One:
    """Jobs trained in one process: `zero` is that of Four."""

    zero: Job
    rich: Job
    told: list[str]


@pytest.fixture(scope="module")
def one(make_shared_job: MakeJob, four: Four) -> One:
    write_changes(four.zero, run={"strategy": "sync", "parameter_servers": 1}, train={"max_steps": 20})
    rich = make_shared_job("rich-alone", model=RICH_MODEL, eval=ONCE)
    return One(four.zero, rich, trained(0, four.zero, rich, **ONE_THREAD))


def test_a_job_goes_on_with_another_strategy(four: Four, one: One) -> None:
    """Synchronous on two ranks, on two servers and two workers, then alone; without gradients Adam's moments decay."""
    job = one.zero
    assert "going on from step 10 to step 17" in four.told[0]
    assert "going on from step 17 to step 20" in one.told[0]
    assert saved_steps(job) == [10, 17, 20]
    begin = variables(job.job_dir, 10)
    assert any("momentum" in name for name in begin)
    for step, _, rows in ((10, 2, 320), (17, 4, 320 + 7 * 16), (20, 1, 320 + 10 * 16)):
        saved = variables(job.job_dir, step)
        assert list(saved) == list(begin)
        for name, array in saved.items():
            if name.startswith("model/"):
                np.testing.assert_array_equal(array, begin[name], err_msg=name)
            elif name.endswith("iteration"):
                assert int(array) == step
            else:
                beta = 0.9 if "momentum" in name else 0.999
                assert "momentum" in name or "velocity" in name
                assert np.abs(begin[name]).max() > 0
                np.testing.assert_allclose(array, begin[name] * beta ** (step - 10), rtol=1e-4, err_msg=name)
        assert rows_read(job, step) == rows
    listed = run_program(
        [sys.executable, "-m", "hpc_train", "checkpoints", "--json", "--verify", str(job.job_dir)], job.folder, 60
    )
    entries = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(entry["step"], entry["ranks"], entry["whole"]) for entry in entries] == [
        (10, 2, True), (17, 4, True), (20, 1, True),
    ]  # fmt: skip


def test_one_worker_is_one_process(make_shared_job: MakeJob, one: One) -> None:
    """One server and one worker: what a single process reaches on the same batches."""
    run = {"strategy": "async", "scale_lr_by_staleness": True}
    served = make_shared_job("rich-served", model=RICH_MODEL, eval=ONCE, run=run)
    trained(2, served, **ONE_THREAD)
    assert_same(served, one.rich, 20, 2e-6)
    assert rows_read(served, 20) == rows_read(one.rich, 20) == 320
    assert status(served)["staleness"] == {"mean": 0, "max": 0}
    assert counts_of(served) == {1: 20}


# ---- scripts, TCP


def test_a_script_with_an_input_of_its_own_that_ends_unevenly(tmp_path: Path) -> None:
    done = run_ranks(3, [PROGRAMS / "own_input_async.py", tmp_path], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("script done") == 3
    assert done.stdout.count("(end of input)") == 3
    found = json.loads((tmp_path / "free" / "status.json").read_text())
    assert found["steps_by_rank"] == {"1": 7, "2": 11}
    lines = map(json.loads, (tmp_path / "free" / "metrics.jsonl").read_text().splitlines())
    last = [record for record in lines if record["kind"] == "train"][-1]
    assert last["step"] == 18
    assert [rate and rate > 0 for rate in last["by_rank"]["examples_per_sec"]] == [None, True, True]
    assert [share and share > 0 for share in last["by_rank"]["compute"]] == [None, True, True]


def test_over_tcp(make_shared_job: MakeJob, begun: Begun) -> None:
    """Two workers that share nothing with the server but the network."""
    exact = make_shared_job("tcp-adam", model=ADAM_MODEL, eval=ONCE, run={"strategy": "async", "max_staleness": 0})
    ahead = make_shared_job("tcp-ahead", eval=ONCE, run={"strategy": "async", "prefetch_parameters": True})
    trained(3, exact, ahead, **TCP)
    assert_same(exact, begun.adam, 20)
    assert sum(counts_of(ahead).values()) == 20
    assert status(ahead)["state"] == "succeeded"
