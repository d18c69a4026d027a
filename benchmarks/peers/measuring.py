"""What is measured, in units that an interrupted run keeps; each runs its ways in turn."""

from __future__ import annotations

import importlib.util
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from support.failures import in_short
from support.launch import here
from support.records import Record
from support.results import ResultsFolder

from peers.contestants import Contestant, Kind, Unit, pair_records, turn_records
from peers.estimator_env import PeerMissingError, find_or_build
from peers.flags import package_flags
from peers.jobs import run_job
from peers.models import PARAMETERS
from peers.processes import run_cluster
from peers.settings import (
    DEFAULT_FLAGS,
    DISTRIBUTE,
    ESTIMATOR,
    FIT,
    NO_EXCHANGE,
    OURS,
    PLAIN,
    SAME_FLAGS,
    Settings,
)
from peers.told import Told, read_told

Say = Callable[[str], None]

TURN_BLOCKS = 8
START_SECS = 20.0
SLOWER = 4
"""A rival may take so many times as long as ours."""
PATIENCE = 3
"""A process may take so many times as long as it should."""


def plan(models: Sequence[str], ranks: Sequence[int], peers: Sequence[str], thin: bool = False) -> list[Unit]:
    """All units, model by model; `thin`: one of each sort, the first on the largest model, then the others in turn."""
    sorts: list[tuple[Kind, int, tuple[Contestant, ...]]] = []
    for n in ranks:
        if "same-flags" in peers:
            rival = PLAIN if n == 1 else SAME_FLAGS
            sorts.append(("one process", n, (Contestant(OURS, n), Contestant(rival, n))))
        if "fit" in peers and n == 1:
            sorts.append(("one process", n, (Contestant(OURS, n), Contestant(FIT, n))))
    for n in ranks:
        if n > 1 and "horovod" in peers:
            several = [Contestant(way, n) for way in (OURS, DEFAULT_FLAGS, SAME_FLAGS, NO_EXCHANGE)]
            sorts.append(("weak scaling", n, (*several, Contestant(OURS, 1), Contestant(PLAIN, 1))))
        for peer, way in (("distribute", DISTRIBUTE), ("estimator", ESTIMATOR)):
            if n > 1 and peer in peers:
                sorts.append(("other programs", n, (Contestant(OURS, n), Contestant(way, n))))
    if thin:
        largest, *others = sorted(models, key=lambda model: PARAMETERS[model], reverse=True)
        rest = cycle(others or [largest])
        return [Unit(kind, next(rest) if i else largest, n, ways) for i, (kind, n, ways) in enumerate(sorts)]
    return [Unit(kind, model, n, ways) for model in models for kind, n, ways in sorts]


def in_turn(ways: Sequence[Contestant], passes: int) -> Iterator[Contestant]:
    """All ways there, and back again: A B, then B A, then A B once more."""
    for number in range(passes):
        yield from ways if number % 2 == 0 else reversed(ways)


