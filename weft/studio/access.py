"""Who may enter. The printed address carries a token that is exchanged for a cookie at the first visit, and then is used up. Programs of
this machine send the token in the folder of keys.

Requests that change something must carry the header X-Weft-Studio, which a page of another site cannot send without permission; together with
cookies that other sites do not get (SameSite), that rules out cross-site request forgery.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import StudioConfig
from .keys import OneTimeToken, secret
from .ui.rendering import render

COOKIE = "weft_studio"
HEADER = "x-weft-studio"
SAFE = ("GET", "HEAD", "OPTIONS")
# NiceGUI compiles templates in the browser and starts pages by inline scripts; nothing is loaded from elsewhere.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip


class AccessMiddleware:
    """Lets in who has the token or the cookie, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, config: StudioConfig, token: OneTimeToken) -> None:
        self.app, self.config, self.token = app, config, token
        self._programs = secret(config.runs, "token")
        self._pass = hmac.new(secret(config.runs, "secret").encode(), b"pass", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(HTTPConnection(scope), scope["type"] == "websocket")
        if refusal is None:
            await self.app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await refusal(scope, receive, _with_headers(send))

    def _refusal(self, request: HTTPConnection, websocket: bool) -> Response | None:
        """The answer to a request that may not pass; None for one that may."""
        method = "GET" if websocket else request.scope["method"]
        path = request.url.path.removeprefix(self.config.prefix)
        if self.config.is_local and not _is_local_name(request.headers.get("host", "")):
            return _answer(request, 421, "The studio answers to this machine's own name only.")
        given = request.query_params.get("token")
        if given is not None and method in SAFE and self.token.take(given):
            return self._welcome(request)
        if not hmac.compare_digest(request.cookies.get(COOKIE, ""), self._pass) and not self._bears(request):
            return _answer(request, 401, "Open the address that weft studio printed: it carries the key to this page.")
        # Browsers send no Authorization header by themselves, so requests with a token need no further proof.
        unproven = HEADER not in request.headers and not self._bears(request)
        if path.startswith("/api/") and method not in SAFE and unproven:
            return _answer(request, 403, f"Requests that change something must carry the header {HEADER}.")
        return None

    def _bears(self, request: HTTPConnection) -> bool:
        """Whether a program sends the token, as `Authorization: Bearer TOKEN`."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip(), self._programs)

    def _welcome(self, request: HTTPConnection) -> Response:
        """The same address without the token, and the cookie."""
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        answer = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(
            COOKIE, self._pass, httponly=True, samesite="strict", path=self.config.prefix or "/", max_age=30 * 86400
        )
        return answer


def _is_local_name(host: str) -> bool:
    """A page of another site may point its own name at this machine; only this machine's names are answered."""
    name = host.rsplit(":", 1)[0] if host.count(":") == 1 or host.startswith("[") else host
    return name.strip("[]") in ("localhost", "127.0.0.1", "::1") or name.startswith("127.")


def _answer(request: HTTPConnection, status: int, message: str) -> Response:
    if "/api/" in request.url.path:
        return JSONResponse({"message": message}, status)
    return Response(render("refused.html", message=message), status, media_type="text/html")


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending
