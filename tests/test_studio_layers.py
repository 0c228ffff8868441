"""The tabs Layers and Embedding of a run, and what stands behind them: pictures of layers, explanations, the job of the map."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from run_tools import run_with_weights
from studio_tools import BROWSER, LocalStudio, chromium, make_run, page_errors, served_studio
from weft import nn
from weft.cli import main
from weft.errors import RunError, UserError
from weft.jobs import JobQueue
from weft.jobs.embedding import make_embedding, read_embedding
from weft.jobs.prediction.run_predictor import predictor_of_run
from weft.jobs.queue.kinds import EMBEDDING, work_of
from weft.jobs.run_weights import map_file
from weft.studio.library.embeddings import EmbeddingMaps, embedding_job, submit_embedding
from weft.studio.library.explained import ExplainedNetwork, ExplainedNetworks
from weft.studio.library.layer_facts import layer_title, shape_text
from weft.studio.library.loaded import LoadedNetworks
from weft.studio.library.run_checkpoints import checkpoint_epochs, epoch_slider
from weft.studio.library.runs import RunIndex
from weft.studio.library.tiles import activation_mask, filter_colours, filter_mask, grid_of, tiles_of

needs_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a network for the digits that was never trained, with weights of several epochs, and one without weights."""
    root = tmp_path_factory.mktemp("layers") / "runs"
    run_with_weights(root, "small", ("best", "last", "epoch-0001", "epoch-0002", "epoch-0003"))
    make_run(root, "empty", [0.5])
    return root


@pytest.fixture(scope="module")
def folder(runs: Path) -> Path:
    return runs / "classify" / "small"


@pytest.fixture(scope="module")
def network(folder: Path) -> ExplainedNetwork:
    return ExplainedNetworks().get(LoadedNetworks(), folder)


def photo(side: int = 40) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3)).astype(np.uint8)).save(file, "png")
    return file.getvalue()


def pixels_of(picture: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(picture)))


# --- a network that is looked into ------------------------------------------------------------------------------------------------


def test_layers_have_titles_shapes_and_statistics(network: ExplainedNetwork) -> None:
    titles = [row.title for row in network.layers]
    assert titles == ["Conv 5 × 5", "Max pool 2", "Conv 5 × 5", "Max pool 2", "Flatten", "Linear", "Linear"]
    assert network.layer("layers.2").shape == (50, 8, 8)
    assert network.layer("layers.2").channels == 50
    assert sum(row.parameters for row in network.layers) == 431_080
    values, weight = network.outputs("test-3", "layers.5"), network.weight("layers.5")
    found = network.details("test-3", "layers.5")
    assert found.silent == (values == 0).sum()
    assert found.weight is not None
    assert weight is not None
    assert 1.0 < (found.weight.rank or 0.0) < 500.0
    assert found.weight.statistics.norm == pytest.approx(float(np.linalg.norm(weight)), rel=1e-5)
    sample = network.survey().statistics
    assert network.sample_count == 64
    assert len(sample["layers.5"].dead) <= found.silent  # what is dead is silent on every image
    with pytest.raises(UserError, match="the path of a layer is required, got 'layers.9'"):
        network.layer("layers.9")


def test_activations_agree_with_the_predictor(folder: Path, network: ExplainedNetwork) -> None:
    predictor = predictor_of_run("test", folder)
    image = network.image("test-7")
    scores = network.scores("test-7")
    shares = np.exp(scores - scores.max())
    expected = predictor.run(image[None]).numpy()[0]
    np.testing.assert_allclose(shares / shares.sum(), expected, rtol=1e-4, atol=1e-6)
    assert network.true_classes("test-7") == [int(network.held_out[1].labels[7])]


def test_images_that_were_sent_are_kept(network: ExplainedNetwork) -> None:
    name = network.upload(photo())
    assert name == network.upload(photo())
    assert network.image(name).shape == (1, 8, 8)
    assert network.true_classes(name) == []
    for wrong in ("upload-1234", "test-100000", "train-1", "../x"):
        with pytest.raises(UserError):
            network.image(wrong)
    with pytest.raises(UserError, match="an image file is required"):
        network.upload(b"no image")


def test_the_images_that_excite_a_channel_most(network: ExplainedNetwork) -> None:
    found = network.exciting("layers.2", 4, 3)
    data = network.held_out[1]
    chosen = np.linspace(0, len(data) - 1, 64).astype(int)
    y = network.explainer.prepare(data.inputs(chosen))  # type: ignore[misc]
    for layer in network.predictor.model.layers[:3]:
        y = layer(y)
    expected = y.numpy()[:, 4].mean((1, 2))
    best = np.argsort(-expected)[:3]
    assert [i for i, _ in found] == chosen[best].tolist()
    np.testing.assert_allclose([v for _, v in found], expected[best], rtol=1e-4)


