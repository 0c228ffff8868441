"""Convolutions and attention by cuDNN, through its graph interface (nvidia-cudnn-frontend)."""

from __future__ import annotations

import atexit
import importlib
import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from ...compiler.gpu.vendor.specs import AttentionSpec, ConvSpec, Unsupported
from ...errors import RunError, UserError
from .driver import INSTALL

_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT"}
# Sums in 16 bits are too inaccurate, and sums in any order would not give the same bits every time.
_NEVER = ("NONDETERMINISTIC", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "WINOGRAD_TILE_13x13")


def library() -> Any:
    """cuDNN's Python package, or one sentence about what is missing."""
    try:
        module = importlib.import_module("cudnn")
    except ImportError as error:
        raise UserError("cuda", f"the package nvidia-cudnn-frontend is missing ({error}). {INSTALL}") from None
    logging.getLogger("cudnn").setLevel(
        logging.ERROR
    )  # it logs a warning for everything that it refuses, and raises an error as well
    return module


_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()  # all that refers to objects of the package


@atexit.register
def release() -> None:
    """Release the package at the end of the process: its bindings (nanobind) report objects that outlive the interpreter as leaks.

    What is reachable from the modules of weft does: functions that the interpreter calls after a fork are never released.
    """
    handle.cache_clear()
    for one in list(_OPEN):
        vars(one).clear()


class DnnHandle:
    """cuDNN, opened on the GPU that this thread works on."""

    def __init__(self) -> None:
        _OPEN.add(self)
        self.library = library()
        try:
            self._handle = self.library.create_handle()
        except (RuntimeError, AttributeError, OSError) as error:
            raise UserError("cuda", f"cuDNN does not start ({_short(error)}). {INSTALL}") from None
        self.version = str(self.library.backend_version_string())

    def graph(self, dtype: str) -> Any:
        """An empty graph whose tensors are of a type unless they say otherwise, and whose sums are in float32."""
        types = self.library.data_type
        return self.library.pygraph(
            io_data_type=getattr(types, _TYPES[dtype]),
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            **self._where(),
        )

    def _where(self) -> dict[str, Any]:
        return {"handle": self._handle}

    def execute(self, graph: Any, addresses: dict[int, int], workspace: int, stream: int) -> None:
        """Enqueue the graph's selected plan on a stream."""
        self.library.set_stream(handle=self._handle, stream=stream)
        graph.execute(addresses, workspace, handle=self._handle)


@cache
def handle(device: int) -> DnnHandle:
    """The handle of a GPU, which must be the one that this thread works on."""
    return DnnHandle()


class _Planned(ABC):
    """A graph of cuDNN, ready to run, with the plans that cuDNN offers for it, the most promising first.

    One must be selected before it can run. It is built then, which takes a while, and one of the `candidates` may turn out not to be had. The
    first run of a plan loads its code: it should not be the one that is recorded.
    """

    deterministic = True  # others are never selected
    is_sorted = True  # the candidates: the most promising ones come first
    spec: Any
    what: str

    def __init__(self, spec: Any, workspace_limit: int | None, handle: DnnHandle) -> None:
        _OPEN.add(self)
        self.spec = spec
        self._handle, self._library = handle, handle.library
        self._refusals = (self._library.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        self._uids = range(1, len(spec.arguments) + 1)
        self._graph = self._planned(workspace_limit)
        self.candidates = int(self._graph.get_execution_plan_count())

    def select(self, number: int) -> None:
        """Build a plan, which `run` then uses."""
        try:
            self._graph.build_plan_at_index(number)
            self.workspace = int(self._graph.get_workspace_size_plan_at_index(number))
        except self._refusals as error:
            raise Unsupported(f"cuDNN's plan {number}: {_short(error)}") from None
        self.selected = number

    def select_first(self) -> None:
        """The most promising plan that can be built."""
        for number in range(self.candidates):
            try:
                return self.select(number)
            except Unsupported:
                continue
        raise Unsupported(f"cuDNN: none of {self.candidates} plans can be built")

    def compiles(self, number: int) -> bool:
        """Whether a plan is compiled when it is selected, which takes about a second."""
        note = self._library.behavior_note.RUNTIME_COMPILATION
        return note in self._graph.get_behavior_notes_for_plan_at_index(number)

    @property
    def name(self) -> str:
        """What cuDNN calls the selected plan."""
        return str(self._graph.get_plan_name_at_index(self.selected))

    def run(self, addresses: Sequence[int], workspace: int, stream: int) -> None:
        """Enqueue on a stream: the addresses of `spec.arguments` in their order, and that of a workspace."""
        pack = dict(zip(self._uids, addresses, strict=True))
        try:
            self._handle.execute(self._graph, pack, workspace, stream)
        except self._refusals as error:
            raise RunError("cudnn", f"plan {self.name} of {self.what} failed: {_short(error)}") from None

    def _planned(self, workspace_limit: int | None) -> Any:
        """The graph with its plans, none of them built."""
        modes, notes = self._library.heur_mode, self._library.numerical_note
        try:
            graph = self._written()
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.FALLBACK])
            graph.deselect_numeric_notes([getattr(notes, note) for note in self._never()])
            if workspace_limit is not None:
                graph.deselect_workspace_greater_than(workspace_limit)
        except self._refusals as error:
            raise Unsupported(f"cuDNN: {_short(error)}") from None
        return graph

    @abstractmethod
    def _written(self) -> Any:
        """The graph."""

    @abstractmethod
    def _never(self) -> Sequence[str]:
        """Notes of plans that are not selected."""

    def _dtype(self, name: str) -> Any:
        return getattr(self._library.data_type, _TYPES[name])


