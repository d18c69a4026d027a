"""What is measured, in units, each of which runs its ways in turn; and the records that they become."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from support.launch import Launch, here
from support.records import Record, Sample, records_of
from support.results import Results
from support.usage import MissingError, tell

from hpc_train.distributed.launch_env import LaunchPlace, settings_before_mpi
from peers import settings as of
from peers.clusters import find_or_build, run_cluster
from peers.hooks import Plan
from peers.jobs import run_alone, run_job
from peers.measurement import Measurement, measurement_of, read_measurements
from peers.models import PARAMETERS
from peers.settings import OURS, PLAIN, SAME_FLAGS, Settings

Kind = Literal["one process", "weak scaling", "other programs"]
"""Of a unit: two ways in one process; those that scaling is told from; a program that is no part of this package."""
ONE_PROCESS: Kind = "one process"
WEAK: Kind = "weak scaling"
OTHERS: Kind = "other programs"


@dataclass(frozen=True)
class Contestant:
    """A way to train, on so many ranks."""

    way: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.way}, {self.ranks} rank{'s' if self.ranks > 1 else ''}"


@dataclass(frozen=True)
class Unit:
    """Ways that run in turn: two in one process, or several, each in processes of its own.

    Attributes:
        ranks: Of ours; `ways` may have others.
    """

    kind: Kind
    model: str
    ranks: int
    ways: tuple[Contestant, ...]

    @property
    def name(self) -> str:
        """In words, the same for an interrupted run that goes on."""
        counted = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        return f"{self.model}, {counted}, {self.kind}: {', '.join(dict.fromkeys(one.way for one in self.ways))}"


def plan(models: Sequence[str], ranks: Sequence[int], peers: Sequence[str], thin: bool = False) -> list[Unit]:
    """All units, model by model; `thin`: one of each sort, the first on the largest model, then the others in turn."""
    sorts: list[tuple[Kind, int, tuple[Contestant, ...]]] = []
    for n in ranks:
        if "same-flags" in peers:
            sorts.append((ONE_PROCESS, n, (Contestant(OURS, n), same_flags_rival(n))))
        if "fit" in peers and n == 1:
            sorts.append((ONE_PROCESS, n, (Contestant(OURS, n), Contestant(of.FIT, n))))
    for n in ranks:
        if n > 1 and "horovod" in peers:
            several = [Contestant(way, n) for way in (OURS, of.DEFAULT_FLAGS, SAME_FLAGS, of.NO_EXCHANGE)]
            sorts.append((WEAK, n, (*several, Contestant(OURS, 1), Contestant(PLAIN, 1))))
        for peer, way in (("distribute", of.DISTRIBUTE), ("estimator", of.ESTIMATOR)):
            if n > 1 and peer in peers:
                sorts.append((OTHERS, n, (Contestant(OURS, n), Contestant(way, n))))
    if thin:
        largest, *others = sorted(models, key=lambda model: PARAMETERS[model], reverse=True)
        rest = cycle(others or [largest])
        return [Unit(kind, next(rest) if i else largest, n, ways) for i, (kind, n, ways) in enumerate(sorts)]
    return [Unit(kind, model, n, ways) for model in models for kind, n, ways in sorts]


def same_flags_rival(ranks: int) -> Contestant:
    """On one rank the same loop without an allreduce, which is faster than one over itself."""
    return Contestant(PLAIN if ranks == 1 else SAME_FLAGS, ranks)


def package_flags(ranks: int, gpus: int = 0) -> dict[str, str]:
    """What hpc_train would set for Horovod and MPI on each of so many ranks of this node, one thread each."""
    place = LaunchPlace(launched=True, size=ranks, local_rank=0, local_size=ranks)
    found = settings_before_mpi({"OMP_NUM_THREADS": "1"}, len(os.sched_getaffinity(0)), place, gpus)
    return {name: value for name, value in found.items() if name.startswith(("HOROVOD_", "OMPI_MCA_"))}


def measure_all(units: Iterable[Unit], folder: Path, settings: Settings, results: Results, gpus: int = 0) -> None:
    """Measures all units in a folder that has the shards; what fails, or cannot be had, is noted and left out."""
    runner = Runner(folder, settings, results, gpus)
    for unit in units:
        tell(unit.name)
        results.add(unit.name, results.attempt(unit.name, partial(runner.measure, unit)) or ())


class Runner:
    """Runs units in a folder that has the shards.

    Args:
        gpus: Of this node, one for each rank; 0: all train on cores, and see no GPU.
    """

    def __init__(self, folder: Path, settings: Settings, results: Results, gpus: int = 0) -> None:
        self._folder, self._settings, self._results, self._gpus = folder, settings, results, gpus
        self._estimator: str | None = None

    def _here(self, env: Mapping[str, str] | None = None) -> Launch:
        return here(env, allocation=self._gpus > 0)

    def measure(self, unit: Unit) -> list[Record]:
        """Measures a unit.

        Raises:
            MissingError: A peer cannot be had here.
            RuntimeError: A process failed.
        """
        if unit.ranks > 1 and importlib.util.find_spec("horovod") is None:
            raise MissingError("Horovod is not installed, which ours needs, too")
        if unit.kind == ONE_PROCESS:
            measured = [measurement_of(one) for one in self._results.once(unit.name, lambda: self._pair(unit))]
            return list(records(unit, {way: [one] for way, one in zip(unit.ways, measured, strict=True)}))
        found = self._results.turns(
            unit.name, {str(one): partial(self._run, unit, one) for one in unit.ways}, self._settings.passes
        )
        return list(
            records(unit, {o: [measurement_of(t) for t in found[str(o)]] for o in unit.ways if str(o) in found})
        )

    def _pair(self, unit: Unit) -> list[dict[str, Any]]:
        """Ours and a rival in one process: what each reached."""
        how, (_, rival) = self._settings, unit.ways
        expected = 2 * how.pairs * how.block_secs + how.first_secs
        name = of.FIT if rival.way == of.FIT else SAME_FLAGS
        job = Plan(unit.model, name, how.pairs, how.block_secs, how.first_steps, how.first_secs)
        limit = of.PATIENCE * (of.START_SECS + of.SLOWER * expected / 2)
        measured = run_job(self._folder, unit.ranks, job, limit, launch=self._here())
        return [one.checked(str(own)) for own, one in zip(unit.ways, measured, strict=True)]

    def _run(self, unit: Unit, one: Contestant) -> dict[str, Any]:
        how, model, folder = self._settings, unit.model, self._folder
        if one.way == OURS:
            measured = run_alone(folder, model, one.ranks, how, launch=self._here())
        else:
            measured = self._rival(unit, one)
        tell(f"  {one}: {measured.rate:,.0f} examples/s")
        return measured.checked(str(one))

    def _rival(self, unit: Unit, one: Contestant) -> Measurement:
        """It makes as many steps as ours, which ran before it."""
        how, folder, limit = self._settings, self._folder, self._settings.limit_secs
        ours = measurement_of(self._results.kept[f"{unit.name}, {Contestant(OURS, one.ranks)}, 0"])
        steps = ours.steps * len(ours.secs)
        warm_up = max(how.first_steps, round(how.first_secs * steps / sum(ours.secs)))
        out = folder / "told"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        words = ["--model", unit.model, "--folder", str(folder), "--warm-up", str(warm_up), "--steps", str(steps)]
        words += ["--out", str(out)]
        if one.way in (of.DISTRIBUTE, of.ESTIMATOR):
            self._cluster(one, words)
            return read_measurements(out / "rank-0.json")[0]
        program = ["-m", "peers.plain_program", *words]
        if one.way in (PLAIN, of.NO_EXCHANGE):
            self._here()(one.ranks, [*program, "--alone"], folder, limit)
            return together([read_measurements(out / f"rank-{rank}.json")[0] for rank in range(one.ranks)])
        flags = package_flags(one.ranks, self._gpus) if one.way == SAME_FLAGS else {}
        self._here(flags)(one.ranks, program, folder, limit)
        return read_measurements(out / "rank-0.json")[0]

    def _cluster(self, one: Contestant, words: Sequence[str]) -> None:
        limit, folder = self._settings.limit_secs, self._folder
        try:
            if one.way == of.DISTRIBUTE:
                program = ["-m", "peers.plain_program", *words, "--distribute"]
                run_cluster({"worker": one.ranks}, program, folder, limit, "worker", gpus=self._gpus > 0)
            else:
                self._estimator = self._estimator or find_or_build(tell)
                shutil.rmtree(folder / "estimator", ignore_errors=True)
                program = ["-m", "peers.estimator_program", *words]
                kinds = {"ps": 1, "chief": 1, "worker": one.ranks - 1}
                run_cluster(kinds, program, folder, limit, "chief", self._estimator)
        except RuntimeError as error:
            raise MissingError(f"{one} does not run here: {error}") from None


def together(measured: Sequence[Measurement]) -> Measurement:
    """Ranks that ran at once without each other, as one: their rates added up, the cores of one of them."""
    examples, steps = measured[0].examples, measured[0].steps
    rate = sum(one.rate for one in measured)
    losses = max(one.losses[0] for one in measured), max(one.losses[1] for one in measured)
    cores = sum(one.cores for one in measured) / len(measured)
    secs = examples * len(measured) * steps / rate
    return Measurement(steps, (secs,), losses, examples * len(measured), (cores * secs,))


def records(unit: Unit, measured: Mapping[Contestant, Sequence[Measurement]]) -> Iterator[Record]:
    """Ours is compared with all, all with those on fewer ranks; a repeat is a block, or a job of several. Pure."""
    blocks = unit.kind == ONE_PROCESS
    rates = {one: own[0].rates if blocks else [each.rate for each in own] for one, own in measured.items()}
    for own, values in rates.items():
        last = measured[own][-1]
        config = {"kind": unit.kind, "model": unit.model, "way": own.way, "batch": of.BATCH, "values": list(values)}
        config |= {"steps": last.steps * len(last.secs), "cores": last.cores}
        config |= {"first_loss": last.losses[0], "last_loss": last.losses[1]}
        against = {
            str(other): found
            for other, found in rates.items()
            if other != own and (other.ranks < own.ranks or (own.way == OURS and other.ranks == own.ranks))
        }
        yield from records_of(
            of.BENCHMARK, "examples/s", [Sample(f"{unit.name} – {own}", values, against, own.ranks, config)]
        )
