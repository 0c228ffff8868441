"""Continues texts in the studio: the stream of the API, what is rejected, a client that leaves, and the page."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nicegui")

import weft
from studio_tools import BROWSER, LocalStudio, chromium, make_run, served_studio
from weft import nn
from weft.data import Text
from weft.errors import RunError, UserError
from weft.jobs.prediction.predictor import Predictor
from weft.studio import Client
from weft.studio.api import text as text_api
from weft.studio.library import loaded

VOCABULARY = "abc "
TEXT = Text(np.arange(40, dtype=np.int32) % 4, VOCABULARY, length=4)
WRITE = "/api/v1/networks/text/poem/text"


class Writer(nn.Module):
    """Expects the letters in their order, more or less."""

    context = 4

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return weft.asarray(2.0 * np.eye(4, k=1, dtype=np.float32))[x]


def predictor(verb: str, folder: Any, checkpoint: str) -> Predictor:
    if folder.parent.name == "text":
        model = Writer()
        return Predictor("text", (4,), "squash", (), model, model, TEXT)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    return Predictor("classify", (1, 4, 4), "squash", ("a", "b"), lambda x: model(x.astype("float32")), model)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStudio]:
    runs = tmp_path_factory.mktemp("text") / "runs"
    for task, name in (("text", "poem"), ("classify", "images")):
        run = make_run(runs, name, [0.5, 0.9], model="char_lstm", data="poem.txt")
        (run / "weights").mkdir()
        (run / "weights" / "best.safetensors").write_bytes(b"weights")
        (runs / task).mkdir(exist_ok=True)
        run.rename(runs / task / name)
    with pytest.MonkeyPatch.context() as patch, served_studio(runs) as found:
        patch.setattr(loaded, "predictor_of_run", predictor)
        found.studio.index.refresh()
        yield found


def events(answer: Any) -> list[tuple[str, dict[str, Any]]]:
    blocks = answer.text.strip().split("\n\n")
    lines = [block.split("\n") for block in blocks]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]


def test_the_text_arrives_as_events(local: LocalStudio) -> None:
    asked = {"prompt": "ab", "length": 40, "temperature": 0.7, "top_k": 3, "top_p": 0.95, "seed": 4}
    answer = local.web.post(WRITE, json=asked)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *parts, (name, facts) = events(answer)
    assert (name, facts["characters"]) == ("done", 40)
    text = "ab" + "".join(one["text"] for kind, one in parts if kind == "text")
    assert text == weft.text.generate(
        Writer(), "ab", TEXT.tokenizer, max_new_tokens=40, temperature=0.7, top_k=3, top_p=0.95, seed=4
    )
    with Client(local.address, local.token) as client:
        assert "ab" + "".join(client.write("text/poem", **asked)) == text  # type: ignore[arg-type]
        with pytest.raises(UserError, match="characters must be in the vocabulary, got 'x'"):
            list(client.write("text/poem", "x"))


@pytest.mark.parametrize(
    ("path", "given", "status", "message"),
    [
        (WRITE, {"prompt": "xyz"}, 400, "characters must be in the vocabulary"),
        (WRITE, {"prompt": ""}, 422, "prompt"),
        (WRITE, {"prompt": "a", "length": 10**9}, 422, "length"),
        (WRITE, {"prompt": "a", "top_p": 0}, 422, "top_p"),
        (WRITE, {"prompt": "a", "top": 3}, 422, "top"),
        ("/api/v1/networks/text/none/text", {"prompt": "a"}, 404, "there is no run and no imported network text/none"),
        ("/api/v1/networks/classify/images/text", {"prompt": "a"}, 400, "a network that continues text is required, got images"),
        ("/api/v1/networks/text/poem/classify", {"images": [""]}, 400, "a network for images is required, got poem"),
    ],
)  # fmt: skip
def test_what_is_refused(local: LocalStudio, path: str, given: dict[str, Any], status: int, message: str) -> None:
    found, answer = local.request("POST", path, given)
    assert (found, message in answer["message"]) == (status, True), answer


def test_a_network_that_fails_on_the_way_says_so(local: LocalStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **more: object) -> Iterator[str]:
        yield "a"
        raise RunError("generate", "the network returns nan.")

    monkeypatch.setattr(loaded, "stream", fail)
    assert events(local.web.post(WRITE, json={"prompt": "a"})) in (
        [("text", {"text": "a"}), ("error", {"message": "the network returns nan."})],
    )


def endless(ended: list[int]) -> Iterator[str]:
    try:
        while True:
            time.sleep(0.005)
            yield "a"
    finally:
        ended.append(1)


def test_who_leaves_frees_the_network_and_too_many_are_sent_away(
    local: LocalStudio, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(loaded, "stream", lambda *given, **more: endless(ended))
    network = local.studio.networks.get(local.studio.index.root / "text" / "poem", "best", True)
    with local.web.stream("POST", WRITE, json={"prompt": "a"}) as answer:
        assert next(answer.iter_lines()) == "event: text"
        assert network.lock.locked()
    limit = time.monotonic() + 20
    while network.lock.locked() and time.monotonic() < limit:
        time.sleep(0.01)
    assert (ended, network.lock.locked()) == ([1], False)
    streams = [local.web.stream("POST", WRITE, json={"prompt": "a"}) for _ in range(text_api.AT_ONCE)]
    for one in streams:
        assert one.__enter__().status_code == 200
    assert local.request("POST", WRITE, {"prompt": "a"})[0] == 503
    for one in streams:
        one.__exit__(None, None, None)


@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
def test_the_page(local: LocalStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    from playwright.sync_api import expect

    with chromium() as browser:
        page = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(local.way_in)
        page.goto(f"{local.address}/classify?runs=text/poem")  # where the button Use of its run leads
        page.get_by_label("Beginning of the text").fill("ab")
        page.get_by_label("Length").fill("30")
        page.get_by_role("button", name="Write").click()
        expect(page.locator("[data-time]")).to_contain_text("30 characters")
        assert page.locator("[data-written]").inner_text() == weft.text.generate(
            Writer(), "ab", TEXT.tokenizer, max_new_tokens=30, temperature=0.8
        )
        page.get_by_label("Beginning of the text").fill("xyz")
        page.keyboard.press("Control+Enter")
        expect(page.get_by_role("alert")).to_contain_text("Characters must be in the vocabulary, got 'x', 'y', 'z'")
        monkeypatch.setattr(loaded, "stream", lambda *given, **more: endless([]))
        page.get_by_label("Beginning of the text").fill("a")
        page.get_by_role("button", name="Write").click()
        expect(page.locator("[data-time]")).to_contain_text("characters,")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("[data-time]")).to_contain_text("stopped after")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert errors == []
