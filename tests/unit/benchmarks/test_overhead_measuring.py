"""What overhead.py measures, in which order, and what becomes of a peer that is not there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))  # before tests/, which has a support.py, too

from peers.clusters import find_or_build
from peers.hooks import GAUGE_STEPS, MIN_STEPS, MeasuringHook, Plan, next_wait
from peers.measurement import Measurement, Took, read_measurements, write_measurements
from peers.measuring import Contestant, Runner, measure_all, package_flags, plan, records, together
from peers.models import CNN, LARGE, MLP, load_batches, write_data
from peers.page import WEAK_SCALING, make_page, targets
from peers.settings import DEFAULT_FLAGS, NO_EXCHANGE, OURS, PEERS, PLAIN, QUICK, SAME_FLAGS
from support.records import Found
from support.results import Results
from support.usage import MissingError

models = st.lists(st.sampled_from([MLP, CNN, LARGE]), min_size=1, unique=True)
ranks = st.lists(st.integers(1, 8), min_size=1, unique=True)
peers = st.lists(st.sampled_from(PEERS), unique=True)
seconds = st.floats(1e-4, 1e3)


class CountingRival:
    """Steps of a given time."""

    losses = (2.0, 1.0)

    def __init__(self, secs: float) -> None:
        self.secs, self.calls = secs, []

    def run(self, warm_up, steps):
        self.calls.append((warm_up, steps))
        return Took(self.secs * steps, 0.0)


def drive(hook: MeasuringHook, step_secs: float, most: int = 10**6) -> list[str]:
    """Runs the hook's script on a clock of steps; returns why it asked to stop."""
    asked = []
    hook._context = SimpleNamespace(request_stop=asked.append, is_chief=True, size=1)
    script = hook._measure(lambda number: number)
    step, left = 0, next(script)
    while left > 0 and step < most:
        step += left
        left = next_wait(script, Took(step * step_secs, step * step_secs / 2))
    return asked


@given(st.floats(1e-3, 0.5), st.integers(1, 6), st.floats(0.05, 2), st.integers(1, 30), st.floats(0, 5))
def test_blocks_of_both_have_as_many_steps_and_only_they_are_timed(step_secs, pairs, block_secs, first, first_secs):
    hook = MeasuringHook(Plan(MLP, "rival", pairs, block_secs, first, first_secs))
    hook._rival = CountingRival(2 * step_secs)
    assert drive(hook, step_secs) == ["all is measured"]
    assert hook._steps >= MIN_STEPS
    assert hook._steps == pytest.approx(max(MIN_STEPS, block_secs / step_secs), abs=0.51)
    assert [steps for _, steps in hook._rival.calls] == [hook._steps] * pairs
    assert all(warm_up >= 1 for warm_up, _ in hook._rival.calls)
    assert [secs for secs, _ in hook._ours] == pytest.approx([hook._steps * step_secs] * pairs)
    assert [cpu for _, cpu in hook._ours] == pytest.approx([hook._steps * step_secs / 2] * pairs)
    assert [secs for secs, _ in hook._theirs] == pytest.approx([2 * hook._steps * step_secs] * pairs)


@given(st.floats(1e-3, 0.5), st.integers(1, 30), st.floats(0, 5))
def test_nothing_counts_before_the_first_seconds_are_over(step_secs, first, first_secs):
    hook = MeasuringHook(Plan(MLP, None, 1, 0.1, first, first_secs))
    hook._rival = None
    before = round(first_secs / step_secs - 0.5)
    drive(hook, step_secs, most=max(before, first + GAUGE_STEPS) - 1)
    assert not hook._ours


@given(st.lists(st.tuples(st.integers(1, 99), st.lists(seconds, min_size=1), st.tuples(seconds, seconds)), min_size=1))
def test_what_a_process_told_is_read_as_it_was(tmp_path_factory, told):
    path = tmp_path_factory.mktemp("told") / "told.json"
    written = [Measurement(steps, tuple(secs), losses, 64, tuple(secs)) for steps, secs, losses in told]
    write_measurements(path, written)
    assert read_measurements(path) == written
    for one in written:
        assert min(one.rates) * (1 - 1e-9) <= one.rate <= max(one.rates) * (1 + 1e-9)


