"""Names of devices as settings spell them, read without loading the runtime or a driver.

`cpu` is the processor, `cuda` the first or the next free GPU, `cuda:1` the second GPU. Jobs are queued, planned and shown by these names;
what a device can do is asked of the `Device` itself, when there is one.
"""

from __future__ import annotations

from typing import NamedTuple

CPU, CUDA = "cpu", "cuda"


class DeviceName(NamedTuple):
    """The name of a device in its parts."""

    kind: str
    number: str = ""  # of several devices of a kind; empty: any of them

    @property
    def is_cpu(self) -> bool:
        return self.kind == CPU

    @property
    def is_gpu(self) -> bool:
        return self.kind == CUDA

    @property
    def is_one_gpu(self) -> bool:
        """Whether it is one certain GPU, not the next free one."""
        return self.is_gpu and self.number != ""


def read_device_name(name: str | None) -> DeviceName:
    """
    >>> read_device_name("cuda:1"), read_device_name("cuda").is_one_gpu
    (DeviceName(kind='cuda', number='1'), False)
    """
    kind, _, number = (name or "").partition(":")
    return DeviceName(kind, number)


def gpu_name(number: int) -> str:
    """
    >>> gpu_name(1)
    'cuda:1'
    """
    return f"{CUDA}:{number}"
