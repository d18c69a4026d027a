"""What srun and slurmstepd write of their own accord when a rank ends: understood, and taken out."""

from __future__ import annotations

import re
import signal

from hpc_train.jobs.launch.launcher_output import LauncherOutput, RankEnd
from hpc_train.jobs.launch.mpirun_output import MpirunOutput
from hpc_train.outcome import EXIT_FAILED, EXIT_LOST_NODE

_LINE_BYTES = 1 << 14
_BEGINNINGS = (b"srun: ", b"slurmstepd")
_LINE = re.compile(rb"(?<!\w)(?:srun|slurmstepd[\w.-]*): [^\n]*\n")
_BEGUN = re.compile(
    rb"(?<!\w)(?:(?:%s)[^\n]*|%s)\Z"
    % (
        b"|".join(_BEGINNINGS),
        b"|".join(word[:count] for word in _BEGINNINGS for count in range(len(word) - 1, 0, -1)),
    )
)
_END = re.compile(r"srun: error: (\S+): tasks? (\d+)[\d,-]*: ([^\r\n]+)")
_NODE_LOST = b"srun: error: Node failure on "
_TOLD_TO_END = b"srun: forcing job termination"
_REMARK = re.compile(
    rb"srun: (?:(?:launch/slurm: \w+: )?(?:Force )?Terminat(?:ed|ing) |Job step aborted: Waiting |"
    rb"forcing job termination|cluster configuration lacks support for cpu binding)|"
    rb"slurmstepd[\w.-]*: error: \*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ \*\*\*"
)
"""What only says that the step ends with a rank. Why Slurm has ended it ("DUE TO TIME LIMIT") is not left out."""
_SIGNALS = {signal.strsignal(number): int(number) for number in signal.valid_signals()}


def understand_srun(line: str) -> RankEnd | None:
    """What a line of srun's reports of the end of a rank, the first where of several. Pure."""
    found = _END.match(line)
    if found is None:
        return None
    host, rank, how = found[1], int(found[2]), found[3]
    if (left := re.fullmatch(r"Exited with exit code (\d+)", how)) is not None:
        return RankEnd(rank, host, code=int(left[1]))
    if how.startswith("Out Of Memory"):
        return RankEnd(rank, host, signal=int(signal.SIGKILL), why="out of memory")
    return RankEnd(rank, host, signal=_SIGNALS.get(how.removesuffix(" (core dumped)")))


class SrunOutput(LauncherOutput):
    """That of srun: a line for each node whose ranks have ended, in the order in which they did.

    What Open MPI writes of MPI_ABORT comes here, too; of that MpirunOutput knows.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[RankEnd] = []
        self._notices = MpirunOutput()
        self._node_is_lost = self._was_told_to_end = False

    def feed(self, data: bytes) -> bytes:
        text = self._held + data
        begun = _BEGUN.search(text, max(0, len(text) - _LINE_BYTES))
        self._held = text[begun.start() :] if begun else b""
        return self._passed(text[: begun.start()] if begun else text)

    def flush(self) -> bytes:
        text, self._held = self._held, b""
        passed = self._passed(text) + self._notices.flush()
        self.reported = self.reported or self._notices.reported
        return passed

    @property
    def holding(self) -> bool:
        return bool(self._held) or self._notices.holding

    def settle(self, code: int) -> int:
        """Of srun, which leaves with the highest code and kills those left: that of the first rank to end.

        One that calls MPI_Abort may end after those that it has killed: then srun's code, which is below 128, is its.
        Of an srun that a signal has ended it is the one with which mpirun leaves then: no rank has ended by itself.
        """
        if self._node_is_lost:  # the ranks that srun has ended for it are not to blame
            self.end = None
            return EXIT_LOST_NODE
        if self._was_told_to_end:
            self.end = None
            return EXIT_FAILED
        if code == 0 or self.end is None:
            return code
        if self.end.signal == signal.SIGKILL and code < 128:
            self.end = next((end for end in self._ends if end.code == code), None)
            return code
        if self.end.signal is not None:
            return 128 + self.end.signal
        return self.end.code or code

    def _passed(self, text: bytes) -> bytes:
        passed = self._notices.feed(_LINE.sub(self._learn, text))
        self.reported = self.reported or self._notices.reported
        return passed

    def _learn(self, line: re.Match[bytes]) -> bytes:
        text = line[0]
        if (end := understand_srun(text.decode(errors="replace"))) is not None:
            self._ends.append(end)
            self.end = self._ends[0]
            return b""
        self._node_is_lost = self._node_is_lost or text.startswith(_NODE_LOST)
        self._was_told_to_end = self._was_told_to_end or text.startswith(_TOLD_TO_END)
        return b"" if _REMARK.match(text) else text