def test_networks_are_loaded_again_when_weights_change(folder: Path, runs: Path) -> None:
    explained, loaded = ExplainedNetworks(), LoadedNetworks()
    first = explained.get(loaded, folder)
    assert explained.get(loaded, folder) is first
    assert explained.get(loaded, folder, "last") is not first
    with pytest.raises(
        UserError, match=r"a checkpoint of small is required \(best, last, epoch-0001, .*\), got '../x'"
    ):
        explained.get(loaded, folder, "../x")
    with pytest.raises(UserError, match="has no weights yet"):
        explained.get(loaded, runs / "classify" / "empty")


def test_checkpoints_of_a_run_share_its_images(folder: Path) -> None:
    explained, loaded = ExplainedNetworks(), LoadedNetworks()
    first, second = (explained.get(loaded, folder, name) for name in ("epoch-0001", "epoch-0002"))
    name = first.upload(photo())
    np.testing.assert_array_equal(second.image(name), first.image(name))
    assert second.held_out[1] is first.held_out[1]
    assert not np.array_equal(second.outputs(name, "layers.0"), first.outputs(name, "layers.0"))


def test_networks_that_are_looked_into_stay_below_the_limit(folder: Path) -> None:
    explained, loaded = ExplainedNetworks(), LoadedNetworks()
    loaded.limit = explained.get(loaded, folder).loaded.nbytes * 5 // 2  # two of them
    for name in ("epoch-0001", "epoch-0002", "epoch-0003"):
        explained.get(loaded, folder, name)
    assert [one.loaded.checkpoint for one in explained.all()] == ["epoch-0002", "epoch-0003"]
    assert loaded.nbytes <= loaded.limit


def test_a_slider_goes_through_the_epochs_that_were_kept(folder: Path) -> None:
    epochs = checkpoint_epochs(folder)
    assert epochs == {"best": 3, "last": 3, "epoch-0001": 1, "epoch-0002": 2, "epoch-0003": 3}
    slider = epoch_slider(epochs, "epoch-0002")
    assert slider is not None
    assert (slider.names[slider.place], slider.chosen) == ("epoch-0002", 2)
    assert epoch_slider({"best": 3, "last": 3, "epoch-0003": 3}, "best") is None


def test_words_for_layers() -> None:
    assert (
        layer_title(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())) == "Conv 3 × 3, batch norm, ReLU"
    )
    assert layer_title(nn.Conv2d(1, 2, (3, 5), stride=2)) == "Conv 3 × 5 / 2"
    assert shape_text((8, 1, 1)) == "8"


# --- pictures -----------------------------------------------------------------------------------------------------------------------


def test_channels_are_tiles_of_one_picture() -> None:
    values = np.zeros((20, 4, 4), np.float32)
    values[17] = 1.0
    mask = pixels_of(activation_mask(values))[..., 1]
    assert mask.shape == (2 * 56, 16 * 56)
    assert mask[56:, 56:112].min() == 255
    assert mask.sum() == 255 * 56 * 56
    tile = tiles_of(20)[17]
    assert (tile.x, tile.y) == (pytest.approx(100 / 15), 100.0)
    assert grid_of(3) == (3, 1)
    assert len(tiles_of(1000)) == 256
    weight = np.zeros((2, 1, 1, 2), np.float32)
    weight[0, 0, 0] = 1.0, -0.5
    positive, negative = (pixels_of(filter_mask(weight, n))[..., 1] for n in (False, True))
    assert positive[0, 0] == 255
    assert positive[0, 40] == 0
    assert negative[0, 0] == 0
    assert negative[0, 40] == 128
    assert pixels_of(filter_colours(np.ones((3, 3, 5, 5)))).shape == (55, 165, 3)
    assert max(pixels_of(activation_mask(np.ones((2, 300, 200)))).shape[:2]) <= 2 * 112


# --- the job of the map -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded(runs: Path, folder: Path) -> Path:
    """The map of the run, made by the work of its job."""
    index = RunIndex(runs)
    index.refresh()
    (row,) = [one for one in index.rows() if one.name == "small"]
    queue = JobQueue(runs)
    assert embedding_job(queue, row) is None
    job = submit_embedding(queue, row, {"examples": 60})
    assert job.kind == EMBEDDING
    assert submit_embedding(queue, row, {}).number == job.number  # it waits already
    events = []
    work_of(job.kind)(job.settings, None, events.append)
    assert {"activity", "progress"} <= {event.type for event in events}
    assert {"t-SNE", "embedding test images"} <= {event["what"] for event in events if event.type == "progress"}
    job.set("done")
    assert embedding_job(queue, row) is None
    return folder


