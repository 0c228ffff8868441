"""What NVIDIA's libraries are asked for: recorded by a judge that agrees to everything, and answered by definition, in float64.

So a claim that says too much (a relu that is none, a bias that is not one number a filter) gives wrong numbers here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.compiler.memory import ARENA, Slot, nbytes
from weft.compiler.program import FRAME_RESERVED, Program
from weft.compiler.triton.claims import Claim, claims
from weft.compiler.triton.program import Ask, Copy, gpu_program, launches
from weft.compiler.triton.vendor import ConvSpec, ProductSpec
from weft.dtypes import as_dtype
from weft.graph import OPS, Graph
from weft.testing import counted, generator

pytest.importorskip("triton")
from triton_runner import run_kernel

F = Callable[..., Any]


# --- libraries by definition ------------------------------------------------------------------------------------------------------------


def first(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, -1, 1)


def convolved(spec: ConvSpec, operands: list[np.ndarray]) -> np.ndarray:
    """A convolution or its derivative, of channels last, in float64."""
    a, b = (first(o) for o in operands[:2])
    padding = tuple(zip(spec.padding_before, spec.padding_after, strict=True))
    how = (spec.stride, padding, spec.dilation, spec.groups, "")
    match spec.direction:
        case "forward":
            value = OPS["conv"].reference(a, b, *how)
        case "data_gradient":
            value = OPS["conv_data"].reference(a, b, *how, spec.spatial)
        case _:
            value = OPS["conv_filter"].reference(a, b, *how, spec.kernel)
    value = np.moveaxis(value, 1, -1)
    for addend in operands[2:]:  # a bias, a residual
        value = value + addend
    return np.maximum(value, 0) if "relu" in spec.epilogue else value


def multiplied(spec: ProductSpec, memory: list[np.ndarray]) -> np.ndarray:
    """A product with its epilogue, in float64."""
    a, b = (_matrices(spec, memory[n], n).astype(np.float64) for n in (0, 1))
    value = a @ b
    if spec.has_bias:
        value = value + _typed(memory[2], spec.c_dtype)[: spec.n].astype(np.float64)
    if spec.epilogue.endswith("relu"):
        value = np.maximum(value, 0)
    if spec.epilogue.endswith("gelu_tanh"):
        value = value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
    return value


def answer(spec: ConvSpec | ProductSpec, memory: list[np.ndarray]) -> None:
    """Do what a library is asked for, on the bytes of its arguments."""
    if isinstance(spec, ProductSpec):
        assert len(memory) == len(spec.arguments)
        _typed(memory[-1], spec.c_dtype)[: spec.batch * spec.m * spec.n] = multiplied(spec, memory).reshape(-1)
        return
    kinds = {spec.arguments[-1]: spec.result_dtype, "residual": spec.result_dtype}
    arrays = []
    for name, here in zip(spec.arguments, memory, strict=True):
        sizes = spec.sizes(name)
        arrays.append(_typed(here, kinds.get(name, spec.dtype))[: np.prod(sizes)].reshape(sizes))
    arrays[-1][...] = convolved(spec, [a.astype(np.float64) for a in arrays[:-1]])


def _typed(memory: np.ndarray, name: str) -> np.ndarray:
    return memory.view(as_dtype(name, "test").numpy)


def _matrices(spec: ProductSpec, memory: np.ndarray, number: int) -> np.ndarray:
    shape = (spec.batch, spec.m, spec.k) if number == 0 else (spec.batch, spec.k, spec.n)
    flat = _typed(memory, (spec.a_dtype, spec.b_dtype)[number])
    steps = tuple(s * flat.itemsize for s in (spec.a_strides, spec.b_strides)[number])
    return np.lib.stride_tricks.as_strided(flat, shape, steps)


def played(program: Program, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a program, its libraries played by the definition."""
    graph = program.graph
    arena = np.full(program.memory.arena + 64, 0x7F, np.uint8)  # poisoned
    outputs = [np.zeros(o.shape, o.dtype.numpy) for o in graph.outputs]
    frame = {ARENA: arena} | dict(enumerate([*map(np.ascontiguousarray, arrays), *outputs], FRAME_RESERVED))

    def memory(slot: Slot) -> np.ndarray:
        return frame[slot.base].reshape(-1).view(np.uint8)[slot.offset : slot.offset + slot.nbytes]

    for step in launches(program):
        if isinstance(step, Ask):
            answer(step.spec, [memory(s) for s in step.slots])
        elif isinstance(step, Copy):
            memory(step.target)[:] = memory(step.source)
        else:
            pairs = zip(step.kernel.arguments, step.slots, strict=True)
            assert not run_kernel(step.kernel, {n: memory(s).view(n.dtype.numpy).reshape(n.shape) for n, s in pairs})[0]
    return outputs


def claims_of(graph: Graph, narrow: Any = None, plain: bool = False) -> tuple[Program, list[Claim]]:
    """The program, and what libraries do of it. `plain`: they know no epilogues."""
    found: dict[Any, Claim] = {}

    def judge(kernel: Any, wanted: Claim) -> bool:
        if plain and wanted.spec.epilogue:
            return False
        found[kernel] = wanted
        return True

    program = gpu_program(graph, {}, narrow, judge=judge)
    return program, list(found.values())


def usual(w: Any) -> Any:
    """Filters with their channels before their kernels, of such that lie with channels last."""
    return weft.permute_dims(w, (0, w.ndim - 1, *range(1, w.ndim - 1)))


