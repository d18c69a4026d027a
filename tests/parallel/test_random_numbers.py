"""Models that draw from TensorFlow's global generator are as reproducible as others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_ranks

PROGRAM = REPOSITORY / "tests/parallel/programs/random_numbers.py"


@pytest.mark.parametrize("how", ["plain", "deterministic"])
def test_a_model_that_draws_from_the_global_generator_is_reproducible(tmp_path: Path, how: str) -> None:
    done = run_ranks(0, [PROGRAM, tmp_path, how], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["again"] == found["once"], "two fresh runs of one job"
    assert found["resumed"] == found["once"], "stopped and gone on with"
    assert {"rng/tensorflow", "rng/numpy", "rng/python"} < set(found["once"])
    for name in found["once"]:
        assert found["other"][name] != found["once"][name], "another seed"
