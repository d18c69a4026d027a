"""For the processes of tests, to start in little more than half the time.

Keras finds no scikit-learn and no matplotlib: it wraps the one and draws with the other where they are installed, which
nothing here makes use of. Everything but Keras finds them. And garbage is collected less often than TensorFlow's many
modules would have it.

Where TESTS_FORKS is a socket, hpc-train is run in a fork by its server, see tests/forks.py, but for `launch`.

SIGQUIT prints the stacks of all threads, see tests/stacks.py.
"""

import faulthandler
import gc
import os
import signal
import sys
from pathlib import Path

faulthandler.register(signal.SIGQUIT, file=2)
gc.set_threshold(100_000, 50, 100)


class NotForKeras:
    """Refuses the two while Keras itself is being imported."""

    def find_spec(self, name, path=None, target=None):
        if name in ("sklearn", "matplotlib"):
            keras = getattr(sys.modules.get("keras"), "__spec__", None)
            if getattr(keras, "_initializing", False):
                raise ImportError(f"{name} is kept from keras, see {__file__}")
        return None


sys.meta_path.insert(0, NotForKeras())

if "TESTS_FORKS" in os.environ:
    program, arguments = sys.orig_argv[1:2], sys.orig_argv[2:]
    if program == ["-m"]:
        program, arguments = arguments[:1], arguments[1:]
    if program and Path(program[0]).name in ("hpc-train", "hpc_train") and arguments[:1] != ["launch"]:
        rank = Path(__file__).parent.parent / "programs" / "rank.py"
        command = ["-I", "-S", str(rank), os.environ["TESTS_FORKS"], "-m", "hpc_train", *arguments]
        os.execv(sys.executable, [sys.executable, *command])
