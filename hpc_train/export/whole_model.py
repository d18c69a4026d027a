"""The model that the chief exports where ranks hold parts of it, or where its tables go into shards."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hpc_train.config.exporters import Exporter
from hpc_train.data.memory import available_bytes
from hpc_train.distributed.layout import BLOCK_BYTES, lowest_holders
from hpc_train.distributed.placement import tables_outside
from hpc_train.distributed.share import Share, share_of
from hpc_train.distributed.tensors import dtype_of, nbytes_of, on_host
from hpc_train.distributed.world import World
from hpc_train.errors import UserError
from hpc_train.export.table_shards import Put, TableSource
from hpc_train.lazy import keras, tf
from hpc_train.model.one_rank import as_one_rank
from hpc_train.telemetry.units import size

log = logging.getLogger(__name__)
T = TypeVar("T")

GATHERED_BYTES = 4 * BLOCK_BYTES
"""What the chief receives of a variable at once."""


class WholeModel:
    """A model like `model`, whole in the chief's memory, or whole but for its tables.

    Its weights are those that ranks have once it is refreshed, and tables are streamed, while `exporting`.

    Args:
        world: The ranks that hold `model`. model: of which this rank holds its parts.
        build: Makes another one. Called on the chief.
        exporters: Those of the job, which say where tables go.

    Attributes:
        model: On the chief, in the host's memory; None on the other ranks.
        tables: On the chief, those that go into shards.

    Raises:
        UserError: The chief has no memory for it, or exporters ask for what does not go together.
    """

    def __init__(
        self, world: World, model: keras.Model, build: Callable[[], keras.Model], exporters: Sequence[Exporter]
    ) -> None:
        self._world, self._parts, self._fresh = world, model, True
        self._moved: Callable[[], None] = lambda: None
        self.tables: tuple[TableSource, ...] = ()

        def make() -> keras.Model | None:
            if not world.is_chief:
                return None
            with as_one_rank(), on_host():
                if not in_shards(exporters, model):
                    return build()
                with tables_outside():
                    made = build()
            self.tables = tuple(self._sources(made))
            return made

        self.model = world.each(make)

    @staticmethod
    def is_needed(model: keras.Model, exporters: Sequence[Exporter]) -> bool:
        """Whether `exporters` cannot export `model` as a rank has it."""
        shards = any(exporter.tables == "shards" for exporter in exporters)
        return bool(exporters) and (shards or any(map(share_of, model.variables)))

    def exporting(self, action: Callable[[], T], moved: Callable[[], None]) -> T:
        """Runs `action` on the chief, which may refresh the model and stream tables; its result. Collective.

        Args:
            moved: Called as long as it goes on.

        Raises: As World.on_chief.
        """
        self._fresh, self._moved = False, moved

        def led() -> T:
            try:
                return action()
            finally:
                self._world.broadcast(None)

        if self._world.is_chief:
            return self._world.on_chief(led)
        while (asked := self._world.broadcast(None)) is not None:
            self._bring(asked)
        return self._world.on_chief(led)

    def refresh(self) -> None:
        """Gives the model the weights that ranks have now, unless it has them. For the chief, while `exporting`."""
        if self._fresh:
            return
        assert self.model is not None, "the chief has it"
        for number, (variable, whole) in enumerate(zip(self._parts.variables, self.model.variables, strict=True)):
            if share_of(whole) is not None:  # a table, which is streamed
                continue
            array: Any = variable
            if (share := share_of(variable)) is not None:
                array = np.empty(share.shape, dtype_of(whole))
                self._world.broadcast(number)
                self._bring(number, partial(_put, array))
            with on_host():
                whole.assign(array)
            del array
        self._fresh = True

    def _sources(self, model: keras.Model) -> Iterable[TableSource]:
        numbers = {id(variable): number for number, variable in enumerate(model.variables)}
        for name, table in tables_of(model).items():
            share = share_of(table)
            assert share is not None, "it lies outside of the model"
            rows, width = share.shape
            stream = partial(self._stream, numbers[id(table)])
            yield TableSource(name, (rows, width), dtype_of(table), stream, lambda: self._moved())

    def _stream(self, number: int, put: Put) -> None:
        variable = self._parts.variables[number]
        if share_of(variable) is None:
            rows, width = variable.shape
            at_once = max(1, BLOCK_BYTES // (width * dtype_of(variable).itemsize))
            for begin in range(0, rows, at_once):
                put(begin * width, np.asarray(variable.value[begin : begin + at_once]))
                self._moved()
            return

        def put_rows(share: Share, first: int, values: np.ndarray) -> None:
            put(share.start * share.shape[1] + share.first + first, values)

        self._world.broadcast(number)
        self._bring(number, put_rows)

    def _bring(self, number: int, put: Callable[[Share, int, np.ndarray], None] | None = None) -> None:
        """Brings together a variable, of which the lowest rank with each part sends it to the chief. Collective.

        Args:
            put: Of the chief: takes elements of a share, and where in it they begin.

        Raises:
            What `put` has raised, once all has been sent.
        """
        variable = self._parts.variables[number]
        share = share_of(variable)
        assert share is not None, "ranks hold parts of it"
        (lowest,) = lowest_holders(self._world, [share])
        sends = bool(lowest[self._world.rank] == self._world.rank)
        senders = self._world.split(0 if sends else 1)
        senders.on_wait = self._world.on_wait
        failure = self._gather(senders, variable, share, put) if sends else None
        senders.free()
        if failure is not None:
            raise failure

    def _gather(
        self, senders: World, variable: Any, share: Share, put: Callable[[Share, int, np.ndarray], None] | None
    ) -> Exception | None:
        shares = [Share(**{**found, "shape": share.shape}) for found in senders.gather(asdict(share)) or []]
        longest, failure = -senders.lowest(-share.size), None
        own, dtype = tf.reshape(variable.value, [-1]), dtype_of(variable)  # which copies nothing
        step = max(1, min(BLOCK_BYTES, GATHERED_BYTES // senders.size) // dtype.itemsize)
        for begin in range(0, longest, step):
            block = np.zeros(min(step, longest - begin), dtype)
            sent = np.asarray(own[begin : begin + step])
            block[: sent.size] = sent
            gathered = senders.gather_arrays(block)
            self._moved()
            if put is None or gathered is None or failure is not None:
                continue
            try:
                for found, values in zip(shares, gathered, strict=True):
                    if (count := min(values.size, found.size - begin)) > 0:
                        put(found, begin, values[:count])
            except Exception as error:  # the others go on sending
                failure = error
        return failure


def _put(array: np.ndarray, share: Share, first: int, values: np.ndarray) -> None:
    """Puts elements of `share`, the first of which has this number in it, where they belong in the whole `array`."""
    box = array[(slice(None),) * share.axis + (slice(share.start, share.stop),)]
    box.flat[share.first + first : share.first + first + values.size] = values


def tables_of(model: keras.Model) -> dict[str, Any]:
    """See parallel.sharded_embedding, which a job without such layers does not import."""
    module = sys.modules.get("hpc_train.parallel.sharded_embedding")
    return {} if module is None else module.tables_of(model)


def in_shards(exporters: Sequence[Exporter], model: keras.Model) -> bool:
    """Whether the tables of `model` are exported as shards: where an exporter says so, or the whole does not fit here.

    Args:
        model: As this rank holds it; its variables' shares tell what is exported.

    Raises:
        UserError: There is no memory for either, or it cannot be done as exporters say.
    """
    tables, places = tables_of(model), {exporter.tables: exporter.name for exporter in exporters}
    served = next((exporter.name for exporter in exporters if exporter.serving_fn is not None), None)
    whole, shards = places.get("whole"), places.get("shards")
    if shards is not None and not tables:
        raise UserError(f"exporter {shards!r}: tables: shards, but the model has no ht.parallel.ShardedEmbedding")
    if shards is not None and whole is not None:
        raise UserError(
            f"exporters {whole!r} and {shards!r}: tables is whole for one and shards for the other; the chief builds "
            "one model for all exporters: say the same, or leave it out of one"
        )
    if shards is not None and served is not None:
        raise UserError(
            f"exporter {served!r}: has a serving_fn, for which there is no SavedModel where exporter {shards!r} has "
            "tables: shards; leave one of them out"
        )
    there = available_bytes()
    needed = bytes_needed(model, () if shards is None else tables.values())
    apart = bytes_needed(model, tables.values())
    if needed <= there:
        if tables:
            where = "as shards beside the model" if shards is not None else "in the model"
            log.info(f"exporters: tables are exported {where} ({', '.join(tables)})")
        return shards is not None
    if whole is None and shards is None and served is None and tables and apart <= there:
        log.warning(
            f"exporters: tables are exported as shards beside the model ({', '.join(tables)}): whole it needs "
            f"{size(needed)} on the chief, which has {size(there)}; hpc_train.load_exported_model loads such exports"
        )
        return True
    ways = "leave the exporters out, and export a checkpoint where there is more memory (hpc-train export)"
    if tables and apart <= there:
        ways = f"export tables as shards (tables: shards, without a serving_fn), or {ways}"
    what = "the model without its tables" if shards is not None else "the whole model, of which ranks hold parts,"
    raise UserError(
        f"exporters: {what} needs {size(needed)} on the chief, which has {size(there)}; {ways}, or give the chief's "
        "node more (resources.memory)"
    )


def bytes_needed(model: keras.Model, without: Collection[Any] = ()) -> int:
    """For the exported model, and what there is beside it that this rank does not have yet.

    That is its largest variable once more, which is brought together before it is assigned, and a copy of what the rank
    holds of `model`, for a checkpoint.

    Args:
        without: Variables of which the exported model has nothing.
    """
    outside = {id(variable) for variable in without}
    shapes = [
        ((share_of(v) or Share(tuple(v.shape))).shape, dtype_of(v)) for v in model.variables if id(v) not in outside
    ]
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in shapes]
    return sum(sizes) + max(sizes, default=0) + sum(map(nbytes_of, model.variables))
