"""One's own account: password, tokens, preferences."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field

from ...errors import UserError
from ..access import SESSION, current_user
from ..store.accounts import LOCAL
from ..store.credentials import ApiToken, digest
from ..ui.context import Studio


class NewPassword(BaseModel):
    """The password of today and the next one."""

    current: str = Field(max_length=1000)
    password: str = Field(max_length=1000)


class NewToken(BaseModel):
    """What a token is for, what it may do, and how many days it lasts; 0 is until it is revoked."""

    name: str = Field(max_length=200)
    role: str = "member"
    days: float | None = None


class Preference(BaseModel):
    """A choice of a person, as JSON."""

    value: Any


def router(studio: Studio) -> APIRouter:
    """The routes below /account."""
    routes = APIRouter(prefix="/account", tags=["accounts"])
    store = studio.store

    def own(request: Request, by_session: bool = False) -> str:
        """The account of who asks. Tokens cannot make others or change a password: a stolen one would last for ever."""
        user = current_user(request)
        if user.name == LOCAL:
            raise UserError(
                "studio", "this studio has no accounts yet. Add one on the Admin page, or with weft user add NAME."
            )
        if by_session and user.way != "session":
            raise HTTPException(403, "This needs a name and a password: sign in with them.")
        return user.name

    @routes.get("")
    def account(request: Request) -> dict[str, Any]:
        """Who one is."""
        user = current_user(request)
        return {"name": user.name, "role": user.role, "way": user.way}

    @routes.post("/password")
    def password(request: Request, given: NewPassword) -> dict[str, Any]:
        """Change one's own password; all other sessions end."""
        name = own(request, by_session=True)
        if store.accounts.check_password(name, given.current) is None:
            raise HTTPException(403, "The current password is another one.")
        store.accounts.set_password(name, given.password, by=name, keep=digest(request.cookies.get(SESSION, "")))
        store.changed()
        return {"message": "The password is changed. Other browsers have to sign in again."}

    @routes.post("/sign-out-everywhere")
    def sign_out(request: Request) -> dict[str, Any]:
        """End all other sessions of one's account."""
        store.credentials.close_sessions(own(request), but=request.cookies.get(SESSION, ""))
        store.changed()
        return {"message": "All other browsers are signed out."}

    @routes.get("/tokens")
    def tokens(request: Request) -> list[dict[str, Any]]:
        """One's own tokens."""
        return [token_facts(one) for one in store.credentials.tokens(own(request))]

    @routes.post("/tokens")
    def new_token(request: Request, given: NewToken) -> dict[str, Any]:
        """Make a token. Its text is in this answer only."""
        name = own(request, by_session=True)
        days = store.settings["token_days"] if given.days is None else given.days or None
        made = store.credentials.create_token(name, given.name, given.role, days)
        return {"token": made, "message": f"Token {given.name} is made."}

    @routes.delete("/tokens/{number}")
    def revoke(request: Request, number: int) -> dict[str, Any]:
        """Revoke one of one's own tokens."""
        name = own(request)
        store.credentials.revoke(number, by=name, owner=name)
        store.changed()
        return {"message": "The token is revoked.", "reload": True}

    @routes.get("/preferences/{name}")
    def preference(request: Request, name: str) -> Any:
        """A choice that was kept, or null."""
        return store.preferences.get(current_user(request).name, name)

    @routes.put("/preferences/{name}")
    def keep(request: Request, name: str, given: Preference) -> dict[str, Any]:
        """Keep a choice, such as the columns of a table."""
        store.preferences.set(current_user(request).name, name, given.value)
        return {}

    return routes


def token_facts(token: ApiToken) -> dict[str, Any]:
    """A token as JSON."""
    return {**vars(token)}
