"""The device `cpu`: every op, dtype and sample, compiled, agrees with the definition."""

import numpy as np
import pytest

import weft
from sampling import sampled
from test_ops import DECLARED
from weft.graph.graph import close as close_graph
from weft.graph.node import Type, item, make, placeholder
from weft.options import CompileOptions
from weft.runtime.native import NativeExecutable, contiguous
from weft.testing import close, counted, generator
from weft.testing.checks import _as_dtype, _define_all, _float_dtypes


def compiled_results(graph, arrays, threads=2, fill=0xA5):
    """What a compiled graph gives; its results are poisoned before the run."""
    executable = NativeExecutable(graph, {}, CompileOptions.current("cpu", threads=threads))
    inputs = [np.ascontiguousarray(a) for a in arrays]
    results = [np.full(o.shape, 0, o.dtype.numpy) for o in graph.outputs]
    for r in results:
        r.reshape(-1).view(np.uint8)[:] = fill
    executable.run([a.ctypes.data for a in (*inputs, *results)])
    return results


def result_nodes(node):
    """The results of a node: of most nodes one, the node itself."""
    return [item(node, i) for i in range(len(node.outputs))] or [node]


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
def test_every_sample_and_dtype(op):
    check_samples(op, share=0.3)


def check_samples(op, share):
    """A share of the samples of an op, in all dtypes, in one program: one compilation, many checks."""
    rng = generator(op.name)
    nodes, arrays, outputs, cases = [], [], [], []
    samples = [(sample, dtype) for sample in op.samples(rng) for dtype in _float_dtypes(sample)]
    for sample, dtype in sampled(f"cpu {op.name}", samples, share=share, of=lambda case: case[1]):
        inputs = [_as_dtype(i, dtype) for i in sample.inputs]
        here = [placeholder(object(), Type(i.shape, weft.asarray(i).dtype)) for i in inputs]
        nodes, arrays = nodes + here, arrays + inputs
        outputs += result_nodes(make(op, tuple(here), sample.params))
        cases += _define_all(op, inputs, sample.params)
    found = compiled_results(close_graph(nodes, outputs), arrays)
    for actual, output, expected in zip(found, outputs, cases, strict=True):
        close(actual, expected, output.dtype)
        counted(1)


def test_arrays_that_are_not_aligned_are_copied():
    """Compiled code may read vectors in a way that needs whole elements at addresses that they divide."""
    values = np.arange(12, dtype=np.float32)
    odd = np.frombuffer(b"?" + values.tobytes(), np.uint8)[1:].view(np.float32)
    assert not odd.flags.aligned
    seen = contiguous(odd)
    assert seen.flags.aligned
    np.testing.assert_array_equal(seen, values)
    np.testing.assert_array_equal(weft.jit(lambda x: x * 2)(odd).numpy(), 2 * values)
    counted(3)
