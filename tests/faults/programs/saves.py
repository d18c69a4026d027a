"""Saves a checkpoint in each folder that is named, in a process of its own, and tells how it went. No TensorFlow.

saves.py KEEP STEP FOLDER…: JSON lines [folder, exit status or minus a signal, what was said, the error].
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from hpc_train.checkpoint import disk_io
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.names import Retention
from tests.faults.support import snapshot_of
from tests.support import collect_log

disk_io.RETRY_WAITS_SECS = (0.01,) * len(disk_io.RETRY_WAITS_SECS)


def save(folder: Path, keep: int, step: int) -> dict[str, object]:
    notes, _ = collect_log()
    manager = CheckpointManager(folder, Retention(keep))
    try:
        manager.save(snapshot_of(step))
    except OSError as error:
        return {"notes": notes, "error": [error.errno, str(error), str(error.filename)]}
    except BaseException as error:
        return {"notes": notes, "raised": f"{type(error).__name__}: {error}"}
    return {"notes": notes}


keep, step = map(int, sys.argv[1:3])
for folder in map(Path, sys.argv[3:]):
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            os.write(told.fileno(), json.dumps(save(folder, keep, step)).encode())
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        told.seek(0)
        said = json.loads(told.read() or "{}")
    print(json.dumps([str(folder), os.waitstatus_to_exitcode(status), said]), flush=True)
