"""Signing in and out, and the first account."""

from __future__ import annotations

import math

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from ...errors import UserError
from ..access import SESSION, client_address, set_cookie
from ..keys import OneTimeToken
from ..rate_limit import LoginLimiter
from ..store.accounts import logged_name
from ..store.credentials import DAY, PREFIX, SHORT_SESSION
from ..ui.context import Studio

WRONG = "This name and password do not belong together, or the account is disabled."


class Login(BaseModel):
    """A name and a password; or an API token instead of both."""

    name: str = Field("", max_length=200)
    password: str = Field("", max_length=1000)
    token: str = Field("", max_length=200)
    stay: bool = False


class FirstAccount(BaseModel):
    """The first admin, by who holds the token that was printed."""

    token: str = Field(max_length=200)
    name: str = Field(max_length=200)
    password: str = Field(max_length=1000)


class OpenedPage(BaseModel):
    """The page to open next."""

    open: str


def router(studio: Studio, token: OneTimeToken) -> APIRouter:
    """The routes /login, /logout and /setup."""
    routes = APIRouter(tags=["accounts"])
    limiter, store = LoginLimiter(), studio.store

    def signed_in(request: Request, secret: str, seconds: int | None) -> JSONResponse:
        answer = JSONResponse({"open": "/"})
        set_cookie(answer, request, studio.config, SESSION, secret, seconds)
        return answer

    @routes.post("/login", response_model=OpenedPage)
    def login(request: Request, given: Login) -> JSONResponse:
        """Sign in with name and password, or with an API token; the answer sets the cookie of the session."""
        address = client_address(request.scope)
        who = given.name or f"token {address}"
        wait = limiter.attempt(who, address)
        if wait > 0:
            text = f"Too many tries. Wait {math.ceil(wait)} seconds."
            return JSONResponse({"message": text}, 429, {"Retry-After": str(math.ceil(wait))})
        seconds = int(store.settings["stay_days"] * DAY) if given.stay else None
        if given.token:
            return _with_token(given, address, seconds, request)
        account = store.accounts.check_password(given.name, given.password)
        if account is None:
            store.log(logged_name(given.name), "sign in refused", "", address)
            return JSONResponse({"message": WRONG}, 401)
        limiter.succeeded(who, address)
        secret = store.credentials.open_session(account, seconds or SHORT_SESSION, address)
        return signed_in(request, secret, seconds)

    def _with_token(given: Login, address: str, seconds: int | None, request: Request) -> JSONResponse:
        if not given.token.startswith(PREFIX) or store.user_of_token(given.token) is None:
            return JSONResponse({"message": "This token does not exist, has expired or was revoked."}, 401)
        limiter.succeeded(given.name or f"token {address}", address)
        return signed_in(request, given.token, seconds)

    @routes.post("/logout", response_model=OpenedPage)
    def logout(request: Request) -> JSONResponse:
        """End the session of this browser."""
        secret = request.cookies.get(SESSION, "")
        if secret and not secret.startswith(PREFIX):
            store.credentials.close_session(secret)
            store.changed()
        answer = JSONResponse({"open": "/login"})
        answer.delete_cookie(SESSION, path=studio.config.prefix or "/")
        return answer

    @routes.post("/setup", response_model=OpenedPage)
    def setup(request: Request, given: FirstAccount) -> JSONResponse:
        """Make the first account, of an admin, and sign in."""
        address = client_address(request.scope)
        if store.accounts.has_admin():
            raise UserError("studio", "the first account exists already. Sign in, or run weft user password NAME.")
        if not token.fits(given.token):
            return JSONResponse(
                {"message": "This address was used or is not the last one that weft studio printed."}, 403
            )
        account = store.accounts.add(given.name, given.password, "admin", by="setup")
        token.take(given.token)
        store.changed()
        return signed_in(request, store.credentials.open_session(account, SHORT_SESSION, address), None)

    return routes
