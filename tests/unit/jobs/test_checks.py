"""What is known to go wrong with a job before it is queued: code, ranks, this machine and the cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train import UserError, load_job
from hpc_train.config.job import JobConfig
from hpc_train.config.program import ProgramConfig
from hpc_train.config.resources import Resources, ResourcesSection
from hpc_train.data.staging import folder
from hpc_train.jobs.checks import (
    check_files,
    check_launcher,
    check_min_nodes,
    check_nodes,
    check_ranks,
    check_roles,
    check_stage_dir,
    code_files,
    data_files,
    least_ranks,
)
from hpc_train.jobs.code import check_code
from hpc_train.jobs.prepare import Placement, Request, prepare
from hpc_train.jobs.problems import Problems
from hpc_train.jobs.site.tiers import load_tiers, resources_for
from tests.support import Job

JOB = """\
name: tiny
model: {model}
data:
  train: {{shards: a.h5, features: x, label: y, batch_size: 16{train}}}
  eval:  {{shards: b.h5, features: x, label: y, batch_size: 16{evaluate}}}
train: {{max_steps: 20}}
"""


def job_of(folder: Path, model: str = "model.py:build", train: str = "", evaluate: str = "") -> JobConfig:
    parts = {name: f", map_fn: {text}" if text else "" for name, text in (("train", train), ("evaluate", evaluate))}
    (folder / "job.yaml").write_text(JOB.format(model=model, **parts))
    return load_job(folder / "job.yaml")


def code_problem(folder: Path, code: str | bytes, model: str = "model.py:build") -> str | None:
    """What is said of a model's file."""
    path = folder / model.rpartition(":")[0]
    path.write_bytes(code.encode() if isinstance(code, str) else code)
    try:
        check_code(job_of(folder, model), folder)
    except UserError as error:
        return str(error).replace(str(path), "FILE")
    return None


# ---- code


@pytest.mark.parametrize(
    "code",
    [
        "def build(params): pass",
        "async def build(params): pass",
        "class build: pass",
        "build = lambda params: None",
        "build: object = print",
        "a, (b, *build) = 1, (2, 3)",
        "a = build = print",
        "from elsewhere import build",
        "from elsewhere import other as build",
        "import build",
        "import build.deeper",
        "import other.one as build",
        "from elsewhere import *",
        "if True:\n    def build(p): pass",
        "def build(): pass",
        "def build(*anything): pass",
        "def build(params=None, *, width=3): pass",
        "@partial(mode=1)\ndef build(params, mode): pass",
        "def build(a, b): pass\nbuild = wrapped(build)",
        "if True:\n    pass\nelif 1:\n    pass\nelse:\n    build = 1",
        "try:\n    from fast import build\nexcept ImportError:\n    pass",
        "try:\n    import fast\nexcept ImportError:\n    def build(p): pass",
        "try:\n    pass\nfinally:\n    build = 1",
        "with open('x') as file:\n    def build(p): pass",
        "for i in range(3):\n    build = i",
        "if True:\n    try:\n        import x as build\n    except ImportError:\n        pass",
        "# größe\n@property\ndef build(p): pass",
        b"# -*- coding: latin-1 -*-\n# \xe9\ndef build(p): pass",
    ],
)
def test_a_function_that_is_there(tmp_path: Path, code: str | bytes) -> None:
    assert code_problem(tmp_path, code) is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "model: FILE has no function build; what it defines: none"),
        ("def biuld(p): pass\nimport a, _b\n", "model: FILE has no function build; what it defines: a, biuld"),
        ("def outer():\n    def build(p): pass\n", "model: FILE has no function build; what it defines: outer"),
        ("class A:\n    def build(p): pass\n", "model: FILE has no function build; what it defines: A"),
        ("from build import other\n", "model: FILE has no function build; what it defines: other"),
        ("x = build\n", "model: FILE has no function build; what it defines: x"),
        ("a = 1\ndef build(p:\n    pass\n", "model: FILE:2: not Python: '(' was never closed"),
        ("def build(p):\npass\n", "model: FILE:2: not Python: expected an indented block"),
        (
            "def build(features, labels, mode): pass",
            "model: FILE:build: build(features, labels, mode) is not allowed; allowed: a function without arguments or "
            "of one, params (a dict), that returns a compiled keras.Model; docs/estimator.md",
        ),
        ("def build(params, /, *, width): pass", "model: FILE:build: build(params, /, *, width) is not allowed"),
        (b"def build(p): '\xff'\n", "model: FILE"),
        ("def build(p): '\0'\n", "model: FILE"),
    ],
)
def test_a_function_that_is_not_there(tmp_path: Path, code: str | bytes, said: str) -> None:
    problem = code_problem(tmp_path, code)
    assert (problem or "").startswith(said)
    if said == "model: FILE":
        assert "not Python: " in (problem or "")


