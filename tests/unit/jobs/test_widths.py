"""Tables in narrow terminals: what matters is there and whole, nothing is cut to letters, and no line is too long."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

import hpc_train.cli.checkpoints
import hpc_train.cli.shard
from hpc_train.cli.checkpoints import Entry
from hpc_train.cli.doctor import _table
from hpc_train.data.writing.inspect import DatasetReport, FileReport
from hpc_train.doctor.tools import Finding
from hpc_train.jobs.layout import LEAST_CUT, Column, text_table
from hpc_train.jobs.site.tiers import TierRow
from hpc_train.jobs.tables import tier_table

PATH = f"/scratch/{'a_long_folder/' * 14}end"
NAME = "a_name_of_sixty_characters_as_some_people_like_to_have_them_"
WIDTHS = pytest.mark.parametrize("width", [60, 80, 200])


def screen(width: int) -> Console:
    return Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None, highlight=False)


def lines_of(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert max(map(len, lines)) <= console.width
    return lines


def shown(what: RenderableType, width: int) -> list[str]:
    console = screen(width)
    console.print(what)
    return lines_of(console)


def together(lines: list[str]) -> str:
    """All words of the last column, however it was wrapped."""
    return re.sub(r"\s+", "", "".join(lines))


@WIDTHS
def test_checkpoints(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hpc_train.cli.checkpoints, "console", lambda: screen(width))
    why = f"{PATH}/state.h5 has other bytes than manifest.json says"
    entries = [
        Entry(200, 1.7e9, 1 << 50, 4096, True, True, True, None, ""),
        Entry(1234567890, None, 1, None, False, True, False, why, ""),
    ]
    hpc_train.cli.checkpoints._print_table(Path("x"), entries)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    head, first, second = lines[0].split(), lines[1], lines[2]
    assert head[0] == "step" and "whole" in head and ("ranks" in head) == (width == 200)
    assert "yes, verified" in first and first.rstrip().endswith("best evaluation")
    assert second.split()[0] == "1234567890" and together(lines[2:]).replace("–", "").endswith(together([why])[-40:])


@WIDTHS
def test_findings_of_doctor(width: int) -> None:
    findings = [Finding("file system of runs", "fails", f"{PATH}: no file can be made", f"take another than {PATH}")]
    lines = shown(_table(findings, width), width)
    assert lines[1].startswith(
        "file system of runs  fails   /scratch" if width == 200 else "file system of runs  fails "
    )
    assert together([PATH]) in together([line[29:] for line in lines])


@WIDTHS
def test_what_shards_hold(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hpc_train.cli.shard, "console", lambda: screen(width))
    more = (5, "chunked", (16, 224, 224, 3), "shuffle, gzip", "little", 1 << 40, 1 << 41)
    datasets = (
        DatasetReport("image", "uint8", (224, 224, 3), *more, "parallel chunks", None),
        DatasetReport(NAME, "float32", (), *more, "through HDF5", "its type is not one of this machine's"),
    )
    hpc_train.cli.shard._show([FileReport(f"{PATH}.h5", 1 << 40, 123456789, datasets, ())])
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    (head,) = (number for number, line in enumerate(lines) if line.startswith("dataset"))
    assert lines[head].rstrip().endswith("read by")
    assert lines[head + 1].startswith("image ") and "parallel chunks" in lines[head + 1]
    assert "uint8 [224, 224, 3] little" in lines[head + 1] or width == 60
    assert lines[head + 2].startswith("a_na") and "throughHDF5:itstypeisnot" in together(
        [line[lines[head].index("read by") :] for line in lines[head + 2 :]]
    )
    assert ("raw" in lines[head]) == (width == 200)


@WIDTHS
def test_tiers(width: int) -> None:
    problem = f"the partition has no nodes of 128 cores {PATH}"
    rows = [
        TierRow("BASIC", 1, 2, 1, None, None, "01:00:00", None, "a small job", "f", ()),
        TierRow(NAME, 1024, 131072, 128, "2048G", 8, "30-00:00:00", NAME[:40], "large", "f", (problem,)),
    ]
    lines = shown(tier_table(rows, width), width)
    assert lines[1].split()[:3] == ["BASIC", "1", "2"] and "01:00:00" in lines[1]
    assert lines[2].startswith(NAME[:20]) and "131072  " in lines[2] and "30-00:00:00" in lines[2]
    assert together([problem]) in together(lines[4:])
    small = shown(tier_table(rows[:1], width), width)
    assert small[0].split() == ["tier", "nodes", "ranks", "cores", "time"]


def test_the_widest_texts_are_cut_first_and_numbers_are_whole() -> None:
    columns = [
        Column("name", (Text(NAME), Text("b"))),
        Column("a title that is long", (Text("x" * 30), Text("y"))),
        Column("number", (Text("123456789"), Text("1")), True),
        Column("what", (Text("some words that go on " * 4), Text("z"))),
    ]
    for width in range(70, 200, 5):
        lines = shown(text_table(columns, width), width)
        name, title, number = lines[1].split()[:3]
        assert number == "123456789" and min(len(name), len(title)) >= LEAST_CUT
        assert name == NAME or (name[:5], name[-4:], "…" in name) == (NAME[:5], NAME[-4:], True)
        assert len(title) == 30 or len(name) <= len(title) + 1, "the widest gives way first"
