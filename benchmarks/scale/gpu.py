"""How busy a rank's GPU is while it trains, as nvidia-smi tells."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress

PERIOD_MS = 500
END_SECS = 5.0


class GpuUse:
    """Asks nvidia-smi for one GPU's utilisation from its making until `stop`; local.

    Without nvidia-smi it knows nothing. Utilisation: the part of
    the time during which at least one kernel ran, as nvidia-smi defines it.
    """

    def __init__(self, gpu: str) -> None:
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        self._process: subprocess.Popen[str] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(
                ["nvidia-smi", *query, f"--id={gpu}", f"--loop-ms={PERIOD_MS}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    def stop(self) -> float | None:
        """The mean, 0 to 1; None where nothing is known."""
        if self._process is None:
            return None
        self._process.terminate()
        try:
            told, _ = self._process.communicate(timeout=END_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            told, _ = self._process.communicate()
        return mean_use(told)


def visible_gpu() -> str:
    """What nvidia-smi calls the first GPU that this process may use."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def mean_use(told: str) -> float | None:
    """Of what nvidia-smi printed, a line each time; what is not a number (an unsupported GPU) is left out. Pure."""
    percents = [float(line) for line in told.split() if line.replace(".", "", 1).isdecimal()]
    return sum(percents) / len(percents) / 100 if percents else None
