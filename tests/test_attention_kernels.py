"""The kernels of attention and of its gradients against the definition in float64: every option, odd sizes, both sides of each block."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import nn
from weft.compiler.gpu.program import gpu_passes
from weft.compiler.passes.precision import precision
from weft.compiler.passes.simplify import simplify
from weft.compiler.thresholds import thresholds
from weft.graph import OPS, check
from weft.graph.node import Type
from weft.options import CompileOptions
from weft.tensor import emit_all
from weft.testing import close, counted

FULL, UPPER, LOWER = (-1, -1, "upper_left"), (-1, 0, "upper_left"), (-1, 0, "lower_right")


class Case(NamedTuple):
    """(batch, heads, key heads, queries, keys, features, features of values), (left, right, alignment), dropout, further inputs."""

    sizes: tuple[int, ...]
    band: tuple[int, int, str] = FULL
    dropout: float = 0.0
    given: tuple[str, ...] = ()


CASES = {
    "one": Case((1, 1, 1, 1, 1, 1, 1)),
    "grouped, several blocks of keys": Case((1, 4, 2, 70, 300, 16, 8)),
    "upper left": Case((2, 2, 2, 70, 66, 5, 7), UPPER),
    "lower right, more keys": Case((1, 3, 1, 65, 130, 8, 8), LOWER),
    "lower right, more queries": Case((1, 1, 1, 130, 33, 12, 20), LOWER),
    "causal, several blocks of keys": Case((1, 2, 1, 290, 290, 8, 8), LOWER),
    "window": Case((1, 2, 1, 90, 300, 4, 4), (20, 5, "lower_right")),
    "lengths": Case((3, 1, 1, 9, 40, 4, 6), LOWER, 0.0, ("lengths",)),
    "lengths, upper left, mask": Case((3, 2, 1, 9, 40, 4, 6), UPPER, 0.0, ("mask", "lengths")),
    "one query": Case((3, 4, 2, 1, 300, 20, 5), LOWER, 0.0, ("lengths",)),
    "few queries, all": Case((2, 2, 1, 3, 141, 16, 40), (90, 2, "lower_right"), 0.2, ("mask", "bias", "lengths", "slopes", "key", "offset")),
    "bias and slopes": Case((2, 2, 2, 17, 33, 6, 3), LOWER, 0.0, ("bias", "slopes")),
    "dropout": Case((2, 2, 1, 17, 33, 6, 3), FULL, 0.3, ("key", "offset")),
    "dropout, keys in fours": Case((2, 2, 1, 17, 68, 6, 3), LOWER, 0.3, ("key", "offset")),
    "few keys, mask": Case((2, 2, 1, 7, 12, 5, 3), FULL, 0.0, ("mask",)),
    "few keys, mask and dropout": Case((2, 2, 1, 7, 12, 5, 3), FULL, 0.25, ("mask", "key", "offset")),
    "all": Case((2, 2, 1, 37, 41, 10, 9), (9, 2, "lower_right"), 0.2, ("mask", "bias", "lengths", "slopes", "key", "offset")),
}  # fmt: skip


def cases(*quick: str) -> list[Any]:
    """All of them; `make test` takes the quick ones, which have each option and each way through the kernels once."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in CASES]


DTYPES = [
    pytest.param(np.float16, marks=pytest.mark.slow), ml_dtypes.bfloat16, pytest.param(np.float64, marks=pytest.mark.slow),
]  # fmt: skip


