"""Checks `weft weights`, the store of published weights, and training from them."""

import functools
import hashlib
import http.server
import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft import io, knobs, zoo
from weft.cli import main
from weft.errors import RunError, UserError
from weft.jobs import weights_store
from weft.jobs.weights import find_weights, settings_for_weights
from weft.zoo.published import NAMINGS
from weft.zoo.published.naming import sources

LENET = NAMINGS["lenet5"][0]
QUICK = ("epochs=2", "batch=64", "overfit=2")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("weft.data.download.pause", lambda seconds: None)
    with knobs.set(data=str(tmp_path / "store")):
        yield tmp_path / "store"


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of LeNet under Caffe's names."""
    model, rng = zoo.lenet5(), np.random.default_rng(0)
    named = {source.name: model.named_tensors()[name] for name, source in sources(model, LENET).items()}
    path = tmp_path_factory.mktemp("published") / "lenet.npz"
    np.savez(path, **{name: rng.normal(0, 0.05, t.shape).astype(np.float32) for name, t in named.items()})
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["weights", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["weights", *words]) in (1, 2)
    return capsys.readouterr().err


def test_add_list_show_and_remove(lenet: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is empty" in said(capsys, "list")
    added = said(capsys, "add", str(lenet), "network=lenet5", "licence=BSD-2-Clause", "origin=the Caffe zoo")
    assert "weights=lenet5" in added
    assert (store / "weights" / "lenet5" / "weights").read_bytes() == lenet.read_bytes()
    (entry,) = json.loads(said(capsys, "list", "json=true"))
    assert entry == json.loads(said(capsys, "show", "lenet5", "json=true"))
    assert entry == {
        "name": "lenet5", "network": "lenet5", "library": "caffe", "bytes": lenet.stat().st_size, "licence": "BSD-2-Clause",
        "origin": "the Caffe zoo", "sha256": hashlib.sha256(lenet.read_bytes()).hexdigest(),
    }  # fmt: skip
    assert "lenet5" in said(capsys, "list")
    assert "is in the store already" in refused(capsys, "add", str(lenet), "network=lenet5")
    said(capsys, "add", str(lenet), "network=lenet5", "name=second")
    assert find_weights("second").network == "lenet5"
    assert "removed" in said(capsys, "remove", "second")
    assert [each.name for each in weights_store.stored()] == ["lenet5"]
    assert "there are no weights 'second'" in refused(capsys, "show", "second")


def test_what_cannot_be_added(lenet: Path, store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", stem=np.zeros(3))
    np.savez(tmp_path / "head.npz", **{"classifier.1.weight": np.zeros((10, 4)), "classifier.1.bias": np.zeros(10)})
    (tmp_path / "text.pth").write_text("no weights")
    for words, message in (
        ((), "a file or a URL is required"),
        ((str(lenet),), "which network are they for"),
        ((str(lenet), "network=lenet6"), "which network are they for.*lenet5"),
        (("missing.pth", "network=lenet5"), "a file, or a URL"),
        (("file:///etc/passwd", "network=lenet5"), "a file, or a URL"),
        ((str(lenet), "network=lenet5", "name=../x"), "a name of letters"),
        ((str(lenet), "network=lenet5", "sha256=12"), "64 hexadecimal digits"),
        ((str(lenet), "network=lenet5", "sha256=" + "0" * 64), "is another file"),
        (("other.npz", "network=lenet5"), "weights of lenet5 under the names of caffe are required"),
        (("head.npz", "network=resnet18"), "weights of resnet18 are required, got 2 of its 1[0-9]* tensors"),
        (("text.pth", "network=lenet5"), "text.pth is damaged, or not in a format that is known"),
        (("https://example.org/w.pth", "network=lenet5"), "needs the hash"),
    ):
        found = refused(capsys, "add", *words)
        assert re.search(message, found.replace("\n", " ")), (words, found)
    assert weights_store.stored() == []
    assert not (store / "weights").exists() or list((store / "weights").iterdir()) == []


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


def test_downloads_have_the_hash_that_was_given(lenet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handler = functools.partial(_Quiet, directory=str(lenet.parent))
    sha256 = hashlib.sha256(lenet.read_bytes()).hexdigest()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/lenet.npz"
        assert "the checksum is" in refused(capsys, "add", url, "network=lenet5", "sha256=" + "0" * 64)
        said(capsys, "add", url, "network=lenet5", f"sha256={sha256}")
        server.shutdown()
    (entry,) = weights_store.stored()
    assert (entry.origin, entry.sha256) == (url, sha256)


def test_without_a_network_the_message_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    found = refused(capsys, "add", "http://127.0.0.1:1/w.pth", "network=lenet5", "sha256=" + "0" * 64)
    assert "could not be downloaded" in found
    assert "Where there is no network, bring the file by other means: weft weights add FILE" in found
    assert "dataset get" not in found


def test_damage_in_the_store_is_noticed(lenet: Path, store: Path) -> None:
    entry = weights_store.add(str(lenet), network="lenet5")
    entry.path.write_bytes(entry.path.read_bytes()[:-1] + b"?")
    with pytest.raises(RunError, match="weights is damaged: its SHA-256"):
        find_weights("lenet5")
    (store / "weights" / "lenet5" / "about.json").write_text('{"name": "other"}')
    with pytest.raises(RunError, match=r"about\.json is damaged"):
        weights_store.stored()


# --- training from them -----------------------------------------------------------------------------------------------------


def test_settings_follow_from_the_weights(lenet: Path) -> None:
    weights_store.add(str(lenet), network="lenet5")
    plain: dict[str, Any] = {"weights": None, "model": None, "size": None}
    assert settings_for_weights(plain) == plain
    assert settings_for_weights({**plain, "weights": "lenet5"}) == {
        "weights": "lenet5",
        "model": "lenet5",
        "size": (28, 28),
    }
    given = {"weights": str(lenet), "model": "lenet", "size": (20, 20)}
    assert settings_for_weights(given) == given


def test_training_from_stored_weights(
    lenet: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Images are normalized as published, and the run remembers it."""
    monkeypatch.setitem(NAMINGS, "lenet5", (replace(LENET, statistics=((0.25,), (0.5,))),))
    weights_store.add(str(lenet), network="lenet5")
    assert main(["train", "digits", "weights=lenet5", *QUICK, "name=first"]) == 0
    out = capsys.readouterr().out
    assert "8 parameter tensors are initialized from lenet5" in out
    assert "images are normalized as lenet5 expects" in out
    run = tmp_path / "runs" / "classify" / "first"
    known = json.loads((run / "data.json").read_text())
    assert (known["mean"], known["std"], known["shape"]) == ([0.25], [0.5], [1, 8, 8])


def test_other_classes_begin_with_a_new_head(lenet: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez("two.npz", x=rng.integers(0, 256, (32, 28, 28), np.uint8), y=np.arange(32) % 2)
    assert main(["train", "two.npz", "model=lenet5", f"weights={lenet}", "freeze=2", *QUICK, "name=first"]) == 0
    out = capsys.readouterr().out
    assert "layers.6.weight and layers.6.bias" in out
    assert "newly initialized" in out
    trained = io.load(tmp_path / "runs" / "classify" / "first" / "weights" / "last.safetensors")
    assert np.array_equal(trained["layers.5.weight"].numpy(), io.load_weights(lenet)["ip1.weight"])


def test_weights_of_another_network_are_refused(lenet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=resnet20", f"weights={lenet}", *QUICK]) == 2
    assert "weights of cifar repositories do not fit resnet20. missing: bn1.weight" in capsys.readouterr().err


def test_store_names_are_no_paths() -> None:
    for name in ("../x", "/etc/passwd", "", ".adding-x"):
        assert not weights_store.is_stored(name)
    with pytest.raises(UserError, match="there are no weights"):
        weights_store.find_stored("../x")
