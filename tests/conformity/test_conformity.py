"""Models in the manner of public examples train as they do in Keras: a dozen and more here, all of them in `make soak`.

Of each, `program` compares weights, updates and metrics with Keras alone in the same run, trains in two halves, and
loads the export in plain TensorFlow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformity.cases import ALL, by_name
from tests.conformity.outcomes import DOCUMENT, comparable, mistakes, read
from tests.support import LIMIT_SECS, SOAK, run_ranks

IN_CI = {
    1: ("mlp", "dcgan", "float64"),
    2: (
        "masked_lstm",
        "several_outputs",
        "u_net",
        "mean_with_sample_weight",
        "added_rows",
        "sum_and_mean",
        "batch_normalized_masked",
        "embedding_adam",
        "stateful_lstm",
        "bfloat16",
        "eager_numpy",
        "two_rates",
        "sharpness_aware",
        "manual_accumulation",
        "own_metrics_of_rows",
    ),
    3: ("masked_lstm", "added_rows", "several_outputs", "two_rates", "accumulation"),
}
"""Names by ranks; three are a server and two workers."""


@pytest.mark.random
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_models_train_as_in_keras(ranks: int, tmp_path: Path) -> None:
    names = [case.name for case in ALL] if SOAK > 1 else list(IN_CI[ranks])
    outcomes = trained(ranks, names, tmp_path)
    far = [name for name in names if SOAK > 1 and mistakes(by_name()[name], outcomes[name])]
    far = [name for name in far if comparable(by_name()[name])]
    doubles = trained(ranks, far, tmp_path, "--float64") if far else {}
    wrong = {name: mistakes(by_name()[name], outcomes[name], doubles.get(name)) for name in names}
    assert {name: found for name, found in wrong.items() if found} == {}


def trained(ranks: int, names: list[str], folder: Path, *options: str) -> dict[str, dict[str, object]]:
    """What came of the cases called `names`."""
    results = folder / f"outcomes{len(options)}.jsonl"
    program = ["-m", "tests.conformity.program", results, *(["--async"] if ranks == 3 else []), *options, *names]
    done = run_ranks(0 if ranks == 1 else ranks, program, folder, LIMIT_SECS * (SOAK if SOAK > 1 else 1))
    assert done.returncode == 0, done.stderr[-3000:]
    found = read(results)
    assert list(found) == names
    return found


def test_the_page_has_all_models() -> None:
    text = DOCUMENT.read_text()
    assert [case.name for case in ALL if f"| `{case.name}` |" not in text] == []