def test_the_map_of_a_run(embedded: Path, network: ExplainedNetwork) -> None:
    found = read_embedding(embedded)
    assert found is not None
    assert found.tsne.shape == found.pca.shape == (60, 2)
    assert found.thumbs.shape == (60, 8, 8, 1)
    assert found.facts["split"] == "test"
    assert found.classes == [str(i) for i in range(10)]
    data = network.held_out[1]
    np.testing.assert_array_equal(found.labels, data.labels[found.indices])
    vectors, scores = network.explainer.embed(data.inputs(found.indices))
    np.testing.assert_allclose(found.vectors, vectors, rtol=1e-2, atol=1e-2)
    np.testing.assert_array_equal(found.predicted, scores.argmax(1))
    maps = EmbeddingMaps()
    assert maps.get(embedded) is maps.get(embedded, "best") is maps.current(embedded, "best")
    assert maps.get(embedded, "last") is None
    assert maps.get(embedded.parent) is None


def test_a_damaged_map_says_so(embedded: Path, tmp_path: Path) -> None:
    (tmp_path / map_file("best")).parent.mkdir()
    (tmp_path / map_file("best")).write_bytes((embedded / map_file("best")).read_bytes()[:3000])
    with pytest.raises(RunError, match="is damaged"):
        read_embedding(tmp_path)
    assert read_embedding(tmp_path.parent) is None


# --- the command line ---------------------------------------------------------------------------------------------------------------


def test_weft_interpret_writes_a_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.png").write_bytes(photo())
    out = tmp_path / "page.html"
    assert main(["interpret", str(folder), str(tmp_path / "one.png"), f"out={out}", "target=3"]) == 0
    said = capsys.readouterr().out
    assert f"page: {out}" in said
    assert "one.png: " in said
    page = out.read_text()
    assert "Why 3" in page
    for words in ("Grad-CAM, layers.2", "Occlusion, 2 × 2", "layers.6 · Linear", "weights 10 × 500"):
        assert words in page
    assert main(["interpret", str(folder), str(tmp_path / "one.png"), "target=cat"]) != 0
    assert "target is one of the classes of the network, got 'cat'" in capsys.readouterr().err
    assert main(["interpret", str(folder), str(tmp_path / "none.png")]) != 0
    assert "an image is required" in capsys.readouterr().err


def test_weft_interpret_makes_the_map(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["interpret", str(folder), f"out={out}", "examples=60", "checkpoint=last"]) == 0
    page = out.read_text()
    assert "t-SNE of 60 test images" in page
    assert page.count("<circle") + page.count("<rect") >= 120
    made = read_embedding(folder, "last")
    assert made is not None
    assert made.facts["checkpoint"] == "last"
    (folder / map_file("last")).unlink()  # other tests make it


def test_networks_for_other_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("to be or not to be " * 40)
    folder = run_with_weights(
        tmp_path, "text", ("best",), data=str(tmp_path / "words.txt"), model="char_lstm", length=8
    )
    with pytest.raises(UserError, match="a network for images is required, got text"):
        make_embedding(folder)


# --- over HTTP --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(runs: Path, embedded: Path) -> Iterator[LocalStudio]:
    with served_studio(runs, runner=True, roots=(runs.parent,)) as started:
        yield started


@pytest.fixture(scope="module")
def web(server: LocalStudio) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {(server.runs / '.studio' / 'token').read_text().strip()}"
        client.headers["X-Weft-Studio"] = "1"
        yield client


def test_the_api_explains(web: httpx.Client) -> None:
    base = "/api/v1/networks/classify/small"
    kept = web.post(f"{base}/images", files={"image": photo()}).json()["image"]
    assert pixels_of(web.get(f"{base}/images/{kept}.png").content).shape == (8, 8, 3)
    layers = web.get(f"{base}/layers", params={"image": kept}).json()
    assert [one["name"] for one in layers] == [f"layers.{i}" for i in range(7)]
    assert len(layers[0]["weight"]["counts"]) == 40
    for path, wanted in (
        (f"activations.png?layer=layers.0&image={kept}", (2 * 48, 16 * 48, 2)),
        ("weights.png?layer=layers.0&part=negative", (2 * 55, 16 * 55, 2)),
        (f"channel.png?layer=layers.0&image={kept}&channel=3", (320, 320, 3)),
    ):
        assert pixels_of(web.get(f"{base}/{path}").content).shape == wanted
    found = web.post(f"{base}/explain", files={"image": photo()}).json()
    assert [one["title"] for one in found["maps"]] == ["Grad-CAM", "Occlusion"]
    assert found["target"] == found["classes"][0]["name"]
    assert len(found["similar"]) == 8
    assert found["similar"][0]["similarity"] >= found["similar"][7]["similarity"]
    other = web.get(f"{base}/explain", params={"image": kept, "target": "3"}).json()
    assert other["target"] == "3"
    assert other["maps"][1]["picture"].startswith("data:image/png;base64,")
    assert len(web.get(f"{base}/exciting?layer=layers.2&channel=1&count=3").json()) == 3


def test_similar_images_are_those_of_the_chosen_weights(server: LocalStudio, web: httpx.Client) -> None:
    base, run = "/api/v1/networks/classify/small/explain", "/api/v1/runs/classify/small/embedding"
    asked = {"image": "test-4", "checkpoint": "epoch-0002"}
    found = web.get(base, params=asked).json()
    assert (found["has_embedding"], found["similar"]) == (False, [])
    made = web.post(run, json={"checkpoint": "epoch-0002", "examples": 20}).json()
    job = server.studio.queue.job(made["number"])
    assert job.settings["name"] == "Embedding of small, epoch-0002"
    deadline = time.monotonic() + 120
    while not job.state.has_ended and time.monotonic() < deadline:
        time.sleep(0.05)
    assert job.state.state == "done", job.state.why
    similar = web.get(base, params=asked).json()["similar"]
    assert len(similar) == 8
    assert similar != web.get(base, params={**asked, "checkpoint": "best"}).json()["similar"]
    assert web.get(run, params={"checkpoint": "epoch-0002"}).json()["checkpoint"] == "epoch-0002"
    assert web.get(run).json()["checkpoint"] == "best"
    assert web.post(run, json={"checkpoint": "../x"}).status_code == 400
    weights = server.runs / "classify" / "small" / "weights" / "epoch-0002.safetensors"
    os.utime(weights, (1e9, 1e9))  # trained again: vectors of other weights are not comparable
    assert not web.get(base, params=asked).json()["has_embedding"]


def test_the_api_refuses_with_a_reason(web: httpx.Client) -> None:
    base = "/api/v1/networks/classify/small"
    for path, words in (
        ("layers?image=test-99999", "an image from test-0 to test-358"),
        ("activations.png?layer=x&image=test-0", "the path of a layer"),
        ("weights.png?layer=layers.1", "a convolution or a linear layer"),
        ("channel.png?layer=layers.6&image=test-0&channel=0", "a channel of a layer with maps"),
        ("exciting?layer=layers.2&channel=50", "a channel of 'layers.2'"),
        ("explain?image=test-0&target=cat", "one of the classes"),
        ("explain?image=test-0&checkpoint=worst", "a checkpoint of small is required (best, last, epoch-0001"),
    ):
        answer = web.get(f"{base}/{path}")
        assert answer.status_code == 400, path
        assert words in answer.json()["message"]
    assert web.post(f"{base}/explain").status_code == 400
    assert web.post(f"{base}/explain?path=/etc/passwd").status_code == 400
    assert web.get("/api/v1/networks/none/explain?image=test-0").status_code == 404
    assert web.get("/api/v1/runs/classify/empty/embedding").status_code == 404


def test_the_api_gives_the_map(web: httpx.Client) -> None:
    base = "/api/v1/runs/classify/small/embedding"
    found = web.get(base).json()
    assert len(found["tsne"]) == len(found["labels"]) == 60
    assert json.dumps(found)  # no nan
    assert pixels_of(web.get(f"{base}/59.png").content).shape == (8, 8)
    assert web.get(f"{base}/60.png").status_code == 404
    assert web.post(base, json={"examples": 1}).status_code == 422
    for page in ("/", "/queue"):  # where its job is listed
        assert web.get(page).status_code == 200


# --- in a browser -----------------------------------------------------------------------------------------------------------------------


@needs_browser
def test_layers_and_map_in_a_browser(server: LocalStudio) -> None:
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.way_in)
        _looks_at_layers(page, server)
        _looks_at_the_map(page, server)
    assert errors == []


