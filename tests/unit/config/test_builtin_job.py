"""Job files with a built-in model, and the schema that they name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train import UserError, load_job
from hpc_train.config.builtin_model import DNNModel, ImageModel, WideDeepModel
from hpc_train.config.job import JobConfig
from hpc_train.config.job_schema import with_schema_named
from hpc_train.config.references import names_of, renamed
from hpc_train.config.table_schema import ColumnSchema, read_schema
from hpc_train.jobdir.code_paths import absolute_in, relative_to
from hpc_train.jobs.checks import code_files

SCHEMA = """\
task: binary
rows: 10
columns:
  id: {type: integer, role: id}
  age: {type: number, role: numeric, statistics: {count: 10, mean: 1, std: 2}}
  city: {type: text, role: categorical, vocabulary: [Bern, Genf]}
  code: {type: integer, role: categorical, vocabulary: [1, 2]}
  income: {type: text, role: label, vocabulary: [low, high], statistics: {count: 10, counts: [8, 2]}}
"""
JOB = """\
name: income
model: {builtin: dnn, schema: schema.yaml, hidden_units: [8]}
data:
  train: {shards: train-*.h5}
  eval: {shards: test-*.h5, features: [age, city, code], label: income}
train: {max_steps: 10}
evals:
  other: {data: {shards: other-*.h5, features: {age: x, city: city, code: code}, label: {income: y}}}
  made: {data: {shards: made-*.h5, map_fn: maps.py:f, features: raw, label: y}}