def asked(
    f: F,
    *shapes: tuple[int, ...],
    narrow: Any = None,
    tolerance: float = 3e-6,
    plain: bool = False,
    filters: tuple[int, ...] = (1,),
    dtype: Any = weft.float32,
) -> list[Claim]:
    """What is claimed for a function; its numbers are right. `filters`: the arguments that lie as libraries want filters."""
    rng = generator(str(shapes))
    arrays = [rng.normal(size=s).astype(dtype.numpy) for s in shapes]
    lying = [np.moveaxis(a, 1, -1).copy() if n in filters and a.ndim > 2 else a for n, a in enumerate(arrays)]

    def seen(*given: Any) -> Any:
        return f(*(usual(a) if n in filters and a.ndim > 2 else a for n, a in enumerate(given)))

    program, found = claims_of(weft.make_graph(seen, *lying), narrow, plain)
    with weft.knobs.set(device="reference"):
        exact = f(*(weft.asarray(a.astype(np.float64)) for a in arrays))
    exact = exact if isinstance(exact, tuple) else (exact,)
    for actual, e in zip(played(program, lying), exact, strict=True):
        scale = np.abs(e.numpy().astype(np.float64)).max() or 1.0
        np.testing.assert_allclose(
            actual.astype(np.float64), e.numpy().astype(np.float64), rtol=0, atol=tolerance * scale
        )
        counted()
    return found


# --- bias and relu ride on cuDNN ----------------------------------------------------------------------------------------------------------

X, W, B = (4, 8, 5, 6), (4, 8, 3, 2), (4,)  # as many samples as filters: they must not be mistaken for each other
Y, LYING = (4, 4, 3, 5), (4, 3, 2, 8)  # the result, and the filters as they lie in memory


def last(y: Any) -> Any:
    """Channels last, as the library writes: the result of a program is otherwise channels first."""
    return weft.permute_dims(y, (0, *range(2, y.ndim), 1))


def wide(b: Any) -> Any:
    return b.reshape(-1, 1, 1)


RIDING: dict[str, tuple[F, tuple[str, ...]]] = {
    "bias": (lambda x, w, b: last(weft.conv(x, w, b)), ("bias",)),
    "bias from the left": (lambda x, w, b: wide(b) + weft.conv(x, w), ("bias",)),
    "bias and relu": (lambda x, w, b: last(weft.relu(weft.conv(x, w, b))), ("bias", "relu")),
    "relu from the left": (lambda x, w, b: last(weft.relu(wide(b) + weft.conv(x, w))), ("bias", "relu")),
    "with strides and padding": (lambda x, w, b: last(weft.relu(weft.conv(x, w, b, stride=2, padding=1))), ("bias", "relu")),
    "the bias moved after it": (lambda x, w, b: weft.relu(last(weft.conv(x, w)) + b), ("bias", "relu")),
    "seen as rows": (lambda x, w, b: weft.relu(last(weft.conv(x, w)).reshape(-1, 4) + b), ("bias", "relu")),
    "seen as one row": (lambda x, w, b: last(weft.relu(weft.conv(x, w, b))).reshape(-1), ("bias", "relu")),
    "reshaped between bias and relu": (lambda x, w, b: weft.relu(last(weft.conv(x, w, b)).reshape(-1)), ("bias", "relu")),
}  # fmt: skip


@pytest.mark.parametrize("name", RIDING)
def test_bias_and_relu_ride_on_the_convolution(name: str) -> None:
    f, epilogue = RIDING[name]
    if name == "bias from the left":
        f = lambda x, w, b: last(RIDING[name][0](x, w, b))  # noqa: E731
    [wanted] = asked(f, X, W, B)
    assert isinstance(wanted.spec, ConvSpec)
    assert (wanted.spec.epilogue, wanted.direct, wanted.library) == (epilogue, True, "CUDNN")
    assert [n.shape for n in wanted.more] == [B]
    assert wanted.rounded is None
    [without] = asked(f, X, W, B, plain=True)  # where the library has no kernel for that, ours adds the bias
    assert (without.spec.epilogue, without.direct) == ((), False)


@pytest.mark.parametrize(("x", "w", "how"), [
    ((2, 8, 9), (4, 8, 3), {"padding": 1}),
    ((1, 4, 4, 3, 5), (8, 4, 2, 2, 3), {"padding": 1, "stride": 2}),
    ((2, 8, 6, 5), (12, 4, 3, 3), {"groups": 2}),
    ((2, 8, 7, 6), (8, 1, 3, 3), {"groups": 8, "padding": ((1, 0), (2, 1))}),
    ((2, 4, 9, 9), (4, 4, 3, 2), {"dilation": (2, 3)}),
], ids=["a line", "a volume", "groups", "depthwise, uneven", "dilation"])  # fmt: skip
def test_of_any_form(x: tuple[int, ...], w: tuple[int, ...], how: dict[str, Any]) -> None:
    [wanted] = asked(lambda x, w, b: last(weft.relu(weft.conv(x, w, b, **how))), x, w, w[:1])
    assert wanted.spec.epilogue == ("bias", "relu")


def half(x: Any) -> Any:
    return x.astype("bfloat16").astype("float32")


