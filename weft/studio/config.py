"""The settings of a studio: where runs are, the address it listens on, its limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from .paths import AllowedPaths


@dataclass(frozen=True)
class StudioConfig:
    """What `weft studio` is started with."""

    runs: Path = Path("runs")
    host: str = "127.0.0.1"
    port: int = 8800
    prefix: str = ""  # path below which a proxy serves the studio, such as /weft
    at_once: int = 1  # jobs that run at the same time
    roots: tuple[
        Path, ...
    ] = ()  # folders whose files people may use by their path; the folder it is started in, if none
    datasets: Path | None = None  # where datasets are created; datasets beside the runs, if none
    largest_upload: int = 8 << 30  # bytes
    python_models: bool = False  # whether networks may be Python files of this machine, which are executed

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def dataset_folder(self) -> Path:
        """Where datasets are created."""
        return (self.datasets or self.runs.absolute().parent / "datasets").absolute()

    def allowed_paths(self) -> AllowedPaths:
        """The paths that people may use: below the roots, the runs and the datasets."""
        return AllowedPaths([*(self.roots or (Path.cwd(),)), self.runs, self.dataset_folder])

    @property
    def address(self) -> str:
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.prefix}"
