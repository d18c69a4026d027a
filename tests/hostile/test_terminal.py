"""Names, errors, records and lines of logs that act on a terminal: whatever shows them shows escapes."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from hpc_train import cli
from hpc_train.cli import checkpoints, doctor, jobs, shard, submit
from hpc_train.cli.app import app
from hpc_train.distributed.excepthook import report_error
from hpc_train.doctor.tools import Finding
from hpc_train.errors import JobEndedError, UserError
from hpc_train.jobs.launch.run import report
from hpc_train.telemetry.environment import RANK_COLUMNS, rank_table
from hpc_train.telemetry.logs import LineFormatter
from tests.hostile.acting import ACTING, TEXTS, acting
from tests.job_dirs import a_job
from tests.unit.jobs.submissions import a_submission

EVERY = "|".join(TEXTS)
NAMES = [text.replace("/", "_").replace("\ud800", "") for text in TEXTS]
"""Of folders."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Job-dirs that hold such texts wherever a text can be, and whose names are."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "HPC_TRAIN_BACKEND": "local",
        "HPC_TRAIN_ROOT": str(tmp_path / "runs"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "HPC_TRAIN_TIERS": str(tmp_path / "tiers.yaml"),
    }.items():
        monkeypatch.setenv(name, value)
    root = tmp_path / "runs"
    for number, (name, text) in enumerate(zip(NAMES, TEXTS, strict=True)):
        folder = a_job(root / name, nasty=text, name=text.replace("\ud800", "").replace("\udcff", ""))
        status = json.loads((folder / "status.json").read_text())
        error = {"rank": 0, "message": f"Error: {text}", "lines": [text, EVERY]}
        status |= {"error": error, "host": text, "job_id": "7", "exports": [text], "evaluation": {text: 1.0}}
        (folder / "status.json").write_text(json.dumps(status))
        if number % 2:
            given = text.replace("\0", "")
            submission = a_submission(user=given, job_file=given, **({"host": given} if number % 4 == 1 else {}))
            submission.save(folder)
            (folder / "cancelled.json").write_text(json.dumps({"token": submission.token, "by": text}))
        for path, content in (("logs/job.out", EVERY), ("checkpoints/step-00000010/manifest.json", EVERY)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content.encode(errors="surrogatepass"))
    shown = "".join(c for c in EVERY if c not in "\0\ud800\udcff/")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file[shown] = np.zeros((4, 2), np.float32)
        file[f"{shown} of text"] = [b"a"] * 4
        file["gone\x1b[2J"] = h5py.SoftLink("/nowhere")
    about = json.dumps("\u202ebig\u2066 [red]x[/red] \x9b".replace("\x9b", ""))
    (tmp_path / "tiers.yaml").write_text(f"tiers: {{ODD: {{nodes: 99, about: {about}}}}}\n")
    return root


