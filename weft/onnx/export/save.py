"""`weft.onnx.save`: a network or a function as an ONNX file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UserError
from ...io.files import cannot_write, replace_file
from ...nn.module import Module
from ...saved.trace import ProgramTracer, argument_names, call_specs, in_mode, result_names, stated
from ...tracing.jit import Jit
from ...version import __version__
from ..package import onnx_package
from . import activations, control_flow, elementwise, indexing, layers, movement, products, quantized, recurrent  # noqa: F401 - they register their rules
from .translator import OnnxValue, Translator, unsupported_error
from .writer import ModelWriter, merge_sizes

OLDEST_OPSET = 18  # reductions take their axes as an input since then
OPSET = 20  # the first one with Gelu
LARGEST_CHECKED = 1024  # elements of an initializer that the checker reads
LARGEST = 1_900_000_000  # bytes of weights inside of a file; protobuf messages end at 2 GiB


def save(
    path: str | os.PathLike[str],
    model: Callable[..., Any],
    inputs: Any,
    *,
    labels: Sequence[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    opset: int = OPSET,
    dynamic: bool = True,
) -> None:
    """Write a network (in evaluation mode) or a function as an ONNX model.

    `inputs` are those of `weft.save`: examples, whose first axis becomes the free dimension `batch`, or `TensorSpec` with names for free
    dimensions. Parameters are initializers under their weft names. `labels` and `metadata` go to the metadata of the model, after the
    facts of a network that was loaded from a file; what is not text is written as JSON. Primitives that ONNX cannot express are all listed in one error.

    >>> import weft, tempfile
    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     weft.onnx.save(f"{folder}/net.onnx", net, weft.zeros((1, 4)))
    ...     again = weft.onnx.load(f"{folder}/net.onnx")
    >>> again(weft.ones((5, 4))).shape, sorted(again.named_parameters())
    ((5, 3), ['layers.0.bias', 'layers.0.weight'])
    """
    newest = onnx_package("defs").onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise UserError("onnx.save", f"an opset of {OLDEST_OPSET} to {newest} is required, got {opset}.")
    args, kwargs = call_specs(inputs, dynamic)
    function = model.function if isinstance(model, Jit) else model
    tracer = ProgramTracer(function, args, kwargs)
    if isinstance(function, Module):
        with in_mode(function, False):
            tracer.add("eval")
    else:
        tracer.add("eval")
    exporter = _Exporter(tracer, opset)
    proto = exporter.model()
    stored = {key: fact for key, fact in stated(function, "facts", {}).items() if key != "weft"}
    facts = {**stored, **(metadata or {}), "producer": f"weft {__version__}"}
    if labels is not None:
        facts["labels"] = list(labels)
    texts = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in facts.items() if value is not None
    }
    onnx_package("helper").set_model_props(proto, texts)
    _write(proto, exporter.weight_bytes, Path(path))


class _Exporter:
    """Builds the model of a traced function."""

    def __init__(self, tracer: ProgramTracer, opset: int) -> None:
        self.tracer, self.manifest = tracer, tracer.functions["eval"]
        points, self.graphs = zip(*tracer.graphs["eval"], strict=True)
        self.writer = ModelWriter(points, opset)
        self._refuse_state()
        wanted = argument_names(tracer.function, tracer.structure)
        self.names = [self.writer.name(name) for name in wanted]
        self.weight_bytes = 0  # of the initializers that were written

    def _refuse_state(self) -> None:
        changed = [port.name for port in self.manifest.outputs if port.kind != "result"]
        changed += [port.name for port in self.manifest.inputs if port.kind == "stream"]
        if changed:
            raise UserError(
                "onnx.save",
                f"a function that changes nothing and draws no random numbers is required, got one that changes {', '.join(changed)}.",
            )

    def model(self) -> Any:
        helper = onnx_package("helper")
        values, inputs = self._inputs()
        translator = Translator(self.writer, self.graphs, values)
        results = translator.run()
        if self.writer.unsupported:
            raise unsupported_error(self.writer.unsupported)
        outputs = self._outputs(translator, results)
        nodes = [*self.writer.prologue, *translator.out.nodes]
        name = type(self.tracer.function).__name__ if isinstance(self.tracer.function, Module) else "function"
        graph = helper.make_graph(nodes, name, inputs, outputs)
        opsets = [helper.make_opsetid("", self.writer.opset)]
        version = helper.find_min_ir_version_for(opsets)
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=version, producer_name="weft", producer_version=__version__
        )
        used = {name for node in nodes for name in _reads(node)}
        stored = {n: v for n, v in self.writer.initializers.items() if n in used}
        _check(model, stored)
        for name, value in stored.items():
            _set_tensor(model.graph.initializer.add(), name, value)
            self.weight_bytes += value.nbytes
        return model

    def _inputs(self) -> tuple[list[OnnxValue], list[Any]]:
        """The values of the graph's inputs, and the model's own: arguments that the function reads and those that it does not."""
        for name, spec in zip(self.names, self.tracer.specs, strict=True):
            for axis, size in enumerate(spec.shape):
                if isinstance(size, str):
                    self.writer.add_dimension(size, name, axis)
        values = []
        for port, nodes in zip(self.manifest.inputs, zip(*(g.inputs for g in self.graphs), strict=True), strict=True):
            shape = tuple(merge_sizes(sizes) for sizes in zip(*(n.shape for n in nodes), strict=True))
            if port.kind == "argument":
                values.append(OnnxValue(self.names[int(port.name)], shape))
            else:
                values.append(OnnxValue(self._initializer(port.name), shape))
        infos = [
            _info(name, spec.numpy_dtype, spec.shape) for name, spec in zip(self.names, self.tracer.specs, strict=True)
        ]
        return values, infos

    def _initializer(self, tensor: str) -> str:
        return self.writer.store(tensor, self.tracer.tensors[tensor].numpy())

    def _outputs(self, translator: Translator, results: list[OnnxValue]) -> list[Any]:
        names = result_names(self.manifest.result)
        found = []
        for wanted, (source, which) in zip(names, self.manifest.results, strict=True):
            name = self.writer.name(wanted)
            if source == "computed":
                value, dtype = results[which], self.graphs[0].outputs[which].dtype.numpy
                shape = [n if isinstance(n, int) else self.writer.text(n) for n in value.shape]
                source_name = value.name
            elif source == "argument":
                spec = self.tracer.specs[which]
                shape, dtype, source_name = list(spec.shape), spec.numpy_dtype, self.names[which]
            elif source == "tensor":
                array = self.tracer.tensors[which].numpy()
                shape, dtype, source_name = list(array.shape), array.dtype, self.writer.constant(array, array.dtype)
            else:
                raise UserError("onnx.save", f"results that are tensors are required, got {which!r} for {wanted!r}.")
            translator.out.rename(source_name, name)
            found.append(_info(name, dtype, shape))
        return found


def _info(name: str, dtype: Any, shape: Sequence[Any]) -> Any:
    return onnx_package("helper").make_tensor_value_info(name, elementwise.dtype_number(np.dtype(dtype)), list(shape))


def _reads(node: Any) -> set[str]:
    """The values that a node reads, also in its bodies."""
    found, waiting = set[str](), [node]
    while waiting:
        each = waiting.pop()
        found.update(each.input)
        for attribute in each.attribute:
            waiting += attribute.g.node
    return found


def _set_tensor(tensor: Any, name: str, value: np.ndarray) -> None:
    """Fill a TensorProto in place: the package's own functions copy the weights several times."""
    tensor.name, tensor.data_type = name, elementwise.dtype_number(value.dtype)
    tensor.dims.extend(value.shape)
    tensor.raw_data = value.tobytes()


