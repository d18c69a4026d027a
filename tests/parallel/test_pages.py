"""What the pages of the documentation show is done as it stands, in its order; tests/pages.py says how pages help."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.pages import Block, Reader, alike, blocks_of, is_output, is_whole, pages
from tests.support import REPOSITORY


def runs(block: Block) -> bool:
    """Whether something of the block is done here."""
    if block.language == "bash":
        return any(block.typed(queue=False))
    return block.file is not None or (block.language == "python" and not block.skipped and is_whole(block.text))


PAGES = [page for page in pages() if page.name != "README.md" or page.parent != REPOSITORY]
"""All but the README, which test_readme.py knows better."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which the README's job has been trained, as runs/mine."""
    return Reader.trained(tmp_path_factory.mktemp("trained") / "reader")


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(runs(block) for block in blocks_of(page))],
    ids=lambda page: str(page.relative_to(REPOSITORY)),
)
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path, trained: Path) -> None:
    reader, text = Reader(tmp_path / "reader", trained), page.read_text()
    for block in blocks_of(page):
        if not runs(block):
            continue
        if block.before:
            reader.type(block.before)
        if block.file is not None:
            reader.write(block.file, block.text)
            if block.language != "python" or block.skipped or text.count(block.file) > 1:
                continue
        if block.language == "python":
            reader.type([f"python {shlex.quote(block.file)}" if block.file else f"python -c {shlex.quote(block.text)}"])
            continue
        for commands, shown in sessions(block):
            printed = reader.type(commands, block.code, block.interrupted_after)
            assert block.printed is None or is_output(printed, block.printed), f"{block} prints\n{printed}"
            if shown:
                assert any(alike(line, shown.splitlines()[0]) for line in printed.splitlines()), (commands, printed)
    for submission in sorted(tmp_path.glob("reader/**/runs/*/submission.json")):
        job_dir = submission.parent
        reader.type([f"hpc-train wait {shlex.quote(str(job_dir))} || true"])
        status = json.loads((job_dir / "status.json").read_text())
        assert status["state"] in ("succeeded", "cancelled"), (job_dir, status)


def sessions(block: Block) -> list[tuple[list[str], str]]:
    """The commands of a block that are typed together, up to one below which its output is shown."""
    if not any(shown for _, shown in block.session):
        return [([command for command, _ in block.typed(queue=False)], "")]
    return [([command], shown) for command, shown in block.typed(queue=False)]