def inputs_of(case: Case, dtype: Any, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    batch, heads, key_heads, queries, keys, width, values = case.sizes
    bias = np.where(rng.random((batch, 1, queries, keys)) < 0.1, -np.inf, rng.normal(size=(batch, 1, queries, keys)))
    extra = {
        "mask": rng.random((1, heads, queries, keys)) < 0.7, "bias": bias.astype(dtype), "slopes": rng.random(heads).astype(np.float32),
        "lengths": np.asarray([keys, 0, keys // 2][:batch], np.int32), "key": np.uint64(1 << 40 | 77), "offset": np.uint64(5),
    }  # fmt: skip
    shapes = (batch, queries, heads, width), (batch, keys, key_heads, width), (batch, keys, key_heads, values)
    return [*(rng.normal(size=s).astype(dtype) for s in shapes), *(extra[name] for name in case.given)]


def results(case: Case, dtype: Any, how: Any = weft.jit) -> tuple[list[Any], list[Any]]:
    """What the kernels of both ops give, and what the definition gives."""
    params = (*case.band, 0.6, case.dropout, case.given)
    first = inputs_of(case, dtype)
    out, lse = OPS["attention"].reference(tuple(first), *params)
    g = np.random.default_rng(1).normal(size=out.shape).astype(dtype)
    more = [out.astype(dtype), lse.astype(np.float64 if dtype is np.float64 else np.float32), g]

    def both(first: Any, more: Any) -> Any:
        second = (*first[:3], *more, *first[3:])
        return emit_all(OPS["attention"], tuple(first), params), emit_all(OPS["attention_gradients"], second, params)

    forward, backward = how(both)([weft.asarray(x) for x in first], [weft.asarray(x) for x in more])
    expected = OPS["attention_gradients"].reference((*first[:3], *more, *first[3:]), *params)
    return [*forward, *backward], [out, lse, *expected]


def assert_right(case: Case, dtype: Any, how: Any = weft.jit) -> None:
    for y, expected in zip(*results(case, dtype, how), strict=True):
        close(y.numpy(), expected, y.dtype, slack=4.0 if y.dtype is weft.float32 else 1.0)


@pytest.mark.parametrize("name", cases("one", "causal, several blocks of keys", "lower right, more queries", "window", "lengths, upper left, mask", "dropout, keys in fours", "one query", "few queries, all", "all"))  # fmt: skip
def test_on_a_cpu(name: str) -> None:
    assert_right(CASES[name], np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_dtypes(dtype: Any) -> None:
    assert_right(CASES["all"], dtype)


@pytest.mark.parametrize("name", ["grouped, several blocks of keys", pytest.param("all", marks=pytest.mark.slow)])
def test_bits_do_not_depend_on_threads(name: str) -> None:
    """With several threads and few heads, gradients of queries and of keys are computed one after the other."""
    found = []
    for threads in (1, 2, 5):
        with weft.knobs.set(threads=threads), thresholds.set(threaded_work=0):
            found.append([y.numpy() for y in results(CASES[name], np.float32)[0]])
    for others in found[1:]:
        for y, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(y, other)
            counted()


def test_a_head_may_have_256_features_and_no_more() -> None:
    for width in (256, 257):
        q, k, v = (
            weft.asarray(np.random.default_rng(i).normal(size=(1, 1, 5, width)).astype(np.float32)) for i in range(3)
        )
        graph = weft.make_graph(lambda q, k, v: weft.dot_product_attention(q, k, v), q, k, v)
        assert ("attention" in {n.op.name for n in graph.nodes}) == (width == 256)
        weights = np.exp(q.numpy() @ k.numpy().swapaxes(2, 3) / np.sqrt(width), dtype=np.float64)
        expected = weights / weights.sum(-1, keepdims=True) @ v.numpy()
        close(weft.jit(weft.dot_product_attention)(q, k, v).numpy(), expected, weft.float32, 4.0)


def test_operands_are_read_where_they_lie() -> None:
    """Heads of one product for queries, keys and values: no copies, and only what is read is computed."""
    x = weft.asarray(np.random.default_rng(0).normal(size=(2, 9, 3, 4, 8)).astype(np.float32))

    def heads(x: weft.Tensor) -> weft.Tensor:
        q, k, v = (weft.transpose(x[:, :, i], 1, 2) for i in range(3))
        return weft.dot_product_attention(q, k, v, causal=True)

    f = weft.jit(heads)
    expected = heads(weft.asarray(x.numpy())).numpy()
    close(f(x).numpy(), expected, weft.float32)
    kernels = f._for((x,), {}).executable.program.kernels
    assert [k.name for k in kernels if k.name == "attention"] == ["attention"]
    assert kernels[0].views[0].strides == (9 * 3 * 4 * 8, 3 * 4 * 8, 8, 1)


def test_memory_does_not_grow_with_queries_times_keys() -> None:
    loss = weft.grad(lambda q, k, v: (weft.dot_product_attention(q, k, v) ** 2).sum(), argnums=(0, 1, 2))
    sizes = []
    for length in (512, 1024):
        x = weft.zeros((1, 2, length, 8))
        f = weft.jit(loss)
        sizes.append(f._for((x, x, x), {}).executable.program.memory.arena)
    assert sizes[1] < 2.2 * sizes[0]
    assert sizes[1] < 1024 * 1024 * 4


def test_mixed_precision_rounds_queries_keys_values_and_gradients() -> None:
    """Masks and the log-sum-exp stay as they are, and users of the results read them in float32."""
    shapes = [Type(s, weft.float32) for s in ((2, 2, 5, 8), (2, 2, 7, 8), (5, 7))]
    loss = weft.grad(
        lambda q, k, m: (weft.dot_product_attention(q * 2.0, k * 2.0, k * 3.0, mask=m) ** 2).sum(), argnums=(0, 1, 2)
    )
    graph = check(precision(simplify(weft.make_graph(loss, *shapes)), weft.bfloat16))
    [forward], [backward] = (
        [n for n in graph.nodes if n.op.name == name] for name in ("attention", "attention_gradients")
    )
    assert [i.dtype.name for i in forward.inputs] == ["bfloat16"] * 3 + ["float32"]
    assert [i.dtype.name for i in backward.inputs] == ["bfloat16"] * 4 + ["float32", "bfloat16", "float32"]
    assert [t.dtype.name for t in forward.outputs] == ["bfloat16", "float32"]
    assert {o.dtype for o in graph.outputs} == {weft.float32}


def test_saved_programs_and_graphs_as_text_carry_it(tmp_path: Any) -> None:
    """For any batch and length, with its text and its versions."""
    layer = nn.MultiHeadAttention(8, 4, key_heads=2, rotary=True, window=3).eval()
    x = weft.asarray(np.random.default_rng(0).normal(size=(2, 6, 8)).astype(np.float32))
    spec = weft.TensorSpec(("batch", "time", 8), "float32")
    weft.save(tmp_path / "layer.weft", lambda x: layer(x, causal=True), (spec,))
    program = weft.load(tmp_path / "layer.weft")
    for length in (6, 4):
        close(program(x[:, :length]).numpy(), layer(x[:, :length], causal=True).numpy(), weft.float32)


def test_onnx_has_it_as_a_softmax(tmp_path: Any) -> None:
    onnx = pytest.importorskip("onnx")
    q = weft.asarray(np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(np.float32))
    attend = lambda q: weft.dot_product_attention(q, q, q, causal=True)  # noqa: E731
    weft.onnx.save(tmp_path / "attention.onnx", attend, q)
    assert "Softmax" in {node.op_type for node in onnx.load(tmp_path / "attention.onnx").graph.node}
    close(weft.onnx.load(tmp_path / "attention.onnx")(q).numpy(), attend(q).numpy(), weft.float32)


def test_examples_of_vmap_draw_their_own_numbers() -> None:
    """As those of the composite do."""
    x = weft.asarray(np.random.default_rng(0).normal(size=(3, 5, 4)).astype(np.float32))
    drawn = []
    for one in (
        lambda x: weft.dot_product_attention(x, x, x, dropout=0.5),
        lambda x: weft.dropout(weft.softmax(x @ x.mT * 0.5), 0.5) @ x,
    ):
        weft.seed(4)
        drawn.append(weft.vmap(one)(x).numpy())
    close(*drawn, weft.float32)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """A fake GPU, which runs our kernels under Triton's interpreter."""
    pytest.importorskip("triton")
    pytest.importorskip("fake_gpu").install(monkeypatch)
    with weft.knobs.set(device="cuda", cache=str(tmp_path)):
        yield


@pytest.mark.parametrize("name", cases("lower right, more keys", "lengths, upper left, mask", "all"))
def test_on_a_gpu(name: str, gpu: Any) -> None:
    assert_right(CASES[name], np.float16)


def test_other_dtypes_on_a_gpu(gpu: Any) -> None:
    assert_right(CASES["bias and slopes"], ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16, weft.float64], ids=lambda d: d.name)
def test_gpus_have_kernels_for_16_bit_floats(dtype: Any) -> None:
    """Others are decomposed into products and a softmax."""
    q = weft.zeros((1, 2, 4, 8), dtype=dtype)
    loss = weft.grad(lambda q: (weft.dot_product_attention(q, q, q) ** 2).sum())
    passed = gpu_passes(weft.jit(loss).artifact(q).graph, CompileOptions("cuda"))
    names = {node.op.name for node in list(passed.values())[-1].nodes}
    assert ({"attention", "attention_gradients"} <= names) == dtype.is_half


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_gpus_have_kernels_for_mixed_precision(precision: str) -> None:
    """The passes before the one that rounds operands know that it will."""
    q = weft.zeros((1, 2, 4, 8))
    loss = weft.grad(lambda q: (weft.dot_product_attention(q, q, q) ** 2).sum())
    passed = gpu_passes(weft.jit(loss, precision=precision).artifact(q).graph, CompileOptions("cuda", precision))
    found = {node.op.name: node.inputs[0].dtype.name for node in list(passed.values())[-1].nodes if node.inputs}
    assert found["attention"] == found["attention_gradients"] == precision
