"""Chooses the regularisation of a linear classifier by cross-validation, fits it and tests it. One process.

    python -m trainer.task --job-dir DIR [--grid 0.01 0.1 1] [--data rows.csv]

Each value of the grid is kept in DIR/grid/ as soon as it is known, so that a job that was stopped goes on with the next
one. The model is DIR/model/model.npz, in plain arrays, and what it is worth is in DIR/model/metrics.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

EXIT_CODES = {signal.SIGUSR1: 3, signal.SIGTERM: 4}
"""What a job that was asked to stop ends with, so that it is known to have saved and to go on when started again."""
SEED = 1

asked: list[int] = []
"""The exit codes of the signals that have come; the first one counts."""


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line; ends with code 2 where it cannot be used."""
    parser = argparse.ArgumentParser(prog="trainer.task", description=__doc__.splitlines()[0])
    parser.add_argument("--job-dir", type=Path, required=True, help="folder for all that the program writes")
    parser.add_argument("--data", type=Path, help="CSV without a header, label last [default: scikit-learn's digits]")
    parser.add_argument("--grid", type=float, nargs="+", default=[0.001, 0.01, 0.1, 1.0, 10.0], metavar="C")
    parser.add_argument("--folds", type=int, default=5, help="of the cross-validation [default: 5]")
    parser.add_argument("--rows", type=int, help="use so many rows only")
    arguments = parser.parse_args(words)
    if min(arguments.grid) <= 0:
        parser.error(f"--grid: {min(arguments.grid)} is not allowed; allowed: numbers above 0")
    try:
        x, y = load(arguments.data)
        seeded = np.random.default_rng(SEED).permutation(len(x))[: arguments.rows]
        arguments.parts = train_test_split(x[seeded], y[seeded], test_size=0.2, random_state=SEED, stratify=y[seeded])
    except (OSError, ValueError) as error:
        parser.error(f"--data {arguments.data or 'digits'}, --rows {arguments.rows}: {error}")
    smallest = np.unique(arguments.parts[2], return_counts=True)[1].min()
    if not 2 <= arguments.folds <= smallest:
        parser.error(f"--folds: {arguments.folds} is not allowed; allowed: 2 to {smallest}, the rows of a class")
    return arguments


def load(path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Features float64 [N, F] and labels int64 [N]."""
    if path is None:
        return load_digits(return_X_y=True)
    table = np.loadtxt(path, delimiter=",", ndmin=2)
    return table[:, :-1], table[:, -1].astype(np.int64)


def pipeline(c: float) -> Pipeline:
    """Standardised features, then logistic regression."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))


def cross_validated(c: float, x: np.ndarray, y: np.ndarray, folds: int, folder: Path) -> float:
    """Mean accuracy with regularisation `c`; from `folder` where it is known for just these rows, else kept there."""
    digest = hashlib.sha256(np.ascontiguousarray(x).tobytes() + y.tobytes()).hexdigest()
    settings = {"C": c, "folds": folds, "rows_sha256": digest}
    path = folder / f"C={c}.json"
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["settings"] == settings:
            print(f"C={c}: accuracy {kept['accuracy']:.4f}, kept from an earlier run", flush=True)
            return float(kept["accuracy"])
    accuracy = float(cross_val_score(pipeline(c), x, y, cv=folds).mean())
    write_json(path, {"settings": settings, "accuracy": accuracy})
    print(f"C={c}: accuracy {accuracy:.4f} in {folds}-fold cross-validation", flush=True)
    return accuracy


def replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Replaces `path` by what `write` puts into a file, in one rename: nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Replaces `path` by `value` as JSON."""
    replace(path, lambda file: file.write((json.dumps(value, indent=2) + "\n").encode()))


def note_signal(number: int, frame: FrameType | None) -> None:
    """Remembers that the job is to stop; it does so once it has kept what it is computing."""
    asked.append(EXIT_CODES[signal.Signals(number)])


def search(arguments: argparse.Namespace) -> int:
    """Searches, fits, tests and writes, or leaves when it is asked to; returns the exit code."""
    x, x_test, y, y_test = arguments.parts
    accuracies = {}
    for c in arguments.grid:
        accuracies[c] = cross_validated(c, x, y, arguments.folds, arguments.job_dir / "grid")
        if asked:
            print("asked to stop; started again with the same --job-dir, it goes on from here", flush=True)
            return asked[0]
    best = max(accuracies, key=lambda c: accuracies[c])
    fitted = pipeline(best).fit(x, y)
    scaler, classifier = (step for _, step in fitted.steps)
    arrays = {
        "mean": scaler.mean_,
        "scale": scaler.scale_,
        "coefficients": classifier.coef_,
        "intercept": classifier.intercept_,
        "classes": classifier.classes_,
    }
    metrics = {
        "accuracy": float(fitted.score(x_test, y_test)),
        "C": best,
        "cross_validation": {str(c): accuracy for c, accuracy in accuracies.items()},
        "rows": {"train": len(x), "test": len(x_test)},
    }
    model = arguments.job_dir / "model"
    replace(model / "model.npz", lambda file: np.savez(file, **arrays))
    write_json(model / "metrics.json", metrics)
    print(f"accuracy {metrics['accuracy']:.4f} on {len(x_test)} rows that were held out, with C={best}; {model}")
    return 0


def main() -> int:
    """Entry point; returns the exit code."""
    for number in EXIT_CODES:
        signal.signal(number, note_signal)
    code = search(parse())
    for number in EXIT_CODES:
        signal.signal(number, signal.SIG_IGN)  # one that comes again would kill Python while it shuts down
    return code


if __name__ == "__main__":
    sys.exit(main())
