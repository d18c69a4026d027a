"""The report: 80 columns in a terminal, a page, JSON; text of programs acts on nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_train.migration.layout import laid_out, quoted
from hpc_train.migration.report import NOTHING, report_json, report_markdown, report_text
from hpc_train.migration.source import read_source
from tests.unit.migration.support import NAMES, PROGRAMS, source_of

CODE = """
import tensorflow as tf
import horovod.keras as hvd
hvd.init()
print(hvd.size())
c = tf.estimator.RunConfig("/tmp/x", 3,
    session_config=None)
print(hvd.size())
"""
TEXT = """\
program.py: 5 findings: write 2, keep 3

program.py:3  horovod.keras
    write:
        import hpc_train.horovod.keras as hvd
    - the program then runs with Keras 3, as a job of its own (`module:` in
      job.yaml; docs/programs.md#horovod-programs); as a job with model.py,
      ranks, gradients, checkpoints and restarts are the package's

program.py:4  hvd.init
    keep; in model.py: ranks are joined before model_fn is called

program.py:5, 8  hvd.size
    keep; in model.py:
        ht.launched_ranks()
    - how many ranks the launcher has started

program.py:6  tf.estimator.RunConfig
    write:
        ht.RunConfig("/tmp/x", tf_random_seed=3)
    - session_config: TensorFlow has no sessions any more; OMP_NUM_THREADS sets
      the threads of a rank, and each rank gets a GPU of its own; leave it out"""


def test_the_report_for_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = source_of(CODE, Path())
    assert report_text([source], 80) == TEXT
    none = source_of("print(1)", Path(), "other.py")
    assert report_text([source, none], 80) == f"{TEXT}\n\nother.py: {NOTHING}".replace("is in there", "is\nin there")
    assert report_text([none, none, none], 100) == f"3 files: {NOTHING}"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for name in NAMES:
        lines = report_text([read_source(PROGRAMS / f"{name}.py")], width).splitlines()
        assert max(map(len, lines)) <= width and not any(line != line.rstrip() and width == 80 for line in lines)


def test_the_report_as_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = report_markdown([source_of(CODE, Path()), source_of("", Path(), "other.py")])
    assert page.startswith(
        "# Migration\n\n## program.py\n\nprogram.py: 5 findings: write 2, keep 3\n\n### program.py:3"
    )
    assert "### program.py:5, 8: `hvd.size`\n\n```python\nhvd.size()\n```\n\nkeep; in model.py:\n\n```python\n" in page
    assert "- session\\_config: TensorFlow has no sessions any more" in page and "other.py" not in page


def test_the_report_as_json(tmp_path: Path) -> None:
    found = json.loads(json.dumps(report_json([source_of(CODE, tmp_path)])))
    (file,) = found["files"]
    assert file["counts"] == {"write": 2, "keep": 3, "leave out": 0, "no counterpart": 0}
    assert file["findings"][-2] == {
        "line": 6,
        "cell": None,
        "name": "tf.estimator.RunConfig",
        "call": "tf.estimator.RunConfig('/tmp/x', 3, session_config=None)",
        "verdict": "write",
        "code": 'ht.RunConfig("/tmp/x", tf_random_seed=3)',
        "notes": [file["findings"][-2]["notes"][0]],
    }


def test_text_of_a_program_acts_on_nothing(tmp_path: Path) -> None:
    code = 'import tensorflow as tf\ntf.estimator.RunConfig("\\u202e\x1b[31m`</code>|\\n# x")\n'
    source = source_of(code, tmp_path, "a\x1b[2J_*.py")
    for text in (report_text([source], 80), report_markdown([source])):
        assert "\x1b" not in text and "\u202e" not in text and "\n# x" not in text
    assert "\\_\\*" in report_markdown([source])


@pytest.mark.parametrize(
    ("code", "width", "lines"),
    [
        ("f(1, 'a')", 72, ['f(1, "a")']),
        ("x = f(aaaa, b=[1, 2], **c)", 16, ["x = f(", "    aaaa,", "    b=[1, 2],", "    **c,", ")"]),
        ("lambda: a(1).bb(22).cc(33)", 20, ["lambda: (", "    a(1)", "    .bb(22)", "    .cc(33)", ")"]),
        ("return_ = {'a': ffff(1), **b}", 20, ["return_ = {", '    "a": ffff(1),', "    **b,", "}"]),
        ("layer(units, activation=relu)(x)", 20, ["layer(", "    units,", "    activation=relu,", ")(x)"]),
        ("for a in b:\n    c('d')", 80, ["for a in b:", '    c("d")']),
    ],
)
def test_code_is_laid_out_in_lines(code: str, width: int, lines: list[str]) -> None:
    import ast

    assert laid_out(ast.parse(code).body[0], width) == lines


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("f('a', 'it\\'s', '\"')", "f(\"a\", 'it\\'s', '\"')"),
        ("x = 'a'; y = b'c'", 'x = "a"; y = b"c"'),
        ("'''a'''", "'''a'''"),
        ("f('ü', 'x')", 'f("ü", "x")'),
        ("f(", "f("),
    ],
)
def test_texts_are_put_into_double_quotes(code: str, expected: str) -> None:
    assert quoted(code) == expected