@dataclass
class Runner:
    """Runs units in a folder that has the shards."""

    folder: Path
    settings: Settings
    say: Say
    _estimator: str | None = field(default=None, init=False)

    def measure(self, unit: Unit) -> list[Record]:
        """Measures a unit.

        Raises:
            PeerMissingError: A peer cannot be had here.
            RuntimeError: A process failed.
        """
        if unit.ranks > 1 and importlib.util.find_spec("horovod") is None:
            raise PeerMissingError("Horovod is not installed, which ours needs, too")
        if unit.kind == "one process":
            return pair_records(unit, self.pair(unit))
        return turn_records(unit, self.turns(unit))

    def pair(self, unit: Unit) -> list[Told]:
        """Ours and a rival in one process: what each told."""
        how, (_, rival) = self.settings, unit.ways
        expected = 2 * how.pairs * how.block_secs + how.first_secs
        told = run_job(
            self.folder,
            unit.model,
            unit.ranks,
            rival=FIT if rival.way == FIT else SAME_FLAGS,
            pairs=how.pairs,
            block_secs=how.block_secs,
            first_steps=how.first_steps,
            first_secs=how.first_secs,
            limit_secs=PATIENCE * (START_SECS + SLOWER * expected / 2),
        )
        for own, one in zip(unit.ways, told, strict=True):
            one.check(str(own))
        return told

    def turns(self, unit: Unit) -> dict[Contestant, list[Told]]:
        """Each way in processes of its own, in turn; by way what each pass told."""
        found: defaultdict[Contestant, list[Told]] = defaultdict(list)
        for one in in_turn(unit.ways, self.settings.passes):
            ours = found.get(Contestant(OURS, one.ranks))
            told = self._run(unit.model, one, ours[0] if ours else None)
            told.check(str(one))
            found[one].append(told)
            self.say(f"  {one}: {told.rate:,.0f} examples/s")
        return dict(found)

    def _run(self, model: str, one: Contestant, ours: Told | None) -> Told:
        how = self.settings
        limit = PATIENCE * (START_SECS + SLOWER * (how.turn_secs + how.first_secs))
        if one.way == OURS:
            return run_job(
                self.folder,
                model,
                one.ranks,
                rival=None,
                pairs=TURN_BLOCKS,
                block_secs=how.turn_secs / TURN_BLOCKS,
                first_steps=how.first_steps,
                first_secs=how.first_secs,
                limit_secs=limit,
            )[0]
        assert ours is not None, "ours runs first: the others make as many steps"
        steps = ours.steps * len(ours.secs)
        warm_up = max(how.first_steps, round(how.first_secs * steps / sum(ours.secs)))
        out = self.folder / "told"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        numbers = ["--model", model, "--folder", str(self.folder), "--warm-up", str(warm_up), "--steps", str(steps)]
        if one.way in (DISTRIBUTE, ESTIMATOR):
            return self._cluster(one, numbers, out / "rank-0.json", limit)
        program = ["-m", "peers.plain_program", *numbers, "--out", str(out)]
        if one.way in (PLAIN, NO_EXCHANGE):
            here()(one.ranks, [*program, "--alone"], self.folder, limit)
            return together([read_told(out / f"rank-{rank}.json")[0] for rank in range(one.ranks)])
        env = package_flags(one.ranks) if one.way == SAME_FLAGS else {}
        here(env)(one.ranks, program, self.folder, limit)
        return read_told(out / "rank-0.json")[0]

    def _cluster(self, one: Contestant, numbers: Sequence[str], out: Path, limit_secs: float) -> Told:
        try:
            if one.way == DISTRIBUTE:
                program = ["-m", "peers.distribute_program", *numbers, "--out", str(out)]
                run_cluster({"worker": one.ranks}, program, self.folder, limit_secs, ["worker"])
            else:
                self._estimator = self._estimator or find_or_build(self.say)
                shutil.rmtree(self.folder / "estimator", ignore_errors=True)
                program = ["-m", "peers.estimator_program", *numbers, "--out", str(out)]
                kinds = {"ps": 1, "chief": 1, "worker": one.ranks - 1}
                run_cluster(kinds, program, self.folder, limit_secs, ["chief"], self._estimator)
            return read_told(out)[0]
        except RuntimeError as error:
            raise PeerMissingError(f"{one} does not run here: {error}") from None


def together(told: Sequence[Told]) -> Told:
    """Ranks that ran at once without each other, as one: their rates added up, the cores of one of them."""
    examples, steps = told[0].examples, told[0].steps
    rate = sum(one.rate for one in told)
    losses = max(one.losses[0] for one in told), max(one.losses[1] for one in told)
    cores = sum(one.cores for one in told) / len(told)
    secs = examples * len(told) * steps / rate
    return Told(steps, (secs,), losses, examples * len(told), (cores * secs,))


def measure_all(units: Sequence[Unit], runner: Runner, results: ResultsFolder) -> list[str]:
    """Measures those that are not finished yet; what fails, and a peer that cannot be had, is noted and left out.

    Returns:
        The names of those that failed.
    """
    failed = []
    for unit in units:
        if results.finished(unit.name) is not None:
            continue
        runner.say(unit.name)
        try:
            results.add(unit.name, runner.measure(unit))
        except PeerMissingError as error:
            runner.say(f"  left out: {error}")
            results.leave_out(unit.name, in_short(error))
        except RuntimeError as error:
            runner.say(f"  failed: {error}")
            results.leave_out(unit.name, in_short(error))
            failed.append(unit.name)
    return failed
