"""Modules that training has no use for are run when something of them is used; imports are not interrupted."""

from __future__ import annotations

import gc
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train import lazy


@pytest.fixture
def deferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package, deferred, that notes in sys when it runs."""
    name = "hpc_train_test_deferred"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("import sys\nsys.hpc_train_test_runs += 1\nvalue = 7\n")
    (folder / "inner.py").write_text("number = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(lazy, "DEFERRED", frozenset({name}))
    monkeypatch.setattr(sys, "hpc_train_test_runs", 0, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    lazy.defer_unused()
    lazy.defer_unused()
    yield name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


def runs() -> int:
    return sys.hpc_train_test_runs  # type: ignore[attr-defined]


def test_a_deferred_module_runs_once_when_something_of_it_is_used(deferred: str) -> None:
    module = importlib.import_module(deferred)
    assert module.__file__.endswith("__init__.py")
    assert module.__path__
    assert inspect.getmodule(runs) is not None, "which asks all modules for their files"
    assert runs() == 0
    assert module.value == 7
    assert runs() == 1
    assert type(module).__name__ == "module"
    assert not hasattr(module, "nothing")
    assert runs() == 1


def test_names_and_modules_in_it_are_found(deferred: str) -> None:
    assert importlib.import_module(f"{deferred}.inner").number == 3
    module = importlib.import_module(deferred)
    assert not hasattr(module, "__wrapped__")
    assert runs() == 0
    assert "value" in dir(module)
    assert runs() == 1


def test_a_rank_runs_nothing_of_keras_that_draws_or_needs_scikit_learn() -> None:
    code = (
        "import sys; from hpc_train.lazy import keras, tf; tf.Variable; keras.Model\n"
        "assert not {'matplotlib', 'sklearn'} & set(sys.modules), 'imported'\n"
        "import keras; assert keras.wrappers.SKLearnClassifier and keras.visualization.plot_image_gallery\n"
        "assert 'matplotlib' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("before", [True, False])
def test_imports_are_not_interrupted_by_collections(before: bool) -> None:
    enabled = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        with lazy.importing():
            assert not gc.isenabled()
        assert gc.isenabled() == before
    finally:
        (gc.enable if enabled else gc.disable)()