@pytest.mark.parametrize(("last", "trains"), [(1.0, True), (2.2, False), (float("nan"), False)])
def test_a_way_whose_loss_does_not_fall_is_no_rival(last, trains):
    told = Measurement(10, (1.0,), (2.3, last), 64)
    if trains:
        told.checked(OURS)
    else:
        with pytest.raises(RuntimeError, match=r"hpc_train: the loss was 2\.300 at first.*does not train"):
            told.checked(OURS)


def test_ranks_that_run_at_once_add_up():
    both = together([Measurement(10, (1.0,), (2.3, 1.0), 64, (0.8,)), Measurement(10, (2.0,), (2.2, 1.1), 64, (2.4,))])
    assert both.rate == pytest.approx(640 + 320)
    assert both.losses == (2.3, 1.1)
    assert both.cores == pytest.approx(1.0)


@given(models, ranks, peers)
def test_the_plan_has_each_unit_once_and_the_thin_one_each_sort_once(models, ranks, peers):
    units = plan(models, sorted(ranks), peers)
    names = [unit.name for unit in units]
    assert len(names) == len(set(names))
    thin = plan(models, sorted(ranks), peers, thin=True)
    assert len(thin) * len(models) == len(units)
    sorts = {(unit.kind, unit.ranks, unit.ways) for unit in units}
    assert {(unit.kind, unit.ranks, unit.ways) for unit in thin} == sorts
    assert all(unit.ways[0] == Contestant(OURS, unit.ranks) for unit in units)


def test_on_one_rank_the_rival_has_no_allreduce_either():
    (alone, fit, together) = plan([MLP], [1, 2], ["same-flags", "fit"])
    assert [one.way for one in alone.ways] == [OURS, PLAIN]
    assert {one.ranks for one in fit.ways} == {1}
    assert together.ways == (Contestant(OURS, 2), Contestant(SAME_FLAGS, 2))


@pytest.mark.parametrize("gpus", [0, 2])
def test_the_others_make_as_many_steps_as_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: int):
    started, seen = [], set()

    def job(folder, model, ranks, settings, launch):
        return Measurement(10, (0.1,) * 8, (2.3, 1.0), 64 * ranks, (0.1,) * 8)

    def here(env=None, allocation=False):
        seen.add(allocation)

        def launch(ranks, arguments, folder, limit_secs):
            words = dict(pairwise(arguments))
            started.append((ranks, words["--steps"], words["--warm-up"], "--alone" in arguments, dict(env or {})))
            for rank in range(ranks):
                write_measurements(
                    Path(words["--out"]) / f"rank-{rank}.json", [Measurement(80, (1.0,), (2.3, 1.0), 64, (1.0,))]
                )

        return launch

    monkeypatch.setattr("peers.measuring.run_alone", job)
    monkeypatch.setattr("peers.measuring.here", here)
    unit = plan([MLP], [2], ["horovod"])[0]
    with Results(tmp_path / "out", "overhead", {}) as results:
        found = Found(Runner(tmp_path, replace(QUICK, passes=2), results, gpus).measure(unit))
    assert seen == {gpus > 0}, "all of them see GPUs, or none"
    assert {one.repeats for one in found} == {2}
    both = {(way, 2) for way in (OURS, DEFAULT_FLAGS, SAME_FLAGS, NO_EXCHANGE)}
    assert set(found.each("way", "ranks")) == both | {(OURS, 1), (PLAIN, 1)}
    assert {(steps, warm_up) for _, steps, warm_up, *_ in started} == {("80", "12")}
    one_pass = started[:4]
    assert [(ranks, alone) for ranks, _, _, alone, _ in one_pass] == [(2, False), (2, False), (2, True), (1, True)]
    assert [env for *_, env in one_pass] == [{}, package_flags(2, gpus), {}, {}]
    assert found.one(way=NO_EXCHANGE).value == pytest.approx(2 * 80 * 64)


