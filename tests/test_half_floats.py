"""float16 on CPUs that have no instruction for it: integer arithmetic gives the bits of NumPy, and no function of a library is called."""

from dataclasses import replace

import numpy as np
import pytest

import weft
from aot_tools import NativeLibrary
from test_aot_c import EMULATED, STATIC, numbers, require, run
from weft import nn
from weft.aot.object_reader import read_object
from weft.aot.program import compile_library
from weft.compiler.cpu import target as targets
from weft.compiler.cpu.target import TARGETS, host

HALVES = np.arange(1 << 16, dtype=np.uint16)
WITHOUT = [name for name, target in TARGETS.items() if not target.half]


@pytest.fixture(params=[False, True], ids=["arithmetic", "instruction"])
def compiled(request, monkeypatch, tmp_path):
    """Compile a function for this CPU, with and without its instruction, and call it."""
    if request.param and not host().half:
        pytest.skip("this CPU has no instruction for float16")
    monkeypatch.setitem(targets.TARGETS, "this", replace(host(), half=request.param))

    def call(function, x):
        weft.save(tmp_path / "f.weft", function, (x,), dynamic=False)
        return NativeLibrary(compile_library(weft.load(tmp_path / "f.weft").eval(), target="this"))(x)[0]

    return call


def test_all_halves_become_float32_exactly(compiled):
    found = compiled(lambda bits: weft.view(bits, "float16").astype("float32"), HALVES)
    expected = HALVES.view(np.float16).astype(np.float32)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))
    nan = (HALVES[~number].astype(np.uint32) & 0x8000) << 16 | (HALVES[~number].astype(np.uint32) & 0x3FF) << 13
    np.testing.assert_array_equal(found[~number].view(np.uint32), nan | 0x7FC00000)  # quiet, with their other bits


def _near_halves() -> np.ndarray:
    """Every half, every midpoint of two neighbours, and the float32 numbers next to them; then numbers of any bits."""
    positive = HALVES[:0x7C00].view(np.float16).astype(np.float32)
    middle = np.append((positive[1:] + positive[:-1]) / 2, np.float32(65520))
    both = np.concatenate([positive, middle])
    near = np.concatenate([both, np.nextafter(both, np.float32(np.inf)), np.nextafter(both, np.float32(-1))])
    bits = np.random.default_rng(0).integers(0, 1 << 32, 300_000, np.uint32).view(np.float32)
    special = np.array([np.inf, np.nan, 1e-45, 1e-38, 65519.996, 65536, 3e38], np.float32)
    payloads = np.array([0x7F800001, 0x7FABCDEF, 0x7FC00000, 0x7FFFFFFF], np.uint32).view(np.float32)
    found = np.concatenate([near, special, payloads])
    return np.concatenate([found, -found, bits])


def test_float32_is_rounded_to_nearest_even(compiled):
    x = _near_halves()
    found = compiled(lambda x: weft.view(x.astype("float16"), "uint16"), x)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    number = ~np.isnan(x)
    assert number.sum() > 600_000
    np.testing.assert_array_equal(found[number], expected[number].view(np.uint16))
    bits = x[~number].view(np.uint32)
    np.testing.assert_array_equal(found[~number], bits >> 16 & 0x8000 | bits >> 13 & 0x3FF | 0x7E00)


def test_float64_is_rounded_once(compiled):
    middle = np.float64(1) + np.float64(2) ** -11
    x = np.concatenate([middle + np.array([0, 2**-40, -(2**-40)]), np.random.default_rng(1).normal(size=50_000)])
    found = compiled(lambda x: weft.view(x.astype("float16"), "uint16"), x)
    np.testing.assert_array_equal(found, x.astype(np.float16).view(np.uint16))


def _functions(x):
    """What treats halves as numbers, as bits, as keys, and in sums and products."""
    half = x.astype("float16")
    parts = [
        weft.cumsum(half, axis=1), weft.sort(half, axis=1), weft.nextafter(half, -half), half @ half.T @ half,
        weft.where(half > 0, half, half * 3), weft.top_k(half, 3)[0],
    ]  # fmt: skip
    return weft.concat(parts, axis=1).astype("float32")


