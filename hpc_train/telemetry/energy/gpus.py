"""The counters of the GPUs that the ranks of a node use (NVML)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpc_train.telemetry.energy.counter import Counter, NotMeasuredError
from hpc_train.text import visible

ORDER_VARIABLE, AS_NVML = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


def nvml(library: Any = None, devices: Sequence[str | None] | None = (None,)) -> list[Counter]:
    """Of each GPU that the ranks use, empty where there is none. NotMeasuredError where one does not count.

    Needs pynvml (PyPI: nvidia-ml-py).

    Args:
        library: In the place of pynvml.
        devices: What ranks have as CUDA_VISIBLE_DEVICES, each None: all that NVML shows this process. None: ranks may
            open different ones, so that this process does not see those of the others.
    """
    if library is None:
        if not Path("/proc/driver/nvidia/version").exists():
            return []
        try:
            import pynvml as library  # type: ignore[import-not-found,import-untyped,no-redef,unused-ignore]
        except ImportError:
            raise NotMeasuredError("pynvml is not installed (pip install nvidia-ml-py)") from None
    if devices is None:
        raise NotMeasuredError(
            "each rank may open its own alone (srun --gpus-per-task); --gpu-bind=none shows them all"
        )
    try:
        library.nvmlInit()
        handles = [library.nvmlDeviceGetHandleByIndex(number) for number in range(library.nvmlDeviceGetCount())]
        told = [library.nvmlDeviceGetUUID(handle) for handle in handles]
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in told]  # bytes in old versions
        alike = os.environ.get(ORDER_VARIABLE) == AS_NVML or len({*map(library.nvmlDeviceGetName, handles)}) < 2
        found: dict[str, Counter] = {}
        for number in used(names, devices, alike):
            counter = Counter(names[number], lambda device=handles[number]: _joules(library, device))  # type: ignore[misc]
            counter.read()
            found[names[number]] = counter
    except NotMeasuredError:
        raise
    except Exception as error:  # of other versions, too: an old one lacks functions
        raise NotMeasuredError(f"NVML does not tell: {error}") from None
    return list(found.values())


def used(names: Sequence[str], devices: Sequence[str | None], alike: bool) -> list[int]:
    """The numbers of the GPUs that ranks use, each once. Pure.

    Args:
        names: By number, "GPU-…". devices: as in `nvml`, read as CUDA does: up to the first that there is not.
        alike: Whether CUDA numbers them as NVML does.

    Raises:
        NotMeasuredError: Ranks use parts of GPUs, or one that is not in `names`; or CUDA numbers them in another order.
    """
    found: dict[int, None] = {}
    for text in devices:
        for word in [str(number) for number in range(len(names))] if text is None else text.split(","):
            word = word.strip()
            if word.startswith("MIG-"):
                raise NotMeasuredError("what a part of one (MIG) uses is not counted")
            if word.isdecimal() and not alike and text is not None:
                raise NotMeasuredError(f"which are the job's is not known without {ORDER_VARIABLE}={AS_NVML}")
            known = [number for number, name in enumerate(names) if _is(word, number, name)]
            if word.startswith("GPU-") and not known:
                raise NotMeasuredError(f"{visible(word)} is not shown to the rank that reads the counters")
            if not known:
                break
            found.update(dict.fromkeys(known))
    return sorted(found)


def _is(word: str, number: int, name: str) -> bool:
    return int(word) == number if word.isdecimal() else word.startswith("GPU-") and name.startswith(word)


def _joules(library: Any, device: Any) -> float:
    try:
        return float(library.nvmlDeviceGetTotalEnergyConsumption(device)) / 1000
    except Exception as error:
        raise OSError(str(error)) from None
