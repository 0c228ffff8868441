"""Programs compiled ahead of time give what they give in process. The functions are called without a C compiler."""

import ctypes
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import weft
from aot_tools import NETWORKS, NativeLibrary, network
from sampling import sampled
from weft.aot.archive import static_library
from weft.aot.object_reader import read_object
from weft.aot.program import compile_library
from weft.compiler.cpu import target as targets
from weft.compiler.cpu.engine import load
from weft.compiler.cpu.ir_builder import F64, Code, new_module
from weft.compiler.cpu.target import TARGETS, compiling_for, current_target, host


def saved(folder, program, *inputs, **options):
    """A program, saved and loaded."""
    weft.save(folder / "net.weft", program, inputs, **options)
    return weft.load(folder / "net.weft").eval()


@pytest.mark.sweep(share=3.0)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_library_gives_the_bits_of_the_compiled_network(tmp_path, name):
    model, x, expected = network(name)
    library = compile_library(saved(tmp_path, model, x), "net", sizes={"batch": len(x)})
    run = NativeLibrary(library)
    for _ in range(3):
        np.testing.assert_array_equal(run(x)[0], expected)
    assert library.inputs[0].shape == x.shape
    assert library.outputs[0].shape == expected.shape
    assert read_object(library.object).defined == ("net_run",)


def test_the_number_of_threads_does_not_change_the_bits(tmp_path):
    model, x, expected = network("convolutions")
    run = NativeLibrary(compile_library(saved(tmp_path, model, x), sizes={"batch": len(x)}, threads=2))
    for _ in range(3):
        np.testing.assert_array_equal(run(x)[0], expected)


def test_weights_are_stored_once(tmp_path):
    layer, x = weft.nn.Linear(256, 192), np.ones((4, 256), np.float32)  # no padding on any CPU
    library = compile_library(saved(tmp_path, layer, x), sizes={"batch": 4})
    assert library.weights[: 1 << 10] != layer.weight.numpy().tobytes()[: 1 << 10]  # packed
    assert len(library.weights) < 1.1 * 4 * 256 * 192
    folded = weft.nn.Sequential(weft.nn.Conv2d(64, 64, 1), weft.nn.BatchNorm2d(64)).eval()
    library = compile_library(saved(tmp_path, folded, np.ones((1, 64, 4, 4), np.float32)))
    assert len(library.weights) < 1.1 * 4 * 64 * 64  # the packed filter, not also the folded one


