"""What the report shows of energy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_train.jobdir.history import History
from hpc_train.report.node_tables import energy, energy_note
from hpc_train.report.tables import key_numbers


def history(found: dict[str, Any]) -> History:
    """Of a run that was measured for less long than status.json says that it took."""
    return History(Path("run"), [], 0, {"energy": found, "started": 0, "updated": 1000}, {}, "", {})


def node(host: str, **more: Any) -> dict[str, Any]:
    return {"host": host, "covers": "GPUs", "lacks": "", **more}


def test_power_is_that_of_the_time_that_was_measured() -> None:
    nodes = [node("n1", joules=100.0, secs=50.0), node("n2", joules=300.0, secs=60.0)]
    found = history({"joules": 400.0, "complete": True, "nodes": nodes})
    table = energy(found)
    assert table is not None
    assert [row[-2:] for row in table.rows] == [("100 J", "2 W"), ("300 J", "5 W"), ("400 J", "7 W")]
    assert energy_note(found) == ""


def test_power_that_is_not_known() -> None:
    nodes = [node("n1", joules=100.0), node("n2", joules=300.0, secs=0), node("n3")]  # as an older version wrote it
    table = energy(history({"joules": 400.0, "complete": False, "nodes": nodes}))
    assert table is not None
    assert [row[-1] for row in table.rows] == ["–"] * 4
    assert table.rows[-1][0] == "all that have told"


def test_the_key_number_is_split_where_it_is_joules() -> None:
    def fact(**more: Any) -> tuple[str, str]:
        facts = key_numbers(history({"joules": 400.0, "total_joules": 400.0, **more}))
        (one,) = [fact for fact in facts if fact.name == "energy of the last run"]
        return one.value, one.more

    assert fact(complete=True, nodes=[node("n1", joules=400.0)]) == ("400 J", "(GPUs)")
    assert fact(complete=True, per_1000_examples=2.0, nodes=[node("n1", joules=400.0)]) == (
        "400 J",
        "2 J per 1,000 examples (GPUs)",
    )
    more = {"total_joules": 900.0, "nodes": [node("n1", joules=400.0), node("n2")]}
    assert fact(complete=False, **more) == ("400 J", "900 J with earlier runs (GPUs); incomplete: of 1 of 2 nodes")
