"""The tab Compress of a run and its REST routes: compressions of the queue and of the command line, live points, points kept as runs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio
from weft.jobs import JobQueue
from weft.jobs.compression.state import STATE
from weft.jobs.queue.record import FAILED, WAITING
from weft.locks import one_writer
from weft.studio.library.compressions import CompressionView
from weft.studio.ui.compression_chart import compression_chart
from weft.studio.ui.compression_tiles import compression_tiles, point_rows, said_of_target

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
PATH = "/api/v1/runs/classify/base/compressions"
LAYER = {
    "name": "layers.0", "weights": 1000, "density": 0.1, "weight_bits": 5.0, "index_bits": 4.0, "coded_weight_bits": 3.5, "coded_index_bits": 3.2,
    "before": 4000, "after": 90.0, "share": 0.5,
}  # fmt: skip


def point(number: int, size: int, error: float, **facts: Any) -> dict[str, Any]:
    return {
        "number": number, "density": 0.3 / max(number, 1), "bits": 5, "bytes": size, "weights_bytes": size - 100, "ratio": 40_000 / size, "error": error,
        "accuracy": 1 - error, "loss": error, "split": "validation", "latency_ms": 0.5, "time": 1000.0 + number, "layers": [{**LAYER, "name": f"layers.{number}"}],
        **facts,
    }  # fmt: skip


def state_of(source: Path, *points: dict[str, Any], **facts: Any) -> dict[str, Any]:
    settings = {"method": "prune,share,rans", "target": None, "density": [0.3, 0.2, 0.1], "tolerance": 1.0}
    return {
        "settings": settings,
        "source": str(source),
        "original": point(0, 41_000, 0.02),
        "points": list(points),
        "done": False,
        **facts,
    }


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """As a compression does it: readers see the old file or the new one."""
    (folder / "new.json").write_text(json.dumps(state))
    (folder / "new.json").replace(folder / STATE)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with weights, and a compression of it that has made two points and stands still."""
    root = tmp_path_factory.mktemp("compress") / "runs"
    base = make_run(root, "base", [0.9, 0.98])
    (base / "weights").mkdir()
    (base / "weights" / "best.safetensors").write_bytes(b"weights")
    made = make_run(root, "base-small-1", [0.9], ended=False)
    for number in (1, 2, 3):
        folder = made / "points" / str(number)
        (folder / "weights").mkdir(parents=True)
        (folder / "weights" / "best.safetensors").write_bytes(b"small")
        (folder / "packed.weft").write_bytes(b"packed %d" % number)
        shutil.copy(made / "args.yaml", folder)
    write_state(made, state_of(base.resolve(), point(1, 8000, 0.01), point(2, 4000, 0.025)))
    return root


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[LocalStudio]:
    with served_studio(runs) as found:
        yield found


def newest(server: LocalStudio, status: str) -> dict[str, Any]:
    """The newest compression of the run, once the feed has seen that it is in this state."""
    for _ in range(100):
        found = server.request("GET", PATH)[1][0]
        if found["status"] == status:
            break
        time.sleep(0.05)
    assert found["status"] == status
    return dict(found)


def view_of(*points: dict[str, Any], status: str = "running", **settings: Any) -> CompressionView:
    state = state_of(Path("base"), *points)
    state["settings"] |= settings
    return CompressionView(status, state["settings"], "small", "classify/small", state)


# --- what a compression says ------------------------------------------------------------------------------------------------------


def test_the_front_and_the_target_are_drawn_where_they_belong() -> None:
    view = view_of(point(1, 8000, 0.03), point(2, 4000, 0.02), point(3, 2000, 0.2))
    chart = compression_chart(view)
    assert chart is not None
    first, *dots = chart.dots
    assert (first.number, [dot.is_front for dot in dots]) == (0, [False, True, True])
    assert dots[2].left < dots[1].left < dots[0].left < first.left <= 100
    assert dots[2].top > dots[0].top > dots[1].top == first.top, "a smaller error is further up"
    assert chart.allowed is not None and dots[0].top <= chart.allowed < dots[2].top  # noqa: PT018
    assert chart.path.startswith(f"M{10 * dots[2].left:.0f} ") and chart.path.endswith("H1000")  # noqa: PT018
    by_size = compression_chart(view_of(point(1, 8000, 0.03), target="size=10x"))
    assert by_size is not None
    assert (by_size.wanted_text, by_size.allowed) == ("target 4.0 kB", None)
    assert compression_chart(view_of(point(1, 8000, 0.03, latency_ms=None)), "latency_ms") is not None
    assert compression_chart(CompressionView("waiting", {}, "small")) is None


