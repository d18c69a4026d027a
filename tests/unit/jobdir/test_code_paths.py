"""What a job.yaml names in the copy of the code is found after the job-dir was renamed or moved."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from hpc_train.jobdir.code_paths import absolute_in, relative_to


def a_job(folder: str) -> dict[str, Any]:
    return {
        "model": f"{folder}/model.py:build",
        "params": {"vocabulary": f"{folder}/words.txt"},
        "data": {
            "train": {"shards": [f"{folder}/data/*.h5", "/data/x.h5"], "map_fn": f"{folder}/deep/maps.py:flip"},
            "eval": f"function {folder}/model.py:read",
        },
        "eval": {"hooks": ["package.module:Hook"], "exporters": {"final": {"assets": [f"{folder}/words.txt"]}}},
        "evals": {"held": {"data": f"function {folder}/model.py:read"}},
    }


@pytest.mark.parametrize("name", ["first", "wi[th] {odd} *name"])
def test_what_lies_in_the_copy_of_the_code_moves_with_it(tmp_path: Path, name: str) -> None:
    first, second = tmp_path / name, tmp_path / "second"
    given = a_job(str(first / "code"))
    (first / "code").mkdir(parents=True)
    written = relative_to(first, given)
    assert written == {**a_job("code"), "params": given["params"]} and list(written) == list(given)
    assert relative_to(first, written) == written
    first.rename(second)
    assert absolute_in(second, written) == {**a_job(str(second / "code")), "params": given["params"]}
    # where a new job has the old name, its code is not taken for that of the renamed one
    (first / "code").mkdir(parents=True)
    (first / "code" / "model.py").write_text("")
    assert absolute_in(second, written)["model"] == f"{second}/code/model.py:build"


def test_what_lies_elsewhere_stays_and_parameters_are_not_touched(tmp_path: Path) -> None:
    given = a_job("/home/me/code")
    given["params"]["lock"] = threading.Lock()
    assert relative_to(tmp_path, given) == given and absolute_in(tmp_path, given) == given
    assert relative_to(tmp_path, {"model": 3, "data": []}) == {"model": 3, "data": []}


def test_a_job_dir_behind_a_link_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert relative_to(tmp_path / "link", a_job(f"{tmp_path}/real/code"))["model"] == "code/model.py:build"


def test_functions_of_older_versions_are_looked_for_in_the_copy(tmp_path: Path) -> None:
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / "model.py").write_text("")
    (tmp_path / "code" / "deep" / "maps.py").write_text("")
    found = absolute_in(tmp_path, a_job("/gone/code/first/code"))
    assert found["model"] == f"{tmp_path}/code/model.py:build"
    assert found["data"]["train"]["map_fn"] == f"{tmp_path}/code/deep/maps.py:flip"
    assert found["data"]["train"]["shards"][0] == "/gone/code/first/code/data/*.h5", "data may lie anywhere"
    # where another job has the path of old by now, the copy is still this job's code
    other = tmp_path / "other" / "code"
    other.mkdir(parents=True)
    (other / "model.py").write_text("")
    assert absolute_in(tmp_path, a_job(str(other)))["model"] == f"{tmp_path}/code/model.py:build"
