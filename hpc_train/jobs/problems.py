"""Problems: what is wrong with a job, gathered, so that all of it is reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpc_train.errors import UserError


class Problems:
    """Gathers what is wrong, so that all of it is reported at once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    @contextmanager
    def gathered(self, where: str = "") -> Iterator[None]:
        """Keeps a UserError that is raised within, and goes on; the first one of each text says `where`."""
        try:
            yield
        except UserError as error:
            for text in str(error).splitlines():
                self._texts.setdefault(text, f"{where}: {text}" if where else text)

    def refuse(self) -> None:
        """UserError with all that was gathered, if there is any."""
        if self._texts:
            raise UserError("\n".join(self._texts.values()))
