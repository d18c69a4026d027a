"""scaling.py runs end to end: an emulated accelerator in all ways, a user's own job, and one that is interrupted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.support import FINAL, LIMIT_SECS, REPOSITORY, environment, make_job_in, run_program, wait_for

SCRIPT = REPOSITORY / "benchmarks" / "scaling.py"
FIELDS = ["benchmark", "case", "ranks", "value", "unit", "baseline", "ratio", "repeats", "spread", "config", "versions"]
STEP_MS, BATCH, GRADIENT_BYTES = 20, 32, 500_000
EMULATED = ("--emulate-step-ms", f"{STEP_MS}", "--gradient-mb", "0.5", "--ranks", "2")  # and one, as always
WAYS = ("--ways", "sync", "async")
RANKS = {("sync", 1): 1, ("sync", 2): 2, ("async", 2): 3}
PARTS = {"input", "compute", "communication", "apply", "checkpoint", "other"}


def command(folder: Path, *words: str) -> list[str]:
    (folder / "jobs").mkdir(exist_ok=True)
    where = ["--out", "out", "--dir", "jobs"]
    return [sys.executable, str(SCRIPT), "--quick", "--oversubscribe", *where, *words]


def run(folder: Path, *words: str) -> tuple[list[dict], str]:
    """Records and all that was printed."""
    done = run_program(command(folder, *words), folder, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((folder / "jobs").iterdir()) == [], "data was left behind"
    lines = (folder / "out" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], done.stdout + done.stderr


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], Path]:
    """Records of a run, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("emulated")
    records, _ = run(folder, *EMULATED, *WAYS)
    return records, folder


def test_all_ways_train_with_the_ranks_that_they_need(emulated):
    records, _ = emulated
    assert {(r["config"]["way"], r["config"]["workers"]): r["ranks"] for r in records} == RANKS
    for record in records:
        assert list(record) == FIELDS
        assert f"emulated {STEP_MS} ms" in record["case"]
        low, high = record["spread"]
        assert 0 < low <= record["value"] <= high
        assert record["config"]["unit"]
    alone = records[0]
    assert (alone["config"]["way"], alone["config"]["workers"], alone["ratio"]) == ("sync", 1, None)


def test_steps_wait_for_as_long_as_asked_and_gradients_are_of_that_size(emulated):
    records, _ = emulated
    for record in records:
        config = record["config"]
        assert config["emulated_step_ms"] == STEP_MS
        assert config["gradient_bytes"] == GRADIENT_BYTES
        # The report of a step may be read late, when the one in flight is over, too: of n steps n - 1 last so long.
        assert record["value"] <= 2 * config["workers"] * BATCH / (STEP_MS / 1e3)
        assert config["steps_in_flight"] == 1
        assert len(config["examples_per_sec_by_rank"]) == config["workers"]
        assert config["shares"].keys() <= {*PARTS, "gap"}
        assert sum(config["shares"].get(part, 0) for part in PARTS) == pytest.approx(1, abs=0.05)
        assert config["shares"]["compute"] > 0.03  # on a busy machine starting a step takes long, too


def test_the_report_says_that_it_is_emulated_and_where_a_step_goes(emulated):
    _, folder = emulated
    page = (folder / "out" / "report.md").read_text()
    for words in ("A quick run", "EMULATED", "Where a step's time goes", "forward and backward"):
        assert words in page
    for private in (socket.gethostname(), str(REPOSITORY), str(Path.home()), sys.prefix, str(folder)):
        assert private not in page


def test_a_users_own_job_is_trained_in_the_way_asked_for_and_left_as_it_is(tmp_path):
    job = make_job_in(tmp_path, run={"save_checkpoints_steps": 10_000, "strategy": "async"}, eval=FINAL)
    assert yaml.safe_load(job.file.read_text())["eval"]["exporters"], "which a benchmark leaves out"
    before = {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}
    [record], _ = run(tmp_path, "--job", "job/job.yaml", "--ranks", "1", "--ways", "sync")
    assert (record["config"]["way"], record["ranks"], record["config"]["data"]) == ("sync", 1, "own job")
    assert "job.yaml" in record["case"]
    assert "EMULATED" not in (tmp_path / "out" / "report.md").read_text()
    after = {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert after == before


def ranks_of(case: Path) -> list[str]:
    def mentions(pid: str) -> bool:
        try:
            return str(case).encode() in Path("/proc", pid, "cmdline").read_bytes()
        except OSError:  # it has ended
            return False

    return [pid for pid in os.listdir("/proc") if pid.isdecimal() and mentions(pid)]


def case_with_ranks(jobs: Path, process: subprocess.Popen[bytes]) -> Path | None:
    """The file of the case whose ranks run now, while `process` does."""
    assert process.poll() is None, "no ranks have been started"
    case = next(jobs.glob("scaling-*/case.json"), None)
    return case if case and ranks_of(case) else None


def test_ending_it_leaves_no_ranks_and_no_data(tmp_path):
    with subprocess.Popen(
        command(tmp_path, *EMULATED),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            case = wait_for(partial(case_with_ranks, tmp_path / "jobs", process), "ranks have been started")
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_SECS) == 128 + signal.SIGTERM
        finally:
            process.kill()
    # SIGKILL takes effect when a process is next given a core.
    wait_for(lambda: not ranks_of(case), lambda: f"still there: {ranks_of(case)}")
    assert list((tmp_path / "jobs").iterdir()) == []
