"""Values of resources.environment reach the job, and nothing that anybody else may see."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
import yaml

from hpc_train.config.resources import Resources
from hpc_train.config.secrets import masked_settings, restored_settings
from hpc_train.jobs.record.submission import read_submission, train_arguments
from hpc_train.jobs.schedulers.slurm.script import render
from hpc_train.jobs.snapshot.ignore import looks_secret
from hpc_train.telemetry.environment import noted_variables
from tests.forks import forks
from tests.slurm.jobs import make_folder, write_job
from tests.support import environment, run_program
from tests.unit.jobs.submissions import a_submission

FIRST, SECOND = "s3cr3t-of-the-file", "s3cr3t-of-the-option"
SEES = """

import os, psutil
from pathlib import Path

def note():
    me = psutil.Process()
    lines = [" ".join(process.cmdline()) for process in [me, *me.parents()]]
    seen = [os.environ.get("API_KEY"), os.environ.get("TF_OTHER")]
    Path(os.environ["SEEN"]).write_text("\\n".join([*map(str, seen), *lines]))

note()
"""


def hpc_train(folder: Path, *words: object, code: int = 0, **env: str) -> str:
    done = run_program(["hpc-train", *map(str, words)], folder, **env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_job_has_them_and_shows_them_nowhere(tmp_path: Path) -> None:
    folder, seen = make_folder(tmp_path / "mine"), tmp_path / "seen"
    resources = {"tier": "CUSTOM", "environment": {"API_KEY": FIRST, "SEEN": str(seen)}}
    write_job(folder, max_steps=2, save_checkpoints_steps=2, resources=resources)
    model = folder / "model.py"
    model.write_text(model.read_text() + SEES)
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), **forks(environment())}
    submit = ["submit", "job.yaml", "--backend", "local", "--set", f"resources.environment.TF_OTHER={SECOND}"]

    shown = hpc_train(folder, *submit, "--dry-run", **env)
    assert "API_KEY=***" in shown
    shown += hpc_train(folder, *submit, "--name", "a", "--wait", "--json", **env)
    for words in ("describe a --json", "describe a", "list --json", "logs a", "checkpoints runs/a", "report runs/a"):
        shown += hpc_train(folder, *words.split(), **env)

    first, second, *commands = seen.read_text().splitlines()
    assert (first, second) == (FIRST, SECOND), "the job has them"
    assert len(commands) > 2
    assert "s3cr3t" not in shown + "\n".join(line for line in commands if "submit" not in line.split())
    job_dir = folder / "runs/a"
    holders = [path for path in job_dir.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
    assert {path.relative_to(job_dir).as_posix() for path in holders} == {"secrets.sh", "code/job.yaml"}
    assert stat.S_IMODE((job_dir / "secrets.sh").stat().st_mode) == 0o600
    assert (job_dir / "report.html").exists()
    assert list((job_dir / "train").glob("events.*"))
    assert yaml.safe_load((job_dir / "job.yaml").read_text())["resources"]["environment"]["API_KEY"] == "***"
    assert json.loads((job_dir / "environment.json").read_text())["environment"]["TF_OTHER"] == "***"

    seen.unlink()
    shown = hpc_train(folder, "resume", "a", "--set", "train.max_steps=3", "--wait", **env)
    assert seen.read_text().splitlines()[:2] == [FIRST, SECOND], "a job that goes on has them, too"
    assert "s3cr3t" not in shown + (job_dir / "submission.json").read_text()


def test_a_batch_script_reads_them_from_a_file_of_their_own(tmp_path: Path) -> None:
    wants = Resources(tier="BASIC", environment={"API_KEY": FIRST}).model_dump(mode="json")
    settings = (f"resources.environment.API_KEY={FIRST}", "train.max_steps=3")
    submission = a_submission(kind="model", backend="slurm", resources=wants, settings=settings)

    script = render(submission, tmp_path, Path("/usr/bin/python3"), "true\n", "")
    submission.save(tmp_path)
    submission.save_secrets(tmp_path)

    assert "s3cr3t" not in script
    assert re.search(r"source \S+/secrets\.sh", script)
    assert "s3cr3t" not in (tmp_path / "submission.json").read_text()
    assert "s3cr3t" not in " ".join(train_arguments(tmp_path, submission))
    assert (tmp_path / "secrets.sh").read_text() == f"export API_KEY={FIRST}\n"
    assert read_submission(tmp_path) == a_submission(
        **{**vars(submission), "settings": (f'resources.environment.API_KEY="{FIRST}"', "train.max_steps=3")}
    )
    a_submission().save_secrets(tmp_path)
    assert not (tmp_path / "secrets.sh").exists(), "no secret outlives its submission"


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ("train.max_steps=5", "train.max_steps=5"),
        ("resources.nodes=5", "resources.nodes=5"),
        ("resources.environment.A=s3cr3t", 'resources.environment.A="***"'),
        ("resources.environment={A: s3cr3t, B: 1}", 'resources.environment={"A": "***", "B": "***"}'),
        ("resources={nodes: 2, environment: {A: s3cr3t}}", 'resources={"nodes": 2, "environment": {"A": "***"}}'),
        ("resources.environment.A=[s3cr3t", 'resources.environment.A="***"'),
        ("resources=s3cr3t", "resources=s3cr3t"),
        ("params.resources.environment.A=1", "params.resources.environment.A=1"),
    ],
)
def test_settings_are_shown_without_them(setting: str, shown: str) -> None:
    assert masked_settings([setting]) == (shown,)
    assert masked_settings([shown]) == (shown,)


def test_masked_settings_are_restored() -> None:
    settings = ("resources.environment.A=x", 'resources={"nodes": 2, "environment": {"A": "x", "B": "***"}}')
    (first, second) = restored_settings(masked_settings(settings), {"A": "y"})
    assert first == 'resources.environment.A="y"'
    assert second == 'resources={"nodes": 2, "environment": {"A": "y", "B": "***"}}'


def test_messages_about_them_have_none(tmp_path: Path) -> None:
    for setting in (
        "resources.environment.A-B=s3cr3t",
        "resources.environment=s3cr3t",
        'resources.environment.A="s3cr3t\\n"',
    ):
        folder = make_folder(tmp_path / str(len(list(tmp_path.iterdir()))))
        write_job(folder, max_steps=2, save_checkpoints_steps=2)
        said = hpc_train(folder, "submit", "job.yaml", "--backend", "local", "--dry-run", "--set", setting, code=2)
        assert "s3cr3t" not in said, said
        assert "resources.environment" in said


def test_variables_that_a_job_was_given_are_noted_by_name_alone() -> None:
    env = {"TF_A": "1", "TF_B": "2", "HPC_TRAIN_MASKED": "TF_B OTHER", "OTHER": "3"}
    assert noted_variables(env) == {"TF_A": "1", "TF_B": "***", "HPC_TRAIN_MASKED": "TF_B OTHER"}


SECRET = ".env a/.env .env.prod .ssh/known_hosts a/.ssh/config a/key.pem id_rsa credentials credentials.json .netrc"
HARMLESS = "env model.py id_map.py credentials.py id_rsa.pub .env.example ids.txt id_cards/a.txt"


@pytest.mark.parametrize("path", SECRET.split())
def test_what_looks_like_a_secret(path: str) -> None:
    assert looks_secret(path)


@pytest.mark.parametrize("path", HARMLESS.split())
def test_what_does_not(path: str) -> None:
    assert not looks_secret(path)


def test_files_that_look_like_secrets_are_copied_if_asked_for_alone(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('done')\n")
    (tmp_path / "job.yaml").write_text("name: p\nmodule: main\n")
    for name in (".env", "id_rsa", "sub/key.pem"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("s3cr3t")
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HPC_TRAIN_ROOT": str(tmp_path / "runs")}
    submit = ["submit", "job.yaml", "--backend", "local", "--wait"]

    said = hpc_train(tmp_path, *submit, "--name", "a", **env)
    assert "not copied, since it looks like secrets (--with-secrets copies it): .env, id_rsa, sub/key.pem" in said
    copied = [path for path in (tmp_path / "runs/a/code").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.name for path in copied} == {"main.py", "job.yaml"}

    said = hpc_train(tmp_path, *submit, "--name", "b", "--with-secrets", **env)
    assert "not copied" not in said
    assert (tmp_path / "runs/b/code/sub/key.pem").read_text() == "s3cr3t"


def test_the_copy_of_a_job_file_is_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    (tmp_path / "job.yaml").write_text("name: p\nmodule: main\n")
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HPC_TRAIN_ROOT": str(tmp_path / "runs")}
    hpc_train(tmp_path, "submit", "job.yaml", "--backend", "local", "--wait", "--name", "a", **env)
    for path in (tmp_path / "runs/a", tmp_path / "runs/a/code"):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, oct(path.stat().st_mode)