def test_programs_give_the_same_with_and_without_the_instruction(tmp_path, monkeypatch):
    if not host().half:
        pytest.skip("this CPU has no instruction for float16")
    monkeypatch.setitem(targets.TARGETS, "without", replace(host(), half=False))
    x = np.random.default_rng(2).normal(size=(6, 21)).astype(np.float32)
    weft.save(tmp_path / "f.weft", _functions, (x,), dynamic=False)
    program = weft.load(tmp_path / "f.weft").eval()
    found, expected = (NativeLibrary(compile_library(program, target=name))(x)[0] for name in ("without", "host"))
    np.testing.assert_array_equal(found, expected)


# --- on other CPUs -------------------------------------------------------------------------------------------------------------


class HalfNetwork(nn.Module):
    """A convolutional network whose weights and values are float16."""

    def __init__(self) -> None:
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.GELU(), nn.Flatten(), nn.Linear(108, 7),
        )  # fmt: skip

    def forward(self, x):
        return weft.softmax(self.layers(x.astype("float16")), -1).astype("float32")


def _network():
    weft.seed(3)
    model, x = HalfNetwork().eval(), weft.random.normal((2, 3, 8, 8))
    model(x).numpy()
    model.load({name: tensor.astype("float16") for name, tensor in model.named_tensors().items()})
    return model, x.numpy(), weft.jit(model)(x).numpy()


def _all_halves(bits):
    """Both directions: all halves as float32, and what is left of a product when it is rounded."""
    x = weft.view(bits, "float16").astype("float32")
    return weft.concat([x, (x * 1.00073).astype("float16").astype("float32")])


def _expected_halves():
    x = HALVES.view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([x, (x * np.float32(1.00073)).astype(np.float16).astype(np.float32)])


@pytest.mark.parametrize("target", WITHOUT)
def test_no_library_is_needed(target, tmp_path):
    weft.save(tmp_path / "f.weft", _all_halves, (HALVES,), dynamic=False)
    assert read_object(compile_library(weft.load(tmp_path / "f.weft"), target=target).object).undefined == ()
    model, x, _ = _network()
    weft.save(tmp_path / "net.weft", model, (x,))
    assert read_object(compile_library(weft.load(tmp_path / "net.weft").eval(), target=target).object).undefined == ()


@pytest.mark.parametrize("target", [name for name in EMULATED if name in WITHOUT])
def test_under_qemu(target, tmp_path):
    compiler, emulator = EMULATED[target]
    require(compiler, emulator.split()[0], "make")
    model, x, expected = _network()
    for name, program, given, right in (("all", _all_halves, HALVES, _expected_halves()), ("net", model, x, expected)):
        folder = tmp_path / name
        weft.export_c(folder, program, given, target=target)
        given.tofile(folder / "x.raw")
        run("make", STATIC, f"CC={compiler}", cwd=folder)
        found = numbers(run(*emulator.split(), "./example", "x.raw", cwd=folder))
        np.testing.assert_allclose(found, right.ravel(), rtol=0 if name == "all" else 4e-3)


def test_in_node(tmp_path):
    require("node", "wasm-ld", "make")
    model, x, expected = _network()
    for name, program, given, right in (("all", _all_halves, HALVES, _expected_halves()), ("net", model, x, expected)):
        folder = tmp_path / name
        weft.export_c(folder, program, given, target="wasm32")
        given.tofile(folder / "x.raw")
        run("make", cwd=folder)
        (folder / "run.mjs").write_text(_NODE)
        run("node", "run.mjs", str(right.nbytes), cwd=folder)
        found = np.fromfile(folder / "y.raw", np.float32)
        np.testing.assert_allclose(found, right.ravel(), rtol=0 if name == "all" else 4e-3)


_NODE = """
import fs from "fs";
const { instance } = await WebAssembly.instantiate(fs.readFileSync("net.wasm"), {});
const { memory, net_run, __heap_base } = instance.exports;
const input = (__heap_base.value + 63) & ~63, output = input + (1 << 20), workspace = output + (1 << 20);
memory.grow(128);
new Uint8Array(memory.buffer, input).set(fs.readFileSync("x.raw"));
if (net_run(input, output, workspace)) throw "error";
fs.writeFileSync("y.raw", new Uint8Array(memory.buffer, output, Number(process.argv[2])));
"""
