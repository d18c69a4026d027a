"""docs/data_format.md: its program for text and tables trains, on two ranks, and its job file is one."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path

import yaml

from hpc_train.config.hdf5_input import HDF5Input
from tests.support import REPOSITORY, run_ranks

PAGE = (REPOSITORY / "docs/data_format.md").read_text()


def test_text_and_words_are_learnt_from(tmp_path: Path) -> None:
    ((name, program),) = re.findall(r"```python\n# (reviews\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert "\n## Text and tables\n" in PAGE
    (tmp_path / name).write_text(program)
    numbers = random.Random(0)
    for file, rows in (("reviews.csv", 200), ("more.csv", 50)):
        with (tmp_path / file).open("w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["text", "kind", "price", "liked"])
            for i in range(rows):
                said = ("It was great fun, my dear", "A boring one")[i % 2]
                table.writerow([said, numbers.choice(["book", "film"]), f"{numbers.uniform(5, 30):.2f}", 1 - i % 2])
    done = run_ranks(2, [name, "run"], tmp_path)
    assert done.returncode == 0, done.stderr
    (record,) = [
        entry for entry in map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
        if entry.get("kind") == "eval"
    ]  # fmt: skip
    assert record["accuracy"] == 1.0, record
    assert list((tmp_path / "run/export/final").iterdir())


def test_the_inputs_shown_are_inputs() -> None:
    shown = re.findall(r"```yaml\n(data:.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 2
    for text in shown:
        train, evaluation = (HDF5Input(**options) for options in yaml.safe_load(text)["data"].values())
        assert isinstance(train.features, dict)
        assert isinstance(evaluation.features, dict)
        assert train.features.keys() == evaluation.features.keys()
