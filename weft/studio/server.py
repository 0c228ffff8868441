"""Puts the studio together: pages, API, access, the runner of jobs, the feed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from nicegui import ui

from ..jobs.queue import JobQueue
from ..version import __version__
from .access import AccessMiddleware
from .api import classify as classify_api
from .api import events as events_api
from .api import jobs as jobs_api
from .api import mlflow as mlflow_api
from .api import predictions as predictions_api
from .api import runs as runs_api
from .api import submission as submission_api
from .api.errors import ERRORS, answer_errors
from .api.openapi import describe, documented
from .config import StudioConfig
from .keys import OneTimeToken, secret
from .library.batches import Batches
from .library.event_stream import EventStream
from .library.feed import Feed
from .library.loaded import LoadedNetworks
from .library.machine import Machine
from .library.runs import RunIndex
from .pages import api_docs, batch, classify, compare, home, networks, queue, run, runs, train
from .ui.context import Studio
from .ui.fragment import LiveFragments
from .ui.frame import ASSETS


def create(config: StudioConfig, token: OneTimeToken) -> tuple[FastAPI, Studio]:
    """The application and the studio behind it."""
    root = config.runs.absolute()
    index, jobs = RunIndex(root), JobQueue(root)
    feed = Feed(index, jobs, Machine(root))
    studio = Studio(
        config, index, jobs, feed, LiveFragments(feed), LoadedNetworks(config.network_memory), config.allowed_paths(), Batches(jobs),
        EventStream(index),
    )  # fmt: skip
    feed.subscribe(studio.events.update)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        feed.start()
        yield
        feed.stop()

    app = FastAPI(
        title="weft studio",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.mount("/assets", StaticFiles(directory=ASSETS), name="assets")
    for api in (jobs_api, runs_api, classify_api, predictions_api, events_api, submission_api):
        app.include_router(documented(api.router(studio)), prefix="/api/v1", responses=ERRORS)
    app.include_router(documented(mlflow_api.router(studio)), prefix=mlflow_api.PREFIX, responses=ERRORS)
    answer_errors(app)
    describe(app)
    for page in (home, networks, runs, run, compare, classify, batch, train, queue):
        page.add(studio)
    api_docs.add(studio, app)
    ui.run_with(
        app, title="weft studio", tailwind=False, binding_refresh_interval=None, storage_secret=secret(config.runs, "secret"),
        show_welcome_message=False, favicon=ASSETS / "favicon.svg", language="en-US",
    )  # fmt: skip
    app.add_middleware(AccessMiddleware, config=config, token=token)
    return app, studio
