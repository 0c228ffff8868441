"""Images by their address, if the studio's owner allows it. A request never reaches private networks: every name is resolved here, every
address is checked, also after redirects, and the connection goes to the address that was checked."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from urllib.parse import SplitResult, urljoin, urlsplit

from ..errors import UserError

LARGEST = 32 << 20  # bytes
SECONDS = 10.0  # for everything
REDIRECTS = 3
CHUNK = 1 << 16


def fetch_image(url: str, largest: int = LARGEST, seconds: float = SECONDS) -> bytes:
    """The content at an http or https address."""
    deadline = time.monotonic() + seconds
    for _ in range(REDIRECTS + 1):
        parts = _checked(url)
        connection = _connect(parts, deadline)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"User-Agent": "weft-studio", "Accept": "image/*"})
            answer = connection.getresponse()
            if answer.status in (301, 302, 303, 307, 308):
                url = urljoin(url, answer.getheader("Location") or "")
                continue
            if answer.status != 200:
                raise UserError("studio", f"an image is required at {url}, got the answer {answer.status}.")
            return _read(answer, connection, largest, deadline)
        except (OSError, http.client.HTTPException) as error:
            raise UserError("studio", f"{url} cannot be read: {error or type(error).__name__}.") from None
        finally:
            connection.close()
    raise UserError("studio", f"an image is required at {url}, got more than {REDIRECTS} redirects.")


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise UserError("studio", f"an address that begins with http:// or https:// is required, got {url!r}.")
    return parts


def public_addresses(host: str, port: int) -> list[str]:
    """The addresses of a host. One that is not on the public internet rules the host out."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        raise UserError("studio", f"a host that exists is required, got {host!r}.") from None
    for address in found:
        if not is_public(address):
            raise UserError(
                "studio", f"an address of the public internet is required, got {host!r}, which is {address}."
            )
    return sorted(found)


def is_public(address: str) -> bool:
    """Whether an address is on the public internet: not private, loopback, link-local, multicast or reserved, also inside IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        if inner:
            return is_public(str(inner))
        if found in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


def _connect(parts: SplitResult, deadline: float) -> http.client.HTTPConnection:
    """A connection to an address that was checked; the name is used for TLS and the Host header only."""
    host = str(parts.hostname)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(host, port, timeout=_left(deadline))
    addresses = public_addresses(host, port)
    try:
        raw = socket.create_connection((addresses[0], port), _left(deadline))
        if parts.scheme == "https":
            raw = ssl.create_default_context().wrap_socket(raw, server_hostname=host)
    except OSError as error:
        raise UserError("studio", f"{host} cannot be reached: {error}.") from None
    connection.sock = raw
    return connection


def _read(
    answer: http.client.HTTPResponse, connection: http.client.HTTPConnection, largest: int, deadline: float
) -> bytes:
    found = bytearray()
    while True:
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline))
        chunk = answer.read1(CHUNK)
        if not chunk:
            return bytes(found)
        found += chunk
        if len(found) > largest:
            raise UserError("studio", f"an image of at most {largest >> 20} MiB is required, got a larger one.")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise UserError("studio", f"an answer within {SECONDS:g} s is required, got none.")
    return left