def _check(model: Any, initializers: Mapping[str, np.ndarray]) -> None:
    """Check a model that has no initializers yet. Large ones are declared as inputs: their values decide no shapes."""
    skeleton = onnx_package().ModelProto()
    skeleton.CopyFrom(model)
    for name, value in initializers.items():
        if value.size > LARGEST_CHECKED:
            skeleton.graph.input.append(_info(name, value.dtype, value.shape))
        else:
            _set_tensor(skeleton.graph.initializer.add(), name, value)
    checker, inference = onnx_package("checker"), onnx_package("shape_inference")
    try:
        checker.check_model(skeleton, full_check=True)
    except (checker.ValidationError, inference.InferenceError) as error:
        raise UserError(
            "onnx.save", f"dtypes and shapes that the ops of ONNX take are required; its checker says: {error}"
        ) from None


def _write(proto: Any, weight_bytes: int, path: Path) -> None:
    """Write the model. Weights of more than 2 GiB go to a file beside it."""
    if weight_bytes <= LARGEST:
        replace_file(path, [proto.SerializeToString()], "onnx.save")
        return
    beside = f"{path.name}.data"
    try:
        path.with_name(beside).unlink(missing_ok=True)  # the package appends to a file that is there
        onnx_package().save(proto, path, save_as_external_data=True, location=beside)
    except OSError as error:
        raise cannot_write("onnx.save", path, error) from error
