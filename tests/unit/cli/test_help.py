"""The help of each command: its examples are ones that hpc-train takes, and can be copied from 80 columns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hpc_train.cli.app import app
from hpc_train.cli.command import EXAMPLE_WIDTH, examples, help_of
from tests.pages import calls_of, parse

LONG = "hpc-train predict runs/mine/export/final --shards 'data/test and more-*.h5' --out 'preds-*.h5' --overwrite"


def commands() -> Iterator[list[str]]:
    """The words of all commands that `--help` lists, and those below them; `hpc-train` alone first."""
    waiting: list[tuple[list[str], Any]] = [([], typer.main.get_command(app))]
    while waiting:
        words, command = waiting.pop(0)
        yield words
        below = getattr(command, "commands", {})
        waiting += [([*words, name], each) for name, each in below.items() if not each.hidden and name != "make"]


@pytest.mark.parametrize("words", list(commands()), ids=lambda words: " ".join(words) or "hpc-train")
def test_each_command_has_examples_that_are_true(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "TERMINAL_WIDTH"):
        monkeypatch.setenv(name, "80")
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0, done.output
    lines = [line.rstrip() for line in done.output.splitlines()]
    assert max(map(len, lines)) <= 80

    below = "\n".join(line.strip() for line in lines[lines.index(" Examples:") + 1 :]).split("\n\n")[0]
    shown = below.replace("\\\n", "").splitlines()
    assert 1 <= len(shown) <= 3, shown
    for example in shown:
        (call,) = calls_of(example)
        assert call[: len(words)] == words, example
        parse(call)


def test_the_terminal_alone_wraps_paragraphs() -> None:
    def command() -> None:
        """Do it.

        A paragraph that goes on
        in the next line.

        - an item
        - another
        """

    assert help_of(command) == "Do it.\n\nA paragraph that goes on in the next line.\n\n- an item\n- another"


def test_long_examples_are_continued_between_words() -> None:
    for line in (LONG, "hpc-train list", f"hpc-train shard {'x' * 100} --dtype 'a=[2, 2]'"):
        shown = examples(line).replace("\\[", "[").split("\n")
        assert shown[0] == "Examples:"
        assert all(len(row) <= EXAMPLE_WIDTH + 2 or "x" * 100 in row for row in shown)
        assert shlex.split(" ".join(row.removesuffix("\\") for row in shown[1:])) == shlex.split(line)
    assert re.search(r"--out 'preds-\*\.h5'", examples(LONG)), "an option is beside its value"


@pytest.mark.parametrize("wrong", ["hpc-train lst", "hpc-train logs --rnk 3 first", "hpc-train train", "hpc-train -x"])
def test_examples_that_are_not_true_are_found(wrong: str) -> None:
    (call,) = calls_of(wrong)
    with pytest.raises(ValueError, match=wrong):
        parse(call)
