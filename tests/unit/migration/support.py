"""Programs as the tests of migration read them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from hpc_train.migration.source import Source, read_source

PROGRAMS = Path(__file__).with_name("programs")
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))


def source_of(code: str, folder: Path, name: str = "program.py") -> Source:
    """A program with this code."""
    (folder / name).write_text(dedent(code))
    return read_source(folder / name)
