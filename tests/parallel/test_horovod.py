"""hpc_train.horovod on real ranks, each against what one process computes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import REPOSITORY, run_program, run_ranks

EXAMPLE = REPOSITORY / "examples" / "horovod_keras"
PROGRAM = REPOSITORY / "tests" / "parallel" / "programs" / "horovod_names.py"


@pytest.mark.parametrize("ranks", [0, 2, 3])
def test_each_name_does_on_all_ranks_what_one_process_does(ranks: int, tmp_path: Path) -> None:
    done = run_ranks(ranks, [PROGRAM, tmp_path], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("is fine") == max(1, ranks)


def test_the_example_is_a_job_of_two_ranks_and_goes_on_alone(tmp_path: Path) -> None:
    queue = {"HPC_TRAIN_BACKEND": "local", "XDG_STATE_HOME": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "hpc_train",
        "submit",
        str(EXAMPLE / "job.yaml"),
        "--root",
        str(tmp_path),
        "--wait",
    ]
    done = run_program([*command, "--name", "fit", "--set", "args=[--epochs, 2]"], tmp_path, **queue)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert f"relative paths of the program, such as ./checkpoints, are below {tmp_path / 'fit' / 'code'}" in said
    assert "Epoch 2/2" in said and "test images, ranks: 2" in said, said
    models = tmp_path / "fit" / "models"
    assert sorted(path.name for path in models.iterdir()) == ["epoch-0001.keras", "epoch-0002.keras"]

    done = run_ranks(0, ["-m", "trainer.fit", "--job-dir", tmp_path / "fit", "--epochs", "3"], EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert "Epoch 3/3" in done.stdout and "Epoch 2/3" not in done.stdout and "ranks: 1" in done.stdout
    assert (models / "epoch-0003.keras").exists()
