from __future__ import annotations

import pytest

from tests.hostile.fuzz import tried
from tests.support import SOAK


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many cases the random tests have tried, under `make soak`."""
    if SOAK > 1 and tried:
        parts = ", ".join(f"{name} {cases:,}" for name, cases in tried.items())
        terminalreporter.write_line(f"hostile: {sum(tried.values()):,} cases ({parts})")
