"""The state of a GPU, as NVIDIA's management library (NVML) reports it through the package nvidia-ml-py."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...nvml import nvml_library
from ..facts import Health


def health(bus: str) -> Health | None:
    """The state of the GPU at this PCI bus address; None if the package or the library is missing, or does not know the GPU."""
    with nvml_library() as nvml:
        if nvml is None:
            return None
        try:
            return _asked(nvml, nvml.nvmlDeviceGetHandleByPciBusId(bus))
        except nvml.NVMLError:
            return None


def _asked(nvml: Any, gpu: Any) -> Health:
    def ask(question: Callable[..., Any], *more: Any) -> Any:
        try:
            return question(gpu, *more)
        except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):  # not every GPU and driver reports every value
            return None

    power, limit = ask(nvml.nvmlDeviceGetPowerUsage), ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
    rates = ask(nvml.nvmlDeviceGetUtilizationRates)
    found = [ask(nvml.nvmlDeviceGetComputeRunningProcesses), ask(nvml.nvmlDeviceGetGraphicsRunningProcesses)]
    held = {p.pid: p.usedGpuMemory or 0 for processes in found for p in processes or ()}  # one may do both
    return Health(
        ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        None if power is None else power / 1000,  # it counts milliwatts
        None if limit is None else limit / 1000,
        None if rates is None else rates.gpu,
        None if found == [None, None] else sum(size for pid, size in held.items() if pid != os.getpid()),
    )
