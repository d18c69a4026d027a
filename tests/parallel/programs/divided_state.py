"""Checkpoints of a state of which ranks hold parts: saved, restored and interrupted; the file is that of one rank.

divided_state.py FOLDER all | job | kill-chief | kill-other | memory. Prints "rank R is fine".
"""

import errno
import os
import re
import signal
import sys
import threading
import zlib
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import h5py
import keras
import numpy as np
import tensorflow as tf

import hpc_train as ht
from hpc_train.checkpoint.async_saver import BackgroundSaver
from hpc_train.checkpoint.disk_io import MAX_WRITE_BYTES
from hpc_train.checkpoint.format import COUNTER, Snapshot
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from hpc_train.config.exporters import FinalExporter
from hpc_train.config.warm_start import WarmStartSettings
from hpc_train.data.sampling.sampler import DataProgress
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.optimizer_variables import build
from hpc_train.distributed.remote_parts import RemoteParts
from hpc_train.distributed.share import Share, set_share, share_of
from hpc_train.distributed.startup import join_world
from hpc_train.distributed.tensors import dtype_of
from hpc_train.distributed.world import World
from hpc_train.engine.checkpointing import Checkpointing
from hpc_train.engine.recovery import Restorer
from hpc_train.errors import JobEndedError, RankError, UserError
from hpc_train.export.whole_model import WholeModel
from hpc_train.model.model_state import ModelState
from hpc_train.model.own_steps import Updates
from hpc_train.warm_start.apply import warm_start

folder, what = Path(sys.argv[1]), sys.argv[2]
world = join_world("multiple")
install_excepthook(world)
ROWS, WIDTH = (37, 52) if what == "all" else (4096, 2048)


