"""Checks a Channel between rank 0 and the rank after it; further ranks hold no end. Prints "rank R is fine"."""

import sys
import threading
import time

import numpy as np

from hpc_train.distributed.channel import Channel
from hpc_train.distributed.excepthook import install_excepthook
from hpc_train.distributed.startup import join_world

MANY, BYTES = 300, 50_000_000
world = join_world("multiple")
install_excepthook(world)
ends = world.rank < 2
peer = 1 - world.rank

free = threading.Semaphore(0)
"""How often the memory may be overwritten."""
asked = threading.Event()
memory = [np.zeros((BYTES // 8,), np.float64), np.zeros((), np.int64), np.zeros((0, 3)), np.zeros((7, 5), np.uint8)]


def room() -> list[np.ndarray] | None:
    asked.set()
    return memory if free.acquire(blocking=False) else None


def sent(number: int) -> list[np.ndarray]:
    return [
        np.full((BYTES // 8,), number, np.float64),
        np.array(number, np.int64),
        np.zeros((0, 3)),
        np.full((7, 5), number, np.uint8),
    ]


def check_memory(number: int) -> None:
    assert all(np.all(array == number) for array in memory), number


def take(channel: Channel, within: float = 600.0) -> dict:
    begun = time.monotonic()
    while (message := channel.take(0.05)) is None:
        assert time.monotonic() - begun < within, "nothing has come"
    return message


def small_ones_both_ways(channel: Channel) -> None:
    for number in range(MANY):
        channel.send({"number": number, "text": "ü" * (number % 7), "none": None, "nan": float("nan")})
    for number in range(MANY):
        message = take(channel)
        assert (message["number"], message["text"], message["none"]) == (number, "ü" * (number % 7), None)
        assert np.isnan(message["nan"])
    for silent in (0, 1):  # the other end sends nothing before it hears from this one
        if world.rank == silent:
            assert channel.take() is None
            begun = time.monotonic()
            assert channel.take(0.2) is None
            assert time.monotonic() - begun > 0.15
            channel.send({"kind": "your turn"})
        else:
            assert take(channel) == {"kind": "your turn"}


def long_texts_both_ways(channel: Channel) -> None:
    """Beyond what MPI sends before the other end receives."""
    for number in range(20):
        channel.send({"number": number, "text": str(number) * 3_000_000})
    for number in range(20):
        message = take(channel)
        assert message == {"number": number, "text": str(number) * 3_000_000}
    channel.wait_until_sent()


def arrays_while_main_threads_work(channel: Channel) -> None:
    """Rank 1's state goes to rank 0; both multiply matrices meanwhile, and talk."""
    random = np.random.default_rng(0).normal(size=(300, 300))
    meanwhile = [{"kind": "meanwhile", "count": count} for count in range(3)]
    for number in (1, 2):
        if world.rank == 1:
            arrays = sent(number)
            channel.send({"kind": "arrays", "number": number}, arrays)
            channel.send({"kind": "after", "number": number})
            random @ random
            assert [take(channel) for _ in meanwhile] == meanwhile, "for which there is room only once these have left"
            channel.wait_until_sent()
            arrays[0][:] = -1
            assert take(channel) == {"kind": "got", "number": number}
            continue
        assert asked.wait(600)
        for message in meanwhile:
            channel.send(message)
        random @ random
        channel.wait_until_sent()
        assert channel.take() is None
        check_memory(number - 1)
        free.release()
        assert take(channel) == {"kind": "arrays", "number": number}
        check_memory(number)
        assert take(channel) == {"kind": "after", "number": number}
        asked.clear()
        channel.send({"kind": "got", "number": number})


def fine() -> None:
    with Channel(world, peer, room if world.rank == 0 else None) as channel:
        small_ones_both_ways(channel)
        long_texts_both_ways(channel)
        arrays_while_main_threads_work(channel)
        channel.send({"kind": "last words"})
        if world.rank == 0:
            time.sleep(0.5)
            assert take(channel) == {"kind": "last words"}
    with Channel(world, peer):  # a second one, of which nothing is said
        pass
    print(f"rank {world.rank} is fine", flush=True)


def errors() -> None:
    """A room that fails, a message that JSON cannot hold, and leaving by an exception: all told, nothing hangs."""

    def fails() -> None:
        if room() is not None:
            raise ValueError("no room")

    try:
        with Channel(world, peer, fails if world.rank == 0 else None) as channel:
            if world.rank == 1:
                channel.send({"kind": "arrays"}, [np.zeros(10**7)])
                assert take(channel) == {"kind": "asked"}
                raise KeyError("leaves while it sends")
            assert asked.wait(600)
            channel.send({"kind": "asked"})
            channel.wait_until_sent()
            free.release()
            take(channel)
            raise AssertionError("unreachable")
    except ValueError as error:
        assert (world.rank, str(error)) == (0, "no room")
    except KeyError:
        assert world.rank == 1
    try:
        with Channel(world, peer) as channel:
            channel.send({"text": b"bytes"} if world.rank == 0 else {"text": "fine"})
            channel.wait_until_sent()
            assert world.rank == 1
    except TypeError as error:
        assert "JSON" in str(error)
        assert world.rank == 0
    print(f"rank {world.rank} is fine", flush=True)


if sys.argv[1] == "fine":
    if ends:
        fine()
    else:
        for _ in range(2):
            Channel(world, 0)
        print(f"rank {world.rank} is fine", flush=True)
    world.wait_asleep()
else:
    errors()
    world.wait_asleep()
    world.abort(0)  # a transfer that nobody waits for is left
