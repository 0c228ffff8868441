"""Runs the node tests of the package `onnx` itself: small models of one op (or its definition by other ops) with inputs and results.

`WEFT_TESTS=all` runs all of them, otherwise a sample with every op type in it. What is left out has a reason in `LEFT_OUT`, and a case
there that passes, or that does not exist, fails the test.
"""

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from sampling import mode, sampled
from weft.testing.counter import counted

RANDOM = "random numbers: ONNX does not define which"
REGEX = "RegexFullMatch needs the package re2: Python's own expressions differ, and can take exponential time"
TREES = "ensembles of decision trees are not neural networks"
FLOAT16 = "2 of 192 results differ by 2 units in the last place of float16; weft's are nearer to the exact ones"
ROUNDED = "the expected result has a rounding error of 1.9e-7 where the exact one is 0; weft gives 4e-15"

LEFT_OUT = {
    **dict.fromkeys(("test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed"), RANDOM),
    **dict.fromkeys(("test_bernoulli_expanded", "test_bernoulli_double_expanded", "test_bernoulli_seed_expanded"), RANDOM),
    **dict.fromkeys(("test_training_dropout", "test_training_dropout_mask"), RANDOM),
    **dict.fromkeys(("test_training_dropout_default", "test_training_dropout_default_mask"), RANDOM),
    **dict.fromkeys(("test_regex_full_match_basic", "test_regex_full_match_email_domain", "test_regex_full_match_empty"), REGEX),
    **dict.fromkeys(
        ("test_ai_onnx_ml_tree_ensemble_single_tree", "test_ai_onnx_ml_tree_ensemble_set_membership"), TREES
    ),
    **dict.fromkeys(("test_attention_4d_causal_fp16", "test_attention_4d_causal_fp16_expanded"), FLOAT16),
    **dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), ROUNDED),
}  # fmt: skip
# Computing what they expect takes most of the time of all modules together: only WEFT_TESTS=all does.
SLOW_MODULES = ("averagepool", "lppool", "maxpool")
PASSED_AT_LEAST = 1860


def node_cases() -> list[Any]:
    """The cases, by importing the modules that define them."""
    package = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name in module_names(package):
            if mode() == "all" or name.rpartition(".")[2] not in SLOW_MODULES:
                importlib.import_module(name)
    return list(package._NodeTestCases)


def module_names(package: Any) -> Iterator[str]:
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        yield found.name


def op_types(case: Any) -> tuple[str, ...]:
    return tuple(sorted({node.op_type for node in case.model.graph.node}))


def array(value: Any) -> Any:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def compare(got: Any, expected: Any, rtol: float, atol: float) -> None:
    """As the package's own runner does; bfloat16 to two units in the last place."""
    if isinstance(expected, list | tuple):
        assert len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            compare(g, e, rtol, atol)
        return
    got, expected = np.asarray(got), np.asarray(array(expected))
    assert got.shape == expected.shape
    if expected.dtype.kind in "OUS":
        assert got.tolist() == expected.tolist()
        return
    assert got.dtype == expected.dtype
    if expected.dtype.name == "bfloat16":
        got, expected, rtol = got.astype(np.float32), expected.astype(np.float32), max(rtol, 2**-6)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)


def run(case: Any) -> None:
    weft.seed(0)
    model = weft.onnx.loads(case.model.SerializeToString())
    for inputs, expected in case.data_sets:
        got = model(*map(array, inputs))
        compare(list(got) if isinstance(got, tuple) else [got], list(expected), case.rtol, case.atol)


def failure(case: Any) -> str | None:
    try:
        run(case)
    except (AssertionError, weft.WeftError) as error:
        return f"{case.name}: {' '.join(str(error).split())[:300]}"
    return None


def test_node_tests_of_the_onnx_package() -> None:
    cases = node_cases()
    names = {case.name for case in cases}
    missing = sorted(set(LEFT_OUT) - names)
    assert not missing, f"left out, but there is no such test: {missing}"
    chosen = sampled("onnx nodes", [c for c in cases if c.name not in LEFT_OUT], share=0.3, of=op_types)
    failures = [text for text in map(failure, chosen) if text is not None]
    counted(len(chosen))
    assert not failures, f"{len(failures)} of {len(chosen)}:\n" + "\n".join(failures)
    passing = [case.name for case in cases if case.name in LEFT_OUT and failure(case) is None]
    assert not passing, f"left out, but they pass: {passing}"
    if mode() == "all":
        assert len(chosen) >= PASSED_AT_LEAST


def test_many_op_types_have_handlers() -> None:
    assert len(weft.onnx.op_types()) >= 185
    assert {"Conv", "Gemm", "LSTM", "Resize", "QLinearConv", "Scan"} <= {name for _, name in weft.onnx.op_types()}


@pytest.mark.parametrize("name", ["test_relu", "test_gemm_all_attributes"])
def test_a_wrong_number_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test."""
    package = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{package.__name__}.{name.split('_')[1]}")
    case = next(c for c in package._NodeTestCases if c.name == name)
    assert failure(case) is None
    inputs, expected = case.data_sets[0]
    monkeypatch.setattr(case, "data_sets", [(inputs, [expected[0] * 1.01])])
    assert failure(case) is not None
