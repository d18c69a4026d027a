"""Runs `hpc-train train` several times in the same ranks. Argument: a JSON file with a list of lists of arguments."""

import json
import sys
from pathlib import Path

from hpc_train.cli.app import app
from hpc_train.distributed.world import join_world
from hpc_train.resilience.signals import StopSignals

for arguments in json.loads(Path(sys.argv[1]).read_text()):
    app(["train", *arguments], obj=StopSignals(), standalone_mode=False)
    if join_world().is_chief:
        print("next job", flush=True)
    import keras

    keras.utils.clear_session()  # names of layers begin anew
