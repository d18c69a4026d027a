"""hpc-train evaluate: a separate evaluator, which follows a job through its job-dir and only reads it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.forks import forks
from tests.ranks import hpc_train, train
from tests.support import LIMIT_SECS, MODEL, Job, environment, records_of, wait_for, write_rows

MakeJob = Callable[..., Job]

EMA_MODEL = MODEL.replace("0.01))", "0.01), use_ema=True, ema_momentum=0.9)")


def evaluate(job: Job, *options: object, ranks: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    return hpc_train(["evaluate", *map(str, (job.job_dir, *options))], ranks, job.folder, **env)


@contextmanager
def running(job: Job, *command: object) -> Iterator[subprocess.Popen[str]]:
    """`hpc-train COMMAND` beside the test; at the end it is gone."""
    with open(job.folder / f"{command[0]}.out", "a") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "hpc_train", *map(str, command)],
            cwd=job.folder,
            env=environment(**forks(environment())),
            text=True,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def printed(job: Job, command: str) -> str:
    return (job.folder / f"{command}.out").read_text()


def results(folder: Path, kind: str = "eval") -> list[dict[str, Any]]:
    return records_of(folder, kind)


def out_of(job: Job) -> Path:
    return job.folder / "run.evaluation"


def everything_in(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size, p.stat().st_ino) for p in [folder, *folder.rglob("*")]}


def check_agreement(job: Job, found: list[dict[str, Any]]) -> None:
    own = {record["step"]: record for record in results(job.job_dir)}
    for record in found:
        for metric in ("loss", "accuracy"):
            assert record[metric] == pytest.approx(own[record["step"]][metric], rel=1e-6), (record, own)


@pytest.fixture(scope="module")
def done(make_shared_job: MakeJob) -> Job:
    """A job of 40 steps, whose optimizer averages the weights."""
    job = make_shared_job(model=EMA_MODEL, train={"max_steps": 40})
    ended = train(job)
    assert ended.returncode == 0, ended.stderr
    return job


def test_two_ranks_evaluate_a_job_that_has_ended_and_touch_nothing_of_it(done: Job) -> None:
    before = everything_in(done.job_dir)
    for path in [done.job_dir, *done.job_dir.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    ended = evaluate(done, "--every-checkpoint", ranks=2)
    assert ended.returncode == 0, ended.stderr
    found = results(out_of(done))
    assert [record["step"] for record in found] == [10, 20, 30, 40]
    check_agreement(done, found)
    assert [record.get("last", False) for record in found] == [False, False, False, True]
    assert [record["lag_steps"] for record in found] == [30, 20, 10, 0]
    assert all(record["secs"] > 0 and record["lag_secs"] >= 0 for record in found)
    assert re.search(r"eval at step 40: loss \S+  accuracy \S+  lag 0 steps, 0 s", ended.stdout)
    assert list((out_of(done) / "eval").glob("events.out.tfevents.*"))

    again = evaluate(done, "--follow", "--every-checkpoint")
    assert again.returncode == 0, again.stderr
    assert "4 checkpoints were evaluated earlier" in again.stdout
    assert "training has ended (succeeded); evaluated 0 checkpoints" in again.stdout
    assert results(out_of(done)) == found
    assert not (out_of(done) / "lock.json").exists()
    assert everything_in(done.job_dir) == before


def test_a_checkpoint_is_chosen_by_its_step_and_evaluated_on_other_data(done: Job) -> None:
    write_rows(done.folder / "other.h5", 30, seed=7)
    options = [
        "--step",
        20,
        "--name",
        "other",
        "--out",
        "elsewhere",
        "--set",
        f"data.eval.shards={done.folder}/other.h5",
    ]
    ended = evaluate(done, *options)
    assert ended.returncode == 0, ended.stderr
    (record,) = results(done.folder / "elsewhere", "eval_other")
    assert record["step"] == 20
    assert record["loss"] != pytest.approx(next(r["loss"] for r in results(done.job_dir) if r["step"] == 20), rel=1e-6)


def test_a_job_dir_that_was_renamed_and_whose_data_has_moved_is_evaluated_by_its_name(done: Job) -> None:
    renamed = done.folder / "elsewhere" / "renamed"
    shutil.copytree(done.job_dir, renamed)
    for path in [renamed, *renamed.rglob("*")]:
        path.chmod(path.stat().st_mode | 0o200)
    (renamed / "code").mkdir()
    shutil.copy(done.folder / "model.py", renamed / "code")
    text = (renamed / "job.yaml").read_text()
    text = text.replace(f"{done.folder}/model.py", "/gone/code/model.py").replace(f"{done.folder}/data", "/gone/data")
    (renamed / "job.yaml").write_text(text)

    def evaluated(*options: object) -> subprocess.CompletedProcess[str]:
        root = {"HPC_TRAIN_ROOT": str(renamed.parent)}
        return hpc_train(["evaluate", "renamed", *map(str, options)], 0, done.folder, **root)

    ended = evaluated()
    assert ended.returncode == 2, ended.stdout
    assert "/gone/data/test-*.h5 matches no file" in ended.stderr and "--data 'PATH/test-*.h5'" in ended.stderr
    ended = evaluated("--data", "data/test-*.h5")
    assert ended.returncode == 0, ended.stderr
    found = results(renamed.with_name("renamed.evaluation"))
    assert [record["step"] for record in found] == [40]
    check_agreement(done, found)


def test_mistakes_are_told_before_anything_is_written(done: Job, make_job: MakeJob) -> None:
    def refused(job: Job, *options: object) -> str:
        ended = (
            evaluate(job, *options, "--out", job.folder / "none") if "--out" not in options else evaluate(job, *options)
        )
        assert ended.returncode == 2, ended.stdout + ended.stderr
        assert not (job.folder / "none").exists()
        return ended.stderr

    assert "no checkpoint of step 25; there are: 10, 20, 30, 40" in refused(done, "--step", 25)
    assert "which is only read" in refused(done, "--out", done.job_dir / "evaluation")
    assert "leave out --follow" in refused(done, "--step", 20, "--follow")
    fresh = make_job()
    assert "no such job-dir; --follow waits for one" in refused(fresh)
    fresh.job_dir.mkdir()
    assert "there is no checkpoint yet; --follow waits for one" in refused(fresh)


def test_a_damaged_checkpoint_is_told_and_the_one_before_evaluated(done: Job, tmp_path: Path) -> None:
    copy = Job(tmp_path)
    subprocess.run(["cp", "-r", done.job_dir, copy.job_dir], check=True)
    state = copy.job_dir / "checkpoints/step-00000040/state.h5"
    state.chmod(0o600)
    with open(state, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    ended = evaluate(copy, "--follow", "--out", "out")
    assert ended.returncode == 0, ended.stderr
    assert "the checkpoint of step 40 is damaged and passed over" in ended.stdout
    assert [record["step"] for record in results(copy.folder / "out")] == [30]


def test_waiting_in_vain_ends_with_code_1(make_job: MakeJob) -> None:
    ended = evaluate(make_job(), "--follow", "--poll-secs", 0.2, "--idle-timeout-secs", 1)
    assert ended.returncode == 1
    assert re.search(r"waiting for the job in \S+ to begin\nnothing new for 1 s", ended.stdout), ended.stdout


def test_it_follows_a_job_that_runs_beside_it_across_its_own_restart(make_job: MakeJob) -> None:
    job = make_job(
        model=EMA_MODEL,
        train={"max_steps": 300},
        run={"keep_checkpoint_max": 3, "log_step_count_steps": 1000},
    )
    follow = ["evaluate", job.job_dir, "--follow", "--poll-secs", 0.2]
    with running(job, *follow) as first:
        wait_for(lambda: "waiting for the job" in printed(job, "evaluate"), "the evaluator waits")
        with running(job, "train", job.file, "--job-dir", job.job_dir, "--debug-delay", "0:50") as training:
            wait_for(lambda: bool(results(out_of(job))), "an evaluation")
            assert training.poll() is None, printed(job, "train")
            first.send_signal(signal.SIGTERM)
            assert first.wait(LIMIT_SECS) == 4, printed(job, "evaluate")
            assert "stopped by SIGTERM" in printed(job, "evaluate")
            with running(job, *follow) as second:
                assert training.wait(LIMIT_SECS) == 0, printed(job, "train")
                assert second.wait(LIMIT_SECS) == 0, printed(job, "evaluate")
    found = results(out_of(job))
    steps = [record["step"] for record in found]
    assert len(set(steps)) == len(steps) > 2
    assert steps == sorted(steps)
    assert steps[-1] == 300
    assert found[-1]["last"] is True
    check_agreement(job, found)
    assert printed(job, "evaluate").count("waiting for the job") == 1
    assert "training has ended (succeeded)" in printed(job, "evaluate")


def test_checkpoints_that_go_before_their_turn_are_told_and_a_killed_job_is_noticed(make_job: MakeJob) -> None:
    job = make_job(
        test_rows=(4000,),
        train={"max_steps": 100_000},
        run={"save_checkpoints_steps": 4, "keep_checkpoint_max": 2, "best_metric": None, "log_step_count_steps": 1000},
        eval={"throttle_secs": 3600},
    )
    with running(job, "train", job.file, "--job-dir", job.job_dir, "--debug-delay", "0:5") as training:
        wait_for(lambda: bool(results(job.job_dir)), "an evaluation by the job itself")
        with running(job, "evaluate", job.job_dir, "--follow", "--every-checkpoint", "--poll-secs", 0.1) as evaluator:
            wait_for(lambda: "skipped the checkpoint" in printed(job, "evaluate"), "a checkpoint is skipped")
            wait_for(lambda: len(results(out_of(job))) > 2, "evaluations")
            training.kill()
            training.wait(LIMIT_SECS)
            assert evaluator.wait(LIMIT_SECS) == 10, printed(job, "evaluate")
    found = results(out_of(job))
    steps = [record["step"] for record in found]
    assert steps == sorted(set(steps))
    newest = max(int(path.name[5:]) for path in (job.job_dir / "checkpoints").glob("step-????????"))
    assert steps[-1] == newest
    assert "training was killed and left no word" in printed(job, "evaluate")
    skipped = {int(step) for step in re.findall(r"skipped the checkpoint of step (\d+)", printed(job, "evaluate"))}
    assert not skipped & set(steps)


def test_several_evaluation_sets_each_have_their_records(make_job: MakeJob) -> None:
    other = {"shards": "other.h5", "features": "x", "label": "y", "batch_size": 16}
    job = make_job(evals={"other": {"data": other, "steps": None, "start_delay_secs": 0}})
    write_rows(job.folder / "other.h5", 30, seed=7)
    ended = train(job)
    assert ended.returncode == 0, ended.stderr
    ended = evaluate(job, "--name", "other", "--every-checkpoint")
    assert ended.returncode == 0, ended.stderr
    assert [record["step"] for record in results(out_of(job), "eval_other")] == [10, 20]
    assert results(out_of(job)) == []
    ended = evaluate(job, "--follow", "--every-checkpoint", ranks=2)
    assert ended.returncode == 0, ended.stderr
    for kind in ("eval", "eval_other"):
        found = results(out_of(job), kind)
        assert [record["step"] for record in found] == [10, 20], "what one set lacks does not repeat the other"
        own = {record["step"]: record["loss"] for record in results(job.job_dir, kind)}
        assert found[-1]["loss"] == pytest.approx(own[20], rel=1e-6)
    ended = evaluate(job, "--name", "none")
    assert ended.returncode == 2
    assert "the job has no evaluation set 'none'; it has: the one without a name, other" in ended.stderr
