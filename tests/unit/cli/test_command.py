"""A command is one file: a module of hpc_train/cli with COMMANDS."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import hpc_train
from hpc_train import cli
from hpc_train.cli.app import app
from hpc_train.cli.command import GROUPS, all_commands

HELLO = '''
from hpc_train.cli.command import Command

def hello(name: str) -> None:
    """Greet somebody."""
    print(f"hello {name}")

COMMANDS = (Command("hello", hello, "Jobs"),)
'''


def test_a_new_file_is_a_new_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    monkeypatch.setattr(cli, "__path__", [*cli.__path__, str(tmp_path)])
    own = typer.Typer()
    for command in all_commands():
        command.add_to(own)
    monkeypatch.delitem(sys.modules, "hpc_train.cli.hello")
    done = CliRunner().invoke(own, ["hello", "rank 0"])
    assert (done.exit_code, done.output) == (0, "hello rank 0\n")
    assert "Greet somebody." in CliRunner().invoke(own, ["--help"]).output


def test_names_are_distinct_and_groups_known() -> None:
    found = list(all_commands())
    names = [command.name for command in found]
    assert len(set(names)) == len(names)
    assert {command.group for command in found} <= set(GROUPS)
    assert {"train", "launch", "submit", "list", "shard", "record-end"} <= set(names)


def test_the_version_and_completions_for_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0 and done.output.startswith(f"hpc-train {hpc_train.__version__} (Python 3.")
    monkeypatch.setenv("_HPC_TRAIN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "hpc-train ch")
    monkeypatch.setenv("COMP_CWORD", "1")
    done = CliRunner().invoke(app, [], prog_name="hpc-train")
    assert done.output.split() == ["checkpoints"]
