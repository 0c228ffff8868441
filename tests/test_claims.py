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
    if "bias" in spec.epilogue:
        value = value + operands[2]
    return np.maximum(value, 0) if "relu" in spec.epilogue else value


def answer(spec: ConvSpec | ProductSpec, memory: list[np.ndarray]) -> None:
    """Do what a library is asked for, on the bytes of its arguments."""
    if isinstance(spec, ProductSpec):
        a, b = (_matrices(spec, memory[n], n).astype(np.float64) for n in (0, 1))
        _typed(memory[2], spec.c_dtype)[: spec.batch * spec.m * spec.n] = (a @ b).reshape(-1)
        return
    kinds = {spec.arguments[-1]: spec.result_dtype}
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
        if plain and isinstance(wanted.spec, ConvSpec) and wanted.spec.epilogue:
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
) -> list[Claim]:
    """What is claimed for a function; its numbers are right. `filters`: the arguments that lie as libraries want filters."""
    rng = generator(str(shapes))
    arrays = [rng.normal(size=s).astype(np.float32) for s in shapes]
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
    "a residual": (lambda x, w, r: last(weft.relu(weft.conv(x, w) + r)), (Y,)),
    "a residual beside the bias": (lambda x, w, b, r: last(weft.relu(weft.conv(x, w, b) + r)), (B, Y)),
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
    """The filter's gradient lies otherwise in the library's memory: it is never direct, even where nothing follows."""
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


def test_operands_must_lie_there_whole_and_in_order() -> None:
    """A filter that lies otherwise, or an image that begins in the middle of another, is for our kernel."""
    assert asked(lambda x, w: last(weft.conv(x, w)), X, W, filters=()) == []
    assert asked(lambda x, w: last(weft.conv(x[1:3], w)), X, W, filters=(0, 1)) == []
    assert len(asked(lambda x, w: last(weft.conv(x, w)), X, W, filters=(0, 1))) == 1


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
