"""What the studio looks like, as far as it can be checked without a browser: names of jobs, the bar of phones, shared styles."""

import re
from pathlib import Path

import pytest

from weft.jobs.queue import JobQueue
from weft.jobs.queue_view import QueueView
from weft.studio.store.credentials import StudioUser
from weft.studio.ui.frame import ASSETS, PAGES
from weft.studio.ui.rendering import render


@pytest.mark.parametrize(
    ("kind", "settings", "title"),
    [
        ("embedding", {"name": "Embedding of lenet"}, "Embedding of lenet"),
        ("export", {"run": "runs/classify/lenet"}, "Export lenet"),
        ("predict", {"data": "photos"}, "Predict photos"),
        ("dataset-version", {"name": "flowers"}, "Dataset version flowers"),
        ("train", {"name": "lenet-1"}, "lenet-1"),
    ],
)
def test_jobs_are_called_by_what_they_do(tmp_path: Path, kind: str, settings: dict[str, str], title: str) -> None:
    queue = JobQueue(tmp_path)
    queue.add(settings, kind)
    assert QueueView(queue.folder).jobs()[0].title == title


def test_phones_reach_every_page_and_the_account() -> None:
    user = StudioUser("anna", "admin", "session")
    bar = render("bottom_bar.html", pages=PAGES, active="home", user=user, base="")
    places = set(re.findall(r'href="([^"]+)"', bar))
    assert places >= {page.path for page in PAGES} | {"/train", "/account", "/admin"}
    assert "POST /logout" in bar
    assert bar.index("</details>") > bar.index("/account")


def test_shared_components_are_styled_for_every_page() -> None:
    shared = (ASSETS / "studio.css").read_text()
    for name in (".cfoot", ".drop", ".paths", ".lbl", ".note", ".code"):
        assert re.search(rf"^{re.escape(name)} {{", shared, re.MULTILINE), f"{name} is not in studio.css"


def test_long_trainings_keep_their_bar() -> None:
    """`.epochs.many` is a flex box: a section must not make every `.many` a grid."""
    for path in ASSETS.glob("*.css"):
        assert not re.search(r"(^|[\s,}])\.many\b", path.read_text()), path.name
