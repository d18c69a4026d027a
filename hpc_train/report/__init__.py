"""report.html: how a job went, in one file that needs nothing else; and several jobs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.report.compare import write_comparison
    from hpc_train.report.page import write_report

__all__ = ["write_comparison", "write_report"]


def __getattr__(name: str) -> Any:
    """Both are imported when they are first used: a rank that trains needs one of them once, at the job's end."""
    if name == "write_comparison":
        from hpc_train.report.compare import write_comparison

        return write_comparison
    if name == "write_report":
        from hpc_train.report.page import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
