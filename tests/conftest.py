"""Set-up shared by all tests: how hypothesis searches, and the last line of a run."""

import os
import tempfile

import hypothesis
import pytest

# Compiled code of one run is kept for that run only: nothing of an older compiler is tested, and the user's folder stays clean.
_CACHE = tempfile.TemporaryDirectory(prefix="weft-test-cache-")
os.environ.setdefault("WEFT_CACHE", _CACHE.name)

# Derandomized: a run that passes here passes on the build server too.
hypothesis.settings.register_profile("weft", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("weft")


def checks_line() -> str | None:
    """Say how many single checks ran and with which seed; nothing when weft cannot be imported."""
    # Imported late: a broken weft must show as failing tests, not as a pytest that does not start.
    try:
        from weft.testing import checks_run, seed
    except ImportError:
        return None
    return f"checks: {checks_run()} (seed {seed()})"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    line = checks_line()
    if line is not None:
        terminalreporter.ensure_newline()
        terminalreporter.write_line(line)
