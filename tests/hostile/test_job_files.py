"""Job files that mean harm, or are broken beyond use: refused, in bounded time and memory, with nothing created."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import REPOSITORY, Job, run_program

MakeJob = Callable[..., Job]

START = """\
model: model.py:build_model
data:
  train: {shards: data/train-*.h5}
  eval: {shards: data/test-*.h5}
train: {max_steps: 1}
"""
NAMED = f"name: tiny\n{START}"
MIB = 1 << 20


def laughs(count: int) -> str:
    """Billion laughs, so many aliases deep."""
    lines = [f"  a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, count)]
    return "\n".join([f"{NAMED}params:", "  a0: &a0 [ha]", *lines])


def named(name: str) -> str:
    return f"name: {json.dumps(name)}\n{START}"


NAMES = ["x; touch created", "x\ntouch created", "tiny\n", "../up", "a/b", "$(touch created)", "`touch created`", "",
         "x\0", "-rf", "~", "a b", "ä", "a" * 129]  # fmt: skip

HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "python/object": (f"{NAMED}params: !!python/object/apply:os.system [touch created]\n", "tag .* is not allowed"),
    "python/name": (f"{NAMED}params: {{a: !!python/name:os.system ''}}\n", "tag .* is not allowed"),
    "python in a key": (f"{NAMED}? !!python/object/apply:os.system [touch created]\n: 1\n", "not a plain word"),
    "a tag of its own": (f"%TAG ! tag:example.org,2000:\n---\n{NAMED}params: !a {{}}\n", "tag .* is not allowed"),
    "a key given twice": (f"{NAMED}train: {{max_steps: 2}}\n", "given twice; first on line 6"),
    "10 MB": (NAMED + "# " + "x" * 10 * MIB, "larger than 1024 KiB"),
    "10 MB in one value": (f"{NAMED}params: {{a: {'x' * 10 * MIB}}}", "larger than 1024 KiB"),
    "values by the 100,000": (f"{NAMED}params: {{a: [{'1,' * 500_000}]}}", "more than 20,000 keys and values"),
    "keys by the 100,000": ("".join(f"k{i}: 1\n" for i in range(100_000)), "more than 20,000 keys and values"),
    "one key 10,000 times": (NAMED + "name: tiny\n" * 9_000, "given twice"),
    "deep lists": (f"{NAMED}params: {'[' * 10_000}{']' * 10_000}", "nested deeper than 32"),
    "deep mappings": (f"{NAMED}params: {'{a: ' * 10_000}{'}' * 10_000}", "nested deeper than 32"),
    "deep block lists": (f"{NAMED}params:\n  {'- ' * 10_000}a", "nested deeper than 32"),
    "deep block mappings": (NAMED + "params:\n" + "".join(" " * i + "a:\n" for i in range(1, 1_000)), "deeper than 32"),
    "deep keys": ("? " * 10_000, "nested deeper than 32"),
    "a million brackets": ("[" * (MIB - 1), "nested deeper than 32"),
    "an alias": (f"{NAMED}params: {{a: &a 1, b: *a}}", "an alias"),
    "a merge": (f"{NAMED}params: &p {{a: 1}}\nrun:\n  <<: *p\n", "an alias"),
    "1,000 aliases": (laughs(1_000), "an alias"),
    "an alias of itself": (f"{NAMED}params: &p {{a: *p}}", "an alias"),
    "NUL": (f"{NAMED}params: {{a: b\0c}}", "not valid YAML: unacceptable character"),
    "an escape": (f"{NAMED}params: {{a: \x1b[2J}}", "not valid YAML: unacceptable character"),
    "not UTF-8": (NAMED.encode() + b"params: {a: \xff\xfe}", "not UTF-8 text"),
    "UTF-16": (NAMED.encode("utf-16"), "not UTF-8 text"),
    "a program": (b"\x7fELF\x02\x01\x01" + bytes(64), "not valid YAML|not UTF-8"),
    "two documents": (f"{NAMED}---\n{NAMED}", "not valid YAML: but found another document"),
    "a number of a million digits": (f"{NAMED}params: {{a: {'9' * (MIB - 300)}}}", "is not a number that can be used"),
    "a hexadecimal one": (f"{NAMED}params: 0x{'f' * (MIB - 300)}", "is not a number that can be used"),
    "a million letters for a number": (NAMED.replace("1}", f"{'x' * (MIB - 300)}}}"), "train.max_steps: 'xxx"),
    "a million mistakes": (f"{START}name: [{'a, ' * 19_000}]\n", "name: "),
    "a module with slashes": (
        NAMED.replace("model.py:", "../outside:"),
        "model: '../outside:.* is not allowed",
    ),
    "a module above": (NAMED.replace("model.py:", "..outside:"), "model: '..outside:.* is not allowed"),
    "an exporter with slashes": (f"{NAMED}eval: {{exporters: {{../../up: {{}}}}}}\n", "eval.exporters.*unknown key"),
    "an evaluation with slashes": (f"{NAMED}eval: {{name: ../../up}}\n", "eval.name: '../../up' is not allowed"),
    "a tier with a newline": (f'{NAMED}resources: {{tier: "BASIC\\n"}}\n', "resources.tier: 'BASIC.n' is not allowed"),
    "a map_fn with a newline": (
        NAMED.replace("test-*.h5}", 'test-*.h5, map_fn: "model.py:f\\n"}'),
        "data.eval.map_fn: 'model.py:f.n' is not allowed",
    ),
} | {f"the name {name[:20]!r}": (named(name), "name: .* is not allowed|unacceptable character") for name in NAMES}

OUTSIDE = ["../outside.py:f", "sub/../../outside.py:f", "{elsewhere}/outside.py:f"]

LOADER = """
import json, resource, sys, time
from pathlib import Path
from hpc_train import UserError, load_job

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for path in map(Path, sys.argv[1:]):
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        said = f"accepted: {load_job(path)}"
    except UserError as error:
        said = str(error)
    except BaseException as error:
        said = f"raised {type(error).__name__}: {error}"[:1000]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([path.name, said, time.process_time() - began, grown / 1024]))
