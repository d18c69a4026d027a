"""Forks a rank for each program of tests/programs/rank.py that asks: what it needs has been imported by then.

Argument: the socket to be made. Ends when its standard input does.
"""

import ctypes
import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

import horovod.tensorflow  # noqa: F401
import numpy as np

import hpc_train.cli.app
import hpc_train.strategies.asynchronous.strategy
import hpc_train.strategies.synchronous.strategy
import hpc_train.training.trainer  # noqa: F401


def run(arguments: list[str], cwd: str, env: dict[str, str], ignored: list[int]) -> None:
    """`python ARGUMENTS`, as far as a process can tell: -c CODE, -m MODULE, or a script. `ignored` are signals."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of what starts in the background it is ignored
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if "INJECT" in env:
        ctypes.CDLL(None).inject_begin()
    random.seed()
    np.random.seed()
    how, *rest = arguments
    place = "" if how == "-c" else cwd if how == "-m" else str(Path(how).resolve().parent)
    sys.path[:] = [place, *(path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path), *search_path]
    if how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(how, run_name="__main__")


def received(peer: socket.socket) -> tuple[dict, list[int]]:
    """What a rank asks for, and its standard files. ValueError: it was ended before it had asked."""
    head, files, _, _ = socket.recv_fds(peer, 4, 3)
    text, length = b"", int.from_bytes(head, "big")
    while len(text) < length:
        text += peer.recv(length - len(text)) or b" " * length  # it has been ended
    return json.loads(text), files


def serve(path: str) -> dict | None:
    """Serves until standard input ends, and returns None; in each fork, what its rank asks for."""
    chosen, peers = selectors.DefaultSelector(), {}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{path}.new")
        server.listen(64)
        Path(f"{path}.new").rename(path)
        chosen.register(server, selectors.EVENT_READ)
        chosen.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for key, _ in chosen.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is not server:  # a rank that has ended, or whose program was killed
                    pid, pidfd, peer = peers[key.fd]
                    for fd in (pidfd, peer.fileno()):
                        chosen.unregister(fd)
                        del peers[fd]
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    _, status = os.waitpid(pid, 0)
                    with suppress(OSError):
                        peer.sendall(f"{status}\n".encode())
                    os.close(pidfd)
                    peer.close()
                    break  # what else was ready may have been closed
                peer, _ = server.accept()
                try:
                    wish, files = received(peer)
                except ValueError:
                    peer.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    os.setpgid(0, 0)
                    for other in (server, peer, *(each for _, _, each in peers.values())):
                        other.detach()
                    for fd, file in enumerate(files):
                        os.dup2(file, fd)
                    chosen.close()  # else it closes, some time, a number that another file has by then
                    os.closerange(3, 1024)
                    return wish
                for file in files:
                    os.close(file)
                with suppress(OSError):
                    peer.sendall(f"{pid}\n".encode())
                pidfd = os.pidfd_open(pid)
                for fd in (pidfd, peer.fileno()):
                    peers[fd] = pid, pidfd, peer
                    chosen.register(fd, selectors.EVENT_READ)


search_path = [path for path in sys.path[1:] if path not in os.environ["PYTHONPATH"].split(os.pathsep)]
gc.freeze()
if (wish := serve(sys.argv[1])) is not None:
    run(**wish)
