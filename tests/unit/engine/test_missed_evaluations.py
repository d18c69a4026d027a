"""What a run that goes on from a checkpoint evaluates of the runs before it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.engine.lifecycle import missed_evaluations


@pytest.mark.parametrize(("interval", "missed"), [(10, [(0, 20)]), (None, [(0, 13), (0, 20)])])
def test_what_a_signal_has_saved_between_two_checkpoints_is_not_missed(
    interval: int | None, missed: list[tuple[int, int]], tmp_path: Path
) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "step": 10, "time": 1.0, "loss": 0.5}) + "\n")
    specs = [
        SimpleNamespace(kind="eval", eval_every_checkpoint=True),
        SimpleNamespace(kind="eval_hard", eval_every_checkpoint=False),
    ]
    context: Any = SimpleNamespace(
        job_dir=tmp_path,
        config=SimpleNamespace(save_checkpoints_steps=interval),
        job=SimpleNamespace(eval_specs=specs),
        plan=SimpleNamespace(first_step=20),
    )
    assert missed_evaluations(context, [10, 13, 20]) == missed