"""


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_loader_refuses_them_in_bounded_time_and_memory(tmp_path: Path) -> None:
    files = []
    for i, (content, _) in enumerate(HOSTILE.values()):
        files.append(tmp_path / f"{i}.yaml")
        files[-1].write_bytes(content if isinstance(content, bytes) else content.encode())
    before = everything_in(tmp_path)
    done = run_program([sys.executable, "-c", LOADER, *map(str, files)], tmp_path)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == len(HOSTILE)
    wrong = []
    for (name, (_, said)), (_, message, secs, mib) in zip(HOSTILE.items(), results, strict=True):
        if not re.search(said, message) or message.startswith(("accepted", "raised")):
            wrong.append(f"{name}: {message[:300]}")
        if secs > 60 or mib > 150 or len(message) > 20_000:
            wrong.append(f"{name}: {secs:.1f} s, {mib:.0f} MiB, {len(message):,} characters of message")
    assert not wrong, "\n".join(wrong)
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("place", ["model", "map_fn"])
def test_code_outside_the_job_files_folder_is_refused(tmp_path: Path, place: str) -> None:
    for name in ("outside.py", "elsewhere/outside.py", "job/sub/inside.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("def f(*_): open('created', 'w')\n")
    names = [name.format(elsewhere=tmp_path / "elsewhere") for name in OUTSIDE]
    inside = "sub/inside.py:f"
    files = []
    for name in [*names, inside]:
        quoted = '"' + name + '"'
        text = NAMED.replace("model.py:build_model", quoted)
        if place == "map_fn":
            text = NAMED.replace("data/train-*.h5", f"data/train-*.h5, map_fn: {quoted}")
        files.append(tmp_path / "job" / f"{len(files)}.yaml")
        files[-1].write_text(text)
    done = run_program([sys.executable, "-c", LOADER, *map(str, files)], tmp_path / "job")
    results = [json.loads(line)[1] for line in done.stdout.splitlines()]
    for name, message in zip(names, results, strict=False):
        assert not message.startswith(("accepted", "raised")), f"{name}: {message}"
        assert re.search(rf"{place}: .*a file in the job file's folder", message), message
    assert results[-1].startswith("accepted"), results[-1]


def test_the_command_line_refuses_them_and_creates_nothing(make_job: MakeJob) -> None:
    job = make_job()
    cases = ["python/object", "a key given twice", "10 MB", "deep lists", "1,000 aliases", "NUL", "not UTF-8",
             "an exporter with slashes", "an evaluation with slashes"]  # fmt: skip
    cases += [f"the name {name!r}" for name in NAMES[:7]]
    scratch = job.folder / "scratch"
    scratch.mkdir()
    before = everything_in(job.folder)
    for i, name in enumerate(cases):
        content, said = HOSTILE[name]
        job.file.write_bytes(content if isinstance(content, bytes) else content.encode())
        command = ["train"] if i % 4 else ["launch", "-n", "2"]
        done = run_program(
            [sys.executable, "-m", "hpc_train", *command, str(job.file)],
            job.folder,
            60,
            HOME=str(scratch),
            TMPDIR=str(scratch),
            PYTHONDONTWRITEBYTECODE="1",
        )
        assert done.returncode == 2, f"{name}: {done.stderr}"
        assert re.search(said, done.stderr), f"{name}: {done.stderr}"
        assert all(line.startswith("hpc-train: error: ") for line in done.stderr.splitlines()), done.stderr
        assert len(done.stderr) < 20_000, name
        assert not done.stdout, done.stdout
        assert everything_in(job.folder) == before, name


FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "os.system", "os.popen", "pty.spawn", "subprocess.getoutput",
                   "subprocess.getstatusoutput", "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load",
                   "yaml.unsafe_load_all", "yaml.full_load_all", "tempfile.mktemp", "marshal.loads"}  # fmt: skip
FORBIDDEN_SETTINGS = {"shell", "allow_pickle"}


def dangers(source: str) -> Iterator[str]:
    """What `source` has that turns data or user text into code: line and name."""
    names: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported = [(alias.name, alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported = [(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        names |= {own: full for full, own in imported}
        for full, _ in imported:
            if full.split(".")[0] in FORBIDDEN_MODULES:
                yield f"{node.lineno}: import of {full}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            called = names.get(first, first) + dot + rest
            if called in FORBIDDEN_CALLS or called.split(".")[0] in FORBIDDEN_MODULES:
                yield f"{node.lineno}: call of {called}"
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
                if keyword.arg in FORBIDDEN_SETTINGS and not off:
                    yield f"{node.lineno}: {keyword.arg}={ast.unparse(keyword.value)}"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import pickle", 1),
        ("from pickle import loads as safe\nsafe(b'')", 2),
        ("import yaml as y\ny.load('a', Loader=None)", 1),
        ("import os\nos.system('ls')", 1),
        ("from os import system\nsystem('ls')", 1),
        ("import subprocess as s\ns.run('ls', shell=True)", 1),
        ("run('ls', shell=wanted)", 1),
        ("import numpy as np\nnp.load('a', allow_pickle=True)", 1),
        ("eval('1'); exec('1')", 2),
        ("import yaml\nyaml.safe_load('a'); run(['ls'], shell=False); load(a, allow_pickle=False)", 0),
        ("model.eval(); spec.loader.exec_module(module); evaluate()", 0),
    ],
)
def test_what_is_looked_for_is_found(source: str, count: int) -> None:
    assert len(list(dangers(source))) == count


def test_nothing_in_the_package_turns_data_or_user_text_into_code() -> None:
    sources = sorted((REPOSITORY / "hpc_train").rglob("*.py"))
    assert len(sources) > 50
    found = [f"{path.relative_to(REPOSITORY)}:{danger}" for path in sources for danger in dangers(path.read_text())]
    assert not found, "\n".join(found)
