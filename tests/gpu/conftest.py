"""Tests that need a GPU: collected where WEFT_GPU_TESTS_DEVICE names the device to run them on, as `make gpu-test` does.

cpu tries the tests themselves. Those marked `alone` measure memory or fill it: nothing may run beside them.
"""

import os
from collections.abc import Iterator

import pytest

import weft

DEVICE = os.environ.get("WEFT_GPU_TESTS_DEVICE")

collect_ignore_glob = [] if DEVICE else ["*"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: measures or fills the memory of the device")


@pytest.fixture(autouse=True)
def _on_the_device() -> Iterator[None]:
    """Everything a test makes is on the device, and products of float32 are not rounded to TF32."""
    exact = {"tf32": 0} if "tf32" in weft.knobs.__dict__ else {}
    with weft.knobs.set(device=DEVICE, **exact):
        yield
