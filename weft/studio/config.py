"""The settings of a studio: where runs are, the address it listens on, its limits."""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path

from ..errors import UserError
from ..records import dataclass
from .forwarded import networks
from .keys import FOLDER
from .paths import AllowedPaths


@dataclass(frozen=True)
class StudioConfig:
    """What `weft studio` is started with."""

    runs: Path = Path("runs")
    host: str = "127.0.0.1"
    port: int = 8800
    hosts: tuple[
        str, ...
    ] = ()  # names that it answers to beside this machine's own; any, if other machines can reach it
    prefix: str = ""  # path below which a proxy serves the studio, such as /weft
    proxies: tuple[str, ...] = ()  # addresses of proxies whose X-Forwarded headers are believed
    tls_cert: Path | None = None  # certificate and key of HTTPS
    tls_key: Path | None = None
    database: str | None = None  # URL of the database of accounts; a SQLite file below the runs, if none
    at_once: int = 1  # jobs that run at the same time
    roots: tuple[
        Path, ...
    ] = ()  # folders whose files people may use by their path; the folder it is started in, if none
    datasets: Path | None = None  # where datasets are created; datasets beside the runs, if none
    largest_upload: int = 8 << 30  # bytes
    urls: bool = False  # whether images may be read from addresses of the internet
    network_memory: int = 2 << 30  # bytes of parameters of the networks that stay loaded
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
        """The paths that people may use: below the roots, the runs and the datasets; keys and accounts are not among them."""
        secrets = [self.runs / FOLDER, *(one for one in (self.tls_key, self.tls_cert) if one is not None)]
        return AllowedPaths([*(self.roots or (Path.cwd(),)), self.runs, self.dataset_folder], secrets)

    @property
    def address(self) -> str:
        """Where it answers."""
        host = self.hosts[0] if self.hosts else self.host
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        scheme = "http" if self.tls_cert is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.prefix}"

    def check(self) -> None:
        """Refuse settings that do not fit together, before anything is started."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UserError(
                "studio", "tls_cert and tls_key are required together: the certificate and its private key."
            )
        for path in (self.tls_cert, self.tls_key):
            if path is not None and not path.is_file():
                raise UserError("studio", f"a file is required for TLS, got {path}, which does not exist.")
        if self.prefix and not re.fullmatch(r"(/[\w.-]+)+", self.prefix):
            raise UserError("studio", f"a prefix such as /weft is required, got {self.prefix!r}.")
        networks(self.proxies)

    def warnings(self) -> list[str]:
        """What the owner should know before others use it."""
        if self.is_local or self.tls_cert is not None:
            return []
        if self.proxies:
            return ["The proxy must use TLS: passwords and images pass through it."]
        return [
            f"{self.address} has no TLS: others on the network can read passwords and images. Give tls_cert=FILE tls_key=FILE, "
            "or use a proxy with TLS and proxies=ADDRESS, or host=127.0.0.1 and an SSH tunnel."
        ]
