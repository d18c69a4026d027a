"""The package against what would be used instead: the jobs and targets of overhead.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from peers.measuring import measure_all, plan
from peers.models import CNN, LARGE, MLP, check_memory, write_data
from peers.page import RANKS, make_page
from support.page import Report
from support.records import Found, Record
from support.usage import UsageError

from acceptance.settings import STAND_IN, Site

TITLE = "Peers"
AGAINST = ("horovod", "same-flags", "fit", "distribute")
QUICK_AGAINST = ("same-flags", "fit", "distribute")
PEERS_STAND_IN = f"{STAND_IN}all train on the cores, Horovod over MPI, tf.distribute in a ring."


def measure(site: Site) -> None:
    """On one rank and on two, of one node: what the targets are for."""
    models, quick = ([CNN, LARGE] if site.gpus else [MLP]), site.settings.peers.thin
    ranks = [n for n in (1, RANKS) if n <= min(site.most, site.here)]
    try:
        check_memory(models, max(ranks))
    except UsageError as error:
        site.results.leave_out(TITLE, str(error).removeprefix("--models: "))
        return
    write_data(site.folder, models, site.settings.peers.rows)
    units = plan(models, ranks, QUICK_AGAINST if quick else AGAINST, quick)
    measure_all(units, site.folder, site.settings.peers, site.results, site.gpus)
    if max(ranks) < RANKS:
        site.results.leave_out(f"{TITLE} on {RANKS} ranks", f"there are {max(ranks)} ranks on this node")


def page(records: Sequence[Record], site: Site) -> Report:
    """As overhead.py reports it."""
    found = make_page(Found(records), site.settings.peers)
    sections = [replace(one, title=f"{TITLE}: {one.title}") for one in found.sections]
    if not site.gpus:
        sections[0] = replace(sections[0], text=[PEERS_STAND_IN, *sections[0].text])
    return replace(found, sections=sections)
