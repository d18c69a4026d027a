"""What a batch prediction writes where, and which rank predicts which rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import UserError

MAX_PIECE_ROWS = 1 << 16
PIECES = 256
"""About so many pieces all rows are cut into, however many ranks there are: others may go on with the parts."""


@dataclass(frozen=True)
class Piece:
    """Rows `first` to before `end` of shard number `shard`."""

    shard: int
    first: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.first


def output_paths(shards: Sequence[str], patterns: Sequence[str], out: str) -> list[Path]:
    """The file that the predictions of each shard go to.

    Args:
        shards: The files; patterns: what they were named by.
        out: A path with at most one `*`, in its last part. It is replaced by what the `*` of the pattern matches in the
            shard's name, or where that is not clear (several patterns, or no single `*` in the last part of one) by
            the shard's name without its suffix. A path without `*` is for a single shard.

    Raises:
        UserError: Two shards would go to the same file, or one into itself.
    """
    place = Path(out)
    if "*" in str(place.parent) or place.name.count("*") > 1:
        raise UserError(f"--out {out}: one * is allowed, in the name of the file")
    if "*" not in place.name and len(shards) > 1:
        raise UserError(f"--out {out}: {len(shards)} shards need as many files; put a * into it, as in preds-*.h5")
    pattern = Path(patterns[0]).name if len(patterns) == 1 else ""
    paths = [place.with_name(place.name.replace("*", _star(Path(shard), pattern))) for shard in shards]
    taken: dict[str, str] = {}
    for shard, path in zip(shards, paths, strict=True):
        key = str(path.absolute())
        if key in taken:
            raise UserError(f"--out {out}: the predictions of {taken[key]} and of {shard} would both go to {path}")
        taken[key] = shard
    for shard in shards:
        if str(Path(shard).absolute()) in taken:
            raise UserError(f"--out {out}: {shard} is one of the shards that are read")
    return paths


def _star(shard: Path, pattern: str) -> str:
    """What replaces the `*` of `--out`."""
    before, star, after = pattern.partition("*")
    if star and not any(sign in before + after for sign in "*?[") and shard.name.startswith(before):
        return shard.name[len(before) : len(shard.name) - len(after)]
    return shard.stem


def pieces_of(shard_rows: Sequence[int], batch_size: int) -> list[Piece]:
    """All rows in order, in pieces of whole batches, whatever the number of ranks.

    So every row is in the same batch on any number of ranks: predictions depend on it in their last bits.
    """
    wanted = min(MAX_PIECE_ROWS, -(-sum(shard_rows) // PIECES))
    size = batch_size * max(1, -(-wanted // batch_size))
    return [
        Piece(shard, first, min(first + size, rows))
        for shard, rows in enumerate(shard_rows)
        for first in range(0, rows, size)
    ]


def dealt(pieces: Sequence[Piece], size: int) -> list[list[Piece]]:
    """`pieces` for each of `size` ranks: contiguous, and as even in rows as whole pieces can be."""
    total = sum(piece.rows for piece in pieces)
    parts: list[list[Piece]] = [[] for _ in range(size)]
    done = 0
    for piece in pieces:
        middle = done + piece.rows / 2
        parts[min(size - 1, int(middle * size / total))].append(piece)
        done += piece.rows
    return parts


def part_path(out: Path, piece: Piece) -> Path:
    """The hidden file that holds the predictions of `piece` until all of its shard's are there."""
    return out.with_name(f".{out.name}.rows-{piece.first:06d}-{piece.end:06d}.part")
