from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import MODEL, Job, merge, write_rows


@pytest.fixture
def make_job(tmp_path: Path) -> Callable[..., Job]:
    """Writes a job: `make_job(train_rows=[…], test_rows=[…], model=source, **changes of the job file)`."""

    def make(
        name: str = "job",
        train_rows: Sequence[int] = (96, 96),
        test_rows: Sequence[int] = (50,),
        model: str = MODEL,
        **changes: Any,
    ) -> Job:
        folder = tmp_path / name
        for part, counts in (("train", train_rows), ("test", test_rows)):
            for i, rows in enumerate(counts):
                write_rows(folder / "data" / f"{part}-{i}.h5", rows, seed=100 * (part == "test") + i)
        (folder / "model.py").write_text(model)
        job = {
            "name": "tiny",
            "model": "model.py:build_model",
            "data": {
                "train": {"shards": "data/train-*.h5", "features": "x", "label": "y", "batch_size": 16, "seed": 1},
                "eval": {"shards": "data/test-*.h5", "features": "x", "label": "y", "batch_size": 16},
            },
            "run": {"save_checkpoints_steps": 10, "tf_random_seed": 1},
            "train": {"max_steps": 20},
            "eval": {"steps": None, "start_delay_secs": 0, "throttle_secs": 0, "exporters": {"final": {}}},
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(merge(job, changes))), sort_keys=False))
        return Job(folder)

    return make
