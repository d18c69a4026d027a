"""gpu.py runs end to end on cores: each part with what stands in for a GPU, and a job of the user's own."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from tests.support import REPOSITORY, make_job_in, run_program

SCRIPT = REPOSITORY / "benchmarks" / "gpu.py"
PARTS = ("correctness", "gap", "input", "precision", "allreduce", "accuracy")
"""Those whose jobs no other test runs: peers and scaling are those of overhead.py and scaling.py."""


def test_each_part_measures_on_two_ranks_and_says_what_stands_in_for_a_gpu(tmp_path: Path) -> None:
    best = {"best_metric": "accuracy", "best_mode": "max"}
    make_job_in(tmp_path, params={"learning_rate": 0.02}, run=best, train={"max_steps": 60})
    program = [sys.executable, str(SCRIPT), "--quick", "--cpu", "--oversubscribe", "--ranks", "1", "2", "--out", "out"]
    own = ["--job", "job/job.yaml", "--rates", "warm-up", "--json", "copy.jsonl", "--dir", str(tmp_path)]
    done = run_program([*program, *own, "--parts", *PARTS], tmp_path, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out" not in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.jsonl", "job", "out"], "data was left behind"

    lines = (tmp_path / "out" / "records.jsonl").read_text()
    assert lines == (tmp_path / "copy.jsonl").read_text()
    records = {record["case"].partition(":")[0]: record for record in map(json.loads, lines.splitlines())}
    assert {record["benchmark"] for record in records.values()} == {"gpu"}
    assert records["resume"]["value"] == 0
    assert 0 < records["as one rank"]["value"] < 1e-3, "other sums than those of one rank, and nearly the same"
    assert 0 < records["rounding alone"]["value"] < 1e-3
    assert records["input, copied ahead"]["config"]["places"] == ["CPU:1"]
    assert records["input, copied by the step"]["config"]["places"] == ["CPU:0"]
    assert records["gap, 0 in flight"]["value"] > 0
    assert records["precision, bfloat16"]["config"]["last_loss"] != records["precision, float32"]["config"]["last_loss"]
    assert records["allreduce, Horovod"]["ratio"] > 0
    assert records["allreduce, MPI, GPU memory"]["ratio"] > 0
    alone, both = records["1 rank, rate as given"], records["2 ranks, rate scaled, warm-up"]
    assert alone["config"]["reached"], "what is wanted is near the best of this run"
    assert both["config"]["examples"] == both["config"]["steps"] * 16 * 2

    page = (tmp_path / "out" / "report.md").read_text()
    assert page.count("On cores, no GPU: ") == len(PARTS)
    for words in ("NO GPU WAS USED (--cpu was given)", "A quick run", "| reached |", "Time to accuracy"):
        assert words in page
    assert page.index("## Targets") < page.index("## Correctness")
    for private in (socket.gethostname(), str(REPOSITORY), str(Path.home()), sys.prefix):
        assert private not in page
    for drawing in tmp_path.glob("out/*.svg"):
        assert drawing.name in page
