"""Networks and functions as ONNX models: checked, run by the reference evaluator of the package `onnx`, and imported again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import weft
from weft import TensorSpec, compress, nn, zoo
from weft.ops import window as primitives
from weft.testing import generator
from weft.tree import flatten

RNG = generator("onnx export")


def draw(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def exported(
    path: Path,
    model: Callable[..., Any],
    inputs: Any,
    *calls: tuple[np.ndarray, ...],
    has_reference: bool = True,
    **options: Any,
) -> Any:
    """The model, after its results were compared: in the reference evaluator and imported again."""
    weft.onnx.save(path, model, inputs, **options)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    again = weft.onnx.load(path)
    evaluator = ReferenceEvaluator(proto) if has_reference else None
    for call in calls:
        expected = [t.numpy() for t in flatten(model(*map(weft.asarray, call)))[0]]
        results = [[t.numpy() for t in flatten(again(*call))[0]]]
        if evaluator is not None:
            results.append(evaluator.run(None, dict(zip([i.name for i in proto.graph.input], call, strict=True))))
        for found in results:
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                assert (np.shape(a), np.asarray(a).dtype) == (b.shape, b.dtype)
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(np.abs(b).max(initial=0), 1e-30))
    return proto


def op_types(proto: Any) -> list[str]:
    return [node.op_type for node in proto.graph.node]


# --- layers --------------------------------------------------------------------------------------------------------------


def test_a_convolutional_network_is_written_as_layers(tmp_path: Path) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), nn.Softmax(),
    )  # fmt: skip
    net.train()
    net(weft.asarray(draw(8, 3, 8, 8) + 1))  # running statistics other than 0 and 1
    proto = exported(
        tmp_path / "net.onnx", net.eval(), weft.zeros((1, 3, 8, 8)), (draw(2, 3, 8, 8),), (draw(1, 3, 8, 8),)
    )
    assert op_types(proto) == [
        "Conv", "BatchNormalization", "Relu", "MaxPool", "AveragePool", "Flatten", "Gemm", "LayerNormalization", "Gelu", "Gemm", "Softmax",
    ]  # fmt: skip
    assert {t.name for t in proto.graph.initializer} == set(net.named_tensors())
    assert (proto.graph.input[0].name, proto.graph.output[0].name) == ("input", "output")
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_a_network_in_training_mode_is_exported_for_evaluation_and_stays_as_it_was(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    weft.onnx.save(tmp_path / "net.onnx", net, weft.zeros((1, 4)))
    assert op_types(onnx.load(tmp_path / "net.onnx")) == ["Gemm"]
    assert net.training


ACTIVATIONS: list[tuple[nn.Module, list[str]]] = [
    (nn.ReLU(), ["Relu"]),
    (nn.ReLU6(), ["Clip"]),
    (nn.LeakyReLU(0.2), ["LeakyRelu"]),
    (nn.PReLU(), ["PRelu"]),
    (nn.ELU(0.7), ["Elu"]),
    (nn.GELU(), ["Gelu"]),
    (nn.GELU(approximate=True), ["Gelu"]),
    (nn.Softplus(), ["Softplus"]),
    (nn.Softmax(), ["Softmax"]),
    (nn.LogSoftmax(), ["LogSoftmax"]),
    (nn.SiLU(), ["Sigmoid", "Mul"]),
    (nn.Tanh(), ["Tanh"]),
]


@pytest.mark.parametrize(("layer", "ops"), ACTIVATIONS, ids=lambda value: type(value).__name__)
def test_activations(tmp_path: Path, layer: nn.Module, ops: list[str]) -> None:
    proto = exported(tmp_path / "net.onnx", layer.eval(), weft.zeros((1, 5)), (3 * draw(2, 5),))
    assert op_types(proto) == ops


def test_gelu_before_opset_20_is_written_by_erf(tmp_path: Path) -> None:
    proto = exported(tmp_path / "net.onnx", nn.GELU(), weft.zeros((1, 5)), (draw(2, 5),), opset=18)
    assert "Erf" in op_types(proto)
    assert proto.opset_import[0].version == 18


LAYERS: list[tuple[nn.Module, tuple[int, ...], list[str]]] = [
    (nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 4, 5), ["ConvTranspose"]),
    (nn.Conv1d(4, 6, 3, groups=2, dilation=2), (4, 9), ["Conv"]),
    (nn.Linear(4, 3), (2, 4), ["Transpose", "MatMul", "Add"]),
    (nn.GlobalAvgPool(), (3, 4, 5), ["ReduceMean"]),
    (nn.LRN(5), (7, 2, 3), ["LRN"]),
]


@pytest.mark.parametrize(("layer", "shape", "ops"), LAYERS, ids=lambda value: type(value).__name__)
def test_layers(tmp_path: Path, layer: nn.Module, shape: tuple[int, ...], ops: list[str]) -> None:
    # The reference evaluator computes LRN only of batches that are as large as the number of channels.
    proto = exported(tmp_path / "net.onnx", layer.eval(), weft.zeros((1, *shape)), (draw(7, *shape),))
    assert op_types(proto) == ops


# --- networks ------------------------------------------------------------------------------------------------------------


def test_lenet(tmp_path: Path) -> None:
    net = zoo.lenet5(classes=10).eval()
    proto = exported(tmp_path / "net.onnx", net, weft.zeros((1, 1, 28, 28)), (draw(2, 1, 28, 28),))
    assert op_types(proto) == ["Conv", "MaxPool", "Conv", "MaxPool", "Flatten", "Gemm", "Relu", "Gemm"]


def test_gpt_with_two_free_dimensions(tmp_path: Path) -> None:
    net = zoo.gpt(11, context=64, features=16, heads=2, layers=1).eval()
    calls = [(RNG.integers(0, 11, shape),) for shape in ((2, 7), (1, 64))]
    proto = exported(tmp_path / "net.onnx", net, TensorSpec(("batch", "length<=64"), "int64"), *calls)
    assert {"Gather", "LayerNormalization", "MatMul", "Softmax", "Gelu"} <= set(op_types(proto))
    assert [d.dim_param for d in proto.graph.output[0].type.tensor_type.shape.dim[:2]] == ["batch", "length"]


RECURRENT: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "lstm": (lambda: nn.LSTM(3, 4), ["LSTM"]),
    "gru": (lambda: nn.GRU(3, 4), ["GRU"]),
    "rnn": (lambda: nn.RNN(3, 4), ["RNN"]),
    "relu, no bias": (lambda: nn.RNN(3, 4, activation="relu", bias=False, batch_first=False), ["RNN"]),
    "gru, no bias": (lambda: nn.GRU(3, 4, bias=False), ["GRU"]),
    "lstm, two layers, both directions": (lambda: nn.LSTM(3, 4, layers=2, bidirectional=True), ["LSTM"] * 4),
    "gru, both directions": (lambda: nn.GRU(3, 4, bidirectional=True), ["GRU"] * 2),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_are_ops(tmp_path: Path, name: str) -> None:
    make, ops = RECURRENT[name]
    calls = [(draw(2, 5, 3),), (draw(1, 9, 3),)]
    net = make().eval()
    # The reference evaluator cannot run GRU and RNN with a batch, nor any of them in reverse.
    proto = exported(
        tmp_path / "net.onnx", net, TensorSpec(("batch", "length", 3)), *calls, has_reference=name == "lstm"
    )
    assert [op for op in op_types(proto) if op in ("LSTM", "GRU", "RNN", "Scan")] == ops
    again = weft.jit(weft.onnx.load(tmp_path / "net.onnx"))
    for found, expected in zip(flatten(again(*calls[0]))[0], flatten(net(weft.asarray(calls[0][0])))[0], strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_recurrent_layer_with_a_state(tmp_path: Path) -> None:
    net = nn.LSTM(3, 4).eval()
    state = (TensorSpec((1, "batch", 4)), TensorSpec((1, "batch", 4)))
    weft.onnx.save(tmp_path / "net.onnx", net, (TensorSpec(("batch", "length", 3)), state))
    x, h, c = (weft.asarray(draw(*shape)) for shape in ((2, 5, 3), (1, 2, 4), (1, 2, 4)))
    again = weft.onnx.load(tmp_path / "net.onnx")
    assert op_types(onnx.load(tmp_path / "net.onnx")).count("LSTM") == 1
    for found, expected in zip(again(x, h, c), flatten(net(x, (h, c)))[0], strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_recurrent_network_with_lengths_or_a_step_of_its_own_is_a_scan(tmp_path: Path) -> None:
    net, specs = nn.GRU(3, 4).eval(), (TensorSpec(("batch", "length", 3)), TensorSpec(("batch",), "int64"))
    lengths = np.array([2, 5])
    proto = exported(tmp_path / "net.onnx", lambda x, n: net(x, lengths=n), specs, (draw(2, 5, 3), lengths))
    assert op_types(proto).count("Scan") == 1
    soft = nn.RNN(3, 4, activation="softsign").eval()
    proto = exported(tmp_path / "soft.onnx", soft, TensorSpec(("batch", "length", 3)), (draw(2, 5, 3),))
    assert op_types(proto).count("Scan") == 1


def test_a_loop_without_a_limit_is_read() -> None:
    body = onnx.parser.parse_graph(
        "step (int64 i, bool c, float[1] v) => (bool go, float[1] w) { w = Add(v, v) go = Less(w, limit) }"
    )
    body.node[1].input[1] = "limit"
    node = onnx.helper.make_node("Loop", ["", "yes", "x"], ["y"], body=body)
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in ("x", "limit", "y")]
    yes = onnx.numpy_helper.from_array(np.asarray(True), "yes")
    graph = onnx.helper.make_graph([node], "g", ports[:2], ports[2:], [yes])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)])
    net = weft.onnx.loads(proto.SerializeToString())
    assert net(np.ones(1, np.float32), np.full(1, 10.0, np.float32)).tolist() == [16.0]


# --- functions -----------------------------------------------------------------------------------------------------------


def loops(x: Any) -> Any:
    return weft.while_loop(lambda v: v.sum() < 100.0, lambda v: v * 2.0 + x.sum() * 0.0, abs(x))


def branches(x: Any) -> Any:
    return weft.cond(x.sum() > 0.0, lambda v: v + 1.0, lambda v: -v, x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "constants that broadcast": lambda x: x * 2.0 + weft.asarray([1.0, 2.0, 3.0]),
    "a result that is only constants": lambda x: weft.zeros(x.shape) + 3.0,
    "reductions": lambda x: (x.max(axis=0), x.min(axis=1), x.prod(axis=1), x.sum(), weft.var(x, axis=1)),
    "a mean over a free axis": lambda x: x - weft.mean(x, axis=0),
    "sizes in numbers": lambda x: x * x.shape[0] + 1.0 / (x.shape[0] + 1),
    "movement": lambda x: weft.flip(weft.concat([x[:, 1:], x[:, :2] * 2.0], axis=1), axis=1).T,
    "slices of a free axis": lambda x: (x[1:], x[:-1], x[::2] if x.shape[0] < 0 else x),
    "sizes that are computed": lambda x: (
        weft.reshape(weft.broadcast_to(x[:, None], (x.shape[0], 2, 3)), (-1, 3)),
        weft.arange(2 * x.shape[0] + 1),
        weft.broadcast_to(x[0], (x.shape[0] + 2, 3)),
    ),
    "padding": lambda x: weft.pad(x, ((1, 0), (0, 2))),
    "positions": lambda x: (weft.argmax(x, axis=1), weft.argsort(x, axis=1), weft.top_k(x, 2)),
    "indices": lambda x: (x[:, weft.asarray([2, 0, -1])], x[weft.asarray([0, 1]), weft.asarray([1, 2])]),
    "slices that are replaced": lambda x: (x.at[:, 1].set(5.0), x.at[:, weft.argmax(x[0])].set(7.0), x.at[:, 0:3:2].set(2.0)),
    "sums at indices": lambda x: x.at[weft.asarray([0, 1, 0])].add(1.0),
    "comparisons": lambda x: weft.where((x > 0.5) & ~(x <= 1.0) | (x == 0.0), x, -x),
    "casts": lambda x: (x * 10.0).astype("int32") // 3 + (x * 10.0).astype("int32") % 4,
    "rounding": lambda x: (weft.trunc(3 * x), weft.round(3 * x), (3 * x) // 0.7, (3 * x) % 0.7),
    "functions": lambda x: (weft.expm1(x), weft.log1p(abs(x)), weft.log2(abs(x)), weft.hypot(x, x + 1), weft.logaddexp(x, 2 * x)),
    "products": lambda x: (x @ x.T, weft.einsum("ij,kj->ijk", x, x), weft.einsum("ij,ij->i", x, x)),
    "bounds that are sizes": lambda x: (weft.clip(4 * x, 0.0, x.shape[0] / 2), weft.leaky_relu(x, 1 / x.shape[0]), weft.top_k(x, 2)),
    "a step that is a size": lambda x: weft.arange(3 * x.shape[0])[:: x.shape[0]],
    "cumulative sums": lambda x: weft.cumulative_sum(x, axis=1),
    "a loop": loops,
    "a condition": branches,
    "the argument itself": lambda x: (x, x + 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(tmp_path: Path, name: str) -> None:
    exported(tmp_path / "f.onnx", FUNCTIONS[name], weft.zeros((1, 3)), (draw(4, 3),), (draw(2, 3),))


def test_what_looks_like_a_layer_norm_along_another_axis_is_none(tmp_path: Path) -> None:
    scale, shift = weft.asarray([1.0, 2.0, 3.0]), weft.asarray([0.5, 1.5, 2.5])

    def transposed(x: Any) -> Any:  # without keepdims: the statistics of the rows are subtracted from the columns
        centred = x - weft.mean(x, axis=1)
        return centred * (1.0 / weft.sqrt(weft.mean(centred * centred, axis=1) + 1e-5)) * scale + shift

    exported(tmp_path / "f.onnx", transposed, TensorSpec((3, 3)), (draw(3, 3),))


def test_windows_along_other_axes(tmp_path: Path) -> None:
    def pools(x: Any) -> Any:
        return nn.LRN(4)(x), weft.max_pool(x, 2, stride=1, padding=1), weft.avg_pool(x, 3, padding=1)

    exported(tmp_path / "f.onnx", pools, weft.zeros((1, 5, 6, 4)), (draw(2, 5, 6, 4),))


def test_names_of_inputs_and_outputs(tmp_path: Path) -> None:
    proto = exported(
        tmp_path / "f.onnx", lambda x, y: {"sum": x + y, "difference": x - y}, (weft.zeros((1, 3)), weft.zeros((1, 3))),
        (draw(2, 3), draw(2, 3)),
    )  # fmt: skip
    assert [i.name for i in proto.graph.input] == ["x", "y"]
    assert sorted(o.name for o in proto.graph.output) == ["difference", "sum"]


def test_labels_and_metadata(tmp_path: Path) -> None:
    net = nn.Linear(4, 2)
    weft.onnx.save(
        tmp_path / "net.onnx",
        net,
        weft.zeros((1, 4)),
        labels=["cat", "dog"],
        metadata={"licence": "MIT", "mean": [0.5]},
    )
    found = weft.onnx.load(tmp_path / "net.onnx").metadata
    assert (found["labels"], found["licence"], found["mean"]) == ('["cat", "dog"]', "MIT", "[0.5]")


def test_all_sizes_can_be_fixed(tmp_path: Path) -> None:
    proto = exported(tmp_path / "f.onnx", lambda x: x[::2], weft.zeros((5, 3)), (draw(5, 3),), dynamic=False)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 5


def test_weights_too_large_for_one_file_go_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.onnx.export.save.LARGEST", 1000)
    for _ in range(2):  # the second time it is replaced
        exported(tmp_path / "net.onnx", nn.Linear(40, 20).eval(), weft.zeros((1, 40)), (draw(2, 40),))
    assert 3200 <= (tmp_path / "net.onnx.data").stat().st_size < 6400
    assert (tmp_path / "net.onnx").stat().st_size < 1000


# --- what cannot be exported ---------------------------------------------------------------------------------------------


def test_everything_that_has_no_form_in_onnx_is_listed_at_once(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return weft.nextafter(x, x + 1.0) + weft.nextafter(x, x) + weft.copysign(x, x + 1.0)

    with pytest.raises(weft.UserError, match=r"\[onnx.save\] ops with a form .*copysign, nextafter x 2"):
        weft.onnx.save(tmp_path / "f.onnx", function, weft.zeros((1, 3)))
    assert not (tmp_path / "f.onnx").exists()


def test_randomness_and_opsets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(weft.UserError, match="draws no random numbers"):
        weft.onnx.save(tmp_path / "f.onnx", lambda x: x + weft.random.normal(x.shape), weft.zeros((1, 3)))
    with pytest.raises(weft.UserError, match=r"an opset of 18 to \d+ is required, got 7"):
        weft.onnx.save(tmp_path / "f.onnx", nn.ReLU(), weft.zeros((1, 3)), opset=7)


def test_dtypes_that_onnx_does_not_take_are_refused(tmp_path: Path) -> None:
    whole = weft.zeros((1, 2, 4, 4), dtype="int32")
    with pytest.raises(weft.UserError, match=r"conv \(of int32\), window_sum \(of int32\)"):
        weft.onnx.save(
            tmp_path / "f.onnx",
            lambda x: (weft.conv(x, weft.ones((3, 2, 3, 3), dtype="int32")), window_sum(x)),
            whole,
        )
    with pytest.raises(weft.UserError, match=r"its checker says: .*Neg"):
        weft.onnx.save(tmp_path / "f.onnx", lambda x: -x, weft.zeros((1, 3), dtype="uint8"))
    assert not (tmp_path / "f.onnx").exists()


def window_sum(x: Any) -> Any:
    return primitives.window_sum(x, (1, 1, 2, 2), (1, 1, 2, 2), ((0, 0),) * 4, (1, 1, 1, 1))


def test_rectifying_unsigned_integers_is_written_by_plain_ops(tmp_path: Path) -> None:
    x = RNG.integers(0, 9, (2, 3)).astype(np.uint8)
    assert op_types(exported(tmp_path / "f.onnx", weft.relu, TensorSpec(("batch", 3), "uint8"), (x,))) == [
        "LessOrEqual",
        "Where",
    ]


@pytest.mark.parametrize("narrow", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("wide", ["float16", "float32", "float64"])
def test_conversions_to_narrow_integers_saturate(tmp_path: Path, wide: str, narrow: str) -> None:
    """As in weft: ONNX leaves open what a Cast makes of numbers beyond the range, and runtimes wrap them around."""
    x = np.array([-6e4, -300.0, -129.0, -1.7, 0.0, 1.5, 127.6, 128.0, 255.9, 256.0, 3e4, 6e4], wide)
    spec = TensorSpec(("n",), wide)
    exported(tmp_path / "cast.onnx", lambda x: weft.astype(x, narrow), spec, (x,))
    exported(tmp_path / "rounded.onnx", lambda x: weft.astype(weft.round(x), narrow), spec, (x,))


def test_an_int8_network_saturates_as_in_weft(tmp_path: Path) -> None:
    """Its rectifiers are the lower end of int8."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5)).eval()
    x = draw(16, 2, 6, 6)
    compress.int8(model, x)
    network = compress.to_int8(model)
    proto = exported(tmp_path / "int8.onnx", network, TensorSpec(("batch", 2, 6, 6)), (3 * x,), (x[:1],))
    assert op_types(proto).count("QuantizeLinear") == 2
    assert {"ConvInteger", "MatMulInteger"} <= set(op_types(proto))


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    weft.onnx.save(path, lambda x: x * 2.0, weft.ones(3))
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(weft.RunError, match=r"\[onnx.save\] .*net.onnx cannot be written: No space left"):
            weft.onnx.save(path, lambda x: x * 3.0, weft.ones(3))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    with pytest.raises(weft.RunError, match=r"cannot be written: No such file or directory"):
        weft.onnx.save(tmp_path / "nowhere" / "net.onnx", lambda x: x, weft.ones(3))
