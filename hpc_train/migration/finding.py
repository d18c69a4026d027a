"""Finding: one thing of a program that changes. Pure."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from hpc_train.migration.counterparts.row import Verdict


@dataclass(frozen=True)
class Finding:
    """One thing that changes.

    Attributes:
        line: In the program's text, from 1.
        name: Its full name, as `tf.estimator.RunConfig`, or what it is called here, as `TF_CONFIG`.
        text: As the program has it, in one line.
        verdict: What is to be done.
        code: What is written instead; empty: nothing.
        notes: What else has to be known, a sentence each.
    """

    line: int
    name: str
    text: str
    verdict: Verdict
    code: str = ""
    notes: tuple[str, ...] = ()


def finding_at(node: ast.AST, name: str, verdict: Verdict, code: str = "", notes: tuple[str, ...] = ()) -> Finding:
    """What is found at a node of the syntax."""
    return Finding(getattr(node, "lineno", 1), name, ast.unparse(node), verdict, code, notes)