def test_the_energy_of_points_is_shown_beside_the_original() -> None:
    view = view_of(point(1, 8000, 0.03, joules=2e-5), point(2, 4000, 0.03, joules=6.9e-5))
    assert compression_chart(view, "joules") is None, "a compression from before energies were modelled"
    assert "Weights kept" in [tile.title for tile in compression_tiles(view, view.points[0])]
    view.original["joules"] = 7e-5
    chart = compression_chart(view, "joules")
    assert chart is not None
    assert chart.x_ticks[0][1].endswith("µJ")
    assert [dot.number for dot in chart.dots if dot.is_front] == [1]
    told = {p["number"]: next(tile for tile in compression_tiles(view, p) if tile.title == "Energy, modelled") for p in view.points}  # fmt: skip
    assert (told[1].number, told[1].unit, told[1].context, told[1].tone) == ("20.0", "µJ", "3.5 times less", "up")
    assert (told[2].context, told[2].tone) == ("70.0 µJ before", "")


def test_points_are_judged_by_what_was_asked() -> None:
    points = point(1, 8000, 0.01), point(2, 4000, 0.025), point(3, 2000, 0.2)
    swept = view_of(*points)
    assert [(row.point["number"], row.state) for row in point_rows(swept)] == [
        (3, "Too inaccurate"), (2, "Good enough"), (1, "Good enough"),
    ]  # fmt: skip
    assert said_of_target(swept) == "2 points are good enough. The smallest has 4.0 kB."
    assert (swept.point(None) or {})["number"] == 2, "the smallest that is good enough is shown first"
    sized = view_of(*points, target="size=15x")
    assert [row.state for row in point_rows(sized)] == ["Good enough", "Too large", "Too large"]
    assert said_of_target(view_of(points[2])) == "No point yet: at most 1 point lost."
    tiles = {tile.title: (tile.number + tile.unit, tile.context) for tile in compression_tiles(swept, points[1])}
    assert tiles["Size, point 2"] == ("4.0kB", "10.0 times smaller, was 40.0 kB")
    assert tiles["Validation accuracy"] == ("97.5%", "− 0.50 points of 98.0 %")
    assert swept.planned == 3
    assert swept.seconds_left(1003.5) == 0.0
    assert view_of(points[0]).seconds_left(1001.5) == 1.5, "two points of a second each, half of one has passed"


# --- REST -------------------------------------------------------------------------------------------------------------------------


def test_compressions_are_listed_whoever_started_them(server: LocalStudio) -> None:
    status, found = server.request("GET", PATH)
    assert status == 200
    assert [(one["run"], one["status"], one["planned"]) for one in found] == [("classify/base-small-1", "stopped", 3)]
    assert [(p["number"], "layers" in p) for p in found[0]["points"]] == [(1, False), (2, False)]
    assert (
        server.request("GET", "/api/v1/runs/classify/base-small-1/compressions")[1][0]["run"] == "classify/base-small-1"
    )
    settings = server.request("GET", f"{PATH}/settings")[1]
    assert {"method", "target", "bits"} <= {one["name"] for one in settings}
    assert not {"runs", "json", "report"} & {one["name"] for one in settings}
    one = server.request("GET", "/api/v1/runs/classify/base-small-1/compression/points/2")[1]
    assert one["layers"][0]["name"] == "layers.2"


