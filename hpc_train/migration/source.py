"""Source: a program with all that is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpc_train.migration.finding import Finding
from hpc_train.migration.findings import findings_in
from hpc_train.migration.names import Names
from hpc_train.migration.program import Program, read_program
from hpc_train.migration.values import Values


@dataclass(frozen=True)
class Source:
    """One program: its syntax, what its names stand for, the values that it shows, and what changes."""

    program: Program
    names: Names
    values: Values
    findings: tuple[Finding, ...]


def read_source(path: Path) -> Source:
    """Reads a program; it is not run, and nothing of it is imported.

    Raises:
        UserError: As read_program.
    """
    program = read_program(path)
    names = Names(program.tree)
    values = Values(program.tree, names)
    return Source(program, names, values, tuple(findings_in(program, names, values)))
