"""Programs for GPUs as launches: what shares one, and in which order they come."""

import numpy as np
import pytest

import weft
from weft.compiler.gpu.commands import Copy
from weft.compiler.gpu.program import commands, gpu_program
from weft.compiler.thresholds import thresholds
from weft.graph.node import Type
from weft.options import CompileOptions
from weft.testing import counted, generator

pytest.importorskip("triton")
from triton_runner import run_program

F32 = weft.float32


def turned_around(*values):
    """State that changes places: each becomes what the next one was."""
    return (*values[1:], values[0])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_state_that_changes_places_goes_by_few_launches(count):
    arrays = list(generator("state").normal(size=(count, 7, 3)).astype(np.float32))
    graph = weft.make_graph(turned_around, *arrays)
    program = gpu_program(graph, {i: i for i in range(count)})
    steps = commands(program)
    assert len(steps) == 2  # aside, and back
    assert [len(step.calls) for step in steps] == [count, count]
    for found, expected in zip(run_program(program, arrays), turned_around(*arrays), strict=True):
        np.testing.assert_array_equal(found, expected)
        counted()


def test_large_copies_are_no_kernels(monkeypatch):
    monkeypatch.setattr(thresholds, "gpu_short_copy", 16)
    graph = weft.make_graph(turned_around, *[Type((5,), F32)] * 3)
    assert all(isinstance(step, Copy) for step in commands(gpu_program(graph, {0: 0, 1: 1, 2: 2})))


def test_many_copies_are_several_launches(monkeypatch):
    monkeypatch.setattr(thresholds, "gpu_copies", 2)
    arrays = [np.full((3,), i, np.float32) for i in range(5)]
    program = gpu_program(weft.make_graph(turned_around, *arrays), {i: i for i in range(5)})
    assert [len(step.calls) for step in commands(program)] == [2, 2, 1, 2, 2, 1]
    assert [int(v[0]) for v in run_program(program, arrays)] == [1, 2, 3, 4, 0]


def test_weights_become_narrow_first_and_together():
    """In mixed precision every product wants its weight in 16 bits: one launch for all of them, not one before each."""

    def step(x, a, b, c):
        def loss(weights):
            y = x
            for w in weights:
                y = weft.tanh(y @ w)
            return (y * y).sum()

        return tuple(w - 0.1 * g for w, g in zip((a, b, c), weft.grad(loss)((a, b, c)), strict=True))

    weights = [Type((64, 64), F32)] * 3
    graph = weft.make_graph(step, Type((16, 64), F32), *weights)
    first, *others = commands(gpu_program(graph, {0: 1, 1: 2, 2: 3}, CompileOptions("cuda", "bfloat16")))
    assert len(first.calls) == 4  # the weights, and the data beside them
    assert {node.dtype for node in first.kernel.writes} == {weft.bfloat16}
    assert not any(set(first.kernel.writes) & set(step.kernel.writes) for step in others)


def test_equal_kernels_have_the_lines_of_their_own_errors():
    """Kernels of one text are compiled once, unless their errors are put down to different lines."""

    def divided(x, y, z):
        first = weft.cumulative_sum(x // y)
        return first // z

    steps = commands(gpu_program(weft.make_graph(divided, *[Type((5,), weft.int64)] * 3), {}))
    texts = [step.kernel.body for step in steps if step.kernel.errors]
    assert len(texts) == 2
    assert texts[0] == texts[1]  # else nothing is tested here
    begin = divided.__code__.co_firstlineno
    lines = [source.line for step in steps for _, _, source in step.kernel.errors]
    assert lines == [begin + 1, begin + 2]


def test_a_kernel_in_a_loop_does_not_rely_on_the_alignment_that_it_has_outside():
    """A step of a scan is given a part of a longer tensor, which may begin anywhere."""

    def same_inside(x, rows):
        return weft.tanh(x), weft.scan(lambda s, row: (s, weft.tanh(row)), x[0], rows)[1]

    graph = weft.make_graph(same_inside, Type((5,), F32), Type((3, 5), F32))
    kernels = [launch.kernel for launch in commands(gpu_program(graph, {})).launches if "tanh" in launch.kernel.body]
    assert len(kernels) == 2
    assert kernels[0].body == kernels[1].body  # else nothing is tested here
    assert sorted(kernel.loose for kernel in kernels) == [(), (0, 1)]


def test_a_product_of_a_batch_of_rows_is_one_kernel_with_what_follows():
    """Rounded in the shape in which it is wanted, in mixed precision: with the bias, the gelu, and the residual."""

    def f(x, a, b, c, d):
        return x + weft.gelu(x @ a + b) @ c + d

    shapes = (2, 16, 32), (32, 64), (64,), (64, 32), (32,)
    program = gpu_program(weft.make_graph(f, *(Type(s, F32) for s in shapes)), {}, CompileOptions("cuda", "bfloat16"))
    products = [k for k in program.kernels if k.name == "contract"]
    assert [k.outputs[0].shape for k in products] == [(2, 16, 64), (2, 16, 32)]
    assert len(program.kernels) == 5  # and three operands that become narrow
