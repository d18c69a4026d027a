"""What the ranks of a node tell each other as they join."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.distributed.devices import open_gpus
from hpc_train.distributed.startup import _node_of


@pytest.mark.parametrize(
    ("other", "devices"),
    [(["nvidia0", "nvidia1"], ["0", "0"]), (["nvidia1"], None), ([], None)],
)
def test_a_number_of_a_gpu_that_is_another_one_for_each_rank_is_not_told(other: list[str], devices: Any) -> None:
    here = SimpleNamespace(
        gather=lambda own: [own, ([1, 2], ["0"], other)], broadcast=lambda value: value, free=lambda: None
    )
    world: Any = SimpleNamespace(host="n1", split=lambda _: here, first=lambda value: value)
    assert _node_of(world, [0, 1], ["0"], ["nvidia0", "nvidia1"]) == ({0: 1, 1: 2, 2: 1}, devices)


def test_gpus_that_may_be_opened(tmp_path: Path) -> None:
    for name in ("nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia0").symlink_to("nowhere")
    assert open_gpus(tmp_path) == ["nvidia1", "nvidia10"]
