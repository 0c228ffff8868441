"""Every network of the zoo as an ONNX model: checked by the onnx package, run by ONNX Runtime, and imported again.

    python benchmarks/onnx_zoo.py                  all of them, about ten minutes on two cores
    python benchmarks/onnx_zoo.py resnet50 gpt     some

Each is exported with a free batch size, with random weights and statistics, and run on two examples; text networks with a free length as well.
Printed are the largest differences from what weft computed before, relative to its largest value. The script fails if one is above 1e-5.
"""

from __future__ import annotations

import sys
import tempfile
import time
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from cases import peers

import weft
from weft import zoo
from weft.jobs import networks
from weft.zoo.catalogue import FACTS

ALLOWED = 1e-5
VOCABULARY, LENGTH = 65, 24


def main() -> None:
    names = sys.argv[1:] or list(FACTS)
    worst = max(_checked(name) for name in names)
    print(f"{len(names)} networks, largest difference {worst:.1e}")
    sys.exit(worst > ALLOWED)


def _checked(name: str) -> float:
    started, rng = time.perf_counter(), np.random.default_rng(0)
    network, x = _network(name, rng)
    network(weft.asarray(x[:1]))  # parameters get their sizes
    for tensor in network.named_tensors().values():  # not zeros and ones, which could be special
        if tensor.dtype.is_float and (tensor.ndim == 1 or not tensor.numpy().any()):
            tensor.assign(tensor.numpy() + 0.1 * rng.random(tensor.shape).astype(np.float32))
    wanted = _first(weft.jit(network)(weft.asarray(x))).numpy()
    assert not np.array_equal(*wanted), f"{name} gives the same for both examples"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        weft.onnx.save(path, network, weft.asarray(x[:1]))
        onnx.checker.check_model(str(path), full_check=True)
        session = peers.need("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        in_runtime = session.run(None, {given.name: x})[0]
        again = _first(weft.jit(weft.load(path).eval())(weft.asarray(x))).numpy()
        size = path.stat().st_size
    found = [float(np.abs(y - wanted).max() / np.abs(wanted).max()) for y in (in_runtime, again)]
    took = time.perf_counter() - started
    print(
        f"{name:22} {size / 1e6:7.1f} MB  ONNX Runtime {found[0]:.1e}  imported {found[1]:.1e}  {took:4.0f} s",
        flush=True,
    )
    return max(found)


def _network(name: str, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """A network in evaluation mode, and two examples."""
    shape = FACTS[name].input
    if shape is None:
        return zoo.find(name)(VOCABULARY).eval(), rng.integers(0, VOCABULARY, (2, LENGTH))
    is_vector = name in networks.VECTORS and name != "lenet_300_100"
    network = (
        networks.build_vector_network(name, prod(shape), 10)
        if is_vector
        else networks.build_network(name, 10, shape[0])
    )
    return network.eval(), rng.standard_normal((2, *shape)).astype(np.float32)


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) else result


if __name__ == "__main__":
    main()
