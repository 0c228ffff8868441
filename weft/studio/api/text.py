"""Continuing a text with a network that was trained on one, sent as it is written."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Generator
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from ...errors import WeftError
from ..library.usable import usable_network
from ..ui.context import Studio

AT_ONCE = 4  # texts that are written at the same time, each by a thread
_TEXT = """
Server-sent events, each with JSON facts:

- `text`: `text`, the next characters
- `done`: `characters` and `seconds`, at the end
- `error`: `message`, if the network fails on the way

A client that hangs up ends it.
"""


class TextToContinue(BaseModel):
    """The beginning of a text, and how characters are sampled."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(
        min_length=1, max_length=20_000, description="the beginning, of characters that the network knows"
    )
    length: int = Field(500, ge=1, le=20_000, description="characters to write")
    temperature: float = Field(
        0.8, ge=0, le=100, description="below 1 favours likely characters; 0 takes the most likely"
    )
    top_k: int | None = Field(None, ge=1, description="sample from so many of the most likely characters")
    top_p: float | None = Field(None, gt=0, le=1, description="sample from the most likely ones with this probability")
    seed: int = Field(0, ge=0, lt=1 << 63, description="the same seed writes the same text")


_Found = asyncio.Queue[str | WeftError | None]  # characters, then an error, or None at the end


def router(studio: Studio) -> APIRouter:
    """The route /networks/{run}/text."""
    routes = APIRouter(prefix="/networks", tags=["networks"])
    free = threading.BoundedSemaphore(AT_ONCE)

    @routes.post(
        "/{run:path}/text",
        response_class=StreamingResponse,
        description="Continue a text." + _TEXT,
        responses={200: {"content": {"text/event-stream": {}}, "description": "the text, as it is written"}},
    )
    async def write(
        run: str,
        asked: TextToContinue,
        checkpoint: Annotated[str, Query(description="weights of a run: best or last")] = "best",
    ) -> StreamingResponse:
        """Continue a text, as server-sent events."""
        network = usable_network(studio.index, run)
        if network is None:
            raise HTTPException(404, f"there is no run and no imported network {run}")
        characters = await asyncio.to_thread(_characters, studio, network.path, checkpoint, asked)
        if not free.acquire(blocking=False):
            raise HTTPException(503, f"{AT_ONCE} texts are being written already. Try again in a moment.")
        found, gone = _Found(), threading.Event()
        _sample(characters, found, gone, free)
        return _TextResponse(
            _events(found), gone, media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )  # fmt: skip

    return routes


class _TextResponse(StreamingResponse):
    """A stream that says when it is over, also if the client has gone: then nobody closes the events."""

    def __init__(self, events: AsyncIterator[str], gone: threading.Event, **more: Any) -> None:
        super().__init__(events, **more)
        self.gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.gone.set()


def _characters(studio: Studio, path: Any, checkpoint: str, asked: TextToContinue) -> Generator[str]:
    """The characters to come. Prompts with unknown characters are rejected here, before the answer begins."""
    return studio.networks.get(path, checkpoint, for_text=True).characters(
        asked.prompt, asked.length, temperature=asked.temperature, top_k=asked.top_k, top_p=asked.top_p, seed=asked.seed
    )


def _sample(characters: Generator[str], found: _Found, gone: threading.Event, free: threading.BoundedSemaphore) -> None:
    """Sample the characters in a thread, which ends when the client has gone."""
    loop = asyncio.get_running_loop()

    def send(one: str | WeftError | None) -> None:
        loop.call_soon_threadsafe(found.put_nowait, one)

    def sample() -> None:
        try:
            for character in characters:
                if gone.is_set():
                    return
                send(character)
            send(None)
        except WeftError as error:
            send(error)
        finally:
            characters.close()  # who waits for the network goes on
            free.release()

    threading.Thread(target=sample, name="weft-studio-text", daemon=True).start()


async def _events(found: _Found) -> AsyncIterator[str]:
    """The characters as events."""
    started, count = time.monotonic(), 0
    end: WeftError | bool | None = None
    while end is None:
        parts, end = await _gathered(found)
        count += len(parts)
        if parts:
            yield _event("text", text=parts)
    if isinstance(end, WeftError):
        yield _event("error", message=end.message)
    else:
        yield _event("done", characters=count, seconds=round(time.monotonic() - started, 3))


async def _gathered(found: _Found) -> tuple[str, WeftError | bool | None]:
    """All characters that wait, at least one; then the error, True at the end, or None."""
    one, parts = await found.get(), ""
    while isinstance(one, str):
        parts += one
        if found.empty():
            return parts, None
        one = found.get_nowait()
    return parts, True if one is None else one


def _event(type_: str, **facts: Any) -> str:
    return f"event: {type_}\ndata: {json.dumps(facts)}\n\n"
