"""Checks charts, pictures and the page of a run: well-formed, inside their frame, nothing on top of another, true to the numbers, safe."""

import base64
import io
import itertools
import math
import re
import struct
import zlib
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from weft.errors import UserError
from weft.report import bars, confusion, curves, gallery, learning_rate, png
from weft.report.axes import ChartAxis, duration, make_axis, short, tick_labels
from weft.report.charts import downsample
from weft.report.confusion_matrix import pool_counts, row_fractions
from weft.report.svg import escape, fit, text_width
from weft.testing import counted

RNG = np.random.default_rng(0)
NAN = math.nan
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a&b",
    "'; --",
    "nul\0 \x1b[31m \ud800 \u202eevil",
    "学习" * 30,
    "",
    "w" * 500,
]


def parsed(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(chart.encode())


def size_of(element: ElementTree.Element) -> float:
    style = re.search(r"font-size:([\d.]+)px", element.get("style", ""))
    return float(style[1]) if style else 15.0 if element.get("class") == "title" else 12.0


def words_of(element: ElementTree.Element) -> str:
    inner = [(part.text or "") for part in element if part.tag != SVG + "title"]
    return (element.text or "") + "".join(inner) + "".join(part.tail or "" for part in element)


Box = tuple[float, float, float, float]


def text_box(element: ElementTree.Element) -> Box:
    """About where a text is drawn. Half an em a sign is what common fonts need on average."""
    size, words = size_of(element), words_of(element)
    width = sum(size * (1.0 if ord(sign) > 0x2E80 else 0.5) for sign in words)
    x, y = float(element.attrib["x"]), float(element.attrib["y"])
    start = -{"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib["text-anchor"]] * width
    if "transform" in element.attrib:
        return x - 0.7 * size, y - start - width, x + 0.1 * size, y - start
    return x + start, y - 0.7 * size, x + start + width, y + 0.1 * size


def boxes(root: ElementTree.Element) -> list[tuple[str, Box]]:
    found = []
    for e in root.iter():
        a = {k: float(v) for k, v in e.attrib.items() if re.fullmatch(r"-?[\d.]+", v)}
        if e.tag == SVG + "text":
            found.append(("text", text_box(e)))
        elif e.tag in (SVG + "rect", SVG + "image"):
            found.append(("box", (a["x"], a["y"], a["x"] + a["width"], a["y"] + a["height"])))
        elif e.tag == SVG + "circle":
            found.append(("dot", (a["cx"] - a["r"], a["cy"] - a["r"], a["cx"] + a["r"], a["cy"] + a["r"])))
        elif e.tag == SVG + "line":
            found.append(("line", (a["x1"], min(a["y1"], a["y2"]), a["x2"], max(a["y1"], a["y2"]))))
        elif e.tag == SVG + "path":
            places = np.array([p.split() for p in e.attrib["d"][1:].split("L")], float)
            found.append(("path", (*places.min(axis=0), *places.max(axis=0))))
    return found


def check_layout(chart: str) -> ElementTree.Element:
    """Well-formed XML, all numbers finite, nothing outside, no text on another."""
    root = parsed(chart)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert not re.search(
        r'="[^"]*\b(nan|inf)\b[^"]*"', re.sub("<title>.*?</title>|<text.*?</text>", "", chart, flags=re.DOTALL)
    )
    for kind, (left, top, right, bottom) in boxes(root):
        assert -0.5 <= left <= right <= width + 0.5, f"{kind} from {left} to {right}, the picture is {width} wide"
        assert -0.5 <= top <= bottom <= height + 0.5, f"{kind} from {top} to {bottom}, the picture is {height} high"
    texts = [box for kind, box in boxes(root) if kind == "text" and box[0] < box[2]]
    for a, b in itertools.combinations(texts, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], f"texts at {a} and {b} overlap"
    counted(len(texts))
    return root


def texts(root: ElementTree.Element) -> list[str]:
    return [words_of(e) for e in root.iter(SVG + "text")]


def count(root: ElementTree.Element, tag: str) -> int:
    return sum(1 for _ in root.iter(SVG + tag))


STEPS = list(range(100_000))
CURVES: dict[str, dict[str, Any]] = {
    "two": {"series": {"train": [(1, 2.3), (2, 0.4)], "validation": [(1, 1.5), (2, 0.6)]}},
    "many": {"series": {"train": list(zip(STEPS, (2 + RNG.normal(size=len(STEPS))).tolist(), strict=True))}, "unit": "nats"},
    "one point": {"series": {"a": [(5, 3.2)]}},
    "no points": {"series": {"a": [], "b": []}},
    "no lines": {"series": {}},
    "all nan": {"series": {"a": [(1, NAN), (2, math.inf)]}},
    "gaps": {"series": {"a": [(i, NAN if i in (3, 4, 6) else i) for i in range(10)]}},
    "constant": {"series": {"a": [(i, 7.0) for i in range(9)]}},
    "zero": {"series": {"a": [(i, 0.0) for i in range(9)]}},
    "negative": {"series": {"a": [(i, -1e-9 * i) for i in range(9)]}},
    "huge": {"series": {"a": [(i, 10.0 ** (4 * i)) for i in range(76)]}},
    "offset": {"series": {"a": [(1e9 + i, 1e9 + i) for i in range(5)]}},
    "close": {"series": {"a": [(1, 1e15), (2, 1e15 + 0.125)]}},
    "tiny": {"series": {"a": [(0.001, 5e-324), (0.002, 1e-320)]}},
    "fractions": {"series": {"a": [(0.1 * i, i) for i in range(30)]}},
    "many lines": {"series": {f"a long name of an experiment {i}": [(j, i * j) for j in range(9)] for i in range(40)}},
    "hostile": {"series": {name: [(1, 2), (2, 3)] for name in HOSTILE}, "x": HOSTILE[0], "unit": HOSTILE[1]},
}  # fmt: skip


@pytest.mark.parametrize("log", [False, True], ids=["plain", "log"])
@pytest.mark.parametrize("name", list(CURVES))
def test_curves_are_laid_out_well(name: str, log: bool) -> None:
    chart = curves(title=f"Title {HOSTILE[0]}" if name == "hostile" else "Loss", log=log, **CURVES[name])
    root = check_layout(chart)
    assert len(chart) < 200_000
    assert count(root, "script") == 0
    assert len(texts(root)) >= 4, "no marks on the axes"


@pytest.mark.parametrize("name", ["no points", "no lines", "all nan"])
def test_empty_charts_say_so(name: str) -> None:
    assert "no data" in texts(parsed(curves(title="Loss", **CURVES[name])))


def test_gaps_are_gaps_and_lonely_points_are_dots() -> None:
    root = parsed(curves({"a": [(i, NAN if i in (3, 5) else i) for i in range(60)]}, "x"))
    paths = [e.attrib["d"].count("L") + 1 for e in root.iter(SVG + "path")]
    assert paths == [3, 54]
    assert count(root, "circle") == 1
    assert count(parsed(curves({"a": [(i, -1.0 if i == 2 else 1.0) for i in range(50)]}, "x", log=True)), "path") == 2


def test_points_lie_where_their_values_are() -> None:
    """Three known points: in the corners of the field and in its middle."""
    root = parsed(curves({"a": [(0, 0.0), (5, 5.0), (10, 10.0)]}, "x"))
    dots = np.array([[float(e.attrib["cx"]), float(e.attrib["cy"])] for e in root.iter(SVG + "circle")])
    base = [e for e in root.iter(SVG + "line") if e.get("class") == "axis"][-1]
    left, right, bottom = (float(base.attrib[k]) for k in ("x1", "x2", "y1"))
    np.testing.assert_allclose(
        dots, [[left, bottom], [(left + right) / 2, bottom - 120], [right, bottom - 240]], atol=0.06
    )


def test_points_in_disorder_are_drawn_in_order() -> None:
    assert curves({"a": [(2, 1), (1, 5), (3, 4)]}, "x") == curves({"a": [(1, 5), (2, 1), (3, 4)]}, "x")


def test_thinning_keeps_ends_and_extremes() -> None:
    line = np.stack([np.arange(100_000.0), RNG.normal(size=100_000)], axis=1)
    line[12_345, 1], line[54_321, 1] = 99, -99
    less = downsample(line)
    assert len(less) <= 4 * 401
    rows = {tuple(row) for row in less.tolist()}
    assert {tuple(line[i].tolist()) for i in (0, 12_345, 54_321, 99_999)} <= rows
    assert (np.diff(less[:, 0]) > 0).all()
    np.testing.assert_array_equal(downsample(line[:500]), line[:500])


@pytest.mark.parametrize("points", [[1, 2, 3], [(1, "x")], [(1, 2, 3)]])
def test_points_must_be_pairs(points: Any) -> None:
    with pytest.raises(UserError, match=r"\[curves\] points must be \(x, value\) pairs of numbers, got "):
        curves({"a": points}, "x")


def test_learning_rate_is_a_curve() -> None:
    assert "Learning rate" in texts(check_layout(learning_rate([(1, 0.1), (2, 0.05)], x="epoch")))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "no data"),
        ({"cat": 97.1, "dog": 12.0}, "97.1"),
        ({"cat": NAN}, "nan"),
        ({"a": -3.0, "b": 5.0}, "-3"),
        ({"zero": 0.0}, "0"),
        ({str(i): float(i) for i in range(1000)}, "and 960 more"),
        (dict.fromkeys(HOSTILE, 1.0), "a&b"),
    ],
)
def test_bars(values: dict[str, float], said: str) -> None:
    assert said in texts(check_layout(bars(values, "Recognized", unit="%")))