def test_arguments_of_other_functions(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def build(): pass\ndef augment(a, b, c): pass\ndef fine(x, y=0, *more): pass\n")
    check_code(job_of(tmp_path, train="model.py:fine"), tmp_path)
    with pytest.raises(
        UserError, match=r"^map_fn: .*/model\.py:augment: augment\(a, b, c\) is not allowed; allowed: a f"
    ):
        check_code(job_of(tmp_path, train="model.py:augment"), tmp_path)
    job = job_of(tmp_path).model_copy(update={"params": {"rate": 1}})
    with pytest.raises(UserError, match=r"build\(\) has no argument for params, which are given"):
        check_code(job, tmp_path)


def test_code_is_not_run(tmp_path: Path) -> None:
    assert code_problem(tmp_path, "raise SystemExit('run')\ndef build(p): pass\n") is None


def test_files_that_are_not_there_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "aug.py").mkdir()
    with pytest.raises(UserError) as caught:
        check_code(job_of(tmp_path, "deep/model.py:build", "gone.py:f", "aug.py:f"), tmp_path)
    assert str(caught.value).splitlines() == [
        f"model: {tmp_path}/deep/model.py: No such file or directory",
        f"map_fn: {tmp_path}/gone.py: No such file or directory",
        f"map_fn: {tmp_path}/aug.py: is a folder, not a regular file",
    ]


def test_a_module_that_is_there(tmp_path: Path) -> None:
    for path in ("alone.py", "package/__init__.py", "package/part.py", "started/__main__.py", "bare/deep/task.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("raise SystemExit('run')\n")
    for module in ("alone", "package.part", "started", "bare.deep.task", "json", "json.tool", "pydantic"):
        check_code(ProgramConfig(name="a", module=module), tmp_path)
    check_code(job_of(tmp_path, "package.part:build", "json:loads", "package:f"), tmp_path)
    with pytest.raises(UserError, match=r"module: there is no package .*/package/__main__.py"):
        check_code(ProgramConfig(name="a", module="package"), tmp_path)  # python -m does not run an __init__.py


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("absent", "there is no module absent: neither in FOLDER nor among the installed packages"),
        ("absent.part", "there is no module absent.part: neither in FOLDER nor"),
        ("package.gone", "there is no package.gone in FOLDER: neither FOLDER/package/gone.py nor FOLDER/package/g"),
        ("package", "there is no package in FOLDER: neither FOLDER/package.py nor FOLDER/package/__"),
        ("alone.part", "there is no alone.part in FOLDER"),
        ("__main__", "there is no module __main__"),
    ],
)
def test_a_module_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, said: str) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # as in hpc-train itself
    (tmp_path / "package").mkdir()
    (tmp_path / "alone.py").write_text("")
    for key, job in (
        ("module", ProgramConfig(name="a", module=module)),
        ("model", job_of(tmp_path, f"{module}:build")),
        ("map_fn", job_of(tmp_path, "json:loads", evaluate=f"{module}:f")),
    ):
        with pytest.raises(UserError) as caught:
            check_code(job, tmp_path)
        assert str(caught.value).replace(str(tmp_path), "FOLDER").startswith(f"{key}: {said}")


def test_the_files_that_a_job_names(tmp_path: Path) -> None:
    job = job_of(tmp_path, "code/model.py:build", "aug.py:f", "numpy.random:rand")
    assert code_files(job) == [tmp_path / "code/model.py", tmp_path / "aug.py"]
    assert code_files(ProgramConfig(name="a", module="trainer.task")) == []


