"""Set-up shared by all tests: how much a run takes (see sampling.py), how hypothesis searches, and the last line of a run.

`make test` samples the expensive sweeps with the seed that the last line prints, `make test-all` runs all of them, and
`make test FAST=1` runs few of them and leaves out the slow files.
"""

import gc
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.doctest import DoctestModule

from sampling import is_left_out, is_optimized, is_threaded, left_out, mode, some

# The ops of the extension would become part of every sweep; test_extend.py imports it. The others write files that tests read.
collect_ignore = ["extension", "make_saved.py", "torch_files", "keras_files"]

# Two folders of compiled code: one for this run, and one that later runs find again, in other checkouts, too. Keys hold the sources that
# code was made by (weft/compiler/store.py). Names in the environment are for the processes that this one starts.
_RUN_CACHE = tempfile.TemporaryDirectory(prefix="weft-test-cache-")
_CACHES = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
RUN_CACHE = os.environ.setdefault("WEFT_TEST_RUN_CACHE", _RUN_CACHE.name)
PERSISTENT_CACHE = os.environ.setdefault("WEFT_CACHE", str(_CACHES / "weft-tests"))

# Kernels for GPUs run under Triton's interpreter. It asks once, when it is imported, and whoever imports it first is not known.
# The tests in gpu/ run them for real, in a process of their own.
if os.environ.get("WEFT_GPU_TESTS_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
else:
    PERSISTENT_CACHE = RUN_CACHE  # what was made for simulated GPUs is of no use

# A process that was started in the background may have been told to ignore interrupts: tests of them would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Derandomized: a run that passes here passes on the build server too.
hypothesis.settings.register_profile("weft", deadline=None, derandomize=True, max_examples=some(100))
hypothesis.settings.load_profile("weft")


@pytest.fixture(autouse=True)
def _errors_without_source_text(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors show the place of the user's line but not its text: a test that names the message it expects on that very line
    would find it there, whatever the message is. Tests of the text itself are marked `whole_errors`."""
    if "whole_errors" in request.keywords:
        return
    from weft.errors import Source

    monkeypatch.setattr(Source, "__str__", lambda source: f"{os.path.basename(source.code.co_filename)}:{source.line}")


@pytest.fixture
def quick_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of quantization are collected without compiling; the network itself is compiled."""
    for name in ("observers", "quantization_report"):
        monkeypatch.setattr(import_module(f"weft.compress.{name}"), "jit", lambda function: function)


@pytest.fixture
def interpreted(quick_calibration: None) -> Iterator[None]:
    """Nothing is compiled: for tests of what is computed, not of how."""
    from weft.knobs import knobs

    with knobs.set(device="reference"):
        yield


@pytest.fixture(scope="session")
def shared_pools() -> Iterator[dict[int, Any]]:
    """Two and four processes for the tests of all files."""
    from rank_tools import SharedPool

    pools = {size: SharedPool(size) for size in (2, 4)}
    yield pools
    for pool in pools.values():
        pool.close()


_elsewhere = [0]  # checks of other processes, where tests are shared out to several


HOW_MUCH = {
    "all": "",
    "sample": "; sweeps are sampled, make test-all runs all of them",
    "fast": "; slow files and many cases are left out, make test runs them",
}


class OnlyModulesWithExamples:
    """Leaves out modules without an example, of which pytest would import each and look at every name in it.

    A plugin of its own: hooks of this file are asked about the files in this folder only.
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Iterator[Any]:
        found = yield
        return [one for one in found if not isinstance(one, DoctestModule) or b">>> " in file_path.read_bytes()]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(OnlyModulesWithExamples())


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if is_left_out(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gone = left_out(items)
    if gone:
        config.hook.pytest_deselected(items=gone)
        without = set(gone)
        items[:] = [item for item in items if item not in without]


def pytest_collection_finish() -> None:
    """Garbage collections do not look at the modules and the thousands of tests that live to the end: each took a third of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 10)  # instead of 700: searching was a fiftieth of the time


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain about objects that are left at the end


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Set how programs are compiled and run before the first fixture of a test, in this process and in those that it starts."""
    from weft.knobs import knobs

    with pytest.MonkeyPatch.context() as patch:
        for name, value in compile_settings(item.path).items():
            patch.setenv(f"WEFT_{name.upper()}", str(value))
            patch.setattr(knobs, name, value)
        return (yield)


def compile_settings(path: Path) -> dict[str, Any]:
    """The settings of the tests of a file. Those whose subject is compiled code find none of an earlier run, unless every second counts."""
    compiled_here = RUN_CACHE if mode() != "fast" else PERSISTENT_CACHE
    if is_optimized(path):
        return {"cache": compiled_here}
    if is_threaded(path):
        return {"cache": compiled_here, "optimize": 0}
    return {"cache": PERSISTENT_CACHE, "optimize": 0, "threads": 1}


def checks_line() -> str | None:
    """Say how many single checks ran and with which seed; nothing when weft cannot be imported."""
    # Imported late: a broken weft must show as failing tests, not as a pytest that does not start.
    try:
        from weft.testing import checks_run, seed
    except ImportError:
        return None
    return f"checks: {checks_run() + _elsewhere[0]} (seed {seed()}){HOW_MUCH[mode()]}"


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
    reasons = Counter(
        one.longrepr[2] for one in terminalreporter.stats.get("skipped", ()) if isinstance(one.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason.removeprefix('Skipped: ')}")
