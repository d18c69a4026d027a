"""What is read as a program, and in which words all else is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.migration import program
from hpc_train.migration.program import MAX_DEPTH, files_of, read_program
from tests.unit.migration.support import source_of

CELLS = [
    {"cell_type": "markdown", "source": "import tensorflow as nothing"},
    {"cell_type": "code", "source": ["%matplotlib inline\n", "!pip install x\n", "import tensorflow as tf\n"]},
    {"cell_type": "code", "source": "if tf:\n    !ls\n    %time f()\nc = tf.estimator.RunConfig('ü')"},
    {"cell_type": "code", "source": "%%bash\nls | grep x"},
    {"cell_type": "code", "source": "x = ('%d'\n% 3)\nd = tf.estimator.RunConfig('a')"},
]


def notebook(cells: list[object]) -> bytes:
    return json.dumps({"cells": cells, "nbformat": 4}).encode()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.py", b"import os\nx = = 3\n", r"a\.py:2: is not Python: invalid syntax; correct this line first"),
        ("a.py", b"import os\nprint 'loss', x\n", r"a\.py:2: a print statement, which is Python 2; convert .*2to3"),
        ("a.py", b"try:\n    f()\nexcept IOError, e:\n    pass\n", r"a\.py:3: `except ERROR, name:`, which"),
        ("a.py", b"import os\nx = await f()\n", r"a\.py:2: is not Python: 'await' outside function"),
        ("a.py", b"# \xe4\nx = 1\n", r"a\.py:1: is not UTF-8; save the file in that encoding"),
        ("a.py", b"x = 1\ny = '\xe4'\n", r"a\.py:2: is not UTF-8"),
        ("a.py", b"\x7fELF\0\0", r"a\.py: is binary, not text; name a Python program"),
        ("a.py", b"x = " + b"-" * 50_000 + b"1", r"a\.py: is nested too deeply to be read"),
        ("a.py", b"x = " + b"+".join([b"1"] * 5000), r"a\.py.*: is nested .*deep"),
        ("a.py", b"y = 1\n\nx = " + b"f(" * 150 + b"1" + b")" * 150, r"a\.py:3: is nested deeper than 120 levels"),
        ("a.py", b"x = " + b"(" * 300 + b")" * 300, r"a\.py:1: is not Python: too many nested parentheses"),
        ("a.ipynb", b"{", r"a\.ipynb: is no notebook: it is not JSON; save it again from Jupyter"),
        ("a.ipynb", b"[" * 100_000, r"a\.ipynb: is no notebook: it is not JSON"),
        ("a.ipynb", notebook([{"cell_type": "code", "source": "x = 1\n" * 500_000}]), "more than 2 MiB of code"),
        ("a.ipynb", b"[]", r"a\.ipynb: is no notebook of version 4"),
        ("a.ipynb", notebook([{"cell_type": "code", "source": "x = '\ud800'"}]), "a.ipynb: .*halves of characters"),
        (
            "a.ipynb",
            notebook([CELLS[0], {"cell_type": "code", "source": "x = 1\ny = = 2"}]),
            r"a\.ipynb, cell 2:2: is not Python",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        read_program(tmp_path / name)
    assert "\n" not in str(raised.value) and "Error" not in str(raised.value).replace("ERROR", "")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read: No such file or directory; name a Python program"),
        (lambda path: os.mkfifo(path), "cannot be read: is a FIFO, not a regular file"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 100 << 20), "has more than 2 MiB"),
    ],
)
def test_files_that_are_no_text_are_refused(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    make(tmp_path / "a.py")
    with pytest.raises(UserError, match=message):
        read_program(tmp_path / "a.py")


def test_a_program_as_deep_as_allowed_can_be_worked_with(tmp_path: Path) -> None:
    total = "+".join(["1"] * (MAX_DEPTH - 6))
    source = source_of(f"import tensorflow as tf\ntf.estimator.Estimator({total})\n", tmp_path)
    assert [finding.name for finding in source.findings] == ["tf.estimator.Estimator"]


def test_a_byte_order_mark_and_a_carriage_return_are_nothing_special(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\r\ny = 2\r\n")
    assert len(read_program(tmp_path / "a.py").tree.body) == 2


def test_the_code_cells_of_a_notebook_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_bytes(notebook(list(CELLS)))
    found = read_program(tmp_path / "a.ipynb")
    lines = [node.lineno for node in found.tree.body if getattr(node, "targets", None)]
    assert [found.place(line) for line in lines] == [
        f"{tmp_path}/a.ipynb, cell 3:4",
        f"{tmp_path}/a.ipynb, cell 5:1",
        f"{tmp_path}/a.ipynb, cell 5:3",
    ]


def test_a_folder_is_its_python_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.py", "a.py", "sub/c.py", ".git/d.py", "e.txt", "empty/f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "a.py")
    (tmp_path / "round").symlink_to(tmp_path)
    found = files_of([tmp_path / "b.py", tmp_path])
    assert [str(path.relative_to(tmp_path)) for path in found] == ["b.py", "a.py", "sub/c.py"]
    with pytest.raises(UserError, match=r"empty: there is no \.py file in this folder; name a program"):
        files_of([tmp_path / "empty"])
    monkeypatch.setattr(program, "MAX_FILES", 2)
    with pytest.raises(UserError, match=r"has more than 2 \.py files; name the programs that train"):
        files_of([tmp_path])
