"""Puts the studio together: pages, API, access, the runner of jobs, the feed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from nicegui import ui

from ..errors import UserError, WeftError
from ..jobs.queue import JobQueue
from .access import AccessMiddleware
from .api import account as account_api
from .api import admin as admin_api
from .api import classify as classify_api
from .api import jobs as jobs_api
from .api import runs as runs_api
from .api import sessions as sessions_api
from .config import StudioConfig
from .forwarded import ForwardedMiddleware
from .keys import OneTimeToken, secret
from .library.feed import Feed
from .library.loaded import LoadedNetworks
from .library.machine import Machine
from .library.runs import RunIndex
from .library.storage import DiskStorage
from .pages import account, admin, classify, compare, home, login, networks, queue, run, runs, train
from .store.accounts import TooBusy
from .store.database import DatabaseUnavailable
from .store.store import open_store
from .ui.context import Studio
from .ui.fragment import LiveFragments
from .ui.frame import ASSETS


def create(config: StudioConfig, token: OneTimeToken) -> tuple[FastAPI, Studio]:
    """The application and the studio behind it."""
    root = config.runs.absolute()
    index, jobs = RunIndex(root), JobQueue(root)
    store = open_store(root, config.database)
    feed = Feed(index, jobs, Machine(root))
    studio = Studio(
        config, index, jobs, feed, LiveFragments(feed), LoadedNetworks(), config.allowed_paths(), store,
        DiskStorage(root, config.dataset_folder),
    )  # fmt: skip

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        feed.start()
        store.start()
        yield
        feed.stop()
        store.close()

    app = FastAPI(title="weft studio", lifespan=lifespan, docs_url="/docs", redoc_url=None)
    app.mount("/assets", StaticFiles(directory=ASSETS), name="assets")
    for api in (jobs_api, runs_api, classify_api, account_api, admin_api):
        app.include_router(api.router(studio), prefix="/api/v1")
    app.include_router(sessions_api.router(studio, token), prefix="/api/v1")
    app.include_router(login.router(studio, token))
    _answer_errors(app)
    for page in (home, networks, runs, run, compare, classify, train, queue, account, admin):
        page.add(studio)
    ui.run_with(
        app, title="weft studio", tailwind=False, binding_refresh_interval=None, storage_secret=secret(config.runs, "secret"),
        session_middleware_kwargs={"same_site": "strict", "https_only": config.tls_cert is not None}, show_welcome_message=False, favicon=ASSETS / "favicon.svg", language="en-US",
    )  # fmt: skip
    app.add_middleware(AccessMiddleware, config=config, token=token, store=store)
    app.add_middleware(ForwardedMiddleware, proxies=config.proxies, prefix=config.prefix)
    return app, studio


def _answer_errors(app: FastAPI) -> None:
    """Errors of weft become answers with a message; a user's mistake is 400, a busy database 503, anything else 500."""

    @app.exception_handler(WeftError)
    async def answer(request: Request, error: WeftError) -> JSONResponse:
        status = (
            400 if isinstance(error, UserError) else 503 if isinstance(error, DatabaseUnavailable | TooBusy) else 500
        )
        return JSONResponse({"message": error.message, "where": error.where}, status)
