"""Checks what is read of GPUs each second, with a management library that is made up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.studio.library.machine import GpuLoad, Machine


class NvmlError(Exception):
    """As the package has it."""


def refuse(gpu: str, *more: int) -> float:
    raise NvmlError("Not Supported")


def test_the_machine_shows_the_gpus_that_jobs_can_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = ["GPU-a", "GPU-b", "GPU-c"]
    memory = {"GPU-a": SimpleNamespace(used=1, total=2), "GPU-c": SimpleNamespace(used=3, total=8)}

    def memory_of(gpu: str) -> SimpleNamespace:
        if gpu not in memory:
            raise NvmlError("GPU is lost")
        return memory[gpu]

    fake = SimpleNamespace(
        NVMLError=NvmlError, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None, nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 3, nvmlDeviceGetHandleByIndex=lambda i: gpus[i], nvmlDeviceGetUUID=lambda gpu: gpu,
        nvmlDeviceGetMemoryInfo=memory_of, nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=70),
        nvmlDeviceGetTemperature=lambda gpu, what: 41, nvmlDeviceGetPowerUsage=refuse,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1,0")
    assert Machine(tmp_path).read().gpus == (
        GpuLoad("GPU 0", 0.7, 3, 8, 41.0, None),
        GpuLoad("GPU 2", 0.7, 1, 2, 41.0, None),  # the second one does not answer any more
    )