def test_in_mixed_precision() -> None:
    """Two convolutions: the first is kept in 16 bits, the last in float32. A copy of the bias is rounded."""

    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        return last(weft.relu(weft.conv(weft.relu(weft.conv(x, w, b)), v, c)))

    shapes = ((2, 8, 6, 6), (8, 8, 3, 3), (8,), (8, 8, 2, 2), (8,))
    found = asked(f, *shapes, narrow=weft.bfloat16, tolerance=0.02, filters=(1, 3))
    assert [c.spec.epilogue for c in found] == [("bias", "relu")] * 2
    assert [(c.spec.dtype, c.spec.result_dtype) for c in found] == [("bfloat16", "bfloat16"), ("bfloat16", "float32")]
    for wanted in found:  # libraries know a bias of the operands' type only
        [copy] = wanted.more
        assert (copy.dtype, copy.shape, wanted.rounded.dtype) == (weft.bfloat16, (8,), weft.float32)
    without = asked(f, *shapes, narrow=weft.bfloat16, tolerance=0.02, plain=True, filters=(1, 3))
    assert [(c.spec.epilogue, c.direct) for c in without] == [((), False)] * 2


NOT_RIDING: dict[str, tuple[F, tuple[tuple[int, ...], ...]]] = {
    "one number a sample": (lambda x, w, b: last(weft.conv(x, w) + b.reshape(4, 1, 1, 1)), (B,)),
    "one number a row": (lambda x, w, b: last(weft.conv(x, w) + b.reshape(3, 1)), ((3,),)),
    "one number a column": (lambda x, w, b: last(weft.conv(x, w) + b), ((5,),)),
    "one number": (lambda x, w, b: last(weft.conv(x, w) + b), ((),)),
    "the filters the other way round": (lambda x, w, b: last(weft.conv(x, w) + wide(weft.flip(b))), (B,)),
    "a residual without a bias": (lambda x, w, r: last(weft.relu(weft.conv(x, w) + r)), (Y,)),
    "a residual that lies otherwise": (lambda x, w, b, r: last(weft.relu(weft.conv(x, w, b) + r)), (B, Y)),
    "a residual of one row for all": (lambda x, w, b, r: last(weft.relu(weft.conv(x, w, b) + r)), (B, (4, 4, 1, 5))),
    "two numbers a filter": (lambda x, w, b, c: last(weft.conv(x, w, b) + wide(c)), (B, B)),
    "a clip": (lambda x, w, b: last(weft.clip(weft.conv(x, w, b), 0.0, 6.0)), (B,)),
    "a gelu": (lambda x, w, b: last(weft.gelu(weft.conv(x, w, b), approximate="tanh")), (B,)),
    "the first numbers of more": (lambda x, w, b: last(weft.conv(x, w) + wide(b[:4])), ((8,),)),
    "the last numbers of more": (lambda x, w, b: last(weft.conv(x, w) + wide(b[4:])), ((8,),)),
    "a bias that is computed there": (lambda x, w, b: last(weft.conv(x, w) + wide(b * 2.0)), (B,)),
    "the bias is taken away": (lambda x, w, b: last(weft.conv(x, w) - wide(b)), (B,)),
    "the bias is multiplied": (lambda x, w, b: last(weft.conv(x, w) * wide(weft.sin(b)) * 2.0), (B,)),
    "something before the bias": (lambda x, w, b: last(weft.relu(weft.conv(x, w)) + wide(b)), (B,)),
    "a scale before the bias": (lambda x, w, b: last(weft.conv(x, w) * 2.0 + wide(b)), (B,)),
    "something after the relu": (lambda x, w, b: last(weft.relu(weft.conv(x, w, b)) * 2.0), (B,)),
    "another activation": (lambda x, w, b: last(weft.tanh(weft.conv(x, w, b))), (B,)),
    "a leaky relu": (lambda x, w, b: last(weft.leaky_relu(weft.conv(x, w, b))), (B,)),
    "a relu at one": (lambda x, w, b: (lambda y: weft.where(y <= 1.0, 0.0, y))(last(weft.conv(x, w, b))), (B,)),
    "a relu to one": (lambda x, w, b: (lambda y: weft.where(y <= 0.0, 1.0, y))(last(weft.conv(x, w, b))), (B,)),
    "a relu turned round": (lambda x, w, b: (lambda y: weft.where(y <= 0.0, y, 0.0))(last(weft.conv(x, w, b))), (B,)),
    "a mask by another": (lambda x, w, b, r: weft.where(last(r) <= 0.0, 0.0, last(weft.conv(x, w, b))), (B, Y)),
    "two users": (lambda x, w, b: (lambda y: (last(weft.relu(y)), last(y)))(weft.conv(x, w, b)), (B,)),
    "the convolution itself is wanted too": (lambda x, w, b: (lambda y: (last(y), last(weft.relu(y + wide(b)))))(weft.conv(x, w)), (B,)),
    "channels first": (lambda x, w, b: weft.relu(weft.conv(x, w, b)), (B,)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_RIDING)
def test_what_does_not_ride(name: str) -> None:
    """The library writes the plain convolution, and another kernel does the rest."""
    f, more = NOT_RIDING[name]
    [wanted] = asked(f, X, W, *more)
    assert isinstance(wanted.spec, ConvSpec)
    assert (wanted.spec.epilogue, wanted.direct, wanted.more) == ((), False, ())


def test_a_relu_without_a_bias_is_no_relu_of_a_sum() -> None:
    [wanted] = asked(lambda x, w: last(weft.relu(weft.conv(x, w))), X, W)
    assert (wanted.spec.epilogue, wanted.direct) == ((), False)


@pytest.mark.parametrize("relu", [False, True])
def test_a_rounding_above_movement_is_no_relu(relu: bool) -> None:
    """Of 16 bits, with one more axis and then rounded: there is a bias, and nothing else unless somebody says so."""

    def f(x: Any, w: Any, b: Any) -> Any:
        y = last(weft.conv(half(x), half(w))) + b
        return (weft.relu(y) if relu else y)[:, None].astype("bfloat16")

    [wanted] = asked(f, X, (8, 8, 3, 2), (8,), tolerance=0.02)
    assert wanted.spec.epilogue == (("bias", "relu") if relu else ("bias",))
    assert wanted.direct


def test_parts_of_a_result() -> None:
    for f in (
        lambda x, w, b: last(weft.relu(weft.conv(x, w, b)))[:2],
        lambda x, w, b: last(weft.relu(weft.conv(x, w, b)))[::-1],
        lambda x, w, b: last(weft.conv(x, w))[:1],
        lambda x, w, b: weft.pad(last(weft.conv(x, w, b)), ((0, 0), (1, 0), (0, 0), (0, 0))),
    ):
        for wanted in asked(f, X, W, B):
            assert wanted.spec.epilogue == ()


def test_batch_norm_at_inference_rides_too() -> None:
    """After the pass fold a bias is all that is left of it."""

    def f(x: Any, w: Any, v: Any, *statistics: Any) -> Any:
        for n, filters in enumerate((w, v)):
            mean, var, scale, shift = (wide(s) for s in statistics[4 * n : 4 * n + 4])
            x = (weft.conv(x, filters) - mean) / weft.sqrt(var * var + 1e-5) * scale + shift
            x = weft.relu(x)
        return last(x)

    found = asked(f, X, (8, 8, 3, 2), (4, 8, 1, 2), *((8,),) * 4, *((4,),) * 4, filters=(1, 2), tolerance=1e-5)
    assert [c.spec.epilogue for c in found] == [("bias", "relu")] * 2


@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16], ids=str)
@pytest.mark.parametrize("name", ["bias", "bias and relu", "with strides and padding", "the bias moved after it"])
def test_of_16_bits_alone(name: str, dtype: Any) -> None:
    """The sum is rounded before the bias is added to it, but not by the library."""
    f, epilogue = RIDING[name]
    [wanted] = asked(f, X, (8, 8, 3, 2), (8,), dtype=dtype, tolerance=0.02)
    assert (wanted.spec.epilogue, wanted.direct) == (epilogue, True)
    assert (wanted.spec.dtype, wanted.spec.result_dtype) == (dtype.name, dtype.name)
    assert [n.dtype for n in wanted.more] == [dtype]


