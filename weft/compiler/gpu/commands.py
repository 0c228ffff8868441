"""A program for GPUs as a list of commands: launches, copies, library calls and control flow, each on slots of the frame.

The planner writes lists whose launches hold the source of their kernel; after compilation the same commands hold the number of a
compiled kernel instead, and are plain data that is kept on disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any, Generic, TypeVar

from ...records import dataclass
from ..ir.program import Call
from ..ir.storage import Slot
from .compile import Binary
from .special.collectives import CollectiveSpec
from .vendor.specs import Spec, from_json, to_json

DECIDES = ("cond", "while_loop")  # control flow whose condition the host must read

K = TypeVar("K")  # a kernel: its source, or its number among the compiled ones
L = TypeVar("L")


@dataclass(frozen=True)
class Launch(Generic[K]):
    """A kernel on the memory of its arguments. `once`: its result stays the same until constants change."""

    kernel: K
    programs: int
    slots: tuple[Slot, ...]
    once: bool = False
    status: int = 0  # the number of its entry in the status, 0 if it cannot raise an error
    calls: tuple[Call, ...] = field(default=(), compare=False)  # the calls of the program that it performs


@dataclass(frozen=True)
class Copy:
    """A copy within the GPU's memory."""

    source: Slot
    target: Slot
    calls: tuple[Call, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class LibraryCall:
    """A matrix product or convolution by one of NVIDIA's libraries, on the memory of its arguments in the order of the spec."""

    spec: Spec
    slots: tuple[Slot, ...]
    once: bool = False
    calls: tuple[Call, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Collective:
    """A collective by NCCL, on the memory of its sources and then of its targets."""

    spec: CollectiveSpec
    slots: tuple[Slot, ...]
    calls: tuple[Call, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Beside(Generic[K]):
    """Commands that run on a second stream, after all previous commands and concurrently with the following ones."""

    commands: CommandList[K]
    calls: tuple[Call, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Join:
    """The following commands start after this many of the list's `Beside` have ended."""

    ended: int
    calls: tuple[Call, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class ControlFlow(Generic[K]):
    """Control flow. Carried values come first among the inputs, then sequences, then constants."""

    kind: str  # call, cond, while_loop, scan
    bodies: tuple[CommandList[K], ...]
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot | None, ...]  # None: nothing reads it
    buffers: Mapping[str, Slot]  # see planning.build.control_buffers
    sizes: tuple[int, ...]  # bytes of each input; of a sequence, those of one step
    carried: int = 0
    sequences: int = 0
    length: int = 0
    reverse: bool = False
    history: bool = False
    results: tuple[int, ...] = ()  # bytes of each of the body's results
    in_place: tuple[int, ...] = ()  # carried values that every step updates in place
    calls: tuple[Call, ...] = field(default=(), compare=False)


Command = Launch[K] | Copy | LibraryCall | Collective | Beside[K] | Join | ControlFlow[K]


@dataclass(frozen=True)
class CommandList(Generic[K]):
    """Commands in the order in which they run."""

    commands: tuple[Command[K], ...]

    def __iter__(self) -> Iterator[Command[K]]:
        return iter(self.commands)

    def __len__(self) -> int:
        return len(self.commands)

    def __getitem__(self, number: int) -> Command[K]:
        return self.commands[number]

    @property
    def decides(self) -> bool:
        """Whether the host must read values between commands."""
        return any(isinstance(c, ControlFlow) and (c.kind in DECIDES or any(b.decides for b in c.bodies)) for c in self)

    @property
    def flat(self) -> Iterator[Command[K]]:
        """All commands, those of the bodies in place of control flow, and those of a second stream in place of the stream."""
        for command in self:
            if isinstance(command, ControlFlow):
                for body in command.bodies:
                    yield from body.flat
            elif isinstance(command, Beside):
                yield from command.commands.flat
            else:
                yield command

    @property
    def launches(self) -> Iterator[Launch[K]]:
        """All launches, those of bodies too."""
        return (command for command in self.flat if isinstance(command, Launch))

    def with_kernels(self, changed: Callable[[Launch[K]], Launch[L]]) -> CommandList[L]:
        """The same list with every launch changed, in order."""
        done: list[Command[L]] = []
        for command in self:
            if isinstance(command, Launch):
                done.append(changed(command))
            elif isinstance(command, ControlFlow):
                bodies = tuple(body.with_kernels(changed) for body in command.bodies)
                done.append(replace(command, bodies=bodies))  # type: ignore[arg-type]
            elif isinstance(command, Beside):
                done.append(replace(command, commands=command.commands.with_kernels(changed)))  # type: ignore[arg-type]
            else:
                done.append(command)
        return CommandList(tuple(done))


@dataclass(frozen=True)
class CompiledCommands:
    """Commands with their compiled kernels, and the memory they need beside inputs and outputs."""

    commands: CommandList[int]
    kernels: tuple[Binary, ...]
    arena: int
    kept: int
    statuses: int  # launches that can meet an error
    recomputed: int = 0  # bytes that are computed twice

    def to_bytes(self) -> bytes:
        head = {
            "commands": _plain(self.commands), "arena": self.arena, "kept": self.kept, "statuses": self.statuses, "recomputed": self.recomputed,
            "kernels": [{"symbol": k.symbol, "warps": k.warps, "shared": k.shared, "size": len(k.code)} for k in self.kernels],
        }  # fmt: skip
        return json.dumps(head).encode() + b"\n" + b"".join(k.code for k in self.kernels)

    @classmethod
    def from_bytes(cls, content: bytes) -> CompiledCommands:
        text, _, codes = content.partition(b"\n")
        head, kernels, begin = json.loads(text), [], 0
        for known in head["kernels"]:
            code = codes[begin : begin + known["size"]]
            kernels.append(Binary(code, known["symbol"], known["warps"], known["shared"]))
            begin += known["size"]
        sizes = head["arena"], head["kept"], head["statuses"], head["recomputed"]
        return cls(_commands(head["commands"]), tuple(kernels), *sizes)


# --- as text --------------------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Commands as lists and dicts; a dict's "is" names the class."""
    if isinstance(value, Slot):
        return [value.base, value.offset, value.nbytes]
    if isinstance(value, CommandList):
        return [_plain(command) for command in value]
    if isinstance(value, LibraryCall):
        return {"is": "LibraryCall", "spec": to_json(value.spec), "slots": _plain(value.slots), "once": value.once}
    if isinstance(value, CollectiveSpec):
        return asdict(value)
    if isinstance(value, Launch | Copy | Collective | Beside | Join | ControlFlow):
        names = [name for name in value.__dataclass_fields__ if name != "calls"]
        return {"is": type(value).__name__} | {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {name: _plain(v) for name, v in value.items()}
    return value


def _commands(known: Sequence[Mapping[str, Any]]) -> CommandList[int]:
    return CommandList(tuple(_READERS[c["is"]]({name: v for name, v in c.items() if name != "is"}) for c in known))


def _slots(known: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(None if s is None else Slot(*s) for s in known)


def _control_flow(known: dict[str, Any]) -> ControlFlow[int]:
    return ControlFlow(
        **known | {
            "bodies": tuple(map(_commands, known["bodies"])), "inputs": _slots(known["inputs"]), "outputs": _slots(known["outputs"]),
            "buffers": {name: Slot(*slot) for name, slot in known["buffers"].items()},
            "sizes": tuple(known["sizes"]), "results": tuple(known["results"]), "in_place": tuple(known["in_place"]),
        }
    )  # fmt: skip


_READERS: dict[str, Callable[[dict[str, Any]], Command[int]]] = {
    "Launch": lambda known: Launch(**known | {"slots": _slots(known["slots"])}),
    "Copy": lambda known: Copy(Slot(*known["source"]), Slot(*known["target"])),
    "LibraryCall": lambda known: LibraryCall(from_json(known["spec"]), _slots(known["slots"]), known["once"]),
    "Collective": lambda known: Collective(CollectiveSpec.from_json(known["spec"]), _slots(known["slots"])),
    "Beside": lambda known: Beside(_commands(known["commands"])),
    "Join": lambda known: Join(known["ended"]),
    "ControlFlow": _control_flow,
}
