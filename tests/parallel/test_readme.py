"""The README's own example, as a newcomer would type it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.support import REPOSITORY, run_program, run_ranks


def test_the_example_runs_as_script_and_as_job(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text()
    files = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in files] == ["train.py", "make_data.py", "job.yaml"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    assert run_ranks(0, ["make_data.py"], tmp_path, 60).returncode == 0
    done = run_ranks(2, ["train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "runs" / "mine" / "status.json").read_text())["state"] == "succeeded"
    (tmp_path / "runs").rename(tmp_path / "earlier")
    done = run_program([sys.executable, "-m", "hpc_train", "launch", "-n", "2", "job.yaml"], tmp_path, 120)
    assert done.returncode == 0, done.stderr
    status = json.loads((tmp_path / "runs" / "mine" / "status.json").read_text())
    assert (status["state"], status["step"]) == ("succeeded", 1000)


def test_the_mistakes_shown_in_the_documentation_are_real(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "job_file.md").read_text()
    job = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert job is not None
    job_file = job[1].replace("shuffle:", "shufle:").replace("max_steps: 2000", "max_steps: 0")
    (tmp_path / "job.yaml").write_text(job_file)
    done = run_ranks(0, ["-m", "hpc_train", "train", "job.yaml"], tmp_path, 60)
    assert done.returncode == 2
    shown = re.findall(r"    (hpc-train: error: .*)", text)
    assert len(shown) == 2
    assert done.stderr.splitlines() == shown
