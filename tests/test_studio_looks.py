"""What the studio looks like, as far as it can be checked without a browser: names of jobs, the bar of phones, shared styles."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.jobs.prediction.results import StoredPrediction
from weft.jobs.queue.job_queue import JobQueue
from weft.jobs.queue.record import State
from weft.jobs.queue.view import QueueView
from weft.studio.library.audit_text import change_text
from weft.studio.library.networks import _ticks
from weft.studio.roles import UNLOGGED
from weft.studio.store.credentials import StudioUser
from weft.studio.store.records import AuditEntry
from weft.studio.ui.frame import ASSETS, PAGES
from weft.studio.ui.rendering import render


@pytest.mark.parametrize(
    ("kind", "settings", "title"),
    [
        ("embedding", {"name": "Embedding of lenet"}, "Embedding of lenet"),
        ("export", {"run": "runs/classify/lenet"}, "Export lenet"),
        ("export", {"run": "runs/classify/lenet", "to": "onnx"}, "Export lenet as onnx"),
        ("predict", {"data": "photos"}, "Predict photos"),
        ("dataset-version", {"name": "flowers"}, "Dataset version flowers"),
        ("train", {"name": "lenet-1"}, "lenet-1"),
        ("train", {"data": "datasets/flowers/v2", "model": "mlp"}, "flowers-mlp, job 1"),
        ("predict", {"data": "datasets/flowers/v2"}, "Predict flowers v2"),
        ("doctor", {"name": "Data doctor: flowers v1"}, "Data doctor: flowers v1"),
        ("cross-validation", {"name": "digits-folds"}, "Cross-validation digits-folds"),
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


def test_networks_that_are_all_as_good_have_an_axis() -> None:
    assert _ticks(1.0, 1.0) == [0.96, 0.97, 0.98, 0.99, 1.0]
    assert _ticks(0.812, 0.934) == [0.8, 0.85, 0.9, 0.95]
    assert _ticks(0.5, 0.9) == [0.5, 0.6, 0.7, 0.8, 0.9]


@pytest.mark.parametrize(
    ("action", "target", "said"),
    [
        ("post", "/queue/resume", "Resumed the queue"),
        ("post", "/jobs", "Added trainings"),
        ("post", "/runs/classify/lenet/extend", "Extended classify/lenet"),
        ("post", "/folds/cv/pause", "Paused cv"),
        ("patch", "/runs/classify/a%20b/annotations", "Annotated classify/a b"),
        ("put", "/datasets/pets/versions/1/doctor/decisions", "Decided on findings in pets"),
        ("post", "/something/new", "post"),
    ],
)
def test_the_log_speaks_in_sentences(action: str, target: str, said: str) -> None:
    assert change_text(action, target)[0] == said


def test_all_requests_that_change_something_have_a_sentence() -> None:
    """Whoever adds a route to the API adds what the log says of it."""
    pattern = re.compile(r"@routes\.(post|put|patch|delete)\((?:f?)\"([^\"]*)\"")
    prefix = re.compile(r"APIRouter\((?:prefix=\"([^\"]*)\")?")
    silent = []
    for file in sorted((ASSETS.parent / "api").glob("*.py")):
        text = file.read_text()
        start = prefix.search(text)
        for method, path in pattern.findall(text):
            whole = (start[1] or "" if start else "") + path.replace("{address}", "/runs/{run:path}")
            asked = re.sub(r"\{+number[^}]*\}+", "7", whole)
            asked = re.sub(r"\{+[^}]*\}+", "x", asked)
            unlogged = UNLOGGED.fullmatch(f"/api/v1{asked}") is not None or "mlflow" in file.name
            if not unlogged and change_text(method, asked)[0] == method:
                silent.append(f"{file.name}: {method} {asked}")
    assert silent == []


def test_a_file_that_could_not_be_read_has_no_picture() -> None:
    rows = [
        StoredPrediction(0, "a.png", "daisy", "", (("daisy", 0.9),), ()),
        StoredPrediction(1, "b.png", "", "is not an image", (), ()),
    ]
    made = render("prediction_thumbs.html", rows=rows, network="lenet", number=3, base="")
    assert re.findall(r'src="([^"]+)"', made) == ["/api/v1/predictions/3/images/0.jpg"]
    assert made.count("nopic") == 1


def test_the_log_of_administrators_is_in_sentences() -> None:
    entries = [AuditEntry(0.0, "anna", "put", "/designs/net", ""), AuditEntry(0.0, "ben", "sign in", "ben", "")]
    made = render("admin_log.html", entries=entries, words="", base="")
    assert "Saved the network net" in made
    assert "PUT /designs/net" in made
    assert 'Sign in <span class="mute">ben</span>' in made


def test_jobs_that_ended_name_network_and_dataset() -> None:
    settings = {"model": "runs/classify/a/network/own.yaml", "data": "datasets/flowers/v2"}
    job = SimpleNamespace(number=1, run=None, name="b", remedy=None, state=State("done"), settings=settings)
    made = render("queue_ended.html", rows=[job], base="")
    assert re.findall(r'<td class="wide"[^>]*>([^<]+)', made)[:2] == ["own", "flowers v2"]
