"""Events of the studio: what changes is told, nothing is told twice, nobody is lost, and slow clients cost nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

pytest.importorskip("nicegui")

from studio_tools import LocalStudio, make_run, served_studio
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.record import FAILED
from weft.studio.library.event_stream import EventStream
from weft.studio.library.feed import Feed
from weft.studio.library.machine import Machine
from weft.studio.library.runs import RunIndex


def parsed(text: str) -> dict[str, Any]:
    fields = dict(line.split(": ", 1) for line in text.strip().splitlines())
    return {**json.loads(fields["data"]), "type": fields["event"], "id": fields["id"]}


async def taken(events: AsyncIterator[str], count: int) -> list[dict[str, Any]]:
    """The next events, without comments and settings of the connection."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        text = await asyncio.wait_for(anext(events), 5)
        if "event:" in text:
            found.append(parsed(text))
    return found


@pytest.fixture
def stream(tmp_path: Path) -> EventStream:
    return EventStream(RunIndex(tmp_path), kept=8)


def test_changes_of_runs_and_jobs_become_events(tmp_path: Path) -> None:
    one = make_run(tmp_path, "one", [0.5], ended=False, epochs=4)
    index, queue = RunIndex(tmp_path), JobQueue(tmp_path)
    feed, stream = Feed(index, queue, Machine(tmp_path)), EventStream(index)
    stream.update(feed.look())
    assert stream.last_id.endswith("-0"), "what was there before is no event"

    async def watch() -> list[dict[str, Any]]:
        events = stream.follow()
        (ready,) = await taken(events, 1)
        assert ready["type"] == "ready"
        with (one / "metrics.csv").open("a") as file:
            file.write("2,40,0.3,0.3,0.7,5.0\n")
        job = queue.add({"data": "digits", "model": "mlp", "name": None})
        stream.update(feed.look(at_all_runs=True))
        stream.update(feed.look())
        job.set(FAILED, "no memory")
        stream.update(feed.look())
        return await taken(events, 3)

    run, waiting, failed = asyncio.run(watch())
    assert (run["type"], run["run"].removeprefix("classify/"), run["epochs"], run["best"]) == ("run", "one", 2, 0.7)
    assert (waiting["type"], waiting["job"], waiting["state"]) == ("job", 1, "waiting")
    assert (failed["state"], failed["why"]) == ("failed", "no memory")


def test_a_client_that_comes_back_misses_nothing(stream: EventStream) -> None:
    async def watch() -> None:
        events = stream.follow()
        await taken(events, 1)
        stream.publish("run", "a", {"n": 1})
        (first,) = await taken(events, 1)
        for n in (2, 3):
            stream.publish("run", "a", {"n": n})
        again = stream.follow(first["id"])
        assert [one.get("n") for one in await taken(again, 3)] == [None, 2, 3]

    asyncio.run(watch())


@pytest.mark.parametrize("last_id", ["other-3", "nonsense", "", "{epoch}-99", "{epoch}-x"])
def test_ids_that_mean_nothing_here(stream: EventStream, last_id: str) -> None:
    async def watch() -> str:
        stream.publish("run", "a", {"n": 1})
        (first,) = await taken(stream.follow(last_id.format(epoch=stream.epoch)), 1)
        return str(first["type"])

    assert asyncio.run(watch()) == ("reset" if last_id else "ready")


def test_a_slow_client_is_told_to_read_again(stream: EventStream) -> None:
    async def watch() -> None:
        events = stream.follow()
        await taken(events, 1)
        for n in range(100):
            stream.publish("run", "a", {"n": n})
        (reset,) = await taken(events, 1)
        assert (reset["type"], "too slow" in reset["why"]) == ("reset", True)
        stream.publish("run", "a", {"n": 100})
        assert (await taken(events, 1))[0]["n"] == 100
        assert len(stream._events) == 8

    asyncio.run(watch())


def test_events_of_one_run_and_heartbeats(stream: EventStream) -> None:
    async def watch() -> None:
        events = stream.follow(run="b", heartbeat=0.01)
        await taken(events, 1)
        stream.publish("run", "a", {"n": 1})
        assert await asyncio.wait_for(anext(events), 5) == ": heartbeat\n\n"
        stream.publish("run", "b", {"n": 2})
        assert (await taken(events, 1))[0]["n"] == 2

    asyncio.run(watch())


# --- over HTTP ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    root = tmp_path_factory.mktemp("events") / "runs"
    make_run(root, "one", [0.5])
    with served_studio(root) as served:
        yield served


def connected(local: LocalStudio, last_id: str = "") -> socket.socket:
    parts = urlsplit(local.address)
    made = socket.create_connection((parts.hostname, parts.port), 10)
    after = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {local.token}\r\n{after}\r\n"
    made.sendall(head.encode())
    return made


def read_until(client: socket.socket, words: bytes, so_far: bytes = b"") -> bytes:
    while words not in so_far:
        so_far += client.recv(1 << 16)
    return so_far


def test_a_hundred_clients_hear_everything(local: LocalStudio) -> None:
    clients = [connected(local) for _ in range(100)]
    heard = [read_until(client, b"event: ready") for client in clients]
    assert all(b"text/event-stream" in text for text in heard)
    loop = local.studio.feed._loop
    start = time.process_time()
    for n in range(20):
        loop.call_soon_threadsafe(local.studio.events.publish, "run", "a", {"n": n})
    heard = [read_until(client, b'"n": 19', text) for client, text in zip(clients, heard, strict=True)]
    assert time.process_time() - start < 5
    for text in heard:
        assert [n for n in range(20) if f'"n": {n}}}'.encode() in text] == list(range(20))
    for client in clients:
        client.close()
    assert local.request("GET", "/api/v1/jobs")[0] == 200


def test_a_client_that_does_not_read_costs_no_memory(local: LocalStudio) -> None:
    client = connected(local)
    read_until(client, b"event: ready")
    loop, events = local.studio.feed._loop, local.studio.events
    before = psutil.Process().memory_info().rss
    for _ in range(40):
        for _ in range(100):
            loop.call_soon_threadsafe(events.publish, "run", "a", {"text": "x" * 5000})
        local.request("GET", "/api/v1/jobs")
    assert psutil.Process().memory_info().rss - before < 40 << 20
    assert len(events._events) <= 2048
    assert b"event: reset" in read_until(client, b"event: reset")
    client.close()
