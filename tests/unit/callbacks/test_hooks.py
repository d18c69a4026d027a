from __future__ import annotations

import timeit
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpc_train.callbacks.hook import Hook, HookContext, SavingListener
from hpc_train.callbacks.hook_list import EvaluationHook, Hooks, SavingListeners, resolve_hooks, resolve_listeners
from hpc_train.errors import JobEndedError, UserError

JOB_DIR = Path("/jobs/a")


def hooks_of(*hooks: Any, is_chief: bool = True) -> Hooks:
    return Hooks(hooks, HookContext(None, 0 if is_chief else 1, 2, is_chief, JOB_DIR, 5, 9))  # type: ignore[arg-type]


def refuse(name: str) -> Any:
    raise AssertionError(name)


class Recorder(Hook):
    def __init__(self, log: list[Any], name: str = "") -> None:
        self.log, self.name = log, name

    def begin(self, context: HookContext) -> None:
        self.log.append((self.name, "begin", context.rank, context.first_step, context.max_steps))
        self.context = context

    def before_step(self, step: int) -> None:
        self.log.append((self.name, "before_step", step))

    def after_step(self, step: int, loss: float) -> None:
        self.log.append((self.name, "after_step", step, loss))

    def after_checkpoint(self, step: int, path: Path) -> None:
        self.log.append((self.name, "after_checkpoint", step, path))

    def before_evaluate(self, step: int, name: str | None) -> None:
        self.log.append((self.name, "before_evaluate", step, name))

    def before_evaluation_batch(self, name: str | None, batch: int) -> None:
        self.log.append((self.name, "before_evaluation_batch", name, batch))

    def after_evaluate(self, step: int, name: str | None, metrics: Mapping[str, float]) -> None:
        self.log.append((self.name, "after_evaluate", step, name, dict(metrics)))

    def end(self, step: int) -> None:
        self.log.append((self.name, "end", step))


class OnTheChief(Recorder):
    chief_only = True


def test_hooks_are_called_in_order_and_some_on_the_chief_alone() -> None:
    for is_chief, names in ((True, "ab"), (False, "b")):
        log: list[Any] = []
        hooks = hooks_of(OnTheChief(log, "a"), Recorder(log, "b"), Hook(), is_chief=is_chief)
        hooks.begin()
        hooks.before_step(6)
        hooks.after_step(6, 0.5)
        hooks.after_checkpoint(6, JOB_DIR)
        hooks.before_evaluate(6, None)
        hooks.before_evaluation_batch(6, None, 0)
        hooks.after_evaluation_batch(6, None, 0)
        hooks.after_evaluate(6, None, {"loss": 1.0})
        hooks.end(6)
        calls = [
            ("begin", 0 if is_chief else 1, 5, 9),
            ("before_step", 6),
            ("after_step", 6, 0.5),
            ("after_checkpoint", 6, JOB_DIR),
            ("before_evaluate", 6, None),
            ("before_evaluation_batch", None, 0),
            ("after_evaluate", 6, None, {"loss": 1.0}),
            ("end", 6),
        ]
        assert log == [(name, *call) for call in calls for name in names]


def test_the_first_wish_to_stop_counts() -> None:
    recorder = Recorder([])
    hooks = hooks_of(recorder)
    assert hooks.stop_requested is None
    hooks.begin()
    recorder.context.request_stop("enough")
    recorder.context.request_stop("too much")
    assert hooks.stop_requested == "enough"


def test_an_interrupted_run_ends_unless_the_hook_knows_better() -> None:
    log: list[Any] = []

    class Knows(Recorder):
        def interrupted(self, step: int) -> None:
            self.log.append("interrupted")

    hooks_of(Recorder(log, "a"), Knows(log), SimpleNamespace(end=lambda step: log.append(step))).interrupted(7)
    assert log == [("a", "end", 7), "interrupted", 7]