# --- residuals ride too -------------------------------------------------------------------------------------------------------------------

# Images and filters of a block: as high as wide as many channels, so that axes can be mistaken for each other.
BLOCK = ((2, 8, 8, 8), (8, 8, 3, 3), (8,), (8, 8, 3, 3), (8,))


def block(tail: F) -> F:
    """Two convolutions; `tail` makes the result of the second, its bias and what the first one gave."""

    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = weft.relu(weft.conv(x, w, b, padding=1))
        return last(tail(weft.conv(y, v, padding=1), wide(c), y))

    return f


RESIDUAL: dict[str, tuple[F, tuple[str, ...]]] = {
    "a block": (lambda z, c, y: weft.relu(z + c + y), ("bias", "residual", "relu")),
    "no relu": (lambda z, c, y: z + c + y, ("bias", "residual")),
    "from the left": (lambda z, c, y: weft.relu(y + (c + z)), ("bias", "residual", "relu")),
    "before the bias": (lambda z, c, y: weft.relu((z + y) + c), ("bias", "residual", "relu")),
    "moved there and back": (lambda z, c, y: weft.permute_dims(weft.relu(last(z + c) + last(y)), (0, 3, 1, 2)), ("bias", "residual", "relu")),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "mixed"])
@pytest.mark.parametrize("name", RESIDUAL)
def test_residuals_ride_on_the_convolution(name: str, precision: str) -> None:
    tail, epilogue = RESIDUAL[name]
    how: dict[str, Any] = {
        "float32": {},
        "bfloat16": {"dtype": weft.bfloat16, "tolerance": 0.03},
        "mixed": {"narrow": weft.bfloat16, "tolerance": 0.03},
    }[precision]
    if precision == "mixed":  # something must follow for the result to be of 16 bits, as the residual is
        shapes = (*BLOCK, (8, 8, 1, 1))
        made = asked(lambda *a: last(weft.conv(weft.permute_dims(block(tail)(*a[:5]), (0, 3, 1, 2)), a[5])), *shapes, filters=(1, 3, 5), **how)  # fmt: skip
    else:
        made = asked(block(tail), *BLOCK, filters=(1, 3), **how)
    first, wanted = made[:2]
    assert (first.spec.epilogue, wanted.spec.epilogue, wanted.direct) == (("bias", "relu"), epilogue, True)
    assert wanted.more[1] is first.result
    assert (wanted.rounded is not None) == (precision == "mixed")
    assert wanted.spec.result_dtype == wanted.spec.dtype == wanted.more[0].dtype.name == wanted.more[1].dtype.name


