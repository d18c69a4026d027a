"""Writes text made on the spot as HDF5 shards into the folder data/ beside this file: 4 to train on, 1 to test on.

    python examples/transformer/prepare.py [--folder DIR] [--rows N]

Sentences of a small grammar, the same each time: verbs agree with their subjects over the words between them, and
pronouns refer back to subjects and objects. A row is 64 characters of the text, `tokens`, and the character that comes
behind each of them, `next`.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np

from hpc_train.data import write_shards

DATA = Path(__file__).resolve().parent / "data"
LENGTH = 64
ROWS = 8192

ONE, MANY = ("a", "the", "this", "every"), ("two", "the", "these", "some")
ADJECTIVES = ("red", "small", "old", "quiet", "clever", "young", "heavy", "bright")
NOUNS = ("fox", "bird", "river", "painter", "lamp", "child", "wolf", "train")
PLURALS = {"fox": "foxes", "child": "children", "wolf": "wolves"}
VERBS = ("follow", "like", "find", "draw", "hear", "carry", "remember", "meet")
IN_THIRD_PERSON = {"carry": "carries"}
PLACES = ("in the park", "at night", "near the sea", "before noon")


def thing(draw: random.Random, many: bool) -> str:
    """Such as "the old quiet fox"."""
    noun = draw.choice(NOUNS)
    words = [draw.choice(MANY if many else ONE), *draw.sample(ADJECTIVES, draw.randrange(3))]
    return " ".join([*words, PLURALS.get(noun, f"{noun}s") if many else noun])


def sentence(draw: random.Random) -> str:
    """Such as "the foxes in the park follow a red bird because they like it."."""
    many, others = draw.random() < 0.5, draw.random() < 0.5
    verbs = [verb if many else IN_THIRD_PERSON.get(verb, f"{verb}s") for verb in draw.sample(VERBS, 2)]
    subject = f"{thing(draw, many)} {draw.choice(PLACES)}" if draw.random() < 0.5 else thing(draw, many)
    reason = f" because {'they' if many else 'it'} {verbs[1]} {'them' if others else 'it'}"
    return f"{subject} {verbs[0]} {thing(draw, others)}{reason if draw.random() < 0.5 else ''}. "


def rows_of(rows: int, seed: int) -> dict[str, np.ndarray]:
    """`tokens` and `next`, uint8 `[rows, 64]`: characters of one text, a row behind the other."""
    draw, parts, size = random.Random(seed), [], 0
    while size <= rows * LENGTH:
        parts.append(sentence(draw))
        size += len(parts[-1])
    text = np.frombuffer("".join(parts).encode("ascii"), np.uint8)
    shape = (rows, LENGTH)
    return {
        "tokens": text[: rows * LENGTH].reshape(shape),
        "next": text[1 : rows * LENGTH + 1].reshape(shape),
    }


def prepare(folder: Path = DATA, rows: int = ROWS) -> None:
    """Writes the shards, where there are none."""
    if (folder / "train-00000.h5").exists():
        print(f"data: in {folder} since an earlier run")
        return
    write_shards(folder / "train", rows_of(rows, seed=1), shards=4)
    write_shards(folder / "test", rows_of(max(1, rows // 16), seed=2), shards=1)
    print(f"data: {rows:,} rows of {LENGTH} characters to train on, {max(1, rows // 16):,} to test on, in {folder}")
    print(f"      {sentence(random.Random(3)).strip()}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=DATA, help="where the shards go [default: data/ beside this file]"
    )
    parser.add_argument("--rows", type=int, default=ROWS, help="to train on [default: 8192]")
    arguments = parser.parse_args()
    prepare(arguments.folder, arguments.rows)


if __name__ == "__main__":
    main()
