"""The protocols of a device: buffers, copies to and from NumPy, and programs of nodes.

A new device is one file with a subclass of `Device` and one call of `register`.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..dtypes import DType
from ..errors import RunError, UserError
from ..graph.graph import Graph
from ..graph.node import Node, Op, Shape
from ..knobs import ALGORITHMS, KNOBS, knobs
from ..lazy import DEVICE_MODULES
from ..options import CompileOptions
from . import dlpack
from .facts import Facts, Health, Profile, Roofline

if TYPE_CHECKING:
    from ..compiler.ir.program import KernelProgram as CompiledProgram

# Held while values are read or replaced in place, so that no reader sees a partial update and no update is lost. A program holds it from
# its first read of state to its results; tracing holds it because the tensors that a traced function changes refer to placeholders
# meanwhile. It is one lock for all devices, since programs of two devices may share state.
STATE_LOCK = threading.RLock()  # reentrant: computing one value may need others


def _after_fork() -> None:
    """In a forked child no other thread could release it."""
    if not STATE_LOCK._is_owned():  # type: ignore[attr-defined]
        STATE_LOCK._at_fork_reinit()  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(eq=False, slots=True)
class Buffer:
    """A value in the memory of a device. It is not written to after it is made, except by programs that replace state."""

    device: Device
    shape: Shape
    dtype: DType
    content: Any  # the device's own: an array, a pointer, nothing; a tuple for a node with several results
    version: int = 0  # how often a compiled function has replaced the content in place
    place: int = 0  # the address of the content, once it is known

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class NodeProgram:
    """Nodes to compute, in topological order, and those whose values are returned."""

    order: Sequence[Node]
    wanted: Sequence[Node]


EAGER = "eager operations"  # the label of executables that are not compiled from a function


class Executable(Protocol):
    """A compiled program. Every device implements all of it; code above the runtime never asks which device it is for.

    Memory is whatever the device keeps values in; addresses are integers. Passes, sources and times describe the code that runs, under
    the options that it was compiled with, whatever the current settings are.
    """

    graph: Graph
    updates: dict[int, int]  # outputs that replace inputs
    options: CompileOptions  # that it was compiled under
    label: str  # the name of the function that it was compiled from, for timelines

    @property
    def facts(self) -> Facts:
        """The memory that it needs."""

    @property
    def where(self) -> str:
        """The hardware that it runs on, for display."""

    @property
    def program(self) -> CompiledProgram:
        """Its kernels, calls and memory plan, planned again on demand."""

    @property
    def workspace_bytes(self) -> int:
        """The largest workspace of a product or convolution, in bytes."""

    # --- running it

    def argument(self, position: int, given: Buffer | np.ndarray) -> tuple[Any, int]:
        """The memory of an argument as the program reads it, to be held during the call, and its address."""

    def call(self, inputs: Sequence[int], again: bool = True) -> list[Any]:
        """Run on inputs at these addresses; the content of each output that does not replace an input.

        Without `again`, constants are what they were at the last run, and what was prepared of them is used.
        """

    # --- introspection

    def passes(self) -> dict[str, Graph]:
        """Its graph after each pass of the compiler."""

    def sources(self) -> list[str]:
        """The generated code of every kernel."""

    def notes(self) -> list[str]:
        """Requested algorithms that are not used, and why."""

    def profile(self, inputs: Sequence[int], repeats: int | None = None) -> Profile:
        """The time of each of its calls, on inputs at these addresses; they are not changed."""

    def seconds(self, inputs: Sequence[int]) -> float:
        """How long a run takes on inputs at these addresses; it must not update any of them."""

    def roof(self) -> Roofline:
        """The roofline of its device."""


class Device(ABC):
    """A place where values live and programs run."""

    name: str
    _known_options: tuple[Any, int] = (
        None,
        -1,
    )  # the cached number of options, and the change count of the settings at that time
    ignored_settings: frozenset[str] = frozenset()  # code-shaping settings that its compiler ignores
    is_accelerator = False  # hardware beside the CPU
    is_host_processor = False  # the processor of this machine, whose name and energy counters the system reports
    is_modelled = False  # the times of its programs are modelled: no clock can measure them
    has_kernels = True  # False: its programs do not run the kernels that are planned, so that times say nothing
    trains = True  # False: it only runs trained networks
    conv_algorithms: tuple[str, ...] = ALGORITHMS  # that its convolutions can be computed by
    measures_algorithms = False  # whether every program measures the algorithms that it could use
    dlpack_device: dlpack.DLDevice = (dlpack.CPU, 0)  # where its memory is, as DLPack names it
    orders_constants = False  # whether constant filters are stored in `filter_order`, too

    @property
    def compute_capability(self) -> int | None:
        """The compute capability of an NVIDIA GPU, 90 for 9.0; None for other devices."""
        return None

    @abstractmethod
    def put(self, array: np.ndarray, dtype: DType) -> Buffer:
        """A buffer with the array's content; the array is shared where the device can read it in place."""

    @abstractmethod
    def get(self, buffer: Buffer) -> np.ndarray:
        """The content as an array, shared where possible; the caller must not write to it."""

    @abstractmethod
    def run(self, program: NodeProgram) -> list[Buffer]:
        """Compute the program's nodes; returns the values of the wanted ones, in their order.

        A node that has a `value` is not computed but read.
        """

    def free_memory(self) -> int | None:
        """The bytes that programs may still take of the device's own memory; None if it uses the host's."""
        return None

    def allocated_memory(self) -> int | None:
        """The bytes of the device's own memory that this process has allocated, for tensors and for programs; None if it uses the host's."""
        return None

    def release_arenas(self) -> None:  # noqa: B027 - the reference device has none
        """Free the memory that programs share. The next run of each allocates what it needs: to measure that, or to shrink."""

    def wait(self) -> None:  # noqa: B027 - most devices never leave work behind
        """Wait until all work of this device is done, and raise its errors."""

    def keep_up(self) -> None:  # noqa: B027
        """Called once per step by loops that read no value: wait until all but the last few steps are done."""

    def about(self) -> str:
        """A one-line description."""
        return self.name

    def hardware_name(self) -> str:
        """Its hardware as vendors name it, to find it in a table of machines."""
        return self.about().split(",")[0]

    def health(self) -> Health | None:
        """Its current state (temperature, power, use); None if the device does not report it."""
        return None

    def bus(self) -> str | None:
        """The PCI bus address of a GPU, which identifies its energy counter; None for other devices."""
        return None

    # --- other libraries ------------------------------------------------------------------------------

    def from_dlpack(self, source: Any, copy: bool | None, protect: bool) -> Buffer:
        """The array of another library in the memory of this device, shared where possible.

        `copy`: True copies, False refuses to. `protect`: memory that its owner may still write to is copied, too.
        """
        raise UserError("from_dlpack", f"the device {self.name!r} does not import arrays of other libraries.")

    def to_dlpack(
        self,
        buffer: Buffer,
        stream: Any,
        max_version: tuple[int, int] | None,
        dl_device: dlpack.DLDevice | None,
        copy: bool | None,
    ) -> Any:
        """A DLPack capsule with a value: a copy or, with copy=False, the memory itself, marked as read-only. Raises BufferError."""
        own = None if copy is False else True
        array = self.get(buffer).view()
        array.flags.writeable = False
        return dlpack.export(array, stream=stream, max_version=max_version, dl_device=dl_device, copy=own)

    # --- compiled programs ----------------------------------------------------------------------------

    def can_compile(self, op: Op) -> bool:
        """Whether programs with this op can be compiled: the backend has a rule for it, or it is made of other ops."""
        return False

    def compile_options(self, precision: DType | None = None) -> CompileOptions:
        """The options under which a program would be compiled now."""
        return CompileOptions.current(
            self.name,
            self.ignored_settings,
            precision=None if precision is None else precision.name,
        )

    def options_number(self) -> int:
        """The number of the current options, for cache keys. It is cached, since it is needed at every run and settings rarely change."""
        changes, known = knobs.changes, self._known_options
        if known[0] != changes:
            known = self._known_options = changes, self.compile_options().number
        return known[1]

    @abstractmethod
    def executable(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> Executable:
        """The graph compiled: see `weft.jit`. `updates`: outputs that replace inputs. `constants`: inputs that rarely change."""

    @abstractmethod
    def planned_program(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> CompiledProgram:
        """The kernels, calls and memory plan of the graph, without generating code."""

    def planned(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> Facts:
        """The memory that the compiled graph would need."""
        memory = self.planned_program(graph, updates, options, constants).memory
        return Facts(memory.arena, memory.kept, memory.recomputed)

    def filter_order(self, rank: int) -> tuple[int, ...]:
        """The order of a convolution filter's axes in memory that is best for this device."""
        return tuple(range(rank))

    def refused_algorithms(self, node: Node) -> dict[str, str]:
        """The algorithms that cannot compute a convolution on this device, by name, with the reason."""
        return {}

    def remember_times(self, node: Node, milliseconds: Mapping[str, float]) -> None:  # noqa: B027 - for devices that use them
        """Record how long each algorithm takes for a convolution, for programs compiled later."""

    @abstractmethod
    def memory(self, buffer: Buffer, order: tuple[int, ...] | None) -> Any:
        """A value's memory as programs read it, with its axes in this order; shared if it has that order already."""

    @abstractmethod
    def copied(self, buffer: Buffer, order: tuple[int, ...] | None) -> tuple[Any, Any]:
        """The same, copied; and the copy as the content of a buffer."""

    def copied_to(self, buffer: Buffer, order: tuple[int, ...] | None, memory: Any) -> Any:
        """The value copied to this memory, as the content of a buffer; None if that is impossible, or if the device has no addresses."""
        return None

    def owned(self, buffer: Buffer) -> Any:
        """The memory of a value that programs may update in place; None if it is a view, or memory of another library."""
        return None

    @abstractmethod
    def address(self, memory: Any) -> int:
        """Where memory begins."""

    def __repr__(self) -> str:
        return f"weft.device({self.name!r})"

    def __str__(self) -> str:
        return self.name


_devices: dict[str, Device] = {}
_finders: dict[str, Callable[[], list[Device]]] = {}  # find devices of a kind when one is first requested


def register(device: Device) -> Device:
    """Make a device known by its name."""
    _devices[device.name] = device
    KNOBS["device"].choices.add(device.name)
    return device


def offer(kind: str, find: Callable[[], list[Device]]) -> None:
    """Register a kind of device of which a machine may have none or several: `kind` is the first, `kind:1` the second. `find` is called by
    `devices`, or when one is requested by name; it raises a UserError if there is none.
    """
    _finders[kind] = find
    KNOBS["device"].choices.add(kind)


def offer_modules() -> None:
    """Offer the devices of packages above the runtime; their modules are imported when one is asked for."""
    for kind, module in DEVICE_MODULES.items():
        offer(kind, partial(_find_in, module))


def _find_in(module: str) -> list[Device]:
    found: list[Device] = import_module(module).find()
    return found


EXTENSIONS = "weft.extensions"  # the entry point group of packages that register ops and devices
_loaded: set[str] = set()


def load_extensions() -> bool:
    """Import the modules that installed packages declare as weft's extensions; returns whether there were new ones."""
    from importlib.metadata import entry_points  # takes longer to import than a small program to run

    new = [entry for entry in entry_points(group=EXTENSIONS) if entry.value not in _loaded]
    for entry in new:
        _loaded.add(entry.value)
        try:
            entry.load()
        except Exception as error:  # third-party code: whatever it raises, name the extension
            raise RunError(
                "extensions", f"the extension {entry.name!r} ({entry.value}) does not load: {error}."
            ) from error
    return bool(new)


def devices() -> list[Device]:
    """All devices of this machine."""
    found = list(_devices.values())
    for find in _finders.values():
        try:
            found += find()
        except UserError:
            pass  # requesting such a device by name raises the error
    return found


def missing_devices() -> dict[str, str]:
    """The kinds of devices that this machine does not have, with the reason."""
    found = {}
    for kind, find in _finders.items():
        try:
            find()
        except UserError as missing:
            found[kind] = missing.message
    return found


def device(name: str | Device | None = None) -> Device:
    """A device by its name; without one, the default device (setting `device`).

    >>> device("reference")
    weft.device('reference')
    """
    if name is None:
        name = knobs.device
    elif isinstance(name, Device):
        return name
    if isinstance(name, str) and name in _devices:
        return _devices[name]
    if isinstance(name, str) and (kind := name.partition(":")[0]) in _finders:
        found = _finders[kind]()
        return found[0] if name == kind else _numbered(name, kind, found)
    if load_extensions():
        return device(name)
    raise UserError("device", f"there is no device {name!r}. Known: {', '.join([*_devices, *_finders])}.")


def accelerator_of(source: Any) -> Device | None:
    """The accelerator whose memory another library's array is in; None for the host's memory."""
    kind, number = (int(part) for part in source.__dlpack_device__())
    if kind in dlpack.HOST_TYPES:
        return None
    wanted = dlpack.CUDA if kind == dlpack.CUDA_MANAGED else kind, number
    found = next((d for d in devices() if d.dlpack_device == wanted), None)
    if found is None:
        reasons = "".join(f" {reason}" for reason in missing_devices().values())
        raise UserError("dlpack", f"no device of weft has the memory of DLPack's device {(kind, number)}.{reasons}")
    return found


def _numbered(name: str, kind: str, found: Sequence[Device]) -> Device:
    """One of several devices of a kind."""
    number = name.removeprefix(kind).removeprefix(":") or "0"
    if not number.isdecimal() or int(number) >= len(found):
        names = ", ".join(d.name for d in found)
        raise UserError("device", f"there is no device {name!r}. There are: {names}.")
    return found[int(number)]
