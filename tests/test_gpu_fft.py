"""Convolutions by fast Fourier transforms on GPUs, under Triton's interpreter, against the definition in float64."""

from itertools import pairwise

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.compiler.gpu import algorithms as choice
from weft.compiler.gpu.fft import plans as fft_plans
from weft.compiler.gpu.fft import problem
from weft.compiler.gpu.program import gpu_program
from weft.compiler.gpu.source import KernelWriter
from weft.compiler.ir.fft_tiling import SIZES, FftWindow, fft_tiling
from weft.graph.node import Type, placeholder
from weft.options import CompileOptions
from weft.testing import counted, generator

pytest.importorskip("triton")
import fake_gpu
from gpu_algorithm_tools import defined, near, plans
from triton_runner import run_kernel, run_program

TOLERANCE = 5e-7  # of the largest result
CASES = {
    "odd": ((3, 2, 7, 5), (3, 2, 5, 5), {"padding": 2}),
    "several tiles, uneven padding": ((2, 3, 10, 8), (4, 3, 5, 6), {"padding": ((1, 0), (3, 2))}),
    "groups and dilation": ((2, 4, 8, 7), (6, 2, 5, 5), {"groups": 2, "dilation": (1, 2), "padding": 2}),
    "groups of one channel and two filters": ((1, 3, 7, 6), (6, 1, 5, 5), {"groups": 3}),
    "a row": ((2, 3, 2, 30), (4, 3, 1, 25), {"padding": ((0, 0), (12, 12))}),
    "a column": ((2, 3, 30, 2), (4, 3, 25, 1), {"padding": ((14, 10), (0, 0))}),
    "larger than the image": ((2, 2, 3, 4), (3, 2, 7, 5), {"padding": 4}),
    "one result": ((1, 2, 5, 6), (1, 2, 5, 6), {}),
}


def arrays(x_shape, w_shape):
    rng = generator(f"{x_shape} {w_shape}")
    return [rng.normal(size=shape).astype(np.float32) for shape in (x_shape, w_shape)]


def all_directions(how, algorithm):
    """The convolution with something after it, and its gradients."""

    def step(x, w):
        y, back = weft.vjp(lambda x, w: weft.conv(x, w, algorithm=algorithm, **how), x, w)
        return (weft.relu(y), *back(y * 0.5))

    return step


def check(how, algorithm, x, w):
    program = gpu_program(weft.make_graph(all_directions(how, algorithm), x, w), {})
    assert set(plans(program).values()) == {algorithm}
    expected = defined(all_directions(how, "LOOPS"), x, w)
    for actual, wanted in zip(run_program(program, [x, w]), expected, strict=True):
        near(actual, wanted, TOLERANCE)
    return program


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("name", CASES)
def test_tiles_are_the_definition(name):
    x_shape, w_shape, how = CASES[name]
    check(how, "FFT_TILED", *arrays(x_shape, w_shape))


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize(("name", "windows"), [("odd", ["12x10"] * 3), ("one result", ["8x8", "8x8", "10x12"])])
def test_whole_images_are_the_definition(name, windows):
    x_shape, w_shape, how = CASES[name]
    program = check(how, "FFT", *arrays(x_shape, w_shape))
    assert sorted(plan.phases[0].arguments[-1] for plan in program.plans.values()) == sorted(windows)


def only(monkeypatch, window):
    """Windows of this size, whatever is fastest."""
    monkeypatch.setattr(problem, "fft_tilings", lambda name, *given: [fft_tiling(FftWindow(*window), *given)])


