"""Uses networks in the studio: classify one image and many, networks in memory, addresses, pages, and the description of the API."""

from __future__ import annotations

import base64
import http.server
import io
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("nicegui")

import weft
from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio
from weft.errors import UserError
from weft.jobs.prediction import predictions
from weft.jobs.prediction.predictor import Predictor
from weft.jobs.queue.kinds import work_of
from weft.nn import Module
from weft.studio import url_images
from weft.studio.library import loaded
from weft.studio.library.loaded import LoadedNetworks
from weft.studio.url_images import fetch_image, is_public

NETWORK = "classify/light-1"
CLASSES = ("dark", "bright")


class Lightness(Module):
    """Tells dark images from bright ones, without training."""

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        bright = x.astype("float32").mean(axis=(1, 2, 3)) / 255
        return weft.stack([1 - bright, bright], axis=1)


def lightness(*given: object, classes: tuple[str, ...] = CLASSES, **more: object) -> Predictor:
    return Predictor("classify" if classes else "regress", (1, 4, 4), "squash", classes, Lightness(), Lightness())


def image(value: int, side: int = 4) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((side, side), value, np.uint8)).save(content, "PNG")
    return content.getvalue()


def with_weights(folder: Path) -> Path:
    (folder / "weights").mkdir()
    for name in ("best", "last"):
        (folder / "weights" / f"{name}.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("use")
    with_weights(make_run(root / "runs", "light-1", [0.5, 0.9]))
    with_weights(make_run(root / "runs", "light-2", [0.5, 0.8]))
    (imported := root / "runs" / ".networks" / "imported" / "net").mkdir(parents=True)
    (imported / "net.onnx").write_bytes(b"onnx")
    for name, value in (("dark", 20), ("bright", 220)):
        (root / "photos" / name).mkdir(parents=True)
        for i in range(4):
            (root / "photos" / name / f"{i}.png").write_bytes(image(value + i))
    (root / "photos" / "bright" / "odd.png").write_bytes(image(10))
    return root


@pytest.fixture(scope="module")
def local(place: Path) -> Iterator[LocalStudio]:
    patch = pytest.MonkeyPatch()
    for module, name in ((loaded, "predictor_of_run"), (loaded, "find_predictor"), (predictions, "find_predictor")):
        patch.setattr(module, name, lightness)
    with served_studio(place / "runs", roots=(place / "photos",)) as served:
        yield served
    patch.undo()


def run_jobs(local: LocalStudio) -> None:
    """Do the work of all waiting jobs here."""
    for job in local.studio.queue.jobs():
        if job.claim() is not None:
            work_of(job.kind)(job.settings, None, lambda event: None)
            job.set("done")


# --- one image ------------------------------------------------------------------------------------------------------------------


def test_images_of_a_form_are_classified(local: LocalStudio) -> None:
    files = [("image", ("a.png", image(255))), ("image", ("b.png", b"no image")), ("image", ("c.png", image(51)))]
    status, found = local.request("POST", f"/api/v1/networks/{NETWORK}/classify?top=1", {"files": files})
    assert status == 200
    assert [one["image"] for one in found["results"]] == ["a.png", "b.png", "c.png"]
    assert found["results"][0]["classes"] == [{"name": "bright", "probability": pytest.approx(1.0)}]
    assert "is not an image" in found["results"][1]["error"]
    assert found["results"][2]["classes"] == [{"name": "dark", "probability": pytest.approx(0.8)}]


def test_images_of_json_are_classified(local: LocalStudio, place: Path) -> None:
    content = base64.b64encode(image(0)).decode()
    asked = {"images": [content, f"data:image/png;base64,{content}"], "paths": [str(place / "photos/bright/0.png")]}
    status, found = local.request("POST", f"/api/v1/networks/{NETWORK}/classify?checkpoint=last", asked)
    assert status == 200
    assert [one["classes"][0]["name"] for one in found["results"]] == ["dark", "dark", "bright"]
    assert found["checkpoint"] == "last"


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"paths": ["/etc/passwd"]}, 400, "allowed folder"),
        ({"paths": ["bright"]}, 400, "a folder"),
        ({"images": ["%%%"]}, 400, "base64"),
        ({"images": [base64.b64encode(b"text").decode()]}, 400, "is not an image"),
        ({"urls": ["http://example.com/a.png"]}, 400, "urls=true"),
        ({}, 422, "1 to 256 images"),
        ({"imagse": []}, 422, "imagse"),
    ],
)
def test_what_cannot_be_classified_is_refused(local: LocalStudio, asked: Any, status: int, words: str) -> None:
    answered, found = local.request("POST", f"/api/v1/networks/{NETWORK}/classify", asked)
    assert answered == status
    assert words in found["message"]


