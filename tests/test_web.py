"""Pages: the folder, the linker, the image pipeline in JavaScript, and a real browser that predicts what weft predicts."""

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from PIL import Image
from PIL import __version__ as pillow

import weft
from browser import Browser, find_browser
from web_tools import LABELS, WasmModule, picture, read_page, save_classifier, save_regressor
from weft import nn
from weft.cli import main
from weft.data.convert import to_array
from weft.data.resize import WAYS, resize
from weft.errors import InternalError, UserError
from weft.jobs.prediction.predictor import Predictor, predictor_of_program
from weft.jobs.web import export_web
from weft.web import folder as web_folder
from weft.web.wasm_linker import STACK, link

SIZES = [(10, 12), (37, 21), (9, 60), (200, 13)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("web") / "tiny.weft")


@pytest.fixture(scope="module")
def page(saved: Path) -> Path:
    folder = saved.with_name("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web_folder, "_PART", 3 * 500)  # several parts
        export_web(weft.load(saved), folder)
    return folder


@pytest.fixture(scope="module")
def predictor(saved: Path) -> Predictor:
    return predictor_of_program(weft.load(saved))


# --- the linker -------------------------------------------------------------------------------------------------------------

IR = """
target triple = "wasm32-unknown-unknown"
@table = internal constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0], align 16
@bytes = internal constant [3 x i8] c"abc"
@functions = internal constant [2 x ptr] [ptr @plus, ptr @times]
@inside = internal constant ptr getelementptr ([4 x float], ptr @table, i32 0, i32 2)
@start = internal constant ptr @table
@counter = internal global [1000 x i32] zeroinitializer, align 64
define internal float @plus(float %x) { %y = fadd float %x, 1.0 ret float %y }
define internal float @times(float %x) { %y = fmul float %x, 3.0 ret float %y }
define float @choose(i32 %i, float %x) {
  %place = getelementptr [2 x ptr], ptr @functions, i32 0, i32 %i
  %function = load ptr, ptr %place
  %y = call float %function(float %x)
  ret float %y
}
define float @third() { %place = load ptr, ptr @inside %y = load float, ptr %place ret float %y }
define float @first() { %place = load volatile ptr, ptr @start %y = load float, ptr %place ret float %y }
define i32 @letter(i32 %i) { %p = getelementptr i8, ptr @bytes, i32 %i %b = load i8, ptr %p %n = zext i8 %b to i32 ret i32 %n }
define i32 @count() {
  %place = getelementptr [1000 x i32], ptr @counter, i32 0, i32 999
  %old = load i32, ptr %place
  %new = add i32 %old, 1
  store i32 %new, ptr %place
  ret i32 %new
}
declare void @llvm.memcpy.p0.p0.i32(ptr, ptr, i32, i1)
define void @scaled(ptr %in, ptr %out) {
  %here = alloca [100 x float], align 16
  %v = load <4 x float>, ptr @table
  %w = load <4 x float>, ptr %in
  %r = fmul <4 x float> %v, %w
  store volatile <4 x float> %r, ptr %here
  call void @llvm.memcpy.p0.p0.i32(ptr %out, ptr %here, i32 16, i1 0)
  ret void
}
define i32 @deep(i32 %n) {
  %here = alloca [256 x i32], align 16
  store volatile i32 %n, ptr %here
  %again = icmp sgt i32 %n, 0
  br i1 %again, label %more, label %done
more:
  %less = sub i32 %n, 1
  %found = call i32 @deep(i32 %less)
  %kept = load volatile i32, ptr %here
  %sum = add i32 %found, %kept
  ret i32 %sum
done:
  ret i32 0
}
"""
EXPORTS = ["choose", "first", "third", "letter", "count", "scaled", "deep"]


def wasm_object(text: str) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("wasm32-unknown-unknown")
    machine = target.create_target_machine(features="+simd128,+bulk-memory", opt=1)
    code: bytes = machine.emit_object(llvm.parse_assembly(text))
    return code


def check_linked(module: WasmModule) -> None:
    """All that the linker resolves: addresses, pointers in data, tables of functions, zeros, the stack."""
    assert [module.call("choose", i, 5.0) for i in (0, 1)] == [6.0, 15.0]
    assert (module.call("first"), module.call("third")) == (1.0, 3.0)
    assert [module.call("letter", i) for i in range(3)] == [97, 98, 99]
    assert [module.call("count") for _ in range(2)] == [1, 2]
    a, b = module.place(np.arange(1, 5, dtype=np.float32).tobytes()), module.place(bytes(16))
    module.call("scaled", a, b)
    assert module.floats(b, 4).tolist() == [1.0, 4.0, 9.0, 16.0]
    assert module.call("deep", 50) == 50 * 51 // 2


def test_a_linked_module_runs() -> None:
    wasmtime = pytest.importorskip("wasmtime", reason="wasmtime runs modules: pip install '.[test]'")
    module = WasmModule(wasmtime, link(wasm_object(IR), EXPORTS))
    check_linked(module)
    with pytest.raises(wasmtime.Trap):  # below the stack there is no memory
        module.call("deep", STACK // 1024 + 1)


def test_linked_as_wasm_ld_links(tmp_path: Path) -> None:
    wasmtime = pytest.importorskip("wasmtime", reason="wasmtime runs modules: pip install '.[test]'")
    linker = shutil.which("wasm-ld")
    if linker is None:
        pytest.skip("wasm-ld is not installed")
    (tmp_path / "a.o").write_bytes(wasm_object(IR))
    exports = [f"--export={name}" for name in [*EXPORTS, "__heap_base"]]
    subprocess.run([linker, "--no-entry", *exports, "a.o", "-o", "a.wasm"], cwd=tmp_path, check=True)
    check_linked(WasmModule(wasmtime, (tmp_path / "a.wasm").read_bytes()))


def test_what_cannot_be_linked_is_refused() -> None:
    missing = 'target triple = "wasm32-unknown-unknown"\ndeclare i32 @other()\ndefine i32 @f() { %x = call i32 @other() ret i32 %x }'
    with pytest.raises(UserError, match=r"\[export\] .* got other"):
        link(wasm_object(missing), ["f"])
    with pytest.raises(InternalError, match="no function 'nothing'"):
        link(wasm_object(IR), ["nothing"])
    with pytest.raises(InternalError, match="version 1"):
        link(b"\x7fELF....", ["f"])


# --- the folder -------------------------------------------------------------------------------------------------------------


def test_the_code_of_a_page_computes_what_weft_computes(page: Path, predictor: Predictor, tmp_path: Path) -> None:
    wasmtime = pytest.importorskip("wasmtime", reason="wasmtime runs modules: pip install '.[test]'")
    description, code, weights = read_page(page)
    module = WasmModule(wasmtime, code)
    image = predictor.image(str(picture(tmp_path / "a.png", 37, 21)))
    sizes = description["memory"]
    assert image.nbytes == sizes["input"]
    given, result = module.place(image.tobytes()), module.place(bytes(sizes["output"]))
    workspace, constants = module.place(bytes(sizes["workspace"])), module.place(weights)
    assert module.call(description["run"], given, result, workspace, constants) == 0
    np.testing.assert_allclose(
        module.floats(result, len(LABELS)), probabilities(predictor, image), rtol=1e-5, atol=1e-7
    )


def test_a_page_describes_its_network(page: Path) -> None:
    description, code, weights = read_page(page)
    assert description["title"] == "tiny"
    assert description["subtitle"] == "Sorts pictures into 7 classes; trained on pets"
    assert description["labels"] == LABELS
    assert len(description["parts"]) == -(-len(weights) // 1500) > 1
    facts = dict(description["facts"])
    assert facts["Validation accuracy"] == "75.0 %"
    assert facts["Licence"] == "MIT"
    assert facts["Size"] == f"{(len(code) + len(weights)) / 1e3:.0f} kB"
    input = description["input"]
    assert (input["channels"], input["height"], input["width"], input["resize"]) == (1, 12, 10, "squash")


def test_drawings_begin_with_the_background_of_training(tmp_path: Path) -> None:
    for mean, expected in ((0.1, "black"), (0.9, "white")):
        program = weft.load(save_classifier(tmp_path / "net.weft", mean=mean))
        export_web(program, tmp_path / "page")
        assert read_page(tmp_path / "page")[0]["input"]["background"] == expected


def test_nothing_is_loaded_from_elsewhere(page: Path) -> None:
    for path in page.rglob("*.*"):
        text = path.read_text()
        assert "http:" not in text, path
        assert "https:" not in text, path


def test_only_pages_are_replaced(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    assert main(["export", str(saved), "to=web", f"out={tmp_path / 'mine'}", "exist_ok=true"]) == 2
    assert "a new folder, an empty one or a page is required" in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "dear"
    target = f"out={tmp_path / 'page'}"
    assert main(["export", str(saved), "to=web", target]) == 0
    assert "bytes of WebAssembly" in capsys.readouterr().out
    assert main(["export", str(saved), "to=web", target]) == 2
    (tmp_path / "page" / "old.js").touch()
    assert main(["export", str(saved), "to=web", target, "exist_ok=true"]) == 0
    assert not (tmp_path / "page" / "old.js").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "page"]


def test_what_a_page_cannot_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plain.weft"
    weft.save(path, nn.Linear(4, 2), weft.zeros((1, 4)))
    assert main(["export", str(path), "to=web", f"out={tmp_path / 'page'}"]) == 2
    assert "does not say how images become its inputs" in capsys.readouterr().err
    numbers = {
        "name": "n",
        "shape": [4],
        "dtype": "float32",
        "classes": ["a", "b"],
        "labels": ["int64"],
        "mean": None,
        "std": None,
    }
    weft.save(
        path, nn.Linear(4, 2), weft.zeros((1, 4)), task="classify", preprocessing={"resize": "squash", "data": numbers}
    )
    with pytest.raises(UserError, match="a page classifies pictures"):
        export_web(weft.load(path), tmp_path / "page")
    with pytest.raises(UserError, match=r"from uint8 pixels .* got float32\[1, 3, 4, 4\], float32\[1, 2\]"):
        export_web(weft.load(save_regressor(path, "float32")), tmp_path / "page")
    assert not (tmp_path / "page").exists()


# --- the image pipeline -----------------------------------------------------------------------------------------------------

RUN_PIPELINE = """
const fs = require("fs"), vm = require("vm");
vm.runInThisContext(fs.readFileSync(process.argv[1], "utf8"));
const { networkInput } = imagePipeline(), pixels = fs.readFileSync("pixels");
let at = 0;
const results = JSON.parse(fs.readFileSync("cases.json")).map(({ size, input }) => {
  const start = at;
  at += 4 * size.width * size.height;
  return networkInput(pixels.subarray(start, at), size, input);
});
fs.writeFileSync("results", Buffer.concat(results));
"""


def test_pixels_are_those_of_training_to_the_bit(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    rng = np.random.default_rng(0)
    cases, pixels, expected = [], [], []
    for i in range(160):
        width, height, wide, high = map(int, rng.integers(1, 70, 4))
        channels, way = (1, 3)[i % 2], WAYS[i // 2 % 4]
        rgb = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(rgb).convert("L" if channels == 1 else "RGB")
        expected.append(to_array(resize(image, (high, wide), way)).tobytes())
        pixels.append(np.dstack([rgb, np.full_like(rgb[..., :1], 255)]).tobytes())
        input = {
            "channels": channels,
            "height": high,
            "width": wide,
            "resize": way,
            "tallFirst": int(pillow.split(".")[0]) >= 13,
        }
        cases.append({"size": {"width": width, "height": height}, "input": input})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    (tmp_path / "pixels").write_bytes(b"".join(pixels))
    subprocess.run([node, "-e", RUN_PIPELINE, str(web_folder.PAGE / "image.js")], cwd=tmp_path, check=True)
    assert (tmp_path / "results").read_bytes() == b"".join(expected)


# --- a browser --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Browser]:
    """A browser with the page open, as a file."""
    if find_browser() is None:
        pytest.skip("no Chromium is installed")
    with Browser() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.open(page / "index.html")
    browser.wait("isReady")
    return browser


def probabilities(predictor: Predictor, image: np.ndarray) -> np.ndarray:
    found: np.ndarray = predictor.run(image[None])[0].numpy()
    return found


def shown(browser: Browser) -> dict[str, Any]:
    found: dict[str, Any] = browser.evaluate("""({
        label: $("label").textContent, error: $("error").hidden ? "" : $("error").textContent,
        bars: [...$("bars").children].map((bar) => [bar.children[0].textContent, bar.children[2].textContent]),
    })""")
    return found


def test_a_page_opened_as_a_file_predicts_what_weft_predicts(
    opened: Browser, predictor: Predictor, tmp_path: Path
) -> None:
    opened.evaluate("select('upload')")
    for i, (width, height) in enumerate(SIZES):
        path = picture(tmp_path / f"{i}.png", width, height, ("RGB", "L", "RGBA")[i % 3], seed=i)
        image = predictor.image(str(path))
        expected = probabilities(predictor, image)
        opened.evaluate("clearAnswer()")
        opened.upload("#file", path)
        opened.wait("!isBusy && $('bars').children.length > 0")
        order = np.argsort(-expected, kind="stable")[:5]
        assert shown(opened)["label"] == LABELS[order[0]]
        assert [name for name, _ in shown(opened)["bars"]] == [LABELS[k] for k in order]
        assert shown(opened)["bars"][0][1] == f"{100 * expected[order[0]]:.1f} %"
        found = opened.evaluate("network.classify(picture).then(({ values, input }) => [[...values], [...input]])")
        if i % 3 != 2:  # the browser rounds transparent pixels once more
            assert found[1] == image.ravel().tolist()
        np.testing.assert_allclose(found[0], expected, atol=1e-4 if i % 3 == 2 else 1e-6)
    assert opened.messages == []


@pytest.mark.parametrize(
    "event", ["new DragEvent('drop', { dataTransfer: found })", "new ClipboardEvent('paste', { clipboardData: found })"]
)
def test_pictures_are_dropped_and_pasted(opened: Browser, predictor: Predictor, tmp_path: Path, event: str) -> None:
    path = picture(tmp_path / "a.png", 31, 18, seed=8)
    content = base64.b64encode(path.read_bytes()).decode()
    opened.evaluate(f"""{{
        const found = new DataTransfer();
        found.items.add(new File([bytesOf("{content}")], "a.png", {{ type: "image/png" }}));
        document.dispatchEvent({event});
    }}""")
    opened.wait("!isBusy && $('bars').children.length > 0")
    expected = probabilities(predictor, predictor.image(str(path)))
    assert shown(opened)["label"] == LABELS[expected.argmax()]
    assert opened.evaluate("source") == "upload"


def test_sources_are_chosen_by_keyboard(opened: Browser) -> None:
    opened.evaluate("$('tab-draw').focus()")
    for expected in ("upload", "camera", "draw"):
        opened.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
        assert opened.evaluate("[source, document.activeElement.id]") == [expected, f"tab-{expected}"]


def test_photos_are_turned_upright(opened: Browser, predictor: Predictor, tmp_path: Path) -> None:
    image = Image.open(picture(tmp_path / "a.png", 60, 33, seed=4))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.jpg", exif=exif, quality=95)
    opened.upload("#file", tmp_path / "a.jpg")
    opened.wait("!isBusy && $('bars').children.length > 0")
    found = opened.evaluate("network.classify(picture).then(({ input }) => [...input])")
    assert (
        np.abs(np.array(found) - predictor.image(str(tmp_path / "a.jpg")).ravel()).max() <= 2
    )  # JPEG decoders round differently


def test_drawing_clearing_and_undoing(opened: Browser) -> None:
    assert opened.evaluate("source") == "draw"
    corner = opened.evaluate("(({ left, top }) => [left, top])($('pad').getBoundingClientRect())")
    opened.drag([(corner[0] + 20 + 4 * i, corner[1] + 30 + 7 * i) for i in range(12)])
    opened.wait("!isBusy && $('bars').children.length > 0")
    seen = opened.evaluate(
        "pad.strokes.length === 1 && [...$('seen').getContext('2d').getImageData(0, 0, 10, 12).data]"
    )
    grey = np.array(seen).reshape(12, 10, 4)[..., 0]
    assert grey[0].max() == 0, "white on black, as in training"
    assert grey.max() > 128
    rows = (grey.sum(1) * np.arange(12)).sum() / grey.sum()
    assert abs(rows - 5.5) < 0.3, "the drawing is centred"
    opened.evaluate("$('undo').click()")
    assert shown(opened)["bars"] == []
    opened.evaluate("$('pad').focus()")
    for key in [" ", "ArrowDown", "ArrowDown", "ArrowRight", " "]:
        opened.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    opened.wait("!isBusy && $('bars').children.length > 0")
    opened.evaluate("$('clear').click()")
    assert opened.evaluate("pad.isEmpty")


def test_a_webcam_and_its_refusal(opened: Browser) -> None:
    opened.call("Browser.setPermission", permission={"name": "camera"}, setting="denied")
    opened.evaluate("select('camera'); $('camera').click()")
    opened.wait("!$('error').hidden")
    assert "The camera is not allowed for this page" in shown(opened)["error"]
    opened.call("Browser.setPermission", permission={"name": "camera"}, setting="granted")
    opened.evaluate("$('camera').click()")
    opened.wait("!isBusy && $('bars').children.length > 0")
    assert shown(opened)["error"] == ""
    opened.evaluate("select('draw')")
    assert opened.evaluate("camera.isOn") is False


def test_what_cannot_be_read_is_an_error_with_its_remedy(opened: Browser, page: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG....")
    opened.upload("#file", tmp_path / "broken.png")
    opened.wait("!$('error').hidden")
    assert shown(opened)["error"] == "broken.png cannot be decoded. Choose a PNG, JPEG, WebP, GIF or AVIF file."
    copy = tmp_path / "copy"
    shutil.copytree(page, copy)
    (copy / "weights" / "1.js").unlink()
    opened.open(copy / "index.html")
    opened.wait("!$('error').hidden")
    assert shown(opened)["error"] == "weights/1.js is missing. Copy the whole folder, with all of its files."
    shutil.copyfile(page / "weights" / "1.js", copy / "weights" / "1.js")
    wrong = '"code": "' + base64.b64encode(b"\0asm\1\0\0\0\xff").decode()
    (copy / "description.js").write_text(re.sub('"code": "[^"]*', wrong, (page / "description.js").read_text()))
    opened.open(copy / "index.html")
    opened.wait("!$('error').hidden")
    assert "This browser cannot run the network. Use one with WebAssembly" in shown(opened)["error"]
    opened.messages.clear()


def test_a_network_that_predicts_numbers(opened: Browser, tmp_path: Path) -> None:
    export_web(weft.load(save_regressor(tmp_path / "sums.weft")), tmp_path / "sums")
    opened.open(tmp_path / "sums" / "index.html")
    opened.wait("isReady")
    assert opened.evaluate("[...document.querySelectorAll('[role=tab]')].filter((tab) => !tab.hidden).length") == 2
    Image.new("RGB", (4, 4), (1, 100, 200)).save(tmp_path / "a.png")
    opened.upload("#file", tmp_path / "a.png")
    opened.wait("$('bars').children.length > 0")
    assert opened.evaluate("$('bars').innerText").split() == ["Output", "0", "16.000", "Output", "1", "3200.0"]


def test_phones_and_dark_mode(opened: Browser, page: Path) -> None:
    opened.call("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    opened.open(page / "index.html")
    opened.wait("isReady")
    assert opened.evaluate("document.documentElement.scrollWidth") == 360
    background = "getComputedStyle(document.body).backgroundColor"
    assert opened.evaluate(background) == "rgb(16, 17, 16)"
    opened.evaluate("$('theme').click()")
    assert opened.evaluate(background) == "rgb(246, 246, 244)"
    opened.call("Emulation.clearDeviceMetricsOverride")
    opened.call("Emulation.setEmulatedMedia", features=[])
