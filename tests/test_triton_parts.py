"""Long loops for few rows, cut into parts: the same numbers, by several launches. Run as a program it compiles such kernels for GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from triton_build import generations
from weft import nn
from weft.compiler.cpu.backend import apply_passes
from weft.compiler.gpu import kernels
from weft.compiler.gpu import split_reductions as parts
from weft.compiler.gpu.commands import Launch
from weft.compiler.gpu.compile import build
from weft.compiler.gpu.kernels import tile_for, write_kernel
from weft.compiler.gpu.program import LANES, _joined, commands, gpu_program
from weft.compiler.gpu.source import KernelSource, joined
from weft.compiler.ir.nest import ready_nest
from weft.compiler.passes import simplify
from weft.compiler.planning.fuse import fuse
from weft.compiler.thresholds import thresholds
from weft.graph.node import Type
from weft.runtime.reference import interpret
from weft.testing import close, counted
from weft.tracing.state import memory_of

pytest.importorskip("triton")
if __name__ != "__main__":  # it puts NumPy's functions into the place of the device's
    from triton_runner import run_program

RNG = np.random.default_rng(11)
IMAGES = RNG.normal(size=(4, 5, 7, 31)).astype(np.float32)
LAST = np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1))
ROWS = RNG.normal(size=(3, 555)).astype(np.float32)
SCALE, SHIFT = RNG.normal(size=(2, 5)).astype(np.float32)
HALF = weft.bfloat16.numpy


def without_steps(monkeypatch):
    """Sums stay whole until they are written: on GPUs nobody else has to cut them."""
    monkeypatch.setattr(simplify, "SPLIT_RULES", ())


@pytest.fixture(params=[256, 64], ids=["parts of a strip", "parts of several strips"])
def small(request, monkeypatch):
    """Limits at which small tensors are cut as large ones are."""
    without_steps(monkeypatch)
    for name, value in {"WANTED": 20, "MOST_TILE": 32}.items():
        monkeypatch.setattr(parts, name, value)
    monkeypatch.setattr(thresholds, "gpu_cut", 512)
    monkeypatch.setattr(thresholds, "gpu_part", 64)
    monkeypatch.setattr(kernels, "MOST_TILE", request.param)
    monkeypatch.setattr(kernels, "LEAST_FLAT", 1024)  # few programs: each takes its time under the interpreter


def test_parts_are_as_long_as_they_say(small, request):
    _, steps = steps_of(lambda x: x.var(axis=(0, 2, 3)), IMAGES)
    several = "several" in request.node.name
    assert ("for start in" in steps[0].kernel.body, steps[0].kernel.programs) == (several, 5 * 4)


def steps_of(f, *arrays):
    program = gpu_program(weft.make_graph(f, *arrays), {})
    return program, commands(program)


def agrees(f, *arrays, tolerance=2e-6, count=None):
    """With the definition in float64, in so many launches."""
    program, steps = steps_of(f, *arrays)
    wide = [a.astype(np.float64) if a.dtype in (np.float32, HALF) else a for a in arrays]
    with weft.knobs.set(device="reference"):
        expected = f(*(weft.asarray(a) for a in wide))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for actual, e in zip(run_program(program, list(arrays)), expected, strict=True):
        scale = max(1.0, float(np.abs(e.numpy()).max()))
        np.testing.assert_allclose(actual.astype(np.float64), e.numpy(), rtol=tolerance, atol=tolerance * scale)
        counted()
    assert any("part = " in step.kernel.body for step in steps)
    assert count is None or len(steps) == count


def normalised(axes, shape):
    def f(x, scale, shift):
        apart = x - x.mean(axis=axes, keepdims=True)
        steady = apart / weft.sqrt(x.var(axis=axes, keepdims=True) + 1e-5)
        return steady * scale.reshape(shape) + shift.reshape(shape)

    return f


def exponentials(x):
    e = weft.exp(x - x.max(axis=1, keepdims=True))
    return e, e.sum(axis=1)


FIRST = normalised((0, 2, 3), (5, 1, 1))
CHANNELS = normalised((0, 1, 2), (5,))


def gradients(f):
    return weft.grad(lambda x, a, b: (weft.sin(f(x, a, b)) * x).sum(), argnums=(0, 1, 2))


CASES = {
    "a sum of everything": lambda: agrees(lambda x: x.sum(), IMAGES, count=2),
    "sums of channels": lambda: agrees(lambda x: x.sum(axis=(0, 2, 3)), IMAGES, count=2, tolerance=1e-5),
    "sums of channels, which come last": lambda: agrees(lambda x: x.sum(axis=(0, 1, 2)), LAST, count=2, tolerance=1e-5),
    "a gradient of a bias": lambda: agrees(weft.grad(lambda b, x: (weft.tanh(x + b) * x).sum()), SHIFT, LAST, tolerance=1e-5),
    "a loss of everything": lambda: agrees(lambda x, y: ((x - y) ** 2).mean(), IMAGES, IMAGES[::-1], count=2),
    "whole numbers": lambda: agrees(lambda x: ((x * 100).astype("int32").sum(axis=1), (x > 3).any(axis=1), (x > -9).all(axis=1)), ROWS),
    "products": lambda: agrees(lambda x: (x * 0 + 1.001).prod(axis=1), ROWS, count=2, tolerance=1e-4),
    "the greatest and the least": lambda: agrees(lambda x: (x.max(axis=(0, 2, 3)), x.min(axis=(0, 2, 3))), IMAGES, count=2),
    "where they are": lambda: agrees(lambda x: (x.argmax(axis=1), x.argmin(axis=1)), ROWS, count=2),
    "softmax of long rows": lambda: agrees(weft.softmax, ROWS, count=3),
    "softmax of a whole tensor": lambda: agrees(lambda x: weft.softmax(x.reshape(-1)), IMAGES),
    "log softmax": lambda: agrees(weft.log_softmax, ROWS, count=3, tolerance=1e-5),
    "exponentials, and then their sum": lambda: agrees(exponentials, ROWS, tolerance=1e-5),
    "a softmax's gradient": lambda: agrees(weft.grad(lambda x: (weft.softmax(x) * weft.sin(x)).sum()), ROWS, tolerance=1e-5),
    "a mean and a variance": lambda: agrees(lambda x: (x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))), IMAGES, count=2),
    "a mean and a variance, channels last": lambda: agrees(lambda x: (x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))), LAST, count=2),
    "the deviation of everything": lambda: agrees(lambda x: x.std(), IMAGES, count=2),
    "of bfloat16": lambda: agrees(lambda x: x.astype("float32").var(axis=(0, 1, 2)), LAST.astype(HALF), count=2),
    "of float64": lambda: agrees(lambda x: x.var(axis=(0, 1, 2)), LAST.astype(np.float64), count=2, tolerance=1e-12),
    "layer norm of long rows": lambda: agrees(lambda x: weft.layer_norm(x, weft.ones(555), weft.zeros(555)), ROWS, tolerance=1e-5),
    "batch norm": lambda: agrees(FIRST, IMAGES, SCALE, SHIFT, tolerance=1e-5),
    "batch norm, channels last": lambda: agrees(CHANNELS, LAST, SCALE, SHIFT, tolerance=1e-5),
    "batch norm's gradients": lambda: agrees(gradients(FIRST), IMAGES, SCALE, SHIFT, tolerance=2e-5),
    "batch norm's gradients, channels last": lambda: agrees(gradients(CHANNELS), LAST, SCALE, SHIFT, tolerance=2e-5),
}  # fmt: skip


@pytest.mark.sweep("name", share=0.3)
@pytest.mark.parametrize("name", CASES)
def test_parts_give_the_same(name, small):
    CASES[name]()


@pytest.mark.sweep("size", share=0.3)
@pytest.mark.parametrize("size", [1, 64, 65, 257])
def test_parts_of_any_size(size, small, monkeypatch):
    monkeypatch.setattr(thresholds, "gpu_cut", 1)
    monkeypatch.setattr(thresholds, "gpu_part", 1)
    x = RNG.normal(size=(3, size)).astype(np.float32)
    program, _ = steps_of(lambda x: (x.sum(axis=1), x.var(axis=1), x.argmax(axis=1)), x)
    wide = x.astype(np.float64)
    for found, expected in zip(run_program(program, [x]), (wide.sum(1), wide.var(1), wide.argmax(1)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.sweep("sign", share=0.3)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_first_of_equals_and_nan_in_any_part(sign, small):
    x = np.round(np.abs(ROWS) + 1) * sign  # nothing there is between the greatest and the least
    x[1, 300] = np.nan
    x[1, 450] = np.nan
    program, _ = steps_of(lambda x: (x.argmax(axis=1), x.argmin(axis=1), x.max(axis=1)), x)
    greatest, least, value = run_program(program, [x])
    np.testing.assert_array_equal(greatest, x.argmax(1))
    np.testing.assert_array_equal(least, x.argmin(1))
    np.testing.assert_array_equal(value, x.max(1))


# --- means and squares in one walk ------------------------------------------------------------------------------------------------


def test_a_variance_far_from_zero(small):
    """The mean of squares less the square of the mean would have no digit left."""
    x = LAST + np.float32(1000)
    program, steps = steps_of(lambda x: x.var(axis=(0, 1, 2)), x)
    assert len(steps) == 2
    [found] = run_program(program, [x])
    np.testing.assert_allclose(found, x.astype(np.float64).var(axis=(0, 1, 2)), rtol=5e-5)


@pytest.mark.parametrize("f", [
    lambda x: ((x - x.sum(axis=1, keepdims=True) / 554) ** 2).sum(axis=1),  # not the mean
    lambda x: ((x - (x * 2).mean(axis=1, keepdims=True)) ** 2).sum(axis=1),  # not of the same
    lambda x: ((x - x.mean(axis=1, keepdims=True)) * x).sum(axis=1),  # no square
    lambda x: (abs(x - x.mean(axis=1, keepdims=True)) ** 2).sum(axis=1),
    lambda x: ((x - x.mean(axis=1, keepdims=True)[::-1]) ** 2).sum(axis=1),  # of other rows
])  # fmt: skip
def test_what_only_looks_like_a_variance(f, small):
    agrees(f, ROWS, tolerance=1e-5)
    assert len(steps_of(f, ROWS)[1]) > 2


@pytest.mark.parametrize(("rows", "length"), [(27, 43_600), (16, 50_000), (5, 70_001), (3, 9 * 4096 + 1)])
def test_rows_are_cut_into_about_as_many_parts_as_wanted(rows: int, length: int) -> None:
    """Parts are whole tiles: with the widest there were 6 parts of 43,600 elements, 19 are wanted."""
    graph = weft.make_graph(lambda x: x - x.mean(axis=1, keepdims=True), weft.zeros((rows, length)))
    wanted = min(parts.WANTED // rows, length // thresholds.gpu_part)
    first = next(iter(commands(gpu_program(graph, {})).launches))
    assert 2 * wanted * rows <= 3 * first.programs <= 3 * wanted * rows


def test_means_of_turned_rows(small):
    """Of a square of rows each differs from the mean of the one across the diagonal."""
    x = RNG.normal(size=(2, 2, 555)).astype(np.float32)
    agrees(lambda x: ((x - x.mean(axis=2).mT[:, :, None]) ** 2).sum(axis=2), x, tolerance=1e-5)


# --- programs -----------------------------------------------------------------------------------------------------------------------


def same_as_defined(graph, updates, arrays):
    program = gpu_program(graph, updates)
    for actual, e, node in zip(run_program(program, arrays), interpret(graph)(*arrays), graph.outputs, strict=True):
        close(actual, e, node.dtype, slack=4.0)
    return [step.kernel for step in commands(program) if isinstance(step, Launch)]


def test_state_is_updated_after_everybody_has_read_it(small):
    """All parts compute with the new value, which takes the place of the old one that they compute it from."""

    def f(x, old):
        new = old * 0.9 + x.mean(axis=(0, 1, 2)) * 0.1
        return new, ((x - new) ** 2).sum(axis=(0, 1, 2))

    sources = same_as_defined(weft.make_graph(f, LAST, SHIFT), {0: 1}, [LAST, SHIFT])
    assert len(sources) == 3
    assert sources[1].programs > 1
    assert "kept" in sources[1].body


def test_batch_norm_with_its_state(small):
    norm = nn.BatchNorm2d(5)
    norm.train()
    made = weft.jit(norm.__call__)._for((IMAGES,), {})
    arrays = [IMAGES, *(memory_of(s, made.home) for s in made.states)]
    assert made.executable.updates
    sources = same_as_defined(made.graph, made.executable.updates, arrays)
    assert any("part = " in source.body for source in sources)


def test_a_workspace_is_in_the_plan_of_memory(small):
    program, steps = steps_of(lambda x: x.sum() * x, IMAGES)
    [first, second, *_] = steps
    [room] = first.kernel.writes
    slot = first.slots[first.kernel.arguments.index(room)]
    assert slot.nbytes == 4 * room.shape[0]
    assert slot.offset + slot.nbytes <= program.memory.arena
    assert second.slots[second.kernel.arguments.index(room)] == slot
    [call] = [c for c in program.calls if program.memory.scratch.get(c.kernel)]
    assert any(slot.overlaps(w) for w in call.writes)


def test_others_share_a_launch_with_parts(small):
    """But what combines the parts waits for them."""
    _, [first, second] = steps_of(lambda x, y: (x.sum(axis=(0, 2, 3)), weft.sin(y)), IMAGES, SHIFT)
    assert first.kernel.body.count("def part") == 2
    assert "begin = part" in first.kernel.body
    assert "sum of 4 parts" in second.kernel.body


def loads(source):
    """The tensors that a kernel reads."""
    return {node for i, node in enumerate(source.arguments) if f"tl.load(p{i} " in source.body}


def nests_of(f, *examples):
    return [ready_nest(k, LANES) for k in fuse(apply_passes(weft.make_graph(f, *examples))).kernels if k.anchor is None]


def test_what_is_whole_stays_so():
    many = Type((4096, 1000), weft.float32)
    for nest in nests_of(weft.softmax, many):
        [source] = parts.write_kernels("kernel", nest)
        assert source == write_kernel("kernel", nest)
        assert parts.loops_workspace(nest) == {}
        assert parts.loops_scratch(nest) == 0


def test_no_thread_reads_what_another_has_just_written():
    """Within one kernel, values of a row are handed on in registers."""

    def f(x):
        mean = x.mean(axis=(0, 1, 2))
        return mean, ((x - mean) ** 2).mean(axis=(0, 1, 2)), weft.exp(mean)

    for nest in nests_of(f, LAST[:1, :3]):
        source = write_kernel("kernel", nest)
        assert not (set(source.writes) & loads(source))


def test_threads_wait_for_rows_that_others_write():
    [nest] = nests_of(exponentials, np.zeros((300, 100), np.float32))
    before, after = write_kernel("kernel", nest).body.split("tl.debug_barrier()")
    assert "tl.store(p1 " in before
    assert "tl.load(p1 " in after


# --- tiles --------------------------------------------------------------------------------------------------------------------------


def tile_of(f, *shapes):
    [nest] = nests_of(f, *(Type(s, weft.float32) for s in shapes))
    return tile_for(nest), nest


def test_tiles_keep_a_gpu_busy(monkeypatch):
    without_steps(monkeypatch)
    assert tile_of(lambda x: x * 2, (1 << 22,))[0].rows == 1024
    assert tile_of(lambda x: x * 2, (1 << 15,))[0].rows == 256  # 128 programs, not 32
    tile, nest = tile_of(lambda x: x.sum(axis=(0, 1, 2)), (64, 56, 56, 64))
    assert (tile.rows, tile.width) == (32, 64)
    first, second = parts.write_kernels("kernel", nest)
    assert 264 <= first.programs <= 1024
    assert second.programs <= 64
    assert tile_of(weft.softmax, (4096, 10))[0].rows >= 64  # several short rows


def idle(number, warps, shared=0):
    """A kernel of one program that does nothing."""
    body = f"@triton.jit\ndef k{number}(status):\n    pass\n"
    return KernelSource(f"k{number}", body, (), (), 1, warps, 2, (), shared=shared)


def test_kernels_of_many_warps_and_of_few_are_launched_apart():
    found = list(_joined([(idle(i, w), ()) for i, w in enumerate((8, 1, 4, 8, 2))]))
    assert [s.warps for s, _ in found] == [2, 8]
    assert [s.body.count("def part") for s, _ in found] == [2, 3]


def test_hundreds_of_kernels_are_joined_in_several_launches_none_of_them_deep():
    found = [source for source, _ in _joined([(idle(i, 4), ()) for i in range(300)])]
    assert [s.programs for s in found] == [*[32] * 9, 12]
    for source in found:
        ifs = [line for line in source.body.splitlines() if line.lstrip().startswith("if ")]
        assert len(ifs) == source.programs - 1
        assert max(len(line) - len(line.lstrip()) for line in ifs) <= 4 * 5  # 2 ** 5 is 32


def test_kernels_that_fill_the_shared_memory_are_launched_apart():
    found = [
        source
        for source, _ in _joined([(idle(i, 4, size << 10), ()) for i, size in enumerate((48, 48, 48, 0, 200, 0, 1))])
    ]
    assert [s.programs for s in found] == [2, 2, 1, 2]
    assert [s.shared >> 10 for s in found] == [96, 48, 200, 1]


def test_each_program_finds_its_kernel():
    source = joined("kernel", [idle(i, 4) for i in range(11)])
    main = source.body[source.body.index("def kernel") :].replace("tl.program_id(0)", "number")
    calls = []
    names = {f"part{i}": lambda place, status, i=i: calls.append((i, place)) for i in range(11)}
    for number in range(11):
        names["number"] = number
        exec(main, names)
        names["kernel"](None)
    assert calls == [(i, 0) for i in range(11)]


# --- code for GPUs, without one ---------------------------------------------------------------------------------------------------


def test_parts_compile_for_gpus():
    """In a process of its own: interpreting is for a whole process."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, str(Path(__file__))], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("built") >= 16
    counted(16)


def main() -> None:
    simplify.SPLIT_RULES = ()
    images, last = Type((16, 16, 56, 56), weft.float32), Type((16, 56, 56, 64), weft.bfloat16)
    channels = Type((64,), weft.float32)
    cases = [
        (lambda x: (x.sum(), (x > 0).all(), x.prod()), images), (lambda x: x.var(axis=(0, 2, 3)), images),
        (lambda x: (x.argmax(axis=1), x.max(axis=1)), Type((3, 100_000), weft.float32)),
        (weft.softmax, Type((3, 50_000), weft.float32)),
        (lambda x: x.astype("float32").var(axis=(0, 1, 2)), last),
        (gradients(normalised((0, 1, 2), (64,))), Type(last.shape, weft.float32), channels, channels),
    ]  # fmt: skip
    for f, *examples in cases:
        for nest in nests_of(f, *examples):
            sources = parts.write_kernels("kernel", nest)
            if len(sources) > 1:
                capabilities = generations()
                for source in sources:
                    print("built", *(len(build(source, one).code) for one in capabilities), source.programs)


if __name__ == "__main__":
    main()
