"""Attention that a model spells out is one op after import, with the numbers of its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx import numpy_helper as arrays
from onnx.reference import ReferenceEvaluator

import weft
from weft import nn

Spelling = Callable[["Writer"], str]


class Writer:
    """Collects the nodes of a model whose inputs are q, k and v."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def __call__(self, op: str, *inputs: Any, **attributes: Any) -> str:
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [name], **attributes))
        return name

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(arrays.from_array(np.asarray(value), name))
        return name

    def model(self, result: str, inputs: dict[str, np.ndarray]) -> bytes:
        given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n, x in inputs.items()]
        graph = helper.make_graph(
            self.nodes, "g", given, [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)], self.constants
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])

        return bytes(made.SerializeToString())


def f32(x: float) -> np.ndarray:
    return np.asarray(x, np.float32)


def by_matmul(w: Writer) -> str:
    """As torch exports it: (batch, heads, time, features), a scaled product with transposed keys."""
    scores = w("Mul", w("MatMul", "q", w("Transpose", "k", perm=[0, 1, 3, 2])), f32(0.3))
    return w("MatMul", w("Softmax", scores, axis=-1), "v")


def by_division(w: Writer) -> str:
    """Queries are scaled as well, and scores divided."""
    scores = w("Div", w("MatMul", w("Mul", "q", f32(0.5)), w("Transpose", "k", perm=[0, 1, 3, 2])), f32(2.5))
    return w("MatMul", w("Softmax", scores, axis=3), "v")


def by_einsum(w: Writer) -> str:
    """(batch, time, heads, features), with the result moved to (batch, time, features)."""
    scores = w("Einsum", "q", "k", equation="bqhd,bkhd->bhqk")
    made = w("Einsum", w("Softmax", scores, axis=-1), "v", equation="bhqk,bkhd->bqhd")
    return w("Reshape", made, np.asarray([0, 0, -1]))


def keys_first(w: Writer) -> str:
    """Scores as (batch, heads, keys, queries), normalized along the keys."""
    scores = w("MatMul", "k", w("Transpose", "q", perm=[0, 1, 3, 2]))
    weights = w("Transpose", w("Softmax", scores, axis=2), perm=[0, 1, 3, 2])
    return w("MatMul", weights, "v")


def without_heads(w: Writer) -> str:
    q, k, v = (w("Reshape", x, np.asarray([-1, s, 8])) for x, s in (("q", 5), ("k", 7), ("v", 7)))
    return w("MatMul", w("Softmax", w("MatMul", q, w("Transpose", k, perm=[0, 2, 1])), axis=-1), v)


HEADS_FIRST = {"q": (2, 3, 5, 8), "k": (2, 3, 7, 8), "v": (2, 3, 7, 8)}
TIME_FIRST = {"q": (2, 5, 3, 8), "k": (2, 7, 3, 8), "v": (2, 7, 3, 4)}
FUSED: list[tuple[Spelling, dict[str, tuple[int, ...]]]] = [
    (by_matmul, HEADS_FIRST),
    (by_matmul, {"q": (1, 3, 5, 8), "k": (1, 3, 7, 8), "v": (1, 3, 7, 9)}),  # axes of size 1
    (by_matmul, {"q": (2, 1, 5, 8), "k": (2, 1, 7, 8), "v": (2, 1, 7, 8)}),
    (by_matmul, {"q": (2, 3, 1, 8), "k": (2, 3, 7, 8), "v": (2, 3, 7, 8)}),
    (by_matmul, {"q": (2, 3, 5, 8), "k": (2, 3, 5, 8), "v": (2, 3, 5, 8)}),  # axes of the same size
    (by_matmul, {"q": (5, 5, 5, 5), "k": (5, 5, 5, 5), "v": (5, 5, 5, 5)}),
    (by_division, HEADS_FIRST),
    (by_einsum, TIME_FIRST),
    (by_einsum, {"q": (4, 4, 4, 4), "k": (4, 4, 4, 4), "v": (4, 4, 4, 4)}),
    (keys_first, HEADS_FIRST),
    (without_heads, HEADS_FIRST),
]


