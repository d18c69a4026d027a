"""hpc-train migrate: what it prints and writes, its exit codes, and that it needs no TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hpc_train.cli.app import app
from hpc_train.config.job import load_job
from tests.support import LIMIT_SECS

CODE = 'import tensorflow as tf\nc = tf.estimator.RunConfig("/tmp/x", save_checkpoints_steps=5)\n'


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["migrate", *map(str, words)])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CODE)


def test_the_report_is_printed_and_nothing_written(tmp_path: Path) -> None:
    done = run("train.py")
    assert done.exit_code == 0 and done.stdout.startswith(
        "train.py: 1 finding: write 1\n\ntrain.py:2  tf.estimator.Run"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_files_are_written_once(tmp_path: Path) -> None:
    done = run("train.py", "--out", "new", "--name", "mine")
    assert done.exit_code == 0 and done.stdout.endswith("\n\nnew/job.yaml\nnew/model.py\nnew/report.md\n")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["job.yaml", "model.py", "report.md"]
    job = load_job("new/job.yaml")
    assert (job.name, job.run.save_checkpoints_steps) == ("mine", 5)
    Path("new/model.py").write_text("mine")
    again = run("train.py", "--out", "new")
    assert again.exit_code == 2
    assert (
        again.stderr
        == "hpc-train: error: new/job.yaml: is there already; --force replaces it, --out names another folder\n"
    )
    assert Path("new/model.py").read_text() == "mine"
    assert run("train.py", "--out", "new", "--force").exit_code == 0
    assert "def build_model" in Path("new/model.py").read_text() and load_job("new/job.yaml").name == "train"


def test_json_has_the_findings_and_what_was_written() -> None:
    done = run("train.py", "--json", "--out", "new")
    found = json.loads(done.stdout)
    assert found["written"] == ["new/job.yaml", "new/model.py", "new/report.md"]
    assert found["files"][0]["findings"][0]["name"] == "tf.estimator.RunConfig"


def test_nothing_to_migrate_is_no_mistake(tmp_path: Path) -> None:
    Path("other.py").write_text("print(1)\n")
    done = run("other.py", "--out", "new")
    assert (done.exit_code, done.stdout) == (
        0,
        "other.py: nothing to migrate: no tf.estimator, no TensorFlow 1 and no Horovod is\nin there\n",
    )
    assert not Path("new").exists()


def test_what_cannot_be_read_is_an_error_after_the_report_of_the_others(tmp_path: Path) -> None:
    Path("old.py").write_text("print 'x'\n")
    done = run(".", "--out", "new")
    assert done.exit_code == 2 and done.stdout.startswith("train.py: 1 finding")
    assert done.stderr.startswith("hpc-train: error: old.py:1: a print statement, which is Python 2")
    assert not Path("new").exists()


def test_many_mistakes_are_counted() -> None:
    for number in range(30):
        Path(f"{number}.py").write_text("x = = 1")
    lines = run(".").stderr.splitlines()
    assert len(lines) == 11 and lines[-1] == "hpc-train: error: 20 more files cannot be read"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.py"], "none.py: cannot be read: No such file or directory; name a Python program"),
        (["train.py", "--out", "a/b"], "no such folder"),
        (["train.py", "--out", "train.py"], "cannot be written"),
        (["train.py", "--name", "3 d"], "--name 3 d: allowed: a letter, then letters, digits and underscores"),
    ],
)
def test_mistakes_are_a_sentence_each(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1


def test_no_tensorflow_and_no_keras_is_imported() -> None:
    code = (
        "import sys\nfrom hpc_train.cli.app import app\n"
        "try:\n    app(['migrate', 'train.py', '--out', 'new'])\n"
        "except SystemExit as done:\n    assert not done.code\n"
        "print({'tensorflow', 'keras', 'mpi4py', 'horovod'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_SECS, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "set()"), done.stderr