class Convolution(_Planned):
    """One convolution."""

    spec: ConvSpec
    what = "a convolution"

    def _never(self) -> Sequence[str]:
        return [*_NEVER, *(["TENSOR_CORE"] if self.spec.dtype == "float32" and not self.spec.tf32 else [])]

    def _written(self) -> Any:
        """The convolution as a graph of cuDNN."""
        spec, graph = self.spec, self._handle.graph(self.spec.dtype)
        *names, result = spec.arguments
        inputs = {name: self._tensor(graph, name, uid) for name, uid in zip(names, self._uids, strict=False)}
        value = self._convolved(graph, *(inputs.pop(name) for name in names[:2]))
        # For this order cuDNN has precompiled kernels; for others it compiles one.
        for name in ("residual", "bias"):
            if name in inputs:
                value = graph.add(value, inputs[name])
        if "relu" in spec.epilogue:
            value = graph.relu(value)
        if spec.result_dtype != spec.dtype and not spec.epilogue:
            value = graph.identity(value)  # few kernels write another type by themselves, all can end in a copy
        self._finish(value, result)
        return graph

    def _convolved(self, graph: Any, first: Any, second: Any) -> Any:
        """The convolution itself; it stays in registers if something follows."""
        spec, how = self.spec, self._windows()
        if spec.direction == "forward":
            return graph.conv_fprop(first, second, **how)
        way = graph.conv_dgrad if spec.direction == "data_gradient" else graph.conv_wgrad
        value = way(first, second, **how)
        sizes, strides = self._places(spec.arguments[-1])  # cannot be inferred
        value.set_dim(sizes).set_stride(strides)
        return value

    def _windows(self) -> dict[str, list[int]]:
        spec = self.spec
        return {
            "pre_padding": self._planar(spec.padding_before, 0),
            "post_padding": self._planar(spec.padding_after, 0),
            "stride": self._planar(spec.stride, 1),
            "dilation": self._planar(spec.dilation, 1),
        }

    def _planar(self, values: Sequence[int], neutral: int) -> list[int]:
        """cuDNN supports two and three dimensions: a 1-dimensional image is one of height 1."""
        return [neutral, *values] if len(values) == 1 else [*values]

    def _tensor(self, graph: Any, name: str, uid: int) -> Any:
        sizes, strides = self._places(name)
        dtype = self._dtype(self.spec.result_dtype if name == "residual" else self.spec.dtype)
        return graph.tensor(name=name, dim=sizes, stride=strides, data_type=dtype, uid=uid)

    def _finish(self, value: Any, result: str) -> None:
        sizes, strides = self._places(result)
        value.set_output(True).set_data_type(self._dtype(self.spec.result_dtype)).set_dim(sizes).set_stride(strides)
        value.set_uid(self._uids[-1])

    def _places(self, name: str) -> tuple[list[int], list[int]]:
        """Extents and strides as cuDNN lists them: channels second, whatever the memory."""
        sizes = self.spec.sizes(name)
        first, *middle, channels = (1, *(1 for _ in self.spec.spatial), *sizes) if name == "bias" else sizes
        memory = [first, *self._planar(middle, 1), channels]
        return _channels_second(memory), _channels_second(_strides(memory))


class Attention(_Planned):
    """Attention, or its gradients by a deterministic algorithm."""

    spec: AttentionSpec
    what = "attention"

    def _never(self) -> Sequence[str]:
        return ["NONDETERMINISTIC"]

    def _written(self) -> Any:
        spec, graph = self.spec, self._handle.graph(self.spec.dtype)
        given = {name: self._tensor(graph, name, uid) for name, uid in zip(spec.inputs, self._uids, strict=False)}
        how = self._band() | {"attn_scale": spec.scale}
        if spec.direction == "forward":
            found = graph.sdpa(**given, generate_stats=spec.stats, **how)
        else:
            given["dO"] = given.pop("do")
            found = graph.sdpa_backward(**given, use_deterministic_algorithm=True, **how)
        uids = self._uids[len(spec.inputs) :]
        for value, name, uid in zip(found, spec.results, uids, strict=False):
            sizes, strides = spec.places(name)
            dtype = self._dtype("float32" if name == "stats" else spec.dtype)
            value.set_output(True).set_dim([*sizes]).set_stride([*strides]).set_data_type(dtype).set_uid(uid)
        return graph

    def _band(self) -> dict[str, Any]:
        """cuDNN masks keys up to and including position - left bound."""
        spec, sides = self.spec, self._library.diagonal_alignment
        if spec.left < 0 and spec.right < 0:
            return {}
        found = {"diagonal_alignment": sides.BOTTOM_RIGHT if spec.lower_right else sides.TOP_LEFT}
        if spec.left >= 0:
            found["diagonal_band_left_bound"] = spec.left + 1
        if spec.right >= 0:
            found["diagonal_band_right_bound"] = spec.right
        return found

    def _tensor(self, graph: Any, name: str, uid: int) -> Any:
        sizes, strides = self.spec.places(name)
        dtype = self._dtype("float32" if name == "stats" else self.spec.dtype)
        return graph.tensor(name=name, dim=[*sizes], stride=[*strides], data_type=dtype, uid=uid)


def _strides(sizes: Sequence[int]) -> list[int]:
    """Of contiguous memory."""
    return [*accumulate(reversed(sizes[1:]), int.__mul__, initial=1)][::-1]


def _channels_second(values: Sequence[int]) -> list[int]:
    first, *middle, channels = values
    return [first, channels, *middle]


def _short(error: Exception) -> str:
    """The first line: the rest is a list of engines."""
    return str(error).strip().split("\n")[0][:300]