# ---- files beside the code


def test_assets_that_are_not_there_are_all_told(make_job: Callable[..., Job]) -> None:
    further = {"data": {"shards": "data/test-*.h5"}, "exporters": {"more": {"type": "latest", "assets": "d.txt"}}}
    assets = {"final": {"assets": ["a.txt", "b.txt", "c.txt"]}}
    made = make_job(eval={"exporters": assets}, evals={"other": further})
    job = load_job(made.file)
    (made.folder / "b.txt").touch()
    with pytest.raises(UserError) as caught:
        check_files(job, made.job_dir)
    assert str(caught.value).splitlines() == [
        f"exporter 'final': there is no file {made.folder}/a.txt, {made.folder}/c.txt (assets)",
        f"exporter 'more': there is no file {made.folder}/d.txt (assets)",
    ]
    assert code_files(job) == [made.folder / "model.py", made.folder / "b.txt"], "the others are told once"
    for name in "acd":
        (made.folder / f"{name}.txt").touch()
    check_files(job, made.job_dir)
    assert len(code_files(job)) == 5


def test_what_to_start_from_is_looked_for_where_it_is_needed(make_job: Callable[..., Job]) -> None:
    made = make_job(warm_start_from="../old")
    old, job = made.folder.parent / "old", load_job(made.file)
    with pytest.raises(UserError, match=r"warm_start_from: .*old: there is no such file or folder; give a job-dir"):
        check_files(job, made.job_dir)
    check_files(job, made.job_dir, after_dir=old)  # the job before makes it
    with pytest.raises(UserError, match="there is no such file or folder"):
        check_files(job, made.job_dir, after_dir=made.folder.parent / "another")
    (made.job_dir / "checkpoints/step-00000010").mkdir(parents=True)
    check_files(job, made.job_dir)  # it goes on from its own checkpoint
    fresh = made.folder / "fresh"
    old.mkdir()
    with pytest.raises(UserError, match="no checkpoint and no model is here"):
        check_files(job, fresh)
    (old / "checkpoints").mkdir()
    with pytest.raises(UserError, match="a job-dir without a checkpoint yet"):
        check_files(job, fresh)
    (old / "checkpoints/step-00000010").mkdir()
    check_files(job, fresh)
    (old / "checkpoints/step-00000010").rmdir()
    with pytest.raises(UserError, match="is the job-dir itself"):
        check_files(job, old)
    check_files(ProgramConfig(name="a", module="m"), fresh)


# ---- ranks and data


def test_the_shards_of_a_job(make_job: Callable[..., Job]) -> None:
    job = make_job()
    assert data_files(load_job(job.file)) == [
        job.folder / f"data/{name}.h5" for name in ("train-0", "train-1", "test-0")
    ]
    assert data_files(load_job(job.file, ["data.train.shards=gone-*.h5"])) == [job.folder / "data/test-0.h5"]
    assert data_files(ProgramConfig(name="a", module="m")) == []


def test_data_that_all_ranks_can_read(make_job: Callable[..., Job]) -> None:
    check_ranks(load_job(make_job().file), 4)


@pytest.mark.parametrize(
    ("ranks", "servers", "said"),
    [
        (1, 1, "1 rank cannot be split into 1 parameter server and no worker; start at least 2 ranks"),
        (2, 2, "2 ranks are 2 parameter servers and no worker; start at least 3 ranks"),
        (3, 2, None),
    ],
)
def test_ranks_of_an_asynchronous_job(make_job: Callable[..., Job], ranks: int, servers: int, said: str | None) -> None:
    job = load_job(make_job(run={"strategy": "async", "parameter_servers": servers}).file)
    if said is None:
        check_ranks(job, ranks)
        return
    with pytest.raises(UserError, match=f"run.parameter_servers: {said}"):
        check_ranks(job, ranks)


