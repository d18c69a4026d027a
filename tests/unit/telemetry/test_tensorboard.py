"""What TensorBoard is given, read back by its own readers and asked of its server."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.callbacks.tensorboard import Profiler
from hpc_train.telemetry import tensorboard_files
from hpc_train.telemetry.json_files import Lenient
from hpc_train.telemetry.metrics import MetricsWriter, summed_up
from hpc_train.telemetry.tensorboard_events import buckets_of, buckets_of_variable, flattened
from tests.support import LIMIT_SECS, wait_for

BY_RANK = {"examples_per_sec": [10.0, 20.0], "input": [0.25, None], "compute": [0.5, None]}


def quiet(text: str) -> None:
    raise AssertionError(text)


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def lines(job_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def function() -> Any:
    import tensorflow as tf

    return tf.function(lambda x: tf.matmul(x, x)).get_concrete_function(tf.TensorSpec([4, 4]))


def test_what_is_recorded_stands_in_both_places(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, Lenient()) as metrics:
        metrics.start(0, ranks=2)
        values = {"loss": 0.5, "input_wait": None, "lag_steps": 3}
        metrics.record("train", 10, values, {"staleness": {0: 5, 2: 15}}, BY_RANK)
        metrics.record("eval_far", 10, {"accuracy": math.nan})
        metrics.note("checkpoint", 10, secs=1.5, bytes=100)
        metrics.end(10, "succeeded", "max_steps")
    start, train, evaluation, checkpoint, end = lines(tmp_path)
    assert (start["kind"], start["step"], start["ranks"]) == ("start", 0, 2)
    assert train["by_rank"] == BY_RANK
    assert train["staleness"] == {"0": 5, "2": 15}
    assert (train["loss"], train["input_wait"]) == (0.5, None)
    assert (evaluation["kind"], evaluation["accuracy"]) == ("eval_far", None)
    assert (checkpoint["kind"], checkpoint["secs"], checkpoint["bytes"]) == ("checkpoint", 1.5, 100)
    assert (end["kind"], end["state"], end["reason"]) == ("end", "succeeded", "max_steps")
    found = read(tmp_path / "train")
    assert set(found.Tags()["scalars"]) == {"loss", "lag_steps"}
    assert scalars(tmp_path / "train", "loss") == [(10, 0.5)]
    assert math.isnan(scalars(tmp_path / "eval_far", "accuracy")[0][1])
    assert scalars(tmp_path / "ranks" / "rank_1", "examples_per_sec") == [(10, 20.0)]
    assert scalars(tmp_path / "ranks" / "rank_0", "share/input") == [(10, 0.25)]
    assert read(tmp_path / "ranks" / "rank_1").Tags()["scalars"] == ["examples_per_sec"]
    (staleness,) = found.Tensors("staleness")
    buckets = np.frombuffer(staleness.tensor_proto.tensor_content).reshape(-1, 3)
    assert buckets[:, 2].sum() == 20
    assert (buckets[0, 2], buckets[-1, 2]) == (5, 15)


def test_what_train_and_eval_tell_can_be_read_at_once(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, Lenient()) as metrics:
        metrics.record("train", 1, {"loss": 1.0})
        assert scalars(tmp_path / "train", "loss") == [(1, 1.0)]


def test_of_many_ranks_the_first_64_have_event_files_and_a_record_sums_them_up(tmp_path: Path) -> None:
    rates = [None, *(float(rate) for rate in range(70, 0, -1))]
    with MetricsWriter(tmp_path, Lenient()) as metrics:
        metrics.record("train", 1, {"loss": 1.0}, by_rank={"examples_per_sec": rates, "input": [None] * 71})
        metrics.record("train", 2, {"loss": 1.0}, by_rank={"examples_per_sec": rates[:64]})
    assert len(list((tmp_path / "ranks").iterdir())) == 63, "the first one has no numbers"
    many, few = lines(tmp_path)
    assert "by_rank" not in many and "over_ranks" not in few
    assert many["over_ranks"] == {
        "examples_per_sec": {
            **{"ranks": 70, "lowest": 1.0, "median": 35.5, "mean": 35.5, "highest": 70.0},
            **{"lowest_rank": 70, "highest_rank": 1},
        },
        "input": {},
    }
    assert few["by_rank"]["examples_per_sec"] == rates[:64]


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=40))
def test_what_ranks_are_summed_up_to_lies_between_them(numbers: list[float | None]) -> None:
    found, known = summed_up(numbers), [number for number in numbers if number is not None]
    assert (found == {}) == (not known)
    if known:
        assert found["ranks"] == len(known) and found["lowest"] <= found["median"] <= found["highest"]
        assert numbers[found["lowest_rank"]] == min(known) and numbers[found["highest_rank"]] == max(known)
        assert json.dumps(found, allow_nan=False)


def test_a_run_that_goes_on_supersedes_what_was_told_of_later_steps(tmp_path: Path) -> None:
    for first, value in ((0, 1.0), (20, 2.0)):
        with MetricsWriter(tmp_path, Lenient()) as metrics:
            metrics.start(first)
            for step in range(first + 10, first + 41, 10):
                metrics.record("train", step, {"loss": value})
    assert scalars(tmp_path / "train", "loss") == [(10, 1.0), (20, 1.0), (30, 2.0), (40, 2.0), (50, 2.0), (60, 2.0)]
    with MetricsWriter(tmp_path, Lenient()) as metrics:
        for first in (60, 30):  # 30: a rollback
            metrics.start(first)
            metrics.record("train", first + 10, {"loss": 3.0})
    assert scalars(tmp_path / "train", "loss") == [(10, 1.0), (20, 1.0), (30, 2.0), (40, 3.0)]


def test_lines_of_threads_do_not_mix(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, Lenient()) as metrics:
        tell = [threading.Thread(target=lambda: [metrics.note("checkpoint", i) for i in range(200)]) for _ in range(4)]
        for thread in tell:
            thread.start()
        for step in range(100):
            metrics.record("train", step, {"loss": 1.0})
        for thread in tell:
            thread.join(LIMIT_SECS)
    kinds = [line["kind"] for line in lines(tmp_path)]
    assert (kinds.count("checkpoint"), kinds.count("train")) == (800, 100)


def test_a_full_disk_is_logged_once_and_a_new_file_is_begun_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, logged: list[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(tensorboard_files.time, "monotonic", lambda: now)
    new_file = tensorboard_files.EventFiles._new_file

    class FullFile:
        def __init__(self, writer: Any) -> None:
            self.write = writer.write

        def flush(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        close = flush

    with MetricsWriter(tmp_path, Lenient()) as metrics:
        metrics.record("train", 0, {"loss": 0.0})
        metrics.start(0)
        monkeypatch.setattr(tensorboard_files.EventFiles, "_new_file", lambda *args: FullFile(new_file(*args)))
        metrics.record("train", 1, {"loss": 1.0}, by_rank=BY_RANK)
        metrics.hyperparameters({"a": 1})
        assert metrics.graph(function)
        metrics.text("job", "x")
        metrics.weights(1, {"a": np.ones(3)})
        monkeypatch.setattr(tensorboard_files.EventFiles, "_new_file", new_file)
        metrics.record("train", 2, {"loss": 2.0})
        now += tensorboard_files.SECS_BEFORE_RETRY
        metrics.record("train", 3, {"loss": 3.0})
    assert len(logged) == 1
    assert "No space left on device" in logged[0]
    assert [step for step, _ in scalars(tmp_path / "train", "loss")] == [0, 1, 3], "what was written before stays"
    assert [line["step"] for line in lines(tmp_path)] == [0, 0, 1, 2, 3]


def test_weights_of_any_type_have_histograms(tmp_path: Path) -> None:
    import ml_dtypes

    large = np.concatenate([np.zeros(300_000), np.ones(100_000)]).astype(np.float32)
    variables = {
        "half": np.array([1, 2, 3], np.float16),
        "brain": np.array([1, 2, 3], ml_dtypes.bfloat16),
        "bad": np.array([np.nan, np.inf, -np.inf, 1.0]),
        "worse": np.full(3, np.nan),
        "empty": np.zeros(0),
        "counter": np.array(7, np.int64),
        "huge": np.array([-1.7e308, 1.7e308]),
        "flag": np.array([True, False]),
        "names": np.array(["a", "b"]),
        "large": large,
    }
    with MetricsWriter(tmp_path, Lenient()) as metrics:
        metrics.weights(5, variables)
    found = read(tmp_path / "train")
    assert set(found.Tags()["tensors"]) == set(variables) - {"names"}
    sums = {}
    for path in found.Tags()["tensors"]:
        (event,) = found.Tensors(path)
        assert event.step == 5
        sums[path] = np.frombuffer(event.tensor_proto.tensor_content).reshape(-1, 3)[:, 2].sum()
    assert (sums["half"], sums["brain"], sums["bad"], sums["worse"], sums["huge"]) == (3, 3, 1, 0, 2)
    assert sums["large"] == pytest.approx(400_000)
    buckets = buckets_of_variable(large)
    assert buckets is not None
    assert buckets[0, 2] == pytest.approx(300_000, rel=0.02)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=50))
def test_a_histogram_counts_every_finite_number_once(numbers: list[float]) -> None:
    buckets = buckets_of(np.array(numbers))
    known = [number for number in numbers if math.isfinite(number)]
    assert buckets[:, 2].sum() == len(known)
    assert (buckets[:, 0] <= buckets[:, 1]).all()
    if known:
        assert buckets[0, 0] <= min(known) <= max(known) <= buckets[-1, 1]


def test_parameters_are_flattened() -> None:
    nested = {
        "model": {"units": [64, 32], "dropout": 0.5, "wide": True},
        "name": "a",
        "none": None,
        "bad": math.inf,
        "large": 10**400,
        "rate": np.float32(0.5),
        "path": Path("x"),
    }
    assert flattened(nested) == {
        "model.units": "[64, 32]",
        "model.dropout": 0.5,
        "model.wide": True,
        "name": "a",
        "bad": "inf",
        "large": "1" + "0" * 400,
        "rate": 0.5,
        "path": "x",
    }


def write_job(job_dir: Path, learning_rate: float, function: Any, state: str) -> None:
    job_dir.mkdir(parents=True)
    for first in (0, 20):
        with MetricsWriter(job_dir, Lenient()) as metrics:
            metrics.start(first)
            params = {"params": {"learning_rate": learning_rate * (1 if first else 9), "wide": True}, "ranks": 2}
            metrics.hyperparameters(params)
            metrics.text("job", f"run of `{job_dir.name}`")
            assert metrics.graph(function)
            for step in (first + 10, first + 20):
                metrics.record("train", step, {"loss": 1 / step}, by_rank=BY_RANK)
                metrics.record("eval", step, {"accuracy": learning_rate * step})
            metrics.weights(first + 20, {"dense/kernel": np.arange(12.0).reshape(3, 4)})
            metrics.end(first + 20, state if first else "failed")


class Server:
    """A TensorBoard that is asked over HTTP."""

    def __init__(self, logdir: Path, loader: str) -> None:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", logdir, "--port", "0", "--host", "localhost"]
        self._log = open(logdir.parent / f"{loader}.log", "w+")  # noqa: SIM115 (closed in close)
        self._process = subprocess.Popen([*command, f"--load_fast={loader}"], stdout=self._log, stderr=self._log)
        try:
            self._url = wait_for(self._announced, self._text)
        except BaseException:
            self.close()
            raise

    def _announced(self) -> str | None:
        assert self._process.poll() is None, self._text()
        found = re.search(r"http://localhost:\d+/", self._text())
        return found[0] if found else None

    def _text(self) -> str:
        return Path(self._log.name).read_text()

    def get(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_SECS) as answer:
            text = answer.read()
        return json.loads(text) if text[:1] in b"[{" else text.decode()

    def wait_for_runs(self, count: int) -> list[str]:
        def whole() -> Any:
            runs = self.get("data/runs")
            seen = self.get("data/plugin/histograms/tags")
            return runs if len(runs) >= count and all(f"{job}/train" in seen for job in ("slow", "fast")) else None

        return wait_for(whole, self._text)

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(LIMIT_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, function: Any) -> Path:
    folder = tmp_path_factory.mktemp("tensorboard") / "runs"
    write_job(folder / "slow", 0.001, function, "succeeded")
    write_job(folder / "fast", 0.01, function, "stopped")
    return folder


@pytest.fixture(scope="module", params=["auto", "false"])
def server(runs: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """With the fast reader of event files that most installations have, and with the one that all have."""
    server = Server(runs, request.param)
    yield server
    server.close()


def test_tensorboard_shows_jobs_side_by_side(server: Server) -> None:
    names = {f"{job}/{run}" for job in ("slow", "fast") for run in ("train", "eval", "ranks/rank_0", "ranks/rank_1")}
    assert set(server.wait_for_runs(len(names))) == names
    tags = server.get("data/plugin/scalars/tags")
    assert set(tags["slow/train"]) == {"loss"}
    assert set(tags["fast/ranks/rank_0"]) == {"examples_per_sec", "share/input", "share/compute"}
    values = server.get("data/plugin/scalars/scalars?tag=loss&run=slow/train")
    assert [step for _, step, _ in values] == [10, 20, 30, 40]
    assert set(server.get("data/plugin/histograms/tags")["slow/train"]) == {"dense/kernel"}
    assert server.get("data/plugin/graphs/info")["slow/train"]["run_graph"]
    assert "MatMul" in server.get("data/plugin/graphs/graph?run=slow/train&conceptual=false")
    assert server.get("data/plugin/text/tags")["slow/train"] == ["job"]
    assert "run of" in server.get("data/plugin/text/text?run=slow/train&tag=job")[0]["text"]

    experiment = server.get("data/plugin/hparams/experiment", {"experimentName": ""})
    infos = {info["name"]: info["type"] for info in experiment["hparamInfos"]}
    assert infos == {
        "params.learning_rate": "DATA_TYPE_FLOAT64",
        "params.wide": "DATA_TYPE_BOOL",
        "ranks": "DATA_TYPE_FLOAT64",
    }
    assert [metric["name"]["tag"] for metric in experiment["metricInfos"]] == ["accuracy"], "of evaluation alone"
    shown = server.get(
        "data/plugin/hparams/session_groups",
        {
            "experimentName": "",
            "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"],
            "colParams": [],
            "startIndex": 0,
            "sliceSize": 10,
        },
    )
    rows = {group["name"]: group for group in shown["sessionGroups"]}
    assert set(rows) == {"slow/eval", "fast/eval"}
    for name, rate, status in (("slow/eval", 0.001, "STATUS_SUCCESS"), ("fast/eval", 0.01, "STATUS_UNKNOWN")):
        (session,) = rows[name]["sessions"]
        assert rows[name]["hparams"]["params.learning_rate"] == rate, "of the last run"
        assert session.get("status", "STATUS_UNKNOWN") == status
        assert session["metricValues"][0]["value"] == pytest.approx(rate * 40)


def test_chosen_steps_are_profiled(tmp_path: Path, function: Any, logged: list[str]) -> None:
    import tensorflow as tf

    with Profiler(tmp_path, (2, 4)) as profiler:
        for step in range(1, 7):
            profiler.before_step(step)
            function(tf.ones([4, 4]))
            profiler.after_step(step, 0.0)
            assert len(logged) == (step >= 4)
    (file,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    data = file.read_bytes()
    assert b"MatMul" in data
    assert b"train" in data
    assert logged == [f"profile: written to {tmp_path}/plugins/profile"]


@pytest.mark.parametrize(("steps", "made", "profiles"), [((3, 9), 4, 1), ((1, 2), 4, 0), (None, 4, 0), ((9, 12), 4, 0)])
def test_a_run_that_ends_or_begins_inside_the_range_profiles_its_part(
    tmp_path: Path, function: Any, steps: tuple[int, int] | None, made: int, profiles: int
) -> None:
    import tensorflow as tf

    with Profiler(tmp_path, steps) as profiler:
        for step in range(3, 3 + made):
            profiler.before_step(step)
            function(tf.ones([4, 4]))
            if step == 6:
                break  # an exception in a step: after_step is not called
            profiler.after_step(step, 0.0)
    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == profiles


def test_a_profile_is_not_written_through_a_link(tmp_path: Path, logged: list[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/train").mkdir(parents=True)
    (tmp_path / "run/train/plugins").symlink_to(tmp_path / "elsewhere")
    with Profiler(tmp_path / "run/train", (1, 2)) as profiler:
        for step in (1, 2, 3):
            profiler.before_step(step)
            profiler.after_step(step, 0.0)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (line,) = logged
    assert "is a symbolic link, not a folder" in line


def test_a_profiler_that_fails_does_not_harm_training(tmp_path: Path, logged: list[str]) -> None:
    import tensorflow as tf

    tf.profiler.experimental.start(str(tmp_path / "other"))
    try:
        with Profiler(tmp_path / "own", (1, 2)) as profiler:
            for step in (1, 2, 3):
                profiler.before_step(step)
                profiler.after_step(step, 0.0)
    finally:
        tf.profiler.experimental.stop()
    assert len(logged) == 1
    assert logged[0].startswith("warning: the profile of chosen steps has failed: ")
    assert logged[0].endswith("training goes on without")