def test_networks_that_do_not_exist_are_refused(local: LocalStudio) -> None:
    assert local.request("POST", "/api/v1/networks/none/classify", {"images": [""]})[0] == 404
    status, found = local.request("POST", f"/api/v1/networks/{NETWORK}/classify?checkpoint=x", {"images": [base64.b64encode(image(1)).decode()]})  # fmt: skip
    assert (status, found["message"]) == (
        400,
        f"a checkpoint of {Path(NETWORK).name} is required (best, last), got 'x'.",
    )
    make_run(local.studio.index.root, "new-1", [0.5])
    local.studio.index.refresh()
    assert "no weights yet" in local.request("POST", "/api/v1/networks/classify/new-1/load")[1]["message"]


def test_a_loaded_network_answers_quickly(local: LocalStudio) -> None:
    """The limit is 100 ms; what is counted is the time of this process, so that others on the machine do not matter."""
    sent = {"files": {"image": image(9, 224)}}
    local.request("POST", f"/api/v1/networks/{NETWORK}/classify", sent)
    start = time.process_time()
    for _ in range(5):
        assert local.request("POST", f"/api/v1/networks/{NETWORK}/classify", sent)[0] == 200
    assert (time.process_time() - start) / 5 < 0.1


# --- networks in memory ------------------------------------------------------------------------------------------------------------


def test_networks_are_listed_loaded_and_released(local: LocalStudio) -> None:
    usable = {one["id"]: one for one in local.request("GET", "/api/v1/networks/usable")[1]}
    assert usable[NETWORK]["checkpoints"] == ["best", "last"]
    assert usable["net"]["kind"] == "onnx"
    assert local.request("POST", "/api/v1/networks/net/load")[0] == 200
    assert local.request("POST", f"/api/v1/networks/{NETWORK}/load")[1]["classes"] == 2
    found = local.request("GET", "/api/v1/networks/loaded")[1]
    assert found[0]["id"] == NETWORK
    assert "net" in {one["id"] for one in found}
    assert local.request("DELETE", "/api/v1/networks/net/loaded")[1]["released"] == 1
    assert local.request("DELETE", f"/api/v1/networks/{NETWORK}/loaded")[0] == 200
    assert NETWORK not in {one["id"] for one in local.request("GET", "/api/v1/networks/loaded")[1]}
    assert local.request("DELETE", f"/api/v1/networks/{NETWORK}/loaded")[0] == 404