def test_without_vectors_and_fused_products_results_are_close(tmp_path, monkeypatch):
    """Code for CPUs without such instructions runs on this one."""
    plain = replace(host(), arch="plain", fma=False, vector_bits=128, registers=8)
    monkeypatch.setitem(targets.TARGETS, "plain", plain)
    model, x, expected = network("convolutions")
    run = NativeLibrary(compile_library(saved(tmp_path, model, x), "net", "plain", {"batch": 3}))
    np.testing.assert_allclose(run(x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_functions_keep_their_accuracy_without_fused_products(tmp_path, monkeypatch, dtype):
    monkeypatch.setitem(targets.TARGETS, "plain", replace(host(), arch="plain", fma=False))

    def functions(x):
        y = weft.abs(x)
        return weft.concat([weft.exp(x), weft.log(y), weft.tanh(x), weft.erf(x), weft.log1p(y), weft.expm1(x), y**3.3])

    largest, smallest = np.finfo(dtype).max, np.finfo(dtype).tiny
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, largest, -largest, smallest, largest / 2, 1e4]
    x = np.concatenate([np.linspace(-20, 20, 501), np.geomspace(1e-30, 30, 99), special]).astype(dtype)
    run = NativeLibrary(compile_library(saved(tmp_path, functions, x, dynamic=False), "net", "plain"))
    expected = weft.jit(functions)(x).numpy()
    np.testing.assert_allclose(run(x)[0], expected, rtol=4 * np.finfo(dtype).eps)


def test_an_emulated_fused_product_keeps_the_lowest_bits():
    with compiling_for(replace(host(), fma=False)):
        code = Code.begin(new_module("m"), "fma", [F64] * 3, F64)
        code.done(code.exact_fma(*code.arguments))
    loaded = load(code.module)
    fma = loaded.function("fma", [ctypes.c_double] * 3, ctypes.c_double)
    rng = np.random.default_rng(0)
    for a, b in rng.normal(size=(200, 2)).tolist():
        assert fma(a, b, -(a * b)) == float(Fraction(a) * Fraction(b) - Fraction(a * b))
    for a, b, c in rng.normal(size=(200, 3)).tolist():
        exact = float(Fraction(a) * Fraction(b) + Fraction(c))
        assert abs(fma(a, b, c) - exact) <= np.spacing(abs(exact))
    assert fma(1.7e308, 0.5, 1.0) == 0.85e308  # too large to be split
    assert fma(np.inf, 2.0, 1.0) == np.inf
    assert np.isnan(fma(np.inf, 0.0, 1.0))


def test_object_files_of_all_targets_need_next_to_nothing(tmp_path):
    model, x, _ = network("convolutions")
    program = saved(tmp_path, model, x)
    for target in sampled("object files", TARGETS, share=1.0):
        found = read_object(compile_library(program, "net", target, {"batch": 3}).object)
        assert found.defined == ("net_run",), target
        assert set(found.undefined) <= ({"__aeabi_ldivmod", "__aeabi_uldivmod"} if target == "armv7" else set()), target
    assert current_target() is host()


def test_lenet_fits_a_microcontroller(tmp_path):
    """A Cortex-M7 with 512 KiB of flash and 64 KiB of memory for the network."""
    model, x, _ = network("lenet")
    with weft.knobs.set(winograd=0):
        library = compile_library(saved(tmp_path, model, x), "net", "armv7")
    assert library.summary.code + len(library.weights) < 320 << 10
    assert library.workspace + library.inputs[0].nbytes < 48 << 10


def test_state_is_memory_of_the_caller(tmp_path):
    total = weft.parameter(np.ones(3, np.float32))

    def add(x):
        total.assign(total + x)
        return total * 2

    program = saved(tmp_path, add, np.ones(3, np.float32), dynamic=False)
    library = compile_library(program)
    first, second = NativeLibrary(library), NativeLibrary(library)
    x = np.arange(3, dtype=np.float32)
    assert [first(x)[0].tolist() for _ in range(2)] == [[2, 4, 6], [2, 6, 10]]
    assert second(x)[0].tolist() == [2, 4, 6]


def test_a_training_step_continues_without_python(tmp_path):
    weft.seed(2)
    model, x, y = weft.nn.Linear(6, 3), weft.random.normal((4, 6)), np.arange(4) % 3
    optimizer = weft.optim.adam(model, 1e-2)

    @weft.jit
    def step(x, y):
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    step(x, y).item()
    run = NativeLibrary(compile_library(saved(tmp_path, step, x, y), sizes={"batch": 4}))
    for _ in range(3):
        assert run(x.numpy(), y)[0].item() == step(x, y).item()


def test_random_numbers_go_on_from_call_to_call(tmp_path):
    weft.seed(5)
    program = saved(tmp_path, lambda x: x + weft.random.uniform((4,)), np.zeros(4, np.float32), dynamic=False)
    library = compile_library(program)
    run, compiled = NativeLibrary(library), weft.jit(program)
    for _ in range(3):
        np.testing.assert_array_equal(run(np.zeros(4))[0], compiled(np.zeros(4, np.float32)).numpy())


def test_errors_of_the_program_are_numbers_with_texts(tmp_path):
    program = saved(
        tmp_path, lambda x, i: weft.take(x, i, axis=0), np.ones(4, np.float32), np.zeros(2, np.int64), dynamic=False
    )
    run = NativeLibrary(compile_library(program))
    assert run(np.arange(4), [3, 1])[0].tolist() == [3, 1]
    with pytest.raises(RuntimeError, match="out of range"):
        run(np.arange(4), [3, 4])
    assert run(np.arange(4), [3, 1])[0].tolist() == [3, 1]
    assert run.call(0, 0, 0, run.workspace.ctypes.data + 4) == -1  # misaligned


def test_several_inputs_and_outputs_and_modified_arguments(tmp_path):
    def f(x, y):
        x += y
        return {"sum": x + 1, "product": x * y}

    x, y = np.ones(3, np.float32), np.full(3, 2, np.float32)
    library = compile_library(saved(tmp_path, f, x, y, dynamic=False))
    assert [a.name for a in (*library.inputs, *library.outputs)] == ["input0", "input1", "output0", "output1"]
    assert [a.changed for a in library.inputs] == [True, False]
    assert sorted(out.tolist() for out in NativeLibrary(library)(x, y)) == [[4, 4, 4], [6, 6, 6]]


def test_what_cannot_be_compiled_is_refused(tmp_path):
    model, x, _ = network("mlp")
    program = saved(tmp_path, model, x)
    free = weft.nn.TransformerEncoderLayer(8, 2)
    weft.save(tmp_path / "free.weft", free, weft.TensorSpec(("batch", "length<=64", 8)))
    encoder = weft.load(tmp_path / "free.weft").eval()
    for refused, why in {
        lambda: compile_library(
            program, target="armv9"
        ): r"\[target\] a target is one of host, .*wasm32, got 'armv9'. Did you mean armv7",
        lambda: compile_library(program, "my net"): r"a name must be one of C \(letters, digits, _\), got 'my net'",
        lambda: compile_library(
            program, sizes={"length": 3}
        ): "a free dimension of the program is required, got 'length'",
        lambda: compile_library(program, sizes={"batch": 0}): "batch of 1 to any size is required, got 0",
        lambda: compile_library(encoder): r"must be given: sizes=\{'length': 64\}",
        lambda: compile_library(encoder, sizes={"length": 65}): "length of 1 to 64 is required, got 65",
        lambda: compile_library(program, target="wasm32", threads=2): "1 thread for wasm32 is required, got threads=2",
    }.items():
        with pytest.raises(weft.UserError, match=why):
            refused()


def test_an_archive_has_an_index_of_its_symbols():
    content = static_library("net.o", b"abc", ["f", "main_run"])
    assert content.startswith(b"!<arch>\n/               0")
    index = content[8 + 60 :]
    assert index[:4] == (2).to_bytes(4, "big")
    place = int.from_bytes(index[4:8], "big")
    assert content[place : place + 6] == b"net.o/"
    assert content[place + 60 : place + 63] == b"abc"
    assert len(content) % 2 == 0
