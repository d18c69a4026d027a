"""JSON files are valid whatever they hold, and what is no JSON object is refused in words."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpc_train.telemetry.json_files import UnreadableError, load_json, read_json, write_json


def test_json_is_replaced_whole_and_always_valid(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": math.nan, "all": [1.5, math.inf, {"x": "y"}]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"loss": None, "all": [1.5, None, {"x": "y"}]}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 200_000, "is nested too deeply"),
        ("{" + '"a":{' * 200_000, "is nested too deeply"),
        ("1" * 5000, "has a number of too many digits"),
        ('{"a": ', "is not JSON"),
        ("[]", "holds no JSON object"),
        ("", "is not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_in_words(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UnreadableError, match=words):
        load_json(tmp_path / "a.json")
    assert read_json(tmp_path / "a.json") == {}
