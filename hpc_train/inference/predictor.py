"""Batch prediction: an exported model over shards, on one rank or many, without the job that trained it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.config.types import are_paddings
from hpc_train.data.hdf5.reader import Reader
from hpc_train.data.hdf5.shards import ShardSet
from hpc_train.data.sampling.work_split import Piece, dealt, output_paths, part_path, pieces_of
from hpc_train.data.writing import prediction_files
from hpc_train.data.writing.prediction_files import Origin
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.inference.loaded_export import LoadedExport


@dataclass(frozen=True)
class PredictionResult:
    """What a prediction did: rows it predicted now, rows of files that were there, and the seconds it took."""

    rows: int
    rows_before: int
    secs: float
    files: tuple[Path, ...]


def paddings_from(given: Sequence[str]) -> dict[str, Any]:
    """What rows of different lengths are padded with, by dataset, as in a job's `pad`.

    Args:
        given: `DATASET=VALUE` or `DATASET=VALUE:LENGTH`, each.

    Raises:
        UserError: Another form.
    """
    found: dict[str, Any] = {}
    for text in given:
        name, _, padding = text.rpartition("=")
        value, colon, length = padding.partition(":")
        try:
            number = float(value)
            found[name] = {"value": number, "length": int(length)} if colon else number
            are_paddings({name: found[name]})
        except ValueError:
            name = ""
        if not name:
            raise UserError(
                f"--pad {text}: is not allowed; allowed: DATASET=VALUE, such as tokens=0, to pad each batch to its "
                "longest row, or DATASET=VALUE:LENGTH, such as tokens=0:128"
            )
    return found


def inputs_from(export: LoadedExport, given: Sequence[str]) -> dict[str, str]:
    """The dataset that each input is read from.

    Args:
        given: `INPUT=DATASET`, or DATASET alone for the inputs in their order; without any, datasets are called as
            the inputs are, or as the export records.

    Raises:
        UserError: An input that the export has not, or too many or too few datasets.
    """
    names = list(export.inputs)
    if not given:
        return dict(export.datasets)
    if all("=" in text for text in given):
        pairs = dict(text.split("=", 1) for text in given)
        unknown = [name for name in pairs if name not in names]
        if unknown:
            raise UserError(f"--features: the export has no input {', '.join(unknown)}; it has {', '.join(names)}")
        return {**export.datasets, **pairs}
    if len(given) != len(names) or any("=" in text for text in given):
        raise UserError(
            f"--features {' '.join(given)}: the export takes {len(names)}: {', '.join(names)}; give as many datasets "
            "in that order, or INPUT=DATASET each"
        )
    return dict(zip(names, given, strict=True))


def predict_shards(
    world: World,
    export: LoadedExport,
    patterns: Sequence[str],
    out: str,
    batch_size: int = 256,
    features: Sequence[str] = (),
    overwrite: bool = False,
    report: Callable[[str], None] = print,
    pad: Sequence[str] = (),
) -> PredictionResult:
    """Predicts all rows of the shards that `patterns` name, a file for each shard. Collective.

    Each rank predicts rows of its own, in pieces that lie as hidden files beside the output until their shard is done.
    A run that is started again goes on from them. Files that are whole stay.

    Args:
        out: Where to: see output_paths. overwrite: Replaces files that are there.
        report: Prints a line, on any rank.
        pad: See paddings_from; of other datasets with rows of different lengths, as in training.

    Raises:
        UserError: The shards do not have what the export takes, or a file that is there holds something else; nothing
            has been written then. OSError: A file cannot be read or written.
    """
    began = time.monotonic()
    inputs = world.each(lambda: inputs_from(export, features))

    def prepare() -> dict[str, Any]:
        for name, dataset in inputs.items():
            if export.inputs[name] != export.inputs[next(n for n, d in inputs.items() if d == dataset)]:
                raise UserError(f"--features: inputs that take different things cannot both read {dataset!r}")
        wanted = {dataset: export.inputs[name] for name, dataset in inputs.items()}
        given = paddings_from(pad)
        as_trained = {
            d: export.pad[trained] for name, d in inputs.items() if (trained := export.datasets[name]) in export.pad
        }
        padding = {**as_trained, **given}
        shards = prediction_files.shards_to_predict(patterns, wanted, padding)
        used = {column.name: padding[column.name] for column in shards.features if column.takes_padding}
        if unused := [name for name in given if name not in used]:
            raise UserError(
                f"--pad {unused[0]}: the export reads no dataset of that name whose rows have different lengths"
            )
        paths = output_paths(shards.paths, patterns, out)
        digest = export.digest()
        origins = [_origin(export, digest, path, inputs, used, batch_size) for path in shards.paths]
        done = [not overwrite and _is_done(*row) for row in zip(paths, origins, shards.shard_rows, strict=True)]
        return {
            "shards": shards.to_json(),
            "paths": [str(path) for path in paths],
            "origins": [vars(origin) for origin in origins],
            "done": done,
        }

    plan = world.on_chief(prepare)
    shards, paths = ShardSet.from_json(plan["shards"]), [Path(path) for path in plan["paths"]]
    origins, done = [Origin(**origin) for origin in plan["origins"]], plan["done"]
    pieces = [piece for piece in pieces_of(shards.shard_rows, batch_size) if not done[piece.shard]]
    shares = dealt(pieces, world.size)
    work = _Work(export, shards, paths, origins, inputs, batch_size, report)
    owned = {shard: [p for p in pieces if p.shard == shard] for shard in sorted({p.shard for p in pieces})}
    mine = shares[world.rank]
    alone = [shard for shard, own in owned.items() if set(own) <= set(mine)]
    predicted = world.each(lambda: work.predict(mine, {shard: owned[shard] for shard in alone}))
    shared = [shard for shard, own in owned.items() if own[0] in mine and shard not in alone]
    world.each(lambda: work.join({shard: owned[shard] for shard in shared}))
    rows = sum(world.all_gather(predicted))
    return PredictionResult(rows, shards.rows - rows, time.monotonic() - began, tuple(paths))


def _origin(
    export: LoadedExport, digest: str, shard: str, inputs: dict[str, str], pad: dict[str, Any], batch_size: int
) -> Origin:
    status = Path(shard).stat()
    place = str(Path(shard).absolute())
    times = (status.st_size, status.st_mtime_ns)
    return Origin(str(export.path), export.step, digest, place, *times, inputs, pad, batch_size)


def _is_done(path: Path, origin: Origin, rows: int) -> bool:
    """Whether the file is there and whole; UserError where something else is there."""
    if not path.exists():
        return False
    if prediction_files.is_whole(path, origin, 0, rows):
        return True
    why = prediction_files.why_not_ours(path, origin)
    raise UserError(f"{path}: {why}; remove it, choose another --out, or give --overwrite to replace it")


@dataclass(frozen=True)
class _Work:
    """What one rank does, once it is known who does what."""

    export: LoadedExport
    shards: ShardSet
    paths: list[Path]
    origins: list[Origin]
    inputs: dict[str, str]
    batch_size: int
    report: Callable[[str], None]

    def predict(self, pieces: Sequence[Piece], whole: Mapping[int, Sequence[Piece]]) -> int:
        """Predicts `pieces` that are not there yet, joins the shards in `whole`, and returns the rows predicted."""
        predicted = 0
        with (
            Reader(self.shards, 2, 4 * self.batch_size, 4) as reader,
            ThreadPoolExecutor(1, thread_name_prefix="hpc_train-ahead") as ahead,
        ):
            for piece in pieces:
                part, origin = part_path(self.paths[piece.shard], piece), self.origins[piece.shard]
                if not prediction_files.is_whole(part, origin, piece.first, piece.end):
                    batches = prediction_files.read_batches(
                        reader, self.shards, piece, self.batch_size, origin.pad, ahead
                    )
                    prediction_files.write_predictions(part, origin, piece.first, piece.end, self._outputs(batches))
                    predicted += piece.rows
                if piece.shard in whole and piece == whole[piece.shard][-1]:
                    self.join({piece.shard: whole[piece.shard]})
        return predicted

    def _outputs(self, batches: Iterator[list[np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        for arrays in batches:
            by_dataset = dict(zip(dict.fromkeys(self.inputs.values()), arrays, strict=True))
            yield self.export.predict({name: by_dataset[dataset] for name, dataset in self.inputs.items()})

    def join(self, shards: Mapping[int, Sequence[Piece]]) -> None:
        """Makes the files of these shards of their parts."""
        for shard, pieces in shards.items():
            prediction_files.join_parts(self.paths[shard], self.origins[shard], pieces)
            self.report(f"{self.paths[shard]}: {pieces[-1].end:,} rows")
