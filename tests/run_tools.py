"""Makes runs with predictions and events as training leaves them, and the studio's API without a server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.testclient import TestClient

from studio_tools import make_run
from weft.errors import WeftError
from weft.io import save
from weft.jobs.datasets.facts import facts
from weft.jobs.job import Job
from weft.jobs.stored import settings_of
from weft.report.evaluation import evaluate_classes, write_evaluation
from weft.report.predictions import THUMBNAILS, read_predictions, write_npz, write_predictions
from weft.studio.api import compare, run_actions, run_evaluations, run_results, runs
from weft.studio.config import StudioConfig
from weft.studio.server import studio_of
from weft.studio.store.accounts import LOCAL
from weft.studio.store.credentials import StudioUser
from weft.studio.ui.context import Studio

CLASSES = ["cat", "dog", "owl"]
EXAMPLES = 60


def evaluated_run(root: Path, name: str, seed: int, accuracies: list[float], **settings: object) -> Path:
    """A run with predictions, thumbnails, watched examples, events and checkpoints."""
    folder = make_run(root, name, accuracies, **settings)
    random = np.random.default_rng(seed)
    true = np.arange(EXAMPLES) % 3
    logits = (2.5 * np.eye(3)[true] + random.normal(size=(EXAMPLES, 3))).astype(np.float32)
    write_predictions(folder, logits, true, CLASSES, "test", "the same examples")
    found = read_predictions(folder)
    assert found is not None
    write_evaluation(folder, evaluate_classes(found))
    pictures = random.integers(0, 255, (EXAMPLES, 8, 8, 3)).astype(np.uint8)
    write_npz(folder / THUMBNAILS, images=pictures, index=np.arange(EXAMPLES))
    write_npz(folder / "watched.npz", images=pictures[:2], index=np.arange(2), true=true[:2], classes=np.array(CLASSES))
    rows = [f"{epoch},{i},{CLASSES[i]},{CLASSES[i]},0.9" for epoch in (1, 2) for i in range(2)]
    (folder / "watched.csv").write_text("\n".join(["epoch,example,true,predicted,probability", *rows]) + "\n")
    write_events(folder, [(1, 10, 0.9), (1, 20, 0.8), (2, 10, 0.7), (2, 20, 0.6)])
    for part in ("weights/best", "weights/last", "weights/epoch-0001", "weights/epoch-0002", "state/last"):
        (folder / part).parent.mkdir(exist_ok=True)
        (folder / f"{part}.safetensors").write_bytes(b"\0" * 100)
    return folder


def run_with_weights(root: Path, name: str, checkpoints: Sequence[str] = ("best", "last"), **settings: object) -> Path:
    """A run of three epochs that was never trained: each checkpoint has the weights that another seed begins with."""
    folder = make_run(root, name, [0.5, 0.6, 0.7], **settings)
    job = Job(settings_of("test", folder))
    (folder / "data.json").write_text(json.dumps(facts(job.train, job.statistics)))
    (folder / "weights").mkdir()
    for seed, checkpoint in enumerate(checkpoints):
        job.settings["seed"] = seed
        save(folder / "weights" / f"{checkpoint}.safetensors", job.model().named_tensors())
    return folder


def write_events(folder: Path, steps: list[tuple[int, int, float]]) -> None:
    """Events of a run: its start, progress at these epochs and steps with their losses, and its end."""
    events: list[dict[str, object]] = [{"type": "started", "time": 100.0}]
    for i, (epoch, step, loss) in enumerate(steps):
        facts = {"epoch": epoch, "epochs": 2, "step": step, "steps": 20, "loss": loss, "examples_per_second": 50.0}
        events.append({"type": "progress", "time": 102.0 + 2 * i, **facts})
        events.append({"type": "resources", "time": 102.0 + 2 * i, "memory_bytes": 1e8, "cpu_seconds": 3.0 * i, "free_bytes": 1e9})  # fmt: skip
    events.append({"type": "log", "time": 140.0, "level": "warning", "text": "look here"})
    events.append({"type": "ended", "time": 150.0, "why": "all epochs are done", "epochs": 2})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def api(root: Path) -> tuple[TestClient, Studio]:
    """A client of the API for the runs below a folder, and the studio behind it."""
    studio = studio_of(StudioConfig(root))
    app = FastAPI()

    @app.exception_handler(WeftError)
    async def answer(request: Request, error: WeftError) -> JSONResponse:
        return JSONResponse({"message": error.message}, 400)

    @app.middleware("http")
    async def let_in(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        request.scope.setdefault("state", {})["user"] = StudioUser(LOCAL, "admin", LOCAL)
        return await answer(request)

    for part in (run_results, run_evaluations, run_actions, runs, compare):
        app.include_router(part.router(studio))
    return TestClient(app), studio
