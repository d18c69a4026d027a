"""hpc-train plan: a job's model, built in one process; nothing is trained, nothing is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hpc_train.cli.app import app
from tests.support import Job, make_job_in

PARAMETERS = 4 * (8 * 16 + 16 + 16 * 4 + 4)
"""Bytes of the model of tests.support."""

LAMB = """
import keras

def build_model(params):
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.compile(keras.optimizers.Lamb(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""
DIVIDED = """
import keras
from hpc_train import parallel

def build_model(params):
    layers = [parallel.ColumnDense(4000, "relu"), parallel.RowDense(4)]
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1000), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


TABLE = """
import keras
from hpc_train import parallel

def build_model(params):
    x = keras.Input((8,))
    rows = parallel.ShardedEmbedding(params["rows"], 8)(keras.ops.cast(x, "int32"))
    model = keras.Model(x, keras.layers.Dense(4)(keras.layers.Flatten()(rows)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
"""


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own takes so much; this one has run other tests."""
    monkeypatch.setattr("hpc_train.planning.job_models._resident", lambda: 600 << 20)


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def told(job: Job, *words: object) -> dict[str, Any]:
    done = call(job.file, *words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def named(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {option["name"]: option for option in found["options"]}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return make_job_in(tmp_path_factory.mktemp("plan"))


def test_what_ranks_hold_and_send(job: Job) -> None:
    before = sorted(job.folder.rglob("*"))
    found = told(job, "--ranks", 4, "--memory", "80G")
    options = named(found)
    assert list(options) == ["sync", "shard_optimizer", "async"]
    chief = options["sync"]["chief"]
    assert (chief["parameters"], chief["gradients"]) == (PARAMETERS, PARAMETERS)
    assert chief["optimizer"] == pytest.approx(2 * PARAMETERS, abs=16)
    assert 0 < chief["activations"] < 10_000
    assert options["shard_optimizer"]["chief"]["optimizer"] < chief["optimizer"] / 3
    assert options["sync"]["sent"] == options["shard_optimizer"]["sent"] == 2 * 3 * PARAMETERS // 4
    assert options["sync"]["asked"] and found["best"] == {}
    assert found["memory"]["nbytes"] == 80 << 30
    assert [path for path in sorted(job.folder.rglob("*")) if "__pycache__" not in str(path)] == before


def test_the_table_has_80_columns(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    done = call(job.file, "--ranks", 4)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80, done.output
    assert lines[1].startswith("> sync") and " yes " in lines[1]
    assert lines[1].split()[2:5] == ["848", "848", "1.7K"], "with the state of metrics; no zeros"
    assert lines[-1] == "It fits as tiny asks for it."
    assert "activ: an estimate" in done.output
    said = " ".join(
        call(job.file, "--ranks", 4, "--memory", "8G", "--set", "resources.ranks_per_node=2").output.split()
    )
    assert "4 ranks on 2 nodes;" in said and "memory: 8.0 GiB a rank: --memory" in said


def test_what_fits_is_named_with_its_line(tmp_path: Path) -> None:
    job = make_job_in(tmp_path, model=DIVIDED)
    found = named(told(job, "--ranks", 4, "--memory", "80G", "--set", "resources.gpus_per_node=4"))
    last = ["mesh 1 x 4", "mesh 1 x 4 + shard"]
    assert list(found) == ["sync", "shard_optimizer", "mesh 2 x 2", "mesh 2 x 2 + shard", *last, "async"]
    whole, half = found["sync"]["needs"], found["mesh 2 x 2"]["needs"]
    assert half < 0.6 * whole
    room = f"{(half + whole) // 2 >> 20}M"
    done = call(job.file, "--ranks", 4, "--memory", room, "--set", "resources.gpus_per_node=4")
    assert done.exit_code == 0, done.output
    assert "It does not fit as it is. The first way that fits" in done.output
    assert done.output.splitlines()[-1] in (
        "    run: {mesh: {data: 2, model: 2}}",
        "    run: {shard_optimizer: true}",
    )
    less = f"{(half // 2 + found['mesh 1 x 4']['needs'] // 4) >> 20}M"
    done = call(job.file, "--ranks", 2, "--memory", less, "--set", "resources.gpus_per_node=2")
    assert "Nothing fits on 2 ranks" in done.output
    assert "On 4 ranks this does:" in done.output or "On 8 ranks this does:" in done.output


def test_what_cannot_be_is_told_with_the_reason(tmp_path: Path) -> None:
    job = make_job_in(tmp_path, model=LAMB, run={"compression": "bf16"})
    options = named(told(job, "--ranks", 2))
    assert "Lamb cannot be applied to a part of a variable" in options["shard_optimizer"]["refused"]
    assert "`compression` is for `strategy: sync`" in options["async"]["refused"]
    assert options["sync"]["sent"] == PARAMETERS * 0 + 4 * (8 * 4 + 4) // 2, "in 16 bits"
    shown = call(job.file, "--ranks", 2).output
    assert "shard_optimizer: not possible: run.shard_optimizer: Lamb" in shown


def test_exporters_that_do_not_fit_are_named(tmp_path: Path) -> None:
    final: dict[str, Any] = {"exporters": {"final": {"tables": "whole"}}}
    table = make_job_in(tmp_path, "table", model=TABLE, params={"rows": 3 * 10**9}, eval=final)
    shown = call(table.file, "--ranks", 4, "--memory", "90G").output
    assert max(map(len, shown.splitlines())) <= 80, shown
    said = " ".join(shown.split())
    assert "Nothing fits on 4 ranks" in said and "More ranks alone" not in said
    assert "Without exporters (178.8 GiB of it on the chief, which exports the whole model) it fits on 8 ranks" in said
    assert "`hpc-train export` on a machine with more memory: eval: {exporters: {}}" in said
    found = told(table, "--ranks", 4, "--memory", "200G")
    assert found["without_exporters"] == {"ranks": 4, "run": {}}
    assert found["on_more_ranks"]["ranks"] == 32, "the table is there twice, as it is put in"
    room = ["--ranks", 4, "--memory", "200G", "--set", "eval.exporters.final.tables="]
    assert told(table, *room[:-1], f"{room[-1]}auto")["best"] == told(table, *room[:-1], f"{room[-1]}shards")["best"]
    assert told(table, *room[:-1], f"{room[-1]}auto")["best"] == {}, "tables go into shards where they do not fit"

    plain = TABLE.replace("parallel.ShardedEmbedding", "keras.layers.Embedding")
    whole = make_job_in(tmp_path, "whole", model=plain, params={"rows": 10**9}, eval=final)
    said = " ".join(call(whole.file, "--ranks", 4, "--memory", "20G").output.split())
    assert "(keras.layers.Embedding) is most of the model" in said and "an ht.parallel.ShardedEmbedding in" in said


def test_what_more_ranks_do_and_what_is_in_the_way(tmp_path: Path) -> None:
    table = make_job_in(tmp_path, "table", model=TABLE, params={"rows": 10**9})
    found = told(table, "--ranks", 1, "--memory", "130G")
    assert found["on_more_ranks"] == {"ranks": 2, "run": {}}, "parts of a table are fewer on more ranks"
    assert not found["notes"], "one rank exchanges nothing"
    found = told(table, "--ranks", 4, "--memory", "900M")
    assert found["on_more_ranks"]["ranks"] > 4 << 6

    model = DIVIDED.replace("4000", 'params["units"]')
    divided = make_job_in(tmp_path, "divided", model=model, params={"units": 4 * 1_000_001}, run={"mesh": {"model": 2}})
    said = " ".join(call(divided.file, "--ranks", 2, "--memory", "1M").output.split())
    assert "of up to 128, each needs at least" in said and "of it for Python and TensorFlow." in said
    said = " ".join(call(divided.file, "--ranks", 2, "--memory", "4G").output.split())
    assert re.search(r"the model is divided no further \(layer 'column_dense(_\d+)?' \(ColumnDense\)", said), said
    assert "among the 8 ranks" in said
    assert "layers of ht.parallel divide" not in said


def test_a_way_that_is_asked_for_and_cannot_be_is_among_the_others(tmp_path: Path) -> None:
    table = make_job_in(tmp_path, "table", model=TABLE, params={"rows": 1000}, run={"chief": "dedicated"})
    options = named(told(table, "--ranks", 3, "--memory", "80G"))
    assert list(options) == ["dedicated chief", "sync", "shard_optimizer", "async"]
    assert options["dedicated chief"]["asked"]
    assert "set run.chief: train" in options["dedicated chief"]["refused"]
    assert options["sync"]["fits"] and options["shard_optimizer"]["fits"]
    shown = call(table.file, "--ranks", 3, "--memory", "80G").output
    assert "dedicated chief: not possible: layer" in " ".join(shown.split())
    assert "It is not possible as it is. The first way that fits" in shown
    assert shown.splitlines()[-1] == "    run: {chief: train}"
    served = named(told(table, "--ranks", 3, "--set", "run.strategy=async", "--set", "run.chief=train"))
    assert "is for strategy: sync" in served["async"]["refused"] and served["sync"]["refused"] is None

    divided = make_job_in(tmp_path, "divided", model=DIVIDED.replace("4000", "4001"), run={"mesh": {"model": 2}})
    options = named(told(divided, "--ranks", 2, "--memory", "80G"))
    assert "cannot be divided" in options["mesh 1 x 2"]["refused"] and options["mesh 1 x 2"]["asked"]
    assert options["sync"]["fits"]


@pytest.mark.parametrize(
    ("ranks", "run", "name", "refused", "line"),
    [
        (3, "{mesh: {model: 2}}", "mesh 2 x 2", "run.mesh: model: 2 does not go with 3 ranks; start 4", "{mesh: null}"),
        (6, "{mesh: {data: 4, model: 2}}", "mesh 4 x 2", "start 8 ranks", "{mesh: null}"),
        (8, "{mesh: {data: 2, model: 2}}", "mesh 2 x 2", "start 4 ranks", "{mesh: null}"),
        (1, "{chief: dedicated}", "dedicated chief", "leaves no rank to train", "{chief: train}"),
        (1, "{strategy: async}", "async", "1 rank cannot be split", "{strategy: sync}"),
    ],
)
def test_ranks_that_do_not_go_with_what_is_asked_for(
    job: Job, ranks: int, run: str, name: str, refused: str, line: str
) -> None:
    words = ["--ranks", ranks, "--memory", "80G", "--set", f"run={run}"]
    found = told(job, *words)
    first, *others = found["options"]
    assert (first["name"], first["asked"]) == (name, True) and refused in first["refused"]
    assert next(one["name"] for one in others if one["fits"]) == "sync" and not any(one["asked"] for one in others)
    assert call(job.file, *words).output.splitlines()[-1] == f"    run: {line}"


def test_seconds_are_of_the_links_that_were_measured(job: Job, tmp_path: Path) -> None:
    config = {"operation": "allreduce", "place": "one node", "way": "Horovod, group, mean", "bytes": 1000}
    record = {"benchmark": "collectives", "ranks": 2, "value": 1e-6, "config": config}
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    found = told(job, "--ranks", 2, "--links", tmp_path)
    assert named(found)["sync"]["secs"] == pytest.approx(PARAMETERS / 1e3)
    assert named(found)["async"]["secs"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", 0], "greater than or equal to 1"),
        (["--ranks", 2, "--memory", "much"], "--memory: 'much' is no size"),
        (["--ranks", 2, "--set", "run.strategy=asynk"], "did you mean"),
        (
            ["--ranks", 2, "--set", "run={mesh: {model: 2}, chief: dedicated}"],
            "exclude each other; the chief trains here",
        ),
        (["--ranks", 2, "--set", "run.sparse_gradients=keras"], "keras is for one rank; 2 train here"),
        (["--ranks", 2, "--links", "nowhere.jsonl"], "--links: nowhere.jsonl"),
        (["--ranks", 2, "--set", "resources.tier=NONE"], "there is no tier 'NONE'"),
    ],
)
def test_mistakes(job: Job, words: list[object], said: str) -> None:
    done = call(job.file, *words)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_jobs_of_which_there_is_nothing_to_plan(job: Job) -> None:
    columns = "{x: {type: number, role: numeric}, y: {type: boolean, role: label, vocabulary: [false, true]}}"
    trees = [f"model={{builtin: gbdt, schema: {{task: binary, columns: {columns}}}}}", "eval.start_delay_secs=0"]
    sections = ["data.train={shards: data/train-*.h5, batch_size: 16}", "data.eval={shards: data/test-*.h5}"]
    done = call(job.file, "--ranks", 2, *(word for one in (*trees, *sections) for word in ("--set", one)))
    assert done.exit_code == 2
    assert "trees have no parameters that ranks hold or exchange; plan is for jobs that train" in done.output
    own = job.folder / "own.yaml"
    own.write_text("name: own\nmodule: trainer.task\n")
    done = call(own, "--ranks", 2)
    assert done.exit_code == 2
    assert "module: trainer.task: a program of its own; plan is for jobs that train a Keras model" in done.output


def test_a_model_that_does_not_take_its_rows(tmp_path: Path) -> None:
    job = make_job_in(tmp_path, model=LAMB.replace("(8,)", "(9,)"))
    done = call(job.file, "--ranks", 2)
    assert done.exit_code == 2, done.output
    assert "build_model" in done.output and "Traceback" not in done.output
