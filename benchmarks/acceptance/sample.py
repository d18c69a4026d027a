"""Your own job on a GPU and on cores: whether both compute the same, and how much faster the GPU is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from support.page import Report, Section, Table, Target, at_least, at_most
from support.records import Found, Record, Sample, records_of
from support.usage import tell

from acceptance.own_job import OwnJob, run_job
from acceptance.rounds import WARM_UP
from acceptance.settings import BENCHMARK, STAND_IN, Site
from hpc_train.report import words

TITLE = "GPU against CPU"
CPU, GPU, EXACT, OTHER = "CPU", "GPU", "GPU, without TF32", "CPU, without oneDNN"
MOST_FIRST, MOST_LAST = 1e-4, 0.05
LAST = 0.1
TEXT = (
    "{job}, one rank, {steps} steps of the same rows from the same weights, in float32. “First loss” is that of the "
    "first step, before any update, “last loss” the mean of the last tenth of the steps: rounding grows from step to "
    "step. Losses are compared without TF32, rates with it."
)
SAMPLE_STAND_IN = (
    f"{STAND_IN}the same cores without oneDNN's operations, which round otherwise, stand in for it. The losses are "
    "compared; the ratio of the rates says nothing of a GPU, and has no target."
)


def ways_of(site: Site) -> dict[str, dict[str, str]]:
    """The environment of each way, beside that of all ranks; the CPU first."""
    cpu = {"CUDA_VISIBLE_DEVICES": "-1"}
    if not site.gpus:
        return {CPU: cpu, OTHER: {**cpu, "TF_ENABLE_ONEDNN_OPTS": "0"}}
    return {CPU: cpu, GPU: {}, EXACT: {"NVIDIA_TF32_OVERRIDE": "0"}}


def measure(job: OwnJob, site: Site) -> None:
    """Some hundred steps each way."""
    how, results, steps = site.settings, site.results, site.settings.sample_steps
    changes = {
        "train.max_steps": f"{steps}",
        "eval.steps": "1",
        "run.save_checkpoints_steps": f"{10**9}",
        "run.mixed_precision": "null",
    }

    def run(env: Mapping[str, str]) -> dict[str, Any]:
        told = run_job(job, 1, site.folder, site.launcher(env), changes, how.limit_secs)
        losses, ends = told["losses"], told["ends"][int(WARM_UP * len(told["ends"])) :]
        last = losses[-max(1, round(LAST * len(losses))) :]
        rate = job.batch / median(np.diff(ends).tolist())
        tell(f"{TITLE}: {rate:,.0f} examples/s, loss {losses[0]:.6g} to {losses[-1]:.4g}")
        return {"rate": rate, "first_loss": losses[0], "last_loss": sum(last) / len(last), "steps": len(losses)}

    def records() -> list[Record]:
        told = results.turns(TITLE, {way: partial(run, env) for way, env in ways_of(site).items()}, 1)
        found: list[Record] = []
        for way, runs in told.items():
            against = {} if way == CPU else {CPU: [one["rate"] for one in told[CPU]]}
            config = {"part": TITLE, "way": way, "job": job.path.name, **runs[-1]}
            sample = Sample(f"own job, {way}", [one["rate"] for one in runs], against, config=config)
            found += records_of(BENCHMARK, "examples/s", [sample])
        return found

    results.add(TITLE, results.attempt(TITLE, records) or ())


def off(own: Record, other: Record, which: str) -> float:
    """How far a loss is from another, as a part of that."""
    wanted = other.config[which]
    return abs(own.config[which] - wanted) / max(abs(wanted), np.finfo(np.float32).tiny)


def page(records: Sequence[Record], site: Site) -> Report:
    """Section and targets; on cores none for the speed."""
    found = Found(records)
    cpu, other, gpu = found.one(way=CPU), found.one(way=EXACT if site.gpus else OTHER), found.one(way=GPU)
    targets: list[Target] = []
    if cpu is not None and other is not None:
        name = other.config["way"]
        first, last = (off(other, cpu, which) for which in ("first_loss", "last_loss"))
        targets += [
            at_most("GPU and CPU: the first loss", f"equal within {MOST_FIRST:g}", [(name, first)], MOST_FIRST, ".2g"),
            at_most("GPU and CPU: the last loss", f"equal within {MOST_LAST:.0%}", [(name, last)], MOST_LAST, ".2%"),
        ]
    if gpu is not None:
        targets.append(at_least("GPU over CPU, examples/s", "≥ 1", [(GPU, gpu.ratio)], 1.0))
    about = next(iter(found)).config
    text = [TEXT.format(job=about["job"], steps=about["steps"])]
    rows = [
        (
            one.config["way"],
            f"{one.config['first_loss']:.7g}",
            f"{one.config['last_loss']:.4g}",
            f"{one.value:,.0f}",
            words.number(one.ratio, 3),
        )
        for one in found
    ]
    table = Table(("On", "First loss", "Last loss", "Examples/s", "x CPU"), rows)
    return Report(TITLE, [], targets, [Section(TITLE, text if site.gpus else [SAMPLE_STAND_IN, *text], [], [table])])