def test_bars_are_as_long_as_their_values() -> None:
    root = parsed(bars({"a": 25.0, "b": 100.0}, "x", largest=100))
    short_one, long_one = (float(e.attrib["width"]) for e in root.iter(SVG + "rect") if e.get("class") == "f0")
    assert long_one == pytest.approx(4 * short_one, rel=1e-3)


@pytest.mark.parametrize("classes", [0, 1, 2, 3, 10, 20, 40, 41, 100, 300, 1000])
def test_confusion_of_any_number_of_classes(classes: int) -> None:
    matrix = RNG.integers(0, 5, (classes, classes)) + np.diag(RNG.integers(0, 10**6, classes))
    chart = confusion(matrix, [f"class {i}" for i in range(classes)])
    root = check_layout(chart)
    assert len(chart) < 1_500_000
    assert count(root, "image") == (classes > 40)
    assert ("no data" in texts(root)) == (classes == 0)


def test_confusion_shows_the_counts() -> None:
    root = check_layout(confusion([[9, 1], [0, 12345]], ["cat", "dog"]))
    said = texts(root)
    assert {"9", "1", "12.3k", "cat", "dog", "true", "predicted"} <= set(said)
    assert "0" not in said
    notes = [e.text for e in root.iter(SVG + "title")]
    assert "cat predicted as dog: 1 (10.0%)" in notes
    kinds = [e.get("class") for e in root.iter(SVG + "rect")][3:]
    assert kinds == ["tile", "f0", "tile", "f1", "tile", "tile", "f0"]


