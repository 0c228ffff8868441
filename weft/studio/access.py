"""Who may do what. Every request passes here, and roles.py says which role it needs.

On this machine alone, the printed address carries a token that is exchanged for a cookie at the first visit, and then is used up: who opens
it is the admin "local". Where other machines can reach the studio, or as soon as an admin has an account, people sign in.
Programs send a token: one of an account, or on this machine the one in the folder of keys.

Requests that change something must carry a token or the header X-Weft-Studio, which a page of another site cannot send without permission, and
their Origin, as that of a WebSocket, must be the studio; together with cookies that other sites do not get (SameSite), that rules out cross-site
request forgery.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import StudioConfig
from .keys import OneTimeToken, secret
from .roles import PUBLIC, SAFE, UNLOGGED, needed_role
from .store.accounts import LOCAL
from .store.credentials import PREFIX, StudioUser
from .store.database import DatabaseUnavailable
from .store.store import AccountStore
from .ui.rendering import render

COOKIE = "weft_studio"  # of who has opened the printed address
SESSION = "weft_session"  # of who has signed in
HEADER = "x-weft-studio"
SMALL_BODY, JSON_BODY = 64 << 10, 16 << 20  # bytes
CHECKED = 5.0  # seconds after which an open WebSocket is asked again who it belongs to
# NiceGUI compiles templates in the browser and starts pages by inline scripts; nothing is loaded from elsewhere.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip


def current_user(request: HTTPConnection) -> StudioUser:
    """Who sends a request: name and role."""
    user = request.scope.get("state", {}).get("user")
    if not isinstance(user, StudioUser):
        raise LookupError("the request has not passed AccessMiddleware, or its page is public")
    return user


class AccessMiddleware:
    """Lets in who may do what a request asks for, says who it is, and sets the headers of every answer."""

    def __init__(self, app: ASGIApp, config: StudioConfig, token: OneTimeToken, store: AccountStore) -> None:
        self.app, self.config, self.token, self.store = app, config, token, store
        self._programs = secret(config.runs, "token")
        self._pass = hmac.new(secret(config.runs, "secret").encode(), b"pass", hashlib.sha256).hexdigest()
        # Of its own: the shared threads may all be busy with work of pages.
        self._threads = ThreadPoolExecutor(4, "weft-studio-access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        request, websocket = HTTPConnection(scope), scope["type"] == "websocket"
        try:
            user, signs_in = await self._asked(request)
            refusal = self._refusal(request, user, signs_in)
        except DatabaseUnavailable as error:
            user, refusal = None, refused(request, 503, error.message)
        if refusal is not None and websocket:
            await send({"type": "websocket.close", "code": 1008})
        elif refusal is not None:
            await refusal(scope, receive, _with_headers(send, scope))
        else:
            scope.setdefault("state", {})["user"] = user
            if websocket and user is not None:
                watch = _Watched(self, request, user, receive, send)
                await self.app(scope, watch.receive, watch.send)
            else:
                most = _most_bytes(request, user)
                await self.app(scope, _bounded(receive, most), _with_headers(self._logged(scope, user, send), scope))

    # --- who it is -----------------------------------------------------------------------------------------------------------------

    async def _asked(self, request: HTTPConnection) -> tuple[StudioUser | None, bool]:
        """Who it is, and whether people need an account: asked in a thread, because the database may be slow."""
        if route_path(request.scope).startswith("/assets/"):  # for everybody, also while the database cannot be asked
            return None, True
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, request)

    def _ask(self, request: HTTPConnection) -> tuple[StudioUser | None, bool]:
        user = self.identify(request)
        known = user is not None and "token" not in request.query_params
        return user, known or self.signs_in()

    def signs_in(self) -> bool:
        """Whether people need an account."""
        return not self.config.is_local or self.store.has_admin()

    def identify(self, request: HTTPConnection) -> StudioUser | None:
        """Who sends a request. A token that is sent along counts alone."""
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            if hmac.compare_digest(bearer.strip().encode(), self._programs.encode()) and _is_loopback(request):
                return StudioUser(LOCAL, "admin", LOCAL)
            return self.store.user_of_token(bearer.strip())
        session = request.cookies.get(SESSION, "")
        if session.startswith(PREFIX):  # signed in with an API token
            return self.store.user_of_token(session)
        user = self.store.user_of_session(session) if session else None
        if user is None and not self.signs_in():
            if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self._pass.encode()):
                return StudioUser(LOCAL, "admin", LOCAL)
        return user

    # --- what may not pass -----------------------------------------------------------------------------------------------------------

    def _refusal(self, request: HTTPConnection, user: StudioUser | None, signs_in: bool) -> Response | None:
        """The answer to a request that may not pass; None for one that may."""
        method = request.scope.get("method", "GET")
        path = route_path(request.scope)
        if not self._answers_to(request.headers.get("host", "")):
            return refused(request, 421, "The studio answers to this machine's own name only.")
        # The channel of the pages is read and written by GET, too, where there is no WebSocket.
        acts = method not in SAFE or request.scope["type"] == "websocket" or path.startswith("/_nicegui_ws/")
        if acts and not _is_same_site(request):
            return refused(
                request, 403,
                "Requests of other sites are rejected. A proxy must pass the Host header on, or be named: proxies=ADDRESS.",
            )  # fmt: skip
        given = request.query_params.get("token")
        if given is not None and not signs_in and method in SAFE and self.token.take(given):
            return self._welcome(request)
        role, most = needed_role(method, path), _most_bytes(request, user)
        if most is not None and _length(request) > most:
            return refused(request, 413, f"At most {most:,} bytes are accepted here.")
        # Browsers send no token by themselves, so requests with one need no further proof.
        unproven = HEADER not in request.headers and "authorization" not in request.headers
        if path.startswith("/api/") and method not in SAFE and unproven and (user or role == PUBLIC):
            return refused(request, 403, f"Requests that change something must carry the header {HEADER}.")
        if role == PUBLIC:
            return None
        if user is None:
            return self._stranger(request, path, signs_in)
        if role is None:
            return refused(request, 404, "There is no such page.")
        if not user.may(role):  # type: ignore[arg-type]
            return refused(request, 403, _lacks(role, user))
        return None

    def _stranger(self, request: HTTPConnection, path: str, signs_in: bool) -> Response:
        if not signs_in:
            return refused(request, 401, "Open the address that weft studio printed: it carries the key to this page.")
        if path.startswith("/api/") or request.scope["type"] == "websocket":
            return refused(request, 401, "Sign in, or send a token: Authorization: Bearer TOKEN.")
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{self.config.prefix}/login?next={quote(path + query)}", 303)

    def _answers_to(self, host: str) -> bool:
        """A page of another site may point its own name at this machine; only the studio's names are answered."""
        name = host_name(host)
        if not self.config.hosts and not self.config.is_local:
            return True
        return name in self.config.hosts or name == "localhost" or _is_loopback_address(name)

    def _welcome(self, request: HTTPConnection) -> Response:
        """The same address without the token, and the cookie."""
        rest = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        answer = RedirectResponse(request.url.path + (f"?{rest}" if rest else ""), 303)
        set_cookie(answer, request, self.config, COOKIE, self._pass, 30 * 86400)
        return answer

    # --- the log ------------------------------------------------------------------------------------------------------------------------

    def _logged(self, scope: Scope, user: StudioUser | None, send: Send) -> Send:
        """Changes that were made become part of the audit log."""
        path = route_path(scope)
        if scope["method"] in SAFE or user is None or not path.startswith("/api/") or UNLOGGED.fullmatch(path):
            return send

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                self.store.log(user.name, scope["method"].lower(), path.removeprefix("/api/v1"), client_address(scope))
            await send(message)

        return sending


