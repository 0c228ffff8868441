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
from .api import classify as classify_api
from .api import designs as designs_api
from .api import jobs as jobs_api
from .api import runs as runs_api
from .config import StudioConfig
from .keys import OneTimeToken, secret
from .library.feed import Feed
from .library.loaded import LoadedNetworks
from .library.machine import Machine
from .library.runs import RunIndex
from .pages import classify, compare, design, home, networks, queue, run, runs, train
from .ui.context import Studio
from .ui.fragment import LiveFragments
from .ui.frame import ASSETS


def create(config: StudioConfig, token: OneTimeToken) -> tuple[FastAPI, Studio]:
    """The application and the studio behind it."""
    root = config.runs.absolute()
    index, jobs = RunIndex(root), JobQueue(root)
    feed = Feed(index, jobs, Machine(root))
    studio = Studio(config, index, jobs, feed, LiveFragments(feed), LoadedNetworks(), config.allowed_paths())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        feed.start()
        yield
        feed.stop()

    app = FastAPI(title="weft studio", lifespan=lifespan, docs_url="/docs", redoc_url=None)
    app.mount("/assets", StaticFiles(directory=ASSETS), name="assets")
    for api in (jobs_api, runs_api, classify_api, designs_api):
        app.include_router(api.router(studio), prefix="/api/v1")
    _answer_errors(app)
    for page in (home, design, networks, runs, run, compare, classify, train, queue):
        page.add(studio)
    ui.run_with(
        app, title="weft studio", tailwind=False, binding_refresh_interval=None, storage_secret=secret(config.runs, "secret"),
        show_welcome_message=False, favicon=ASSETS / "favicon.svg", language="en-US",
    )  # fmt: skip
    app.add_middleware(AccessMiddleware, config=config, token=token)
    return app, studio


def _answer_errors(app: FastAPI) -> None:
    """Errors of weft become answers with a message; a user's mistake is 400, anything else 500."""

    @app.exception_handler(WeftError)
    async def answer(request: Request, error: WeftError) -> JSONResponse:
        return JSONResponse(
            {"message": error.message, "where": error.where}, 400 if isinstance(error, UserError) else 500
        )
