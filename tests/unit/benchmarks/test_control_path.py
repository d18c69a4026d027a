"""What the ranks of control_path.py tell, as records, targets and a report."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from control_paths.page import FIRST_STEP, PHASES, WHOLE, make_page, records, stall_records, targets
from support.records import Found

SPENT = {"wall": 2.0, "cpu": 1.0, "waited": 1.0, "waited_cpu": 0.25, "calls": 3, "received": 100, "files": 5}


def run_of(ranks: int, chief: float = 1.0, received: int = 100, chief_bytes: int = 60_000_000) -> dict[str, Any]:
    """What a job tells whose chief takes `chief` times as long as a worker."""
    told = []
    for rank in range(ranks):
        spent = {**SPENT, "entries": 0, "received": received, "cpu": chief if rank == 0 else 1.0}
        memory = {"pss": chief_bytes if rank == 0 else 50_000_000, "private": 40_000_000, "most_rss": 90_000_000}
        told.append({"rank": rank, "phases": dict.fromkeys(PHASES, spent), "memory": memory})
    return {"ranks": told, "written": {"files in job-dir": 9, "bytes of status.json": 800}}


def test_a_phase_has_the_median_worker_the_chief_and_the_slowest():
    found = Found(records(4, [run_of(4, chief=3.0), run_of(4, chief=5.0)]))
    own = found.one(phase="build")
    assert (own.value, own.repeats, own.ranks) == (1.0, 2, 4)
    wanted = {"cpu_chief": 4.0, "cpu_most": 4.0, "cpu_worker": 1.0, "own_worker": 0.75, "files_worker": 5, "wall": 2.0}
    assert {name: own.config[name] for name in wanted} == wanted
    assert found.one(phase=FIRST_STEP).value == 5.0
    assert found.one(phase=WHOLE).config["received_chief"] == 100 * len(PHASES)
    assert found.one(what="memory").value == 10.0
    assert Found(records(1, [run_of(1)])).one(phase="build").value == 1.0, "one rank is chief and worker"


@pytest.mark.parametrize(
    ("many", "reached"),
    [
        ({}, [True, True, True]),
        ({"chief": 3.5}, [False, True, True]),
        ({"chief_bytes": 101_000_000}, [True, False, True]),
        ({"received": 240}, [True, True, False]),
    ],
)
def test_what_grows_too_fast_misses_its_target(many: dict[str, Any], reached: list[bool]):
    kept = [*records(8, [run_of(8)]), *records(128, [run_of(128, **many)])]
    assert [target.reached for target in targets(Found(kept))] == reached


def test_a_stalled_job_and_counts_without_8_or_128_have_a_report():
    ranks = [{"rank": rank, "phases": {"steps": {**SPENT, "entries": 7}}} for rank in range(4)]
    verdict = {
        "message": "all 4 ranks stand; ended because of /a/folder",
        "judge": 0,
        "files": 4,
        "bytes": 9,
        "took": {},
    }
    kept = [*records(2, [run_of(2)]), *records(4, [run_of(4)])]
    kept += stall_records(4, 20.0, {"ranks": ranks, "verdict": verdict})
    page = make_page(kept, cores=2)
    assert [target.reached for target in page.targets] == [False, True, False], "not measured"
    assert "All ranks stall" in [section.title for section in page.sections]
    assert not any("/a/folder" in text for section in page.sections for text in section.text)
