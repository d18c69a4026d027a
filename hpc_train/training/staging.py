"""Stages the training data of a run: each node's ranks agree on who copies, and read from the copies."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from hpc_train.config.hdf5_input import HDF5Input
from hpc_train.data.hdf5.layout import Opaque
from hpc_train.data.hdf5.local_copies import LocalCopies
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.staging.board import Board, Offer
from hpc_train.data.staging.folder import check, choose
from hpc_train.data.staging.stager import Thread, copy_shards, find_copies
from hpc_train.distributed.world import World
from hpc_train.telemetry.reporter import Reporter
from hpc_train.telemetry.staging import STAGED_BYTES, STAGED_SECS, StagedData
from hpc_train.text import listed, visible

log = logging.getLogger(__name__)


def check_folder(source: HDF5Input) -> None:
    """Looks at the folder of this node that shards are to be copied to. For ranks that read.

    Raises:
        UserError: It is missing, cannot be written or is not the node's own.
    """
    check(*choose(source.stage_dir, os.environ))


class _Copied:
    """Counts the copies that this rank makes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes, self._began = sizes, time.monotonic()
        self._told = {STAGED_BYTES: 0.0, STAGED_SECS: 0.0}

    def add(self, number: int) -> None:
        self._told = {
            STAGED_BYTES: self._told[STAGED_BYTES] + self._sizes[number],
            STAGED_SECS: time.monotonic() - self._began,
        }

    def told(self) -> dict[str, float]:
        """For the chief."""
        return self._told


@contextmanager
def staged(
    world: World,
    source: HDF5Input,
    shards: ShardSet,
    reads: bool,
    copies: LocalCopies,
    reporter: Reporter | None,
) -> Iterator[Callable[[], dict[str, float]]]:
    """Copies `shards` to this node while the block runs; leaving it stops that. Collective to enter.

    The first rank of a node that reads copies for all of them, to files without names, which go with the last of
    these processes, however it ends. Ranks that cannot see that one's files read the shards where they are.

    Args:
        reads: Whether this rank does. copies: what its readers read from. reporter: the chief's.

    Returns:
        What tells the chief of this rank's copies, for Reporter.note_staged; empty where another rank makes them.

    Raises:
        UserError: On a node, the folder is missing, cannot be written or is not the node's own.
    """
    everyone = world.all_gather([world.host, reads])
    copier = next((rank for rank, each in enumerate(everyone) if each == [world.host, True]), None)
    copies_here = copier == world.rank
    folder, named_by = choose(source.stage_dir, os.environ)
    with ExitStack() as stack:

        def open_board() -> tuple[Board, str] | None:
            kind = check(folder, named_by) if copies_here else ""
            try:
                return (Board.new(folder, len(shards.paths)), kind) if copies_here else None
            except OSError as error:
                log.warning(visible(f"stage: {folder}: {error.strerror or error}; shards are read where they are"))
                return None

        own = world.each(open_board)
        offers: list[Offer | None] = world.all_gather(own[0].offer if own else None)
        if world.is_chief:
            _note_what_cannot_be(shards)
        nodes = sum(offer is not None for offer in offers)
        if reporter is not None and nodes:
            reporter.staged = StagedData(str(folder), sum(shards.file_bytes), nodes)
            reporter.note_staged({})
        told: Callable[[], dict[str, float]] = dict
        if reads and copier is not None and offers[copier] is not None:
            count = len(shards.paths)
            if own:
                board, kind = own
                copied = _Copied(shards.file_bytes)
                told = copied.told

                def use(number: int, copy: int) -> None:
                    copies.add(number, copy)
                    copied.add(number)

                run = partial(copy_shards, shards.paths, shards.file_bytes, folder, kind, board, use)
            else:
                offer = offers[copier]
                assert offer is not None
                try:
                    board = Board.of(offer, count)
                except OSError as error:
                    log.warning(f"stage: rank {world.rank} cannot read the copies of rank {copier} ({error.strerror})")
                    yield told
                    return
                run = partial(find_copies, offer[0], count, board, copies.add)
            stack.callback(copies.close)
            stack.callback(board.close)
            if copies_here:
                stack.callback(board.withdraw)
            thread = _thread(run)
            stack.callback(lambda: thread.close() or stack.pop_all())  # one that hangs keeps what it uses
            thread.start()
        yield told


def _thread(run: Callable[[Thread], None]) -> Thread:
    thread = Thread(lambda: run(thread))
    return thread


def _note_what_cannot_be(shards: ShardSet) -> None:
    """Logs which datasets are read by the HDF5 library, which opens the shards themselves."""
    each = zip(shards.columns, zip(*shards.layouts, strict=True), strict=True)
    names = sorted({column.name for column, layouts in each if any(isinstance(one, Opaque) for one in layouts)})
    if names:
        log.warning(
            f"stage: {listed(names)} can be read by the HDF5 library alone, which reads the shards where they are"
        )
