"""The frame around every page: the rail with pages and vitals, the header with title and actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nicegui import ui

from ...jobs.queue.record import FAILED
from ...records import dataclass
from ..access import current_user
from ..library.feed import Snapshot
from ..roles import MEMBER_PAGES
from .context import Studio
from .rendering import ICONS, render

ASSETS = Path(__file__).parent.parent / "assets"
SLOWEST = 60.0  # seconds for a page


@dataclass(frozen=True)
class PageLink:
    """An entry of the rail."""

    key: str
    title: str
    path: str
    icon: str
    on_phone: bool = True  # beside "More", the bar of narrow screens has room for four


PAGES = (
    PageLink("home", "Home", "/", "home"),
    PageLink("datasets", "Datasets", "/datasets", "data"),
    PageLink("networks", "Networks", "/networks", "network", False),
    PageLink("runs", "Runs", "/runs", "chart"),
    PageLink("compare", "Compare", "/compare", "compare", False),
    PageLink("classify", "Classify", "/classify", "classify"),
    PageLink("queue", "Queue", "/queue", "queue", False),
)


def studio_page(path: str) -> ui.page:
    """Register a page. It may take its time: next to trainings that use all cores, NiceGUI's three seconds are soon over, and the page an error."""
    return ui.page(path, response_timeout=SLOWEST)


@contextmanager
def frame(
    studio: Studio,
    title: str,
    active: str,
    live_header: tuple[str, Callable[[Snapshot], str]] | None = None,
    own_header: bool = False,
) -> Iterator[None]:
    """Everything around a page. Inside, elements are added to its content.

    `live_header`: name and renderer of a header that follows the feed. `own_header`: the page adds its header itself.
    """
    base = studio.config.prefix
    ui.page_title(f"{title} · weft studio")
    ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/studio.css">')
    live, user = studio.live, current_user(ui.context.client.request)
    denied = f' data-denied="{MEMBER_PAGES}"' if user.role == "viewer" else ""
    for script in ("studio.js", "palette.js"):
        ui.add_head_html(f'<script src="{base}/assets/{script}" data-base="{base}"{denied}></script>')
    if (ASSETS / f"{active}.css").exists():  # what only the pages of this section use
        ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/{active}.css">')
    ui.add_body_html(str(ICONS))
    with ui.element("div").classes(f"frame role-{user.role}"):
        ui.html("Skip to content", sanitize=False, tag="a").classes("skip").props('href="#main"')
        with ui.element("nav").classes("rail").props('aria-label="Main"'):
            live.add(f"rail {active}", lambda snapshot: _rail(snapshot, active, base), "div", "pages")
            live.add("vitals", vitals, "div", "vitals").props('aria-label="Machine"')
            ui.html(render("rail_foot.html", user=user, base=base), sanitize=False).classes("me")
        with ui.element("div").classes("main").props('id="main"'):  # Quasar's page is the main landmark
            header = live_header or (
                f"header {title}",
                lambda snapshot: render("page_header.html", title=title, base=base),
            )
            if not own_header:
                live.add(*header, "header", "phead")
            yield
        bar = render("bottom_bar.html", pages=PAGES, active=active, user=user, base=base)
        ui.html(bar, sanitize=False, tag="nav").classes("bar-bottom").props('aria-label="Pages"')


def _rail(snapshot: Snapshot, active: str, base: str) -> str:
    counts = {
        "runs": f"{snapshot.runs:,}" if snapshot.runs else "",
        "queue": str(sum(one.state != FAILED for one in snapshot.activities) or ""),
    }
    counts |= {"datasets": str(len(snapshot.datasets) or ""), "networks": f"{snapshot.networks:,}"}
    return render("rail.html", pages=PAGES, active=active, counts=counts, base=base)


def vitals(snapshot: Snapshot) -> str:
    """The small bars at the foot of the rail."""
    load = snapshot.load
    loads = [(gpu.name, gpu.use) for gpu in load.gpus]
    return render(
        "vitals.html", loads=[*loads, ("CPU", load.cpu), ("Memory", load.memory_share), ("Disk", load.disk_share)]
    )
