"""Writes Fashion-MNIST as HDF5 shards into the folder data/ beside this file: 8 to train on, 2 to test on.

    python examples/fashion_mnist/prepare.py [--source DIR]

The images are looked for in this order: DIR with the four IDX files, the folder of Debian's package
dataset-fashion-mnist, that package from apt-get (where root on Debian or Ubuntu), Keras's download. Where none can be
had, the 1,797 digits that scikit-learn carries stand in, enlarged to 28 x 28.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hpc_train.data import write_shards
from hpc_train.data.writing.convert import read_idx
from hpc_train.errors import UserError

DATA = Path(__file__).resolve().parent / "data"
DEBIAN_PACKAGE = "dataset-fashion-mnist"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
DOWNLOAD_LIMIT_SECS = 600

Arrays = dict[str, np.ndarray]
DOWNLOAD = """
import sys, numpy
from keras.datasets import fashion_mnist
(a, b), (c, d) = fashion_mnist.load_data()
numpy.savez(sys.argv[1], train_image=a, train_label=b, test_image=c, test_label=d)
"""


def from_folder(folder: Path) -> tuple[Arrays, Arrays]:
    """Training and test arrays from the four IDX files, plain or gzipped, in `folder`."""

    def read(name: str) -> np.ndarray:
        zipped = folder / f"{name}.gz"
        return read_idx(zipped if zipped.exists() else folder / name)

    train, test = (
        {"image": read(f"{part}-images-idx3-ubyte"), "label": read(f"{part}-labels-idx1-ubyte")}
        for part in ("train", "t10k")
    )
    return train, test


def from_apt() -> tuple[Arrays, Arrays]:
    """Installs Debian's package, then reads it."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UserError("apt-get needs root on Debian or Ubuntu")
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", DEBIAN_PACKAGE]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_SECS)
    if done.returncode != 0:
        raise UserError(f"apt-get install {DEBIAN_PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    return from_folder(DEBIAN_FOLDER)


def from_keras() -> tuple[Arrays, Arrays]:
    """Lets Keras download the data, in a process of its own so that it can be given a time limit."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        command = [sys.executable, "-c", DOWNLOAD, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_LIMIT_SECS)
        if done.returncode != 0:
            raise UserError(f"Keras's download: {done.stderr.strip().splitlines()[-1:]}")
        with np.load(file) as arrays:
            train, test = ({k: arrays[f"{part}_{k}"] for k in ("image", "label")} for part in ("train", "test"))
            return train, test


def from_digits() -> tuple[Arrays, Arrays]:
    """Scikit-learn's 8 x 8 digits, each pixel three wide, with a margin: uint8 [1797, 28, 28]."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "scikit-learn"], check=True)
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.round(digits.images * (255 / 16)).astype(np.uint8)
    image = np.pad(small.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    label = digits.target.astype(np.uint8)
    return {"image": image[:1500], "label": label[:1500]}, {"image": image[1500:], "label": label[1500:]}


def find(source: Path | None) -> tuple[str, Arrays, Arrays]:
    """The first of the sources that can be had: its description and its arrays."""
    if source is not None:
        return f"Fashion-MNIST from {source}", *from_folder(source)
    ways: list[tuple[str, Callable[[], tuple[Arrays, Arrays]]]] = [
        (f"Fashion-MNIST from {DEBIAN_FOLDER} (Debian's package)", lambda: from_folder(DEBIAN_FOLDER)),
        (f"Fashion-MNIST from Debian's package {DEBIAN_PACKAGE}, installed with apt-get", from_apt),
        ("Fashion-MNIST from Keras's download", from_keras),
    ]
    for description, way in ways:
        try:
            return description, *way()
        except (UserError, OSError, subprocess.TimeoutExpired) as problem:
            print(f"data: not {description}: {problem}")
    return "scikit-learn's 1,797 digits: Fashion-MNIST could not be had, so accuracies are of digits", *from_digits()


def prepare(source: Path | None = None, folder: Path = DATA) -> str:
    """Makes sure that the shards are in `folder`, from `source` where it is given; returns what they hold."""
    record = folder / "source.json"
    wanted = None if source is None else str(source.resolve())
    if record.exists():
        known = json.loads(record.read_text())
        if wanted is None or wanted == known["source"]:
            print(f"data: {known['description']}, in {folder} since an earlier run")
            return known["description"]
    description, train, test = find(source)
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    write_shards(fresh / "train", train, shards=8)
    write_shards(fresh / "test", test, shards=2)
    (fresh / "source.json").write_text(json.dumps({"source": wanted, "description": description}) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    rows = f"{len(train['label']):,} images to train on and {len(test['label']):,} to test on"
    print(f"data: {description}; {rows}, in {folder}")
    return description


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, help="folder with the four IDX files of Fashion-MNIST")
    try:
        prepare(parser.parse_args().source)
    except UserError as error:
        sys.exit(f"prepare.py: error: {error}")


if __name__ == "__main__":
    main()
