"""The records that studies.py makes of what its studies tell, the numbers to reach, and the report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import mean
from typing import Any

from support.page import Report, Section, at_least, at_most, numbers
from support.records import Found, Record, Sample, records_of

BENCHMARK = "studies"
ASKING, SHORT, UNEQUAL, SEARCH = "asking", "short trials", "unequal trials", "early stopping"
ENSEMBLE, BEST_MEMBER = "ensembles", "the best member"
KEPT, FRESH, OPTUNA = "ranks that stay", "fresh ranks", "Optuna, a job a trial"
TRAINING, BATCHES, ALL = "training / slots", "whole batches", "full random search"
WITHOUT_OPTUNA = ("random", "grid", "random, ASHA")
MOST_MS, MOST_OVER, LEAST_BUSY, MOST_OF_BATCHES, LEAST_OF_BEST, MOST_STEPS = 100.0, 1.3, 0.95, 0.8, 0.99, 0.4
MOST_OF_MEMBER, MOST_APART = 1.0, 1e-6

Periods = Sequence[Sequence[float]]
"""From when to when a run of a trial was."""

SUMMARY = ("Studies of hyper-parameters on two slots of one machine, a rank of one thread a trial.",)
ASKING_TEXT = (
    "Milliseconds of `Study.ask`, the decision safe on the disk, median of all calls; the trials are made up. “Open”: "
    "what a process takes once, to read all decisions. The trials that TPE and CMA-ES look at were drawn at random.",
)
SHORT_TEXT = (
    "Seconds from the start of the command to its end, with that of Python. Training is the time that steps take, "
    "without what comes before the first, and without evaluation. The ratio to “training / slots” is the command's "
    "seconds over half of what its own trials trained. Optuna keeps all in memory, runs two trials at once in threads, "
    "and starts `hpc-train launch` for each.",
    "“Busy”: the share of the slots' time in which a trial had them, from the first suggestion to the last end, as "
    "decided; with what a trial's own start takes.",
)
UNEQUAL_TEXT = (
    "A grid of trials that make many steps and a quarter of them, in turns. Seconds from the first suggestion to the "
    "last end, against those of the same trials where each two begin together and the next ones wait for the longer; "
    "these are added up from the trials' own durations. “In any order”: the ratio where pairs are made at random.",
)


def asking_records(trials: int, told: Mapping[str, Mapping[str, Any]]) -> Iterator[Record]:
    """Milliseconds by the way of asking."""
    for way, one in told.items():
        config = {"what": ASKING, "way": way, "trials": trials, "open_ms": 1000 * one["open_secs"], "target": MOST_MS}
        yield from records_of(
            BENCHMARK, "ms", [Sample(f"asking, {way}", [1000 * s for s in one["secs"]], {}, 1, config)]
        )


def short_records(slots: int, told: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Record]:
    """Seconds by way, against half of the training and, of ranks that stay, the others; and how busy slots were."""
    secs = {way: [one["secs"] for one in runs] for way, runs in told.items()}
    for way, runs in told.items():
        training = [sum(one["training"]) / slots for one in runs]
        against = {TRAINING: training, **{other: secs[other] for other in secs if way == KEPT and other != KEPT}}
        config = {"what": SHORT, "way": way, "trials": len(runs[0]["training"]), "target": MOST_OVER}
        config["training_secs"] = mean(mean(one["training"]) for one in runs)
        yield from records_of(BENCHMARK, "s", [Sample(f"{SHORT}, {way}", secs[way], against, 1, config)])
        if "periods" in runs[0]:
            shares = [busy(one["periods"], slots) for one in runs]
            config = {"what": "busy", "way": way, "target": LEAST_BUSY}
            yield from records_of(BENCHMARK, "of slot time", [Sample(f"busy, {way}", shares, {}, 1, config)])


def unequal_records(slots: int, told: Sequence[Mapping[str, Any]]) -> Iterator[Record]:
    """Seconds of the study, against whole batches."""
    spans, batches, others = [], [], []
    for one in told:
        secs = [sum(end - begin for begin, end in periods) for periods in one["periods"]]
        spans.append(span(one["periods"]))
        batches.append(in_batches(secs, slots))
        others.append(spans[-1] / in_any_pairs(secs))
    config = {"what": UNEQUAL, "way": "as slots become free", "any_order": mean(others), "target": MOST_OF_BATCHES}
    config["batches_secs"] = mean(batches)
    yield from records_of(BENCHMARK, "s", [Sample(UNEQUAL, spans, {BATCHES: batches}, 1, config)])


def search_records(data: str, metric: str, told: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> Iterator[Record]:
    """By seed, the best value and the steps of ASHA, against those of the full search."""
    for seed, ways in told.items():
        for unit, key, target in ((metric, "best", LEAST_OF_BEST), ("steps", "steps", MOST_STEPS)):
            config = {"what": SEARCH, "seed": seed, "of": key, "data": data, "target": target}
            config |= {"full": ways[ALL][key], "full_secs": ways[ALL]["secs"], "asha_secs": ways["ASHA"]["secs"]}
            sample = Sample(f"{key}, seed {seed}", [ways["ASHA"][key]], {ALL: [ways[ALL][key]]}, 1, config)
            yield from records_of(BENCHMARK, unit, [sample])


def ensemble_records(data: str, members: int, told: Mapping[int, Mapping[str, Any]]) -> Iterator[Record]:
    """By seed, the loss of the ensemble's model against its best member's, and how far its export is from the mean."""
    for seed, one in told.items():
        losses = [member["loss"] for member in one["each"]]
        config = {"what": ENSEMBLE, "of": "loss", "seed": seed, "data": data, "members": members, "secs": one["secs"]}
        config |= {"best": min(losses), "average": mean(losses), "accuracy": one["mean"]["accuracy"]}
        config |= {"best_accuracy": max(member["accuracy"] for member in one["each"]), "target": MOST_OF_MEMBER}
        sample = Sample(f"loss, seed {seed}", [one["mean"]["loss"]], {BEST_MEMBER: [min(losses)]}, 1, config)
        yield from records_of(BENCHMARK, "loss", [sample])
        config = {"what": ENSEMBLE, "of": "difference", "seed": seed, "data": data, "target": MOST_APART}
        sample = Sample(f"difference, seed {seed}", [one["difference"]], {}, 1, config)
        yield from records_of(BENCHMARK, "probability", [sample])


def span(periods: Sequence[Periods]) -> float:
    """Seconds from the first begin of a run of any trial to the last end."""
    runs = [run for of_trial in periods for run in of_trial]
    return max(end for _, end in runs) - min(begin for begin, _ in runs)


def busy(periods: Sequence[Periods], slots: int) -> float:
    """The share of the slots' time in which trials ran."""
    return sum(end - begin for of_trial in periods for begin, end in of_trial) / (slots * span(periods))