@pytest.mark.parametrize(("spelling", "shapes"), FUSED)
def test_attention_is_one_op(spelling: Spelling, shapes: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    loaded, inputs, wanted = imported(spelling, shapes, tmp_path)
    assert ops(loaded, inputs)["attention"] == 1
    np.testing.assert_allclose(weft.jit(loaded)(*inputs).numpy(), wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loaded(*inputs).numpy(), wanted, rtol=1e-5, atol=1e-6)


def other_axis(w: Writer) -> str:
    """Normalized along the queries."""
    scores = w("MatMul", "q", w("Transpose", "k", perm=[0, 1, 3, 2]))
    return w("MatMul", w("Softmax", scores, axis=2), "v")


def with_mask(w: Writer) -> str:
    scores = w("Add", w("MatMul", "q", w("Transpose", "k", perm=[0, 1, 3, 2])), np.arange(7, dtype=np.float32))
    return w("MatMul", w("Softmax", scores, axis=-1), "v")


def shared_values(w: Writer) -> str:
    """The results of all heads are summed."""
    scores = w("MatMul", "q", w("Transpose", "k", perm=[0, 1, 3, 2]))
    return w("Einsum", w("Softmax", scores, axis=-1), "v", equation="bhqk,bhkd->bqd")


def two_rows(w: Writer) -> str:
    """Heads of queries that all attend to the same keys."""
    k, v = (w("Reshape", x, np.asarray([2, 21, 8])) for x in ("k", "v"))
    scores = w("Einsum", "q", k, equation="bgqd,bkd->bgqk")
    return w("Einsum", w("Softmax", scores, axis=-1), v, equation="bgqk,bkd->bgqd")


def other_divisor(w: Writer) -> str:
    """Normalized by a sum of something else."""
    scores = w("MatMul", "q", w("Transpose", "k", perm=[0, 1, 3, 2]))
    raised = w("Exp", w("Sub", scores, w("ReduceMax", scores, np.asarray([-1]), keepdims=1)))
    return w("MatMul", w("Div", raised, w("ReduceSum", w("Exp", scores), np.asarray([-1]), keepdims=1)), "v")


def two_axes_of_features(w: Writer) -> str:
    q, k = (w("Reshape", x, np.asarray([0, 0, 0, 4, 2])) for x in "qk")
    scores = w("Einsum", q, k, equation="bhqde,bhkde->bhqk")
    return w("MatMul", w("Softmax", scores, axis=-1), "v")


def times_zero(w: Writer) -> str:
    scores = w("Mul", w("MatMul", "q", w("Transpose", "k", perm=[0, 1, 3, 2])), f32(0.0))
    return w("MatMul", w("Softmax", scores, axis=-1), "v")


@pytest.mark.parametrize(
    "spelling", [other_axis, with_mask, shared_values, two_rows, other_divisor, times_zero, two_axes_of_features]
)
def test_what_is_not_attention_stays(spelling: Spelling, tmp_path: Path) -> None:
    loaded, inputs, wanted = imported(spelling, HEADS_FIRST, tmp_path)
    assert ops(loaded, inputs)["attention"] == 0
    np.testing.assert_allclose(weft.jit(loaded)(*inputs).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_wide_heads_stay(tmp_path: Path) -> None:
    shapes = dict.fromkeys("qkv", (1, 2, 3, 300))
    loaded, inputs, _ = imported(by_matmul, shapes, tmp_path)
    assert ops(loaded, inputs)["attention"] == 0


@pytest.mark.parametrize("axis", range(4))
def test_empty_operands(axis: int, tmp_path: Path) -> None:
    sizes = [2, 3, 5, 8]
    sizes[axis] = 0
    loaded, inputs, wanted = imported(by_matmul, dict.fromkeys("qkv", tuple(sizes)), tmp_path)
    assert weft.jit(loaded)(*inputs).shape == wanted.shape


def test_a_saved_import_takes_any_batch(tmp_path: Path) -> None:
    layer = nn.MultiHeadAttention(16, 4).eval()
    x = np.random.default_rng(0).normal(size=(5, 6, 16)).astype(np.float32)
    weft.onnx.save(tmp_path / "a.onnx", layer, weft.asarray(x[:1]))
    weft.save(tmp_path / "a.weft", weft.load(tmp_path / "a.onnx"), weft.asarray(x[:1]))
    program = weft.load(tmp_path / "a.weft")
    for batch in (1, 2, 5):
        wanted = layer(weft.asarray(x[:batch])).numpy()
        np.testing.assert_allclose(program(weft.asarray(x[:batch])).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_gradients_of_imported_attention(tmp_path: Path) -> None:
    loaded, inputs, _ = imported(by_matmul, HEADS_FIRST, tmp_path)

    def parts(q: Any, k: Any, v: Any) -> Any:
        return weft.softmax(q @ weft.swapaxes(k, -1, -2) * 0.3) @ v

    def loss(f: Any) -> Any:
        return lambda *xs: (f(*xs) ** 2).sum()

    tensors = [weft.asarray(x) for x in inputs]
    for found, wanted in zip(*(weft.grad(loss(f), argnums=(0, 1, 2))(*tensors) for f in (loaded, parts)), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_exported_attention_comes_back_as_one_op(tmp_path: Path) -> None:
    layer = nn.MultiHeadAttention(16, 4).eval()
    x = weft.asarray(np.random.default_rng(0).normal(size=(2, 6, 16)).astype(np.float32))
    wanted = layer(x).numpy()
    weft.onnx.save(tmp_path / "a.onnx", layer, x)
    loaded = weft.load(tmp_path / "a.onnx")
    assert ops(loaded, [x])["attention"] == 1
    np.testing.assert_allclose(loaded(x).numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rotary", [False, True])
def test_a_layer_with_sizes_of_its_own_is_saved_and_exported(rotary: bool, tmp_path: Path) -> None:
    """As a program and as ONNX, with the lengths of the sequences as an input."""
    layer = nn.MultiHeadAttention(6, 4, key_heads=2, head_size=4, value_size=3, rotary=rotary).eval()
    rng, lengths = np.random.default_rng(0), np.array([3, 5], np.int64)
    x, context = (rng.normal(size=(2, n, 6)).astype(np.float32) for n in (4, 5))

    class Padded(nn.Module):
        def __init__(self) -> None:
            self.attention = layer

        def forward(self, x: Any, context: Any, lengths: Any) -> Any:
            return self.attention(x, context, causal=True, key_lengths=lengths)

    given = x, context, lengths
    wanted = Padded()(*map(weft.asarray, given)).numpy()
    weft.save(tmp_path / "a.weft", Padded().eval(), tuple(map(weft.asarray, given)), dynamic=False)
    weft.onnx.save(tmp_path / "a.onnx", Padded().eval(), tuple(map(weft.asarray, given)))
    for name in ("a.weft", "a.onnx"):
        found = weft.load(tmp_path / name)(*map(weft.asarray, given)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    model = onnx.load(tmp_path / "a.onnx")
    (found,) = ReferenceEvaluator(model).run(None, dict(zip([i.name for i in model.graph.input], given, strict=True)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def imported(
    spelling: Spelling, shapes: dict[str, tuple[int, ...]], folder: Path
) -> tuple[Any, list[np.ndarray], np.ndarray]:
    """The model, inputs, and what onnx's own reference makes of them."""
    rng = np.random.default_rng(1)
    inputs = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    writer = Writer()
    result = spelling(writer)
    model = writer.model(result, inputs)
    (folder / "m.onnx").write_bytes(model)
    (wanted,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, inputs)
    return weft.load(folder / "m.onnx"), list(inputs.values()), wanted


def ops(function: Any, inputs: Any) -> Counter[str]:
    """How often each op occurs in the traced graph."""
    lines = str(weft.jit(function).text(*inputs)).splitlines()
    return Counter(line.partition(" = ")[2].partition("(")[0] for line in lines)
