"""Quantized functions as ONNX models: QuantizeLinear, DequantizeLinear, MatMulInteger, ConvInteger; and such models in 8-bit kernels."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import weft

RNG = np.random.default_rng(9)


def check(path: Path, function, specs, *calls: np.ndarray, **options) -> list[str]:
    """The types of the nodes, after the results of the reference evaluator and of the imported model were compared."""
    weft.onnx.save(path, function, specs, **options)
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    expected = function(*map(weft.asarray, calls)).numpy()
    given = dict(zip([i.name for i in proto.graph.input], calls, strict=True))
    for found in (ReferenceEvaluator(proto).run(None, given)[0], weft.onnx.load(path)(*calls).numpy()):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("zero", [0, 7])
def test_quantize_and_dequantize(tmp_path: Path, zero: int) -> None:
    scale = weft.asarray(RNG.uniform(0.01, 0.1, 5).astype(np.float32))

    def pair(x):
        return weft.dequantize(weft.quantize(x, scale, axis=1), scale, axis=1)

    def one(x):
        return weft.dequantize(weft.quantize(x, 0.02, zero, dtype="uint8"), 0.02, zero)

    x, spec = RNG.normal(size=(3, 5)).astype(np.float32), (weft.TensorSpec((3, 5), "float32"),)
    for function in (pair, one):
        assert check(tmp_path / "q.onnx", function, spec, x) in (
            ["QuantizeLinear", "DequantizeLinear"],
            ["Expand", "QuantizeLinear", "DequantizeLinear"],
            ["Expand", "QuantizeLinear", "Expand", "DequantizeLinear"],
        )


def test_16_bits_need_opset_21(tmp_path: Path) -> None:
    x, spec = RNG.normal(size=(3, 5)).astype(np.float32), (weft.TensorSpec((3, 5), "float32"),)

    def quantized(x):
        return weft.quantize(x, 0.02, dtype="int16")

    assert check(tmp_path / "q.onnx", quantized, spec, x, opset=21) == ["QuantizeLinear"]
    assert "QuantizeLinear" not in check(tmp_path / "q.onnx", quantized, spec, x, opset=18)


def test_integer_products(tmp_path: Path) -> None:
    x, y = RNG.integers(-128, 128, (3, 6)).astype(np.int8), RNG.integers(-128, 128, (6, 4)).astype(np.int8)
    specs = tuple(weft.TensorSpec(v.shape, "int8") for v in (x, y))
    assert check(tmp_path / "p.onnx", lambda x, y: weft.matmul(x, y, dtype="int32"), specs, x, y) == ["MatMulInteger"]
    image, w = RNG.integers(0, 256, (1, 4, 5, 5)).astype(np.uint8), RNG.integers(0, 256, (3, 4, 3, 3)).astype(np.uint8)
    specs = tuple(weft.TensorSpec(v.shape, "uint8") for v in (image, w))
    types = check(tmp_path / "c.onnx", lambda x, w: weft.conv(x, w, padding=1, dtype="int32"), specs, image, w)
    assert types == ["ConvInteger"]


def quantized_model(a_zero: int, b_zero: list[int]) -> onnx.ModelProto:
    values = {
        "w": RNG.integers(-128, 128, (8, 3)).astype(np.int8), "az": np.uint8(a_zero), "bz": np.array(b_zero, np.int8),
        "f": RNG.integers(-128, 128, (5, 4, 3, 3)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w", "az", "bz"], ["y"]),
        helper.make_node("ConvInteger", ["i", "f", "az"], ["z"], pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.UINT8, s) for n, s in (("x", (6, 8)), ("i", (1, 4, 7, 7)))]
    outputs = [helper.make_tensor_value_info(n, TensorProto.INT32, s) for n, s in (("y", (6, 3)), ("z", (1, 5, 4, 4)))]
    held = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(("a_zero", "b_zero"), [(0, [0]), (130, [0]), (255, [3, -128, 127])])
def test_zero_points_do_not_keep_models_from_8_bit_kernels(a_zero: int, b_zero: list[int]) -> None:
    proto = quantized_model(a_zero, b_zero)
    model = weft.onnx.loads(proto.SerializeToString())
    x, image = RNG.integers(0, 256, (6, 8)).astype(np.uint8), RNG.integers(0, 256, (1, 4, 7, 7)).astype(np.uint8)
    function = weft.jit(lambda x, image: model(x, image))
    kernels = [node.op.name for node in function.passes(x, image)["refine"].nodes]
    assert {"contract_int8", "conv_int8_last"} <= set(kernels)
    expected = ReferenceEvaluator(proto).run(None, {"x": x, "i": image})
    for found, wanted in zip(function(x, image), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)
