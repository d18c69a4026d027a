"""What model_parallel.py counts and compares: bytes of layers, jobs under a limit, variables of checkpoints."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.support import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

from divided import block, bounded, limits, restore
from divided.limits import CGROUP, PRIVATE
from support.launch import environment
from support.page import Report, Target, as_text
from support.records import Found


def page(module: Any, found: Found) -> str:
    return as_text(Report("t", (), module.targets(found), [module.section(found)]), "today")[0]


def ran(nbytes: float, **counts: float) -> dict[str, Any]:
    """What a job of two ranks tells whose layers exchange so many bytes each way."""
    counts = {"forward bytes": nbytes, "backward bytes": nbytes, "others bytes": 8, **counts}
    names = ("input", "compute", "communication", "apply")
    shares = {name: [share, share] for name, share in zip(names, (0.1, 0.6, 0.1, 0.1), strict=True)}
    return {"secs": [2.0], "ranks": [{"counts": counts, "memory": 2**20}] * 2, "shares": shares, "planned": 2 * 65536}


def test_bytes_of_layers_are_those_computed_or_the_target_is_missed() -> None:
    settings = block.Settings(rows=4, length=8, width=64, blocks=4)
    assert settings.nbytes == 2 * 4 * 4 * 8 * 64 * 4 == 65536
    for nbytes, reached in ((65536, True), (65540, False), (0, False)):
        runs = {block.ONE: [ran(0)], block.DIVIDED: [ran(nbytes, **{"forward secs": 0.25, "backward waiting": 0.5})]}
        found = Found(block.of_blocks(runs, settings))
        (target,) = block.targets(found)
        assert target.reached == reached, target
        assert found.ratio(block.ONE, way=block.DIVIDED) == 1
    one = found.one(way=block.DIVIDED)
    assert one is not None
    assert list(one.config["split"].values()) == pytest.approx([0.2, 0.45, 0.25, 0.5, 0.2, 0.2, 0.2])
    assert "65,536" in page(block, found)
    assert not block.targets(Found([]))[0].measured


def test_ranks_that_exchange_different_numbers_of_bytes_miss_the_target() -> None:
    run = ran(65536)
    run["ranks"] = [run["ranks"][0], ran(1)["ranks"][0]]
    runs = {block.ONE: [ran(0)], block.DIVIDED: [run]}
    (target,) = block.targets(Found(block.of_blocks(runs, block.Settings(4, 8, 64, 4))))
    assert not target.reached


OOM = "ResourceExhaustedError: OOM when allocating tensor"


def bound(kind: str | None, of_one: str = OOM, loss: float | None = 0.5, saved: int = 9) -> Found:
    trained = {"losses": [loss] * 2, "peaks": [1, 2], "ended": "", "saved": saved}
    refused = {"losses": [], "peaks": [], "ended": of_one, "saved": 0}
    told = {bounded.FREE: (None, trained), bounded.REFUSED: (kind, refused), bounded.DIVIDED: (kind, trained)}
    settings = bounded.Settings(steps=2)
    return Found([r for way, (limit, one) in told.items() for r in bounded.of_job(way, limit, one, settings)])


def by_limit(found: Found) -> dict[str, Target]:
    return {one.what.rpartition("limit of ")[2].rpartition("under ")[2]: one for one in bounded.targets(found)}


def test_a_limit_that_is_no_cgroup_reaches_its_own_target_alone() -> None:
    assert [one.reached for one in bounded.targets(bound(CGROUP))] == [True]
    found = by_limit(bound(PRIVATE))
    assert {name: (one.reached, bool(one.measured)) for name, one in found.items()} == {
        CGROUP: (False, False),
        PRIVATE: (True, True),
    }
    (target,) = bounded.targets(bound(None))
    assert not target.measured
    assert "No limit could be set here" in page(bounded, bound(None))


@pytest.mark.parametrize("wrong", [{"of_one": "mpirun: code 1; no such file"}, {"loss": None}, {"saved": 0}])
def test_another_failure_is_no_refusal_and_a_bad_end_no_training(wrong: dict[str, Any]) -> None:
    assert not by_limit(bound(PRIVATE, **wrong))[PRIVATE].reached


def test_a_limit_counts_only_where_it_ends_what_goes_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert limits.missing(PRIVATE, environment()) is None
    monkeypatch.setattr(limits, "prefix", lambda kind, nbytes: [])
    assert limits.missing(PRIVATE, environment()) == "it is accepted, and not kept"
    monkeypatch.setattr(limits, "prefix", lambda kind, nbytes: ["-c", "raise SystemExit('there is no bus')"])
    assert limits.missing(CGROUP, environment()) == "it cannot be had here (there is no bus)"


def test_variables_are_compared_by_name_shape_type_and_every_bit() -> None:
    zero = np.zeros(3, np.float32)
    saved = {"a": zero, "optimizer a": np.ones(2), "c": np.full(2, np.nan)}
    assert restore.compared(dict(saved), saved) == {
        "variables": 3,
        "of_optimizer": 1,
        "nbytes": 12 + 16 + 16,
        "same": 3,
        "others": [],
    }
    for name, other in {"a": -zero, "c": np.full(2, 1.0), "optimizer a": np.ones((2, 1))}.items():
        about = restore.compared({**saved, name: other}, saved)
        assert (about["same"], about["others"]) == (2, [name])
    assert restore.compared({"a": zero, "new": zero}, saved)["others"] == ["optimizer a", "c", "new"]
