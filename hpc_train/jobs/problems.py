"""Problems: what is wrong with a job, gathered, so that all of it is reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hpc_train.errors import UserError


class Problems:
    """Gathers what is wrong, so that all of it is reported at once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keeps a UserError that is raised within, and goes on."""
        try:
            yield
        except UserError as error:
            self._texts += str(error).splitlines()

    def refuse(self) -> None:
        """UserError with all that was gathered, if there is any."""
        if self._texts:
            raise UserError("\n".join(dict.fromkeys(self._texts)))
