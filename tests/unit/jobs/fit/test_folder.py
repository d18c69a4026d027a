"""The folder of hpc-train fit: its name, and what of another request it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import UserError
from hpc_train.jobs.fit.folder import RECORD, FitFolder
from hpc_train.jobs.fit.request import FitRequest


@pytest.mark.parametrize(
    ("file", "folder", "job"),
    [
        ("data/people.csv.gz", "people", "people"),
        ("sales-*.parquet", "sales", "sales"),
        ("2024 sales.csv", "2024 sales", "table_2024_sales"),
        ("Länder.csv", "Länder", "L_nder"),
        ("数据.csv", "数据", "table"),
    ],
)
def test_it_is_called_as_the_table_is(file: str, folder: str, job: str) -> None:
    found = FitFolder.of(None, FitRequest(files=(file,), label="y"))
    assert (str(found.path), found.name) == (folder, job)
    assert found.job_dir.path == Path(folder, "runs", job)


def test_a_pattern_without_a_name_needs_one() -> None:
    with pytest.raises(UserError, match="--out FOLDER is missing"):
        FitFolder.of(None, FitRequest(files=("data/*.csv",), label="y"))


def begun(folder: Path, tables: Any = None, from_tables: bool = True, **options: Any) -> FitFolder:
    found = FitFolder(folder)
    found.begin({"files": ["/a.csv"], "label": "y", "model": "dnn", **options}, tables or {}, from_tables)
    return found


def of(**files: int) -> dict[str, Any]:
    return {"files": {name: [bytes_, 7] for name, bytes_ in files.items() if name != "test"}, "eval": {"test": [1, 7]}}


def test_a_table_that_has_changed_is_refused_for_what_was_made_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    begun(folder, of(a=10))
    found = begun(folder, of(a=11))  # nothing had been made
    found.schema.touch()
    begun(folder, of(a=11) | {"eval": {"test": [2, 7]}})  # which has no part in the schema
    begun(folder, of(a=12), from_tables=False)
    for tables in (of(a=11), of(a=12, b=1), of(b=1)):
        with pytest.raises(UserError, match=r"has changed since .*schema.yaml was made of it; remove that file"):
            begun(folder, tables)
    found.job_file.touch()
    with pytest.raises(UserError, match=r"a: has changed since .*data was made of it; go on without it"):
        begun(folder, of(a=11))
    with pytest.raises(UserError, match=r"^test: has changed"):
        begun(folder, of(a=12) | {"eval": {"test": [2, 7]}})
    begun(folder, of())  # it is gone
    begun(folder, of(a=12))
    (folder / RECORD).write_text('{"files": ["/a.csv"], "label": "y", "model": "dnn", "tables": {"files": 3}}')
    begun(folder, of(a=5))


def test_another_request_is_refused_for_what_was_made_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    begun(folder, label="wrong")
    found = begun(folder)  # nothing had been made
    found.schema.touch()
    begun(folder, model="linear")  # no job.yaml had been made
    with pytest.raises(UserError, match="in which --label was y; give that command again"):
        begun(folder, label="other", model="linear")
    with pytest.raises(UserError, match="in which --split-by was not given"):
        begun(folder, model="linear", **{"split-by": "who"})
    with pytest.raises(UserError, match="in which the table was /a"):
        begun(folder, model="linear", files=["/b.csv"])
    found.job_file.touch()
    with pytest.raises(UserError, match="in which --model was linear"):
        begun(folder)
    with pytest.raises(UserError, match="in which --set was not given"):
        begun(folder, model="linear", set=["train.max_steps=3"])
    begun(folder, model="linear")


def test_what_is_no_folder_of_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="no folder"):
        begun(tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(UserError, match="not made by hpc-train fit"):
        begun(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]
    (tmp_path / "empty").mkdir()
    begun(tmp_path / "empty")
    assert (tmp_path / "empty" / RECORD).is_file()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no folder"):
        begun(tmp_path / "link")
