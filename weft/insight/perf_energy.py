"""The energy of a processor from perf: RAPL as the events energy-pkg and energy-ram of the kernel's power PMU.

An alternative to powercap for the same counters, where that is missing or not readable: perf requires CAP_PERFMON or kernel.perf_event_paranoid
of 0, not a file that most systems restrict to the administrator.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path

from .counter_error import CounterError

PMU = Path("/sys/bus/event_source/devices/power")
EVENTS = {"energy-pkg": "packages", "energy-ram": "memory"}  # cores and the integrated GPU are parts of a package
PARANOID = "An administrator can allow it: sysctl kernel.perf_event_paranoid=0"
_ATTR_SIZE = 128  # PERF_ATTR_SIZE_VER7; all other fields are 0
_CLOSE_ON_EXEC = 8  # PERF_FLAG_FD_CLOEXEC
_SYSCALLS = {"x86_64": 298, "amd64": 298, "i686": 336, "aarch64": 241, "ppc64le": 319}

OpenEvent = Callable[[int, int, int], int]  # type of a PMU, event and CPU; a file descriptor


def open_perf_event(kind: int, event: int, cpu: int, pid: int = -1) -> int:
    """Open a counter of an event on a CPU, for all processes or one; returns a file descriptor. OSError says why it fails.

    man 2 perf_event_open: type and size are the first two words of the attributes, the event follows.
    """
    number = _SYSCALLS.get(platform.machine().lower())
    if number is None or platform.system() != "Linux":
        raise OSError(errno.ENOSYS, f"perf is not supported on {platform.system()} {platform.machine()}")
    attributes = struct.pack("=IIQ", kind, _ATTR_SIZE, event).ljust(_ATTR_SIZE, b"\0")
    library = ctypes.CDLL(None, use_errno=True)
    found = int(library.syscall(number, attributes, ctypes.c_int(pid), ctypes.c_int(cpu), ctypes.c_int(-1), ctypes.c_ulong(_CLOSE_ON_EXEC)))  # fmt: skip
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


class PerfCounter:
    """The joules of all packages of this machine and of their memory since it was opened."""

    def __init__(self, folder: Path = PMU, open_event: OpenEvent = open_perf_event) -> None:
        if not folder.is_dir():
            raise CounterError(f"there is no power PMU under {folder}")
        names = [name for name in EVENTS if (folder / "events" / name).is_file()]
        if "energy-pkg" not in names:
            raise CounterError(f"the power PMU {folder} has no event energy-pkg, as in most virtual machines")
        self.source = f"RAPL by perf: {' and '.join(EVENTS[name] for name in names)}"
        self._files: list[int] = []
        self._scales: list[float] = []
        try:
            kind, cpus = int(_text(folder / "type")), cpu_list(_text(folder / "cpumask"))
            for name in names:
                event, scale = _event(folder / "events" / name), _scale(folder / "events" / name)
                for cpu in cpus:  # one per package
                    self._files.append(open_event(kind, event, cpu))
                    self._scales.append(scale)
            self.read()
        except OSError as error:
            self.close()
            more = f". {PARANOID}" if error.errno in (errno.EACCES, errno.EPERM) else ""
            raise CounterError(f"perf cannot open the energy counters: {error.strerror}{more}") from None
        except ValueError as error:
            self.close()
            raise CounterError(f"the power PMU {folder} has an unknown format: {error}") from None

    def read(self) -> tuple[int, ...]:
        try:
            return tuple(struct.unpack("=Q", os.read(file, 8))[0] for file in self._files)
        except (OSError, struct.error) as error:
            raise CounterError(f"the energy counters of perf cannot be read: {error}") from None

    def joules(self, before: tuple[int, ...], after: tuple[int, ...]) -> float:
        return sum((last - first) * scale for first, last, scale in zip(before, after, self._scales, strict=True))

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def cpu_list(text: str) -> list[int]:
    """The CPUs of a list in the kernel's format.

    >>> cpu_list("0,18"), cpu_list("0-2,8")
    ([0, 18], [0, 1, 2, 8])
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        found += range(int(first), int(last) + 1) if dash else [int(first)]
    return found


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()


def _event(path: Path) -> int:
    """The number in a file such as event=0x02."""
    name, equals, value = _text(path).partition("=")
    if name != "event" or not equals:
        raise ValueError(f"{path.name} is {_text(path)[:40]!r}")
    return int(value, 0)


def _scale(path: Path) -> float:
    """Joules per count."""
    unit = _text(path.with_name(f"{path.name}.unit"))
    if unit != "Joules":
        raise ValueError(f"{path.name} is counted in {unit[:40]!r}")
    return float(_text(path.with_name(f"{path.name}.scale")))
