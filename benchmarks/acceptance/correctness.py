"""Whether many ranks compute what one does, and whether a job that was interrupted ends as one that was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from peers.models import CNN, write_data
from support.page import Report, Section, Table, Target, at_most
from support.records import Found, Record, Sample, records_of
from support.usage import MissingError, tell

from acceptance.rounds import Job, Trained, train_in_turn
from acceptance.settings import BENCHMARK, STAND_IN, Site
from hpc_train.checkpoint.format import Snapshot
from hpc_train.report import words

TITLE = "Correctness"
MOST_DEVIATION = 1e-3
"""Of the way that training has moved the weights of a variable: rounding that the steps pass on stays far below, an
average over the wrong rows, or by the wrong number, far above."""
ALONE, PIECES, TOGETHER, WHOLE, RESUMED = "alone", "pieces", "together", "whole", "resumed"
SAME_STEPS = 10
"""Compared with one rank after so many, at most. The more there are, the likelier it is that rounding changes the
choice of a ReLU or a max pooling somewhere, and weights jump apart: between steps 20 and 40 by 0.002 of the way, on one
rank in two pieces as on two ranks. A wrong average shows in the first step."""
DROPOUT = 0.25
TEXT = (
    "With deterministic operations, float32 products that are not rounded to TF32, and the CNN. “As one rank”: {ranks} "
    "ranks with {batch} rows each against one with {all} after {same} steps; by variable, how far their weights lie "
    "apart, as a part of how far training has moved them, and the largest of these. “Rounding alone” is the same for "
    "one rank that computes its batch in {ranks} pieces. “Resume”: {ranks} ranks train "
    "{steps} steps at once, and in two runs of half as many, with dropout and Adam; so many numbers of their "
    "checkpoints (weights, optimizer, random states) differ in any bit.",
    "That ranks begin with the same weights is compared, too: all numbers are equal to the bit, or the part fails.",
)


def deviation(one: Trained, other: Trained) -> float:
    """The largest, over the variables, of ‖one - other‖ / ‖one - before‖ after training.

    Raises:
        RuntimeError: They began differently, have other variables, or one has not moved: nothing can be compared.
    """
    if one.before.keys() != other.before.keys() or any(
        one.before[name].tobytes() != other.before[name].tobytes() for name in one.before
    ):
        raise RuntimeError("the two jobs did not begin with the same weights")
    found = []
    for name, before in one.before.items():
        own, others = (trained.state.model[name].astype(np.float64) for trained in (one, other))
        moved = float(np.linalg.norm(own - before))
        if moved == 0:
            raise RuntimeError(f"{name}: training has not changed it, so there is nothing to compare")
        found.append(float(np.linalg.norm(own - others)) / moved)
    return max(found)


def differing(one: Snapshot, other: Snapshot) -> tuple[int, int]:
    """Numbers of two states that differ in any bit, and how many there are; what only one has differs whole."""
    differ = count = 0
    for group in ("model", "optimizer", "rng"):
        own: Mapping[str, np.ndarray] = getattr(one, group)
        others: Mapping[str, np.ndarray] = getattr(other, group)
        for name in dict.fromkeys([*own, *others]):
            arrays = [arrays[name] for arrays in (own, others) if name in arrays]
            size = max(array.size for array in arrays)
            count += size
            kinds = {(array.shape, array.dtype) for array in arrays}
            if len(arrays) < 2 or len(kinds) > 1:
                differ += size
            else:
                bits = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
                unequal = (bits[0] != bits[1]).reshape(size, -1) if size else np.zeros((0, 1), bool)
                differ += int(unequal.any(axis=1).sum())
    return differ, count


def measure(site: Site) -> None:
    """Both comparisons; the second one also where there is one rank alone."""
    how, results = site.settings, site.results
    write_data(site.folder, [CNN], how.rows)
    most, last = site.most, 2 * how.steps

    def compare() -> dict[str, Any]:
        stops = {WHOLE: (last,), RESUMED: (how.steps, last)}
        jobs = [Job(name, CNN, how.batch, own, DROPOUT) for name, own in stops.items()]
        same = (min(last, SAME_STEPS),)
        jobs += [Job(TOGETHER, CNN, how.batch, same)] if most > 1 else []
        found = train_in_turn(site, most, jobs, deterministic=True)
        differ, count = differing(found[WHOLE].state, found[RESUMED].state)
        tell(f"resume: {differ} of {count} numbers differ")
        told: dict[str, Any] = {"differ": differ, "numbers": count, "device": found[WHOLE].device}
        if most > 1:
            pieces = Job(PIECES, CNN, most * how.batch, same, run={"accumulate_steps": most})
            alone = train_in_turn(site, 1, [replace(pieces, name=ALONE, run={}), pieces], deterministic=True)
            told["deviation"] = deviation(alone[ALONE], found[TOGETHER])
            told["rounding"] = deviation(alone[ALONE], alone[PIECES])
            tell(f"{most} ranks as one: {told['deviation']:.2g} of the way")
        return told

    def records() -> list[Record]:
        told = results.once(TITLE, compare)
        config = {"part": TITLE, "steps": last, "batch": how.batch, **told}
        resumed = Sample("resume", [told["differ"]], ranks=most, config={**config, "what": "resume"})
        found = list(records_of(BENCHMARK, "numbers that differ", [resumed]))
        if "deviation" in told:
            same = Sample("as one rank", [told["deviation"]], ranks=most, config={**config, "what": "as one rank"})
            alone = Sample("rounding alone", [told["rounding"]], config={**config, "what": "rounding alone"})
            found += records_of(BENCHMARK, "of the way", [same, alone])
        return found

    results.add(TITLE, results.attempt(TITLE, records) or ())
    if most == 1:
        results.attempt("as one rank", _nothing_to_compare)


def _nothing_to_compare() -> None:
    raise MissingError("one rank has no others to be compared with; give --ranks 1 2, and a GPU for each")


def targets(found: Found) -> list[Target]:
    """Equal to rounding, and to the bit."""
    pairs = {what: [(f"{one.ranks} ranks", one.value) for one in found.where(what=what)] for what in _WANTED}
    return [at_most(name, wanted, pairs[what], most) for what, (name, wanted, most) in _WANTED.items()]


_WANTED = {
    "as one rank": ("Many ranks compute what one does", f"≤ {MOST_DEVIATION:g} of the way", MOST_DEVIATION),
    "resume": ("A resumed job is the same to the bit", "0 numbers differ", 0.0),
}


def page(records: Sequence[Record], site: Site) -> Report:
    """Section and targets."""
    found = Found(records)
    about = next(iter(found))
    batch, steps = about.config["batch"], about.config["steps"]
    text = [
        one.format(ranks=about.ranks, batch=batch, all=batch * about.ranks, steps=steps, same=min(steps, SAME_STEPS))
        for one in TEXT
    ]
    stand_in = [] if site.gpus else [f"{STAND_IN}the processor's own operations; what a GPU rounds is not seen."]
    rows = [
        (one.case, f"{one.ranks}", f"{words.number(one.value, 3)} {one.unit}", f"{one.config['numbers']:,}")
        for one in found
    ]
    table = Table(("Compared", "Ranks", "Found", "Numbers of a checkpoint"), rows, names=2)
    return Report(TITLE, [], targets(found), [Section(TITLE, [*stand_in, *text], [], [table])])
