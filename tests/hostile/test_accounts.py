"""Accounts, folders and files that are not as a program expects them: one sentence each."""

from __future__ import annotations

import getpass
import json
import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from hpc_train.cli.app import app
from hpc_train.errors import UserError
from hpc_train.git import Git
from hpc_train.model.job_model import load_function
from hpc_train.processes import home_folder, user_name
from hpc_train.telemetry.environment import describe_environment
from tests.hostile.commands import faults_of, run_commands
from tests.support import run_program


def unknown(uid: int) -> NoReturn:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """This user has no entry in the system's list, as in containers."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises((KeyError, OSError)):
        getpass.getuser()


def test_a_user_without_a_name_submits_all_the_same(
    tmp_path: Path, nobody: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (user_name(), home_folder()) == (str(os.getuid()), Path("/"))
    (tmp_path / "main.py").write_text("")
    (tmp_path / "job.yaml").write_text("name: p\nmodule: main\n")
    monkeypatch.chdir(tmp_path)
    for words in (["submit", "job.yaml", "--backend", "local", "--dry-run"], ["tiers"], ["list"]):
        done = CliRunner().invoke(app, words, env={"XDG_STATE_HOME": str(tmp_path)})
        assert done.exit_code == 0, (done.output, done.exception)


def test_what_is_no_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("")
    (tmp_path / "good.yaml").write_text("name: p\nmodule: main\n")
    made = {"fifo": os.mkfifo, "folder": Path.mkdir, "zero": lambda path: path.symlink_to("/dev/zero")}
    for folder, make in made.items():
        for name in ("job.yaml", "model.py"):
            job = tmp_path / folder / name.partition(".")[0]
            (job / "data").mkdir(parents=True)
            (job / "job.yaml").write_text(
                "name: tiny\nmodel: model.py:build\ndata: {train: {shards: data/*.h5}, eval: {shards: data/*.h5}}\n"
                "train: {max_steps: 1}\n"
            )
            (job / "model.py").write_text("def build(params): pass\n")
            (job / name).unlink()
            make(job / name)
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HPC_TRAIN_ROOT": str(tmp_path / "runs")}
    jobs = sorted(tmp_path.glob("*/*/job.yaml"))
    commands = [["submit", job, "--backend", "local", "--dry-run"] for job in jobs]
    commands += [["launch", job] for job in jobs if job.parent.name == "job"]
    commands += [["submit", tmp_path / "good.yaml", "--backend", "local", "--dry-run"]]

    *done, good = run_commands(commands, tmp_path, env)

    assert not faults_of(done)
    assert good.code == 0, good.err
    assert len(done) == 9
    for one in done:
        assert one.code == 2, (one.args, one.err)
        assert all(line.startswith("hpc-train: error: ") for line in one.err.splitlines()), one.err
        kind = {"fifo": "a FIFO", "folder": "a folder", "zero": "a device"}[Path(one.args[1]).parts[-3]]
        assert f"is {kind}, not a regular file" in one.err


def test_a_model_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.py")
    with pytest.raises(UserError, match="there is no file"):
        load_function(f"{tmp_path}/model.py:build", tmp_path)


def test_a_queue_on_a_full_disk_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """A file system without a byte free, where this user may mount one; else see test_links."""
    if run_program(["unshare", "--mount", "true"], tmp_path).returncode != 0:
        if os.environ.get("CI") == "true":
            pytest.fail("unshare --mount: this test needs to be root")
        pytest.skip("unshare --mount: this test needs to be root")
    (tmp_path / "main.py").write_text("")
    (tmp_path / "job.yaml").write_text("name: p\nmodule: main\n")
    (tmp_path / "state").mkdir()
    full = (
        "mount -t tmpfs -o size=64k tmpfs state; cat /dev/zero >state/ballast 2>/dev/null; "
        "hpc-train submit job.yaml --backend local --name a"
    )
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HPC_TRAIN_ROOT": str(tmp_path / "runs")}
    done = run_program(["unshare", "--mount", "sh", "-c", full], tmp_path, **env)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "the queue of this machine cannot be kept there: No space left on device" in done.stderr
    assert not (tmp_path / "runs/a").exists(), "nothing is left of it"


def test_the_commit_of_a_folder_is_noted_without_running_what_its_configuration_names(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@y"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        assert run_program([*git, *words], tmp_path).returncode == 0
    with open(tmp_path / ".git/config", "a") as file:
        for section, key in (("core", "fsmonitor"), ("core", "pager"), ("core", "sshCommand"), ("diff", "external")):
            file.write(f"[{section}]\n\t{key} = touch {tmp_path}/ran\n")
    assert len(json.loads(json.dumps(describe_environment([], tmp_path)))["commit"]) == 40
    assert not (tmp_path / "ran").exists()


def test_git_is_not_waited_for_where_a_folder_has_it_read_a_fifo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_program(["git", "init", "-q"], tmp_path).returncode == 0
    os.mkfifo(tmp_path / "fifo")
    assert run_program(["git", "config", "core.excludesFile", str(tmp_path / "fifo")], tmp_path).returncode == 0
    (tmp_path / "main.py").write_text("")

    git = Git(tmp_path)
    assert git.files() is None
    assert git.refusal == "it did not answer in time"
    monkeypatch.setattr("hpc_train.git.subprocess.Popen", lambda *_, **__: pytest.fail("it is asked again"))
    assert git.commit() is None
    assert Git(tmp_path, git).tracked() == []
