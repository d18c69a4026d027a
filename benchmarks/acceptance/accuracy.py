"""Time to accuracy: how long your own job takes to a value of a metric, on more ranks and with other learning rates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from support.drawing import Line, Lines
from support.page import Report, Section, Table, Target
from support.records import Found, Record, Sample, records_of
from support.usage import UsageError, tell

from acceptance.metric import OF_BEST, Wanted, best_of, derived, first_reaching, value_of
from acceptance.own_job import OwnJob, run_job
from acceptance.settings import BENCHMARK, STAND_IN, Site
from acceptance.warm_up import WARM_UP
from hpc_train.report import words
from hpc_train.report.numbers import mode_by_name

TITLE = "Time to accuracy"
GIVEN, SCALED, WARMED = "as given", "scaled", "scaled, warm-up"
RATES = {"given": GIVEN, "scaled": SCALED, "warm-up": WARMED}
"""By their names on the command line."""
STEPS_BEFORE = 20
"""A warm-up takes the max_steps-th part."""
PATIENCE = 10
TEXT = (
    "{job}: {batch} rows a rank and step, so {ranks} ranks take as many times the rows of one. The learning rate is "
    "the job's own ({rate:g}, {key}), that times the ranks (Goyal et al. 2017, arXiv:1706.02677), and the same after a "
    "warm-up of {warm_up} steps. Evaluated every {every} steps, for {max_steps} steps at most; one run of each, so two "
    "that lie near each other are not told apart. Seconds are those of training, from the end of the first step, "
    "without evaluations."
)
GIVEN_TEXT = "Wanted: {wanted}, as asked for."
DERIVED_TEXT = "Wanted: {wanted}, which is {part:.0%} worse than the best of one rank with the rate as given."
ACCURACY_STAND_IN = f"{STAND_IN}training, steps and the metric are the job's own on the cores; seconds are theirs."


@dataclass(frozen=True)
class Aim:
    """What is to be reached, and how.

    Attributes:
        value: Of the metric; None: derived from what one rank reaches.
        rates: Of RATES' values. every: steps between evaluations.
    """

    metric: str
    mode: str
    value: float | None
    rates: tuple[str, ...]
    max_steps: int
    warm_up: int
    every: int


@dataclass(frozen=True)
class Case:
    """A run of the job."""

    ranks: int
    rate: str

    def __str__(self) -> str:
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''}, rate {self.rate}"


ALONE = Case(1, GIVEN)


def cases_of(ranks: Sequence[int], rates: Sequence[str]) -> list[Case]:
    """One rank with the rate as given first: the others are compared with it, and its rate is scaled by 1. Pure."""
    return [ALONE, *(Case(n, rate) for n in sorted(set(ranks)) if n > 1 for rate in RATES.values() if rate in rates)]


def aim_of(
    job: OwnJob,
    evaluations: int,
    metric: str | None,
    mode: str | None,
    value: float | None,
    rates: Sequence[str],
    max_steps: int | None,
    warm_up: int | None,
) -> Aim:
    """From what was asked for; the rest from the job.

    Raises:
        UsageError: A number is out of range.
    """
    named = metric or job.best_metric
    if mode is None:
        mode = job.best_mode if named == job.best_metric else mode_by_name(named)
    if mode is None:
        raise UsageError(f"--target-metric: nothing says whether more or less of {named} is better; give --target-mode")
    steps = job.max_steps if max_steps is None else max_steps
    if steps < 2:
        raise UsageError(f"--max-steps: {steps}; give a number from 2 on")
    warmed = max(1, steps // STEPS_BEFORE) if warm_up is None else warm_up
    if not 1 <= warmed < steps:
        raise UsageError(f"--warm-up-steps: {warmed}; give a number from 1 to {steps - 1}, below the {steps} steps")
    chosen = tuple(RATES[rate] for rate in RATES if rate in rates)
    return Aim(named, mode, value, chosen, steps, warmed, max(1, steps // evaluations))


def changes_of(job: OwnJob, case: Case, aim: Aim) -> dict[str, str]:
    """What `case` sets in the job, beside what all do. Pure."""
    import hpc_train as ht

    assert job.rate is not None
    changes = {
        "train.max_steps": f"{aim.max_steps}",
        "run.save_checkpoints_steps": f"{aim.every}",
        "run.keep_checkpoint_max": "1",
    }
    if case.rate != GIVEN:
        scaled = ht.scaled_learning_rate(job.rate, job.batch, ranks=case.ranks, base_batch=job.batch)
        changes |= job.changed_rate(scaled)
    if case.rate == WARMED:
        changes["model"] = "acceptance.warm_up:build_model"
    return changes


def measure(job: OwnJob, aim: Aim, site: Site) -> None:
    """All cases; one that fails is noted, and the others go on, but for the first, which may tell what is wanted."""
    results = site.results

    def run(case: Case, wanted: Wanted | None) -> list[dict[str, Any]]:
        warm_up = {"function": job.function, "code": str(job.path.parent), "steps": aim.warm_up}
        launch = site.launcher({WARM_UP: json.dumps(warm_up)})
        limit = site.settings.limit_secs * PATIENCE
        told = run_job(job, case.ranks, site.folder, launch, changes_of(job, case, aim), limit, wanted)
        evaluations: list[dict[str, Any]] = told["evaluations"]
        tell(f"{TITLE}: {case}: {aim.metric} {_best(aim, evaluations):.4g} after {evaluations[-1]['step']} steps")
        return evaluations

    def first() -> tuple[list[dict[str, Any]], Wanted]:
        given = None if aim.value is None else Wanted(aim.metric, aim.mode, aim.value)
        told = results.once(f"{TITLE}, {ALONE}", partial(run, ALONE, given))
        return told, given or derived(aim.metric, aim.mode, told)

    found = results.attempt(TITLE, first)
    if found is None:
        return
    alone, wanted = found
    told = {ALONE: alone}
    for case in cases_of(site.ranks, aim.rates)[1:]:
        key = f"{TITLE}, {case}"
        own = results.attempt(key, partial(results.once, key, partial(run, case, wanted)))
        if own is not None:
            told[case] = own
    results.add(TITLE, [record for case, own in told.items() for record in records(case, own, wanted, job, aim, told)])


def _best(aim: Aim, evaluations: Sequence[Any]) -> float:
    try:
        return best_of(aim.metric, aim.mode, evaluations)
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def records(
    case: Case, evaluations: Sequence[Any], wanted: Wanted, job: OwnJob, aim: Aim, told: Any
) -> Iterator[Record]:
    """Seconds to the value, against one rank with the rate as given; where it is not reached, the best value. Pure."""
    reaching, alone = first_reaching(wanted, evaluations), first_reaching(wanted, told[ALONE])
    steps = (reaching or evaluations[-1])["step"]
    config = {
        "part": TITLE,
        "rate": case.rate,
        "reached": reaching is not None,
        "best": _best(aim, evaluations),
        "steps": steps,
        "examples": steps * job.batch * case.ranks,
        "curve": [[one["step"] * job.batch * case.ranks, value_of(aim.metric, one["metrics"])] for one in evaluations],
        "wanted": asdict(wanted),
        "job": {"name": job.path.name, "batch": job.batch, "rate": job.rate, "key": job.rate_key},
        "aim": asdict(aim),
    }
    if reaching is None:
        best = Sample(f"{case}: best {aim.metric}, not enough", [config["best"]], ranks=case.ranks, config=config)
        yield from records_of(BENCHMARK, aim.metric, [best])
        return
    against = {str(ALONE): [alone["secs"]]} if alone is not None and alone["secs"] > 0 and case != ALONE else {}
    yield from records_of(
        BENCHMARK, "s", [Sample(f"{case}: to {wanted}", [reaching["secs"]], against, case.ranks, config)]
    )


def targets(found: Found) -> list[Target]:
    """More ranks, with the best of their rates, take no longer than one to the same value."""
    parts = []
    alone = next((one for one in found if one.ranks == 1), None)
    for ranks in [n for n in found.each("ranks") if n > 1]:
        own = [one for one in found if one.ranks == ranks]
        reaching = sorted((one for one in own if one.config["reached"]), key=lambda one: one.value)
        if not reaching:
            parts.append((f"{ranks} ranks", "not reached with any rate", False))
            continue
        best = reaching[0]
        if alone is None or not alone.config["reached"]:
            parts.append((f"{ranks} ranks, {best.config['rate']}", f"{best.value:.3g} s; one rank: not reached", True))
            continue
        value = f"{best.value:.3g} s; one rank: {alone.value:.3g} s"
        parts.append((f"{ranks} ranks, {best.config['rate']}", value, best.value <= alone.value))
    if alone is not None:
        wanted = Wanted(**alone.config["wanted"])
        return [Target(f"Time to {wanted}", "with the best rate at most that of one rank", parts)]
    return []


def page(records: Sequence[Record], site: Site) -> Report:
    """Section and target."""
    found = Found(records)
    about = next(iter(found)).config
    job, aim, wanted = about["job"], about["aim"], Wanted(**about["wanted"])
    most = max(one.ranks for one in found)
    text = [
        TEXT.format(
            job=job["name"], batch=job["batch"], rate=job["rate"], key=job["key"], ranks=most,
            warm_up=aim["warm_up"], every=aim["every"], max_steps=aim["max_steps"],
        )
    ]  # fmt: skip
    told = GIVEN_TEXT if aim["value"] is not None else DERIVED_TEXT
    text.append(told.format(wanted=wanted, part=OF_BEST))
    rows = [
        (
            f"{one.ranks}",
            one.config["rate"],
            f"{one.value:.3g}" if one.config["reached"] else "not reached",
            f"{one.config['steps']:,}",
            f"{one.config['examples']:,}",
            f"{one.config['best']:.4g}",
            words.number(one.ratio, 3),
        )
        for one in found
    ]
    header = ("Ranks", "Learning rate", "Seconds", "Steps", "Examples", f"Best {wanted.metric}", "x one rank's seconds")
    lines = [Line(one.case.partition(":")[0], [(x, y) for x, y in one.config["curve"]]) for one in found]
    figure = Lines(
        f"{wanted.metric} of the evaluations", "examples", wanted.metric, lines, limits={"wanted": wanted.value}
    )
    section = Section(
        TITLE, text if site.gpus else [ACCURACY_STAND_IN, *text], [figure], [Table(header, rows, names=2)]
    )
    return Report(TITLE, [], targets(found), [section])
