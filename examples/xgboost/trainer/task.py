"""Trains boosted trees with XGBoost on the rows of all ranks, by XGBoost's own collective. One rank or many.

    python -m trainer.task --job-dir DIR [--rounds 60] [--data rows.csv]
    mpirun -np 4 python -m trainer.task --job-dir DIR

Rank 0 starts XGBoost's tracker and tells the others its address by MPI, which is used for nothing else. Every
--save-rounds rounds, and when the job is asked to stop, rank 0 writes DIR/checkpoints/round-<n>.ubj; a job that is
started again goes on from the newest, on as many ranks as it has. The model is DIR/model/model.json, and what it is
worth is in DIR/model/metrics.json.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import xgboost as xgb
from xgboost import collective
from xgboost.tracker import RabitTracker

EXIT_CODES = {signal.SIGUSR1: 3, signal.SIGTERM: 4}
"""What a job that was asked to stop ends with, so that it is known to have saved and to go on when started again."""
LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "MV2_COMM_WORLD_SIZE")
"""One of these is set in what an MPI launcher starts; a process that is started alone needs no MPI."""
KEPT_CHECKPOINTS = 2
SEED = 1
SIOCGIFADDR = 0x8915

asked: list[int] = []
"""The exit codes of the signals that have come; the first one counts."""


def parse() -> argparse.Namespace:
    """The command line; ends with code 2 where it cannot be used."""
    parser = argparse.ArgumentParser(prog="trainer.task", description=__doc__.splitlines()[0])
    parser.add_argument("--job-dir", type=Path, required=True, help="folder for all that the program writes")
    parser.add_argument("--data", type=Path, help="CSV without a header, label last [default: scikit-learn's digits]")
    parser.add_argument("--rounds", type=int, default=60, help="trees for each class, over all runs [default: 60]")
    parser.add_argument("--depth", type=int, default=4, help="of a tree [default: 4]")
    parser.add_argument("--learning-rate", type=float, default=0.2, help="[default: 0.2]")
    parser.add_argument("--save-rounds", type=int, default=10, help="rounds between checkpoints [default: 10]")
    parser.add_argument("--rows", type=int, help="use so many rows only")
    parser.add_argument("--interface", help="network interface for the collective, such as ib0 [default: found out]")
    arguments = parser.parse_args()
    for name in ("rounds", "depth", "learning_rate", "save_rounds"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')}: {getattr(arguments, name)} is not allowed; allowed: above 0")
    return arguments


# ---- ranks


@contextmanager
def collective_of_all_ranks(interface: str | None) -> Iterator[int]:
    """Joins all ranks in XGBoost's collective; without a launcher there is one rank, and nothing to join. Collective.

    Gives how many ranks are on this host.

    Where rank 0 has no address that the others reach, all end with code 2. An exception inside ends all ranks at once,
    which would wait for this one for ever.
    """
    if not any(name in os.environ for name in LAUNCHERS):
        yield 1
        return
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD
    tracker, where = None, None
    hosts = ranks.allgather(socket.gethostname())
    if ranks.rank == 0:
        try:
            tracker = RabitTracker(ranks.size, reachable_address(hosts, interface), sortby="task")
            tracker.start()
            where = tracker.worker_args()
        except ValueError as error:  # XGBoost's own is one, too
            where = str(error)
    where = ranks.bcast(where)
    if isinstance(where, str):
        sys.exit(refuse(where, ranks.rank))
    # The ranks of the collective are numbered by task: those of MPI.
    with collective.CommunicatorContext(dmlc_task_id=f"{ranks.rank:08d}", **where):
        try:
            yield hosts.count(hosts[ranks.rank])
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            ranks.Abort(1)
    if tracker is not None:
        tracker.wait_for()


def reachable_address(hosts: list[str], interface: str | None) -> str:
    """The address of this host, the first of `hosts`, by which the others reach it.

    That of `interface`; else 127.0.0.1 where there is one host alone; else the one from which this host sends to
    another. (What its own name stands for is 127.0.1.1 on many systems.)

    Raises:
        ValueError: There is no such interface, another host's name is not known, or only this host would reach it.
    """
    others = [host for host in hosts if host != hosts[0]]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if interface is not None:
            address = address_of(interface, probe)
        elif others:
            try:
                probe.connect((others[0], 9))  # sends nothing
            except OSError as error:
                raise ValueError(f"{hosts[0]} does not reach {others[0]}: {error.strerror}; try --interface") from error
            address = probe.getsockname()[0]
        else:
            return "127.0.0.1"
    if others and address.startswith("127."):
        raise ValueError(f"{others[0]} cannot reach {hosts[0]} at {address}; name the network's interface: --interface")
    return address


def address_of(interface: str, any_socket: socket.socket) -> str:
    """The IPv4 address of a network interface of this host."""
    try:
        request = struct.pack("256s", interface.encode())
        return socket.inet_ntoa(fcntl.ioctl(any_socket.fileno(), SIOCGIFADDR, request)[20:24])
    except OSError as error:
        here = ", ".join(name for _, name in socket.if_nameindex())
        raise ValueError(
            f"--interface {interface}: {error.strerror}; allowed: those with an address of {here}"
        ) from error


def largest(value: int) -> int:
    """The largest `value` of all ranks; a rank that has it knows that all have come so far. Collective."""
    return int(collective.allreduce(np.array([value]), collective.Op.MAX)[0])


# ---- files, of rank 0


def replace(path: Path, content: bytes) -> None:
    """Replaces `path` in one rename: nobody ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def save(booster: xgb.Booster, folder: Path) -> None:
    """Writes a checkpoint and removes old ones."""
    replace(folder / f"round-{booster.num_boosted_rounds():06d}.ubj", bytes(booster.save_raw("ubj")))
    for old in sorted(folder.glob("round-*.ubj"))[:-KEPT_CHECKPOINTS]:
        old.unlink()


