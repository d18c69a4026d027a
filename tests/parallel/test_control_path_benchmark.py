"""control_path.py runs end to end on a few ranks: the package's own job, with TensorFlow stood in for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_program

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from control_paths.page import BESIDE, PHASES, SUMS

SCRIPT = REPOSITORY / "benchmarks" / "control_path.py"
RANKS = (2, 4)


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], Path]:
    """Records, and the folder of results, of one run."""
    folder = tmp_path_factory.mktemp("control-path")
    done = run_program([sys.executable, str(SCRIPT), "--quick", "--out", "out", "--dir", str(folder)], folder, 600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out" not in done.stderr, done.stderr
    assert [path.name for path in folder.iterdir()] == ["out"], "data was left behind"
    lines = (folder / "out" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], folder / "out"


def configs(records: list[dict], what: str) -> dict[int, list[dict]]:
    """Of the records of a kind, by ranks."""
    found: dict[int, list[dict]] = {}
    for record in records:
        if record["config"]["what"] == what:
            found.setdefault(record["ranks"], []).append(record["config"])
    return found


def test_each_phase_of_a_job_is_measured_on_each_count_of_ranks(quick_run):
    records, _ = quick_run
    phases = configs(records, "phase")
    assert tuple(phases) == RANKS
    for found in phases.values():
        assert [one["phase"] for one in found] == [*PHASES, *SUMS]
        assert all(one["cpu_worker"] > 0 and one["wall"] > 0 for one in found)
        by_name = {one["phase"]: one for one in found}
        assert {name for name in PHASES if not by_name[name]["calls_worker"]} == set(), "each has collective calls"
        assert by_name["plan"]["files_worker"] == 0, "the chief finds out, and the others are told"


def test_what_messages_bring_to_a_worker_does_not_grow_with_the_ranks(quick_run):
    """But for what MPI itself tells a rank of each other one (8 bytes), and lines of another length."""
    records, _ = quick_run
    few, many = (next(one for one in found if one["phase"] == BESIDE) for found in configs(records, "phase").values())
    assert abs(many["received_worker"] - few["received_worker"]) < 64 * (RANKS[1] - RANKS[0])
    assert many["calls_worker"] == few["calls_worker"]


def test_memory_files_and_the_stall_watch_are_measured(quick_run):
    records, _ = quick_run
    assert tuple(configs(records, "memory")) == RANKS
    for ranks, (found,) in configs(records, "written").items():
        assert found["written"]["files in ranks"] == ranks
        assert found["written"]["files in logs"] == 0
        assert found["written"]["bytes of environment.json"] > 0
    ((stalled,),) = configs(records, "stall").values()
    assert stalled["files"] == RANKS[-1] and stalled["judge"] == 0
    assert stalled["message"].startswith("all 4 ranks have not moved for 1 s: training step 1")


def test_the_report_has_its_targets_and_sections(quick_run):
    _, folder = quick_run
    page = (folder / "report.md").read_text()
    assert "A quick run" in page and page.count("≤") == 3
    for title in ("To the first step", "Each phase", "Messages", "Memory, MB", "What is written", "All ranks stall"):
        assert f"## {title}" in page