"""


def job_in(folder: Path, text: str = JOB, schema: str = SCHEMA) -> Path:
    (folder / "schema.yaml").write_text(schema)
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def mistakes(folder: Path, text: str, schema: str = SCHEMA) -> list[str]:
    path = job_in(folder, text, schema)
    with pytest.raises(UserError) as caught:
        load_job(path)
    return str(caught.value).replace(f"{folder}/", "").splitlines()


def test_a_categorical_column_of_booleans_has_both_as_its_vocabulary():
    assert ColumnSchema(type="boolean", role="categorical").vocabulary == (False, True)
    assert ColumnSchema(type="boolean", role="categorical", vocabulary=(True,)).vocabulary == (True,)
    assert ColumnSchema(type="boolean", role="numeric").vocabulary == ()


def test_the_schema_is_read_and_says_what_is_read_of_the_shards(tmp_path):
    job = load_job(job_in(tmp_path))
    assert job.model == DNNModel(schema=read_schema(tmp_path / "schema.yaml"), hidden_units=(8,))
    columns = {name: name for name in ("age", "city", "code")}
    assert (job.data.train.features, job.data.train.label) == (columns, ("income",))
    assert (job.data.eval.features, job.data.eval.label) == (columns, ("income",)), "a dict also where names are listed"
    other, made = job.evals["other"].data, job.evals["made"].data
    assert (other.features, other.label) == ({**columns, "age": "x"}, ("y",))
    assert (made.features, made.label) == (("raw",), ("y",)), "what a map_fn makes is its own affair"


def test_a_job_travels_with_its_schema_and_lies_in_the_job_dir_without(tmp_path):
    job = load_job(job_in(tmp_path))
    sent = job.model_dump(mode="json")
    assert JobConfig.model_validate(sent).model == job.model
    assert code_files(job) == [tmp_path / "maps.py", tmp_path / "schema.yaml"], "submit copies it"
    written = relative_to(tmp_path / "run", with_schema_named(sent, "schema.yaml"))
    assert written["model"]["schema"] == "schema.yaml"
    assert absolute_in(tmp_path / "run", written)["model"] == written["model"]
    assert sent["model"]["schema"]["columns"]["age"]["type"] == "number", "what was sent is not changed"


def test_balanced_classes_weigh_the_same(tmp_path):
    job = load_job(job_in(tmp_path, JOB.replace("max_steps: 10", "max_steps: 10, class_weight: balanced")))
    assert job.train_spec().class_weight == {0: 10 / 16, 1: 10 / 4}


def test_models_of_images_need_no_schema_and_their_weights_are_where_the_data_is(tmp_path):
    model = "{builtin: image, shape: [8, 8, 3], classes: 10, weights: w.h5}"
    text = JOB.partition("evals:")[0].replace("{builtin: dnn, schema: schema.yaml, hidden_units: [8]}", model)
    path = job_in(tmp_path, text.replace(", features: [age, city, code], label: income", ""))
    job = load_job(path, data_root=tmp_path / "data")
    assert job.model == ImageModel(shape=(8, 8, 3), classes=10, weights=tmp_path / "data/w.h5")
    assert (("model", "weights"), "source", str(tmp_path / "data/w.h5")) in names_of(job)
    moved = renamed(job.model_dump(mode="json"), lambda kind, name: f"{kind} {name}")
    assert moved["model"]["weights"] == f"source {tmp_path}/data/w.h5"
    assert job.train_spec().class_weight is None


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        (
            "builtin: dnn",
            "builtin: dn",
            "job.yaml:2: model.builtin: 'dn' is not allowed; did you mean `dnn`? allowed: linear, dnn, "
            "wide_deep, gbdt, image",
        ),
        (
            "hidden_units: [8]",
            "hiden_units: [8]",
            "job.yaml:2: model.hiden_units: unknown key; did you mean `hidden_units`? allowed: builtin, optimizer, "
            "learning_rate, schema, hidden_units, activation, dropout, batch_norm, l1, l2",
        ),
        (
            "hidden_units: [8]",
            "dropout: 1",
            "job.yaml:2: model.dropout: 1 is not allowed; it should be less than 1",
        ),
        (
            "builtin: dnn, ",
            "",
            "job.yaml:2: model: `builtin` is missing, and it has no default; allowed: linear, dnn, ",
        ),
        ("schema: schema.yaml, ", "", "job.yaml:2: model.schema: missing, and it has no default"),
        (
            "schema: schema.yaml",
            "schema: ../schema.yaml",
            "job.yaml:2: model.schema: '../schema.yaml' is not allowed; allowed: a file in the job file's folder, "
            "which submit copies",
        ),
        ("schema: schema.yaml", "schema: other.yaml", "other.yaml: cannot be read: No such file or directory"),
        (
            "[age, city, code], label: income",
            "[agee, city, code], label: outcome",
            "job.yaml:5: data.eval.features: 'agee' is no feature of the schema; did you mean `age`?",
        ),
        (
            "[age, city, code], label: income",
            "[age], label: outcome",
            "job.yaml:5: data.eval.features: 'city', 'code' of the schema: missing; leave `features` out, which names "
            "all, or give what is not wanted role: ignored in the schema",
        ),
        (
            "[age, city, code], label: income",
            "[age, city, code], label: outcome",
            "job.yaml:5: data.eval.label: outcome is not the label of the schema; allowed: income, or none given",
        ),
        (
            "{builtin: dnn, schema: schema.yaml, hidden_units: [8]}",
            "{builtin: linear, schema: schema.yaml}\nrun: {mixed_precision: bfloat16}",
            "job.yaml:3: run.mixed_precision: a linear model computes in float32; leave it out",
        ),
        (
            "name: income\n",
            "name: income\nparams: {a: 1}\n",
            "job.yaml:2: params: params are for a model function; a built-in model has its options below `model`",
        ),
        (
            "{builtin: dnn, schema: schema.yaml, hidden_units: [8]}",
            "{builtin: wide_deep, schema: schema.yaml, crosses: [[city, cod]]}",
            "job.yaml:2: model.crosses.0: 'cod' is no categorical column of the schema; did you mean `code`? allowed: "
            "city, code",
        ),
        (
            "{builtin: dnn, schema: schema.yaml, hidden_units: [8]}",
            "{builtin: wide_deep, schema: schema.yaml, crosses: [[city, code], [code, city]]}",
            "job.yaml:2: model.crosses.1: has the same columns as crosses.0; leave one of them out",
        ),
        (
            "{builtin: dnn, schema: schema.yaml, hidden_units: [8]}",
            "{builtin: wide_deep, schema: schema.yaml, crosses: [[city, code, city]]}",
            "job.yaml:2: model.crosses.0: 'city' is named twice; cross different columns",
        ),
        (
            "hidden_units: [8]",
            "hidden_units: [8, 2000000000]",
            "job.yaml:2: model.hidden_units.1: 2000000000 is not allowed; it should be less than or equal to 1048576",
        ),
        (
            "{builtin: dnn, schema: schema.yaml, hidden_units: [8]}",
            "a.py:f\nparams: {a: 1}",
            "",
        ),
        (
            "{builtin: dnn, schema: schema.yaml, hidden_units: [8]}",
            "3",
            "job.yaml:2: model: 3 is not allowed; allowed: file.py:function, package.module:function, or a mapping "
            "with `builtin`",
        ),
    ],
)
def test_mistakes_are_said_in_one_sentence(tmp_path, there, instead, said):
    assert there in JOB
    text = JOB.replace(there, instead)
    if not said:
        assert load_job(job_in(tmp_path, text)).params == {"a": 1}
        return
    assert any(line.startswith(said) for line in mistakes(tmp_path, text)), mistakes(tmp_path, text)


def test_mistakes_of_the_schema_are_said_of_its_file(tmp_path):
    for there, instead, said in (
        ("[low, high]", "[low]", "8: columns.income: task binary needs a vocabulary of 2 classes at least"),
        ("[low, high]", "[low, a, b]", "8: columns.income: task binary needs 2 classes; it has 3"),
        ("[8, 2]", "[8]", "8: columns.income: statistics.counts needs a number for each of 2 classes"),
        ("task: binary", "task: counts", "8: columns.income: task counts needs numbers, not text"),
        ("task: binary\n", "", "7: columns.income: give `task` where a column has role label, and only there"),
        ("role: label", "role: categorical", "1: task: give `task` where a column has role label, and only there"),
        ("role: id", "role: label", "8: columns.income: column 'id' has role label, too; give it to one"),
        (
            "std: 2",
            "std: -2",
            "5: columns.age.statistics.std: -2 is not allowed; it should be greater than or equal to 0",
        ),
    ):
        assert there in SCHEMA
        (line,) = mistakes(tmp_path, JOB, SCHEMA.replace(there, instead))
        assert line.startswith(f"schema.yaml:{said}"), line
    label = "  income: {type: text, role: label, vocabulary: [low, high], statistics: {count: 10, counts: [8, 2]}}\n"
    unlabelled = SCHEMA.replace(label, "").replace("task: binary\n", "")
    lines = mistakes(tmp_path, JOB.replace(", label: income", ""), unlabelled)
    assert lines[0].startswith("job.yaml:2: model.schema: the schema has no column with role label")


@pytest.mark.parametrize(
    ("text", "schema", "said"),
    [
        (JOB, SCHEMA.replace(", statistics: {count: 10, counts: [8, 2]}", ""), "the schema counts no classes"),
        (
            JOB.replace("{builtin: dnn, schema: schema.yaml, hidden_units: [8]}", "model.py:f"),
            SCHEMA,
            "`class_weight: balanced` is for a built-in model with a schema",
        ),
    ],
)
def test_classes_that_are_not_counted_cannot_be_balanced(tmp_path, text, schema, said):
    (line,) = mistakes(tmp_path, text.replace("max_steps: 10", "max_steps: 10, class_weight: balanced"), schema)
    assert line.startswith("job.yaml:6: train") and said in line


def test_weights_are_of_classes_that_there_are(tmp_path):
    weighted = JOB.replace("max_steps: 10", "max_steps: 10, class_weight: {0: 1, 2: 5}")
    (line,) = mistakes(tmp_path, weighted)
    assert line.endswith("train.class_weight: there is no class 2; the schema's are counted from 0 to 1")
    for weights, said in (("{1: 1e31}", "1e+31 is not allowed; it should be"), ("{0: 0, 1: 0}", "all classes weigh 0")):
        (line,) = mistakes(tmp_path, JOB.replace("max_steps: 10", f"max_steps: 10, class_weight: {weights}"))
        assert f"train.class_weight: {said}" in line
    counts = SCHEMA.replace("task: binary", "task: counts").replace(
        "{type: text, role: label, vocabulary: [low, high], statistics: {count: 10, counts: [8, 2]}}",
        "{type: integer, role: label}",
    )
    for weights in ("{0: 1, 2: 5}", "balanced"):
        (line,) = mistakes(tmp_path, JOB.replace("max_steps: 10", f"max_steps: 10, class_weight: {weights}"), counts)
        assert line.endswith("is for classes, and the schema has none (task: counts); leave it out")


def test_a_wide_and_deep_model_is_a_deep_one_with_more(tmp_path):
    text = JOB.replace("builtin: dnn", "builtin: wide_deep, crosses: [[city, code]], hash_buckets: 50")
    model = load_job(job_in(tmp_path, text)).model
    assert isinstance(model, WideDeepModel)
    assert (model.hidden_units, model.crosses, model.hash_buckets) == ((8,), (("city", "code"),), 50)
