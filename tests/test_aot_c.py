"""C libraries built with a C compiler: run on this machine, and for other CPUs under QEMU. What is not installed is skipped."""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import weft
from aot_tools import lenet, network
from weft import nn
from weft.cli import main

STRICT = "CFLAGS=-O1 -Wall -Wextra -Werror -std=c11 -pedantic"
STATIC = f"{STRICT} -static"  # under QEMU: the loader of another CPU could find the C library of this machine
EMULATED = {  # compiler, emulator
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "armv7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
    "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64"),
    "x86-64-v2": ("x86_64-linux-gnu-gcc", "qemu-x86_64 -cpu Nehalem"),
    "x86-64-v3": ("x86_64-linux-gnu-gcc", "qemu-x86_64 -cpu max"),
}


def require(*programs):
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text):
    return np.array([float(word) for word in text.split()], np.float32)


@pytest.mark.parametrize("options", [{}, {"weights": "file", "threads": 2}], ids=["plain", "file and threads"])
def test_the_example_prints_what_the_network_gives(tmp_path, options):
    require("cc", "make")
    model, x, expected = network("convolutions")
    library = weft.export_c(tmp_path / "c", model, x, **options)
    x.tofile(tmp_path / "c" / "x.raw")
    run("make", STRICT, cwd=tmp_path / "c")
    np.testing.assert_array_equal(numbers(run("./example", "x.raw", cwd=tmp_path / "c")), expected.ravel())
    assert (tmp_path / "c" / "net.weights").exists() == ("weights" in options)
    assert f"| workspace | {library.workspace:,} |" in (tmp_path / "c" / "README.md").read_text()


LEVELS = {
    "x86-64-v2": "sse4_2",
    "x86-64-v3": "avx2",
    "x86-64-v4": "avx512bw",
}  # and a feature of CPUs that run their code


