"""Number formats: rounding against definitions of the bits and against ml_dtypes, the table, and what formats do to networks."""

import json
import math
import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import compress, formats, nn
from weft.cli import main
from weft.compiler.cpu.target import CpuTarget
from weft.errors import UserError
from weft.formats import RoundTo, number_format, round_to, survey, table
from weft.formats import hardware as hardware_module
from weft.formats.hardware import cpu_support, gpu_support
from weft.formats.pictures import density, magnitudes, number_line, radix_point
from weft.formats.rounding_layer import rounded
from weft.runtime.cuda.device import CudaDevice

SMALL = {
    "float16": (5, 10, np.float16),
    "bfloat16": (8, 7, ml_dtypes.bfloat16),
    "float8_e5m2": (5, 2, ml_dtypes.float8_e5m2),
    "float8_e4m3": (4, 3, ml_dtypes.float8_e4m3fn),
}


def decoded(code: int, exponent_bits: int, fraction_bits: int, name: str) -> float:
    """The number of a code, read bit by bit as the standards define it."""
    sign = -1.0 if code >> (exponent_bits + fraction_bits) else 1.0
    exponent, fraction = (code >> fraction_bits) & ((1 << exponent_bits) - 1), code & ((1 << fraction_bits) - 1)
    bias, top = (1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1
    if name == "float8_e4m3":
        if exponent == top and fraction == 0b111:
            return math.nan
    elif exponent == top:
        return sign * math.inf if fraction == 0 else math.nan
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - fraction_bits)
    return sign * (1 + fraction * 2.0**-fraction_bits) * 2.0 ** (exponent - bias)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit but for the sign of nan: also that of 0."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return bool((((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))).all())


# --- rounding ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_every_code_of_a_small_float_is_a_number_of_the_format(name: str) -> None:
    exponent_bits, fraction_bits, dtype = SMALL[name]
    bits = 1 + exponent_bits + fraction_bits
    codes = [decoded(code, exponent_bits, fraction_bits, name) for code in range(1 << bits)]
    numbers = np.array(codes)
    with np.errstate(invalid="ignore"):  # signalling nans
        stored = np.arange(1 << bits).astype(f"uint{bits}").view(dtype).astype(np.float64)
    assert same(numbers, stored)  # the definition agrees with ml_dtypes
    assert same(round_to(numbers, name), numbers)
    finite = numbers[np.isfinite(numbers)]
    found = number_format(name)
    assert (finite.max(), finite.min()) == (found.largest, found.lowest)
    assert same(found.values(), np.unique(np.abs(finite)))


@pytest.mark.parametrize("name", SMALL)
def test_ties_neighbours_of_ties_and_overflow(name: str) -> None:
    """Every middle of two neighbours goes to the even one; what lies beside it to the nearer one."""
    numbers = number_format(name).values()
    middles = (numbers[1:] + numbers[:-1]) / 2  # exact in float64
    even = np.where(np.arange(len(middles)) % 2 == 0, numbers[:-1], numbers[1:])  # codes count up from 0
    for sign in (1.0, -1.0):
        assert same(round_to(sign * middles, name), sign * even)
        assert same(round_to(sign * np.nextafter(middles, 0.0), name), sign * numbers[:-1])
        assert same(round_to(sign * np.nextafter(middles, np.inf), name), sign * numbers[1:])
    last, before = numbers[-1], numbers[-2]
    limit = last + (last - before) / 2  # half of the next step
    beyond = np.nan if name == "float8_e4m3" else np.inf
    at_limit = (
        last if name == "float8_e4m3" else beyond
    )  # the tie goes to the even code: 448 is one, the largest of others is odd
    assert same(round_to([np.nextafter(limit, 0.0), limit, 2 * limit, np.inf], name), [last, at_limit, beyond, beyond])
    assert same(round_to([2 * limit, -np.inf], name, saturate=True), [last, -last])
    assert np.isnan(round_to([np.nan], name, saturate=True)).all()


