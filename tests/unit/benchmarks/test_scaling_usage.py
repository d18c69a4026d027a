"""What scaling.py makes of its command line, and of runs that were interrupted. Its jobs are not run here."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))  # before tests/, which has a support.py, too

from scale.jobs import Case, Run, read_run
from scale.settings import FULL
from support import machine
from support.usage import run_main

BENCHMARKS = REPOSITORY / "benchmarks"
ENDED_BY_TERM = 143
SMALL = ("--models", "mlp", "--ranks", "1", "2")


class Script:
    """scaling.py in this process, with a job that takes no time. `ran`: the cases that it was called for."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL"):  # the script sets them where they are not set
            monkeypatch.setenv(name, os.environ.get(name, "1"))
        self._monkeypatch = monkeypatch
        self.module = importlib.import_module("scaling")
        self.out, self.jobs = folder / "out", folder / "jobs"
        self.jobs.mkdir()
        self.ran: list[Case] = []
        self.ends_at = ""  # the kind of scaling at whose first job the script is ended
        self.fails_at = ""
        self.device = ""  # where there are GPUs, one of them
        monkeypatch.setattr(self.module, "run_case", self._run_case)
        monkeypatch.setattr(self.module, "RESULTS", folder)
        monkeypatch.setattr("support.machine.gpus", list)
        monkeypatch.setattr("scale.room.available_bytes", lambda: 64e9)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            monkeypatch.delenv(name)

    def __call__(self, *words: str) -> int:
        """The exit code."""
        self.ran = []
        where = ["--out", str(self.out), "--dir", str(self.jobs)]
        self._monkeypatch.setattr(sys, "argv", ["scaling.py", *where, *words])
        with pytest.raises(SystemExit) as ended:
            run_main(self.module.main)
        assert list(self.jobs.iterdir()) == [], "data was left behind"
        return int(ended.value.code or 0)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.out / "records.jsonl").read_text().splitlines()]

    def report(self) -> str:
        return (self.out / "report.md").read_text()

    def _run_case(self, folder: Path, case: Case, *_: object) -> Run:
        strong = case.workers > 1 and case.batch != 64
        kind = "strong" if strong else "weak"
        if kind == self.ends_at:
            raise SystemExit(ENDED_BY_TERM)  # as run_main has it on a signal
        if kind == self.fails_at:
            raise RuntimeError("mpirun: code 1\nrank 1: no luck")
        (folder / "run").mkdir(exist_ok=True)
        self.ran.append(case)
        ends = [1.0, 1.1, 1.2 + 0.01 * case.workers]
        told = {"ends": ends, "wall": 0.0, "gradient_bytes": 10**6, "nccl": False}
        told["device"] = self.device or next((gpu["name"] for gpu in machine.gpus()), "CPU")
        shares = {"kind": "train", "time": 2.0, "by_rank": {"compute": [0.8], "other": [0.2]}}
        return read_run([{"rank": rank, **told} for rank in range(case.workers)], [shares], case.batch or 1)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "64"], "64 ranks but 2 slots"),
        (["--ranks", "2", "0", "--oversubscribe"], "give numbers from 1 on"),
        (["--ways", "async", "--ranks", "2"], "3 ranks but 2 slots"),
        (["--gpu"], "finds no GPU here; ask Slurm for some (--gpus-per-node), or leave --gpu out"),
        (["--job", "none.yaml"], "none.yaml is not a file"),
        (["--job", "none.yaml", "--models", "mlp"], "not allowed with argument"),
        (["--models", "lenet"], "invalid choice: 'lenet'"),
        (["--emulate-step-ms", "0"], "give numbers above 0"),
        (["--emulate-step-ms", "20", "--gradient-mb", "-1"], "give numbers above 0"),
        (["--how-many-nodes", "2"], "--how-many-nodes: 2.0; give an efficiency above 0 and at most 1"),
        (["--how-many-nodes", "0"], "give an efficiency above 0"),
        (["--how-many-nodes", "0.8"], "make one first, or name its results by --collectives"),
        (["--gradient-mb", "2"], "give --emulate-step-ms, too, or leave it out"),
        (
            ["--emulate-step-ms", "20", "--data", "hdf5"],
            "--data: a job of your own, and an emulated model, have theirs",
        ),
        (["--emulate-step-ms", "20", "--kinds", "strong"], "so its scaling is weak"),
        (["--how-many-nodes", "0.8", "--kinds", "strong"], "is answered for weak scaling"),
        (["--batch", "0"], "--batch: 0; give a number from 1 on"),
        (["--dir", "nowhere"], "nowhere is not a folder"),
        (["--collectives", "nowhere"], "nowhere/records.jsonl"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    script: Script, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script(*words) == 2
    assert said in capsys.readouterr().err
    assert not script.ran
    assert not script.out.exists()


def test_a_slurm_job_with_too_few_tasks_is_told_how_to_get_more(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert script(*SMALL) == 2
    told = capsys.readouterr().err
    assert "2 ranks but 1 slots" in told
    assert "--ntasks-per-node" in told


def test_ranks_may_share_slots_when_asked(script: Script) -> None:
    assert script("--models", "mlp", "--ranks", "4", "--ways", "dedicated", "--oversubscribe") == 0
    assert {(case.way, case.workers, case.ranks) for case in script.ran} == {
        ("sync", 1, 1),
        ("dedicated chief", 4, 5),
    }


def test_all_slots_are_used_unless_ranks_are_given(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert script("--models", "mlp", "--kinds", "weak") == 0
    assert {case.workers for case in script.ran} == {1, 2, 4, 6}


def test_each_rank_has_a_gpu_where_there_are_some(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("support.machine.gpus", lambda: [{"name": "H100", "memory_mib": 81559}] * 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    assert script("--gpu", "--models", "mlp", "--kinds", "weak") == 0
    assert {case.workers for case in script.ran} == {1, 2}
    assert script("--gpu", "--models", "mlp", "--kinds", "weak", "--ranks", "4") == 2
    assert "4 ranks, but a GPU each for 2" in capsys.readouterr().err


def test_gpus_that_tensorflow_does_not_use_are_no_gpus(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("support.machine.gpus", lambda: [{"name": "H100", "memory_mib": 81559}] * 2)
    script.device = "CPU"
    assert script("--gpu", "--models", "mlp", "--kinds", "weak") == 2
    assert "--gpu: there are GPUs, but TensorFlow uses none: install tensorflow[and-cuda]" in capsys.readouterr().err
    assert len(script.ran) == 1


def test_the_batch_of_an_own_job_is_shared_out(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("data: {train: {batch_size: 48}}")
    assert script("--job", str(job), "--kinds", "weak", "strong", "--ranks", "1", "2") == 0
    assert {(case.workers, case.batch) for case in script.ran} == {(1, None), (2, None), (1, 48), (2, 24)}
    job.write_text("data: []")
    assert script("--job", str(job), "--kinds", "strong") == 2
    assert "tells no data.train.batch_size to share out; give --batch" in capsys.readouterr().err


def test_how_many_nodes_without_an_answer_is_no_success(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = tmp_path / "collectives"
    network.mkdir()
    (network / "records.jsonl").write_text("")
    assert script(*SMALL, "--kinds", "weak", "--collectives", str(network), "--how-many-nodes", "0.8") == 1
    assert "no answer, see above" in capsys.readouterr().err


def test_a_model_that_does_not_fit_is_left_out_and_named(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scale.room.available_bytes", lambda: 4e9)
    assert script("--models", "vgg16", "mlp", "--kinds", "weak", "--ranks", "2") == 0
    assert {case.workload for case in script.ran} == {"mlp"}
    assert "vgg16" not in {record["config"]["workload"] for record in script.records()}
    printed = capsys.readouterr().out
    for text in (script.report(), (script.out / "report.html").read_text(), printed):
        assert "VGG-16" in text
        assert "need about 11 GB, 4 are free; try --batch or --ranks" in text


def test_a_report_is_written_even_where_nothing_fits(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scale.room.available_bytes", lambda: 4e9)
    assert script("--models", "vgg16", "--kinds", "weak", "--ranks", "2") == 0
    assert "4 are free" in script.report()


def test_an_interrupted_run_keeps_the_jobs_it_finished_and_goes_on(script: Script) -> None:
    script.ends_at = "strong"
    assert script(*SMALL) == ENDED_BY_TERM
    before = script.records()
    assert {record["config"]["kind"] for record in before} == {"weak"}
    script.ends_at = ""
    assert script(*SMALL) == 0
    assert {case.batch for case in script.ran if case.workers == 2} == {32}, "the weak ones are there already"
    assert len(script.ran) == 2 * FULL.passes - 1, "and so is one rank alone, once"
    after = script.records()
    assert after[: len(before)] == before
    assert {record["config"]["kind"] for record in after[len(before) :]} == {"strong"}
    assert script(*SMALL) == 0
    assert not script.ran
    assert script.records() == after


def test_a_point_whose_job_fails_is_left_out_and_named(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.fails_at = "strong"
    assert script(*SMALL) == 0
    found = [(record["config"]["kind"], record["config"]["workers"]) for record in script.records()]
    assert found == [("weak", 1), ("weak", 2), ("strong", 1)]
    for text in (script.report(), capsys.readouterr().out):
        assert "sync, 2 workers: mpirun: code 1" in text
        assert "no luck" in text


def test_a_curve_without_its_one_rank_is_left_out_and_tried_again_later(script: Script) -> None:
    script.fails_at = "weak"
    assert script(*SMALL, "--kinds", "weak") == 0
    assert script.records() == []
    assert "no luck" in script.report()
    script.fails_at = ""
    assert script(*SMALL, "--kinds", "weak") == 0
    assert [record["config"]["workers"] for record in script.records()] == [1, 2]
    assert "no luck" not in script.report()


def test_the_folder_of_another_run_is_refused_until_it_is_thrown_away(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script(*SMALL, "--kinds", "weak") == 0
    before = script.records()
    assert script(*SMALL, "--kinds", "weak", "--batch", "32") == 2
    told = capsys.readouterr().err
    assert "holds another run" in told
    assert "give another folder, or throw that run away by --fresh" in told
    assert script.records() == before
    assert script(*SMALL, "--kinds", "weak", "--batch", "32", "--fresh") == 0
    assert {record["config"]["batch"] for record in script.records()} == {32}


def test_the_command_line_is_read_without_tensorflow_or_mpi(tmp_path: Path) -> None:
    """A mistake is told at once, and the script takes no core from its ranks."""
    program = "import scaling, sys; print(sorted({'tensorflow', 'keras', 'mpi4py', 'horovod'} & set(sys.modules)))"
    done = run_program(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r}); {program}"], tmp_path, 60
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr
