"""Two machines on one: network namespaces with a cable between them, and MPI that starts processes in both. Needs Linux and root.

with TwoMachines() as machines:
    process = subprocess.Popen(machines.mpiexec(4) + [sys.executable, "-m", "weft", "train", "digits"])
    machines.pull_the_plug()
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

HOSTS = {"a": "10.213.77.1", "b": "10.213.77.2"}
# MPICH's launcher calls it as it would call ssh: with the host and a command.
LAUNCHER = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host="$1"; shift
case "$host" in %s) exec ip netns exec %s sh -c "$*";; %s) exec ip netns exec %s sh -c "$*";; esac
echo "no machine $host" >&2; exit 1
"""


def missing() -> str:
    """What this machine lacks; "" if nothing."""
    if os.geteuid() != 0:
        return "root is required for network namespaces"
    if shutil.which("ip") is None:
        return "iproute2 is not installed"
    if find_spec("mpi4py") is None or _mpiexec() is None:
        return "mpi4py and mpiexec are not installed"
    version = subprocess.run([str(_mpiexec()), "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" not in version:
        return "mpiexec of MPICH is required"
    tried = subprocess.run(["ip", "netns", "add", f"weft-{os.getpid()}"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", f"weft-{os.getpid()}"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "network namespaces are not allowed here"


def _mpiexec() -> str | None:
    return shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


class TwoMachines:
    """See the head of this file. The machines share everything but their network."""

    def __init__(self) -> None:
        self.names = {side: f"weft-{side}-{os.getpid()}" for side in HOSTS}
        self._folder = tempfile.TemporaryDirectory()
        self._launcher = Path(self._folder.name) / "launcher.sh"

    def __enter__(self) -> TwoMachines:
        words = [word for side in HOSTS for word in (HOSTS[side], self.names[side])]
        self._launcher.write_text(LAUNCHER % tuple(words))
        self._launcher.chmod(0o755)
        cables = {side: f"weft{side}{os.getpid()}"[:15] for side in HOSTS}
        for name in self.names.values():
            _ip("netns", "add", name)
        _ip("link", "add", cables["a"], "type", "veth", "peer", "name", cables["b"])
        for side, name in self.names.items():
            _ip("link", "set", cables[side], "netns", name)
            _ip("-n", name, "addr", "add", f"{HOSTS[side]}/24", "dev", cables[side])
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", cables[side], "up")
        self._cable = cables["a"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name in self.names.values():
            for pid in _ip("netns", "pids", name).split():
                subprocess.run(["kill", "-9", pid], capture_output=True, check=False)
            _ip("netns", "del", name)
        self._folder.cleanup()

    def mpiexec(self, ranks: int) -> list[str]:
        """The beginning of a command that runs in so many processes, one half of them on each machine."""
        each = ranks // 2
        hosts = ",".join(f"{host}:{each}" for host in HOSTS.values())
        inside = ["ip", "netns", "exec", self.names["a"], "env", f"PATH={os.environ['PATH']}", str(_mpiexec())]
        launcher = [
            "-launcher",
            "ssh",
            "-launcher-exec",
            str(self._launcher),
            "-localhost",
            HOSTS["a"],
            "-hosts",
            hosts,
        ]
        # UCX would notice that the memory is the same, and use no network.
        return [*inside, *launcher, "-genv", "UCX_TLS", "tcp,self", "-n", str(ranks)]

    def processes(self, side: str, word: str) -> list[int]:
        """The processes of a machine with a word in their command, without the shells and launchers around them."""
        found = []
        for pid in map(int, _ip("netns", "pids", self.names[side]).split()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in command and b"python" in command[0] and b"mpiexec" not in b" ".join(command[:2]):
                found.append(pid)
        return found

    def sent_bytes(self) -> int:
        """What the first machine has sent to the other one so far."""
        place = f"/sys/class/net/{self._cable}/statistics/tx_bytes"
        return int(_ip("netns", "exec", self.names["a"], "cat", place))

    def pull_the_plug(self) -> None:
        """Nothing arrives any more, and nobody is told."""
        _ip("-n", self.names["a"], "link", "set", self._cable, "down")

    def plug_in(self) -> None:
        """The network works again."""
        _ip("-n", self.names["a"], "link", "set", self._cable, "up")


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
