"""For admins: accounts, tokens, quotas, storage, settings, the log."""

from __future__ import annotations

import csv
import io
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from ..access import current_user
from ..store.accounts import Account, Quota
from ..ui.context import Studio
from ..ui.formats import size
from .account import token_facts

GB = 10**9


class NewAccount(BaseModel):
    """A person who is added."""

    name: str = Field(max_length=200)
    password: str = Field(max_length=1000)
    role: str = "member"


class AccountChange(BaseModel):
    """What is changed of an account; what is left out stays."""

    role: str | None = None
    disabled: bool | None = None
    password: str | None = Field(None, max_length=1000)


class QuotaChange(BaseModel):
    """A quota; null is no limit."""

    gpu_jobs: int | None = None
    cpu_jobs: int | None = None
    disk_gb: float | None = None
    waiting_jobs: int | None = None


def router(studio: Studio) -> APIRouter:
    """The routes below /admin."""
    routes = APIRouter(prefix="/admin", tags=["admin"])
    _add_accounts(routes, studio)
    _add_server(routes, studio)
    return routes


def _add_accounts(routes: APIRouter, studio: Studio) -> None:
    """The routes about accounts, their quotas and their tokens."""
    store = studio.store

    @routes.get("/users")
    def users() -> list[dict[str, Any]]:
        """All accounts."""
        return [_facts(one) for one in store.accounts.all()]

    @routes.post("/users")
    def add(request: Request, given: NewAccount) -> dict[str, Any]:
        """Add an account."""
        made = store.accounts.add(given.name, given.password, given.role, by=current_user(request).name)
        store.changed()
        store.publish_quotas()
        return {"message": f"{made.name} can sign in.", "open": f"/admin?user={made.name}"}

    @routes.patch("/users/{name}")
    def change(request: Request, name: str, given: AccountChange) -> dict[str, Any]:
        """Change the role of an account, disable or enable it, or set a new password."""
        by = current_user(request).name
        if given.password is not None:
            store.accounts.set_password(name, given.password, by)
        changed = store.accounts.change(name, by, given.role, given.disabled)
        store.changed()
        return {"message": f"{changed.name} is changed.", "reload": True, **_facts(changed)}

    @routes.put("/users/{name}/quota")
    def quota(request: Request, name: str, given: QuotaChange) -> dict[str, Any]:
        """Limit what an account may use at the same time."""
        disk = None if given.disk_gb is None else round(given.disk_gb * GB)
        limits = Quota(given.gpu_jobs, given.cpu_jobs, disk, given.waiting_jobs)
        changed = store.accounts.set_quota(name, limits, current_user(request).name)
        store.publish_quotas()
        return {"message": f"The quota of {changed.name} is changed.", "reload": True, **_facts(changed)}

    @routes.get("/tokens")
    def tokens() -> list[dict[str, Any]]:
        """All tokens of all accounts."""
        return [token_facts(one) for one in store.credentials.tokens()]

    @routes.delete("/tokens/{number}")
    def revoke(request: Request, number: int) -> dict[str, Any]:
        """Revoke a token."""
        store.credentials.revoke(number, by=current_user(request).name)
        store.changed()
        return {"message": "The token is revoked.", "reload": True}


def _add_server(routes: APIRouter, studio: Studio) -> None:
    """The routes about storage, settings and the log."""
    store, storage = studio.store, studio.storage

    @routes.get("/storage")
    def used() -> dict[str, Any]:
        """Disk space by what it is used for."""
        used, total = storage.disk()
        return {"uses": {name: vars(one) for name, one in storage.uses().items()}, "disk_used": used, "disk": total}

    @routes.delete("/storage/caches")
    def delete_caches(request: Request) -> dict[str, Any]:
        """Delete compiled code. It is made again when it is needed."""
        deleted = storage.delete_caches()
        store.log(current_user(request).name, "delete caches", size(deleted.bytes))
        return {"message": f"{size(deleted.bytes)} of compiled code are deleted.", "reload": True}

    @routes.get("/settings")
    def settings() -> dict[str, Any]:
        """The settings of the studio."""
        return store.settings.all()

    @routes.put("/settings")
    def set_settings(request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """Change settings; an empty value is the default."""
        changed = store.settings.change(given, current_user(request).name)
        store.publish_quotas()
        return {"message": "The settings are changed.", **changed}

    @routes.get("/log")
    def log(words: str = "", most: int = 100) -> list[dict[str, Any]]:
        """Who did what, the newest first."""
        store.flush()
        return [vars(one) for one in store.audit.entries(min(max(most, 1), 10_000), words)]

    @routes.get("/log.csv")
    def log_file() -> Response:
        """The log as a table."""
        store.flush()
        text = io.StringIO()
        rows = csv.writer(text)
        rows.writerow(["time", "who", "action", "target", "address"])
        rows.writerows([o.time, o.who, o.action, o.target, o.address] for o in store.audit.entries(100_000))
        headers = {"Content-Disposition": "attachment; filename=studio-log.csv"}
        return Response(text.getvalue(), media_type="text/csv", headers=headers)


def _facts(account: Account) -> dict[str, Any]:
    return {**vars(account), "quota": vars(account.quota)}
