"""Runs commands of hpc-train one after the other in one process. Arguments: the words of each, as JSON lists."""

import json
import sys

from hpc_train.cli.app import app
from hpc_train.resilience.signals import StopSignals

for words in sys.argv[1:]:
    print(f"next command: {words}", flush=True)
    try:
        app(json.loads(words), obj=StopSignals(), standalone_mode=False)
    except SystemExit as end:
        if end.code:
            raise
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session()  # names of layers begin anew
