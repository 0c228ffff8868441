"""Previews of trainings, made by a process of their own: planning a large network takes seconds, which pages must not wait for."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from ...errors import WeftError
from ...jobs.training_preview import TrainingPreview, preview_training

REMEMBERED = 64
IGNORED = (
    "name",
    "runs",
    "epochs",
    "rate",
    "schedule",
    "json",
    "exist_ok",
    "tags",
    "notes",
    "group",
)  # they change no preview


class TrainingPreviews:
    """Previews by settings, made one at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, TrainingPreview | str] = OrderedDict()
        self._pool: ProcessPoolExecutor | None = None
        self._busy = asyncio.Lock()

    def known(self, settings: Mapping[str, Any]) -> TrainingPreview | str | None:
        """The preview, or why there is none; None if that is not known yet."""
        return self._known.get(_key(settings))

    async def make(self, settings: Mapping[str, Any], is_wanted: Callable[[], bool]) -> TrainingPreview | str | None:
        """The preview, made now if it is not known; None if nobody wants it any more when its turn comes."""
        key = _key(settings)
        async with self._busy:
            if key not in self._known and is_wanted():
                self._remember(key, await self._made(dict(settings)))
        return self._known.get(key)

    async def _made(self, settings: dict[str, Any]) -> TrainingPreview | str:
        self._pool = self._pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _preview, settings)
        except BrokenProcessPool:  # killed, most likely for want of memory
            self._pool = None
            return "The preview needed more memory than there is."

    def _remember(self, key: str, found: TrainingPreview | str) -> None:
        self._known[key] = found
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _preview(settings: dict[str, Any]) -> TrainingPreview | str:
    try:
        return preview_training(settings)
    except WeftError as error:
        return error.message


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(
        {name: value for name, value in settings.items() if name not in IGNORED}, sort_keys=True, default=str
    )
