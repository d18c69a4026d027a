"""The blocks of all pages, also of those that are not run: commands and options exist, job files and code are valid."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig
from hpc_train.config.table_schema import TableSchema
from hpc_train.jobs.site.sections import SiteFile, TiersFile
from hpc_train.jobs.site.site import load_site
from hpc_train.jobs.site.tiers import load_tiers
from tests.pages import Block, blocks_of, calls_of, is_output, is_whole, pages, parse
from tests.support import REPOSITORY, merge

KINDS = {"bash", "python", "yaml", "json", "toml", "html", "text", "mermaid", "toctree", ""}
BASE = {
    "name": "base",
    "model": "model.py:build_model",
    "data": {part: {"shards": "x-*.h5", "features": "x", "label": "y"} for part in ("train", "eval")},
    "train": {"max_steps": 2000},
}
"""What a page's part of a job file is laid over."""


def each(*languages: str) -> Any:
    found = [block for page in pages() for block in blocks_of(page) if block.language in languages]
    return pytest.mark.parametrize("block", found, ids=str)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_each_block_is_of_a_known_kind(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in KINDS, f"{block}: a fence with {block.language}: tests would not know what to do"
        assert not re.search(r"^(\$ |hpc-train [a-z])", block.text, re.MULTILINE) or block.language == "bash", (
            f"{block}: commands that tests do not know as such: put them into a fence with bash"
        )


@each("bash")
def test_commands_are_ones_that_there_are(block: Block) -> None:
    script = "\n".join(block.commands)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block}: {done.stderr}"
    for command in block.commands:
        for call in calls_of(command):
            if call != ["$@"]:
                parse(call)
        for target in re.findall(r"^make ([a-z-]+)", command):
            assert re.search(f"^{target}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE), f"{block}: {target}"
        for script in re.findall(r"(?<![\w./~-])((?:slurm|benchmarks|examples|tests|\.ci)/[\w./-]+)", command):
            assert (REPOSITORY / script).exists(), f"{block}: {script}"


@each("yaml")
def test_job_files_are_valid(block: Block, tmp_path: Path) -> None:
    given = yaml.safe_load(block.text)
    if set(given) <= set(SiteFile.model_fields):
        tmp_path.chmod(0o700)
        (tmp_path / "site.yaml").write_text(block.text)
        load_site({"HPC_TRAIN_SITE": str(tmp_path / "site.yaml")})
    if set(given) <= set(TiersFile.model_fields):
        (tmp_path / "tiers.yaml").write_text(block.text)
        load_tiers({"HPC_TRAIN_TIERS": str(tmp_path / "tiers.yaml")}, tmp_path)
    if set(given) <= set(SiteFile.model_fields):
        return
    if "columns" in given:
        TableSchema.model_validate(given)
    elif "module" in given:
        ProgramConfig.model_validate({"name": "base", **given})
    else:
        assert set(given) <= set(JobConfig.model_fields), f"{block}: of no job file"
        JobConfig.model_validate(merge(BASE, given))


@each("python")
def test_code_compiles(block: Block) -> None:
    ast.parse(block.text, str(block))


@each("json")
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


def test_a_page_says_what_is_to_be_done_with_its_blocks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        """# Page

    $ hpc-train list
    no jobs in runs
    $ hpc-train doctor --json    # all

<!-- not run: needs two
GPUs -->
<!-- before: touch a
touch b -->
```bash
HERE=1 sbatch slurm/train.sh a.yaml \\
    --set x=1    # continued
```

<!-- a remark -->
<!-- ends with 2 -->
<!-- not run, lines with sbatch: no queue -->

    sbatch x
    python x.py 'a # b'
    curl http://x/#y

Text.

    import x

    x.y()

More text.

    name: value of no job file
"""
    )
    first, second, third, code, text = blocks_of(page)
    assert first.session[0] == ("hpc-train list", "no jobs in runs\n") and first.line == 3
    assert second.skipped == "needs two\nGPUs" and second.before == ["touch a\ntouch b"]
    assert second.commands == ["HERE=1 sbatch slurm/train.sh a.yaml --set x=1"]
    assert list(calls_of(second.commands[0])) == [["train", "a.yaml", "--set", "x=1"]]
    assert third.commands == ["sbatch x", "python x.py 'a # b'", "curl http://x/#y"]
    assert [third.why_not(command) for command in third.commands] == ["no queue", None, None] and third.code == 2
    assert (code.language, code.text) == ("python", "import x\n\nx.y()\n")
    assert text.language == ""

    page.write_text("<!-- not run: no block -->\n\nText.\n")
    with pytest.raises(ValueError, match=r"page\.md:3: a note"):
        list(blocks_of(page))


@pytest.mark.parametrize(
    ("code", "whole"),
    [
        ("import numpy as np\n\nnp.zeros(3)\n", True),
        ("x = [n for n in range(3)]\nprint(x)\n", True),
        (
            "def f(a):\n    import keras\n    return keras.x(a)\n\n\nclass B:\n    def d(self):\n        f(B)\n",
            True,
        ),
        ("print(images)\n", False),
        ("def f():\n    return tf.x()\n", False),
        ("def f():\n    ...\n", False),
    ],
)
def test_whole_programs_are_known(code: str, whole: bool) -> None:
    assert is_whole(code) == whole


@pytest.mark.parametrize(
    ("printed", "shown", "alike"),
    [
        ("a  b\n", "a  b\n", True),
        ("name     loss\n  one  0.125\n", "name  loss\none  0.…\n", True),
        ("step 7: loss 0.5\n", "step …: loss …\n", True),
        ("one\ntwo\nthree\n", "…\nthree\n", True),
        ("one\nthree\n", "one\n…\nthree\n", True),
        ("one\ntwo\n", "one\n", False),
        ("one\n", "one\ntwo\n", False),
        ("step 7: loss 0.5\nmore\n", "step …: loss …\n", False),
        ("a b\n", "a  b\n", False),
        ("state  FAILED\n", "state  SUCCEEDED\n", False),
        ("", "…\n", True),
    ],
)
def test_outputs_are_compared_word_by_word(printed: str, shown: str, alike: bool) -> None:
    assert is_output(printed, shown) == alike