def test_the_first_samples_of_more_are_a_residual() -> None:
    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = weft.relu(weft.conv(x, w, b, padding=1))
        return last(weft.conv(y[:1], v, c, padding=1) + y[:1])

    assert asked(f, *BLOCK, filters=(1, 3))[-1].spec.epilogue == ("bias", "residual")

    def rest(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = weft.relu(weft.conv(x, w, b, padding=1))
        return last(weft.conv(y[:1], v, c, padding=1) + y[1:])

    assert asked(rest, *BLOCK, filters=(1, 3))[-1].spec.epilogue == ()


NO_RESIDUAL: dict[str, F] = {
    "height and width exchanged": lambda z, c, y: weft.relu(z + c + weft.permute_dims(y, (0, 1, 3, 2))),
    "channels in the place of rows": lambda z, c, y: weft.relu(z + c + weft.permute_dims(y, (0, 2, 1, 3))),
    "backwards": lambda z, c, y: weft.relu(z + c + weft.flip(y, axis=2)),
    "one row for all": lambda z, c, y: weft.relu(z + c + y[:, :, :1]),
    "taken away": lambda z, c, y: weft.relu(z + c - y),
    "twice as much": lambda z, c, y: weft.relu(z + c + 2.0 * y),
    "after the relu": lambda z, c, y: weft.relu(z + c) + y,
    "a relu of its own": lambda z, c, y: weft.relu(z) + c + y,
    "a clip": lambda z, c, y: weft.clip(z + c + y, 0.0, 6.0),
    "two of them": lambda z, c, y: weft.relu(z + c + y + weft.flip(y, axis=2)),
    "no bias": lambda z, c, y: weft.relu(z + y),
}


@pytest.mark.parametrize("name", NO_RESIDUAL)
def test_residuals_that_do_not_ride(name: str) -> None:
    f = block(NO_RESIDUAL[name])
    _, wanted = asked(f, *BLOCK, filters=(1, 3))
    assert (wanted.spec.epilogue, wanted.direct, wanted.more) == ((), False, ())


def test_a_residual_whose_sum_is_read_by_others() -> None:
    def f(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
        y = weft.relu(weft.conv(x, w, b, padding=1))
        z = weft.conv(y, v, c, padding=1)
        return last(weft.relu(z + y)), last(z)

    _, wanted = asked(f, *BLOCK, filters=(1, 3))
    assert (wanted.spec.epilogue, wanted.direct) == ((), False)


def test_a_residual_of_another_type() -> None:
    """The block ends in float32, what is added is of 16 bits."""
    found = asked(block(RESIDUAL["a block"][0]), *BLOCK, filters=(1, 3), narrow=weft.bfloat16, tolerance=0.03)
    assert [c.spec.epilogue for c in found] == [("bias", "relu"), ()]


def test_new_state_is_not_written_over_what_the_library_adds() -> None:
    """An input of the result's size may be state whose place the result takes, and no library says that it may."""

    def f(x: Any, w: Any, b: Any, s: Any) -> Any:
        return weft.relu(last(weft.conv(x, w, b, padding=1)) + s)

    images, filters, bias = BLOCK[:3]
    [wanted] = asked(f, images, filters, bias, images)
    assert (wanted.spec.epilogue, wanted.direct) == ((), False)
    [row] = asked(lambda a, b, c: a @ b + c, (1, 8), (8, 8), (8,))
    assert (row.spec.epilogue, row.direct) == ("", False)


# --- bias and activations ride on cuBLASLt --------------------------------------------------------------------------------------------------

FACTORS = ((8, 16), (16, 8), (8,))  # as many rows as columns: a bias must not be mistaken


def by_tanh(x: Any) -> Any:
    return weft.gelu(x, approximate="tanh")


def written_out(x: Any) -> Any:
    """A gelu by tanh as many write it, without care for large numbers."""
    return x * (weft.tanh((x * x * x * 0.044715 + x) * 0.7978845608) + 1.0) * 0.5


ON_PRODUCTS: dict[str, tuple[F, str]] = {
    "bias": (lambda a, b, c: a @ b + c, "bias"),
    "bias from the left": (lambda a, b, c: c + a @ b, "bias"),
    "relu": (lambda a, b, c: weft.relu(a @ b), "relu"),
    "bias and relu": (lambda a, b, c: weft.relu(a @ b + c), "bias_relu"),
    "gelu": (lambda a, b, c: by_tanh(a @ b), "gelu_tanh"),
    "bias and gelu": (lambda a, b, c: by_tanh(a @ b + c), "bias_gelu_tanh"),
    "a gelu written out": (lambda a, b, c: written_out(a @ b + c), "bias_gelu_tanh"),
    "turned factors": (lambda a, b, c: weft.relu(b.mT @ a.mT + c), "bias_relu"),
}


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16, weft.float16], ids=str)
@pytest.mark.parametrize("name", ON_PRODUCTS)
def test_bias_and_activation_ride_on_the_product(name: str, dtype: Any) -> None:
    f, epilogue = ON_PRODUCTS[name]
    how: dict[str, Any] = {"dtype": dtype, "tolerance": 3e-6 if dtype is weft.float32 else 0.02}
    [wanted] = asked(f, *FACTORS, **how)
    assert isinstance(wanted.spec, ProductSpec)
    assert (wanted.spec.epilogue, wanted.direct, wanted.library) == (epilogue, True, "CUBLASLT")
    assert (wanted.spec.c_dtype, wanted.rounded) == (dtype.name, None)
    assert [n.shape for n in wanted.more] == ([(8,)] if "bias" in epilogue else [])
    [without] = asked(f, *FACTORS, plain=True, **how)
    assert (without.spec.epilogue, without.direct) == ("", False)


def test_one_bias_for_a_whole_batch() -> None:
    [wanted] = asked(lambda a, b, c: weft.relu(a @ b + c), (3, 8, 16), (3, 16, 8), (8,))
    assert (wanted.spec.batch, wanted.spec.epilogue) == (3, "bias_relu")
    [each] = asked(lambda a, b, c: weft.relu(a @ b + c), (3, 8, 16), (3, 16, 8), (3, 1, 8))
    assert (each.spec.epilogue, each.direct) == ("", False)
    [rows] = asked(lambda a, b, c: by_tanh(a @ b + c).reshape(6, -1), (3, 8, 16), (16, 8), (8,))
    assert (rows.spec.batch, rows.spec.m, rows.spec.epilogue) == (1, 24, "bias_gelu_tanh")