@pytest.fixture(params=["a pipe", "a terminal"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "a terminal":
        for module in (checkpoints, jobs, shard, submit):
            monkeypatch.setattr(module, "console", lambda: Console(force_terminal=True, width=120, highlight=False))
    return str(request.param)


def output_of(*words: str, colours: bool = False) -> str:
    """What a command prints on both its streams; nothing in it acts on a terminal, but for colours."""
    done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    assert acting(done.output, colours) == [], words
    return done.output


def test_lists_and_tables(root: Path, screen: str) -> None:
    colours = screen == "a terminal"
    listed = output_of("list", colours=colours)
    assert all(f"\\x1b{end}" in listed for end in ("[2J", "]0;title")) and "[red]markup[/red] [link=" in listed
    for name in NAMES:
        assert "job-dir" in output_of("describe", f"runs/{name}", colours=colours)
        output_of("checkpoints", f"runs/{name}", colours=colours)
        output_of("wait", f"runs/{name}")
        output_of("cancel", f"runs/{name}")
        assert "|" in output_of("report", "--markdown", f"runs/{name}")
    assert "[red]x[/red]" in output_of("tiers", colours=colours)
    assert "\\x1b[2J" in output_of("shard", "inspect", "data.h5", colours=colours)
    np.savez("rows.npz", **{"column\u202e": np.arange(4.0)})
    assert "column\\u202e" in output_of("shard", "made/\x1b[2J", "rows.npz", "--shards", "1")


def test_rich_itself_adds_colours_alone(root: Path) -> None:
    """So that what a terminal gets beside them is what was told apart above."""
    console = Console(force_terminal=True, width=120, color_system="truecolor")
    with console.capture() as captured:
        console.print("[bold red on blue]x[/]", highlight=False)
    assert acting(captured.get(), colours=True) == []


def test_json_is_ascii(root: Path) -> None:
    described = [["describe", f"runs/{name}"] for name in NAMES]
    for words in (["list"], ["tiers"], ["shard", "inspect", "data.h5"], *described):
        assert re.fullmatch(r"[\n -~]*", CliRunner().invoke(app, [*words, "--json"]).stdout)


def test_logs_keep_colours_and_tabs(root: Path) -> None:
    text = b"\x1b[1;31mred\x1b[0m\tx\r\nover\rwritten\n" + EVERY.encode(errors="surrogatepass") + b"\xff\n"
    (root / "mine/logs").mkdir(parents=True)
    (root / "mine/logs/job.out").write_bytes(text)
    (root / "mine/status.json").write_text('{"state": "succeeded"}')
    for words in (["logs", "mine"], ["logs", "-f", "mine"], ["logs", "-n", "50", "mine"]):
        shown = output_of(*words, colours=True)
        assert shown.startswith("\x1b[1;31mred\x1b[0m\tx\nover\nwritten\n\\x1b]0;title\\x07|")
        assert "\x1b[31mred" in shown and "\\x1b[2J" in shown


def test_what_is_wrong_with_a_command(root: Path) -> None:
    for text in (text.replace("\ud800", "") for text in TEXTS):
        for words in (
            ["describe", text],
            ["list", "--state", text],
            ["list", f"--{text}"],
            [text],
            ["--log-level", text, "list"],
            ["logs", "x", "-n", text],
            ["train", f"{text}.yaml"],
            ["submit", f"{text}.yaml"],
            ["submit", "x.yaml", "--max-code-size", text],
            ["report", text],
            ["checkpoints", text],
            ["shard", text, text],
            ["shard", "inspect", text],
            ["evaluate", "runs", "--out", f"runs/{text}"],
        ):
            output_of(*words)


def test_mistakes_in_files(root: Path, tmp_path: Path) -> None:
    for text in (text.replace("\ud800", "").replace("\udcff", "") + "x" for text in TEXTS):
        folder = tmp_path / text.replace("/", "_")
        folder.mkdir()
        quoted = json.dumps(text)
        (folder / "job.yaml").write_text(
            f"name: {quoted}\nmodule: {quoted}\n{quoted}: 1\nresources: {{tier: {quoted}}}\n"
        )
        shown = output_of("submit", f"{folder}/job.yaml", "--set", f"{text}=1", "--name", text, "--after", text)
        assert "hpc-train: error: " in shown
        output_of("launch", f"{folder}/job.yaml")
        (tmp_path / "tiers.yaml").write_text(f"tiers: {{{quoted}: {{about: {quoted}}}}}\n")
        output_of("tiers")


def test_reports(root: Path) -> None:
    a_job(root / "all", nasty=EVERY, name=EVERY.replace("\ud800", "").replace("\udcff", ""))
    for name in ("all", NAMES[0], NAMES[12]):
        output_of("report", f"runs/{name}")
        page = (root / name / "report.html").read_text()
        assert page.isascii() and acting(page) == []
        marks = [int(mark) for mark in re.findall(r"&#(\d+);", page)]
        assert not any(ACTING.match(chr(mark)) for mark in marks)


@pytest.mark.parametrize("text", [EVERY, *TEXTS], ids=repr)
def test_what_a_job_reports_of_itself(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    world: Any = SimpleNamespace(is_chief=True, size=2, rank=1, knows_of=lambda error: True)
    for error in (UserError(text), JobEndedError(text, 7), ValueError(text)):
        report_error(world, error)
    report(text)
    record = logging.LogRecord("hpc_train", logging.WARNING, "", 1, "%s", (text,), None)
    print(LineFormatter(prefix="hpc-train: ").format(record))
    console = Console(width=4000)
    console.print(rank_table([dict.fromkeys(RANK_COLUMNS, text)], 80))
    console.print(doctor._table([Finding("a", "ok", text, text), Finding(text, "fails", "", None)], 80))
    out, err = capsys.readouterr()
    assert acting(out) == acting(err) == []


def prints() -> Iterator[tuple[str, ast.Call]]:
    """Each print of the commands."""
    for path in sorted(Path(cli.__path__[0]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                yield path.name, node


def test_commands_print_through_one_door() -> None:
    """JSON beside: it is ASCII."""
    others = [
        f"{name}:{call.lineno}"
        for name, call in prints()
        if name != "terminal.py" and not re.match(r"json\.dumps|visible", ast.unparse(call.args[0]))
    ]
    assert others == [], f"say, warn or complain of terminal.py instead: {others}"


def test_names_of_folders_can_be_made() -> None:
    assert all(os.fsencode(name) for name in NAMES)