def test_the_same_flags_are_those_that_the_package_sets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert package_flags(2) == {
        "HOROVOD_CYCLE_TIME": "0.1",
        "HOROVOD_FUSION_THRESHOLD": "1048576",
        "OMPI_MCA_btl": "^tcp",
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    assert "HOROVOD_FUSION_THRESHOLD" not in package_flags(2, gpus=2)


def test_a_unit_that_fails_or_cannot_be_had_is_noted_and_the_others_go_on(monkeypatch, tmp_path: Path):
    def measure(self, unit):
        raise {"Keras fit": MissingError("no such program")}.get(unit.ways[1].way, RuntimeError("code 1"))

    monkeypatch.setattr(Runner, "measure", measure)
    with Results(tmp_path, "overhead", {}) as results:
        measure_all(plan([MLP], [1], ["fit"]), tmp_path, QUICK, results)
        assert not results.failed
        measure_all(plan([MLP], [1], ["same-flags"]), tmp_path, QUICK, results)
        assert results.failed
        assert list(results.left_out.values()) == ["no such program", "code 1"]


def all_records(speed: float = 1.0) -> Found:
    """Ours makes 100 examples a second and rank on all models, the others 50, and all 1.25 times as many alone."""
    kept = []
    for unit in plan([MLP, CNN, LARGE], [1, 2], [peer for peer in PEERS if peer != "estimator"]):
        told = {
            one: [
                Measurement(
                    1, (1.0,) * 4, (2.0, 1.0), round(one.ranks * (100 * speed if one.way == OURS else 50)), (1.0,) * 4
                )
                for _ in range(1 if unit.kind == "one process" else 4)
            ]
            for one in unit.ways
        }
        kept += records(unit, told)
    return Found(kept)


def test_targets_look_at_ours_against_each_and_a_page_has_them_all():
    assert [target.reached for target in targets(all_records())] == [True] * 5
    slow = targets(all_records(0.45))
    assert [target.reached for target in slow] == [False] * 4 + [True], "both ends of weak scaling are ours"
    assert {name for name, *_ in slow[4].measured} == set(WEAK_SCALING)
    assert not any(target.reached for target in targets(Found([])))
    page = make_page(all_records(), QUICK)
    titles = [section.title for section in page.sections]
    assert titles == [
        *("The same work, in the same process", "Against other programs", "Weak scaling", "How it was measured")
    ]
    assert make_page(Found([]), QUICK).sections[0].title == "How it was measured"


def test_ranks_share_the_rows_out_in_whole_batches(tmp_path: Path):
    write_data(tmp_path, [MLP, CNN], 256)
    rows = [load_batches(tmp_path, MLP, rank, 2, 32)[0] for rank in range(2)]
    assert {part.shape for part in rows} == {(4, 32, 784)}
    assert len({row.tobytes() for part in rows for batch in part for row in batch}) == 256
    assert load_batches(tmp_path, CNN, 0, 1, 64)[0].shape == (4, 64, 28, 28, 1)
    with pytest.raises(ValueError, match="a batch needs 512"):
        load_batches(tmp_path, MLP, 0, 1, 512)


def test_an_environment_that_works_is_used_and_one_that_cannot_be_built_is_told(tmp_path: Path, monkeypatch):
    said: list[str] = []
    python = tmp_path / "there" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 2.15.1\n")
    python.chmod(0o755)
    (tmp_path / "there" / "ready").touch()
    assert find_or_build(said.append, tmp_path / "there") == str(python)
    assert not said
    base = tmp_path / "python3.11"
    base.write_text("#!/bin/sh\necho 'No module named venv' >&2\nexit 1\n")
    base.chmod(0o755)
    monkeypatch.setattr("peers.clusters.find_python", lambda: str(base))
    with pytest.raises(MissingError, match="No module named venv"):
        find_or_build(said.append, tmp_path / "new")
    assert str(tmp_path / "new") in said[0]
    assert "TensorFlow 2.15" in said[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks", "999"], "999 ranks but"),
        (["--ranks", "0"], "--ranks"),
        (["--models", "vgg"], "invalid choice: 'vgg'"),
        (["--peers", "estimator"], "invalid choice: 'estimator'"),
        (["--dir", "missing"], "--dir: missing is not a folder"),
    ],
)
def test_mistakes_end_with_code_2_before_anything_is_written(tmp_path: Path, arguments, told):
    program = [sys.executable, str(REPOSITORY / "benchmarks" / "overhead.py"), "--out", "out", *arguments]
    done = run_program(program, tmp_path, timeout=600)
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == "[]"