def test_ranks_of_a_job_with_a_dedicated_chief(make_job: Callable[..., Job], tmp_path: Path) -> None:
    """A tier of one rank is too small for it; rank 0 reads nothing, so that the others' part is larger."""
    job, tiers = load_job(make_job(train_rows=(96,)).file, ["run.chief=dedicated"]), load_tiers({}, tmp_path)
    with pytest.raises(UserError, match=r"run\.chief: dedicated leaves no rank to train where there is 1; start at"):
        check_ranks(job, resources_for(ResourcesSection(tier="BASIC_GPU"), tiers).ranks)
    check_ranks(job, resources_for(ResourcesSection(tier="BASIC"), tiers).ranks)
    check_ranks(job, 7)
    with pytest.raises(UserError, match="rows"):
        check_ranks(job, 8)  # 7 of them read, of 16 rows a step


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        ([], 1),
        (["run.chief=dedicated"], 2),
        (["run.strategy=async"], 2),
        (["run.strategy=async", "run.parameter_servers=3"], 4),
    ],
)
def test_so_many_ranks_a_job_needs_at_least(make_job: Callable[..., Job], settings: list[str], ranks: int) -> None:
    job = load_job(make_job().file, settings)
    assert least_ranks(job) == ranks
    check_ranks(job, ranks)
    assert least_ranks(ProgramConfig(name="a", module="m")) == 1


def test_data_that_cannot_be_read(make_job: Callable[..., Job]) -> None:
    job = make_job(train_rows=(96,))
    with pytest.raises(UserError, match="rows"):
        check_ranks(load_job(job.file), 7)  # of 16 rows a step
    with pytest.raises(UserError, match=r"gone-\*\.h5"):
        check_ranks(load_job(job.file, ["data.train.shards=gone-*.h5"]), 1)


def test_the_data_of_a_program_are_its_own() -> None:
    check_ranks(ProgramConfig(name="a", module="m"), 1000)


# ---- who runs it


def test_problems_are_gathered() -> None:
    problems = Problems()
    problems.refuse()
    for text in ("one\ntwo", "one", "three"):
        with problems.gathered():
            raise UserError(text)
    with pytest.raises(KeyError), problems.gathered():
        raise KeyError("another kind")
    with pytest.raises(UserError) as caught:
        problems.refuse()
    assert str(caught.value) == "one\ntwo\nthree"


def test_a_job_that_could_not_go_on_with_its_min_nodes(tmp_path):
    def problem(run: str, min_nodes: int, ranks_per_node: int = 1) -> str | None:
        text = JOB.format(model="model.py:build", train="", evaluate="") + f"run: {run}\nresources: {{}}\n"
        (tmp_path / "job.yaml").write_text(text)
        wants = Resources(tier="here", nodes=4, ranks_per_node=ranks_per_node, min_nodes=min_nodes)
        try:
            check_min_nodes(load_job(tmp_path / "job.yaml"), wants)
        except UserError as error:
            return str(error)
        return None

    assert problem("{}", 1) is problem("{chief: dedicated}", 2) is problem("{chief: dedicated}", 1, 2) is None
    assert problem("{mesh: {model: 2}}", 2) is problem("{mesh: {model: 2}}", 1, 2) is None
    said = "resources.min_nodes: with 1 of 4 nodes the job could not go on: run."
    for run in ("{chief: dedicated}", "{mesh: {model: 2}}", "{strategy: async}"):
        assert (problem(run, 1) or "").startswith(said), run
    check_min_nodes(ProgramConfig(name="a", module="m"), Resources(tier="here", nodes=4, min_nodes=1))


def test_srun_cannot_start_a_job_that_goes_on_without_a_worker(tmp_path):
    run = "run: {strategy: async, on_lost_worker: continue}"
    (tmp_path / "job.yaml").write_text(JOB.format(model="model.py:build", train="", evaluate="") + f"{run}\n")
    job = load_job(tmp_path / "job.yaml")
    check_launcher(job, Resources(tier="here"))
    with pytest.raises(UserError, match=r"on_lost_worker: continue needs resources\.launcher: mpirun"):
        check_launcher(job, Resources(tier="here", launcher="srun"))


