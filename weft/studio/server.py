"""Puts the studio together: pages, API, access, the feed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from nicegui import app as pages_app
from nicegui import ui

from ..jobs.queue.job_queue import JobQueue
from ..version import __version__
from . import api, pages
from .access import AccessMiddleware
from .api import mlflow, sessions
from .api.errors import ERRORS, answer_errors, answer_page_errors
from .api.openapi import describe, documented
from .config import StudioConfig
from .forwarded import ForwardedMiddleware
from .keys import OneTimeToken, secret
from .library.batches import Batches
from .library.compressions import Compressions
from .library.datasets import DatasetLibrary
from .library.event_stream import EventStream
from .library.feed import Feed
from .library.loaded import LoadedNetworks
from .library.machine import Machine
from .library.previews import TrainingPreviews
from .library.runs import RunIndex
from .library.storage import DiskStorage
from .pages import api_docs, login
from .store.store import open_store
from .ui.context import Studio
from .ui.fragment import LiveFragments
from .ui.frame import ASSETS


def create(config: StudioConfig, token: OneTimeToken) -> tuple[FastAPI, Studio]:
    """The application and the studio behind it."""
    studio = studio_of(config)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        studio.feed.start()
        studio.store.start()
        yield
        studio.feed.stop()
        studio.store.close()
        studio.previews.close()
        studio.datasets.forms.worker.close()

    app = FastAPI(
        title="weft studio", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json",
    )  # fmt: skip
    app.mount("/assets", StaticFiles(directory=ASSETS), name="assets")
    _add_routes(app, studio, token)
    ui.run_with(
        app, title="weft studio", tailwind=False, binding_refresh_interval=None, storage_secret=secret(config.runs, "secret"),
        session_middleware_kwargs={"same_site": "strict", "https_only": config.tls_cert is not None}, show_welcome_message=False,
        favicon=ASSETS / "favicon.svg", language="en-US",
    )  # fmt: skip
    app.add_middleware(AccessMiddleware, config=config, token=token, store=studio.store)
    app.add_middleware(ForwardedMiddleware, proxies=config.proxies, prefix=config.prefix)
    return app, studio


def studio_of(config: StudioConfig) -> Studio:
    """What pages and the API work with, for these settings."""
    root = config.runs.absolute()
    index, jobs, paths = RunIndex(root), JobQueue(root), config.allowed_paths()
    store = open_store(root, config.database)
    datasets = DatasetLibrary(config.dataset_folder, jobs, paths, config.largest_upload)
    feed = Feed(index, jobs, Machine(root), datasets.index)
    events = EventStream(index)
    feed.subscribe(events.update)
    return Studio(
        config, index, jobs, feed, LiveFragments(feed), LoadedNetworks(config.network_memory), paths, store,
        DiskStorage(root, config.dataset_folder), datasets, Batches(jobs), events, TrainingPreviews(),
        Compressions(index),
    )  # fmt: skip


def _add_routes(app: FastAPI, studio: Studio, token: OneTimeToken) -> None:
    """The API, with the pages that describe it, and all other pages."""
    for routes in api.ROUTERS:
        app.include_router(documented(routes.router(studio)), prefix="/api/v1", responses=ERRORS)
    app.include_router(documented(sessions.router(studio, token)), prefix="/api/v1", responses=ERRORS)
    app.include_router(documented(mlflow.router(studio)), prefix=mlflow.PREFIX, responses=ERRORS)
    app.include_router(login.router(studio, token))
    answer_errors(app)
    answer_page_errors(pages_app)
    describe(app)
    for page in pages.PAGES:
        page.add(studio)
    api_docs.add(studio, app)
