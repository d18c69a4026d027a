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
    assert run_ranks(0, ["make_data.py"], tmp_path).returncode == 0
    done = run_ranks(2, ["train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "runs" / "mine" / "status.json").read_text())["state"] == "succeeded"
    (tmp_path / "runs").rename(tmp_path / "earlier")
    here = {"HPC_TRAIN_BACKEND": "local", "XDG_STATE_HOME": str(tmp_path / "state")}
    for command, shown in shell_session(text):  # on this machine, as on a cluster
        program = [sys.executable, "-m", "hpc_train"] if command[0] == "hpc-train" else [command[0]]
        done = run_program([*program, *command[1:]], tmp_path, **here)
        assert done.returncode == 0, done.stderr
        if command[1] in ("submit", "describe", "wait", "list"):
            first = (done.stdout + done.stderr).splitlines()[0]
            assert alike(first, shown.splitlines()[0]), (command, first)
    status = json.loads((tmp_path / "runs/first/status.json").read_text())
    assert (status["state"], status["step"]) == ("succeeded", 1000)


def shell_session(text: str) -> list[tuple[list[str], str]]:
    """The commands after each `$ ` of a page, and what is shown below them."""
    found = re.findall(r"^    \$ (.*)\n((?:    (?!\$ ).*\n)*)", text, re.MULTILINE)
    assert [command.split()[1] for command, _ in found] == [
        "submit",
        "describe",
        "logs",
        "wait",
        "list",
        "runs/first/export/final",
    ]
    return [(command.split(), re.sub("^    ", "", shown, flags=re.MULTILINE)) for command, shown in found]


def alike(line: str, shown: str) -> bool:
    """Whether two lines have the same words, but for blanks and the name of the queue."""
    return line.replace("local job", "Slurm job").split() == shown.split()


def test_the_mistakes_shown_in_the_documentation_are_real(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "job_file.md").read_text()
    job = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert job is not None
    job_file = job[1].replace("shuffle:", "shufle:").replace("max_steps: 2000", "max_steps: 0")
    (tmp_path / "job.yaml").write_text(job_file)
    done = run_ranks(0, ["-m", "hpc_train", "train", "job.yaml"], tmp_path)
    assert done.returncode == 2
    shown = re.findall(r"    (hpc-train: error: .*)", text)
    assert len(shown) == 2
    assert done.stderr.splitlines() == shown
