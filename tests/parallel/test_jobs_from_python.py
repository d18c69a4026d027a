"""The example of docs/jobs.md, as a program of a user's runs it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.slurm.jobs import make_folder, write_job
from tests.support import REPOSITORY, run_ranks


def test_the_example_submits_a_model_shows_its_output_and_takes_its_result(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "jobs.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    folder = make_folder(tmp_path / "mine")
    write_job(folder, max_steps=20, save_checkpoints_steps=500, resources={"tier": "CUSTOM"})
    (folder / "sweep.py").write_text(program.replace("metrics['mae']", "metrics['accuracy']"))  # this job's own
    queue = {"HPC_TRAIN_BACKEND": "local", "XDG_STATE_HOME": str(tmp_path / "state")}

    done = run_ranks(0, ["sweep.py"], folder, 180, **queue)

    assert done.returncode == 0, done.stderr
    job_dir = folder / "runs/second"
    *output, last = done.stdout.splitlines()
    assert output == (job_dir / "logs/job.out").read_text().splitlines()
    assert re.fullmatch(rf"mean absolute error [01]\.\d+ after 500 steps: {job_dir}/export/final/\d+", last)

    refused = run_ranks(0, ["sweep.py"], folder, 60, **queue)

    assert refused.returncode == 1
    assert "the name is in use" in refused.stderr
