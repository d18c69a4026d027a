"""What mpirun writes of its own accord when a rank ends: understood, and kept away from what the ranks write."""

from __future__ import annotations

import re

from hpc_train.jobs.launch.launcher_output import LauncherOutput, RankEnd

_FENCE = re.compile(rb"(?<!-)-{74}\r?\n|(?<!=)={83}\r?\n")
"""The line before and after each of mpirun's notices: dashes in Open MPI, equals signs in MPICH and its relatives."""
_FENCE_BEGUN = re.compile(rb"(?<!-)-{1,74}\r?\Z|(?<!=)={1,83}\r?\Z")
_OPENING = re.compile(
    rb"Primary job +terminated normally, but|\S+ noticed that process rank|\S+ has exited due to process rank|"
    rb"\S+ detected that one or more processes exited|MPI_ABORT was invoked on rank|"
    rb"=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
)
_REMARK = re.compile(
    rb"(?m)^(?:\w+: Forwarding signal \d+ to job|"
    rb"\[[^\]\s]+:\d+\] (?:\d+ more process(?:es)? ha(?:s|ve) sent help message \S+ / mpi-abort|"
    rb'Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages)|'
    rb"YOUR APPLICATION TERMINATED WITH THE EXIT STRING: .*|This typically refers to a problem with your application\.|"
    rb"Please see the FAQ page for debugging suggestions)\r?\n"
)
_EXIT_STRING = re.compile(rb"WITH THE EXIT STRING: .*\(signal (\d+)\)")
_NO_START = b"It looks like orte_init failed for some reason"
_NOTICE_BYTES = 1 << 14


def understand(notice: str) -> RankEnd | None:
    """What the text of one of mpirun's notices reports of a rank's end. Pure."""
    patterns = (
        r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on signal (?P<signal>\d+)",
        r"has exited due to process rank (?P<rank>\d+) with PID \d+ on\s+node (?P<host>\S+) ",
        r"Process name: \[.*?,(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)",
        r"= +RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)\s+= +KILLED BY SIGNAL: (?P<signal>\d+)",
        r"= +(RANK (?P<rank>\d+) )?PID \d+ RUNNING AT (?P<host>\S+)\s+= +EXIT (CODE|STATUS): (?P<code>\d+)",
    )
    for pattern in patterns:
        if found := re.search(pattern, notice):
            values = found.groupdict()
            number = {name: int(values[name]) if values.get(name) else None for name in ("rank", "signal", "code")}
            return RankEnd(number["rank"], values.get("host"), number["signal"], number["code"])
    return None


class MpirunOutput(LauncherOutput):
    """That of mpirun: notices between lines. Where a helper could not start on its host, Open MPI 4 waits for ever."""

    def __init__(self) -> None:
        super().__init__()
        self._last = b""

    def feed(self, data: bytes) -> bytes:
        text, out = self._held + data, b""
        self._held = b""
        while fence := _FENCE.search(text):
            rest = text[fence.end() :]
            if not _OPENING.match(rest):
                if b"\n" not in rest and len(rest) < 200:
                    self._held = text[fence.start() :]
                    return out + self._passed(text[: fence.start()])
                out, text = out + self._passed(text[: fence.end()]), rest
                continue
            closing = _FENCE.search(rest)
            if closing is None and len(rest) < _NOTICE_BYTES:
                self._held = text[fence.start() :]
                return out + self._passed(text[: fence.start()])
            end = closing.end() if closing else 0
            self._learn(rest[:end])
            out, text = out + self._passed(text[: fence.start()]), rest[end:]
        begun = _FENCE_BEGUN.search(text)
        if begun:
            self._held, text = text[begun.start() :], text[: begun.start()]
        return out + self._passed(text)

    def flush(self) -> bytes:
        text, self._held = self._held, b""
        self._learn(text)
        return self._passed(text)

    def _passed(self, text: bytes) -> bytes:
        self._look_for_failure(text)
        self._last = (self._last + text)[-2 * len(_NO_START) - len(text) :]
        self.cannot_start = self.cannot_start or _NO_START in self._last
        if (found := _EXIT_STRING.search(text)) and self.end is not None:
            self.end = RankEnd(self.end.rank, self.end.host, signal=int(found[1]))
        return _REMARK.sub(b"", text)

    def _learn(self, notice: bytes) -> None:
        if b"MPI_ABORT was invoked" in notice:
            self.reported = True
        if self.end is None:
            self.end = understand(notice.decode(errors="replace"))
