"""Tables from files: those with the same columns follow each other, those with other columns are joined by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpc_train.arguments import shown
from hpc_train.data.ragged import joined
from hpc_train.data.sources.conversion import convert
from hpc_train.data.sources.recipe import Output, Part, PreparedTable, Range, Recipe, check_name
from hpc_train.data.sources.table import Block, Field, Numbers, Table, in_order, numbered
from hpc_train.errors import UserError, did_you_mean
from hpc_train.text import LISTED, listed


def combine(parts: Sequence[Part], recipe: Recipe) -> list[JoinedTable]:
    """The tables that `recipe` makes of `parts`, their rows still to be compared where they are not known yet.

    Raises:
        UserError: A column that is not there or cannot be written, or files that do not fit together.
    """
    stacks: dict[str, tuple[str, ...]] = {}
    chosen = [_outputs(part, recipe, stacks) for part in parts]
    known = dict.fromkeys(output.name for outputs in chosen for output in outputs)
    _check_given("--stack", recipe.stacks, stacks, [name for part in parts for name in part.names])
    _check_given("--columns", recipe.columns or (), known)
    for old, new in (recipe.columns or {}).items():
        if new != old and f"{new}={old}" in known:
            raise UserError(
                f"--columns {new}={old}: that is the name of a column, too; give NAME={new}={old} for that one, or "
                f"another name than {new!r} for {old!r}"
            )
    for name in recipe.targets:
        if name in known and recipe.renamed(name) and name not in (recipe.columns or {}).values():
            written = recipe.written(name)
            raise UserError(f"--dtype {name}=…: {name!r} is written as {written!r}; give --dtype {written}=…")
    own = [name for name in known if not recipe.renamed(name)]
    _check_given("--dtype", recipe.targets, dict.fromkeys([*own, *(recipe.columns or {}).values()]))
    kept = [(part, _kept(part, outputs, recipe)) for part, outputs in zip(parts, chosen, strict=True)]
    groups: dict[frozenset[str], list[PreparedTable]] = {}
    for part, outputs in kept:
        here = [output.name for output in outputs]
        for there, others in groups.items():
            if there & set(here) and there != set(here):
                raise UserError(
                    f"{part.name} gives {listed(here)}, but {others[0].name} gives {listed(others[0].fields)}: files "
                    "that follow each other have the same columns (--columns chooses and renames), others have none in "
                    "common"
                )
        groups.setdefault(frozenset(here), []).append(PreparedTable(part, outputs))
    return [JoinedTable(group) for group in groups.values()]


def _check_given(
    option: str, names: Iterable[str], given: Collection[str], columns: Iterable[str] | None = None
) -> None:
    """UserError where `option` has a name that is none of those `given`; the message lists those, or `columns`."""
    for name in names:
        if name not in given:
            available = list(dict.fromkeys(columns or given))
            near = did_you_mean(name, available)
            raise UserError(
                f"{option}: nothing gives a column {shown(name)}; {near}the columns are {listed(available)}"
            )


def _outputs(part: Part, recipe: Recipe, stacks: dict[str, tuple[str, ...]]) -> list[Output]:
    """All columns of one file after stacking; `stacks` keeps what a range means, for the files that follow."""
    place = {name: i for i, name in enumerate(part.names)}
    outputs = {i: Output(name, (name,), False) for name, i in place.items()}
    used: set[int] = set()
    for name, inputs in recipe.stacks.items():
        if name not in stacks and isinstance(inputs, Range) and inputs.first in place and inputs.last in place:
            first, last = place[inputs.first], place[inputs.last]
            if first > last:
                raise UserError(f"--stack {name}: {inputs.first} comes after {inputs.last} in {part.name}")
            inputs = tuple(part.names[first : last + 1])
        names = stacks.get(name, (inputs.first, inputs.last) if isinstance(inputs, Range) else inputs)
        missing = [n for n in names if n not in place]
        if len(missing) == len(names):
            continue
        if missing:
            raise UserError(f"--stack {name}: {part.name} has no column {missing[0]!r}; it has {listed(place)}")
        stacks[name] = tuple(names)
        used |= {place[n] for n in names}
        for n in names:
            outputs.pop(place[n], None)
        outputs[min(place[n] for n in names)] = Output(name, tuple(names), True)
    found = [outputs[i] for i in sorted(outputs)]
    twice = {name for name, times in Counter(o.name for o in found).items() if times > 1}
    if twice:
        raise UserError(f"--stack {min(twice)}: {part.name} has a column of that name already; choose another")
    return found


def _kept(part: Part, outputs: Sequence[Output], recipe: Recipe) -> list[Output]:
    """Those that are written, under the names and in the types that they are to have."""
    kept = [o for o in outputs if recipe.written(o.name) is not None]
    if not kept:
        names = [o.name for o in outputs]
        raise UserError(f"{part.name}: none of its columns is wanted: it has {listed(names)}")
    refused = {name: part.refused[name] for o in kept for name in o.inputs if name in part.refused}
    if refused:
        good = [o for o in (kept if recipe.columns else outputs) if not any(name in refused for name in o.inputs)]
        raise UserError(f"{part.name}: cannot write {_reasons(part, refused, [_chosen(o, recipe) for o in good])}")
    made = []
    for output in kept:
        new = recipe.written(output.name) or output.name
        check_name(new)
        made.append(replace(output, name=new, target=recipe.targets.get(new)))
    return made


def _chosen(output: Output, recipe: Recipe) -> str:
    """How `--columns` names a column."""
    new = recipe.written(output.name)
    return output.name if new in (None, output.name) else f"{new}={output.name}"


def _reasons(part: Part, refused: Mapping[str, str], good: Sequence[str]) -> str:
    """Which columns cannot be written, why, and what to do."""
    reasons = listed((f"{shown(name)} ({reason})" for name, reason in refused.items()), "; ")
    remedy = f". --columns {','.join(good)} leaves that out" if good and len(good) <= LISTED else "; see --columns"
    texts = [name for name in refused if name in part.texts]
    text = f"; --dtype {texts[0]}=text writes text as it is" if texts else ""
    return f"{reasons}{remedy}{text}"


class JoinedTable(Table):
    """The rows of several tables with the same columns, one after the other."""

    def __init__(self, parts: Sequence[PreparedTable]) -> None:
        self._parts = parts
        first = parts[0]
        self.fields = dict(first.fields)
        for part in parts[1:]:
            for name, field in part.fields.items():
                self.fields[name] = _common(self.fields[name], field, first, part)
        counts = [part.rows for part in parts]
        self.rows = None if None in counts else sum(n for n in counts if n is not None)
        self.random = all(part.random for part in parts)
        self.name = first.name if len(parts) == 1 else f"{first.name} … {parts[-1].name}"
        self._starts = np.cumsum([0, *(n or 0 for n in counts)])
        self._reading = 0

    def blocks(self, start: int = 0) -> Iterator[Block]:
        for i, (part, first) in enumerate(zip(self._parts, self._starts, strict=False)):
            self._reading = i
            if part.rows is None or start < first + part.rows:
                yield from part.blocks(max(0, start - int(first)))

    def share(self) -> float | None:
        """How much of it `blocks` has read, 0 to 1, where the files allow to know."""
        share = self._parts[self._reading].share()
        return None if share is None else (self._reading + share) / len(self._parts)

    def gather(self, rows: np.ndarray) -> Block:
        if len(self._parts) == 1:
            return self._parts[0].gather(rows)

        def read(ascending: np.ndarray) -> Block:
            bounds = np.searchsorted(ascending, self._starts)
            found = [
                part.gather(ascending[a:b] - first)
                for part, first, a, b in zip(self._parts, self._starts, bounds, bounds[1:], strict=False)
                if b > a
            ]
            return {name: joined([block[name] for block in found]) for name in self.fields}

        return in_order(rows, read)


def _common(a: Field, b: Field, first: PreparedTable, part: PreparedTable) -> Field:
    numbers = {a.dtype, b.dtype} == {np.dtype(np.int64), np.dtype(np.float64)}
    if (a.shape, a.ragged) == (b.shape, b.ragged) and (
        a.dtype == b.dtype or (numbers and first.rows is None and part.rows is None)
    ):
        return replace(a if a.dtype.kind == "f" else b, mean_bytes=max(a.mean_bytes, b.mean_bytes))
    raise UserError(
        f"{part.name}: column {b.name!r} is {b}, but {a} in {first.name}; files that follow each other need the same"
    )


class ConvertedTable(Table):
    """A table whose columns of floats ("f"), or of integers ("i"), are converted to one type."""

    def __init__(self, table: Table, kinds: Mapping[str, np.dtype[Any]], fixed: Mapping[str, Any]) -> None:
        self._table = table
        wanted = {name: kinds.get(field.dtype.kind.replace("u", "i")) for name, field in table.fields.items()}
        self._dtypes = {n: dtype for n, dtype in wanted.items() if dtype is not None and n not in fixed}
        self.name, self.rows, self.random = table.name, table.rows, table.random
        self.fields = {n: replace(f, dtype=self._dtypes.get(n, f.dtype)) for n, f in table.fields.items()}

    def blocks(self, start: int = 0) -> Iterator[Block]:
        for rows, block in numbered(self._table.blocks(start), start):
            yield self._convert(block, rows)

    def gather(self, rows: np.ndarray) -> Block:
        return self._convert(self._table.gather(rows), rows)

    def _convert(self, block: Block, rows: Numbers) -> Block:
        return {
            name: convert(array, self._dtypes.get(name, array.dtype), self.name, name, rows)
            for name, array in block.items()
        }