def uneven(axis, shape, rank, ranks):
    """Cut along `axis`; rank 1 has nothing where there are more than two."""
    holding = [r for r in range(ranks) if r != 1 or ranks == 2]
    if rank not in holding:
        return Share(shape, axis, 0, 0)
    at, end = holding.index(rank), shape[axis]
    cuts = [end * i // len(holding) for i in range(len(holding))]
    return Share(shape, axis, cuts[at], [*cuts[1:], end][at])


def mesh(shape, rank, ranks):
    """Columns among pairs of ranks, the same in each pair."""
    return Share(shape, 1, *((0, 17) if rank % 2 == 0 else (17, shape[1]))) if ranks % 2 == 0 else None


def flat(share, rank, ranks, of):
    """Of `share`, the elements of one among so many ranks."""
    return share.narrowed(share.size * rank // of, share.size * (rank + 1) // of)


def columns_in_pieces(shape, rank, ranks):
    return flat(held, rank // 2, ranks, ranks // 2) if (held := mesh(shape, rank, ranks)) else None


LAYOUTS = {
    "whole": (None, None),
    "columns": (lambda *a: uneven(1, *a), None),
    "rows": (lambda *a: uneven(0, *a), None),
    "mesh": (mesh, None),
    "pieces": (None, lambda shape, rank, ranks: flat(Share(shape), rank, ranks, ranks)),
    "pieces of columns": (mesh, columns_in_pieces),
}
"""Which part of the kernel a rank holds, and which part of its slots beside."""


class Held(keras.layers.Layer):
    """Layers that are never called: `kernel`, of which a rank may hold a part, and a bias in a type that HDF5 lacks."""

    def __init__(self, share, **given):
        super().__init__(**given)
        self._share = share

    def build(self, _):
        shape = (ROWS, WIDTH) if self._share is None else self._share.held
        self.kernel = self.add_weight(shape=shape, name="kernel", dtype="bfloat16" if what == "all" else "float32")
        self.bias = self.add_weight(shape=(7,), name="bias")
        if self._share is not None:
            set_share(self.kernel, self._share, "data")

    def call(self, inputs):
        return inputs


def first_state_of(ranks, layout):
    """The same with the names of a process's first model, which Keras counts."""
    keras.utils.clear_session()
    return state_of(ranks, layout)


def state_of(ranks, layout):
    """The state of a small model on the ranks of a world, cut as `layout` says; None: not on so many ranks."""
    cut, cut_slots = LAYOUTS[layout]
    shape = (ROWS, WIDTH)
    share = cut and cut(shape, ranks.rank, ranks.size)
    pieces = cut_slots and cut_slots(shape, ranks.rank, ranks.size)
    if (cut and share is None) or (cut_slots and pieces is None):
        return None
    layers = [Held(share, name="wide"), keras.layers.Dense(3), keras.layers.Dense(2), keras.layers.Dropout(0.5, seed=1)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    model.compile(keras.optimizers.Adam(0.01))
    variables = list(model.trainable_variables)
    if pieces is not None:
        piece = keras.Variable(np.zeros(pieces.held), dtype=variables[0].dtype, name="kernel")
        piece._path = variables[0].path
        set_share(piece, pieces, "world")
        variables[0] = piece
    found = build(model.optimizer, variables)
    return ModelState(model, ranks, Updates(((model.optimizer, tuple(variables)),), (1,), found))


def wanted(name, variable, seed):
    """What a rank should hold of a variable, which is another one for each seed."""
    share = share_of(variable)
    shape = share.shape if share else tuple(variable.shape)
    random = np.random.default_rng([zlib.crc32(re.sub(COUNTER, "", name).encode()), seed])
    whole = random.integers(0, 100, shape).astype(dtype_of(variable))
    return whole if share is None else share.of(whole)


def fill(state, seed):
    for name, variable in state._all.items():
        variable.assign(wanted(name, variable, seed))


def check(state, seed):
    for name, variable in state._all.items():
        if "seed_generator" not in name:  # differs by rank
            found = variable.numpy()
            assert found.tobytes() == wanted(name, variable, seed).tobytes(), (world.rank, name, seed)


class Saving:
    """What a Checkpointing needs of a run; the chief's errors are noted."""

    def __init__(self, state, place, on_save_error="continue", ranks=world):
        self.manager, self.errors = CheckpointManager(place, Retention(0)), []
        self.committed = deque()
        self.saver = BackgroundSaver(
            self.manager, lambda *about: self.committed.append((*about, 0.0)), lambda e, _: self.errors.append(e)
        )
        self.order, self.moved = None, 0
        chief = SimpleNamespace(
            saver=self.saver,
            committed=self.committed,
            lock=SimpleNamespace(taken_by=None),
            listeners=SimpleNamespace(before_save=lambda step: None),
            settings={"a": "b"},
            restored=None,
        )
        config = SimpleNamespace(on_save_error=on_save_error, best_metric=None, best_mode=None, tf_random_seed=3)
        context = SimpleNamespace(
            chief=chief if ranks.is_chief else None,
            world=ranks,
            config=config,
            manager=self.manager,
            watchdog=SimpleNamespace(at=self._move),
            plan=SimpleNamespace(restored_step=None, roles=SimpleNamespace(model=1)),
        )
        self._state, self._parts = state, state.parts_read()
        self.checkpointing = Checkpointing(context, ranks, state)

    def _move(self, phase, step):
        self.moved += phase == "writing a checkpoint"

    def progress_at(self, step):
        return DataProgress(step, 8 * step, ((0, 8),))

    def save(self, step):
        assert self.checkpointing.save(step, self)

    def __enter__(self):
        self._parts.__enter__()
        self.saver.__enter__()
        return self

    def __exit__(self, *raised):
        self.saver.__exit__(*raised)
        self._parts.__exit__(*raised)


def plain(step, taken, place):
    """The file of the same state on one rank that holds all of it."""
    alone = first_state_of(World.alone(), "whole")
    fill(alone, step)
    rng = {name: np.array(array) for name, array in taken.rng.items()}
    about = Snapshot({}, {}, taken.progress, None, taken.world_size, 0.0, rng, 3, None, {"a": "b"})
    snapshot = replace(alone.snapshot(about), time=taken.time)
    return CheckpointManager(place, Retention(0)).save(snapshot) / "state.h5"


def contents(path):
    """All that a file holds, and where, but for the times at which HDF5 has made its parts."""
    found = {}

    def note(name, of):
        about = {key: np.asarray(value).tolist() for key, value in of.attrs.items()}
        found[name] = about, *((of.dtype, of.shape, of.id.get_offset(), of[()].tobytes()) if name.count("/") else ())

    with h5py.File(path) as file:
        note("", file)
        file.visititems(note)
    return path.stat().st_size, found


def saves_and_restores(layout):
    """Two saves at once while training goes on; the files are those of one rank, and all layouts restore them."""
    place = folder / layout.replace(" ", "-")
    if (state := first_state_of(world, layout)) is None:
        return
    assert bool(state.divided) == (layout != "whole")
    if layout == "pieces of columns":
        assert len(state.divided) == 3, "the kernel and its two slots"
    state.check_ranks()
    fill(state, 1)
    state.compare(1)
    with Saving(state, place) as saving:
        assert (state.parts is None) == (not state.divided)
        for step in (1, 2):
            saving.save(step)
            fill(state, step + 1)
        saving.checkpointing.wait(2)
        if world.is_chief:
            assert not saving.errors, saving.errors
            for step in (1, 2):
                taken = saving.manager.load(step)
                assert world.size == taken.world_size
                ours, theirs = saving.manager.path(step) / "state.h5", plain(step, taken, place / "plain")
                assert contents(ours) == contents(theirs), f"{layout}: another file than that of one rank"
    world.broadcast(None)
    for split in range(1, world.size + 1):  # on so many ranks, and on the rest at the same time
        ranks = world.split(0 if world.rank < split else 1)
        names, at = list(LAYOUTS), list(LAYOUTS).index(layout) + split
        for other in (names[at % len(names)], names[(at + 3) % len(names)]):
            if (restored := state_of(ranks, other)) is None:
                continue
            fill(restored, 9)
            restorer = Restorer(saving.manager, restored, ranks.rank, ranks.size, {"a": "b"})
            found = restorer.restore(ranks, 2)
            assert (found is not None) == ranks.is_chief
            check(restored, 2)
            fill(restored, 9)
            assert restorer.restore(ranks, None) is None
            check(restored, 9)


def shapes_are_compared():
    """Another model is refused before any rank reads its part, and a part that cannot be read ends all."""
    state = first_state_of(world, "columns")
    manager = CheckpointManager(folder / "columns", Retention(0))
    for changed, said in (("shape", r"kernel bfloat16 \[37, 52\]"), ("gone", "FileNotFoundError")):
        try:
            if changed == "gone" and world.rank:
                manager.reading = CheckpointManager(folder / "nowhere", Retention(0)).reading
            elif changed == "shape":
                state._all["model/sequential/wide/kernel"]._hpc_train_share = Share((37, 999))
            Restorer(manager, state, world.rank, world.size, {"a": "b"}).restore(world, 2)
        except (UserError, RankError, FileNotFoundError) as error:
            assert re.search(said, f"{type(error).__name__}: {error}"), error
        else:
            raise AssertionError("restored")
        state = first_state_of(world, "columns")


def errors():
    """NaN in another rank's part, an error that passes and one that does not: told, and the next save does."""
    state = first_state_of(world, "pieces")
    fill(state, 1)
    original = os.pwrite

    def fails(error):
        """Once, when the second of the kernel's slots is written."""
        seen = []

        def pwrite(descriptor, data, offset):
            seen.append(len(data))
            if len(data) == 2 * ROWS * WIDTH and seen.count(len(data)) == 3:
                raise OSError(error, os.strerror(error))
            return original(descriptor, data, offset)

        return patch("os.pwrite", pwrite)

    with Saving(state, folder / "errors") as saving, patch("hpc_train.checkpoint.disk_io.RETRY_WAITS_SECS", (0.01,)):
        with fails(errno.EIO):
            saving.save(1)
            saving.checkpointing.wait(1)
        if world.is_chief:
            assert (saving.errors, saving.manager.steps()) == ([], [1])
            whole = plain(1, saving.manager.load(1), folder / "plain")
            assert contents(saving.manager.path(1) / "state.h5") == contents(whole)
        with fails(errno.ENOSPC):
            saving.save(2)
            saving.save(3)
            saving.checkpointing.wait(3)
        if world.is_chief:
            assert [error.errno for error in saving.errors] == [errno.ENOSPC]
            assert saving.manager.steps() == [1, 3]
        last = state._all["optimizer/adam/sequential_wide_kernel_momentum"]
        values = last.numpy()
        if world.rank == world.size - 1:
            values[-1] = np.nan
        last.assign(values)
        saving.save(4)
        try:
            saving.checkpointing.wait(4)
        except (JobEndedError, RankError) as error:
            assert "not committed: optimizer variable adam/sequential_wide_kernel_momentum holds NaN" in str(error)
        else:
            raise AssertionError("NaN was saved")
        fill(state, 5)
        saving.save(5)
        saving.checkpointing.wait(5)
        if world.is_chief:
            assert saving.manager.steps() == [1, 3, 5]
            assert not saving.manager.left_over()
    halting = Saving(state, folder / "halts", "halt")
    try:
        with halting, fails(errno.ENOSPC):
            halting.save(1)
            halting.save(2)
    except (JobEndedError, RankError) as error:
        assert "No space left" in str(error)
    else:
        raise AssertionError("went on")


def warm_started():
    """The chief chooses the checkpoint, and the others read no more of it than their own parts."""
    share = uneven(0, (ROWS, WIDTH), world.rank, world.size)
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((5,)), Held(share, name="wide"), keras.layers.Dense(3)])
    manager = CheckpointManager(folder / "warm" / "checkpoints", Retention(0))
    if world.is_chief:
        for step in (1, 2):
            whole = {v.path: keras.Variable(np.zeros((share_of(v) or v).shape), dtype=v.dtype) for v in model.variables}
            there = {name: wanted(name, variable, step) for name, variable in whole.items()}
            manager.save(Snapshot(there, {}, DataProgress(step, 0, ((0, 1),)), None, 1, 1.0))
    world.broadcast(None)
    read, dataset = [], h5py.Dataset.__getitem__

    def read_noted(self, *key):
        found = dataset(self, *key)
        read.append((self.name, np.size(found)))
        return found

    sees = patch.object(CheckpointManager, "steps", (lambda _: [1, 2]) if world.is_chief else (lambda _: [1]))
    with sees, patch.object(h5py.Dataset, "__getitem__", read_noted):
        warm_start(world, model, WarmStartSettings(folder / "warm"), folder / "new")
    kernel = model.variables[0]
    assert kernel.numpy().tobytes() == wanted(kernel.path, kernel, 2).tobytes()
    if not world.is_chief:
        assert read == ([("/model/sequential.wide.kernel", share.size)] if share.size else []), read


def replicas():
    """Ranks with the same part are compared, before the first step, too, and one of them sends it to be exported."""
    if world.size < 4:
        return
    state = first_state_of(world, "mesh")
    fill(state, 1)
    begin = partial(Restorer(None, state, world.rank, world.size, {}).restore, world, None)
    begin()
    name = "model/sequential/wide/kernel"
    kernel = state._all[name]
    if world.rank == 3:
        kernel.assign(kernel.numpy() + np.ones((), kernel.numpy().dtype))
    for action, said in (
        (lambda: state.compare(7), f"variables of rank 3 differ from those of rank 1 after step 7, first {name}: "),
        (begin, f"{name}: ranks 1 and 3 hold the same part of it, but model_fn gives them other values"),
    ):
        try:
            action()
        except (JobEndedError, UserError) as error:
            assert said in str(error), error
        else:
            raise AssertionError(said)
    copies, gather = [], World.gather_arrays

    def gather_arrays(self, array):
        found = gather(self, array)
        copies.append(self.size)
        return found

    def build():
        return SimpleNamespace(variables=[keras.Variable(np.zeros((ROWS, WIDTH)), dtype=kernel.dtype)])

    model = SimpleNamespace(variables=[kernel], _flatten_layers=list)
    exported = WholeModel(world, model, build, [FinalExporter()])
    with patch.object(World, "gather_arrays", gather_arrays):
        exported.exporting(exported.refresh, int)
    assert set(copies) == ({2} if world.rank < 2 else set()), copies
    if world.is_chief:
        (found,) = exported.model.variables
        assert found.numpy().tobytes() == wanted(name, found, 1).tobytes()


def torn():
    """A rank that fails to copy its part ends the save before anything is written; one that ends sends no old state."""
    state = first_state_of(world, "columns")
    fill(state, 1)
    saving = Saving(state, folder / "torn")
    try:
        with saving:
            saving.save(1)
            saving.checkpointing.wait(1)
            fill(state, 2)
            if world.rank == world.size - 1:
                state.__dict__["_read"] = {}.popitem
            saving.save(2)
    except (KeyError, RankError) as error:
        assert "popitem" in str(error), error
    else:
        raise AssertionError("saved without a rank's part")
    world.broadcast(None)
    assert saving.manager.steps() == [1]
    share = Share((4 * world.size,), 0, 4 * world.rank, 4 * world.rank + 4)
    parts = RemoteParts(world, [(share, np.zeros(4))], int).__enter__()
    try:
        list(parts.arrays[0].blocks() if world.is_chief else ())
        failure = ZeroDivisionError()  # of each of the other ranks alone
    except OSError as error:
        assert "rank 1 is ending, and sends no state" in str(error), error
        failure = error
    assert world.is_chief == isinstance(failure, OSError)
    parts.__exit__(type(failure), failure, None)


def killed(victim):
    """The process of `victim` dies in the middle of a save; the rest is looked at from outside."""
    state = first_state_of(world, "columns")
    pids, original = world.all_gather(os.getpid()), os.pwrite

    def pwrite(descriptor, data, offset):
        if offset > 2 * MAX_WRITE_BYTES:
            os.kill(pids[victim], signal.SIGKILL)
            signal.pause()
        return original(descriptor, data, offset)

    with Saving(state, folder / "killed") as saving:
        for step in (1, 2):
            fill(state, step)
            with patch("os.pwrite", pwrite if step == 2 else original):
                saving.save(step)
                saving.checkpointing.wait(step)


def peak(reset=False):
    """The most memory that this process has had since it was last reset, in MiB."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) >> 10


def memory():
    """A save of 600 MB of which each rank holds a part: the chief needs some blocks more."""
    global ROWS
    ROWS = 600_000_000 // (4 * WIDTH * 3)  # with its two slots
    state = first_state_of(world, "columns")
    with Saving(state, folder / "memory") as saving:
        before = peak(reset=True)
        saving.save(2)
        saving.checkpointing.wait(2)
        assert peak() - before < 256, (before, peak())
        print(f"rank {world.rank}: {peak() - before} MiB more")


class Signal(ht.Hook):
    """Sends this process SIGTERM after a step."""

    def after_step(self, step, loss):
        if step == 10:
            os.kill(os.getpid(), signal.SIGTERM)


def job():
    """A job goes back, is stopped by a signal, goes on, and changes nothing in what ranks hold parts of."""
    bad = [world.rank == 1]
    table = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)

    def model_fn(params):
        share = uneven(0, (ROWS, WIDTH), world.rank, world.size)
        frozen = Held(share, name="wide", trainable=False)
        model = keras.Sequential([keras.Input((5,)), frozen, keras.layers.Dense(1)])
        frozen.kernel.assign(share.of(table))
        model.compile("adam", "mse")
        return model

    def rows(context):
        def batches():
            for number in range(40):
                x = np.ones((4, 5), np.float32)
                if number == 4 and bad[0]:
                    bad[0], x[0, 0] = False, np.nan
                yield x, np.ones((4, 1), np.float32)

        spec = (tf.TensorSpec((4, 5)), tf.TensorSpec((4, 1)))
        return tf.data.Dataset.from_generator(batches, output_signature=spec)

    config = ht.RunConfig(folder / "job", save_checkpoints_steps=2, on_nan="rollback", report=False, tf_random_seed=1)
    estimator, evaluation = ht.Estimator(model_fn, config), ht.EvalSpec(rows, steps=1)
    ht.train_and_evaluate(estimator, ht.TrainSpec(rows, max_steps=8), evaluation)
    assert not bad[0], "it has gone back"
    try:
        ht.train_and_evaluate(estimator, ht.TrainSpec(rows, max_steps=20, hooks=[Signal()]), evaluation)
    except SystemExit as stopped:
        assert stopped.code == 4, stopped
    else:
        raise AssertionError("it was not stopped")
    expected = table.tobytes()
    table[:] = 0  # what it begins with is not what it goes on with
    ht.train_and_evaluate(estimator, ht.TrainSpec(rows, max_steps=16), evaluation)
    if world.is_chief:
        manager = CheckpointManager(folder / "job" / "checkpoints", Retention(0))
        for step in manager.steps():
            kernel = next(array for name, array in manager.load(step).model.items() if name.endswith("wide/kernel"))
            assert kernel.tobytes() == expected, step
        assert manager.steps()[-1] == 16
    assert not [one.name for one in threading.enumerate() if one.name == "hpc_train-parts"]
    try:
        alone = ht.RunConfig(folder / "dedicated", chief="dedicated", report=False)
        ht.train_and_evaluate(ht.Estimator(model_fn, alone), ht.TrainSpec(rows, max_steps=1), evaluation)
    except UserError as error:
        assert "run.chief: dedicated is sent the state of one worker, but ranks hold parts of" in str(error), error
    else:
        raise AssertionError("a dedicated chief has no parts")


if what == "all":
    for name in LAYOUTS:
        saves_and_restores(name)
    if world.size > 1:
        shapes_are_compared()
        warm_started()
    replicas()
    errors()
    if world.size > 1:
        torn()
elif what == "job":
    job()
elif what == "memory":
    memory()
else:
    killed(0 if what == "kill-chief" else 1)
world.wait_asleep()
print(f"rank {world.rank} is fine", flush=True)
