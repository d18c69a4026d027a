"""The numbers to reach, and what was measured beside them. A number to reach is never changed here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from support.records import Record
from support.report import Target

from scale.found import Measured, curves_in
from scale.settings import SYNC, WEAK

WEAK_SCALING: Mapping[str, float] = {"cnn": 0.88, "mlp": 0.78}
WEAK_WORKERS = 2
EMULATED, EMULATED_WORKERS, EMULATED_STEP_MS, EMULATED_BYTES = 0.95, 8, 100.0, 10**6


def targets(records: Iterable[Record]) -> list[Target]:
    """Those that something was measured for."""
    curves = curves_in(records)
    real = [curve for curve in curves if curve.workload in WEAK_SCALING and curve.kind == WEAK]
    emulated = [curve for curve in curves if curve.emulated_step_ms is not None]
    found = []
    if real:
        wanted = ", ".join(f"≥ {least} ({name})" for name, least in WEAK_SCALING.items())
        found.append(Target(f"Weak scaling, {WEAK_WORKERS} ranks", wanted, list(_weak(real))))
    if emulated:
        what = f"Emulated {EMULATED_STEP_MS:g} ms steps, {EMULATED_BYTES / 1e6:g} MB, {EMULATED_WORKERS} ranks"
        found.append(Target(what, f"efficiency ≥ {EMULATED}", list(_emulated(emulated))))
    return found


def _weak(curves: Iterable[Measured]) -> Iterator[tuple[str, str, bool]]:
    for curve in curves:
        record = curve.at(SYNC, WEAK_WORKERS)
        least = WEAK_SCALING.get(curve.workload)
        if record is not None and record.ratio is not None and least is not None:
            yield f"{curve.workload}, {record.config['data']}", f"{record.ratio:.3f}", record.ratio >= least


def _emulated(curves: Iterable[Measured]) -> Iterator[tuple[str, str, bool]]:
    for curve in curves:
        record = curve.at(SYNC, EMULATED_WORKERS)
        asked = curve.emulated_step_ms == EMULATED_STEP_MS
        if asked and record is not None and record.config["gradient_bytes"] == EMULATED_BYTES and record.ratio:
            yield curve.unit, f"{record.ratio:.3f}", record.ratio >= EMULATED
