"""What gpu.py makes of its measurements: what counts as equal, targets, pages, and mistakes of the user."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support import REPOSITORY, make_job_in, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import gpu
from acceptance import accuracy, correctness, device, ranks, sample
from acceptance.metric import Wanted, derived, first_reaching
from acceptance.own_job import OwnJob, check_rate, read_job, yaml_number
from acceptance.page import whole_page
from acceptance.rounds import Trained
from acceptance.settings import STAND_IN, Site
from scale.jobs import Run
from support.page import Report, as_text
from support.records import Record
from support.results import Results
from support.usage import UsageError

from hpc_train.checkpoint.format import Snapshot
from hpc_train.data.sampling.sampler import DataProgress

SCRIPT = REPOSITORY / "benchmarks" / "gpu.py"
JOB = OwnJob(Path("/jobs/job.yaml"), "params.learning_rate", 0.01, 16, 200, "/jobs/model.py:build", "accuracy", "max")


def site_of(results: Results, gpus: int = 0, of_ranks: tuple[int, ...] = (1, 2)) -> Site:
    return Site(gpus, of_ranks, of_ranks[-1], results.path, {}, False, gpu.QUICK, results)


@pytest.fixture
def results(tmp_path: Path):
    with Results(tmp_path / "out", "gpu", {}) as opened:
        yield opened


def text_of(report: Report) -> str:
    return as_text(report, "2026-01-01")[0]


# ---- correctness


def trained(weights: np.ndarray, before: np.ndarray) -> Trained:
    return Trained([], [], [], "CPU", {"w": before}, Snapshot({"w": weights}, {}, DataProgress(6), None, 1, 0.0))


def test_rounding_counts_as_equal_and_a_wrong_average_does_not() -> None:
    random = np.random.default_rng(0)
    before, step = (random.normal(size=(8, 4)).astype(np.float32) for _ in range(2))
    one = trained(before - 0.01 * step, before)
    rounded = trained(before - np.float32(0.01) * step * np.float32(1 + 1e-6), before)
    assert correctness.deviation(one, rounded) < correctness.MOST_DEVIATION / 10
    summed = trained(before - 0.02 * step, before)  # a sum over two ranks in place of their mean
    assert correctness.deviation(one, summed) == pytest.approx(1, rel=1e-3)
    still = trained(before, before)
    with pytest.raises(RuntimeError, match="training has not changed it"):
        correctness.deviation(still, one)
    with pytest.raises(RuntimeError, match="did not begin with the same weights"):
        correctness.deviation(one, trained(before, before + 1e-7))


def test_a_single_bit_of_a_state_is_seen() -> None:
    state = Snapshot({"w": np.zeros(3, np.float32)}, {"m": np.ones(2)}, DataProgress(6), None, 1, 0.0)
    assert correctness.differing(state, state) == (0, 5)
    other = replace(state, model={"w": np.array([0, -0.0, 0], np.float32)})
    assert correctness.differing(state, other) == (1, 5), "-0.0 equals 0, and has another bit"
    assert correctness.differing(state, replace(state, rng={"r": np.zeros(4, np.int64)})) == (4, 9)
    assert correctness.differing(state, replace(state, optimizer={"m": np.ones(2, np.float32)})) == (2, 5)


def test_targets_of_correctness_can_be_missed(results) -> None:
    def records(deviation: float, differ: int) -> list[Record]:
        told = {"differ": differ, "numbers": 5, "device": "CPU", "deviation": deviation, "rounding": 1e-6}
        results.kept, results.records = {correctness.TITLE: told}, []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(correctness, "write_data", lambda *_: None)
            correctness.measure(site_of(results))
        return results.records

    for deviation, differ, reached in ((1e-6, 0, [True, True]), (0.5, 1, [False, False])):
        report = correctness.page(records(deviation, differ), site_of(results))
        assert [target.reached for target in report.targets] == reached
        assert STAND_IN in report.sections[0].text[0]


# ---- the device


def run_with(gap: float | None, busy: float | None) -> Run:
    return Run((100.0,), (0.01,), {} if gap is None else {"gap": gap}, 0, "CPU", False, None, busy=busy)


def test_the_gap_is_what_an_emulated_device_does_not_work_and_else_what_the_job_tells() -> None:
    assert device.idle_of(run_with(0.5, 0.9)) == pytest.approx(0.1)
    assert device.idle_of(run_with(0.5, None)) == 0.5
    with pytest.raises(RuntimeError, match="did not tell"):
        device.idle_of(run_with(None, None))


def gap_record(idle: float) -> Record:
    config = {"way": device.in_flight(1), "device": "emulated device", "step_ms": 5.0}
    return Record("gpu", "gap", 1, 100 * idle, "% of step", None, None, 1, (0, 0), config, {})


@pytest.mark.parametrize(("idle", "reached"), [(0.01, True), (0.2, False)])
def test_a_device_that_waits_too_long_misses_its_target(results, idle: float, reached: bool) -> None:
    report = device.gap_page([gap_record(idle)], site_of(results))
    assert [target.reached for target in report.targets] == [reached]
    assert "emulated device" in text_of(report)


def input_records(*places: str) -> list[Record]:
    told = {
        device.BY_THE_STEP: [{"rate": 100.0, "places": ["CPU:0"], "device": "CPU"}],
        device.AHEAD: [{"rate": 120.0, "places": list(places), "device": "CPU"}],
    }
    return device.rate_records(device.INPUT_TITLE, "input", told)


def test_batches_have_to_lie_on_the_device_each_of_them(results) -> None:
    def reached(gpus: int, *places: str) -> list[bool]:
        report = device.input_page(input_records(*places), site_of(results, gpus))
        return [target.reached for target in report.targets]

    assert reached(0, "CPU:1") == [True]
    assert reached(0, "CPU:0", "CPU:1") == [False]
    assert reached(1, "GPU:0") == [True, True], "on GPUs the speed counts, too"
    assert reached(1, "CPU:1") == [False, True]


def precision_records(last: float, first: float = 2.0) -> list[Record]:
    losses = {"first_loss": first, "places": [], "device": "CPU"}
    told = {
        device.FLOAT32: [{"rate": 100.0, "last_loss": 1.0, **losses}],
        device.BFLOAT16: [{"rate": 150.0, "last_loss": last, **losses}],
    }
    found = device.rate_records(device.PRECISION_TITLE, "precision", told)
    return [replace(one, config={**one.config, "model": "MLP", "batch": 16, "steps": 12}) for one in found]


@pytest.mark.parametrize(("last", "first", "reached"), [(1.01, 2, True), (1.2, 2, False), (1.0, 1.0, False)])
def test_mixed_precision_has_to_train_as_float32_does(results, last: float, first: float, reached: bool) -> None:
    report = device.precision_page(precision_records(last, first), site_of(results))
    assert [target.reached for target in report.targets] == [reached]
    assert STAND_IN in text_of(report)
    assert len(device.precision_page(precision_records(last, first), site_of(results, 1)).targets) == 2


def test_rounds_go_there_and_back() -> None:
    assert device.rounds_of(["a b", "c"], 2) == [("a b", "a-b-0"), ("c", "c-0"), ("c", "c-1"), ("a b", "a-b-1")]


# ---- many ranks


@pytest.mark.parametrize(("nccl", "ratio", "reached"), [(True, 3.0, True), (False, 3.0, False), (True, 0.5, False)])
def test_on_gpus_nccl_has_to_be_there_and_faster(results, nccl: bool, ratio: float, reached: bool) -> None:
    def record(way: str, value: float, against: float | None) -> Record:
        config = {"way": way, "nccl": nccl and way == ranks.HOROVOD, "title": "CNN", "shares": {}, "device": "GPU"}
        return Record("gpu", way, 2, value, "examples/s", None, against, 1, (0, 0), config, {})

    found = [record(ranks.MPI, 1.0, None), record(ranks.HOROVOD, ratio, ratio)]
    assert [target.reached for target in ranks.allreduce_page(found, site_of(results, 2)).targets] == [reached]
    found.append(record(ranks.MPI_GPU, ratio, ratio))
    page = ranks.allreduce_page(found, site_of(results, 2))
    assert [target.reached for target in page.targets] == [reached, ratio >= 1]
    assert "MPI in the memory of GPUs" in text_of(page)
    on_cores = ranks.allreduce_page(found, site_of(results))
    assert on_cores.targets == []
    assert STAND_IN in text_of(on_cores)


# ---- your own job


def test_a_gpu_that_computes_otherwise_is_seen(results) -> None:
    def record(way: str, first: float) -> Record:
        config = {"way": way, "job": "job.yaml", "steps": 20, "first_loss": first, "last_loss": 1.0}
        return Record("gpu", way, 1, 100.0, "examples/s", None, 2.0, 1, (0, 0), config, {})

    def reached(first: float) -> list[bool]:
        found = [record(sample.CPU, 2.0), record(sample.GPU, 2.0), record(sample.EXACT, first)]
        return [target.reached for target in sample.page(found, site_of(results, 1)).targets]

    assert reached(2.0 + 1e-6) == [True, True, True]
    assert reached(2.01) == [False, True, True]


def evaluations(*values: float) -> list[dict[str, Any]]:
    return [{"step": 10 * n, "secs": float(n), "metrics": {"accuracy": v}} for n, v in enumerate(values, start=1)]


def test_the_wanted_value_is_near_the_best_of_one_rank_and_nan_never_reaches_it() -> None:
    wanted = derived("accuracy", "max", evaluations(0.5, 0.8, 0.7))
    assert wanted == Wanted("accuracy", "max", pytest.approx(0.784))
    assert first_reaching(wanted, evaluations(0.5, 0.79, 0.9))["step"] == 20
    assert first_reaching(wanted, evaluations(float("nan"), 0.7)) is None
    assert derived("accuracy", "min", evaluations(-1.0)).value == pytest.approx(-0.98), "below 0, too, it is worse"
    with pytest.raises(ValueError, match="has no f1; it has accuracy"):
        derived("f1", "max", evaluations(0.5))


def aim(**changes: Any) -> accuracy.Aim:
    rates = tuple(accuracy.RATES.values())
    return replace(accuracy.Aim("accuracy", "max", None, rates, 200, 10, 20), **changes)


def test_each_number_of_ranks_has_each_rate_and_one_rank_its_own() -> None:
    cases = accuracy.cases_of((1, 2, 4), aim().rates)
    assert list(map(str, cases))[:3] == ["1 rank, rate as given", "2 ranks, rate as given", "2 ranks, rate scaled"]
    assert len(cases) == 7
    given, scaled, warmed = (accuracy.changes_of(JOB, one, aim()) for one in cases[4:])
    assert JOB.rate_key not in given
    assert yaml.safe_load(scaled[JOB.rate_key]) == 0.04
    assert "model" not in scaled
    assert warmed["model"].startswith("acceptance.warm_up:")
    assert warmed[JOB.rate_key] == scaled[JOB.rate_key]


@pytest.mark.parametrize("number", [1e-5, 0.1, 3.0, 1.5e-7, 1e22])
def test_small_rates_stay_numbers_in_yaml(number: float) -> None:
    assert yaml.safe_load(yaml_number(number)) == number


def accuracy_records(*told: tuple[accuracy.Case, list[dict[str, Any]]]) -> list[Record]:
    by_case, wanted = dict(told), Wanted("accuracy", "max", 0.8)
    return [one for case, own in told for one in accuracy.records(case, own, wanted, JOB, aim(), by_case)]


def test_what_does_not_converge_misses_the_target_and_says_so(results) -> None:
    two = [accuracy.Case(2, rate) for rate in (accuracy.GIVEN, accuracy.SCALED)]
    alone = (accuracy.ALONE, evaluations(0.5, 0.7, 0.85))
    good = accuracy_records(alone, (two[0], evaluations(0.6, 0.7)), (two[1], evaluations(0.6, 0.85)))
    report = accuracy.page(good, site_of(results))
    assert [target.reached for target in report.targets] == [True]
    assert "not reached" in text_of(report)
    assert [(one.unit, one.value, one.ratio) for one in good] == [
        ("s", 3.0, None),
        ("accuracy", 0.7, None),
        ("s", 2.0, pytest.approx(2 / 3)),
    ]
    assert good[2].config["examples"] == 20 * 16 * 2
    bad = accuracy_records(alone, (two[0], evaluations(0.6, 0.7)))
    [target] = accuracy.page(bad, site_of(results)).targets
    assert (target.reached, "not reached with any rate" in target.parts) == (False, True)
    slow = accuracy_records(alone, (two[0], evaluations(0.1, 0.2, 0.3, 0.9)))
    assert [target.reached for target in accuracy.page(slow, site_of(results)).targets] == [False]


def test_an_aim_takes_what_is_not_given_from_the_job() -> None:
    def found(**more: Any) -> accuracy.Aim:
        asked = {"metric": None, "mode": None, "value": None, "rates": ["scaled"], "max_steps": None, "warm_up": None}
        return accuracy.aim_of(JOB, 20, **{**asked, **more})

    assert found() == accuracy.Aim("accuracy", "max", None, (accuracy.SCALED,), 200, 10, 10)
    assert found(metric="loss").mode == "min"
    assert found(metric="mae").mode == "min"
    assert found(metric="odd", mode="max").mode == "max"
    with pytest.raises(UsageError, match=r"odd is better; give --target-mode"):
        found(metric="odd")
    for wrong, said in (({"max_steps": 1}, "--max-steps: 1"), ({"warm_up": 200}, "--warm-up-steps: 200")):
        with pytest.raises(UsageError, match=said):
            found(**wrong)


def test_a_job_without_its_rate_or_with_mistakes_is_refused_in_a_sentence(tmp_path: Path) -> None:
    job = make_job_in(tmp_path, params={"learning_rate": 0.02, "name": "x"})
    found = read_job(job.file, "params.learning_rate")
    assert (found.rate, found.batch, found.max_steps, found.best_metric) == (0.02, 16, 20, "loss")
    for key in ("params.rate", "params.name", "params.learning_rate.x"):
        with pytest.raises(UsageError, match=f"--rate: job.yaml has no number at {key}"):
            check_rate(read_job(job.file, key))
    job.file.write_text(job.file.read_text().replace("max_steps", "max_stepz"))
    with pytest.raises(UsageError, match="max_stepz"):
        read_job(job.file, "params.learning_rate")


def test_a_warm_up_goes_before_a_number_and_before_a_schedule() -> None:
    import keras
    from acceptance.warm_up import add_warm_up

    cosine = keras.optimizers.schedules.CosineDecay(0.4, 100)
    for rate, after in ((0.4, 0.4), (cosine, float(cosine(50)))):
        optimizer = keras.optimizers.SGD(rate, momentum=0.9)
        add_warm_up(optimizer, 4)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
        schedule = keras.optimizers.schedules.deserialize(optimizer.get_config()["learning_rate"])
        assert [float(schedule(step)) for step in (0, 3)] == pytest.approx([0.1, 0.4])
        assert float(schedule(54)) == pytest.approx(after)
        assert float(optimizer.learning_rate) == pytest.approx(0.1)


# ---- the whole


def test_a_part_that_fails_is_named_and_the_others_go_on(results, capsys) -> None:
    def fail(_: Site) -> None:
        raise KeyError("what")

    def work(site: Site) -> None:
        site.results.add("gap", [gap_record(0.01)])

    broken, whole = gpu.Part(fail, device.gap_page), gpu.Part(work, device.gap_page)
    assert gpu.run_part("input", broken, site_of(results)) is None
    assert "KeyError" in results.left_out["input"]
    assert results.failed
    report = gpu.run_part("gap", whole, site_of(results))
    assert report is not None
    page = whole_page([report], 0, 2, "there is none")
    assert results.conclude(page, strict=True) == 1, "a part has failed"
    text = (results.path / "report.md").read_text()
    for words in ("NO GPU WAS USED (there is none)", "Not measured", "input: KeyError", "| reached |"):
        assert words in text
    assert text.index("## Targets") < text.index("## Not measured") < text.index(f"## {device.GAP_TITLE}")
    records = [json.loads(line) for line in (results.path / "records.jsonl").read_text().splitlines()]
    assert records[0]["benchmark"] == "gpu"


def test_gpus_that_tensorflow_does_not_use_are_an_error_and_cores_can_be_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(gpu.machine, "gpus", lambda: [{"name": "A", "memory_mib": 1}] * 2)
    told = {"stdout": "0\n"}
    monkeypatch.setattr(gpu.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, **told))
    with pytest.raises(UsageError, match="finds 2 GPUs here, but TensorFlow uses none"):
        gpu.usable_gpus(refused=False)
    told["stdout"] = "1\n"
    assert gpu.usable_gpus(refused=False) == (1, "")
    assert gpu.usable_gpus(refused=True)[0] == 0
    monkeypatch.setattr(gpu.machine, "gpus", list)
    assert gpu.usable_gpus(refused=False)[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parts", "accuracy"], "give --job"),
        (["--job", "none.yaml"], "none.yaml is not a file"),
        (["--job", "job/job.yaml"], "has no number at params.learning_rate"),
        (["--ranks", "0"], "give numbers from 1 on"),
    ],
)
def test_mistakes_end_with_code_2_before_anything_is_written(tmp_path: Path, words: list[str], said: str) -> None:
    make_job_in(tmp_path)
    done = run_program([sys.executable, str(SCRIPT), "--out", "out", *words], tmp_path)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
    assert not (tmp_path / "out").exists()


def test_settings_fit_into_json() -> None:
    assert json.loads(json.dumps(asdict(gpu.FULL)))["steps"] == gpu.FULL.steps
