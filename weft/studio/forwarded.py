"""The address, scheme and name that a proxy has seen. What the headers say is believed only of proxies that are named."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import UserError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Addresses and networks such as 10.0.0.0/8."""
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise UserError("studio", f"proxies= requires addresses such as 127.0.0.1 or 10.0.0.0/8: {error}.") from None


class ForwardedMiddleware:
    """Replaces client, scheme and host by those of the X-Forwarded headers of known proxies, and takes the prefix off once only."""

    def __init__(self, app: ASGIApp, proxies: Sequence[str], prefix: str) -> None:
        self.app, self.proxies, self.prefix = app, networks(proxies), prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope = dict(scope)
            twice = self.prefix * 2
            if self.prefix and (scope["path"] == twice or scope["path"].startswith(f"{twice}/")):
                scope["path"] = scope["path"].removeprefix(self.prefix)  # a proxy that leaves the prefix in the path
            if self._knows((scope.get("client") or ("",))[0]):
                self._believe(scope)
        await self.app(scope, receive, send)

    def _knows(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.proxies)

    def _believe(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # The last address that no known proxy has: those before it were sent by the client, who may write anything.
        way = [one.strip() for one in headers.get("x-forwarded-for", "").split(",") if one.strip()]
        unknown = [one for one in way if not self._knows(one)]
        if unknown:
            scope["client"] = (unknown[-1][:64], 0)
        scheme = headers.get("x-forwarded-proto", "").split(",")[-1].strip()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme if scope["type"] == "http" else {"http": "ws", "https": "wss"}[scheme]
        host = headers.get("x-forwarded-host", "").split(",")[-1].strip()
        if host:
            scope["headers"] = [(k, v) for k, v in scope["headers"] if k != b"host"] + [(b"host", host.encode())]