@pytest.mark.parametrize("target", LEVELS)
def test_libraries_for_x86_levels_run_on_such_cpus(tmp_path, target):
    require("cc", "make")
    if platform.machine() != "x86_64" or LEVELS[target] not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this CPU does not run {target}")
    model, x, expected = network("convolutions")
    weft.export_c(tmp_path, model, x, target=target)
    x.tofile(tmp_path / "x.raw")
    run("make", STRICT, cwd=tmp_path)
    found = numbers(run("./example", "x.raw", cwd=tmp_path))
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", EMULATED)
def test_libraries_for_other_cpus_run_under_qemu(tmp_path, target):
    compiler, emulator = EMULATED[target]
    require(compiler, emulator.split()[0], "make")
    model, x, expected = network("convolutions")
    weft.export_c(tmp_path, model, x, target=target)
    x.tofile(tmp_path / "x.raw")
    run("make", STATIC, f"CC={compiler}", cwd=tmp_path)
    found = numbers(run(*emulator.split(), "./example", "x.raw", cwd=tmp_path))
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", ["inside", "file"])
def test_the_example_of_a_program_with_state_and_errors(tmp_path, weights):
    require("cc", "make")
    table, total = weft.asarray(np.arange(5, dtype=np.float32)), weft.parameter(np.ones(2, np.float32))

    def add(places):
        total.assign(total + weft.take(table, places, axis=0))
        return total * 2

    weft.export_c(tmp_path, add, np.zeros(2, np.int64), weights=weights)
    np.array([1, 4]).tofile(tmp_path / "good.raw")
    np.array([1, 5]).tofile(tmp_path / "bad.raw")
    run("make", STRICT, cwd=tmp_path)
    assert numbers(run("./example", "good.raw", cwd=tmp_path)).tolist() == [4, 10]
    bad = subprocess.run(["./example", "bad.raw"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert bad.returncode == 1
    assert "error 1: [gather] index is out of range for axis 0 of size 5" in bad.stderr


def test_the_header_compiles_as_c_and_cpp_and_needs_no_library(tmp_path):
    require("cc", "c++")
    weft.export_c(tmp_path, lenet(), np.zeros((1, 1, 28, 28), np.float32), labels=[f'"{i}"\\?é' for i in range(10)])
    for compiler, name in (("cc", "a.c"), ("c++", "a.cc")):
        (tmp_path / name).write_text(
            '#include "net.h"\nint main() { return (int)sizeof net_labels - NET_LABELS * (int)sizeof(char*); }\n'
        )
        run(compiler, "-Wall", "-Wextra", "-Werror", name, "-o", f"{name}.out", cwd=tmp_path)
        run(f"./{name}.out", cwd=tmp_path)
    bare = "int net_run(const float *, float *, void *);\nvoid _start(void) { net_run(0, 0, 0); for (;;) {} }\n"
    (tmp_path / "bare.c").write_text(bare)
    run("cc", "-nostdlib", "-static", "-ffreestanding", "bare.c", "libnet.a", "-o", "bare", cwd=tmp_path)


def test_webassembly_runs_in_node(tmp_path):
    require("node", "wasm-ld", "make")
    model, x, expected = network("convolutions")
    weft.export_c(tmp_path, model, x, target="wasm32")
    run("make", cwd=tmp_path)
    x.tofile(tmp_path / "x.raw")
    (tmp_path / "run.mjs").write_text("""
import fs from "fs";
const { instance } = await WebAssembly.instantiate(fs.readFileSync("net.wasm"), {});
const { memory, net_run, __heap_base } = instance.exports;
const input = (__heap_base.value + 63) & ~63, output = input + 65536, workspace = output + 65536;
memory.grow(64);
new Uint8Array(memory.buffer, input).set(fs.readFileSync("x.raw"));
if (net_run(input, output, workspace)) throw "error";
console.log([...new Float32Array(memory.buffer, output, 21)].join(" "));
""")
    found = numbers(run("node", "run.mjs", cwd=tmp_path))
    np.testing.assert_allclose(found, expected.ravel(), rtol=1e-4, atol=1e-5)


class Pixels(nn.Module):
    """A classifier of pictures, from pixels to probabilities."""

    def __init__(self, channels: int) -> None:
        self.layer = nn.Linear(channels * 48, 3)

    def forward(self, x):
        return weft.softmax(self.layer(x.flatten(1).astype("float32") / 255))


def write_image(path: Path, pixels: np.ndarray) -> None:
    """Write planes of pixels as a PGM or PPM file."""
    channels, height, width = pixels.shape
    path.write_bytes(
        f"P{5 if channels == 1 else 6}\n{width} {height}\n255\n".encode() + pixels.transpose(1, 2, 0).tobytes()
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_the_command_line_exports_saved_programs(tmp_path, capsys, monkeypatch, channels):
    require("cc", "make")
    monkeypatch.chdir(tmp_path)
    model, pixels = Pixels(channels).eval(), np.arange(channels * 48, dtype=np.uint8).reshape(channels, 6, 8)
    spec = weft.TensorSpec(("batch", channels, 6, 8), "uint8")
    weft.save("net.weft", model, spec, labels=["red", "green", "blue"])
    assert main(["export", "net.weft", "to=c", "out=library", "name=colours"]) in (0, None)
    assert "int colours_run(const uint8_t *input, float *output, void *workspace)" in capsys.readouterr().out
    write_image(tmp_path / "library" / "a.pgm", pixels)
    run("make", STRICT, cwd="library")
    shown = [line.split() for line in run("./example", "a.pgm", cwd="library").splitlines()]
    expected = weft.jit(model)(pixels[None]).numpy()[0]
    order = np.argsort(-expected)
    assert [word for _, word in shown] == [["red", "green", "blue"][i] for i in order]
    np.testing.assert_array_equal(np.array([float(p) for p, _ in shown], np.float32), expected[order])
    wrong = subprocess.run(["./example", "Makefile"], cwd="library", capture_output=True, text=True, check=False)
    assert f"must be a {'PGM' if channels == 1 else 'PPM'} picture of 8 x 6 pixels" in wrong.stderr


def test_a_folder_that_is_there_is_kept(tmp_path):
    (tmp_path / "file").write_text("mine")
    layer, x = nn.Linear(2, 2), np.ones((1, 2), np.float32)
    with pytest.raises(weft.UserError, match="already exists. Choose another folder, or pass exist_ok=True"):
        weft.export_c(tmp_path, layer, x)
    weft.export_c(tmp_path, layer, x, exist_ok=True)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(weft.UserError, match="weights must be 'inside' or 'file', got 'outside'"):
        weft.export_c(tmp_path / "other", layer, x, weights="outside")
    with pytest.raises(weft.UserError, match="the types of the inputs are required"):
        weft.export_c(tmp_path / "other", layer)