def test_the_least_recently_used_network_makes_room(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def load(path: Path, checkpoint: str, stamp: int) -> loaded.LoadedNetwork:
        made.append(path)
        return loaded.LoadedNetwork(path, checkpoint, lightness(), 400, stamp)

    monkeypatch.setattr(loaded, "_load", load)
    runs = [place / "runs" / "classify" / name for name in ("light-1", "light-2")]
    networks = LoadedNetworks(limit=1000)
    for path, checkpoint in ((runs[0], "best"), (runs[1], "best"), (runs[0], "best"), (runs[0], "last")):
        networks.get(path, checkpoint)
    assert [(one.path.name, one.checkpoint) for one in networks.all()] == [("light-1", "last"), ("light-1", "best")]
    (runs[0] / "weights" / "best.safetensors").write_bytes(b"newer weights")
    networks.get(runs[0])
    assert len(made) == 4, "new weights are loaded, others not again"


def test_two_requests_load_a_network_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, begun = [0], threading.Barrier(4)

    def load(path: Path, checkpoint: str, stamp: int) -> loaded.LoadedNetwork:
        count[0] += 1
        time.sleep(0.05)
        return loaded.LoadedNetwork(path, checkpoint, lightness(), 1, stamp)

    def ask() -> None:
        begun.wait()
        networks.get(place / "runs" / NETWORK)

    monkeypatch.setattr(loaded, "_load", load)
    networks = LoadedNetworks()
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == [1]


def test_text_networks_get_a_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Predictor("text", (), "squash", (), Lightness(), Lightness())
    monkeypatch.setattr(loaded, "predictor_of_run", lambda *given: writer)
    with pytest.raises(UserError, match="a network for images is required, got light-1, which continues text"):
        LoadedNetworks().get(place / "runs" / NETWORK)


def test_numbers_of_a_regression_are_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "predictor_of_run", lambda *given: lightness(classes=()))
    (found,), _ = LoadedNetworks().get(place / "runs" / NETWORK).predict([image(51)])
    assert found.numbers == pytest.approx([0.8, 0.2])
    assert found.classes == ()


# --- many images ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def batch(local: LocalStudio, place: Path) -> int:
    """The number of a batch of predictions."""
    made = local.request("POST", "/api/v1/predictions", {"network": NETWORK, "path": str(place / "photos")})[1]
    run_jobs(local)
    return int(made["number"])


def test_a_folder_is_classified_as_a_job(local: LocalStudio, place: Path) -> None:
    status, made = local.request("POST", "/api/v1/predictions", {"network": NETWORK, "path": str(place / "photos")})
    assert (status, made["status"], made["source"]) == (200, "waiting", "photos")
    run_jobs(local)
    number = made["number"]
    found = local.request("GET", f"/api/v1/predictions/{number}")[1]
    assert (found["status"], found["images"], found["accuracy"]) == ("finished", 9, pytest.approx(8 / 9))
    wrong = local.request("GET", f"/api/v1/predictions/{number}/rows?show=wrong")[1]
    assert (wrong["total"], Path(wrong["rows"][0]["path"]).name) == (1, "odd.png")
    sure = local.request("GET", f"/api/v1/predictions/{number}/rows?order=confident&limit=2")[1]["rows"]
    assert sure[0]["classes"][0][1] >= sure[1]["classes"][0][1]
    best = local.request("GET", f"/api/v1/predictions/{number}/best?most=1")[1]
    assert Path(best["bright"][0]["path"]).name == "3.png"
    assert local.request("GET", f"/api/v1/predictions/{number}/predictions.csv")[1].startswith(
        b"path,label,error,class"
    )
    assert local.request("GET", f"/api/v1/predictions/{number}/predictions.json")[1]["right"] == 8
    picture = local.request("GET", f"/api/v1/predictions/{number}/images/0.jpg")[1]
    assert Image.open(io.BytesIO(picture)).format == "JPEG"
    assert local.request("GET", f"/api/v1/predictions/{number}/images/99.jpg")[0] == 404


def test_a_zip_file_is_classified_and_deleted(local: LocalStudio, place: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("dark/a.png", image(7))
        archive.writestr("bright/b.png", image(7))
    sent = {"files": None, "content": packed.getvalue()}
    status, made = local.request("POST", f"/api/v1/predictions/upload?network={NETWORK}&name=my.zip", sent)
    assert (status, made["source"]) == (200, "my.zip")
    refused, told = local.request("DELETE", f"/api/v1/predictions/{made['number']}")
    assert (refused, "Stop them first" in told["message"]) == (400, True)
    run_jobs(local)
    assert local.request("GET", f"/api/v1/predictions/{made['number']}")[1]["accuracy"] == 0.5
    folder = local.studio.batches.root / str(made["number"])
    assert folder.exists()
    assert local.request("DELETE", f"/api/v1/predictions/{made['number']}")[0] == 200
    assert not folder.exists()


def test_bad_batches_leave_nothing(local: LocalStudio) -> None:
    before = sorted(local.studio.batches.root.glob("*"))
    bad = {"files": None, "content": b"no zip"}
    assert local.request("POST", f"/api/v1/predictions/upload?network={NETWORK}", bad)[0] == 400
    assert local.request("POST", "/api/v1/predictions", {"network": NETWORK, "path": "/etc"})[0] == 400
    assert local.request("POST", "/api/v1/predictions", {"network": "none", "path": "photos"})[0] == 404
    assert sorted(local.studio.batches.root.glob("*")) == before


# --- addresses ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1", "::1", "fe80::1%eth0", "fc00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"],
)  # fmt: skip
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_public_addresses_are() -> None:
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1::1")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a/b", "http://", "http://u:p@example.com/", "http://a:x/", "//a"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(UserError, match="http:// or https://"):
        fetch_image(url)


