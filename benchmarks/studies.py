"""What studies cost: asking, short trials, trials of unequal lengths, what ASHA saves; and what ensembles are worth.

python benchmarks/studies.py                        # more than an hour on two cores
python benchmarks/studies.py --parts asking short   # some of it
python benchmarks/studies.py --quick                # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from support import machine
from support.launch import check_mpirun, check_ranks, working_parent
from support.results import Results, open_results
from support.usage import make_parser, run_main, tell
from trials.page import (
    ALL,
    BENCHMARK,
    FRESH,
    KEPT,
    OPTUNA,
    SHORT,
    asking_records,
    ensemble_records,
    make_page,
    search_records,
    short_records,
    unequal_records,
)

PARTS = ("asking", "short", "unequal", "search", "ensembles")


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes:
        asked, asks: Trials that there are, and calls that are timed then.
        short_trials, short_secs, passes: Of training each; the ways there and back so many times.
        pairs, long_secs: Of trials of unequal lengths, and of training of the longer ones.
        seeds, trials, max_steps, first_rung: Of ASHA and of the full search.
        eval_batches: Of images that a trial is evaluated on.
        members, member_steps: Of an ensemble, one for each of the seeds.
    """

    parts: Sequence[str] = PARTS
    asked: int = 1000
    asks: int = 50
    short_trials: int = 40
    short_secs: float = 3.0
    passes: int = 2
    pairs: int = 8
    long_secs: float = 12.0
    seeds: int = 5
    trials: int = 27
    max_steps: int = 540
    first_rung: int = 60
    eval_batches: int = 8
    members: int = 5
    member_steps: int = 540


QUICK = {"asked": 30, "asks": 3, "short_trials": 2, "short_secs": 0.2, "passes": 1, "pairs": 2, "long_secs": 0.4}
QUICK |= {"seeds": 1, "trials": 3, "max_steps": 18, "first_rung": 2, "eval_batches": 1, "members": 2, "member_steps": 4}


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    return parser.parse_args()


def asking(results: Results, settings: Settings, parent: Path) -> None:
    from trials.asking import TUNES, ask

    ways = {way: partial(ask, way, settings.asked, settings.asks, parent) for way in TUNES}
    told = results.turns("asking", ways, 1)
    results.add("asking", asking_records(settings.asked, {way: runs[0] for way, runs in told.items()}))


def short(results: Results, settings: Settings, parent: Path) -> None:
    from trials.jobs import SLOTS, of_optuna, short

    steps = steps_of(settings.short_secs, results, parent)
    tell(f"{settings.short_trials} trials of {steps} steps")
    given = settings.short_trials, steps
    ways: dict[str, Callable[[], Any]] = {
        KEPT: partial(short, *given, [], parent),
        FRESH: partial(short, *given, ["--fresh-ranks"], parent),
        OPTUNA: partial(of_optuna, *given, parent),
    }
    results.add(SHORT, short_records(SLOTS, results.turns(SHORT, ways, settings.passes)))


def steps_of(secs: float, results: Results, parent: Path) -> int:
    """How many steps take so long, where a trial is alone; enough to be timed."""
    from trials.jobs import SUMMARY_STEPS, step_secs

    return max(2 * SUMMARY_STEPS, round(secs / results.once("seconds of a step", partial(step_secs, parent))))


def unequal(results: Results, settings: Settings, parent: Path) -> None:
    from trials.jobs import SLOTS, unequal

    steps = steps_of(settings.long_secs, results, parent)
    tell(f"{settings.pairs} pairs of trials of {steps} steps and a quarter of them")
    told = results.once("unequal trials", partial(unequal, settings.pairs, steps, parent))
    results.add("unequal trials", unequal_records(SLOTS, [told]))


def search(results: Results, settings: Settings, quick: bool, parent: Path) -> None:
    from trials.jobs import demo
    from trials.jobs import search as run

    rungs = f"tune.early_stopping={{asha: {{first_rung: {settings.first_rung}, factor: 3}}}}"
    same = [f"tune.max_trials={settings.trials}", f"train.max_steps={settings.max_steps}"]
    same += [f"params.decay_steps={settings.max_steps}", f"run.save_checkpoints_steps={settings.first_rung}"]
    same += [f"eval.steps={settings.eval_batches}", "eval.eval_every_checkpoint=true"]
    same += ["eval.start_delay_secs=0", "eval.throttle_secs=0"]
    with demo(parent, digits=quick) as (folder, data):
        told: dict[int, dict[str, Any]] = {}
        for seed in range(settings.seeds):
            ways = {"ASHA": [*same, rungs], ALL: [*same, "tune.early_stopping=none"]}
            told[seed] = {
                way: results.once(f"seed {seed}, {way}", partial(run, folder, seed, own)) for way, own in ways.items()
            }
        results.add("search", search_records(data, "accuracy", told))


def ensembles(results: Results, settings: Settings, quick: bool, parent: Path) -> None:
    from trials.ensembles import ensemble
    from trials.jobs import demo

    same = [f"train.max_steps={settings.member_steps}", f"params.decay_steps={settings.member_steps}"]
    same += [f"eval.steps={settings.eval_batches if quick else 'null'}"]
    with demo(parent, digits=quick) as (folder, data):
        told: dict[int, dict[str, Any]] = {}
        for seed in range(settings.seeds):
            own = [*same, f"ensemble={{members: {settings.members}, seed: {seed}}}"]
            told[seed] = results.once(f"ensemble {seed}", partial(ensemble, folder, f"{seed}", own))
        results.add("ensembles", ensemble_records(data, settings.members, told))


def main() -> int:
    args = arguments()
    check_mpirun()
    check_ranks([2], oversubscribe=False, one_node=True)
    settings = Settings(tuple(args.parts), **(QUICK if args.quick else {}))
    with open_results(args, BENCHMARK, asdict(settings)) as results:
        parts: dict[str, Callable[[Path], None]] = {
            "asking": partial(asking, results, settings),
            "short": partial(short, results, settings),
            "unequal": partial(unequal, results, settings),
            "search": partial(search, results, settings, args.quick),
            "ensembles": partial(ensembles, results, settings, args.quick),
        }
        with tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="studies-") as name:
            for part in args.parts:
                results.attempt(part, partial(parts[part], Path(name)))
        page = replace(make_page(results.records), facts=machine.versions(("optuna", "cmaes")))
        return results.conclude(page, args.strict)


if __name__ == "__main__":
    run_main(main)
