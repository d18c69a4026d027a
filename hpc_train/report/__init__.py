"""report.html: how a job went, in one file that needs nothing else; and several jobs side by side."""

from hpc_train.report.compare import write_comparison
from hpc_train.report.page import write_report

__all__ = ["write_comparison", "write_report"]
