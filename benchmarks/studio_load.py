"""The studio under load: how long pages take with many runs, what open pages cost, and how hundreds of clients fare at once.

    make studio-load                                              everything, on this machine
    python benchmarks/studio_load.py --runs 1000 --pages 100 --clients 300

Everything happens on loopback, in processes of this machine. The studio is a process of its own, so what is said of CPU time is its own: on a machine that
others use too, it says more than the times, of which the least counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import websockets

from weft.jobs.datasets.create import checked_dataset_settings, create_dataset
from weft.jobs.events import ignore_events

PAGES = (
    "/",
    "/runs",
    "/runs/classify/run-5",
    "/compare?runs=classify/run-1,classify/run-2",
    "/train",
    "/networks",
    "/queue",
    "/datasets/many",
    "/datasets/many?tab=images",
)
REPEATS = 9
SECONDS = 10.0  # over which the cost of open pages is measured
EACH = 5  # requests of each client


def make_runs(root: Path, count: int) -> None:
    """Folders as trainings leave them."""
    rng = random.Random(0)
    for number in range(count):
        folder = root / "classify" / f"run-{number}"
        folder.mkdir(parents=True)
        settings = {"data": "digits", "model": "lenet5", "epochs": 20, "rate": 10 ** rng.uniform(-4, -1), "batch": 64}
        (folder / "args.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
        rows = ["epoch,steps,train_loss,validation_loss,validation_accuracy,seconds"]
        rows += [f"{e},{20 * e},{1 / e},{1.1 / e},{1 - 0.5 / e - 0.1 * rng.random()},{2.5 * e}" for e in range(1, 21)]
        (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
        (folder / "summary.json").write_text(json.dumps({"ended": "all epochs are done"}))


def make_dataset(root: Path, count: int) -> None:
    """A dataset of small images."""
    rng = np.random.default_rng(0)
    source = root / "many.npz"
    np.savez(source, x=rng.integers(0, 256, (count, 3, 16, 16), np.uint8), y=np.arange(count) % 10)
    settings = {"source": str(source), "folder": str(root / "datasets" / "many" / "v1"), "size": 16}
    create_dataset(checked_dataset_settings(settings), None, ignore_events)


@contextlib.contextmanager
def studio(runs: Path) -> Iterator[tuple[psutil.Process, str, dict[str, str]]]:
    """A studio for these runs: its process, its address and the headers that let one in."""
    command = [sys.executable, "-m", "weft", "studio", f"runs={runs}", "open=false"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=runs.parent)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1].split("/?")[0]
        token = (runs / ".studio" / "token").read_text().strip()
        yield psutil.Process(process.pid), address, {"Authorization": f"Bearer {token}"}
    finally:
        process.terminate()
        process.wait(60)


def latencies(process: psutil.Process, address: str, headers: dict[str, str]) -> None:
    """The time of each page, one request after the other, and what it costs the studio."""
    print(f"{'page':48} {'median':>7} {'least':>7} {'CPU':>7}   size")
    with httpx.Client(base_url=address, headers=headers, timeout=60) as web:
        for page in PAGES:
            times: list[float] = []
            web.get(page)  # what is read once
            before = sum(process.cpu_times()[:2])
            for _ in range(REPEATS):
                start = time.perf_counter()
                answer = web.get(page)
                times.append(1000 * (time.perf_counter() - start))
                answer.raise_for_status()
            cost = 1000 * (sum(process.cpu_times()[:2]) - before) / REPEATS
            shown = f"{statistics.median(times):4.0f} ms {min(times):4.0f} ms {cost:4.0f} ms"
            print(f"{page:48} {shown}  {len(answer.content) // 1000} kB")


async def open_page(address: str, headers: dict[str, str], received: list[int], opened: asyncio.Event) -> None:
    """Open a page as a browser does: its HTML, then the socket over which changes come, until cancelled."""
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=60) as web:
        html = (await web.get("/")).text
    client = re.search(r'"client_id":\s*"([^"]+)"|client_id[^0-9a-f]+([0-9a-f-]{36})', html)
    assert client is not None, "the page names no client"
    query = {
        "client_id": client[1] or client[2], "next_message_id": "0", "implicit_handshake": "true", "document_id": str(uuid.uuid4()),
        "tab_id": str(uuid.uuid4()), "old_tab_id": "null", "EIO": "4", "transport": "websocket",
    }  # fmt: skip
    url = f"{address.replace('http', 'ws', 1)}/_nicegui_ws/socket.io/?{httpx.QueryParams(query)}"
    async with websockets.connect(url, additional_headers=headers, max_size=None) as socket:
        await socket.recv()
        await socket.send("40")
        opened.set()
        async for message in socket:
            received[0] += len(message)
            if message == "2":  # a ping
                await socket.send("3")


async def open_pages(process: psutil.Process, address: str, headers: dict[str, str], count: int) -> None:
    """The CPU time of the studio while so many pages are open and nothing happens but the machine's own figures."""
    received, opened = [0], [asyncio.Event() for _ in range(count)]
    pages = [asyncio.create_task(open_page(address, headers, received, one)) for one in opened]
    await asyncio.wait_for(asyncio.gather(*(one.wait() for one in opened)), 120)
    await asyncio.sleep(3)
    before, bytes_before, start = sum(process.cpu_times()[:2]), received[0], time.perf_counter()
    await asyncio.sleep(SECONDS)
    passed = time.perf_counter() - start
    share = (sum(process.cpu_times()[:2]) - before) / passed
    print(
        f"{count} open pages: {100 * share:.1f} % of a core, {(received[0] - bytes_before) / passed / count:.0f} bytes/s a page"
    )
    for page in pages:
        page.cancel()
    await asyncio.gather(*pages, return_exceptions=True)


async def many_clients(process: psutil.Process, address: str, headers: dict[str, str], count: int) -> None:
    """Hundreds of clients at once, each with a few requests."""
    times: list[float] = []
    paths = ("/", "/api/v1/runs/classify/run-7", "/api/v1/jobs", "/runs/classify/run-3", "/api/v1/search?words=run-1")
    limits = httpx.Limits(max_connections=count)

    async def client(number: int) -> None:
        for i in range(EACH):
            start = time.perf_counter()
            answer = await web.get(paths[(number + i) % len(paths)])
            answer.raise_for_status()
            times.append(1000 * (time.perf_counter() - start))

    memory, start = process.memory_info().rss, time.perf_counter()
    async with httpx.AsyncClient(base_url=address, headers=headers, timeout=300, limits=limits) as web:
        await asyncio.gather(*(client(number) for number in range(count)))
    passed = time.perf_counter() - start
    found = statistics.quantiles(times, n=100)
    grown = (process.memory_info().rss - memory) / 1e6
    print(
        f"{count} clients x {EACH} requests: {len(times) / passed:.0f} requests/s, median {found[49]:.0f} ms, "
        f"95 % below {found[94]:.0f} ms, no failures, memory {grown:+.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--clients", type=int, default=300)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        make_runs(runs, given.runs)
        make_dataset(runs.parent, given.images)
        start = time.perf_counter()
        with studio(runs) as (process, address, headers):
            print(f"started with {given.runs} runs in {time.perf_counter() - start:.1f} s")
            latencies(process, address, headers)
            asyncio.run(open_pages(process, address, headers, given.pages))
            asyncio.run(many_clients(process, address, headers, given.clients))


if __name__ == "__main__":
    main()