def test_products_in_mixed_precision() -> None:
    """The bias is of the result's type: a copy where that has 16 bits, itself where it has 32."""
    shapes = (*FACTORS, (8, 24), (24,))
    found = asked(
        lambda a, b, c, d, e: weft.relu(by_tanh(a @ b + c) @ d + e), *shapes, narrow=weft.float16, tolerance=0.01
    )
    assert [c.spec.epilogue for c in found] == ["bias_gelu_tanh", "bias_relu"]
    assert [(c.spec.a_dtype, c.spec.c_dtype) for c in found] == [("float16", "float16"), ("float16", "float32")]
    assert [(c.more[0].dtype, c.rounded is not None) for c in found] == [(weft.float16, True), (weft.float32, False)]


def gelu_like(half: float = 0.5, one: float = 1.0, slope: float = 0.7978845608, cubic: float = 0.044715, low: float = -10.0, high: float = 10.0) -> F:  # fmt: skip
    def f(x: Any, gate: Any = None) -> Any:
        near = weft.clip(x if gate is None else gate, low, high)
        return half * x * (one + weft.tanh(slope * (near + cubic * (near * near * near))))

    return f


def cut_by_others(x: Any, low: bool) -> Any:
    """A gelu whose clip asks another number than the one that it cuts."""
    near = weft.where((2.0 * x if low else x) < -10.0, -10.0, x)
    near = weft.where((near if low else 2.0 * near) > 10.0, 10.0, near)
    return 0.5 * x * (1.0 + weft.tanh(0.7978845608 * (near + 0.044715 * (near * near * near))))


NOT_ON_PRODUCTS: dict[str, F] = {
    "bias along the rows": lambda a, b, c: weft.relu(a @ b + c[:, None]),
    "one number": lambda a, b, c: weft.relu(a @ b + c[0]),
    "a bias the other way round": lambda a, b, c: a @ b + weft.flip(c),
    "the bias is taken away": lambda a, b, c: weft.relu(a @ b - c),
    "two biases": lambda a, b, c: weft.relu(a @ b + c + weft.flip(c)),
    "a residual": lambda a, b, c: weft.relu(a @ b + c + b.mT @ a.mT * c),
    "a scale": lambda a, b, c: (a @ b) * 3.0 + c,
    "the relu first": lambda a, b, c: weft.relu(a @ b) + c,
    "a clip": lambda a, b, c: weft.clip(a @ b + c, 0.0, 6.0),
    "another activation": lambda a, b, c: weft.silu(a @ b + c),
    "a relu and more": lambda a, b, c: weft.relu(a @ b + c) * 2.0,
    "a relu of a gelu": lambda a, b, c: weft.relu(by_tanh(a @ b + c)),
    "the exact gelu": lambda a, b, c: weft.gelu(a @ b + c),
    "a gelu by the logistic function": lambda a, b, c: (lambda x: x * weft.sigmoid(1.702 * x))(a @ b + c),
    "half of what": lambda a, b, c: gelu_like(half=0.25)(a @ b + c),
    "twice the one": lambda a, b, c: gelu_like(one=2.0)(a @ b + c),
    "another slope": lambda a, b, c: gelu_like(slope=0.8)(a @ b + c),
    "another cube": lambda a, b, c: gelu_like(cubic=0.05)(a @ b + c),
    "clipped too early": lambda a, b, c: gelu_like(low=-1.0)(a @ b + c),
    "clipped too early at the top": lambda a, b, c: gelu_like(high=1.0)(a @ b + c),
    "clipped by another": lambda a, b, c: cut_by_others(a @ b + c, low=True),
    "clipped by another at the top": lambda a, b, c: cut_by_others(a @ b + c, low=False),
    "gated by another": lambda a, b, c: gelu_like()(a @ b, a @ b + c),
    "gated by itself turned": lambda a, b, c: gelu_like()(a @ b, (a @ b).mT),
    "turned": lambda a, b, c: (weft.relu(a @ b + c) * 1.0).mT,
    "the sum is wanted too": lambda a, b, c: (lambda x: (x, by_tanh(x)))(a @ b + c),
    "the product is wanted too": lambda a, b, c: (a @ b, weft.relu(a @ b + c)),
}


@pytest.mark.parametrize("name", NOT_ON_PRODUCTS)
def test_what_does_not_ride_on_products(name: str) -> None:
    for wanted in asked(NOT_ON_PRODUCTS[name], *FACTORS):
        assert (wanted.spec.epilogue, wanted.more) == ("", ())


def test_a_residual_does_not_ride_on_a_product() -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        y = weft.relu(a @ b + c)
        return weft.relu(y @ y.mT + c + y)

    assert [wanted.spec.epilogue for wanted in asked(f, *FACTORS)] == ["bias_relu", ""]


def test_products_of_float64_have_no_epilogue() -> None:
    [wanted] = asked(lambda a, b, c: weft.relu(a @ b + c), *FACTORS, dtype=weft.float64)
    assert (wanted.spec.epilogue, wanted.direct) == ("", False)


def test_a_bias_that_begins_anywhere_is_added_by_our_kernel() -> None:
    """Three numbers of 4 bytes: where they are an element of a longer tensor they begin at no multiple of 16 bytes."""
    [wanted] = asked(lambda a, b, c: weft.relu(a @ b + c), (8, 16), (16, 3), (3,))
    assert (wanted.spec.epilogue, wanted.direct) == ("", False)


