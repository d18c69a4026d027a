"""Rates that benchmarks/collectives.py has measured: read, and applied to what a step sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import UserError
from hpc_train.planning.links import measured_here, read_links, seconds
from hpc_train.planning.traffic import Call


def record(operation: str, nbytes: int, gigabytes: float, place: str = "one node", **more: Any) -> str:
    way = "Horovod, group, mean" if operation == "allreduce" else "hpc_train's window"
    config = {"operation": operation, "place": place, "way": way, "bytes": nbytes, "machine": {"cpu": "a cpu"}}
    return json.dumps({"benchmark": "collectives", "ranks": 2, "value": gigabytes, "config": config, **more})


def file_of(folder: Path, *lines: str) -> Path:
    path = folder / "records.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rates_are_interpolated_between_sizes(tmp_path: Path) -> None:
    path = file_of(tmp_path, record("allreduce", 100, 1.0), record("allreduce", 10_000, 4.0), record("put", 100, 2.0))
    links = read_links(path)
    assert links.where.endswith("records.jsonl, on a cpu")
    assert read_links(tmp_path).rates == links.rates, "the folder will do"
    assert links.seconds(Call("allreduce", 1000, 2), 1) == pytest.approx(1000 / 2e9)
    assert links.seconds(Call("reducescatter", 10**6, 2), 1) == pytest.approx(5e5 / 4e9), "none so large was measured"
    assert links.seconds(Call("push", 50, 2), 1) == pytest.approx(50 / 2e9)
    assert links.seconds(Call("pull", 50, 2), 1) is None
    assert seconds(links, [Call("allreduce", 1000, 2), Call("pull", 50, 2)], 1) is None
    assert seconds(links, [], 1) == 0
    assert seconds(None, [Call("push", 50, 2)], 1) is None


def test_ranks_on_several_nodes_have_the_rates_between_nodes(tmp_path: Path) -> None:
    lines = [record("allreduce", 100, 8.0), record("allreduce", 100, 1.0, "across nodes")]
    links = read_links(file_of(tmp_path, *lines))
    assert links.seconds(Call("allreduce", 100, 2), 1) == pytest.approx(100 / 8e9)
    assert links.seconds(Call("allreduce", 100, 2), 4) == pytest.approx(100 / 1e9)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["no JSON"], 1),
        ([record("allreduce", 100, 1.0), "[]"], 2),
        ([record("allreduce", 100, 1.0, benchmark="scaling")], 1),
        ([record("broadcast", 100, 1.0)], 1),
    ],
)
def test_other_files_are_refused(tmp_path: Path, lines: list[str], line: int) -> None:
    with pytest.raises(UserError, match=rf"records.jsonl:{line}: no record of benchmarks/collectives.py"):
        read_links(file_of(tmp_path, *lines))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--links: .*No such file"):
        read_links(tmp_path / "none")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="no record"):
        read_links(binary)


def test_results_of_this_checkout_can_be_read() -> None:
    found = measured_here()
    assert found is None or read_links(found).rates


def test_the_newest_results_are_taken(tmp_path: Path) -> None:
    for name in (
        "collectives_a_2026-01-02",
        "collectives_b_2025-12-31",
        "collectives-8-ranks_a_2026-02-01",
        "scaling_a_2026-03-01",
    ):
        folder = tmp_path / "benchmarks" / "results" / name
        folder.mkdir(parents=True)
        (folder / "records.jsonl").touch()
    found = measured_here(tmp_path)
    assert found is not None
    assert found.parent.name == "collectives_a_2026-01-02"
    assert measured_here(tmp_path / "nowhere") is None
