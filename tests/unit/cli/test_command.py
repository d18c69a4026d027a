"""A command is one file: a module of hpc_train/cli with COMMANDS."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hpc_train import cli
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
    app = typer.Typer()
    for command in all_commands():
        command.add_to(app)
    monkeypatch.delitem(sys.modules, "hpc_train.cli.hello")
    done = CliRunner().invoke(app, ["hello", "rank 0"])
    assert (done.exit_code, done.output) == (0, "hello rank 0\n")
    assert "Greet somebody." in CliRunner().invoke(app, ["--help"]).output


def test_names_are_distinct_and_groups_known() -> None:
    found = list(all_commands())
    names = [command.name for command in found]
    assert len(set(names)) == len(names)
    assert {command.group for command in found} <= set(GROUPS)
    assert {"train", "launch", "submit", "list", "shard", "record-end"} <= set(names)