class _Watched:
    """A WebSocket that ends when its user signs out, is disabled or gets another role."""

    def __init__(
        self, access: AccessMiddleware, request: HTTPConnection, user: StudioUser, receive: Receive, send: Send
    ) -> None:
        self.access, self.request, self.user = access, request, user
        self._receive, self._send = receive, send
        self._checked, self._ended = time.monotonic(), False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.receive" and not await self._holds():
            return {"type": "websocket.disconnect", "code": 1008}
        return message

    async def send(self, message: Message) -> None:
        if message["type"] != "websocket.send" or await self._holds():
            await self._send(message)

    async def _holds(self) -> bool:
        if not self._ended and time.monotonic() - self._checked > CHECKED:
            self._checked = time.monotonic()
            try:
                user, _ = await self.access._asked(self.request)
                self._ended = user != self.user
            except DatabaseUnavailable:  # asked again the next time
                return True
            if self._ended:
                await self._send({"type": "websocket.close", "code": 1008})
        return not self._ended


# --- addresses, names, cookies ------------------------------------------------------------------------------------------------------------


def set_cookie(
    answer: Response, request: HTTPConnection, config: StudioConfig, name: str, value: str, seconds: int | None
) -> None:
    """A cookie that scripts cannot read and other sites do not send; over TLS it never travels without."""
    answer.set_cookie(
        name, value, httponly=True, samesite="strict", secure=request.url.scheme == "https", path=config.prefix or "/",
        max_age=seconds,
    )  # fmt: skip


