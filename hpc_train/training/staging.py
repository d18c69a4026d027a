"""Stages the training data of a run: each node's ranks agree on who copies, and read from the copies."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
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
from hpc_train.text import listed, visible

log = logging.getLogger(__name__)


def check_folder(source: HDF5Input) -> None:
    """Looks at the folder of this node that shards are to be copied to. For ranks that read.

    Raises:
        UserError: It is missing, cannot be written or is not the node's own.
    """
    check(*choose(source.stage_dir, os.environ))


@contextmanager
def staged(world: World, source: HDF5Input, shards: ShardSet, reads: bool, copies: LocalCopies) -> Iterator[None]:
    """Copies `shards` to this node while the block runs; leaving it stops that. Collective to enter.

    The first rank of a node that reads copies for all of them, to files without names, which go with the last of
    these processes, however it ends. Ranks that cannot see that one's files read the shards where they are.

    Args:
        reads: Whether this rank does. copies: what its readers read from.

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
        if reads and copier is not None and offers[copier] is not None:
            count = len(shards.paths)
            if own:
                board, kind = own
                run = partial(copy_shards, shards.paths, shards.file_bytes, folder, kind, board, copies.add)
            else:
                offer = offers[copier]
                assert offer is not None
                try:
                    board = Board.of(offer, count)
                except OSError as error:
                    log.warning(f"stage: rank {world.rank} cannot read the copies of rank {copier} ({error.strerror})")
                    yield
                    return
                run = partial(find_copies, offer[0], count, board, copies.add)
            stack.callback(copies.close)
            stack.callback(board.close)
            if copies_here:
                stack.callback(board.withdraw)
            thread = _thread(run)
            stack.callback(lambda: thread.close() or stack.pop_all())  # one that hangs keeps what it uses
            thread.start()
        yield


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