def in_batches(secs: Sequence[float], slots: int) -> float:
    """Seconds of trials where so many begin together, and the next wait for the longest of them."""
    return sum(max(secs[begin : begin + slots]) for begin in range(0, len(secs), slots))


def in_any_pairs(secs: Sequence[float]) -> float:
    """Seconds to expect of batches of two, where the order is drawn at random."""
    return len(secs) / 2 * mean(max(pair) for pair in combinations(secs, 2))


def make_page(kept: Sequence[Record]) -> Report:
    """The whole report."""
    found = Found(kept)
    asked = [(way, one.value) for way in WITHOUT_OPTUNA if (one := found.one(what=ASKING, way=way))]
    slots = [(one.config["way"], one.value) for one in found.where(what="busy", way=KEPT)]
    searches = found.where(what=SEARCH)
    by_seed = {
        key: [(f"seed {one.config['seed']}", one.ratio) for one in searches.where(of=key)] for key in ("best", "steps")
    }
    losses, apart = (found.where(what=ENSEMBLE, of=key) for key in ("loss", "difference"))
    targets = [
        at_most("Study.ask", f"≤ {MOST_MS:g} ms", asked, MOST_MS),
        at_most(
            "Short trials: seconds / (training / slots)",
            f"≤ {MOST_OVER}",
            [(KEPT, found.ratio(TRAINING, what=SHORT, way=KEPT))],
            MOST_OVER,
        ),
        at_least("Slots busy", f"≥ {LEAST_BUSY}", slots, LEAST_BUSY),
        at_most(
            "Trials of 4:1 lengths: seconds / those of whole batches",
            f"≤ {MOST_OF_BATCHES}",
            [("in turns", found.ratio(BATCHES, what=UNEQUAL))],
            MOST_OF_BATCHES,
        ),
        at_least("ASHA: best value / the full search's", f"≥ {LEAST_OF_BEST}", by_seed["best"], LEAST_OF_BEST, ".4g"),
        at_most("ASHA: steps / the full search's", f"≤ {MOST_STEPS}", by_seed["steps"], MOST_STEPS),
        at_most(
            "Ensemble: loss / the best member's",
            f"≤ {MOST_OF_MEMBER:g}",
            [(f"seed {one.config['seed']}", one.ratio) for one in losses],
            MOST_OF_MEMBER,
        ),
        at_most(
            "Ensemble: export - the members' mean",
            f"≤ {MOST_APART:g}",
            [(f"seed {one.config['seed']}", one.value) for one in apart],
            MOST_APART,
            ".2g",
        ),
    ]
    return Report("Studies", SUMMARY, targets, list(_sections(found)))


def _sections(found: Found) -> Iterator[Section]:
    if own := found.where(what=ASKING):
        yield Section(
            "Asking", ASKING_TEXT, [], [numbers(own, {"by": "way", "trials": "trials"}, {"open, ms": "open_ms"})]
        )
    if own := found.where(what=SHORT):
        times = numbers(own, {"by": "way", "trials": "trials"}, {"of training a trial, s": "training_secs"})
        yield Section("Short trials", SHORT_TEXT, [], [times, numbers(found.where(what="busy"), {"by": "way"})])
    if own := found.where(what=UNEQUAL):
        more = {"whole batches, s": "batches_secs", "in any order": "any_order"}
        yield Section("Trials of 4:1 lengths", UNEQUAL_TEXT, [], [numbers(own, {"": "way"}, more)])
    if own := found.where(what=SEARCH):
        text = [
            f"The demo's network and study on {next(iter(own)).config['data']}: the same points, evaluated at the same "
            "steps, with asynchronous successive halving against all of them trained to their end."
        ]
        secs = {"ASHA, s": "asha_secs", f"{ALL}, s": "full_secs"}
        tables = [
            numbers(own.where(of=key), {"seed": "seed"}, {ALL: "full", **more})
            for key, more in (("best", {}), ("steps", secs))
        ]
        yield Section("Early stopping", text, [], tables)
    if own := found.where(what=ENSEMBLE, of="loss"):
        config = next(iter(own)).config
        text = [
            f"{config['members']} members of the demo's network, of other seeds, on {config['data']}: the negative "
            "log-likelihood of all test images, and how often the most probable class is right. The export is compared "
            "with the members' probabilities, each member restored by itself from its checkpoint."
        ]
        more = {"the best member's": "best", "members' average": "average", "accuracy": "accuracy"}
        more |= {"the best member's accuracy": "best_accuracy", "s": "secs"}
        apart = numbers(found.where(what=ENSEMBLE, of="difference"), {"seed": "seed"})
        yield Section("Ensembles", text, [], [numbers(own, {"seed": "seed"}, more), apart])