@pytest.mark.parametrize("name", SMALL)
def test_random_numbers_agree_with_ml_dtypes_and_weft(name: str) -> None:
    random = np.random.default_rng(0)
    x = (random.standard_normal(20_000) * np.exp2(random.uniform(-140, 120, 20_000))).astype(np.float32)
    x = np.concatenate([x, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])])
    with np.errstate(all="ignore"):
        expected = x.astype(SMALL[name][2]).astype(np.float32)
    assert same(round_to(x, name), expected)
    assert round_to(x, name).dtype == np.float32
    if name in ("float16", "bfloat16"):
        assert same(weft.asarray(x).astype(name).astype("float32").numpy(), expected)


def test_float64_is_rounded_once() -> None:
    """Through float32 this would be a tie, and round to even."""
    just_above = 1.0 + 2.0**-11 + 2.0**-40
    assert round_to([just_above], "float16")[0] == 1.0 + 2.0**-10
    assert round_to(np.float32([just_above]), "float16")[0] == 1.0
    assert round_to([1.0 + 2.0**-24], "float32")[0] == 1.0
    assert same(round_to([1e300, 1e-300, 3.5], "float64"), [1e300, 1e-300, 3.5])
    assert round_to([1e300], "float32")[0] == np.inf


def test_tf32_is_float32_with_ten_bits_behind_the_point() -> None:
    x = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    bits = x.view(np.uint32)
    expected = ((bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint32(0x1FFF)).view(np.float32)
    assert same(round_to(x, "tf32"), expected)


def test_fixed_point_and_integers() -> None:
    assert round_to([0.5, 1.5, 2.5, -0.5, -1.5], "int8").tolist() == [0.0, 2.0, 2.0, 0.0, -2.0]  # ties to even
    assert round_to([127.5, 300.0, -128.5, -np.inf, np.nan], "int8").tolist() == [127.0, 127.0, -128.0, -128.0, 0.0]
    assert round_to([7.97, 0.03, 0.04, -9.0], "q3.4").tolist() == [7.9375, 0.0, 0.0625, -8.0]
    assert round_to([-1.0, 17.0, 0.1], "uq4.4").tolist() == [0.0, 15.9375, 0.125]
    assert round_to(np.float32([3e9]), "int32").tolist() == [2.0**31 - 1]  # float64: float32 does not have it
    every = np.arange(-(1 << 7), 1 << 7) / 16.0
    assert same(round_to(every, "q3.4"), every)
    assert number_format("q-2.9").largest == (2**7 - 1) / 512


def test_bad_formats_and_arrays() -> None:
    for name, message in [
        ("float61", "Did you mean float64"),
        ("q40.40", "2 to 53 bits is required, got q40.40 with 81"),
        ("int1", "got int1 with 1"),
        ("q3", "Fixed point is written q3.12"),
    ]:
        with pytest.raises(UserError, match=message):
            number_format(name)
    with pytest.raises(UserError, match="real numbers is required, got one of complex128"):
        round_to([1j], "float16")
    with pytest.raises(UserError, match="at most 16 bits"):
        number_format("float32").values()


@pytest.mark.parametrize("name", ["tf32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int8", "q3.4", "q7.8"])
def test_rounding_in_a_network_is_round_to(name: str) -> None:
    random = np.random.default_rng(2)
    powers = np.exp2(np.arange(-126, 127)).astype(np.float32)
    x = [
        random.standard_normal(4000) * np.exp2(random.uniform(-30, 20, 4000)),
        powers,
        1.5 * powers,
        [0, np.inf, -np.inf, np.nan],
    ]
    x += [
        np.nextafter(powers, np.float32(0)),
        np.nextafter(powers, np.float32(np.inf)),
        [448, 464, 465, 65519, 65520, 61440],
    ]
    values = np.concatenate(x).astype(np.float32)
    layer = RoundTo(name)
    made = weft.jit(lambda t: layer(t))(values).numpy()
    assert same(made + 0.0, round_to(values, name) + 0.0)  # but for the sign of 0


# --- the table --------------------------------------------------------------------------------------------------------------------


def test_the_table_has_the_known_properties() -> None:
    rows = {row.name: row for row in table()}
    assert [*rows][:11] == [
        "float64",
        "float32",
        "tf32",
        "float16",
        "bfloat16",
        "float8_e4m3",
        "float8_e5m2",
        "int32",
        "int16",
        "int8",
        "int4",
    ]
    for name in ("float64", "float32", "float16"):
        info, row = np.finfo(name), rows[name]
        assert (row.largest, row.smallest_normal, row.step) == (float(info.max), float(info.tiny), float(info.smallest_subnormal))  # fmt: skip
        assert row.relative_error == float(info.eps) / 2
    for name, dtype in (
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8_e4m3", ml_dtypes.float8_e4m3fn),
        ("float8_e5m2", ml_dtypes.float8_e5m2),
    ):
        info, row = ml_dtypes.finfo(dtype), rows[name]
        assert (row.largest, row.smallest_normal) == (float(info.max), float(info.tiny))
        assert row.step == float(info.smallest_subnormal)
    assert (rows["int4"].lowest, rows["int4"].largest, rows["int8"].lowest) == (-8, 7, -128)
    assert rows["float32"].multiply.joules == pytest.approx(3.7e-12)
    assert not rows["float32"].multiply.modelled
    assert rows["tf32"].multiply.modelled
    assert (rows["float32"].multiply.area, rows["int8"].add.area) == (7700, 36)
    assert rows["float32"].hardware["cpu"] == "arithmetic"
    assert "~0.28" in str(table("bfloat16"))


def test_relative_error_is_the_largest_of_rounding() -> None:
    x = np.random.default_rng(3).uniform(1.0, 2.0, 200_000)
    for row in table("tf32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"):
        error = np.abs(round_to(x, row.name) / x - 1.0).max()
        assert error <= row.relative_error
        assert error == pytest.approx(row.relative_error / (1 + row.relative_error), rel=0.01)  # at 1 + u


def test_hardware_of_processors_and_gpus() -> None:
    plain = CpuTarget("x86_64", "x86-64-v3", "", 256, 16)
    vnni = CpuTarget("x86_64", "sapphirerapids", "", 512, 32, dot="avx512vnni")
    of = {
        name: number_format(name)
        for name in ("float16", "bfloat16", "float8_e4m3", "tf32", "int8", "int4", "q7.8", "float64")
    }
    assert cpu_support(of["float16"], plain, frozenset({"f16c"})) == "conversions"
    assert cpu_support(of["float16"], vnni, frozenset({"avx512fp16"})) == "arithmetic"
    assert cpu_support(of["bfloat16"], vnni, frozenset({"avx512bf16"})) == "dot products"
    assert cpu_support(of["bfloat16"], vnni, frozenset({"avx512bf16", "amx-bf16"})) == "matrix units"
    assert cpu_support(of["bfloat16"], plain, frozenset()) == ""
    assert cpu_support(of["int8"], vnni, frozenset()) == "dot products"
    assert cpu_support(of["int8"], vnni, frozenset({"amx-int8"})) == "matrix units"
    assert cpu_support(of["int4"], vnni, frozenset({"amx-int8"})) == "matrix units of int8"
    assert cpu_support(of["int4"], plain, frozenset()) == "arithmetic of int8"
    assert cpu_support(of["q7.8"], plain, frozenset()) == "arithmetic"
    assert [gpu_support(of["float16"], c) for c in (35, 60, 70)] == ["conversions", "arithmetic", "matrix units"]
    assert [gpu_support(of["float8_e4m3"], c) for c in (80, 89)] == ["", "matrix units"]
    assert [gpu_support(of["int4"], c) for c in (61, 75, 90)] == [
        "dot products of int8",
        "matrix units",
        "matrix units of int8",
    ]
    assert [gpu_support(of["tf32"], c) for c in (70, 80)] == ["", "matrix units"]


def test_gpus_of_this_machine_are_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = object.__new__(CudaDevice)
    vars(gpu).update(name="cuda", gpu=SimpleNamespace(capability=90))
    monkeypatch.setattr(hardware_module, "devices", lambda: [gpu])
    assert table("float8_e4m3")[0].hardware == {"cuda": "matrix units"}
    assert table("float32")[0].hardware == {"cpu": "arithmetic", "cuda": "arithmetic"}


# --- networks ---------------------------------------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    weft.random.seed(0)
    return nn.Sequential(
        nn.Linear(6, 12, activation="relu"), nn.Sequential(nn.Linear(12, 8), nn.Tanh()), nn.Linear(8, 3)
    )


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(4)
    return [(random.standard_normal((32, 6)).astype(np.float32), random.integers(0, 3, 32)) for _ in range(2)]


def test_a_survey_of_a_network_by_hand() -> None:
    """Tensors, ratios and results against computations of their own, layer by layer in NumPy."""
    model, data = network(), batches()
    before = {name: tensor.numpy().copy() for name, tensor in model.named_tensors().items()}
    found = survey(model, data, ("float8_e4m3", "int16", "q3.4"))
    paths = [one.path for one in found.tensors]
    assert paths[-5:] == [
        "input",
        "layers.0",
        "layers.1.layers.0",
        "layers.1.layers.1",
        "layers.2",
    ]  # containers add nothing
    x = np.concatenate([one for one, _ in data])
    weight = next(one for one in found.tensors if one.path == "layers.0.weight")
    values = before["layers.0.weight"].astype(np.float64)
    made = round_to(values, "float8_e4m3")
    assert weight.formats["float8_e4m3"].snr == pytest.approx(
        10 * np.log10((values**2).sum() / ((made - values) ** 2).sum())
    )
    assert weight.formats["int16"].scale == pytest.approx(np.abs(values).max() / 32767)
    assert (weight.low, weight.high) == (values.min(), values.max())
    assert weight.exponents.sum() == values.size
    given = next(one for one in found.tensors if one.path == "input")
    assert given.formats["q3.4"].underflow == pytest.approx((round_to(x, "q3.4") == 0).mean(), abs=1e-6)

    def run(format: str) -> np.ndarray:
        w = {name: round_to(value, format) for name, value in before.items()}
        y = round_to(x, format)
        y = round_to(np.maximum(y @ w["layers.0.weight"].T + w["layers.0.bias"], 0), format)
        y = round_to(
            np.tanh(round_to(y @ w["layers.1.layers.0.weight"].T + w["layers.1.layers.0.bias"], format)), format
        )
        return round_to(y @ w["layers.2.weight"].T + w["layers.2.bias"], format)

    relu = next(one for one in found.tensors if one.path == "layers.0")
    y = np.maximum(x @ before["layers.0.weight"].T + before["layers.0.bias"], 0)
    assert relu.zeros == pytest.approx((y == 0).mean(), abs=0.002)
    assert relu.formats["q3.4"].underflow == pytest.approx(((y > 0) & (round_to(y, "q3.4") == 0)).mean(), abs=0.002)
    labels = np.concatenate([y for _, y in data])
    by_format = {one.format: one for one in found.accuracies}
    for name in ("float8_e4m3", "q3.4"):
        assert by_format[name].accuracy == pytest.approx(
            (run(name).argmax(1) == labels).mean(), abs=0.04
        )  # ties of sums
    assert by_format["int16"].agreement == 1.0  # all places have scales, the network itself too
    assert by_format["int16"].snr > 60
    for name, tensor in model.named_tensors().items():
        assert same(tensor.numpy(), before[name])
    assert type(model.layers[0]) is nn.Linear  # as it was
    assert "layers.2 " in str(found)
    assert json.dumps(found.to_json())


def test_overflow_is_counted_and_loses_the_results() -> None:
    model, x = network(), np.full((4, 6), 3000.0, np.float32)
    found = survey(model, [x], ("float8_e4m3", "int8"))
    noises = next(one for one in found.tensors if one.path == "input").formats
    assert (noises["float8_e4m3"].overflow, noises["float8_e4m3"].snr) == (1.0, -math.inf)
    assert noises["int8"].overflow == 0.0
    assert found.float_accuracy is None
    assert [one.accuracy for one in found.accuracies] == [None] * 2
    assert found.accuracies[0].agreement == 0.0  # results that are not numbers decide nothing
    assert any("no infinity" in note for note in found.notes)


def test_a_network_is_restored_after_an_error() -> None:
    model = network()
    weight = model.layers[0].weight.numpy().copy()
    with pytest.raises(ZeroDivisionError), rounded(model, "int4", {"": 1.0}, activations=True):
        assert not same(model.layers[0].weight.numpy(), weight)
        raise ZeroDivisionError
    assert same(model.layers[0].weight.numpy(), weight)
    assert type(model) is nn.Sequential


def test_a_layer_that_returns_several_tensors() -> None:
    model = nn.LSTM(4, 5)
    x = np.random.default_rng(5).standard_normal((2, 3, 4)).astype(np.float32)
    found = survey(model, [x], ("bfloat16",))
    assert found.accuracies[0].snr > 30


def test_pictures_are_svg_with_the_right_marks() -> None:
    assert (
        number_line(["int4", "float8_e5m2"], 4.0, "t").count("<rect") == 1 + 5 + 69
    )  # paper, 0 to 4, and codes up to 4.0
    assert "= 5.625" in radix_point(0b01011010, ["q3.4"], "t")
    assert "= -5.625" in radix_point(0b10100110, ["q3.4"], "t")
    assert "2⁻²⁴" in magnitudes({"a": np.bincount([130, 140], minlength=279)}, ["float16"], "t")
    assert "bfloat16" in density(["float16", "bfloat16", "q7.8"], -20, 10, "t")


# --- the command ------------------------------------------------------------------------------------------------------------------


def test_the_command_without_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    text = capsys.readouterr().out
    assert "float8_e4m3" in text
    assert "~ is modelled" in text
    assert main(["formats", "formats=q3.12", "json=true"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["largest"] == 7.999755859375
    assert main(["formats", "examples=3"]) == 2
    assert "a run or a network is required for examples" in capsys.readouterr().err


def test_the_command_on_a_run_a_file_and_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "model=logistic_regression", "epochs=2", "name=small"]) == 0
    assert main(["export", "small", "out=net.weft"]) == 0
    capsys.readouterr()
    few = ["formats=float16,int4", "examples=100"]
    assert main(["formats", "small", *few, "html=page.html"]) == 0
    text = capsys.readouterr().out
    assert "accuracy, all" in text
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "Magnitudes and ranges" in page
    assert main(["formats", "small", *few, "json=true"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["format"] for one in told["accuracies"]] == ["float16", "int4"]
    assert told["float32_accuracy"] > 0.8
    assert told["accuracies"][0]["agreement"] == 1.0
    assert main(["formats", "net.weft", "data=digits", *few, "json=true"]) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert of_file["float32_accuracy"] == pytest.approx(
        told["float32_accuracy"], abs=0.02
    )  # it takes bytes, of rounded pixels
    assert any("without layers" in note for note in of_file["notes"])
    assert main(["formats", "logistic_regression", "data=digits", "formats=int8", "examples=64"]) == 0
    assert "not trained" in capsys.readouterr().out
    for words, message in [
        (["net.weft"], "data is required for net.weft"),
        (["small", "examples=0"], "1 example or more"),
        (["small", "formats=float17"], "Did you mean float16"),
        (["smal"], "small"),
    ]:
        assert main(["formats", *words]) == 2
        assert message in capsys.readouterr().err


def test_public_names() -> None:
    assert {"table", "round_to", "survey", "number_format"} <= set(dir(formats))


# --- the documentation ------------------------------------------------------------------------------------------------------------


def test_pictures_of_the_page_are_current() -> None:
    folder = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "formats"
    drawn = runpy.run_path(str(folder / "draw.py"))["PICTURES"]
    assert {path.stem for path in folder.glob("*.svg")} == set(drawn)
    for name, picture in drawn.items():
        kept, made = (folder / f"{name}.svg").read_text(encoding="utf-8"), picture()
        if name == "gradients":  # machines differ in the last bits of a training: the same up to a few values
            assert np.abs(bar_heights(kept) - bar_heights(made)).sum() < 0.02 * bar_heights(kept).sum()
        else:
            assert kept == made, f"{name}.svg is out of date: run docs/pictures/formats/draw.py"


def bar_heights(svg: str) -> np.ndarray:
    """The height of the bars at each column of a picture."""
    found = np.zeros(800)
    for x, height in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="[\d.]+" height="([\d.]+)" class="f[35]"', svg):
        found[round(float(x))] += float(height)
    assert found.sum() > 0
    return found


def test_a_pruned_network_is_surveyed_and_a_quantized_one_refused() -> None:
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    compress.prune(model, 0.5)
    before = model(x).numpy()
    found = formats.survey(model, [x], formats=("float16", "int4"))
    assert found.accuracies[0].snr > found.accuracies[1].snr
    np.testing.assert_array_equal(model(x).numpy(), before)
    grids = compress.int8(model, x)
    with pytest.raises(UserError, match=r"a network in float is required, but layers\.0 is quantized"):
        formats.survey(model, [x], formats=("float16",))
    assert compress.quantization(model).keys() == grids.keys()