def _looks_at_layers(page: Any, server: LocalStudio) -> None:
    page.goto(f"{server.address}/runs/classify/small?tab=layers")
    page.wait_for_selector("section[aria-label=Activations] .tile >> nth=19", timeout=60_000)
    page.get_by_label("Filter layers").fill("conv")
    page.wait_for_selector(".outline >> text=Flatten", state="detached")
    page.locator(".outline .pickable").last.click()
    page.wait_for_selector("text=50 × 20 × 5 × 5")
    page.get_by_label("Channel 7", exact=True).click()
    page.wait_for_selector("text=/Channel 7 fires on/")
    assert page.get_by_label("Filter 7", exact=True).get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Overlay").click()
    page.wait_for_selector("img[alt='Channel 7 over the image']")
    page.get_by_label("Next image").click()
    page.wait_for_selector("text=test, image 2 of 359")
    page.wait_for_selector("[data-why] >> text=/Why small says/", timeout=60_000)
    page.wait_for_selector(".why-near li >> nth=7")
    assert page.locator(".why-near li").count() == 8
    page.get_by_label("Use an image file").set_input_files(
        {"name": "a.png", "mimeType": "image/png", "buffer": photo()}
    )
    page.wait_for_selector("text=your image")
    page.wait_for_selector("section[aria-label='Images that excite the channel'] img", timeout=60_000)
    _explains_what_was_classified(page)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    page.set_viewport_size({"width": 1280, "height": 900})


@needs_browser
def test_a_slider_over_epochs_shows_other_filters(server: LocalStudio, web: httpx.Client) -> None:
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        errors = page_errors(page)
        page.goto(server.way_in)
        page.goto(f"{server.address}/runs/classify/small?tab=layers&layer=layers.2&image=test-4&checkpoint=epoch-0001")
        page.get_by_label("Channel 7", exact=True).click(timeout=60_000)
        page.wait_for_selector("text=/Channel 7 fires on/")
        before = _filters(page)
        slider = page.get_by_label("Epoch", exact=True)
        assert slider.get_attribute("aria-valuetext") == "epoch 1 of 3"
        slider.focus()
        for key in ("End", "ArrowLeft"):
            page.keyboard.press(key)
        page.locator(".filters[style*='checkpoint=epoch-0002']").wait_for(timeout=60_000)
        assert slider.get_attribute("aria-valuetext") == "epoch 2 of 3"
        after = _filters(page)
        assert web.get(before).content != web.get(after).content
        assert "layer=layers.2" in after
        assert page.get_by_label("Filter 7", exact=True).get_attribute("aria-pressed") == "true"
        page.wait_for_selector("text=test, image 5 of 359")
        page.get_by_role("button", name="Best").click()
        page.locator(".filters[style*='checkpoint=best']").wait_for(timeout=60_000)
        assert slider.input_value() == "2"  # the place of its epoch
    assert errors == []


def _filters(page: Any) -> str:
    """The address of the picture of the filters."""
    found = re.search(r"--above:url\('([^']*)'\)", page.locator(".filters").get_attribute("style"))
    assert found is not None
    return found.group(1)


def _explains_what_was_classified(page: Any) -> None:
    """Any page with an element data-why shows the reasons of an image that was just classified."""
    page.evaluate(
        """(bytes) => {
            const card = document.createElement("section");
            card.innerHTML = '<div id="asked" data-why data-network="classify/small" data-checkpoint="last"></div>';
            document.querySelector("main").append(card);
            const content = new Blob([new Uint8Array(bytes)], { type: "image/png" });
            card.dispatchEvent(new CustomEvent("classified", { bubbles: true, detail: { network: "classify/small", content } }));
        }""",
        list(photo()),
    )
    page.wait_for_selector("#asked img[alt='Occlusion 2 × 2']", timeout=60_000)
    page.wait_for_selector("#asked >> text=Embed the training images")  # there is no map of the last weights
    page.evaluate("document.querySelector('#asked').parentElement.remove()")


def _looks_at_the_map(page: Any, server: LocalStudio) -> None:
    page.goto(f"{server.address}/runs/classify/small?tab=embedding")
    canvas = page.locator(".map-plot canvas")
    canvas.wait_for()
    page.wait_for_selector("section[aria-label='Selected images'] h2 >> text=Mistakes")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 4, box["y"] + box["height"] - 4, steps=4)
    page.mouse.up()
    page.wait_for_selector("text=60 selected")
    page.wait_for_selector(".map-list img >> nth=59")
    page.get_by_role("button", name="PCA").click()
    page.get_by_role("button", name="Clear").click()
    page.wait_for_selector("section[aria-label='Selected images'] h2 >> text=Mistakes")
    page.goto(f"{server.address}/runs/classify/empty?tab=embedding")
    page.wait_for_selector("text=No map yet")
    page.goto(f"{server.address}/runs/classify/empty?tab=layers")
    page.wait_for_selector("text=has no weights yet")