def test_a_compression_is_started_as_a_job(server: LocalStudio, runs: Path) -> None:
    status, told = server.request("POST", PATH, {"target": "error=+0.5%", "bits": "4", "name": ""})
    assert status == 200, told
    job = JobQueue(runs).job(told["number"])
    assert (job.kind, job.settings["target"], job.settings["bits"], job.state.state) == (
        "compress",
        "error=+0.5%",
        4,
        WAITING,
    )
    waiting = newest(server, "waiting")
    assert (waiting["job"], waiting["run"]) == (job.number, None)
    job.set(FAILED, "[weft compress] it went wrong")
    server.studio.feed.refresh_soon()
    assert newest(server, "failed")["why"] == "[weft compress] it went wrong"


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        (PATH, {"target": "size=0.1x"}, "a target such as"),
        (PATH, {"runs": "/etc"}, "a setting of a compression is required, got 'runs'"),
        (PATH, {"bits": "9"}, "it must be 1 to 8"),
        ("/api/v1/runs/classify/base-small-1/compressions", {}, "is compressed already"),
        ("/api/v1/runs/classify/base/compression/points/1/keep", {}, "a compressed run is required"),
        ("/api/v1/runs/classify/base-small-1/compression/points/9/keep", {}, "a point of base-small-1 is required (1, 2), got 9"),
        ("/api/v1/runs/classify/base-small-1/compression/points/1/keep", {"name": "../x"}, "one word without slashes"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(server: LocalStudio, path: str, content: dict[str, Any], message: str) -> None:
    status, told = server.request("POST", path, content)
    assert status == 400
    assert message in told["message"]


def test_a_point_is_kept_as_a_run(server: LocalStudio, runs: Path) -> None:
    status, told = server.request(
        "POST", "/api/v1/runs/classify/base-small-1/compression/points/1/keep", {"name": "kept"}
    )
    assert (status, told["open"]) == (200, "/runs/classify/kept")
    assert (runs / "classify" / "kept" / "packed.weft").read_bytes() == b"packed 1"
    assert server.request("GET", "/api/v1/runs/classify/kept")[1]["summary"]["compression"]["number"] == 1
    shutil.rmtree(runs / "classify" / "kept")
    server.studio.feed.look(at_all_runs=True)


def test_a_damaged_state_is_no_compression(server: LocalStudio, runs: Path) -> None:
    broken = make_run(runs, "broken", [0.5])
    (broken / STATE).write_text("{")
    server.studio.feed.look(at_all_runs=True)
    assert server.request("GET", "/api/v1/runs/classify/broken/compressions")[1] == []
    shutil.rmtree(broken)


# --- the page ---------------------------------------------------------------------------------------------------------------------


@needs_browser
def test_points_appear_while_the_page_is_open_and_one_is_kept(server: LocalStudio, runs: Path) -> None:
    made, base = runs / "classify" / "base-small-1", (runs / "classify" / "base").resolve()
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(server.way_in)
        page.goto(f"{server.address}/runs/classify/base?tab=compress")
        page.get_by_role("heading", name="Layers at point 2").wait_for()
        assert page.locator(".pareto button.dot").count() == 2
        page.locator("#dot-1").click()
        page.get_by_role("heading", name="Layers at point 1").wait_for()
        page.get_by_text("layers.1", exact=True).wait_for()

        with one_writer(made):  # it runs again, and measures a third point
            layers = [{**LAYER, "name": name} for name in ("layers.1", "biases and others")]
            write_state(
                made, state_of(base, point(1, 8000, 0.01, layers=layers), point(2, 4000, 0.025), point(3, 2000, 0.2))
            )
            page.locator("#dot-3").wait_for()
            page.get_by_role("link", name="Compressing").wait_for()
        assert page.get_by_role("heading", name="Layers at point 1").count() == 1, "what was chosen stays chosen"

        bars, card = (
            page.locator(name).first.bounding_box() for name in (".cshare", "section[aria-label^='Layers at']")
        )
        assert bars["x"] + bars["width"] <= card["x"] + card["width"] - 15, "the last column is not cut off"
        page.set_viewport_size({"width": 390, "height": 844})
        for number in (1, 2, 3):
            page.locator(f"#dot-{number}").focus()
            page.keyboard.press("Tab")
            page.keyboard.press("Shift+Tab")  # the tip of a dot is shown when a key moved the focus
            tip = page.locator(f"#dot-{number} .ctip").bounding_box()
            assert 0 <= tip["x"] <= 390 - tip["width"], f"the tip of point {number} is on the screen"
        page.set_viewport_size({"width": 1280, "height": 900})

        page.fill("#f-target", "size=no")
        page.get_by_text("A target such as target=size=20x").wait_for()
        page.fill("#f-target", "size=9x")
        page.get_by_text("weft compress base target=size=9x").wait_for()
        page.get_by_role("button", name="Compress", exact=True).click()
        page.get_by_text("Starts as soon as there is room").wait_for()
        assert server.request("GET", PATH)[1][0]["settings"]["target"] == "size=9x"

        page.goto(f"{server.address}/runs/classify/base-small-1?tab=compress")
        page.locator("#point-3").get_by_role("button", name="Keep point 3 as run").click()
        page.wait_for_url("**/runs/classify/base-point3-1")
        page.get_by_role("heading", name="base-point3-1").wait_for()
    assert errors == []
    assert (runs / "classify" / "base-point3-1" / "packed.weft").read_bytes() == b"packed 3"
