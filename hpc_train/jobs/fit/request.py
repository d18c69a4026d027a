"""What `hpc-train fit` is asked for, and the commands that make schema and shards of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from hpc_train.config.row_split import FRACTION
from hpc_train.errors import UserError

Model = Literal["linear", "dnn", "wide_deep", "gbdt"]
ROWS_OF_A_SHARD, MANY_ROWS = 100, 800
"""At least, of fewer than MANY_ROWS rows."""
OF_SCHEMA = ("label", "task", "split", "seed", "split_by", "time", "columns", "separator", "missing", "most_values")
"""What `hpc-train schema` is asked, by the options that both commands have."""


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """What is asked for; options as on the command line, None where one is not given.

    Attributes:
        files: Of the table, and patterns.
        model: What is trained.
        eval: Files of another table, for evaluation; then all rows of `files` are for training.
        schema: One that people have reviewed, instead of what OF_SCHEMA asks for.
        settings: `KEY=VALUE` each, of job.yaml.
        ranks: How many.

    Raises:
        UserError: Options that exclude each other, or one that is lacking.
    """

    files: tuple[str, ...]
    model: Model = "dnn"
    eval: tuple[str, ...] = ()
    schema: Path | None = None
    label: str | None = None
    task: str | None = None
    split: float | None = None
    seed: int | None = None
    split_by: str | None = None
    time: str | None = None
    columns: str | None = None
    separator: str | None = None
    missing: str | None = None
    most_values: int | None = None
    settings: tuple[str, ...] = ()
    ranks: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in OF_SCHEMA if getattr(self, name) is not None]
        if self.schema is not None and given:
            raise UserError(f"--{_word(given[0])}: with --schema, that says it; leave it out, or edit the schema")
        if self.schema is None and self.label is None:
            raise UserError("--label COLUMN is missing: what is to be predicted; or give --schema FILE, which names it")
        splits = [name for name in ("split", "seed", "split_by", "time") if getattr(self, name) is not None]
        if self.eval and splits:
            raise UserError(f"--{_word(splits[0])}: with --eval, whose rows are for evaluation; give one of them")

    def schema_words(self, out: Path) -> list[str]:
        """The command that finds the schema of the table, and writes it to `out`."""
        words = ["schema", *_as_files(self.files), *self._options(OF_SCHEMA)]
        if not self.eval and (self.split, self.split_by, self.time) == (None, None, None):
            words.append(f"--split={FRACTION}")
        return [*words, f"--out={out}"]

    def shard_words(self, folder: Path, schema: Path, rows: int) -> Iterator[list[str]]:
        """The commands that write the shards: train-*.h5 and test-*.h5 in `folder`.

        Args:
            rows: For training. Of few there are fewer files than otherwise; a table for evaluation becomes one.
        """
        how = [f"--schema={schema}"]
        few = [f"--shards={max(1, rows // ROWS_OF_A_SHARD)}"] if rows < MANY_ROWS else []
        if self.eval:
            yield ["shard", str(folder / "train"), *_as_files(self.files), *how, *few]
            yield ["shard", str(folder / "test"), *_as_files(self.eval), *how, "--shards=1"]
        else:
            yield ["shard", f"{folder}/", *_as_files(self.files), *how, *few, "--split"]

    def _options(self, names: tuple[str, ...]) -> Iterator[str]:
        for name in names:
            if (value := getattr(self, name)) is not None:
                yield f"--{_word(name)}={value}"

    def to_json(self) -> dict[str, Any]:
        """What fit.json keeps: by the options' words, with the full paths of files."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name in ("files", "eval"):
                value = [str(Path(path).absolute()) for path in value]
            elif isinstance(value, Path):
                value = str(value.absolute())
            elif isinstance(value, tuple):
                value = list(value)
            if value not in (None, []):
                found[_word(each.name)] = value
        return found


def _as_files(paths: tuple[str, ...]) -> list[str]:
    """Paths that no command takes for options."""
    return [f"./{path}" if path.startswith("-") else path for path in paths]


def _word(name: str) -> str:
    """What an option is called."""
    return {"settings": "set"}.get(name, name.replace("_", "-"))
