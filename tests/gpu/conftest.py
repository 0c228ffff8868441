"""Tests that need a GPU: collected where there is one. Those marked `alone` measure memory or fill it: nothing may run beside them.

WEFT_GPU_TESTS_DEVICE names another device to run them on (cpu tries the tests themselves), and has them run whatever is there.
"""

import os
from collections.abc import Iterator

import pytest

import weft
from weft.errors import RunError, UserError

NAMED = os.environ.get("WEFT_GPU_TESTS_DEVICE")
DEVICE = NAMED or "cuda"


def _works() -> bool:
    try:
        return weft.asarray([1.0, 2.0], device=DEVICE).numpy().tolist() == [1.0, 2.0]
    except (UserError, RunError):  # there is none, a package is missing, or the driver says no
        return False


collect_ignore_glob = [] if NAMED or _works() else ["*"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: measures or fills the memory of the device")


@pytest.fixture(autouse=True)
def _on_the_device() -> Iterator[None]:
    """Everything a test makes is on the device, and products of float32 are not rounded to TF32."""
    exact = {"tf32": 0} if "tf32" in weft.knobs.__dict__ else {}
    with weft.knobs.set(device=DEVICE, **exact):
        yield
