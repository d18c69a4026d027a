"""How long ranks wait for rows of a slow source, with `data.train.stage: node` and without.

python benchmarks/staging.py             # five minutes; as root: it mounts a loop device, and limits what is read of it
python benchmarks/staging.py --quick     # tries everything once; the figures mean nothing
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from staged.jobs import Settings, run, waits, write_shards
from staged.page import BENCHMARK, SOURCE, STAGED, make_page, records
from staged.source import Source, slow_source
from support.launch import check_mpirun, check_ranks, working_parent
from support.results import Results, open_results
from support.usage import MissingError, make_parser, run_main, tell


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, BENCHMARK)
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="default: 2")
    return parser.parse_args()


@contextmanager
def source_of(results: Results, settings: Settings, folder: Path) -> Iterator[Source | None]:
    """A slow source of these shards; a quick run does without where there can be none."""
    with ExitStack() as stack:
        source = None
        try:
            slow = slow_source(folder, int(settings.megabytes * 1e6), int(settings.megabytes_per_sec * 1e6))
            source = stack.enter_context(slow)
        except MissingError as error:
            if not settings.quick:
                raise
            results.leave_out("a slow source", str(error))
        yield source


def main() -> int:
    args = arguments()
    check_mpirun()
    check_ranks([args.ranks], oversubscribe=True)
    settings = Settings(args.ranks)
    if args.quick:
        settings = Settings(args.ranks, megabytes=6, step_ms=1, batch_rows=8, passes=1, quick=True)
    with (
        open_results(args, BENCHMARK, asdict(settings)) as results,
        tempfile.TemporaryDirectory(dir=working_parent(args.dir, results.path), prefix="staging-") as name,
        source_of(results, settings, Path(name)) as source,
    ):
        shards, work = source.folder if source else Path(name), Path(name) / "work"
        work.mkdir()
        tell("making the shards")
        write_shards(shards, settings)
        ways = {way: partial(run, way == STAGED, source, shards, settings, work) for way in (SOURCE, STAGED)}
        told = results.turns("a job", ways, settings.passes)
        found = {way: [waits(one, settings.steps) for one in runs] for way, runs in told.items()}
        results.add("input wait", records(found, asdict(settings)))
        return results.conclude(make_page(results.records), args.strict)


if __name__ == "__main__":
    run_main(main)
