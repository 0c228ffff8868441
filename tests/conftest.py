"""Set-up shared by all tests: how hypothesis searches, and the last line of a run."""

import os
import signal
import tempfile
from typing import Any

import hypothesis
import pytest

# Compiled code of one run is kept for that run only: nothing of an older compiler is tested, and the user's folder stays clean.
_CACHE = tempfile.TemporaryDirectory(prefix="weft-test-cache-")
os.environ.setdefault("WEFT_CACHE", _CACHE.name)

# Kernels for GPUs run under Triton's interpreter. It asks once, when it is imported, and whoever imports it first is not known.
# The tests in gpu/ run them for real, in a process of their own.
if os.environ.get("WEFT_GPU_TESTS_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

# A process that was started in the background may have been told to ignore interrupts: tests of them would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Derandomized: a run that passes here passes on the build server too.
hypothesis.settings.register_profile("weft", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("weft")


@pytest.fixture(autouse=True)
def _errors_without_source_text(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors show the place of the user's line but not its text: a test that names the message it expects on that very line
    would find it there, whatever the message is. Tests of the text itself are marked `whole_errors`."""
    if "whole_errors" in request.keywords:
        return
    from weft.errors import Source

    monkeypatch.setattr(Source, "__str__", lambda source: f"{os.path.basename(source.code.co_filename)}:{source.line}")


_elsewhere = [0]  # checks of other processes, where tests are shared out to several


def checks_line() -> str | None:
    """Say how many single checks ran and with which seed; nothing when weft cannot be imported."""
    # Imported late: a broken weft must show as failing tests, not as a pytest that does not start.
    try:
        from weft.testing import checks_run, seed
    except ImportError:
        return None
    return f"checks: {checks_run() + _elsewhere[0]} (seed {seed()})"


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        from weft.testing import checks_run

        output["checks"] = checks_run()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _elsewhere[0] += getattr(node, "workeroutput", {}).get("checks", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    line = checks_line()
    if line is not None:
        terminalreporter.ensure_newline()
        terminalreporter.write_line(line)
