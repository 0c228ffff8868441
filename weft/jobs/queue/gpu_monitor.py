"""The GPUs that CUDA shows to this process, in its order, as NVIDIA's management library (nvidia-ml-py) sees them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from ...nvml import open_nvml


class GpuMonitor:
    """The management library and the handles of the GPUs; none where there is no package, no driver or no GPU.

    `with GpuMonitor() as gpus` closes the library at the end; one that asks each second keeps it open.
    """

    def __init__(self) -> None:
        self._nvml: Any = open_nvml()
        self.handles: list[Any] = [] if self._nvml is None else self.ask(lambda: self._visible(self._nvml)) or []

    def __enter__(self) -> GpuMonitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def ask(self, question: Callable[[], Any]) -> Any:
        """An answer, or None of a GPU that does not measure it."""
        try:
            return question()
        except self._nvml.NVMLError:
            return None

    def memory(self, gpu: Any) -> Any:
        """Bytes of a GPU, as `used` and `total`; None of one that does not answer any more."""
        return self.ask(lambda: self._nvml.nvmlDeviceGetMemoryInfo(gpu))

    def use(self, gpu: Any) -> float | None:
        """How busy a GPU is, from 0 to 1."""
        return self.ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100)  # type: ignore[no-any-return]

    def celsius(self, gpu: Any) -> float | None:
        """The temperature of a GPU."""
        return self.ask(lambda: float(self._nvml.nvmlDeviceGetTemperature(gpu, self._nvml.NVML_TEMPERATURE_GPU)))  # type: ignore[no-any-return]

    def watts(self, gpu: Any) -> float | None:
        """The power that a GPU takes."""
        return self.ask(lambda: self._nvml.nvmlDeviceGetPowerUsage(gpu) / 1000)  # type: ignore[no-any-return]

    def processes(self, gpu: Any) -> dict[int, int]:
        """Bytes that each process uses of a GPU."""
        found = self.ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu)) or ()
        return {one.pid: int(one.usedGpuMemory or 0) for one in found}

    def _visible(self, nvml: Any) -> list[Any]:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        ids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        return [handles[i] for i in visible(os.environ.get("CUDA_VISIBLE_DEVICES"), ids)]


def visible(setting: str | None, ids: Sequence[str]) -> list[int]:
    """The numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; a part that names none ends the list, as for CUDA.

    >>> visible(None, ["GPU-a", "GPU-b"]), visible("1,0", ["GPU-a", "GPU-b"]), visible("GPU-b,7,0", ["GPU-a", "GPU-b"])
    ([0, 1], [1, 0], [1])
    """
    if setting is None:
        return list(range(len(ids)))
    found: list[int] = []
    for part in map(str.strip, setting.split(",")):
        if part.isdigit() and int(part) < len(ids):
            found.append(int(part))
        elif part and not part.isdigit() and any(one.startswith(part) for one in ids):
            found.append(next(i for i, one in enumerate(ids) if one.startswith(part)))
        else:
            break
    return found


def _text(found: Any) -> str:
    return found.decode() if isinstance(found, bytes) else str(found)
