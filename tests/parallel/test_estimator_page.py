"""docs/estimator.md: its model functions before and after, an input_fn without arguments, and a RunConfig alone."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

import hpc_train as ht
from tests.support import REPOSITORY, run_ranks

BEFORE = """
import os, tempfile
tempfile.tempdir = None  # of the process that this is a fork of
"""
MORE = """
    again, _ = ht.train_and_evaluate(estimator, ht.TrainSpec(input_fn, max_steps=60), ht.EvalSpec(input_fn, steps=8))
    rank, refused = os.environ["OMPI_COMM_WORLD_RANK"], ""
    mixed = ht.Estimator(model_fn, ht.RunConfig("mixed") if rank == "0" else ht.RunConfig(), estimator.params)
    try:
        ht.train_and_evaluate(mixed, ht.TrainSpec(input_fn, max_steps=1), ht.EvalSpec(input_fn))
    except ht.UserError as error:
        refused = str(error)
    with open(f"seen-{rank}", "w") as file:
        print(estimator.config.model_dir, metrics["global_step"], again["global_step"], refused, sep="\\n", file=file)
"""


def page() -> dict[str, str]:
    found = re.findall(r"```python\n# (\S+)\n(.*?)```", (REPOSITORY / "docs/estimator.md").read_text(), re.DOTALL)
    return dict(found)


def test_a_model_function_of_estimator_is_refused_with_the_way() -> None:
    names: dict[str, object] = {}
    exec(page()["before.py"], names)
    with pytest.raises(ht.UserError, match=r"model_fn\(features, labels, mode, params\).*docs/estimator\.md shows"):
        ht.Estimator(names["model_fn"], params={"units": 3})  # type: ignore[arg-type]


def test_all_ranks_take_one_temporary_folder_which_stays(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "after.py").write_text(BEFORE + page()["after.py"] + MORE)
    done = run_ranks(2, ["after.py"], tmp_path, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stderr
    (job_dir,) = [path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("hpc_train-")]
    assert stat.S_IMODE(job_dir.stat().st_mode) == 0o700
    assert json.loads((job_dir / "status.json").read_text())["step"] == 60, "the second call goes on there"
    assert (job_dir / "checkpoints/step-00000060").is_dir() and list((job_dir / "export/final").iterdir())
    assert done.stdout.count(f"the job-dir is the temporary folder {job_dir}") == 1, done.stdout
    refused = "RunConfig: model_dir: some ranks have one and others none; give all of them the same"
    for rank in range(2):
        assert (tmp_path / f"seen-{rank}").read_text().splitlines() == [str(job_dir), "50", "60", refused]
    assert not (tmp_path / "mixed").exists()
