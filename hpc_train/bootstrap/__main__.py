#!/usr/bin/env python3
"""Builds this checkout's environment: TensorFlow, an MPI, mpi4py and Horovod in .venv, then hpc_train itself.

    python3 hpc_train/bootstrap [--tf 2.18.1] [--venv .venv] [--python python3.12] [--horovod no]

Needs Python 3.10 to 3.13, make and a C++ compiler. Horovod exists as source only, so it is built here, once for each
combination of TensorFlow, Python and MPI; the wheels are kept in ~/.cache/hpc_train for the next checkout.
--horovod no does without it, and without a compiler where MPI is the wheel; later calls leave it so.
HPC_TRAIN_MPI=wheel takes the Open MPI wheel whatever MPI is on PATH, HPC_TRAIN_GPU=0 or 1 overrides the search for a
GPU, and HPC_TRAIN_CACHE moves the cache.

This runs before anything is installed, and under any Python since 3.6, so that an old one can still find a newer one or
say what to do. Hence the standard library only, and no newer syntax.
"""

import importlib
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    for descriptor in range(3):  # as hpc_train/stdio.py: what is closed would be the next file that is opened
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # A package of its own: hpc_train itself needs what is not installed yet.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    sys.exit(importlib.import_module("bootstrap.set_up").main())
