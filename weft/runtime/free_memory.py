"""How much memory is free: on the GPU in use, on the machine, or in the container."""

from __future__ import annotations

from pathlib import Path

from .device import device

SHARE = 0.9  # fraction of the free memory that may be used: other parts of the process need some, too
LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes() -> int | None:
    """Free memory of the GPU in use, else of the host; None if unknown."""
    own = device().free_memory()
    return _free_on_host() if own is None else own


def _free_on_host() -> int | None:
    """Free memory of the machine, or of the container."""
    found = []
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    for most, used in LIMITS:
        limit, taken = _text(most).strip(), _text(used).strip()
        if limit.isdigit() and taken.isdigit():
            found.append(int(limit) - int(taken))
    return max(0, min(found)) if found else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def size_text(count: float) -> str:
    """Bytes as text."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