def test_a_folder_to_stage_in_is_looked_at_where_it_is_on_this_machine(tmp_path, monkeypatch):
    def problem(stage: str) -> str | None:
        (tmp_path / "job.yaml").write_text(JOB.format(model="model.py:build", train=stage, evaluate=""))
        try:
            check_stage_dir(load_job(tmp_path / "job.yaml"))
        except UserError as error:
            return str(error)
        return None

    here = f", stage: node, stage_dir: {tmp_path}"
    assert problem("") is problem(", stage: node") is problem(here) is None
    assert problem(f"{here}/of-nodes-alone") is None
    (tmp_path / "file").touch()
    assert "file: is no folder" in (problem(f"{here}/file") or "")
    monkeypatch.setattr(folder.os, "access", lambda *a: False)
    assert "cannot be written" in (problem(here) or "")
    monkeypatch.undo()
    monkeypatch.setattr(folder, "type_of", lambda path: "lustre")
    assert "(lustre) that is not the node's own" in (problem(here) or "")
    check_stage_dir(ProgramConfig(name="a", module="m"))
    placement = Placement(tmp_path / "runs", "local")
    with pytest.raises(UserError, match="lustre"):
        prepare(Request(tmp_path / "job.yaml", placement), print)


def test_a_copy_of_a_model_that_lies_on_several_nodes_is_reported(tmp_path):
    text = JOB.format(model="model.py:build", train="", evaluate="") + "run: {mesh: {model: 4}}\nresources: {}\n"
    (tmp_path / "job.yaml").write_text(text)
    job, said = load_job(tmp_path / "job.yaml"), []
    for nodes, ranks_per_node in ((1, 6), (2, 4), (2, 8), (2, 6), (4, 1)):
        wants = Resources(tier="here", nodes=nodes, ranks_per_node=ranks_per_node)
        check_nodes(job, wants, said.append)
    assert ["ranks_per_node: 6" in text or "ranks_per_node: 1" in text for text in said] == [True, True]
    assert "a multiple of 4" in said[0]


# ---- roles


def why_no_roles(job: JobConfig | ProgramConfig, **roles: dict[str, int]) -> str | None:
    try:
        check_roles(job, Resources(tier="T", **roles))
    except UserError as error:
        return str(error)
    return None


def test_roles_are_those_of_the_strategy(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    assert why_no_roles(job) is None and why_no_roles(job, chief={}, workers={"nodes": 3}) is None
    assert "strategy: sync has none" in str(why_no_roles(job, parameter_servers={}, workers={}))
    assert "is for the cluster of a program" in str(why_no_roles(job, workers={}, evaluator={}))
    assert "rank 0 alone is the chief" in str(why_no_roles(job, chief={"nodes": 2}, workers={}))
    text = (tmp_path / "job.yaml").read_text() + "run: {strategy: async, parameter_servers: 2}\n"
    (tmp_path / "job.yaml").write_text(text)
    served = load_job(tmp_path / "job.yaml")
    assert why_no_roles(served, parameter_servers={"nodes": 2}, workers={}) is None
    assert why_no_roles(served, chief={}, parameter_servers={}, workers={}) is None
    said = "chief and parameter_servers have 1 rank, and run.parameter_servers is 2; allowed: as many"
    assert said in str(why_no_roles(served, chief={}, workers={}))


def test_roles_are_those_of_the_cluster() -> None:
    program = ProgramConfig(name="a", module="t", cluster={"chief": 1, "ps": 1, "worker": 2})
    assert why_no_roles(program, chief={}, parameter_servers={}, workers={"nodes": 2}) is None
    said = str(why_no_roles(program, chief={}, workers={"nodes": 3}))
    assert said == "cluster: chief=1,ps=1,worker=2 is not what `resources` gives: chief=1,worker=3"
    other = ProgramConfig(name="a", module="t", cluster={"chief": 1, "worker": 2, "ps": 1})
    said = str(why_no_roles(other, chief={}, parameter_servers={}, workers={"nodes": 2}))
    assert said == "cluster: write its roles in the order of `resources`: chief=1,ps=1,worker=2"
    with pytest.raises(UserError, match=r"cluster: chief=1,ps=1,worker=2 is 4 ranks, and `resources` gives 3"):
        check_ranks(program, 3)