# ---- training


def load(path: Path | None, rows: int | None) -> tuple[np.ndarray, np.ndarray, str]:
    """Features float32 [N, F], labels int64 [N] from 0 up, in random order, and a digest of them."""
    if path is None:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
    else:
        table = np.loadtxt(path, delimiter=",", ndmin=2)
        x, y = table[:, :-1], table[:, -1]
    order = np.random.default_rng(SEED).permutation(len(x))[:rows]
    x, y = x[order].astype(np.float32), y[order].astype(np.int64)
    return x, y, hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()


def train(arguments: argparse.Namespace, ranks_here: int) -> int:
    """Trains and tests on all ranks, or until a rank is asked to stop; returns the exit code. Collective."""
    rank, ranks, folder = collective.get_rank(), collective.get_world_size(), arguments.job_dir / "checkpoints"
    problem = None
    try:
        x, y, digest = load(arguments.data, arguments.rows)
        if len(x) < 10 * ranks:
            problem = f"{len(x)} rows are too few for {ranks} ranks; allowed: 10 for each at least"
    except (OSError, ValueError) as error:
        problem = f"rank {rank}: {error}"
    if worst := largest(2 if problem else 0):  # it may be one rank alone that cannot read them
        return worst if problem is None else refuse(f"--data {arguments.data or 'digits'}: {problem}", rank)
    held_out = len(x) // 5
    test_x, test_y = x[rank:held_out:ranks], y[rank:held_out:ranks]
    mine, test = xgb.DMatrix(x[held_out + rank :: ranks], y[held_out + rank :: ranks]), xgb.DMatrix(test_x, test_y)

    parameters = {
        "objective": "multi:softprob",
        "num_class": int(y.max()) + 1,
        "tree_method": "hist",
        "max_depth": arguments.depth,
        "learning_rate": arguments.learning_rate,
        # No subsample or colsample: XGBoost does not save the state of its random numbers (dmlc/xgboost#10324).
    }
    settings = json.dumps({**parameters, "rows_sha256": digest}, sort_keys=True)
    if (
        "OMP_NUM_THREADS" not in os.environ
    ):  # else XGBoost minds it; with more threads than cores it is many times slower
        parameters["nthread"] = max(1, len(os.sched_getaffinity(0)) // ranks_here)
    newest = max(folder.glob("round-*.ubj"), default=None) if rank == 0 else None
    saved = collective.broadcast(newest.read_bytes() if newest else b"", 0)
    booster = xgb.Booster(parameters, [mine, test], model_file=bytearray(saved) if saved else None)
    if saved and booster.attr("settings") != settings:
        return refuse(f"{folder} is of other settings or rows: {booster.attr('settings')}; use another --job-dir", rank)
    booster.set_attr(settings=settings)
    begin = booster.num_boosted_rounds()
    if rank == 0 and saved:
        print(f"goes on from round {begin}, on {ranks} ranks", flush=True)

    for number in range(begin, arguments.rounds):
        booster.update(mine, number)
        done = number + 1
        stop = largest(asked_to_stop())
        if rank == 0 and (stop or done % arguments.save_rounds == 0 or done == arguments.rounds):
            save(booster, folder)
            print(f"round {done}/{arguments.rounds}: saved", flush=True)
        if stop and done < arguments.rounds:
            if rank == 0:
                print("asked to stop; started again with the same --job-dir, it goes on from here", flush=True)
            return stop

    correct = int((booster.predict(test).argmax(axis=1) == test_y).sum())
    correct, of = collective.allreduce(np.array([correct, len(test_y)]), collective.Op.SUM).tolist()
    if rank == 0:
        metrics = {"accuracy": correct / of, "rounds": booster.num_boosted_rounds(), "ranks": ranks}
        metrics["rows"] = {"train": len(x) - of, "test": of}
        model = arguments.job_dir / "model"
        replace(model / "model.json", bytes(booster.save_raw("json")))
        replace(model / "metrics.json", (json.dumps(metrics, indent=2) + "\n").encode())
        print(f"accuracy {correct / of:.4f} on {of} rows that were held out, after {metrics['rounds']} rounds; {model}")
    return 0


def refuse(problem: str, rank: int) -> int:
    """Says what is wrong with the input; the exit code for it."""
    if rank == 0 or problem.startswith("rank "):
        print(f"trainer.task: error: {problem}", file=sys.stderr, flush=True)
    return 2


def note_signal(number: int, frame: FrameType | None) -> Any:
    """Remembers that the job is to stop; it does so, with all ranks, after the round that it is in."""
    asked.append(EXIT_CODES[signal.Signals(number)])


def asked_to_stop() -> int:
    """Lets in the signals that have come; the exit code of the first one ever, or 0."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, EXIT_CODES)
    signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_CODES)
    return asked[0] if asked else 0


def main() -> int:
    """Entry point; returns the exit code."""
    for number in EXIT_CODES:
        signal.signal(number, note_signal)
    # They wait outside until they are asked for: XGBoost's collective fails where one interrupts its calls, and one
    # that comes again would kill Python while it shuts down. The threads that XGBoost starts have the same mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, EXIT_CODES)
    arguments = parse()
    with collective_of_all_ranks(arguments.interface) as ranks_here:
        return largest(train(arguments, ranks_here))  # nobody leaves before rank 0 has written all


if __name__ == "__main__":
    sys.exit(main())