@pytest.mark.sweep(share=0.3)
@pytest.mark.sweep("window", share=0.5)
@pytest.mark.parametrize("window", [*((1, n) for n in SIZES), (64, 1)], ids=str)
def test_every_size_along_a_line(monkeypatch, window):
    """Two tiles each."""
    only(monkeypatch, window)
    monkeypatch.setattr(problem, "fft_applies", lambda shape: True)
    size = max(window)
    shapes = (1, 2, 1, size + 3), (3, 2, 1, size // 2 + 1)
    turn = slice(None) if window[0] == 1 else slice(None, None, -1)
    check({}, "FFT_TILED", *arrays(*((*s[:2], *s[2:][turn]) for s in shapes)))


@pytest.mark.sweep(share=0.3)
@pytest.mark.sweep("window", share=0.5)
@pytest.mark.parametrize("window", [(8, 10), (12, 8), (24, 8), (8, 40), (64, 8)], ids=str)
def test_sizes_along_both_axes(monkeypatch, window):
    """Blocks of several lines and of several frequencies, and parts of them."""
    only(monkeypatch, window)
    check_forward(*arrays((1, 1, *(min(n, 20) for n in window)), (2, 1, 5, 5)))


def check_forward(x, w):
    program = gpu_program(weft.make_graph(lambda x, w: weft.conv(x, w, padding=2, algorithm="FFT_TILED"), x, w), {})
    assert plans(program) == {"conv_last": "FFT_TILED"}
    near(run_program(program, [x, w])[0], defined(lambda x, w: weft.conv(x, w, padding=2), x, w)[0], TOLERANCE)


def test_several_blocks_of_channels():
    """Of a transform, of the sums, and of the columns of a product."""
    check_forward(*arrays((1, 18, 4, 4), (66, 18, 5, 5)))


@pytest.mark.parametrize("size", SIZES)
def test_matrices_of_transforms_are_exact(size):
    """Cosines and sines of all multiples of a turn / size, within a unit in the last place of 1."""
    writer, table = KernelWriter("kernel"), placeholder("table", Type((2, 64), weft.float32))
    writer.line("number = tl.arange(0, 64)")
    writer.line(f"cosine, sine = cosine_and_sine(number % {size}, {size})")
    for row, value in enumerate(("cosine", "sine")):
        writer.line(f"tl.store({writer.pointer(table)} + {64 * row} + number, {value})")
    writer.written.append(table)
    values = {table: np.zeros((2, 64), np.float32)}
    run_kernel(writer.finished(1, 1), values)
    angles = 2 * np.pi * (np.arange(64) % size) / size
    np.testing.assert_allclose(values[table], [np.cos(angles), np.sin(angles)], rtol=0, atol=2**-23)
    exact = np.arange(64) * 4 % size == 0
    np.testing.assert_array_equal(values[table][:, exact], np.round([np.cos(angles), np.sin(angles)])[:, exact])


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_operands_of_16_bits(kind):
    """They are transformed in float32, so the errors are those of rounding the results."""
    dtype = weft.dtypes.as_dtype(kind, "test")
    x, w = (weft.asarray(a).astype(dtype).numpy() for a in arrays((1, 3, 4, 4), (4, 3, 5, 5)))
    program = gpu_program(weft.make_graph(all_directions({"padding": 2}, "FFT_TILED"), x, w), {})
    assert set(plans(program).values()) == {"FFT_TILED"}
    expected = defined(all_directions({"padding": 2}, "LOOPS"), x, w)
    for actual, wanted in zip(run_program(program, [x, w]), expected, strict=True):
        near(actual, wanted, {"float16": 2e-3, "bfloat16": 1e-2}[kind])


def test_tf32_is_for_products_alone():
    """Rounded transforms would make every result as inaccurate as the largest one of its tile."""
    graph = weft.make_graph(lambda x, w: weft.conv(x, w, algorithm="FFT_TILED"), *arrays((1, 2, 7, 7), (2, 2, 5, 5)))
    found = {}
    for tf32 in (0, 1):
        options = CompileOptions("cuda", tf32=tf32)
        [kernel] = gpu_program(graph, {}, options).plans
        plan = choice.choose(kernel, False, None, options).plan
        rounded = [phase.symbol for phase in plan.phases if '"tf32"' in choice.write(kernel, phase).body]
        found[tf32] = rounded
    assert found == {0: [], 1: ["fft_product"]}


# --- in programs --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    found = fake_gpu.install(monkeypatch)
    with weft.knobs.set(device="cuda", cache="off", compile_after=1):
        yield found


def test_bias_activation_and_residual_are_in_the_last_kernel(gpu):
    x, w = arrays((2, 4, 6, 5), (4, 4, 5, 5))
    b = np.array([0.5, -1, 2, 0], np.float32)

    def block(x, w, b):
        return weft.relu(weft.conv(x, w, padding=2, algorithm="FFT_TILED") + weft.reshape(b, (4, 1, 1))) + x

    step = weft.jit(block)
    [expected] = defined(lambda *a: block(*a), x, w, b)
    for scale in (1, 2, 3):  # run, recorded, replayed
        before = gpu.launched
        near(step(x * scale, w, b * scale).numpy() / scale, expected, TOLERANCE)
        assert gpu.launched - before == 4


def test_weights_are_updated_by_the_last_kernel_of_the_gradient(gpu):
    """Training: all three directions, and the same numbers as on the reference device."""

    def trained(device, algorithm):
        with weft.knobs.set(device=device):
            weft.seed(1)
            rng = np.random.default_rng(1)
            model = nn.Sequential(nn.Conv2d(4, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 4, 5, padding=2))
            optimizer = optim.sgd(model, rate=0.01)

            @weft.jit
            def step(x, y):
                loss = weft.mean((model(x) - y) ** 2)
                optimizer.minimize(loss)
                return loss

            x, y = (rng.normal(size=(1, 4, 4, 4)).astype(np.float32) for _ in range(2))
            with weft.algorithms(algorithm):
                return [step(x, y).item() for _ in range(3)], step.sources(x, y)

    losses, texts = trained("cuda", "FFT_TILED")
    expected, _ = trained("reference", "LOOPS")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert all(after < before for before, after in pairwise(losses))
    assert sum("products of spectra" in text for text in texts) == 4  # of five products, two have the same text


@pytest.mark.parametrize("constant", [True, False])
def test_filters_that_never_change_are_transformed_once(constant):
    x, w = arrays((1, 4, 6, 6), (8, 4, 5, 5))
    graph = weft.make_graph(lambda x, w: weft.conv(x, w, algorithm="FFT_TILED"), x, w)
    program = gpu_program(graph, {}, constants=frozenset([1] if constant else []))
    assert [c.phase.symbol for c in program.calls if c.once] == (["fft_filter"] if constant else [])
    [plan] = program.plans.values()
    spectra = 2 * 8 * 5 * 4 * 8 * 4  # real and imaginary parts, points, channels, filters, bytes
    assert plan.packed == (spectra if constant else 0)
    assert program.memory.kept >= plan.packed


def test_a_constant_filter_in_several_calls(gpu):
    x, w = arrays((1, 4, 6, 6), (8, 4, 5, 5))
    kept = weft.asarray(w)
    infer = weft.jit(lambda x: weft.conv(x, kept, padding=2, algorithm="FFT_TILED"))
    [expected] = defined(lambda x, w: weft.conv(x, w, padding=2), x, w)
    launched = []
    for scale in (1, 2, 3):
        before = gpu.launched
        near(infer(x * scale).numpy() / scale, expected, TOLERANCE)
        launched.append(gpu.launched - before)
    assert launched[1] == launched[2] == launched[0] - 1


# --- workspace, and what it cannot do -----------------------------------------------------------------------------------------------


def test_the_workspace_is_that_of_all_spectra(monkeypatch):
    """Of windows, filters and results; preferences that limit it choose something else."""
    only(monkeypatch, (8, 10))
    used = {}
    for prefer in ("FFT_TILED", "workspace:1000000", "no_workspace"):
        with weft.algorithms(prefer):
            graph = weft.make_graph(weft.conv, *arrays((2, 4, 11, 6), (8, 4, 5, 5)))
        [plan] = gpu_program(graph, {}).plans.values()
        used[plan.name] = plan.workspace
    tiles = 2 * 2
    spectrum = 2 * 4 * 8 * (10 // 2 + 1)  # real and imaginary parts in float32
    assert used == {"FFT_TILED": spectrum * (tiles * 4 + 4 * 8 + tiles * 8), "IMPLICIT_GEMM": 0}


def chosen(x_shape, w_shape, dtype=weft.float32, **options):
    """The algorithms of a convolution and its gradients where none is named."""
    types = Type(x_shape, dtype), Type(w_shape, dtype)
    graph = weft.make_graph(all_directions({"padding": w_shape[2] // 2}, None), *types)
    return set(plans(gpu_program(graph, {}, CompileOptions("cuda", **options))).values())


def test_large_filters_of_float32_are_transformed_unasked(monkeypatch):
    large, filters = (32, 64, 56, 56), (64, 64, 15, 15)
    assert chosen(large, filters) == {"FFT_TILED"}
    for others in (
        chosen(large, filters, tf32=True),
        chosen(large, filters, weft.bfloat16),
        chosen(large, (64, 64, 3, 3)),
    ):
        assert not any(name.startswith("FFT") for name in others)
    monkeypatch.setattr(choice, "FFT_WORKSPACE", 1 << 20)
    assert not any(name.startswith("FFT") for name in chosen(large, filters))


@pytest.mark.parametrize("more", [0, 1])
def test_a_convolution_must_be_worth_four_launches(monkeypatch, more):
    monkeypatch.setattr(fft_plans, "LEAST_MULTIPLY_ADDS", 8 * 32 * 32 * 64 * 64 * 15 * 15 + more)
    assert ("FFT_TILED" in chosen((8, 64, 32, 32), (64, 64, 15, 15))) == (not more)


def test_they_are_measured_beside_all_others(gpu):
    x, w = weft.ones((1, 4, 4, 4)), weft.ones((4, 4, 5, 5))
    table = weft.find_algorithms(x, w, padding=2, direction="filter", repetitions=1)
    rows = {row.name: row for row in table.rows}
    for name in ("FFT", "FFT_TILED"):
        assert rows[name].error < TOLERANCE
        assert rows[name].workspace > 0
        counted()


def test_filters_of_one_column_have_half_of_the_frequencies_too():
    used = set()
    for turn in (slice(None), slice(None, None, -1)):
        x, w = (weft.zeros((1, 4, *sizes[turn])) for sizes in ((3, 40), (1, 25)))
        [plan] = gpu_program(
            weft.make_graph(lambda x, w: weft.conv(x, w, algorithm="FFT_TILED"), x, w), {}
        ).plans.values()
        used.add(plan.workspace)
    assert len(used) == 1


SMALL = (1, 4, 20, 20)
TAPS = "needs a filter of 25 taps or more in two dimensions, stride 1, groups of more than one channel"
REFUSED = {
    "few taps": ("FFT_TILED", SMALL, (4, 4, 4, 6), {}, TAPS),
    "a stride": ("FFT_TILED", SMALL, (4, 4, 5, 5), {"stride": (1, 2)}, TAPS),
    "depthwise": ("FFT_TILED", SMALL, (4, 1, 5, 5), {"groups": 4}, TAPS),
    "one dimension": ("FFT_TILED", (1, 4, 50), (4, 4, 25), {}, TAPS),
    "three dimensions": ("FFT_TILED", (1, 2, 5, 9, 9), (2, 2, 3, 3, 3), {}, TAPS),
    "a large image": ("FFT", (1, 4, 80, 9), (4, 4, 5, 5), {}, "an image of at most 64 pixels"),
    "a wide filter": ("FFT_TILED", (1, 4, 80, 9), (4, 4, 7, 5), {"dilation": (11, 1)}, "fewer than 64 pixels"),
    "too many points": ("FFT_TILED", (4096, 64, 512, 512), (64, 64, 5, 5), {}, "has more points than can be counted"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_algorithm_does_the_rest_and_a_note_says_why(name):
    algorithm, x_shape, w_shape, how, reason = REFUSED[name]

    def gradients(x, w):
        y, back = weft.vjp(lambda x, w: weft.conv(x, w, algorithm=algorithm, **how), x, w)
        return back(y)

    graph = weft.make_graph(gradients, Type(x_shape, weft.float32), Type(w_shape, weft.float32))
    program = gpu_program(graph, {})
    assert len(program.plans) == 3
    for kernel, plan in program.plans.items():
        assert not plan.name.startswith("FFT")
        note = choice.choose(kernel, False, None, CompileOptions("cuda")).note
        assert note.startswith(f"{algorithm} ")
        assert reason in note
        counted()


def test_integers_are_not_transformed():
    """Their sums are exact."""
    x, w = (np.ones(shape, np.int8) for shape in ((1, 16, 8, 8), (16, 16, 5, 5)))
    with weft.algorithms("FFT_TILED"):
        graph = weft.make_graph(lambda x, w: weft.conv(x, w, dtype="int32"), x, w)
    [kernel] = (program := gpu_program(graph, {})).plans
    assert plans(program) == {"conv_int8_last": "IMPLICIT_GEMM"}
    options = CompileOptions("cuda", conv_algorithm="FFT_TILED")
    assert choice.choose(kernel, False, None, options).note == "FFT_TILED multiplies floats"


def test_other_types_have_other_algorithms():
    x, w = (np.ones(shape, np.float64) for shape in ((1, 4, 6, 6), (4, 4, 5, 5)))
    assert gpu_program(weft.make_graph(lambda x, w: weft.conv(x, w, algorithm="FFT"), x, w), {}).plans == {}


def test_of_no_images_the_gradient_is_zero(gpu):
    x, w = weft.zeros((0, 4, 6, 6)), weft.ones((4, 4, 5, 5))
    gradient = weft.jit(weft.grad(lambda w: weft.conv(x, w, algorithm="FFT_TILED").sum()))
    np.testing.assert_array_equal(gradient(w).numpy(), np.zeros(w.shape))
