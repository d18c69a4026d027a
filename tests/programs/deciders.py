"""`deciders.py append|ask FOLDER PROCESSES COUNT KILLS SEED`: processes that decide at once, some of which are killed.

append: each appends COUNT decisions to the journal in FOLDER, which tell whose they are.
ask: they ask for trials of the study in FOLDER and tell how those went, until it is over. Its trials train nothing.

KILLS processes are ended by SIGKILL, each once a number of decisions drawn at random is there, of COUNT in all; another
one goes on in its place. It has not ended before all has been decided.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from hpc_train.tuning.search.decisions import Suggested
from hpc_train.tuning.search.folder import StudyFolder
from hpc_train.tuning.search.journal import Journal
from hpc_train.tuning.search.study import Leaving
from tests.studies import measured, opened, suggested, train

POLL_SECS = 0.001


def append(folder: Path, place: int, count: int) -> None:
    """What process `place` does, or goes on with."""
    seen: set[str] = set()
    journal = Journal(folder, lambda decision: seen.add(decision.source) if isinstance(decision, Suggested) else None)
    for number in range(count):
        tag = f"{place}/{number}"
        journal.append(lambda tag=tag: None if tag in seen else suggested(0, source=tag))


def ask(folder: Path) -> None:
    """What each process does."""
    study, driver = opened(StudyFolder(folder), time.time), f"{os.getpid():016x}"
    while (answer := study.ask(driver)).what != "over":
        if answer.what == "run":
            train(study, answer, driver)
            continue
        for trial in study.orphans(lives):
            step = max((judged.step for judged in trial.judged.values()), default=0)
            study.leave(
                trial, trial.driver, Leaving("waiting", step, measured(trial.point, step) if step else None, "it died")
            )
        time.sleep(POLL_SECS)


def lives(driver: str) -> bool:
    """Whether a process does that has not been waited for."""
    with suppress(ProcessLookupError):
        os.kill(int(driver, 16), 0)
        return True
    return False


def main(what: str, folder: Path, processes: int, count: int, kills: int, seed: int) -> None:
    """Starts the processes, and those that go on in the place of others."""
    chance = random.Random(seed)
    decisions = folder if what == "append" else StudyFolder(folder).decisions
    moments = sorted(chance.randrange(count * (processes if what == "append" else 1)) for _ in range(kills))

    def started(place: int) -> int:
        if pid := os.fork():
            return pid
        try:
            append(folder, place, count) if what == "append" else ask(folder)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)

    running = {started(place): place for place in range(processes)}
    killed: set[int] = set()
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            place = running.pop(pid)
            if pid in killed and status == signal.SIGKILL:
                running[started(place)] = place
            elif status:
                sys.exit(1)
        elif moments and len(os.listdir(decisions)) >= moments[0]:
            moments.pop(0)
            killed.add(pid := chance.choice(list(running)))
            os.kill(pid, signal.SIGKILL)
        else:
            time.sleep(POLL_SECS)
    print(len(killed))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
