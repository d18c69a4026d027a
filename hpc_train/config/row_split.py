"""RowSplit: which rows of a table are to evaluate with; `split:` of a schema.

split: {fraction: 0.2, seed: 0}                              # drawn by chance
split: {fraction: 0.2, seed: 0, by: customer}                # all rows of a fifth of the customers
split: {fraction: 0.2, time: sold, after: 2024-05-01}        # the latest
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

FRACTION = 0.2
"""Where nothing else is said."""


def _as_text(value: Any) -> Any:
    """Dates are texts in a schema, however they were read."""
    return str(value) if hasattr(value, "isoformat") else value


class RowSplit(BaseModel):
    """Which rows are to evaluate with.

    Attributes:
        fraction: How many of all rows; of the values of `by`.
        seed: Which ones, where chance decides.
        by: A column; rows with one value of it are on one side. Those without a value count as rows with one.
        time: A column of numbers or dates; rows whose value is larger than `after` are to evaluate with.
        after: A number, or of dates a text as ISO 8601 has it, in UTC. None: not known yet.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fraction: Annotated[float, Field(gt=0, lt=1)]
    seed: Annotated[int, Field(ge=0)] = 0
    by: str | None = None
    time: str | None = None
    after: Annotated[float | str | None, BeforeValidator(_as_text)] = None

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> RowSplit:
        if self.by is not None and self.time is not None:
            raise ValueError("give `by` or `time`, one of them")
        if self.after is not None and self.time is None:
            raise ValueError("`after` is for `time`: a column of numbers or dates")
        if isinstance(self.after, str):
            seconds_of(self.after)
        return self

    @property
    def column(self) -> str | None:
        """The column that decides; None: the rows' numbers do."""
        return self.by or self.time

    @property
    def border(self) -> float:
        """`after` as values of columns are: dates in seconds since 1970-01-01, UTC."""
        assert self.after is not None, "known"
        return seconds_of(self.after) if isinstance(self.after, str) else self.after


def seconds_of(text: str) -> float:
    """A date, with or without a time of day, in seconds since 1970-01-01, UTC; ValueError where it is none."""
    try:
        return float(np.datetime64(text, "us").astype(np.int64)) / 1e6
    except ValueError:
        raise ValueError(f"{text!r} is no date; allowed: as in 2026-01-31 or 2026-01-31T23:59:59") from None


def date_of(seconds: float) -> str:
    """What `seconds_of` reads as `seconds`."""
    moment = np.datetime64(round(seconds * 1e6), "us")
    for unit in ("D", "s"):
        if moment.astype(f"datetime64[{unit}]") == moment:
            return str(moment.astype(f"datetime64[{unit}]"))
    return str(moment)
