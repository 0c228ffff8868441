"""Small networks as ONNX models, run eagerly and compiled, against the reference evaluator of the package `onnx`."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import weft
from weft import optim

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) * 0.5).astype(np.float32)


def model(
    nodes: list[Any], inputs: dict[str, Any], outputs: list[str], weights: dict[str, np.ndarray], opset: int = 20
) -> Any:
    ports = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "net", ports, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), name=f"{kind}_{outputs.split()[0]}", **attributes)


def cnn() -> Any:
    weights = {
        "conv1.weight": draw(8, 3, 3, 3), "conv1.bias": draw(8), "bn.weight": draw(8), "bn.bias": draw(8),
        "bn.running_mean": draw(8), "bn.running_var": np.abs(draw(8)) + 0.5, "dw.weight": draw(8, 1, 3, 3),
        "fc.weight": draw(5, 32), "fc.bias": draw(5), "minus_one": np.array([-1]), "zero": np.array(0),
    }  # fmt: skip
    nodes = [
        node("Conv", "x conv1.weight conv1.bias", "a", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "a bn.weight bn.bias bn.running_mean bn.running_var", "b"),
        node("Relu", "b", "c"),
        node("MaxPool", "c", "d", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "d dw.weight", "e", group=8, auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Add", "e e", "f"),
        node("AveragePool", "f", "g", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1]),
        # The shape arithmetic that exporters write for x.reshape(x.shape[0], -1).
        node("Shape", "g", "shape"),
        node("Gather", "shape zero", "batch"),
        node("Unsqueeze", "batch zero_axis", "batch1"),
        node("Concat", "batch1 minus_one", "target", axis=0),
        node("Reshape", "g target", "h"),
        node("Gemm", "h fc.weight fc.bias", "i", transB=1),
        node("Softmax", "i", "y"),
    ]
    return model(nodes, {"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, ["y"], {**weights, "zero_axis": np.array([0])})


def transformer() -> Any:
    width, heads = 16, 4
    weights = {f"w{k}": draw(width, width) for k in "qkvo"} | {
        "g1": draw(width) + 1, "b1": draw(width), "g2": draw(width) + 1, "b2": draw(width),
        "up": draw(width, 32), "up_bias": draw(32), "down": draw(32, width), "table": draw(50, width),
        "split": np.array([0, 0, heads, width // heads]), "joined": np.array([0, 0, width]),
        "scale": np.array(0.5, np.float32), "half": np.array(0.5, np.float32), "one": np.array(1.0, np.float32),
        "root": np.array(np.sqrt(2), np.float32),
    }  # fmt: skip
    nodes = [node("Gather", "table tokens", "x"), node("LayerNormalization", "x g1 b1", "n", epsilon=1e-5)]
    for k in "qkv":
        nodes += [node("MatMul", f"n w{k}", f"{k}0"), node("Reshape", f"{k}0 split", f"{k}1")]
        nodes.append(node("Transpose", f"{k}1", f"{k}2", perm=[0, 2, 3, 1] if k == "k" else [0, 2, 1, 3]))
    nodes += [
        node("MatMul", "q2 k2", "s0"), node("Mul", "s0 scale", "s1"), node("Softmax", "s1", "p", axis=-1),
        node("MatMul", "p v2", "o0"), node("Transpose", "o0", "o1", perm=[0, 2, 1, 3]), node("Reshape", "o1 joined", "o2"),
        node("MatMul", "o2 wo", "o3"), node("Add", "x o3", "r"), node("LayerNormalization", "r g2 b2", "m"),
        node("MatMul", "m up", "u0"), node("Add", "u0 up_bias", "u1"), node("Div", "u1 root", "e0"), node("Erf", "e0", "e1"),
        node("Add", "e1 one", "e2"), node("Mul", "u1 e2", "e3"), node("Mul", "e3 half", "e4"),
        node("MatMul", "e4 down", "d"), node("Add", "r d", "y"),
    ]  # fmt: skip
    return model(nodes, {"tokens": (TensorProto.INT64, ["n", "time"])}, ["y"], weights)


def lstm() -> Any:
    weights = {
        "w": draw(2, 32, 4), "r": draw(2, 32, 8), "b": draw(2, 64), "back": draw(1, 24, 16), "rr": draw(1, 24, 8),
        "shape": np.array([0, 0, -1]),
    }  # fmt: skip
    nodes = [
        node("LSTM", "x w r b", "y h c", hidden_size=8, direction="bidirectional"),
        node("Transpose", "y", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t shape", "u"),
        node("GRU", "u back rr", "v last", hidden_size=8, linear_before_reset=1),
    ]
    return model(nodes, {"x": (TensorProto.FLOAT, ["time", "n", 4])}, ["v", "last", "c"], weights)


def quantized() -> Any:
    weights = {
        "s": np.array(0.05, np.float32), "z": np.array(128, np.uint8), "ws": np.abs(draw(6)) / 50 + 0.01,
        "wz": np.zeros(6, np.int8), "w": RNG.integers(-127, 127, (6, 3, 3, 3)).astype(np.int8),
        "qs": np.array(0.02, np.float32), "fw": RNG.integers(-127, 127, (24, 4)).astype(np.int8), "fz": np.array(3, np.int8),
        "b": RNG.integers(-500, 500, 6).astype(np.int32), "axis": np.array([2, 3]),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("QLinearConv", "xq s z w ws wz s z b", "y1", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("DequantizeLinear", "y1 s z", "f"),
        node("DequantizeLinear", "w ws wz", "wf", axis=0),  # as in QDQ models: folded into a constant
        node("Conv", "x wf", "f2", pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Add", "f f2", "g"),
        node("ReduceMax", "g axis", "h", keepdims=0),
        node("Concat", "h h h h", "i", axis=1),
        node("DynamicQuantizeLinear", "i", "iq is iz"),
        node("MatMulInteger", "iq fw iz fz", "j"),
        node("Cast", "j", "k", to=TensorProto.FLOAT),
        node("Mul", "k is", "y"),
    ]
    return model(nodes, {"x": (TensorProto.FLOAT, ["n", 3, 6, 6])}, ["y"], weights)


def numbers(*shape: int) -> np.ndarray:
    return draw(*shape) * 2


MODELS = {
    "cnn": (cnn, lambda n: [numbers(n, 3, 8, 8)]),
    "transformer": (transformer, lambda n: [RNG.integers(0, 50, (n, 3 + n))]),
    "lstm": (lstm, lambda n: [numbers(3 + n, n, 4)]),
    "quantized": (quantized, lambda n: [numbers(n, 3, 6, 6)]),
}


def expected(proto: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(proto).run(None, dict(zip([i.name for i in proto.graph.input], inputs, strict=True)))


def as_list(result: Any) -> list[np.ndarray]:
    return [r.numpy() for r in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("name", MODELS)
def test_eager_and_compiled_at_two_batch_sizes(name: str) -> None:
    build, inputs = MODELS[name]
    proto = build()
    net = weft.onnx.loads(proto.SerializeToString())
    compiled = weft.jit(net)
    for batch in (2, 3):
        given = inputs(batch)
        want = expected(proto, given)
        for run in (net, compiled, compiled):
            for got, wanted in zip(as_list(run(*given)), want, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_weights_have_their_names_and_train() -> None:
    net = weft.onnx.loads(cnn().SerializeToString())
    assert "conv1.weight" in net.named_parameters()
    assert set(net.named_state()) == {"bn.running_mean", "bn.running_var"}
    assert str(net.inputs[0]) == "x: float32[n, 3, 8, 8]"
    optimizer = optim.adam(net, rate=1e-2)

    @weft.jit
    def step(x: Any, y: Any) -> Any:
        loss = weft.mse_loss(net(x), y)
        optimizer.minimize(loss)
        return loss

    x, y = numbers(4, 3, 8, 8), np.eye(5, dtype=np.float32)[[0, 1, 2, 3]]
    losses = [step(x, y).item() for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]


def test_names_are_made_plain_and_mapped_back() -> None:
    weights = {"/fc/W:0": draw(3, 2), "forward": draw(2), "_0": draw(2)}
    nodes = [node("MatMul", "x /fc/W:0", "a"), node("Add", "a forward", "b"), node("Mul", "b _0", "y")]
    net = weft.onnx.loads(model(nodes, {"x": (TensorProto.FLOAT, ["n", 3])}, ["y"], weights).SerializeToString())
    assert net.onnx_names == {"fc_W_0": "/fc/W:0", "forward_2": "forward", "w0": "_0"}
    x = numbers(2, 3)
    np.testing.assert_allclose(net(x).numpy(), (x @ weights["/fc/W:0"] + weights["forward"]) * weights["_0"], rtol=1e-5)


CONTROL = """
<ir_version: 9, opset_import: ["": 20]>
net (float[n] x, int64 count, bool high) => (float[n] y, float[n] z)
{
    true = Constant <value = bool {1}> ()
    y = Loop (count, true, x) <body = b (int64 i, bool go, float[n] v) => (bool on, float[n] w) {
        two = Constant <value = float {2.0}> ()
        limit = Constant <value = float {100.0}> ()
        w = Mul (v, two)
        top = ReduceMax <keepdims = 0> (w)
        on = Less (top, limit)
    }>
    z = If (high) <then_branch = t () => (float[n] p) { p = Exp (x) }, else_branch = e () => (float[n] q) { q = Neg (x) }>
}
"""


@pytest.mark.parametrize(("count", "high"), [(3, True), (1000, False), (0, True)])
def test_control_flow_that_depends_on_arguments(count: int, high: bool) -> None:
    net = weft.onnx.loads(onnx.parser.parse_model(CONTROL).SerializeToString())
    x = np.array([1.0, 3.0], np.float32)
    y = x.copy()
    for _ in range(count):
        y = y * 2
        if not y.max() < 100:
            break
    for run in (net, weft.jit(net)):
        got = as_list(run(x, np.array(count), np.array(high)))
        np.testing.assert_allclose(got[0], y)
        np.testing.assert_allclose(got[1], np.exp(x) if high else -x, rtol=1e-6)


LONG_LOOP = """
<ir_version: 9, opset_import: ["": 20]>
net (float[2] x) => (float[2] y, float[40, 2] all)
<int64 trips = {40}, bool go = {1}, float[1] rate = {0.5}>
{
    y, all = Loop (trips, go, x) <body = step (int64 i, bool c, float[2] v) => (bool on, float[2] w, float[2] kept) {
        on = CONDITION
        number = Cast <to = 1> (i)
        scaled = Mul (v, rate)
        w = Add (scaled, number)
        kept = Identity (w)
    }>
}
"""


@pytest.mark.parametrize(("condition", "has_scan"), [("Identity (c)", True), ("Less (i, trips)", False)])
@pytest.mark.parametrize("unrolled", [32, 64])
def test_a_long_loop_is_a_scan_unless_a_condition_may_end_it(
    condition: str, has_scan: bool, unrolled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.onnx.ops.control_flow.LONGEST_UNROLLED", unrolled)
    net = weft.onnx.loads(onnx.parser.parse_model(LONG_LOOP.replace("CONDITION", condition)).SerializeToString())
    x = numbers(2)
    values = [x]
    for i in range(40):
        values.append(values[-1] * np.float32(0.5) + i)
    for run in (net, weft.jit(net)):
        last, every = as_list(run(x))
        np.testing.assert_allclose(last, values[-1], rtol=1e-6)
        np.testing.assert_allclose(every, np.stack(values[1:]), rtol=1e-6)
    ops = [node.op.name for node in weft.jit(net).artifact(x).graph.nodes]
    assert ("scan" in ops) == (has_scan and unrolled < 40)


MODES = """
<ir_version: 9, opset_import: ["": 20]>
net (float[n] x, bool wide) => (float[m] y)
<float[2] two = {1.0, 2.0}, float[3] three = {1.0, 2.0, 3.0}>
{ y = If (wide) <then_branch = t () => (float[3] p) { p = Add (x, three) }, else_branch = e () => (float[2] q) { q = Add (x, two) }> }
"""


def test_branches_that_fit_only_some_arguments_need_a_condition_that_is_known() -> None:
    net = weft.onnx.loads(onnx.parser.parse_model(MODES).SerializeToString())
    x = np.zeros(3, np.float32)
    with pytest.raises(weft.UserError, match=r"Give the argument that decides as a constant: weft.jit\(lambda x"):
        weft.jit(net)(x, np.array(True))
    assert weft.jit(lambda x: net(x, np.array(True)))(x).tolist() == [1.0, 2.0, 3.0]


SCAN = """
<ir_version: 9, opset_import: ["": 20]>
net (float[2] start, float[t, 2] xs) => (float[2] last, float[t, 2] sums)
{
    last, sums = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = b (float[2] s, float[2] x) => (float[2] n, float[2] o) {
        n = Add (s, x)
        o = Identity (n)
    }> (start, xs)
}
"""


def test_scan() -> None:
    net = weft.onnx.loads(onnx.parser.parse_model(SCAN).SerializeToString())
    start, xs = numbers(2), numbers(5, 2)
    sums = start + np.cumsum(xs[::-1], 0)
    for run in (net, weft.jit(net)):
        last, got = as_list(run(start, xs))
        np.testing.assert_allclose(got, sums, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(last, sums[-1], rtol=1e-5, atol=1e-6)


FUNCTIONS = """
<ir_version: 9, opset_import: ["": 20, "own": 1]>
net (float[n] x) => (float[n] y) { h = own.scaled <factor = 3.0> (x)  y = own.scaled (h) }
<domain: "own", opset_import: ["": 20]>
scaled <factor: float = 2.0> (a) => (b) { f = Constant <value_float: float = @factor> ()  b = Mul (a, f) }
"""


def test_functions_of_the_model() -> None:
    net = weft.onnx.loads(onnx.parser.parse_model(FUNCTIONS).SerializeToString())
    assert net(np.array([1.0, 2.0], np.float32)).tolist() == [6.0, 12.0]


@pytest.mark.parametrize("kind", ["NonZero", "Unique", "Compress", "NonMaxSuppression"])
def test_shapes_that_depend_on_values_exist_without_jit_only(kind: str) -> None:
    inputs = {
        "NonZero": [numbers(3, 4)], "Unique": [np.array([3.0, 1, 3], np.float32)],
        "Compress": [numbers(4), np.array([True, False, True, True])],
        "NonMaxSuppression": [np.array([[[0, 0, 1, 1], [0, 0, 1, 1.1]]], np.float32), np.array([[[0.9, 0.8]]], np.float32), np.array([5]), np.array([0.5], np.float32), np.array([0.1], np.float32)],
    }[kind]  # fmt: skip
    names = [f"x{i}" for i in range(len(inputs))]
    ports = {n: (helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in zip(names, inputs, strict=True)}
    proto = model([node(kind, " ".join(names), "y")], ports, ["y"], {})
    net = weft.onnx.loads(proto.SerializeToString())
    assert net(*inputs).numpy().tolist() == expected(proto, inputs)[0].tolist()
    with pytest.raises(weft.UserError, match=r"not known while a function is traced.*without weft.jit.*Node " + kind):
        weft.jit(net)(*inputs)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats(dtype: str) -> None:
    code = helper.np_dtype_to_tensor_dtype(weft.zeros(1, dtype=dtype).numpy().dtype)
    weight = draw(4, 3).astype(weft.zeros(1, dtype=dtype).numpy().dtype)
    nodes = [node("MatMul", "x w", "a"), node("LayerNormalization", "a g", "b"), node("Softmax", "b", "y")]
    gains = np.ones(3, weight.dtype)
    proto = model(nodes, {"x": (code, ["n", 4])}, ["y"], {"w": weight, "g": gains})
    proto.graph.output[0].type.tensor_type.elem_type = code
    net = weft.onnx.loads(proto.SerializeToString())
    x = numbers(2, 4).astype(weight.dtype)
    a = x.astype(np.float64) @ weight.astype(np.float64)
    b = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
    want = np.exp(b) / np.exp(b).sum(-1, keepdims=True)
    for run in (net, weft.jit(net)):
        got = run(x)
        assert got.dtype.name == dtype
        np.testing.assert_allclose(got.numpy().astype(np.float64), want, rtol=0.01 if dtype == "float16" else 0.06)


def in_8_bits(x: np.ndarray) -> np.ndarray:
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return ((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)


@pytest.mark.parametrize("per_gate", [False, True])
def test_the_quantized_lstm_of_onnx_runtime(per_gate: bool) -> None:
    features, hidden, count = 3, 4, (1, 16) if per_gate else (1,)
    whole = {n: RNG.integers(-127, 127, (1, rows, 16)).astype(np.int8) for n, rows in (("w", features), ("r", hidden))}
    scales = {n: (RNG.random(count) * 0.01 + 0.002).astype(np.float32) for n in ("ws", "rs")}
    zeros = {n: np.full(count, 3, np.int8) for n in ("wz", "rz")}
    node = helper.make_node(
        "DynamicQuantizeLSTM", ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"], ["y"],
        domain="com.microsoft", hidden_size=hidden,
    )  # fmt: skip
    proto = model([node], {"x": (TensorProto.FLOAT, ["t", 1, features])}, ["y"], whole | scales | zeros)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = draw(5, 1, features)
    w, r = (((whole[n].astype(np.float32) - 3) * scales[f"{n}s"].reshape(1, 1, -1))[0] for n in "wr")
    h = c = np.zeros((1, hidden), np.float32)
    expected = []
    for now in in_8_bits(x):
        i, o, f, g = np.split(now @ w + (in_8_bits(h) if h.any() else h) @ r, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        expected.append(h)
    net = weft.onnx.loads(proto.SerializeToString())
    for run in (net, weft.jit(net)):
        np.testing.assert_allclose(run(x).numpy()[:, 0], np.stack(expected), rtol=1e-4, atol=1e-6)


def run_op(path: Any, kind: str, inputs: dict[str, np.ndarray], **attributes: Any) -> np.ndarray:
    """One op of all its inputs."""
    types = {name: (helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for name, v in inputs.items()}
    constants = {name: v for name, v in inputs.items() if name != "x"}
    proto = model([node(kind, " ".join(inputs), "y", **attributes)], {"x": types["x"]}, ["y"], constants)
    onnx.save(proto, path / "op.onnx")
    return np.asarray(weft.onnx.load(path / "op.onnx")(weft.asarray(inputs["x"])))


def test_a_slice_backwards_begins_inside(tmp_path: Any) -> None:
    """A start before the first element is clamped to it, unlike in Python, where nothing is left."""
    ends = np.array([-(2**31)])
    for start, expected in ((-8, [0.0]), (-5, [0.0]), (-4, [1.0, 0.0]), (9, [4.0, 3.0, 2.0, 1.0, 0.0])):
        facts = {"starts": np.array([start]), "ends": ends, "axes": np.array([0]), "steps": np.array([-1])}
        assert run_op(tmp_path, "Slice", {"x": np.arange(5, dtype=np.float32), **facts}).tolist() == expected


def test_cubic_samples_beyond_the_border_weigh_the_border(tmp_path: Any) -> None:
    """The position keeps its weights; each of its four elements is clipped."""
    x = np.array([2.0, 5.0, 3.0], np.float32)
    place = -0.3  # among the columns; t = 0.7 behind element -1
    weights = [cubic_weight(place - i) for i in range(-2, 2)]
    grid = np.array([[[[(2 * place + 1) / 3 - 1, 0.0]]]], np.float32)
    y = run_op(tmp_path, "GridSample", {"x": x.reshape(1, 1, 1, 3), "grid": grid}, mode="cubic", padding_mode="border")
    assert np.allclose(y, np.dot(weights, x[[0, 0, 0, 1]]), atol=1e-5)


def cubic_weight(distance: float) -> float:
    d, a = abs(distance), -0.75
    return ((a + 2) * d - (a + 3)) * d * d + 1 if d <= 1 else ((a * d - 5 * a) * d + 8 * a) * d - 4 * a


def test_a_size_of_zero(tmp_path: Any) -> None:
    """Sizes are rounded down: half of one line is none."""
    x, scales = draw(1, 1, 1, 4), np.array([1, 1, 0.5, 2], np.float32)
    for mode in ("nearest", "linear", "cubic"):
        y = run_op(tmp_path, "Resize", {"x": x, "roi": np.zeros(0, np.float32), "scales": scales}, mode=mode)
        assert y.shape == (1, 1, 0, 8)


def test_a_reduction_of_no_integers_gives_integers(tmp_path: Any) -> None:
    y = run_op(tmp_path, "ReduceLogSumExp", {"x": np.zeros((2, 0), np.int64), "axes": np.array([1])}, keepdims=0)
    assert (y.dtype, y.shape) == (np.int64, (2,))


def test_zeros_have_levels_of_a_distance_of_one() -> None:
    nodes = [node("DynamicQuantizeLinear", "x", "y scale zero")]
    net = weft.onnx.loads(model(nodes, {"x": (TensorProto.FLOAT, [3])}, ["y", "scale", "zero"], {}).SerializeToString())
    assert [found.tolist() for found in net(weft.zeros(3))] == [[0, 0, 0], 1.0, 0]
    y, scale, zero = net(weft.asarray([-1.0, 0.0, 4.1]))
    assert (y.tolist(), zero.item()) == ([0, 50, 255], 50)
    assert np.isclose(scale.item(), 5.1 / 255)


def test_a_thresholded_relu_between_steps_keeps_its_threshold(tmp_path: Any) -> None:
    """x >= alpha in recurrent ops, x > alpha in the op ThresholdedRelu; clipped values often are the threshold."""
    x, weights = np.full((1, 1, 1), 3, np.float32), np.ones((1, 1, 1), np.float32)
    settings = {"activations": ["ThresholdedRelu"], "clip": 1.0, "hidden_size": 1}
    assert run_op(tmp_path, "RNN", {"x": x, "w": weights, "r": weights}, **settings).tolist() == [[[[1.0]]]]


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_sequence_without_elements_ends_in_zeros(kind: str, gates: int) -> None:
    """As in ONNX Runtime; the specification does not say it."""
    weights = {
        "w": draw(1, 2 * gates, 3),
        "r": draw(1, 2 * gates, 2),
        "lengths": np.array([2, 0], np.int32),
        "h": draw(1, 2, 2),
    }
    nodes = [helper.make_node(kind, ["x", "w", "r", "", "lengths", "h"], ["y", "last"], hidden_size=2)]
    net = weft.onnx.loads(
        model(nodes, {"x": (TensorProto.FLOAT, [2, 2, 3])}, ["y", "last"], weights).SerializeToString()
    )
    y, last = (np.asarray(found) for found in net(weft.asarray(draw(2, 2, 3))))
    assert y[:, 0, 0].all()
    assert not y[:, 0, 1].any()
    assert np.array_equal(last[0, 0], y[1, 0, 0])
    assert not last[0, 1].any()


def test_arithmetic_of_shapes_is_saved_for_every_size(tmp_path: Any) -> None:
    """Exporters make zero states and positions by arithmetic of shapes."""
    net = weft.onnx.loads(onnx.parser.parse_model(ZERO_STATE).SerializeToString())
    weft.save(tmp_path / "net.weft", net, weft.TensorSpec(("batch", "time", 3)))
    again = weft.load(tmp_path / "net.weft").eval()
    for batch, time in ((1, 1), (4, 5)):
        x = weft.asarray(draw(time, batch, 3).swapaxes(0, 1))
        for mine, loaded in zip(net(x), again(x), strict=True):
            assert np.array_equal(np.asarray(mine), np.asarray(loaded))


ZERO_STATE = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[n, t, 3] x) => (float[n, t, 3] y, int64[t] places)
<float[3] step = {0.5, 0.25, 2.0}, int64 first = {0}, int64 next = {1}> {
  shape = Shape(x)
  time = Gather (shape, next)
  zero = ConstantOfShape(shape)
  scaled = Mul(x, step)
  y = Add(scaled, zero)
  places = Range(first, time, next)
}
"""
