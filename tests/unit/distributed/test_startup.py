"""What the ranks of a node tell each other as they join."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.distributed import startup
from hpc_train.distributed.affinity import Binding, RankView
from hpc_train.distributed.devices import open_gpus
from hpc_train.distributed.startup import _cpu_note, _cpu_notes, _node_of


@pytest.mark.parametrize(
    ("other", "devices"),
    [(["nvidia0", "nvidia1"], ["0", "0"]), (["nvidia1"], None), ([], None)],
)
def test_a_number_of_a_gpu_that_is_another_one_for_each_rank_is_not_told(
    other: list[str], devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "bound", lambda wanted, before: wanted)
    here = SimpleNamespace(
        gather=lambda own: [own, ("1-2", None, own[2], ["0"], other)],
        broadcast=lambda value: value,
        free=lambda: None,
        rank=0,
    )
    world: Any = SimpleNamespace(host="n1", split=lambda _: here, first=lambda value: value)
    view, before = RankView(frozenset({0, 1})), Binding(why="not asked")
    found = _node_of(world, "auto", view, before, ["0"], ["nvidia0", "nvidia1"])
    assert (found.users, found.devices) == ({0: 1, 1: 2, 2: 1}, devices)
    assert found.binding == Binding("launcher", "0-1"), "their masks differ, which this rank could not know"


def test_notes_on_cpus_name_each_host_once() -> None:
    assert _cpu_note(Binding(why="all CPUs are in one NUMA domain"), 2, 2) == _cpu_note(Binding(), None, 1) == ""
    note = _cpu_note(Binding(), 3, 2)
    assert note.startswith("OMP_NUM_THREADS is 3, but a rank may use 2 CPUs")
    assert _cpu_note(Binding(why="x", warns=True), 3, 2) == "ranks are not bound as asked: x"
    told = [("n1", "a"), ("n1", "a"), *((f"m{i}", "b") for i in range(9)), ("n2", "a")]
    assert _cpu_notes(told) == ["n1, n2: a", "m0, m1, m2, m3, m4, m5, m6, m7 and 1 more: b"]


def test_gpus_that_may_be_opened(tmp_path: Path) -> None:
    for name in ("nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia0").symlink_to("nowhere")
    assert open_gpus(tmp_path) == ["nvidia1", "nvidia10"]
