"""Many ranks: how training scales, and what averages the gradients. The jobs are those of scaling.py."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from scale.forecast import curves_in, efficiency
from scale.jobs import MEMORY, SYNC, WEAK, Case, Run, run_case
from scale.measuring import Curve, check_room, measure_all
from scale.page import make_page
from scale.workloads import CNN, MLP, RESNET, Workload
from support import machine
from support.drawing import Bar, Bars
from support.page import Report, Section, Table, Target, at_least
from support.records import Found, Record, Sample, records_of
from support.usage import MissingError, tell

from acceptance.settings import BENCHMARK, STAND_IN, Site
from hpc_train.distributed.gpu_memory import NOT_TAKEN
from hpc_train.report import words

SCALING_TITLE, ALLREDUCE_TITLE = "Scaling", "Allreduce"
GPU_EFFICIENCY = 0.9
"""Of ResNet-101 and Inception V3 over Horovod on 128 GPUs with RDMA: Sergeev, Del Balso 2018, arXiv:1802.05799."""
SCALING_STAND_IN = f"{STAND_IN}small models on the cores, with Horovod over MPI."

HOROVOD, MPI, MPI_GPU = "Horovod", "MPI", "MPI, GPU memory"
CARRIERS = {MPI: "mpi", MPI_GPU: "mpi-gpu", HOROVOD: "horovod"}
"""By way: values of run.allreduce; the first is what the others are compared with."""
LEAST_NCCL, LEAST_MPI_GPU = 1.0, 1.0
ALLREDUCE_TEXT = (
    "Training of {title} on {ranks} ranks, with `run.allreduce: horovod`, which on GPUs uses NCCL where it was built "
    "with it, with `run.allreduce: mpi`, whose gradients go through the host, and with `run.allreduce: mpi-gpu`, whose "
    "gradients an MPI that takes the memory of GPUs (CUDA-aware) reads and writes there."
)
ALLREDUCE_STAND_IN = (
    f"{STAND_IN}no NCCL either; Horovod over MPI stands in for it, and a second TensorFlow device of the processor for "
    "the memory of GPUs. The ratios to run.allreduce: mpi say nothing of NCCL and of GPUs, and have no targets."
)


def workload_of(site: Site, small: Workload) -> tuple[Workload, int]:
    """ResNet-50 on GPUs, else `small`; and the rows of a rank and step."""
    return (RESNET, RESNET.gpu_batch) if site.gpus else (small, small.batch)


def measure_scaling(site: Site) -> None:
    """Weak scaling on all numbers of ranks."""
    workload, batch = workload_of(site, MLP)
    curve = Curve(WEAK, workload.name, workload.title, MEMORY, batch, tuple((SYNC, n) for n in site.ranks))
    if why := check_room(curve, machine.gpus() if site.gpus else ()):
        site.results.leave_out(SCALING_TITLE, why)
        return
    measure_all([curve], site.settings.scale, site.folder, site.launcher(), site.results, on_gpu=site.gpus > 0)


def scaling_page(records: Sequence[Record], site: Site) -> Report:
    """As scaling.py reports it, with a target for GPUs."""
    found = make_page(records, site.settings.scale, [], "")
    targets = list(found.targets)
    if site.gpus:
        points = [
            (f"{one.config['workload']}, {one.ranks} ranks", efficiency(one))
            for curve in curves_in(records)
            for one in curve.of(SYNC)
            if one.ranks > 1
        ]
        targets.append(at_least("Weak scaling on GPUs", f"≥ {GPU_EFFICIENCY}", points, GPU_EFFICIENCY, ".3f"))
    text = [] if site.gpus else [SCALING_STAND_IN]
    sections = [
        replace(one, title=f"{SCALING_TITLE}: {one.title}", text=[*text, *found.summary[1:2], *one.text])
        for one in found.sections
    ]
    return replace(found, targets=targets, sections=sections)


def measure_allreduce(site: Site) -> None:
    """All carriers in turns, on all ranks."""
    how, results = site.settings, site.results
    workload, batch = workload_of(site, CNN)

    def run(way: str) -> dict[str, Any]:
        if way == HOROVOD and importlib.util.find_spec("horovod") is None:
            raise MissingError("Horovod is not installed; run.allreduce: mpi is what averages gradients here")
        stand_in = way == MPI_GPU and not site.gpus
        carrier = (("allreduce", CARRIERS[way]),)
        case = Case(workload.name, MEMORY, SYNC, site.most, batch, run=carrier, stand_in=stand_in)
        try:
            found = run_case(site.folder, case, how.scale, site.launcher())
        except RuntimeError as error:
            if way == MPI_GPU and NOT_TAKEN in str(error):
                raise MissingError(f"run.allreduce: mpi-gpu: {NOT_TAKEN}") from None
            raise
        tell(f"{ALLREDUCE_TITLE}: {way}: {found.total:,.0f} examples/s")
        return asdict(found)

    def records() -> list[Record]:
        if site.most == 1:
            raise MissingError("one rank averages nothing; give --ranks 1 2, and a GPU for each")
        told = results.turns(ALLREDUCE_TITLE, {way: partial(run, way) for way in CARRIERS}, how.passes)
        totals = {way: [Run(**one).total for one in runs] for way, runs in told.items()}
        found: list[Record] = []
        for way, runs in told.items():
            last = Run(**runs[-1])
            nccl = way == HOROVOD and last.nccl
            config = {"part": ALLREDUCE_TITLE, "way": way, "title": workload.title, "nccl": nccl}
            config |= {"device": last.device, "shares": dict(last.shares)}
            against = {} if way == MPI else {MPI: totals[MPI]}
            sample = Sample(f"allreduce, {way}", totals[way], against, site.most, config)
            found += records_of(BENCHMARK, "examples/s", [sample])
        return found

    results.add(ALLREDUCE_TITLE, results.attempt(ALLREDUCE_TITLE, records) or ())


def carrier_of(record: Record) -> str:
    """What carried the gradients, in words."""
    if record.config["way"] == MPI:
        return "MPI"
    if record.config["way"] == MPI_GPU:
        return "MPI in the memory of GPUs"
    return "Horovod, NCCL" if record.config["nccl"] else "Horovod over MPI"


def allreduce_page(records: Sequence[Record], site: Site) -> Report:
    """Section and, on GPUs, the target."""
    found = Found(records)
    horovod, targets = found.one(way=HOROVOD), []
    if horovod is not None and site.gpus:
        fast = horovod.ratio is not None and horovod.ratio >= LEAST_NCCL
        value = f"{carrier_of(horovod)}: {words.number(horovod.ratio, 3)}"
        part = (f"{horovod.ranks} ranks", value, fast and bool(horovod.config["nccl"]))
        targets.append(Target("Gradients by NCCL against MPI, examples/s", f"NCCL, ≥ {LEAST_NCCL:g}", [part]))
    on_gpu = found.one(way=MPI_GPU)
    if on_gpu is not None and site.gpus:
        name = "Gradients by MPI in the memory of GPUs against through the host, examples/s"
        point = (f"{on_gpu.ranks} ranks", on_gpu.ratio)
        targets.append(at_least(name, f"≥ {LEAST_MPI_GPU:g}", [point], LEAST_MPI_GPU))
    about = next(iter(found))
    text = [ALLREDUCE_TEXT.format(title=about.config["title"], ranks=about.ranks)]
    rows = [
        (
            carrier_of(one),
            f"{one.value:,.0f}",
            words.number(one.config["shares"].get("communication"), 2),
            words.number(one.ratio, 3),
        )
        for one in found
    ]
    table = Table(("Gradients by", "Examples/s", "Communication, part of a step", "Ratio"), rows)
    figures = [Bars("Examples/s; MPI is 1", [Bar(carrier_of(one), one.ratio) for one in found if one.ratio])]
    stand_in = [] if site.gpus else [ALLREDUCE_STAND_IN]
    section = Section(ALLREDUCE_TITLE, [*stand_in, *text], figures if figures[0].bars else [], [table])
    return Report(ALLREDUCE_TITLE, [], targets, [section])
