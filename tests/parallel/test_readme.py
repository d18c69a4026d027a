"""The README's own example, as a newcomer would type it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tests.pages import alike, newcomer
from tests.support import REPOSITORY, run_program, run_ranks

TESTED_ELSEWHERE = {
    "make demo": "it is a part of CI by itself",
    "make test": "is what runs this",
    "pip install": "test_installed.py",
    "HOROVOD_WITH_MPI=1": "needs a network, and an hour",
    "sbatch": "tests/slurm",
    "python benchmarks/scaling.py": "test_scaling_benchmark.py",
}
"""Commands of the README that are not run here, by how they begin, and who does or why nobody does."""


def commands_of(text: str) -> list[tuple[str, str]]:
    """All commands of a page in their order, with the output that is shown below them; comments are left out."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"(?:^    .*\n)+", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        lines = [line[4:] for line in block.splitlines()]
        if not lines[0].startswith("$ "):
            found += [(re.sub(r"\s+# .*", "", line), "") for line in lines]
            continue
        for line in lines:
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                found[-1] = found[-1][0], f"{found[-1][1]}{line}\n"
    return found


def test_every_command_does_what_the_page_says_in_its_order(tmp_path: Path) -> None:
    text = (REPOSITORY / "README.md").read_text()
    files = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in files] == ["train.py", "make_data.py", "job.yaml"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    here = newcomer(tmp_path)

    def typed(command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run_program(["bash", "-ec", f"source .venv/bin/activate\n{command}"], tmp_path, **{**here, **env})

    ran, unknown = [], set(TESTED_ELSEWHERE)
    for command, shown in commands_of(text):
        begun = {start for start in TESTED_ELSEWHERE if command.startswith(start)}
        unknown -= begun
        if begun:
            continue
        ran.append(command)
        done = typed(command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert "nothing is left" not in done.stdout + done.stderr, command
        if shown and "logs" not in command and "ls" not in command:
            lines = (done.stdout + done.stderr).splitlines()  # `wait` may say before that the job is finishing
            assert any(alike(line, shown.splitlines()[0]) for line in lines), (command, lines)
    assert not unknown and len(ran) == 22, ran
    for job in ("one", "two", "three", "mine", "ours", "first", "async", "sure"):
        status = json.loads((tmp_path / "runs" / job / "status.json").read_text())
        assert (status["state"], status["step"]) == ("succeeded", 1000), job
    for path in ("compare.html", "runs/mine/report.html", "preds-00000.h5", "runs/mine/export/manual"):
        assert (tmp_path / path).exists(), path

    again = typed("mpirun -np 2 python train.py runs/two")
    assert again.returncode == 0, again.stderr
    (line,) = again.stdout.splitlines()
    assert line.startswith(f"nothing is left to train: {tmp_path}/runs/two is at step 1,000 of 1,000 (loss "), line
    for command, said in (
        ("hpc-train evaluate runs/two --step 800", "eval at step 800: loss "),
        ("hpc-train export runs/two --step 800", "export of step 800: "),
    ):
        done = typed(command)
        assert done.returncode == 0 and said in done.stdout, (command, done.stdout, done.stderr)

    (allow_root,) = re.findall(r"`(export OMPI_.*?)`", text)
    never = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "")
    assert (typed("mpirun -np 1 true", **never).returncode == 0) == (os.geteuid() != 0)
    assert typed(f"{allow_root}\nmpirun -np 1 true", **never).returncode == 0


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
