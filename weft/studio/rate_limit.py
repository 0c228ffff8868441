"""Limits how often passwords can be tried, by name and by address. After some failures each further try has to wait, longer each time."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ..records import dataclass

MOST = 10_000  # names and addresses that are remembered; the oldest are forgotten
FORGOTTEN = 3600.0  # seconds after the last failure


@dataclass(frozen=True)
class Patience:
    """How many failures are free, and the longest wait in seconds. A name may not be locked for long by somebody else."""

    free: int
    longest: float


PATIENCE = {"name": Patience(5, 60.0), "address": Patience(20, 900.0)}


class LoginLimiter:
    """Counts failures. A try counts as failed until `succeeded` says otherwise, so that many at once do not slip through."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()  # count, time of the last one
        self._known: OrderedDict[tuple[tuple[str, str], tuple[str, str]], None] = (
            OrderedDict()
        )  # who has signed in from where
        self._lock = threading.Lock()

    def attempt(self, name: str, address: str) -> float:
        """Count a try; the seconds to wait instead, if it comes too early.

        From where somebody has signed in before, failures elsewhere under that name do not count: nobody else can keep them out.
        """
        keys = _keys(name, address)
        with self._lock:
            wait = max(self._wait(key) for key in (keys[1:] if keys in self._known else keys))
            if wait <= 0:
                self._count(keys, 1)
            return max(0.0, wait)

    def succeeded(self, name: str, address: str) -> None:
        """The last attempt succeeded: the count of its name restarts, and that of its address does not include it."""
        by_name, by_address = _keys(name, address)
        with self._lock:
            self._known[by_name, by_address] = None
            while len(self._known) > MOST:
                self._known.popitem(last=False)
            self._failures.pop(by_name, None)
            self._count([by_address], -1)

    def __len__(self) -> int:
        return len(self._failures)

    def _wait(self, key: tuple[str, str]) -> float:
        count, last = self._failures.get(key, (0, 0.0))
        patience = PATIENCE[key[0]]
        if count < patience.free:
            return 0.0
        return last + min(2.0 ** (count - patience.free), patience.longest) - self.clock()

    def _count(self, keys: Sequence[tuple[str, str]], change: int) -> None:
        now = self.clock()
        for key in keys:
            count, last = self._failures.pop(key, (0, now))
            if now - last > FORGOTTEN:
                count = 0
            if count + change > 0:
                self._failures[key] = count + change, now
        while len(self._failures) > MOST:
            self._failures.popitem(last=False)


def _keys(name: str, address: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("name", name.strip().lower()[:64]), ("address", _network(address))


def _network(address: str) -> str:
    """Who owns an IPv6 address owns 2^64 of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
