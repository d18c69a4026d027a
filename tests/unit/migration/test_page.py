"""docs/migration.md: what its programs become is what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.migration.skeleton.job_file import job_file
from hpc_train.migration.skeleton.model_file import model_file, model_in
from hpc_train.migration.source import read_source
from tests.pages import Block, blocks_of
from tests.support import REPOSITORY

BLOCKS = list(blocks_of(REPOSITORY / "docs/migration.md"))
PROGRAMS = [block for block in BLOCKS if block.file]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda block: block.file)
def test_a_program_becomes_what_the_page_shows(program: Block, tmp_path: Path) -> None:
    assert program.file is not None
    (tmp_path / program.file).write_text(program.text)
    source = read_source(tmp_path / program.file)
    model = model_in([source])
    after = BLOCKS[BLOCKS.index(program) + 1 :]
    shown = next(block for block in after if block.language == "python")
    assert model_file(model, program.file) == shown.text
    following = after[after.index(shown) + 1 :]
    if following and following[0].language == "yaml":
        text = job_file([source], Path(program.file).stem, model)
        assert [line for line in text.splitlines() if not line.startswith("#")] == following[0].text.splitlines()


def test_the_page_has_four_programs() -> None:
    assert [block.file for block in PROGRAMS] == ["digits.py", "people.py", "horovod_fit.py", "horovod_loop.py"]