# --- where results go -----------------------------------------------------------------------------------------------------------------------


def test_what_is_wanted_as_it_is_goes_where_it_is_wanted() -> None:
    [plain] = asked(lambda x, w: last(weft.conv(x, w)), X, W)
    [rows] = asked(lambda x, w: last(weft.conv(x, w)).reshape(-1, 4), X, W)
    [product] = asked(lambda a, b: a @ b, (12, 8), (8, 4))
    assert [(c.direct, c.result.op.name) for c in (plain, rows, product)] == [
        (True, "conv_last"), (True, "reshape"), (True, "reshape"),
    ]  # fmt: skip
    assert isinstance(product.spec, ProductSpec)
    assert product.library == "CUBLASLT"


def test_what_is_wanted_otherwise_goes_to_memory_of_its_own() -> None:
    [turned] = asked(lambda x, w: weft.conv(x, w), X, W)
    [more] = asked(lambda a, b: weft.tanh(a @ b), (12, 8), (8, 4))
    [both] = asked(lambda a, b: (a @ b, weft.tanh(a @ b)), (12, 8), (8, 4))
    for wanted in (turned, more, both):
        assert not wanted.direct
        assert wanted.result.params[0][0] == "library"


def test_a_rounding_is_the_library_s() -> None:
    """Where 16 bits are all that is made of a result, it is written so: directly, or for the kernel that follows."""

    def f(x: Any, w: Any) -> Any:
        return last(weft.conv(half(x), half(w))).astype("bfloat16")

    [direct] = asked(f, (2, 8, 5, 4), (8, 8, 3, 3), tolerance=0.01)
    assert (direct.direct, direct.spec.dtype, direct.spec.result_dtype) == (True, "bfloat16", "bfloat16")
    [after] = asked(lambda x, w: weft.tanh(f(x, w).astype("float32")), (2, 8, 5, 4), (8, 8, 3, 3), tolerance=0.01)
    assert (after.direct, after.spec.result_dtype, after.result.dtype) == (False, "bfloat16", weft.bfloat16)
    [wide] = asked(
        lambda x, w: (lambda y: (weft.tanh(y.astype("bfloat16").astype("float32")), y * 2.0))(
            last(weft.conv(half(x), half(w)))
        ),
        (2, 8, 5, 4), (8, 8, 3, 3), tolerance=0.01,
    )  # fmt: skip
    assert (wide.direct, wide.spec.result_dtype) == (False, "float32")
    [itself] = asked(
        lambda x, w: (lambda y: (weft.tanh(y.astype("bfloat16").astype("float32")), y))(last(weft.conv(half(x), half(w)))),
        (2, 8, 5, 4), (8, 8, 3, 3), tolerance=0.01,
    )  # fmt: skip
    assert (itself.direct, itself.spec.result_dtype) == (False, "float32")


