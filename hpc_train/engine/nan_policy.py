"""What to do about a step whose numbers went bad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hpc_train.errors import JobEndedError
from hpc_train.outcome import EXIT_NOT_FINITE

MAX_IN_A_ROW = 20
"""Steps in a row that may be left out. After so many it is the model that is bad, not a batch."""
MAX_ROLLBACKS = 5
"""Times in a row that a job may go back without getting any further."""

Policy = Literal["halt", "skip", "rollback"]


class NanPolicy:
    """Decides, alike on all ranks, what follows a step whose loss or gradients were not finite. Pure.

    Args:
        can_go_back: Whether `rollback` is possible.

    Attributes:
        left_out: Steps whose batches are not to change the model.
    """

    def __init__(self, policy: Policy, can_go_back: bool = True) -> None:
        self._policy, self._can_go_back = policy, can_go_back
        self._in_a_row = self._rollbacks = 0
        self._furthest = 0
        self.left_out: set[int] = set()

    def step_was_good(self) -> None:
        """The last step was applied."""
        self._in_a_row = 0

    def step_was_bad(self, step: int, ranks: Sequence[int]) -> tuple[Literal["skip", "rollback"], str]:
        """What to do about `step`, and the message about it.

        Args:
            ranks: Those whose own loss or gradients were not finite.

        Raises:
            JobEndedError: With code 7, where the job has to end.
        """
        shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        where = f"of rank {shown} are" if ranks else "are, averaged over the ranks,"
        what = f"step {step}: loss or gradients {where} not finite (NaN or infinity)"
        rank = ranks[0] if len(ranks) == 1 else None
        self._in_a_row += 1
        if self._policy == "halt":
            ways = "`on_nan: skip` or `rollback` leave" if self._can_go_back else "`on_nan: skip` leaves"
            raise JobEndedError(
                f"{what}; training ends before they reach the model (on_nan: halt). What was saved stays. A "
                f"smaller learning rate or gradient clipping may help, and {ways} such batches out",
                EXIT_NOT_FINITE,
                rank,
            )
        if self._in_a_row > MAX_IN_A_ROW:
            raise JobEndedError(
                f"{what}, as were the {MAX_IN_A_ROW} steps before; training ends", EXIT_NOT_FINITE, rank
            )
        if self._policy == "skip":
            return "skip", f"{what}; the step is left out (on_nan: skip)"
        self._rollbacks = 0 if step > self._furthest else self._rollbacks + 1
        self._furthest = max(step, self._furthest)
        if self._rollbacks >= MAX_ROLLBACKS:
            raise JobEndedError(
                f"{what}; training ends, having gone back {MAX_ROLLBACKS} times without getting any further",
                EXIT_NOT_FINITE,
                rank,
            )
        self.left_out.add(step)
        return "rollback", f"{what}; going back to the last checkpoint, this batch left out (on_nan: rollback)"
