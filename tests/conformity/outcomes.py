"""What of an outcome is as it should be, and the table that docs/models.md has of all of them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.conformity.cases import ALL, SUBJECTS
from tests.conformity.cases.case import Case

WEIGHTS, UPDATES, DOUBLE = 1e-5, 1e-3, 1e-10
IN_16_BITS = {"bfloat16", "mixed_bfloat16", "mixed_float16", "scaled_step"}
"""Cases that compute in 16 bits, of which these are the tolerances."""
WEIGHTS_IN_16_BITS, UPDATES_IN_16_BITS = 1e-2, 5e-2
METRICS = 1e-4
DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
HEADING = "## What was compared\n"
REFUSED = "strategy: sync"


def comparable(case: Case) -> bool:
    """Whether several ranks can be expected to do what one process does."""
    return not case.random and not case.rows_coupled


def mistakes(case: Case, outcome: dict[str, Any], doubles: dict[str, Any] | None = None) -> list[str]:
    """What is not as it should be.

    Args:
        doubles: The same case in float64, which shows that a larger difference in float32 is one of rounding.
    """
    if outcome["error"]:
        refused = outcome["strategy"] == "async" and REFUSED in outcome["error"]
        return [] if refused else [outcome["error"]]
    found = []
    if outcome["ranks"] == 1 or (comparable(case) and not outcome.get("warned")):
        short = case.name in IN_16_BITS
        weights, updates = (WEIGHTS_IN_16_BITS, UPDATES_IN_16_BITS) if short else (WEIGHTS, UPDATES)
        weights, updates = (DOUBLE, DOUBLE) if case.name == "float64" else (weights, updates)
        as_keras = outcome["weights"] <= weights and outcome["updates"] <= updates
        by_rounding = doubles is not None and not doubles["error"] and doubles["updates"] <= DOUBLE
        if not as_keras and not by_rounding:
            found.append(f"weights {outcome['weights']:.1e}, updates {outcome['updates']:.1e} apart from Keras's")
    if outcome["resumed"] is False:
        found.append("not the same to the bit when resumed")
    if outcome["exported"] is not None and not outcome["exported"] <= METRICS * (100 if case.name in IN_16_BITS else 1):
        found.append(f"the export is {outcome['exported']:.1e} apart from the model")
    wrong = {n: v for n, v in outcome["metrics"].items() if not v <= METRICS * (100 if case.name in IN_16_BITS else 1)}
    return [*found, *(f"metric {name} is {value:.1e} apart from Keras's" for name, value in wrong.items())]


def read(path: Path, ranks: range = range(1, 1000)) -> dict[str, dict[str, Any]]:
    """Outcomes by the name of their case, of those on so many ranks."""
    found = map(json.loads, path.read_text().splitlines())
    return {one["case"]: one for one in found if one["ranks"] in ranks}


def table(
    one: dict[str, Any], two: dict[str, Any], asynchronous: dict[str, Any], doubles: dict[bool, dict[str, Any]]
) -> Iterable[str]:
    """Lines of Markdown: of each case how far its updates are from Keras's. `doubles`: on several ranks, and on one."""
    for subject in SUBJECTS:
        yield f"### {subject.__name__.rpartition('.')[2].replace('_', ' ').capitalize()}"
        yield ""
        yield "| model | | 1 rank | 2 ranks | async | resumed | export | metrics |"
        yield "|---|---|---|---|---|---|---|---|"
        for case in subject.CASES:
            pair = two.get(case.name)
            resumed = {None: "", True: "to the bit", False: "**no**"}[pair["resumed"] if pair else None]
            exported = _far(pair["exported"]) if pair and pair["exported"] is not None else ""
            metrics = _far(max(pair["metrics"].values())) if pair and pair["metrics"] else ""
            ways = ((one, False), (two, True), (asynchronous, True))
            cells = [_cell(case, found.get(case.name), doubles[several].get(case.name)) for found, several in ways]
            yield f"| `{case.name}` | {case.note} | {' | '.join(cells)} | {resumed} | {exported} | {metrics} |"
        yield ""


def _cell(case: Case, outcome: dict[str, Any] | None, double: dict[str, Any] | None) -> str:
    if outcome is None:
        return ""
    if outcome["error"]:
        return "refused" if REFUSED in outcome["error"] else "**error**"
    if outcome["ranks"] > 1 and case.random:
        return "random"
    if outcome["ranks"] > 1 and case.rows_coupled:
        return "by rank"
    if outcome.get("warned"):
        return "by rank, warned of"
    within = outcome["updates"] <= UPDATES and outcome["weights"] <= WEIGHTS
    more = f" ({_far(double['updates'])})" if double and not within else ""
    return _far(outcome["updates"]) + more


def _far(value: float) -> str:
    return "0" if value == 0 else "none" if math.isnan(value) else f"{value:.0e}".replace("e-0", "e-")


def main() -> None:
    """`python -m tests.conformity.outcomes ONE TWO ASYNC DOUBLES`: writes the table into docs/models.md."""
    results = [read(Path(path)) for path in sys.argv[1:4]]
    doubles = {
        several: read(Path(sys.argv[4]), range(2, 1000) if several else range(1, 2)) for several in (False, True)
    }
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(HEADING)
    words = rest.partition("\n### ")[0].strip()
    DOCUMENT.write_text(f"{head}{HEADING}\n{words}\n\n" + "\n".join(table(*results, doubles)).rstrip() + "\n")
    for name, found in zip(("1 rank", "2 ranks", "async"), results, strict=False):
        for case in ALL:
            if case.name in found:
                for mistake in mistakes(case, found[case.name], doubles[name != "1 rank"].get(case.name)):
                    print(f"{name}: {case.name}: {mistake}")


if __name__ == "__main__":
    main()
