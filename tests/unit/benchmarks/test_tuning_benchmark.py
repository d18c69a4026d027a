"""tuning.py: a change is compared with the job beside it, one that fails is noted, and names are checked."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from peers.models import MLP
from peers.settings import QUICK
from support.records import Found
from support.results import Results
from support.usage import UsageError
from tuning import AS_IT_IS, CHANGES, chosen, make_page, measure_all


def test_a_change_is_compared_with_the_job_beside_it_and_one_that_fails_is_noted(tmp_path):
    ran = []

    def rate(change):
        ran.append(change.name)
        if change.name == "TCP":
            raise RuntimeError("mpirun: code 1")
        return 100.0 if change.name == AS_IT_IS else 80.0 if len(ran) < 3 else 120.0

    changes = chosen(["TCP", "no yield"])
    assert [change.name for change in changes] == ["no yield", "TCP"], "in the order of CHANGES"
    with Results(tmp_path, "tuning", {}) as results:
        measure_all(changes, rate, replace(QUICK, passes=2), results, f"{MLP}, 2 ranks", 2)
    assert ran[:4] == [AS_IT_IS, "no yield", "no yield", AS_IT_IS]
    [record] = results.records
    assert (record.case, record.baseline, record.ranks) == (f"{MLP}, 2 ranks, no yield", AS_IT_IS, 2)
    assert record.ratio == pytest.approx(1.0)
    assert record.config["env"] == {"OMPI_MCA_mpi_yield_when_idle": "0"}
    assert results.left_out == {"TCP, TCP": "mpirun: code 1"}
    assert results.failed
    [section] = make_page(Found(results.records), MLP, 2, QUICK).sections
    assert section.tables[0].rows[0][0] == "no yield"


def test_a_report_of_nothing_can_be_made_and_an_unknown_change_is_told_which_there_are():
    assert make_page(Found([]), MLP, 2, QUICK).sections[0].tables[0].rows == []
    with pytest.raises(UsageError, match=f"there is no 'magic'; there are: .*{CHANGES[-1].name}"):
        chosen(["magic"])
