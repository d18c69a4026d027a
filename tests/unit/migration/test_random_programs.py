"""Programs with lines and words at other places: read, or refused in a sentence; whatever is written is valid."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.config.job import load_job
from hpc_train.errors import UserError
from hpc_train.migration.report import report_json, report_markdown, report_text
from hpc_train.migration.skeleton.job_file import job_file
from hpc_train.migration.skeleton.model_file import model_file, model_in
from hpc_train.migration.source import read_source
from tests.support import examples
from tests.unit.migration.support import NAMES, PROGRAMS

TEXTS = [(PROGRAMS / f"{name}.py").read_text() for name in NAMES]
WORDS = sorted({word for text in TEXTS for word in re.findall(r"[\w.]+|\[[^\[\]\n]*\]|'[^']*'|\"[^\"\n]*\"", text)})
STRANGE = [
    "*args",
    "**kw",
    "None",
    "-1",
    "[]",
    "{}",
    "lambda: x",
    "...",
    "'\\ud800'",
    "1e400",
    "x[:]",
    "await f()",
    "b''",
]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """One of the programs, some of whose lines and words are others."""
    lines = draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        way = draw(st.integers(0, 3))
        if way == 0:
            del lines[place]
        elif way == 1:
            lines.insert(place, draw(st.sampled_from(lines)))
        else:
            found = list(re.finditer(r"[\w.]+|\[[^\[\]]*\]|\"[^\"]*\"", lines[place]))
            if found:
                word = draw(st.sampled_from(found))
                new = draw(st.sampled_from(STRANGE if way == 2 else WORDS))
                lines[place] = lines[place][: word.start()] + new + lines[place][word.end() :]
        if not lines:
            lines = ["pass"]
    return "\n".join(lines)


@pytest.mark.random
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=examples(150), deadline=None)
@given(programs())
def test_any_program_has_a_report_and_a_valid_skeleton_or_is_refused(text: str) -> None:
    with TemporaryDirectory() as name:
        path = Path(name) / "program.py"
        path.write_text(text)
        try:
            source = read_source(path)
        except UserError as error:
            assert "\n" not in str(error)
            return
        assert max(map(len, report_text([source], 80).splitlines())) <= 80
        assert report_markdown([source]) and report_json([source])
        model = model_in([source])
        compile(model_file(model, "program.py"), "model.py", "exec")
        (Path(name) / "job.yaml").write_text(job_file([source], "mine", model))
        load_job(Path(name) / "job.yaml")
