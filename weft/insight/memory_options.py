"""Options that change the memory of a step: other batch sizes, or checkpointing of repeated blocks. Everything is planned, nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..compiler.ir.program import KernelProgram
from ..compiler.planning.cost_model import work
from ..control import checkpoint
from ..errors import UserError
from ..nn.module import Module
from ..records import dataclass
from ..runtime.facts import Facts
from ..tensor import Tensor
from ..tracing.compiled import CallMemory, memory_needed
from ..tracing.jit import Jit, jit
from ..tree import flatten, unflatten
from .memory_text import size_text
from .memory_values import called_modules
from .profile_text import amount, table

FACTORS = (0.25, 0.5, 1, 2, 4)  # of the given batch


@dataclass(frozen=True)
class BatchMemory:
    """The bytes that a call with another batch size needs."""

    batch: int
    memory: CallMemory

    @property
    def total(self) -> int:
        return self.memory.total


@dataclass(frozen=True)
class CheckpointSaving:
    """The effect of `weft.checkpoint` around every block of one class: bytes, and operations for recomputing the blocks."""

    block: str  # class of the module
    count: int
    plain: int  # bytes without
    total: int  # bytes with it
    flops: float  # of a call without
    extra_flops: float

    @property
    def saved(self) -> int:
        return self.plain - self.total


def batch_memory(
    function: Callable[..., Any], *args: Any, sizes: Sequence[int] | None = None
) -> tuple[BatchMemory, ...]:
    """The memory of a call with other batch sizes; by default a quarter to four times the batch of the arguments.

    The batch is the first axis of the first array; every array with a first axis of equal length is resized.

    >>> import weft
    >>> found = batch_memory(weft.nn.Linear(100, 10), weft.ones((8, 100)), sizes=[8, 16])
    >>> [(one.batch, one.memory.arguments) for one in found]
    [(8, 3200), (16, 6400)]
    """
    compiled = _new(function)
    batch = batch_of(args)
    wanted = sizes or sorted({max(1, int(batch * factor)) for factor in FACTORS})
    if min(wanted) < 1:
        raise UserError("batch_memory", f"batch sizes of 1 or more are required, got {min(wanted)}.")
    return tuple(BatchMemory(size, compiled.memory(*_with_batch(args, batch, size))) for size in wanted)


def batch_of(args: Sequence[Any]) -> int:
    """The length of the first axis of the first array."""
    for leaf in flatten(tuple(args))[0]:
        if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim:
            return int(leaf.shape[0])
    raise UserError("batch_memory", "an argument with a batch axis is required, got none.")


def _with_batch(args: Sequence[Any], batch: int, size: int) -> Any:
    """The arguments with another batch size. They have types only, no memory."""
    leaves, structure = flatten(tuple(args))
    return unflatten(structure, [_resized(leaf, batch, size) for leaf in leaves])


def _resized(leaf: Any, batch: int, size: int) -> Any:
    if not isinstance(leaf, Tensor | np.ndarray) or not leaf.ndim or leaf.shape[0] != batch:
        return leaf
    dtype = leaf.dtype.numpy if isinstance(leaf, Tensor) else leaf.dtype
    return np.broadcast_to(np.zeros((), dtype), (size, *leaf.shape[1:]))


# --- checkpointing --------------------------------------------------------------------------------------------------------------


def checkpoint_savings(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[CheckpointSaving, ...]:
    """The savings of checkpointing, for each class of blocks that the function calls several times; the largest saving first.

    A block is a module with submodules. The function is planned again with `weft.checkpoint` around each block of a class.
    """
    traced, program = _new(function).plan(*args, **kwargs)
    plain, flops = memory_needed(traced, _facts(program)).total, program_flops(program)
    found = []
    for name, blocks in repeated_blocks(called_modules(traced)).items():
        with _checkpointed(blocks):
            changed, planned = _new(function).plan(*args, **kwargs)
        total, more = memory_needed(changed, _facts(planned)).total, program_flops(planned) - flops
        found.append(CheckpointSaving(name, len(blocks), plain, total, flops, more))
    return tuple(sorted(found, key=lambda one: one.total))


def repeated_blocks(modules: Sequence[Module]) -> dict[str, list[Module]]:
    """The modules with submodules, by class, where there are several of a class. Of nested ones, the innermost."""
    by_class: dict[type[Module], list[Module]] = {}
    for module in dict.fromkeys(modules):
        if len(list(module.modules())) > 1:
            by_class.setdefault(type(module), []).append(module)
    inner = {kind: [b for b in blocks if not _contains(b, kind)] for kind, blocks in by_class.items()}
    return {kind.__name__: blocks for kind, blocks in inner.items() if len(blocks) > 1}


def _contains(module: Module, kind: type[Module]) -> bool:
    """Whether a module contains others of this class: then those are the blocks, such as the parts of a Sequential of Sequentials."""
    return any(type(part) is kind for part in module.modules() if part is not module)


def program_flops(program: KernelProgram) -> float:
    """The operations of all calls of a program."""
    return float(sum(work(program, call).flops for call in program.calls))


def _facts(program: KernelProgram) -> Facts:
    return Facts(program.memory.arena, program.memory.kept, program.memory.recomputed)


@contextmanager
def _checkpointed(blocks: Sequence[Module]) -> Iterator[None]:
    """While active, the blocks recompute their values in the backward pass. No listener is notified: the network does not change."""
    for block in blocks:
        vars(block)["forward"] = checkpoint(block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del vars(block)["forward"]


def _new(function: Callable[..., Any]) -> Jit[Any]:
    """The function in its current state, to be retraced."""
    if isinstance(function, Jit):
        return Jit(
            function.function,
            function.static,
            function.remember,
            function.narrow,
            function.donate,
            function.memory_limit,
        )
    return jit(function)


# --- text -----------------------------------------------------------------------------------------------------------------------


def batches_text(found: Sequence[BatchMemory]) -> str:
    """A table of batch sizes."""
    rows = [["batch", "total", "state", "while it runs", "inputs and results", "per example"]]
    for one in found:
        memory = one.memory
        passed = memory.arguments + memory.results
        share = (one.total - memory.state) / one.batch
        rows.append([str(one.batch), *map(size_text, (one.total, memory.state, memory.work, passed, share))])
    return table(rows, left=0)


def savings_text(found: Sequence[CheckpointSaving]) -> str:
    """A table of blocks."""
    if not found:
        return "No block occurs several times: there is nothing to checkpoint block by block."
    rows = [["weft.checkpoint around", "blocks", "total", "saved", "", "extra FLOP", ""]]
    for one in found:
        share, extra = one.saved / max(1, one.plain), one.extra_flops / max(1.0, one.flops)
        rows.append(
            [one.block, str(one.count), size_text(one.total), size_text(one.saved), f"{share:.0%}", f"{amount(one.extra_flops)}", f"{extra:+.0%}"]
        )  # fmt: skip
    return table(rows, left=1)
