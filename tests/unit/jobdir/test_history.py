import json
import math

from hypothesis import given
from hypothesis import strategies as st

from hpc_train.jobdir.history import with_runs
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobdir.records import records_of


def lines(*records):
    return [json.dumps({"kind": kind, "step": step, "time": time, **more}) for kind, step, time, more in records]


def parsed(text):
    return with_runs(records_of(text))


def steps(records, kind):
    return [record.step for record in records if record.kind == kind and not record.superseded]


def test_what_was_done_again_after_a_restart_counts_once():
    records, restarts = parsed(
        lines(
            ("start", 0, 100.0, {"ranks": 2}),
            ("train", 10, 110.0, {"loss": 3.0}),
            ("train", 20, 120.0, {"loss": 2.0}),
            ("eval", 20, 121.0, {"loss": 2.5}),
            ("end", 20, 122.0, {"state": "stopped", "reason": "SIGTERM"}),
            ("start", 10, 1000.0, {"ranks": 3}),
            ("train", 20, 1010.0, {"loss": 1.0}),
        )
    )
    assert steps(records, "train") == [10, 20] and steps(records, "eval") == []
    assert [r.number("loss") for r in records if r.kind == "train" and not r.superseded] == [3.0, 1.0]
    (restart,) = restarts
    assert (restart.step, restart.time, restart.reached, restart.reason) == (10, 1000.0, 20, "stopped: SIGTERM")


def test_the_time_between_runs_does_not_count():
    records, _ = parsed(
        lines(("start", 0, 50.0, {}), ("train", 10, 60.0, {}), ("start", 10, 900.0, {}), ("train", 20, 905.0, {}))
    )
    assert [record.elapsed for record in records] == [0.0, 10.0, 10.0, 15.0]


def test_a_restart_without_a_word_has_no_reason_and_a_step_measured_twice_counts_once(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        "\n".join(
            lines(
                ("start", 0, 0.0, {}),
                ("eval", 10, 1.0, {"loss": 2.0}),
                ("start", 10, 2.0, {}),
                ("eval", 10, 3.0, {"loss": 1.0}),
            )
        )
    )
    history = JobDir(tmp_path).history()
    assert history.restarts[0].reason is None
    assert [record.number("loss") for record in history.series("eval")] == [1.0]


def test_evaluation_sets_are_found_by_kind(tmp_path):
    text = "\n".join(lines(*((kind, 1, 1.0, {}) for kind in ("eval_b", "train", "eval", "eval_a", "evaluation"))))
    (tmp_path / "metrics.jsonl").write_text(text)
    assert JobDir(tmp_path).history().evaluation_sets == ("eval", "eval_a", "eval_b")


def test_a_torn_line_unknown_kinds_and_numbers_out_of_range_are_passed_over():
    text = [
        '{"kind": "train", "step": 1, "time": 2.0, "loss": NaN, "accuracy": 1e999, "n": ' + "9" * 400 + ', "x": null}',
        '{"kind": "dream", "step": 1, "time": 2.0}',
        '{"kind": "train", "step": true, "time": 2.0}',
        '{"kind": "train", "step": 2, "ti',
    ]
    records, _ = parsed(text)
    assert [record.kind for record in records] == ["train", "dream"]
    assert records[0].names() == ["loss", "accuracy", "n", "x"]
    assert [records[0].number(name) for name in records[0].names()] == [None] * 4


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
near_records = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["start", "train", "eval", "end"]) | json_values,
        "step": st.integers(0, 50) | json_values,
        "time": st.floats(0, 1e9) | json_values,
        "loss": json_values,
        "reason": json_values,
    },
).map(json.dumps)


@given(st.lists(st.text(max_size=30) | near_records | json_values.map(json.dumps), max_size=20))
def test_no_line_is_too_broken(text):
    records, restarts = parsed(text)
    assert len(restarts) <= len(records) <= len(text)
    assert all(math.isfinite(record.elapsed) for record in records)
    assert [r.elapsed for r in records] == sorted(r.elapsed for r in records)


def test_a_folder_with_nothing_or_with_broken_files(tmp_path):
    assert JobDir(tmp_path).history().records == ()
    for name in ("metrics.jsonl", "status.json", "job.yaml", "environment.json", "early_stop.json", "warm_start.json"):
        (tmp_path / name).write_bytes(b"\xff{[: :\n\x00")
    history = JobDir(tmp_path).history()
    assert (history.records, history.status, history.job, history.environment) == ((), {}, {}, {})
    assert history.name == tmp_path.name
