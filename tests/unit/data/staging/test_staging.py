"""Staging on one machine: which folder, copies and what makes them fail, and readers that change over to them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpc_train import EvalSpec, HDF5Input, UserError
from hpc_train.data.hdf5 import contiguous
from hpc_train.data.hdf5.local_copies import LocalCopies
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import ShardSet, find_shards
from hpc_train.data.staging import copy, folder, stager
from hpc_train.data.staging.board import PENDING, READY, REFUSED, Board, open_offered
from hpc_train.data.staging.copy import ChangedError, StoppedError, copy_of
from hpc_train.data.staging.stager import Thread, copy_shards, find_copies

MOUNTS = r"""22 1 0:20 / / rw - ext4 /dev/sda rw
23 22 0:21 / /dev/shm rw - tmpfs tmpfs rw
24 22 0:22 / /scr\040atch rw shared:1 - lustre mgs:/x rw
25 22 0:23 / /scr rw - nfs4 a:/b rw
26 22 0:24 / /scr rw - xfs /dev/sdb rw
"""


def never() -> bool:
    return False


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shmem", "ext4"),
        ("/scr atch/me", "lustre"),
        ("/scr/me", "xfs"),
        ("/scratch", "ext4"),
    ],
)
def test_the_type_of_a_file_system_is_that_of_the_closest_and_last_mount(path: str, kind: str) -> None:
    assert folder.type_among(MOUNTS, path) == kind


def test_the_folder_is_the_given_one_else_slurms_else_shared_memory() -> None:
    slurm = {"SLURM_TMPDIR": "/slurm", "TMPDIR": "/tmp"}
    assert folder.choose("/mine", slurm) == (Path("/mine"), "stage_dir")
    assert folder.choose(None, slurm)[0] == Path("/slurm")
    assert folder.choose(None, {"TMPDIR": "/tmp"})[0] == Path("/dev/shm")


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "fuseblk", "beegfs"])
def test_a_folder_that_nodes_share_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "type_of", lambda path: kind)
    with pytest.raises(UserError, match=f"stage_dir: .*{kind}.* not the node's own"):
        folder.check(tmp_path, "stage_dir")


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder of this node"):
        folder.check(tmp_path / "none", "stage_dir")
    assert folder.check(tmp_path, "stage_dir")
    assert folder.room_bytes(tmp_path, "ext4") > 0


def test_a_copy_in_memory_takes_half_of_what_the_job_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "available_bytes", lambda: 1000)
    assert folder.room_bytes(tmp_path, "tmpfs") == 500


@pytest.mark.parametrize("has_tmpfile", [True, False])
def test_a_copy_has_the_bytes_and_no_name(has_tmpfile: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_tmpfile:
        opened = os.open

        def refuse(path: str, flags: int, *more: int, **how: int) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "not supported")
            return opened(path, flags, *more, **how)

        monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(copy, "PIECE_BYTES", 1000)
    data, place = os.urandom(4500), tmp_path / "node"
    place.mkdir()
    (tmp_path / "shard").write_bytes(data)
    made = copy_of(str(tmp_path / "shard"), len(data), place, never)
    assert os.pread(made, 5000, 0) == data
    assert list(place.iterdir()) == []
    assert os.fstat(made).st_mode & 0o777 == 0o600
    os.close(made)


def test_a_shard_that_changes_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy, "PIECE_BYTES", 1000)
    shard = tmp_path / "shard"
    shard.write_bytes(bytes(3000))
    with pytest.raises(ChangedError, match="has 3000 bytes, and had 2999"):
        copy_of(str(shard), 2999, tmp_path, never)

    def write() -> bool:
        shard.write_bytes(bytes(range(250)) * 12)
        return False

    with pytest.raises(ChangedError, match="changed while"):
        copy_of(str(shard), 3000, tmp_path, write)
    with pytest.raises(StoppedError):
        copy_of(str(shard), 3000, tmp_path, lambda: True)
    with pytest.raises(ChangedError):
        copy_of(str(shard), 3000, tmp_path, lambda: shard.write_bytes(b"") > 0)
    assert list(tmp_path.iterdir()) == [shard]


def test_a_copy_with_other_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = tmp_path / "shard"
    shard.write_bytes(b"abc" * 100)
    write = os.pwrite
    monkeypatch.setattr(copy.os, "pwrite", lambda fd, data, place: write(fd, bytes(len(data)), place))
    with pytest.raises(OSError, match="other bytes"):
        copy_of(str(shard), 300, tmp_path, never)


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardSet:
    monkeypatch.setattr(contiguous, "MAX_HELD_BYTES", 0)
    random = np.random.default_rng(1)
    for name, how in (("a", {}), ("b", {}), ("c", {"chunks": (8, 16), "compression": "gzip"})):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=random.integers(1, 99, (4000, 16)), **how)
    return find_shards(HDF5Input(str(tmp_path / "*.h5"), features="x", label=()))


def run(work: Callable[[Thread], None]) -> None:
    thread = Thread(lambda: work(thread))
    thread.start()
    thread._thread.join()
    assert thread.close()


def test_readers_open_and_to_come_read_from_the_copies_of_another_rank(
    shards: ShardSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node, count = tmp_path / "node", len(shards.paths)
    node.mkdir()
    rows, own, others = np.random.default_rng(2).permutation(shards.rows), LocalCopies(), LocalCopies()
    board = Board.new(node, count)
    other = Board.of(board.offer, count)
    with Reader(shards, 2, cached_rows=64) as reader, Reader(shards, 2, cached_rows=64) as second:
        own.attach(reader)
        others.attach(second)
        expected = reader.read(rows)[0].copy()
        second.read(rows[:10])
        with caplog.at_level("INFO"):
            run(lambda t: copy_shards(shards.paths, shards.file_bytes, node, "ext4", board, own.add, t))
        run(lambda t: find_copies(os.getpid(), count, other, others.add, t))
        for path in shards.paths:  # in place: what is mapped of the shards themselves has zeros from here on
            with Path(path).open("r+b") as file:
                file.write(bytes(Path(path).stat().st_size))
        assert np.array_equal(reader.read(rows)[0], expected)
        assert np.array_equal(second.read(rows)[0], expected)
        board.close()
        own.close()  # the other rank keeps what it has
        assert np.array_equal(second.read(rows)[0], expected)
    of_maps = rows < 8000  # the index of a chunked dataset is read from the shard itself
    with Reader(shards, 2, cached_rows=64) as third:
        others.attach(third)
        assert np.array_equal(third.read(rows[of_maps])[0], expected[of_maps])
    others.close()
    other.close()
    assert "stage: 3 of 3 shards" in caplog.text
    assert list(node.iterdir()) == []


def test_what_does_not_fit_or_fails_is_read_where_it_is(
    shards: ShardSet, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(stager, "COPIES_AT_ONCE", 1)
    rooms = iter([1 << 40, shards.file_bytes[0], 1 << 30, shards.file_bytes[2] - 1])
    monkeypatch.setattr(stager, "room_bytes", lambda *a: next(rooms))
    make = stager.copy_of

    def fail_on_b(path: str, *more: object) -> int:
        if path.endswith("b.h5"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(stager, "copy_of", fail_on_b)
    board = Board.new(tmp_path, 3)
    assert [state for state, *_ in board.read()] == [PENDING] * 3

    def use(number: int, descriptor: int) -> None:
        taken.append(number)

    with caplog.at_level("INFO"):
        run(lambda t: copy_shards(shards.paths, shards.file_bytes, tmp_path, "ext4", board, use, t))
    assert taken == [0]
    assert [state for state, *_ in board.read()] == [READY, REFUSED, REFUSED]
    assert "b.h5: No space left on device; it is read where it is" in caplog.text
    assert "stage: 1 of 3 shards" in caplog.text
    assert "the others are read where they are" in caplog.text


def test_a_copy_that_cannot_be_read_gives_way_to_the_shard(shards: ShardSet, tmp_path: Path) -> None:
    rows, copies = np.arange(shards.rows), LocalCopies()
    (tmp_path / "short").write_bytes(b"")
    with Reader(shards, 2, cached_rows=64) as reader:
        copies.attach(reader)
        expected = reader.read(rows)[0].copy()
        broken = os.open(tmp_path / "short", os.O_WRONLY)  # no read succeeds: EBADF
        copies.add(0, broken)
        assert np.array_equal(reader.read(rows)[0], expected)
    copies.close()


def test_another_file_in_the_place_of_a_copy_is_not_taken_for_it(tmp_path: Path) -> None:
    board = Board.new(tmp_path, 1)
    process, number, device, inode = board.offer
    with pytest.raises(OSError, match="is not the rank"):
        open_offered((process, number, device, inode + 1))
    board.close()


def test_an_error_of_the_thread_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    run(lambda t: (_ for _ in ()).throw(ValueError("odd")))
    assert "stage: ValueError: odd; shards are read where they are" in caplog.text


def test_a_rank_that_ends_first_is_no_cause_for_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board, taken = Board.new(tmp_path, 2), []
    copy = os.open(tmp_path, os.O_RDONLY)
    board.note(0, READY, copy)

    def find() -> None:
        run(lambda t: find_copies(os.getpid(), 2, board, lambda number, _: taken.append(number), t))

    def gone(offer: object, withdrawn: bool) -> int:
        if withdrawn:
            board.withdraw()
        raise OSError("gone")

    monkeypatch.setattr(stager, "open_offered", lambda offer: gone(offer, True))
    find()
    assert (taken, caplog.text) == ([], "")
    board.note(0, READY, copy)
    monkeypatch.setattr(stager, "open_offered", lambda offer: gone(offer, False))
    find()
    assert "stage: OSError: gone" in caplog.text
    board.close()
    os.close(copy)


def test_a_copy_that_training_does_not_wait_for_is_no_cause_for_a_warning(
    shards: ShardSet, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stager, "COPIES_AT_ONCE", 1)
    board = Board.new(tmp_path, 3)
    thread = Thread(lambda: copy_shards(shards.paths, shards.file_bytes, tmp_path, "ext4", board, use, thread))

    def use(number: int, descriptor: int) -> None:
        thread._stop.set()

    with caplog.at_level("INFO"):
        thread.start()
        thread._thread.join()
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "stage: training ended when 1 of 3 shards were copied")
    ]
    board.close()


def test_wrong_values_are_refused() -> None:
    with pytest.raises(UserError, match=r"stage_dir.*`stage` is 'none'"):
        HDF5Input("a.h5", stage_dir="/scratch")
    with pytest.raises(UserError, match="absolute path"):
        HDF5Input("a.h5", stage="node", stage_dir="scratch")
    with pytest.raises(UserError, match="stage"):
        HDF5Input("a.h5", stage="ram")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`stage` is for training"):
        EvalSpec(HDF5Input("a.h5", stage="node"))


def test_the_room_is_shared_by_all_copies(shards: ShardSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of what is left is not taken again for each of them."""
    taken: list[int] = []
    monkeypatch.setattr(stager, "room_bytes", lambda *a: sum(shards.file_bytes[:2]))
    board = Board.new(tmp_path, 3)

    def use(number: int, descriptor: int) -> None:
        taken.append(number)

    run(lambda t: copy_shards(shards.paths, shards.file_bytes, tmp_path, "tmpfs", board, use, t))
    assert sorted(taken) == [0, 1]
    assert [state for state, *_ in board.read()] == [READY, READY, REFUSED]


def test_what_is_being_written_does_not_count_twice(
    shards: ShardSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, sizes, copy_of = shards.paths * 3, shards.file_bytes * 3, stager.copy_of
    written: list[int] = []

    def copy_and_count(path: str, size: int, folder: Path, is_stopped: Callable[[], bool]) -> int:
        written.append(size)
        return copy_of(path, size, folder, is_stopped)

    monkeypatch.setattr(stager, "copy_of", copy_and_count)
    monkeypatch.setattr(stager, "room_bytes", lambda *a: sum(sizes) - sum(written))
    board, copies = Board.new(tmp_path, len(paths)), LocalCopies()
    run(lambda t: copy_shards(paths, sizes, tmp_path, "ext4", board, copies.add, t))
    assert [state for state, *_ in board.read()] == [READY] * len(paths)
    copies.close()
    board.close()