def test_confusion_with_hostile_names() -> None:
    chart = confusion(np.eye(len(HOSTILE)), HOSTILE)
    assert count(check_layout(chart), "script") == 0
    assert "onerror" not in re.sub("<text.*?</text>|<title.*?</title>", "", chart)


def test_shares_and_pools() -> None:
    np.testing.assert_array_equal(row_fractions(np.array([[3.0, 1.0], [0.0, 0.0]])), [[0.75, 0.25], [0, 0]])
    counts = np.arange(520.0 * 520).reshape(520, 520)
    np.testing.assert_array_equal(pool_counts(counts), counts.reshape(260, 2, 260, 2).sum(axis=(1, 3)))
    assert pool_counts(np.ones((521, 521))).sum() == 521 * 521


@pytest.mark.parametrize(
    ("matrix", "classes", "message"),
    [
        ([[1, 2, 3]], ["a"], r"\[confusion\] the matrix must be square, got shape \(1, 3\)."),
        ([1.0], ["a"], r"\[confusion\] the matrix must be square, got shape \(1,\)."),
        ([[1]], ["a", "b"], r"\[confusion\] there must be a name for each class, got 2 names for 1 classes."),
        ([[-1]], ["a"], r"\[confusion\] the matrix must hold counts that are finite and not negative."),
        ([[NAN]], ["a"], r"\[confusion\] the matrix must hold counts"),
        ([["x"]], ["a"], r"\[confusion\] the matrix must hold numbers."),
    ],
)
def test_confusion_refuses(matrix: Any, classes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        confusion(matrix, classes)


@pytest.mark.parametrize(
    "shape",
    [(0, 8, 8), (1, 8, 8), (5, 28, 28, 1), (30, 3, 16, 16), (4, 300, 500, 3), (3, 16, 16, 4), (2, 1, 700), (2, 700, 1)],
)
def test_gallery_of_any_shape(shape: tuple[int, ...]) -> None:
    images = RNG.integers(0, 256, shape).astype("uint8")
    root = check_layout(
        gallery(images, [f"prediction {i}\nis {i + 1}" for i in range(shape[0])], "Samples", right=[True] * shape[0])
    )
    assert count(root, "image") == shape[0]
    for image in root.iter(SVG + "image"):
        width, height = struct.unpack(">II", base64.b64decode(image.attrib["href"].partition(",")[2])[16:24])
        assert max(width, height) <= 208 or 1 in shape[1:3]


def test_gallery_with_hostile_captions() -> None:
    root = check_layout(gallery(np.zeros((len(HOSTILE), 4, 4), "uint8"), HOSTILE))
    assert count(root, "script") == 0
    assert "<script>alert" in " ".join(texts(root)), "it stays text"


@pytest.mark.parametrize(
    ("images", "captions", "message"),
    [
        (np.zeros((1, 4, 4)), ["a"], r"\[gallery\] images must be uint8, got float64. Scale them to 0 ... 255 first."),
        (
            np.zeros((1, 4, 4), "uint8"),
            [],
            r"\[gallery\] there must be a caption for each image, got 0 for 1 images.",
        ),
        (
            np.zeros((1, 5, 5, 5), "uint8"),
            ["a"],
            r"\[gallery\] images must have 1, 3 or 4 channels, got shape \(1, 5, 5, 5\).",
        ),
    ],
)
def test_gallery_refuses(images: Any, captions: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        gallery(images, captions)
    with pytest.raises(UserError, match=r"\[gallery\] columns must be at least 1, got 0."):
        gallery([], [], columns=0)


PICTURES = [(5, 7), (5, 7, 1), (5, 7, 2), (5, 7, 3), (5, 7, 4), (1, 1), (300, 200, 3)]


def unpacked(content: bytes) -> np.ndarray:
    """A PNG read by hand: the parts with their checksums, then the rows as differences from the row above."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    parts, at = {}, 8
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        name, data = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", content, at + 8 + size)[0] == zlib.crc32(name + data)
        parts[name], at = data, at + 12 + size
    assert list(parts) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colours, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, rest) == (8, [0, 0, 0])
    channels = {0: 1, 4: 2, 2: 3, 6: 4}[colours]
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + width * channels)
    assert (rows[:, 0] == 2).all()
    return np.cumsum(rows[:, 1:], axis=0, dtype=np.uint8).reshape(height, width, channels)


@pytest.mark.parametrize("shape", PICTURES)
def test_png_comes_back(shape: tuple[int, ...]) -> None:
    pixels = RNG.integers(0, 256, shape).astype("uint8")
    np.testing.assert_array_equal(unpacked(png(pixels)).reshape(shape), pixels)


@pytest.mark.parametrize("shape", PICTURES)
def test_png_is_read_by_pillow(shape: tuple[int, ...]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels = RNG.integers(0, 256, shape).astype("uint8")
    with pillow.open(io.BytesIO(png(pixels))) as picture:
        np.testing.assert_array_equal(np.asarray(picture).reshape(shape), pixels)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2)), np.zeros((0, 2), "uint8"), np.zeros((2, 2, 5), "uint8"), np.zeros(3, "uint8")]
)
def test_png_refuses(array: np.ndarray) -> None:
    with pytest.raises(
        UserError, match=r"\[png\] an image must be uint8 \(height, width\) or \(height, width, 1 to 4 channels\), got "
    ):
        png(array)


@pytest.mark.parametrize("log", [False, True])
def test_axes_hold_their_values_and_have_marks(log: bool) -> None:
    for _ in range(300):
        low = 10 ** RNG.uniform(-12, 12)
        high = low * 10 ** RNG.uniform(0, 9 if RNG.random() < 0.5 else 0.1)
        found = make_axis([low, high] if log or RNG.random() < 0.5 else [-low, high], log=log)
        assert found.low <= low * (1 + 1e-9)
        assert found.high >= high * (1 - 1e-9)
        assert 2 <= len(found.ticks) <= 25
        assert len(set(found.labels)) == len(found.labels), found
        assert all(-1e-6 <= found.position(tick) <= 1 + 1e-6 for tick in found.ticks)
        counted()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 10], ChartAxis(0, 10, (0, 2, 4, 6, 8, 10), ("0", "2", "4", "6", "8", "10"))),
        ([0.95, 0.99], ChartAxis(0.95, 0.99, (0.95, 0.96, 0.97, 0.98, 0.99), ("0.95", "0.96", "0.97", "0.98", "0.99"))),
        ([], ChartAxis(0, 1, (0, 0.2, 0.4, 0.6, 0.8, 1), ("0", "0.2", "0.4", "0.6", "0.8", "1.0"))),
    ],
)
def test_axes_by_hand(values: list[float], expected: ChartAxis) -> None:
    found = make_axis(values)
    assert found.labels == expected.labels
    np.testing.assert_allclose(found.ticks, expected.ticks)
    np.testing.assert_allclose([found.low, found.high], [expected.low, expected.high])


def test_numbers_in_words() -> None:
    assert make_axis([1, 3], tight=True, whole=True).labels == ("1", "2", "3")
    assert make_axis([0.001, 10.0], log=True).labels == ("0.001", "0.01", "0.1", "1", "10")
    assert tick_labels([1e6, 1.5e6], 5e5) == ("1.0M", "1.5M")
    assert [short(v) for v in (0, 999.9, 1234, -45678, 1e20)] == ["0", "1,000", "1,234", "-45.7k", "1e20"]
    assert [duration(s) for s in (59.9, 3600, 200_000, -1, NAN)] == [
        "59.9 s",
        "1 h 0 min",
        "2 d 7 h",
        "unknown",
        "unknown",
    ]


def test_texts_are_shortened_and_escaped() -> None:
    for words in ["short", "a much longer text than fits", "学习学习学习学习"]:
        assert text_width(fit(words, 60)) <= 60
        assert text_width(fit(words, 60, middle=True)) <= 60
    assert fit("experiment number 17", 100, middle=True).endswith("17")
    assert escape("a\0<b>\"'&\ud800\u202e") == "a\ufffd&lt;b&gt;&quot;&#x27;&amp;\ufffd\ufffd"