@pytest.mark.parametrize("how", [{}, {"stride": 2, "padding": 1}, {"groups": 2}, {"dilation": 2}], ids=str)
def test_gradients_of_filters_and_images(how: dict[str, Any]) -> None:
    """The filter's gradient lies otherwise in the library's memory than it is wanted here: it is not direct, even where nothing follows."""
    filters = (4, 8 // how.get("groups", 1), 3, 2)

    def f(x: Any, w: Any, g: Any) -> Any:
        return weft.vjp(lambda x, w: weft.conv(x, w, **how), x, w)[1](g)

    out = weft.conv(weft.zeros(X), weft.zeros(filters), **how).shape
    by_direction = {c.spec.direction: c for c in asked(f, X, filters, out)}
    assert set(by_direction) == {"data_gradient", "filter_gradient"}
    assert not by_direction["filter_gradient"].direct
    assert by_direction["filter_gradient"].spec.epilogue == ()

    def stepped(x: Any, w: Any, g: Any) -> Any:
        return w - 0.1 * weft.vjp(lambda w: weft.conv(x, w, **how), w)[1](g)[0]

    [wanted] = asked(stepped, X, filters, out)
    assert (wanted.spec.direction, wanted.direct) == ("filter_gradient", False)

    def as_ours(x: Any, g: Any) -> Any:
        """In the order in which our kernel would write it."""
        found = weft.vjp(lambda w: weft.conv(x, w, **how), weft.zeros(filters, dtype=x.dtype))[1](g)[0]
        return weft.permute_dims(found, (2, 3, 1, 0))

    [wanted] = asked(as_ours, X, out, filters=())
    assert (wanted.spec.direction, wanted.direct) == ("filter_gradient", False)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
def test_a_gradient_of_filters_goes_where_it_is_wanted(kernel: tuple[int, int]) -> None:
    """If it is wanted as libraries write it, filter after filter; a filter of one place lies so in any case."""

    def gradient(x: Any, g: Any) -> Any:
        return weft.vjp(lambda w: weft.conv(usual(x), w), weft.zeros((16, 8, *kernel)))[1](usual(g))[0]

    size = 5 - kernel[0] + 1, 6 - kernel[1] + 1
    shapes = (4, 5, 6, 8), (4, *size, 16)
    [claim] = asked(lambda x, g: last(gradient(x, g)), *shapes, filters=())
    assert claim.direct
    [claim] = asked(gradient, *shapes, filters=())
    assert claim.direct == (kernel == (1, 1))
    [claim] = asked(lambda x, g: last(gradient(x, g)) * 2.0, *shapes, filters=())
    assert not claim.direct


def test_a_bias_does_not_ride_on_gradients() -> None:
    def f(g: Any, w: Any, b: Any) -> Any:
        back = weft.vjp(lambda x: weft.conv(x, w), weft.zeros(X, dtype=w.dtype))[1]
        return last(weft.relu(back(g)[0] + wide(b)))

    [wanted] = asked(f, Y, W, (8,))
    assert (wanted.spec.direction, wanted.spec.epilogue, wanted.direct) == ("data_gradient", (), False)


# --- what is not asked for ------------------------------------------------------------------------------------------------------------------


def test_memory_that_begins_anywhere_is_none_for_libraries() -> None:
    """Sizes that are no multiples of 16 bytes."""
    assert asked(lambda a, b: a @ b, (3, 5), (5, 7)) == []
    assert asked(lambda x, w: last(weft.conv(x, w)), (1, 5, 5, 5), (3, 5, 2, 2)) == []


def test_images_must_lie_there_whole() -> None:
    """One that begins in the middle of another is for our kernel."""
    assert asked(lambda x, w: last(weft.conv(x[1:3], w)), X, W, filters=(0, 1)) == []
    assert len(asked(lambda x, w: last(weft.conv(x, w)), X, W, filters=(0, 1))) == 1


OTHER_FILTERS: dict[str, tuple[F, tuple[int, ...]]] = {
    "the usual order": (lambda w: w, (4, 8, 3, 2)),
    "a part of others": (lambda w: w[4:], (8, 8, 3, 2)),
    "every second one": (lambda w: w[::2], (8, 8, 3, 2)),
    "filters last": (lambda w: weft.permute_dims(w, (3, 2, 0, 1)), (3, 2, 8, 4)),
    "turned around": (lambda w: weft.permute_dims(w, (1, 0, 2, 3)), (8, 4, 3, 2)),
}


@pytest.mark.parametrize("name", OTHER_FILTERS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_filters_that_lie_otherwise_are_copied_first(name: str, with_bias: bool) -> None:
    seen, shape = OTHER_FILTERS[name]
    if with_bias:
        [claim] = asked(lambda x, w, b: last(weft.relu(weft.conv(x, seen(w), b))), X, shape, B, filters=(0,))
        assert claim.spec.epilogue == ("bias", "relu")
    else:
        [claim] = asked(lambda x, w: last(weft.conv(x, seen(w))), X, shape, filters=(0,))
    assert claim.direct
    assert claim.filter is not None
    assert claim.rooms == [claim.filter]


def test_filters_of_gradients_are_copied_too() -> None:
    def f(g: Any, w: Any) -> Any:
        return last(weft.vjp(lambda x: weft.conv(x, w), weft.zeros(X, dtype=g.dtype))[1](g)[0])

    [claim] = asked(f, Y, W, filters=(0,))
    assert (claim.spec.direction, claim.direct, claim.filter is not None) == ("data_gradient", True, True)
    [claim] = asked(lambda g, w: weft.tanh(f(g, w)), Y, W, filters=(0,))
    assert claim.rooms == [claim.filter, claim.result]


def test_a_limit_is_for_the_library_and_its_room() -> None:
    graph = weft.make_graph(lambda x, w: weft.conv(x, usual(w)), weft.zeros(X), weft.zeros(LYING))
    program, [wanted] = claims_of(graph)
    [kernel] = [k for k in program.kernels if k.anchor is not None]
    room = nbytes(wanted.result)
    assert claims(kernel) == [wanted]
    assert claims(kernel, room - 1) == []
    [limited] = claims(kernel, room + 100)
    assert (limited.spec.workspace, limited.limit) == (100, room + 100)
    direct, _ = claims_of(weft.make_graph(lambda x, w: last(weft.conv(x, usual(w))), weft.zeros(X), weft.zeros(LYING)))
    [kernel] = [k for k in direct.kernels if k.anchor is not None]
    [limited] = claims(kernel, 100)
    assert limited.spec.workspace == 100


def test_a_limit_is_for_the_copy_of_a_bias_too() -> None:
    graph = weft.make_graph(lambda a, b, c: weft.relu(a @ b + c) @ a, *(weft.zeros(s) for s in FACTORS))
    program, _ = claims_of(graph, weft.float16)
    kernel = next(k for k in program.kernels if k.anchor is not None)
    [fused] = claims(kernel, 16)
    assert (fused.direct, fused.spec.workspace, fused.limit) == (True, 0, 16)  # eight numbers of 16 bits
    assert claims(kernel, 15) == []


def test_the_first_claim_has_the_epilogue_in_it() -> None:
    graph = weft.make_graph(
        lambda x, w, b: last(weft.conv(x, usual(w), b)), weft.zeros(X), weft.zeros(LYING), weft.zeros(B)
    )
    program, _ = claims_of(graph)
    [kernel] = [k for k in program.kernels if k.anchor is not None]
    fused, plain = claims(kernel)
    assert (fused.spec.epilogue, fused.direct, plain.spec.epilogue, plain.direct) == (("bias",), True, (), False)
    assert claims(kernel, 0) == claims(kernel, 0)[:1]  # there is no room for what is not direct
    assert claims(kernel, 0)[0].direct


def test_whoever_judges_decides() -> None:
    graph = weft.make_graph(lambda x, w: last(weft.conv(x, usual(w))), weft.zeros(X), weft.zeros(LYING))
    for judge in (None, lambda kernel, wanted: False):
        program = gpu_program(graph, {}, judge=judge)
        assert not any(isinstance(step, Ask) for step in launches(program))
    assert any(isinstance(step, Ask) for step in launches(claims_of(graph)[0]))