def route_path(scope: Scope) -> str:
    """The path of a request without the prefix of the proxy."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(prefix) :] or "/" if prefix and path.startswith(prefix) else path


def client_address(scope: Scope) -> str:
    """Where a request comes from."""
    return str((scope.get("client") or ("",))[0])


def host_name(host: str) -> str:
    """The name in a Host header, without the port.

    >>> host_name("example.org:8800"), host_name("[::1]:80"), host_name("::1")
    ('example.org', '::1', '::1')
    """
    name = host.rsplit(":", 1)[0] if host.count(":") == 1 or host.startswith("[") else host
    return name.strip("[]").lower()


def _is_same_site(request: HTTPConnection) -> bool:
    """Whether the page that sends a request is the studio's. Programs send no Origin."""
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()


def _most_bytes(request: HTTPConnection, user: StudioUser | None) -> int | None:
    """The most bytes of a body: little of strangers, and of JSON, which is read into memory. Uploads have limits of their own."""
    if user is None:
        return SMALL_BODY
    return JSON_BODY if request.headers.get("content-type", "").startswith("application/json") else None


def _length(request: HTTPConnection) -> int:
    text = request.headers.get("content-length", "0")
    return int(text) if text.isdigit() else 0


def _bounded(receive: Receive, most: int | None) -> Receive:
    """A body that is longer than it may be ends the connection; one that says its length was rejected before."""
    if most is None:
        return receive
    left = most

    async def receiving() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        return message if left >= 0 else {"type": "http.disconnect"}

    return receiving


def _is_loopback(request: HTTPConnection) -> bool:
    return _is_loopback_address(client_address(request.scope))


def _is_loopback_address(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _lacks(role: str | None, user: StudioUser) -> str:
    who = f"You are signed in as {user.name}, a {user.role}."
    return f"This is for {'administrators' if role == 'admin' else 'members'}. {who} An administrator can change that."


def refused(request: HTTPConnection, status: int, message: str) -> Response:
    """The answer to a request that is not fulfilled: JSON for programs, a page for people."""
    if "/api/" in request.url.path:
        return JSONResponse({"message": message}, status)
    home = f"{request.scope.get('root_path', '')}/" if status in (403, 404, 500) else ""
    return Response(render("refused.html", message=message, home=home), status, media_type="text/html")


def _with_headers(send: Send, scope: Scope) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if scope.get("scheme") == "https":
                headers.setdefault("Strict-Transport-Security", "max-age=31536000")
        await send(message)

    return sending
