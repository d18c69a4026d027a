"""A rank that mpirun has started, in the stead of `python ARGUMENTS`: the server of tests/forks.py runs it in a fork.

Arguments: the server's socket, then ARGUMENTS. Signals are passed on; the end is that of the fork.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path


def pass_on(number: int, frame: object) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)


PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
    signal.SIGQUIT,
)

with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    ignored = [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
    ignored = [number for number in ignored if number != signal.SIGQUIT]  # prints stacks in the background too
    wish = json.dumps(
        {"arguments": sys.argv[2:], "cwd": str(Path.cwd()), "env": dict(os.environ), "ignored": ignored}
    ).encode()
    socket.send_fds(server, [len(wish).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(wish)
    answers = server.makefile()
    pid = int(answers.readline())
    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = int(answers.readline() or signal.SIGKILL)
if os.WIFSIGNALED(status):
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.WEXITSTATUS(status))
