"""Programs compiled ahead of time: the C function, called in this process, gives what the jitted program gives."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

import weft
from weft import nn
from weft.aot.compile import CompiledLibrary, aligned
from weft.aot.object_reader import read_object
from weft.aot.program import compile_library
from weft.compiler.cpu.engine import Loaded
from weft.compiler.cpu.target import TARGETS


def saved(folder: Path, model, *inputs):
    """The program of a model, saved and loaded."""
    weft.save(folder / "net.weft", model, inputs)
    return weft.load(folder / "net.weft").eval()


class NativeLibrary:
    """A compiled library in this process, called as C calls it."""

    def __init__(self, library: CompiledLibrary) -> None:
        self.library, self.loaded = library, Loaded(library.object)
        self.workspace, self.state = aligned(library.workspace), aligned(library.state)
        if library.state:
            self.loaded.function(f"{library.name}_init", [ctypes.c_void_p])(self.state.ctypes.data)

    def __call__(self, *inputs):
        library = self.library
        given = [np.ascontiguousarray(x, p.dtype.numpy) for x, p in zip(inputs, library.inputs, strict=True)]
        outputs = [np.full(p.shape, 77, p.dtype.numpy) for p in library.outputs]
        memory = [*given, *outputs, *([self.state] if library.state else []), self.workspace]
        self.workspace[:] = 255
        run = self.loaded.function(library.function, [ctypes.c_void_p] * len(memory), ctypes.c_int32)
        code = run(*(array.ctypes.data for array in memory))
        if code:
            raise RuntimeError(library.errors[code - 1] if code > 0 else "misaligned")
        return outputs


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 3])
def test_the_library_gives_the_bits_of_the_program(tmp_path, batch):
    x = weft.random.normal((batch, 1, 28, 28))
    program = saved(tmp_path, lenet(), x)
    library = compile_library(program, "net", "host", {"batch": batch})
    run = NativeLibrary(library)
    expected = weft.jit(program)(x).numpy()
    for _ in range(3):
        np.testing.assert_array_equal(run(x.numpy())[0], expected)
    assert library.inputs[0].shape == (batch, 1, 28, 28)
    assert library.outputs[0].shape == (batch, 10)


def test_object_files_for_every_target_need_nothing(tmp_path):
    program = saved(tmp_path, lenet(), weft.zeros((1, 1, 28, 28)))
    for target in TARGETS:
        found = read_object(compile_library(program, "digits", target).object)
        assert found.defined == ("digits_run",), target
        assert set(found.undefined) <= ({"__aeabi_ldivmod", "__aeabi_uldivmod"} if target == "armv7" else set()), target
        assert 0 < found.code < 100_000
