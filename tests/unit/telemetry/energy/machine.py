"""A stand-in for /sys with counters of energy."""

from __future__ import annotations

from pathlib import Path


class Machine:
    """Its files lie in `root` as in /sys; the zones of powercap are links, as there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "class/powercap").mkdir(parents=True)

    def zone(self, place: str, name: str, microjoules: int, wraps_at: int = 262_143_328_850) -> Path:
        """A zone of RAPL, `place` as in intel-rapl:0/intel-rapl:0:1, and its folder."""
        folder = self.root / "devices/virtual/powercap" / place.split(":")[0] / place
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{wraps_at}\n")
        (folder / "energy_uj").write_text(f"{microjoules}\n")
        (self.root / "class/powercap" / folder.name).symlink_to(folder)
        return folder

    def cray(self, text: str) -> None:
        """Cray's counter of the node."""
        folder = self.root / "cray/pm_counters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "energy").write_text(text)
