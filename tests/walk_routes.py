"""Asks for every route of a studio with every role, and prints the answers as JSON. test_studio_roles.py starts it in a process of its
own, because NiceGUI has one application for each process.

Behind the studio's own middleware stands an application that answers 204 to everything: what is tested is who reaches it.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from fastapi.routing import iter_route_contexts
from starlette.routing import Mount

from store_tools import PASSWORD, QUICK_HASHER
from weft.studio import server
from weft.studio.access import SESSION
from weft.studio.config import StudioConfig
from weft.studio.keys import OneTimeToken, secret
from weft.studio.store import accounts
from weft.studio.store.store import AccountStore

HOST = "studio.example"
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")


def routes_of(routes: Any, before: str = "") -> list[tuple[str, str]]:
    """Every method and path, with 1 for every parameter."""
    found: list[tuple[str, str]] = []
    for route in iter_route_contexts(routes):
        path = before + re.sub(r"\{[^}]*\}", "1", route.path or "")
        mounted = route.original_route if isinstance(getattr(route, "original_route", None), Mount) else None
        if mounted is not None and mounted.routes:
            found += routes_of(mounted.routes, path)
        elif mounted is not None:  # files, or the channel of NiceGUI
            found += [("GET", f"{path}/1"), ("POST", f"{path}/1")]
        else:
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


def people(store: AccountStore, runs: Path) -> dict[str, dict[str, str]]:
    """The headers of everybody who asks."""
    found: dict[str, dict[str, str]] = {"nobody": {}}
    for role in ("admin", "member", "viewer"):
        account = store.accounts.add(role, PASSWORD, role)
        found[role] = {"Cookie": f"{SESSION}={store.credentials.open_session(account)}"}
        token = store.credentials.create_token(role, "token", role)
        found[f"token of {role}"] = {"Authorization": f"Bearer {token}"}
    found["reading token of admin"] = {
        "Authorization": f"Bearer {store.credentials.create_token('admin', 'reading', 'viewer')}"
    }
    revoked = store.credentials.create_token("admin", "revoked", "admin")
    store.credentials.revoke(store.credentials.tokens("admin")[0].id, by="admin")
    disabled = store.accounts.add("gone", PASSWORD, "admin")
    found |= {
        "revoked token": {"Authorization": f"Bearer {revoked}"},
        "expired token": {"Authorization": f"Bearer {store.credentials.create_token('admin', 'old', 'admin', 1e-9)}"},
        "expired session": {"Cookie": f"{SESSION}={store.credentials.open_session(store.accounts.get('admin'), -1)}"},
        "invented session": {"Cookie": f"{SESSION}=invented"},
        "disabled account": {"Cookie": f"{SESSION}={store.credentials.open_session(disabled)}"},
        "disabled token": {"Authorization": f"Bearer {store.credentials.create_token('gone', 'x', 'admin')}"},
        "program elsewhere": {"Authorization": f"Bearer {secret(runs, 'token')}"},
    }
    store.accounts.change("gone", disabled=True)
    store.changed()
    return found


async def passed(scope: Any, receive: Any, send: Any) -> None:
    """What stands behind the middleware."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    else:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


async def ask(app: Any, method: str, path: str, headers: dict[str, str]) -> int:
    """The status that a request is answered with; of a WebSocket, 101 if it is accepted and 403 if not."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    lines = [(name.lower().encode(), value.encode()) for name, value in {"Host": HOST, **headers}.items()]
    scope = {
        "type": "websocket" if method == "WEBSOCKET" else "http", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": lines,
        "client": ("10.9.8.7", 5000), "server": (HOST, 80), "scheme": "http", "http_version": "1.1", "root_path": "", "subprotocols": [],
    }  # fmt: skip
    await app(scope if method == "WEBSOCKET" else {**scope, "method": method}, receive, send)
    if method == "WEBSOCKET":
        return 101 if sent[0]["type"] == "websocket.accept" else 403
    return int(sent[0]["status"])


async def walk(runs: Path) -> dict[str, Any]:
    accounts.HASHER = QUICK_HASHER
    app, studio = server.create(StudioConfig(runs, host="0.0.0.0"), OneTimeToken())
    routes = [*sorted(set(routes_of(app.routes))), ("WEBSOCKET", "/_nicegui_ws/socket.io/")]
    changes = [(method, path) for method, path in routes if method in UNSAFE or method == "WEBSOCKET"]
    app.router = passed  # type: ignore[assignment]

    async def answers(asked: list[tuple[str, str]], headers: dict[str, str]) -> dict[str, int]:
        return {f"{method} {path}": await ask(app, method, path, headers) for method, path in asked}

    own = {"X-Weft-Studio": "1", "Origin": f"http://{HOST}"}
    asking = people(studio.store, runs)
    return {
        "answers": {who: await answers(routes, {**own, **headers}) for who, headers in asking.items()},
        "foreign": await answers(changes, {**asking["admin"], **own, "Origin": "http://evil.example"}),
        "headerless": await answers(changes, asking["admin"]),
        "invented": await ask(app, "GET", "/a-page-without-a-rule", asking["admin"]),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(walk(Path(sys.argv[1])))))
