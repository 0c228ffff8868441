"""Sign in, and the first account: pages for those who have not signed in, without NiceGUI and its channel."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ...version import __version__
from ..access import host_name
from ..keys import OneTimeToken
from ..store.accounts import SHORTEST
from ..ui.context import Studio
from ..ui.rendering import ICONS, render


def router(studio: Studio, token: OneTimeToken) -> APIRouter:
    """The pages /login and /setup."""
    routes = APIRouter(include_in_schema=False)
    base = studio.config.prefix

    def page(template: str, title: str, **values: object) -> HTMLResponse:
        return HTMLResponse(render(template, title=title, base=base, icons=ICONS, version=__version__, **values))

    def no_admin() -> Response:
        if studio.config.is_local:  # the printed address is enough
            return RedirectResponse(f"{base}/", 303)
        text = "This studio has no account yet. Open the address that weft studio printed, or run weft user add NAME role=admin."
        return HTMLResponse(render("refused.html", message=text, home=""), 401)

    @routes.get("/login")
    async def login(request: Request, next: str = "/") -> Response:
        """The form to sign in; `next` is the page to show then."""
        if not await asyncio.to_thread(studio.store.has_admin):
            return no_admin()
        days = await asyncio.to_thread(lambda: studio.store.settings["stay_days"])
        host = host_name(request.headers.get("host", ""))
        return page("login.html", "Sign in", next=next, host=host, days=days)

    @routes.get("/setup")
    async def setup(request: Request) -> Response:
        """The form of the first account, for who holds the printed address."""
        if await asyncio.to_thread(studio.store.has_admin):
            return RedirectResponse(f"{base}/login", 303)
        given = request.query_params.get("token", "")
        if studio.config.is_local or not token.fits(given):
            return no_admin()
        return page("setup.html", "First account", token=given, shortest=SHORTEST)

    return routes
