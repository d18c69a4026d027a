"""Programs as they are read: Python files, the code cells of notebooks, and all Python files of folders."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.errors import UserError
from hpc_train.files import read_bytes

MAX_BYTES = 2 << 20
"""Of code."""
MAX_NOTEBOOK_BYTES = 64 << 20
"""With the pictures that its cells have made."""
MAX_FILES = 2000
"""Of a folder."""
MAX_DEPTH = 120
"""Of a program's syntax, which is read by functions that call themselves."""
_PYTHON_2 = (
    (re.compile(r"^\s*print\s+[^\s(=]"), "a print statement"),
    (re.compile(r"^\s*except\s+[\w.]+\s*,\s*\w+\s*:"), "`except ERROR, name:`"),
    (re.compile(r"^\s*exec\s+['\"\w]"), "an exec statement"),
    (re.compile(r"^\s*raise\s+\w+\s*,"), "`raise ERROR, text`"),
)
_MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """One file.

    Attributes:
        path: As it was given or found.
        tree: Its syntax.
        cells: Of a notebook: the first line of each code cell in what the tree's line numbers count, and the cell's
            number, from 1.
    """

    path: Path
    tree: ast.Module
    cells: tuple[tuple[int, int], ...] = ()

    def place(self, line: int) -> str:
        """`path:line`, or `path, cell N:line`."""
        cell, first = self.cell_of(line)
        return f"{self.path}:{line}" if cell is None else f"{self.path}, cell {cell}:{line - first + 1}"

    def cell_of(self, line: int) -> tuple[int | None, int]:
        """The cell that has `line`, and the cell's first line; None and 1 of a file that is no notebook."""
        before = [(number, first) for first, number in self.cells if first <= line]
        return before[-1] if before else (None, 1)


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files that `paths` name: each file, and of each folder all .py files in it and below, in order.

    Links of a folder are not followed, nor folders whose names begin with a dot.

    Raises:
        UserError: One is not there; a folder has none, or more than MAX_FILES.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            found[path] = None
            continue
        below = list(_below(path))
        if not below:
            raise UserError(f"{path}: there is no .py file in this folder; name a program")
        found.update(dict.fromkeys(below))
    return list(found)


def read_program(path: Path) -> Program:
    """Reads a .py file, or the code cells of a notebook (.ipynb).

    Raises:
        UserError: It cannot be read, is larger than MAX_BYTES (a notebook: MAX_NOTEBOOK_BYTES), is not Python 3 in
            UTF-8, or nested too deeply.
    """
    is_notebook = path.suffix.lower() == ".ipynb"
    try:
        content = read_bytes(path, MAX_NOTEBOOK_BYTES if is_notebook else MAX_BYTES, follow=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; name a Python program") from None
    if b"\0" in content:
        raise UserError(f"{path}: is binary, not text; name a Python program (.py) or a notebook (.ipynb)")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: is not UTF-8; save the file in that encoding") from None
    if not is_notebook:
        return Program(path, _parsed(path, text, ()))
    code, cells = _code_of(path, text)
    if len(code) > MAX_BYTES:
        raise UserError(f"{path}: its cells have more than 2 MiB of code; name a Python program")
    return Program(path, _parsed(path, code, cells), cells)


def _below(folder: Path) -> Iterator[Path]:
    count, waiting = 0, [folder]
    while waiting:
        top = waiting.pop(0)
        try:
            entries = sorted(top.iterdir())
        except OSError as error:
            raise UserError(f"{top}: cannot be read: {error.strerror}") from None
        for entry in entries:
            if entry.is_symlink() or entry.name.startswith("."):
                continue
            if entry.is_dir():
                waiting.append(entry)
            elif entry.suffix == ".py":
                count += 1
                if count > MAX_FILES:
                    raise UserError(f"{folder}: has more than {MAX_FILES:,} .py files; name the programs that train")
                yield entry


def _parsed(path: Path, text: str, cells: tuple[tuple[int, int], ...]) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strange escapes in strings, which are the program's own affair
            tree = ast.parse(text)
            may_await = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if cells else 0  # as Jupyter lets cells
            compile(tree, str(path), "exec", may_await, dont_inherit=True)  # more of its mistakes
    except SyntaxError as error:
        line = error.lineno or 1
        where = Program(path, ast.Module([], []), cells).place(line)
        rows = text.splitlines()
        shown = rows[line - 1] if line <= len(rows) else ""
        for pattern, what in _PYTHON_2:
            if pattern.match(shown):
                way = "convert the file to Python 3 first, as by 2to3"
                raise UserError(f"{where}: {what}, which is Python 2; {way}") from None
        raise UserError(f"{where}: is not Python: {error.msg.rstrip('.')}; correct this line first") from None
    except (RecursionError, MemoryError):
        raise UserError(f"{path}: is nested too deeply to be read; write the longest expression in several") from None
    except ValueError:
        raise UserError(f"{path}: is not Python: it has halves of characters; save the file in UTF-8") from None
    if (deep := _too_deep(tree)) is not None:
        where = Program(path, tree, cells).place(deep)
        raise UserError(f"{where}: is nested deeper than {MAX_DEPTH} levels; write it in several expressions")
    return tree


def _too_deep(tree: ast.Module) -> int | None:
    """The line in which the syntax is deeper than MAX_DEPTH; None: it is not."""
    level: list[ast.AST] = [tree]
    line = 1
    for _ in range(MAX_DEPTH):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        line = next((node.lineno for node in level if isinstance(node, ast.expr | ast.stmt)), line)
    return line if level else None


def _code_of(path: Path, text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The code of a notebook's cells, one after the other, without lines for IPython; where each cell begins."""
    try:
        notebook: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{path}: is no notebook: it is not JSON; save it again from Jupyter") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UserError(f"{path}: is no notebook of version 4: it has no list of cells; save it again from Jupyter")
    lines: list[str] = []
    begins: list[tuple[int, int]] = []
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        code = "".join(map(str, source)) if isinstance(source, list) else str(source)
        if code.lstrip().startswith("%%"):  # another language, or a whole cell for IPython
            continue
        begins.append((len(lines) + 1, number))
        lines += _without_magic(code).split("\n")
    return "\n".join(lines), tuple(begins)


def _without_magic(code: str) -> str:
    """`code` of a cell, with `pass` in place of lines for IPython, where it is not Python as it is."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _MAGIC.sub(r"\1pass", code)
    return code