def test_an_error_names_hook_method_and_step() -> None:
    class Careless(Hook):
        def after_step(self, step: int, loss: float) -> None:
            raise KeyError("x")

        def end(self, step: int) -> None:
            raise JobEndedError("over", 7)

        def begin(self, context: HookContext) -> None:
            raise UserError("no")

    hooks = hooks_of(Careless())
    with pytest.raises(RuntimeError, match=r"hook Careless.after_step failed at step 12: 'x'") as raised:
        hooks.after_step(12, 0.0)
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(JobEndedError, match="over"):
        hooks.end(12)
    with pytest.raises(UserError, match="no"):
        hooks.begin()


def test_hooks_of_an_evaluation_see_their_own_set() -> None:
    log: list[Any] = []
    hooks = hooks_of(EvaluationHook(OnTheChief(log), "b"), EvaluationHook(SimpleNamespace(begin=log.append), None))
    hooks.begin()
    hooks.before_step(6)
    hooks.after_step(6, 1.0)
    for name in (None, "b"):
        hooks.before_evaluate(6, name)
        hooks.before_evaluation_batch(6, name, 3)
        hooks.after_evaluate(6, name, {})
    hooks.end(6)
    assert [entry[1:] for entry in log if isinstance(entry, tuple)] == [
        ("begin", 0, 5, 9),
        ("before_evaluate", 6, "b"),
        ("before_evaluation_batch", "b", 3),
        ("after_evaluate", 6, "b", {}),
        ("end", 6),
    ]
    log.clear()
    hooks_of(EvaluationHook(OnTheChief(log), "b"), is_chief=False).before_evaluate(6, "b")
    assert log == []


def test_the_first_rank_that_trains_need_not_be_the_one_that_evaluates() -> None:
    for rank, kept in ((0, ["b"]), (1, ["a"]), (2, [])):
        log: list[Any] = []
        hooks = Hooks(
            [OnTheChief(log, "a"), EvaluationHook(OnTheChief(log, "b"), None)],
            HookContext(None, rank, 3, rank == 1, JOB_DIR, 0, None),  # type: ignore[arg-type]
        )
        hooks.before_evaluate(3, None)
        assert [name for name, *_ in log] == kept


def test_job_files_name_functions_that_make_hooks() -> None:
    hook, duck = Hook(), SimpleNamespace(after_step=print)
    made = {"hooks.py:one": lambda: hook, "hooks.py:two": lambda: [hook, duck]}
    assert resolve_hooks(["hooks.py:one", duck, "hooks.py:two"], made.__getitem__) == [hook, duck, hook, duck]


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ([3], r"hooks: 3, which is not allowed; allowed: an ht.Hook"),
        ([Hook], r"hooks: the class Hook; give an object: Hook\(\)"),
        (["a.py:make"], r"hooks: a.py:make\(\) returned None, which is not allowed"),
        ([print], "is not allowed"),
    ],
)
def test_what_is_no_hook_is_refused(given_: list[Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        resolve_hooks(given_, lambda name: lambda: None)


def test_saving_listeners_are_told_before_and_after() -> None:
    log: list[Any] = []

    class Listener(SavingListener):
        def before_save(self, step: int) -> None:
            log.append(step)

        def after_save(self, step: int, path: Path) -> None:
            log.append(path)
            raise OSError("full")

    listeners = SavingListeners(resolve_listeners([Listener(), SavingListener()], refuse))
    listeners.before_save(3)
    with pytest.raises(RuntimeError, match=r"saving listener Listener.after_save failed at step 3: full"):
        listeners.after_save(3, JOB_DIR)
    assert log == [3, JOB_DIR]
    with pytest.raises(UserError, match=r"saving_listeners: .* allowed: an ht.SavingListener"):
        resolve_listeners([Hook()], refuse)


def test_no_hooks_cost_next_to_nothing() -> None:
    hooks = hooks_of(Hook())

    def step() -> None:
        hooks.before_step(1)
        hooks.after_step(1, 0.5)

    assert min(timeit.repeat(step, number=1000, repeat=5)) / 1000 < 5e-6