def test_hosts_on_this_machine_are_refused() -> None:
    for url in ("http://127.0.0.1:1/a.png", "http://localhost/a.png", "http://[::1]/"):
        with pytest.raises(UserError, match="public internet"):
            fetch_image(url)


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers with an image, a redirect, too much, or slowly."""

    def do_GET(self) -> None:
        if self.path == "/inside":
            self.send_response(302)
            self.send_header("Location", "http://10.0.0.1/secret")
            self.end_headers()
        elif self.path == "/loop":
            self.send_response(302)
            self.send_header("Location", "/loop")
            self.end_headers()
        else:
            self.send_response(404 if self.path == "/none" else 200)
            self.end_headers()
            self.wfile.write(b"x" * 5000)
            if self.path == "/slow":
                self.wfile.flush()
                time.sleep(0.6)

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def website(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # For this test 127.0.0.1 is public; everything else is judged as always.
    monkeypatch.setattr(url_images, "is_public", lambda address: address == "127.0.0.1" or is_public(address))
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_addresses_are_read_within_limits(website: str) -> None:
    assert len(fetch_image(f"{website}/a.png")) == 5000
    for path, words, limits in (
        ("/a.png", "a larger one", {"largest": 1000}), ("/inside", "public internet", {}), ("/loop", "redirects", {}),
        ("/none", "answer 404", {}), ("/slow", "within|cannot be read", {"seconds": 0.3}),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            fetch_image(f"{website}{path}", **limits)  # type: ignore[arg-type]


# --- the API's description, and pages ---------------------------------------------------------------------------------------------------


def test_every_route_is_described(local: LocalStudio) -> None:
    """A summary, a typed answer and the errors, for people who read /docs and programs that read the document."""
    document = local.request("GET", "/api/v1/openapi.json")[1]
    lacking = []
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            answer = next((one["responses"][code] for code in ("200", "201", "202") if code in one["responses"]), {})
            schemas = [content.get("schema", {"type": "file"}) for content in answer.get("content", {}).values()]
            if not path.startswith("/api/") or not one.get("summary") or not one.get("description"):
                lacking.append(f"{method} {path}: no summary")
            if not schemas or {} in schemas:
                lacking.append(f"{method} {path}: its answer has no type")
            if not {"400", "401", "404"} <= set(one["responses"]):
                lacking.append(f"{method} {path}: no errors")
    assert lacking == []


@pytest.mark.parametrize("path", ["/classify", "/classify?tab=many", "/classify?tab=best", "/classify?tab=code", "/classify/batches/{batch}", "/classify?tab=text", "/docs", f"/classify?runs={NETWORK}@last,net"])  # fmt: skip
def test_pages_answer(local: LocalStudio, batch: int, path: str) -> None:
    status, page = local.request("GET", path.format(batch=batch))
    assert status == 200
    assert b"weft studio" in page
    assert b"cdn." not in page


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_images_are_classified_in_a_browser(local: LocalStudio, place: Path, batch: int) -> None:
    errors: list[str] = []
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 390, "height": 900}).new_page()
        page.goto(local.way_in)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{local.address}/classify?runs={NETWORK},{NETWORK}@last&path={place}/photos/bright/0.png")
        page.wait_for_function("[...document.querySelectorAll('[data-answer]')].filter(e => e.textContent === 'bright').length === 2")  # fmt: skip
        assert page.locator("[data-why]").count() == 2
        page.evaluate(
            "document.addEventListener('classified', e => (window.told = [...(window.told ?? []), e.target.querySelector('[data-why]').dataset.checkpoint]))"
        )
        page.get_by_role("button", name="Classify", exact=True).click()
        page.wait_for_function("window.told?.length === 2 && window.told.includes('last')")
        assert page.locator("[data-loaded] tbody tr").count() >= 2
        page.get_by_label(f"Release {NETWORK}").first.click()
        page.wait_for_function("document.querySelector('[data-device]').textContent === 'CPU, released'")
        page.get_by_role("button", name="Python").click()
        assert "from weft.studio import Client" in page.locator("[data-example=Python]").inner_text()
        for path in ("/classify?tab=many", "/classify?tab=best", f"/classify/batches/{batch}", "/docs"):
            page.goto(local.address + path)
            page.wait_for_selector("main h1")
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{path} is {wide} pixels too wide"
        page.goto(f"{local.address}/classify?tab=many")
        page.get_by_label("Folder or list").fill(str(place / "photos"))
        page.locator("[data-many][data-started]").get_by_role("button", name="Classify").click()
        page.wait_for_url("**/classify/batches/*")
        run_jobs(local)
        page.wait_for_selector("text=8 of 9")
        page.get_by_role("link", name="Mistakes 1").click()
        page.wait_for_selector("figure >> text=dark")
        assert page.locator("figure").count() == 1
    assert errors == []


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_one_picture_after_another_is_taken_with_the_webcam(local: LocalStudio) -> None:
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(local.way_in)
        page.goto(f"{local.address}/classify?runs={NETWORK}")
        page.evaluate("""navigator.mediaDevices.getUserMedia = async () => {
            const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 64 }), pen = canvas.getContext("2d");
            setInterval(() => pen.fillRect(0, 0, 64, 64), 50);
            return canvas.captureStream(20);
        }""")
        page.wait_for_selector("[data-classify][data-started]")
        page.get_by_role("button", name="Webcam").click()
        for _ in range(2):
            page.wait_for_function("document.querySelector('video').readyState >= 2")
            page.get_by_role("button", name="Take picture").click()
            page.wait_for_function("document.querySelector('[data-answer]').textContent === 'dark'")
            assert page.locator("video").is_hidden()
            page.get_by_role("button", name="Take another").click()
            page.wait_for_selector("video:not([hidden])")
            assert page.locator("[data-answer]").inner_text() == "–"


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_a_file_that_is_no_image_leaves_no_answer_of_another(local: LocalStudio, place: Path) -> None:
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.goto(local.way_in)
        page.goto(f"{local.address}/classify?runs={NETWORK}&path={place}/photos/bright/0.png")
        page.wait_for_function("document.querySelector('[data-answer]').textContent === 'bright'")
        page.wait_for_function("document.querySelector('[data-why]').childElementCount > 0")
        page.locator("[data-source=file]").click()
        assert page.locator("[data-why] *").count() == 0, "the explanation of an image that is no longer shown"
        upload = page.locator("[data-classify] input[type=file]")
        upload.set_input_files({"name": "0.png", "mimeType": "image/png", "buffer": image(255)})
        page.wait_for_function("document.querySelector('[data-answer]').textContent === 'bright'")
        upload.set_input_files({"name": "1.png", "mimeType": "image/png", "buffer": b"no image"})
        page.wait_for_function(
            "document.querySelector('[data-said]').textContent.startsWith('An image file is required')"
        )
        page.wait_for_function("document.querySelector('[data-answer]').textContent === '–'")
        assert page.locator("[data-pad] img").is_hidden(), "the icon of a broken picture"
        assert page.locator("[data-why] *").count() == 0
        page.locator("details.networks summary").click()
        page.keyboard.press("Escape")
        assert page.locator("details.networks[open]").count() == 0
