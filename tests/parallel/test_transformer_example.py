"""The language model of examples/transformer: it learns, and what `plan` says of it is what its job has."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.forks import forks
from tests.support import REPOSITORY, environment, records_of, run_program, variables

SMALL = ["params.width=32", "params.blocks=1", "params.steps=80", "train.max_steps=80", "data.train.batch_size=16"]
SETTINGS = [word for setting in (*SMALL, "run.save_checkpoints_steps=40") for word in ("--set", setting)]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "transformer"
    shutil.copytree(REPOSITORY / "examples/transformer", folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    done = run_program(["python", "prepare.py", "--folder", "data", "--rows", "1024"], folder)
    assert done.returncode == 0, done.stderr
    assert "1,024 rows" in done.stdout
    again = run_program(["python", "prepare.py", "--folder", "data"], folder)
    assert "since an earlier run" in again.stdout
    return folder


def planned(example: Path, ranks: int) -> dict[str, dict[str, Any]]:
    done = run_program(
        ["hpc-train", "plan", "job.yaml", "--ranks", str(ranks), "--json", *SETTINGS], example, **forks(environment())
    )
    assert done.returncode == 0, done.stderr
    return {option["name"]: option for option in json.loads(done.stdout)["options"]}


def test_it_learns_on_two_ranks_what_it_learns_on_one(example: Path) -> None:
    divided = ["hpc-train", "launch", "--ranks", "2", "job.yaml", "--job-dir", "divided", *SETTINGS]
    whole = ["hpc-train", "train", "job.yaml", "--job-dir", "whole", *SETTINGS]
    for command in (divided, [*whole, "--set", "run.mesh=null", "--set", "run.shard_optimizer=false"]):
        done = run_program(command, example, **forks(environment()))
        assert done.returncode == 0, done.stdout + done.stderr
    losses = [records_of(example / name, "eval")[-1]["loss"] for name in ("divided", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)
    assert losses[0] < 2.9, "of 4.85, had it learnt nothing"
    names = [set(variables(example / name, 80)) for name in ("divided", "whole")]
    assert names[0] == names[1], "a checkpoint has the whole model"

    options = planned(example, 2)
    asked = options["mesh 1 x 2"]
    assert asked["chief"]["parameters"] < 0.7 * options["sync"]["chief"]["parameters"]
    kept = variables(example / "whole", 80)
    of_optimizer = sum(array.nbytes for name, array in kept.items() if name.startswith("optimizer/"))
    assert options["sync"]["chief"]["optimizer"] == of_optimizer
