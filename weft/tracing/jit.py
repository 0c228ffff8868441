"""`weft.jit`: a Python function as one native call.

The first call with arguments of a new structure traces the function once and compiles what it did; the next calls only run
it. State is found by tracing: tensors from outside that the function reads become inputs, those that it changes are
updated in place, and random streams continue from their positions.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from .. import tracing
from ..dtypes import DType, DTypeLike, as_dtype, float32
from ..errors import UserError
from ..graph import Graph
from ..knobs import knobs, memory_size
from ..options import CompileOptions
from ..runtime import STATE_LOCK
from ..tensor import TRACING, Holder, Tensor
from ..timeline import recorded
from .arguments import Aliases
from .cache_key import Key, difference, key_of
from .compiled import Aliased, CallMemory, Compiled, compiled, memory_needed, planned, planned_program
from .program_cache import ProgramCache, cache_for, can_hold_programs
from .traced import TracedFunction, traced

if TYPE_CHECKING:
    from ..compiler.ir.program import KernelProgram
    from ..explain import Explanation
    from .artifact import Artifact

REMEMBERED = 64  # compiled forms of one function
R = TypeVar("R")  # what a function gives


class Jit(Generic[R]):
    """A compiled function; see `jit`."""

    def __init__(
        self,
        function: Callable[..., R],
        static: Collection[str | int],
        remember: int,
        narrow: DType | None = None,
        donate: Collection[str | int] = (),
        memory_limit: int | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.static, self.remember, self.narrow = function, static, remember, narrow
        self.donate, self.memory_limit = donate, memory_limit
        self.programs = ProgramCache()
        first = function.__code__.co_varnames[:1] if isinstance(function, FunctionType) else ()
        self._is_method = first in (("self",), ("cls",))

    def __call__(self, *args: Any, **kwargs: Any) -> R:  # arrays and numbers will do where it says tensors
        if self._is_method and args and can_hold_programs(args[0]):  # by its class, or by a property
            return self.__get__(args[0])(*args[1:], **kwargs)
        if TRACING.watch is not None:  # inside another traced function it is just a function
            for holder in self._follows():
                TRACING.watch.depends(holder)
            return self.function(*args, **kwargs)
        key, leaves = key_of(args, kwargs, self.static)
        for leaf in leaves:
            if type(leaf) is Tensor:
                node = leaf._node
                if node.abstract or (node.tracker is not None and node.tracked):
                    node = leaf._settled_node()
                    if node.abstract or node.tracked:
                        return self.function(*args, **kwargs)  # it is being traced or differentiated
        programs = self.programs
        made = programs.latest.get(key)
        if made is None or not made.fits():
            made = self._compile(key, args, kwargs)
        elif len(programs.latest) > 1:
            programs.was_used(key)
        while True:
            try:
                found: R = made.run(leaves)
                return found
            except Aliased as error:
                made = self._compile(key, args, kwargs, error.aliases)

    def __get__(self, instance: Any, owner: type | None = None) -> Jit[R]:
        """As a method of an object: compiled for this object, which is no argument but part of what the function finds outside."""
        if instance is None or not isinstance(self.function, FunctionType):
            return self
        if not can_hold_programs(instance):
            raise UserError(
                "jit",
                f"objects of {type(instance).__name__} cannot hold a compiled method: their __slots__ name neither "
                "'__dict__' nor '__weakref__', or they are tuples. Compile a function outside of the class.",
            )
        # A light one, made at every call: it holds the object, its programs do not.
        method: Jit[R] = object.__new__(Jit)
        method.__dict__.update(self.__dict__)
        method.__dict__["__wrapped__"] = method.function = MethodType(self.function, instance)
        method.programs = cache_for(instance, self)
        method._is_method = False
        if self.static:
            method.static = {s - 1 if isinstance(s, int) else s for s in self.static}
        if self.donate:
            method.donate = {d - 1 if isinstance(d, int) else d for d in self.donate}
        return method

    def __deepcopy__(self, memo: Any) -> Jit[R]:
        """Of a method of an object that is copied: that of the copy. Programs are not copied."""
        function = copy.deepcopy(self.function, memo)
        return Jit(function, self.static, self.remember, self.narrow, self.donate, self.memory_limit)

    def _follows(self) -> Sequence[Holder]:
        """What a method of a module does follows from its settings, and from those of its parts."""
        owner = getattr(self.function, "__self__", None)
        return owner.holders() if isinstance(owner, Holder) else ()

    # --- looking inside -------------------------------------------------------------------------------------------------

    def lower(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph that a call with these arguments runs: (random positions, arguments, state) -> (positions, state, results)."""
        return self._for(args, kwargs).graph

    def text(self, *args: Any, **kwargs: Any) -> str:
        """That graph as runnable Python."""
        return self.lower(*args, **kwargs).text()

    def sources(self, *args: Any, **kwargs: Any) -> list[str]:
        """The generated code of every kernel that a call with these arguments runs: Triton on GPUs, LLVM IR on CPUs.

        >>> import weft
        >>> texts = jit(lambda x: weft.relu(x)).sources(weft.ones(8))
        >>> any("define" in text for text in texts)
        True
        """
        texts: list[str] = self._for(args, kwargs).executable.sources()
        return texts

    def explain(self, *args: Any, repeats: int | None = None, **kwargs: Any) -> Explanation:
        """What a call with these arguments does with its time and memory: print it. No state changes. `repeats`: runs that are timed."""
        made = self._for(args, kwargs)
        _, leaves = key_of(args, kwargs, self.static)
        with STATE_LOCK:
            held, addresses = made.inputs(leaves)
            found = tracing.explain(made.executable, addresses, repeats)
            del held  # the memory had to stay until now
            return found

    def memory(self, *args: Any, **kwargs: Any) -> CallMemory:
        """The memory that a call with these arguments needs. It is planned, not compiled: that is much quicker."""
        key, _ = key_of(args, kwargs, self.static)
        made = self.programs.latest.get(key)
        if made is not None and made.fits():
            return memory_needed(made.traced, made.executable.facts)
        function = self._trace(key, args, kwargs)
        return memory_needed(function, planned(function))

    def plan(self, *args: Any, **kwargs: Any) -> tuple[TracedFunction, KernelProgram]:
        """What a call with these arguments would run: the traced function, its kernels and its memory plan. Nothing is compiled or run."""
        key, _ = key_of(args, kwargs, self.static)
        made = self.programs.latest.get(key)
        if made is not None and made.fits():
            return made.traced, made.executable.program
        function = self._trace(key, args, kwargs)
        return function, planned_program(function)

    def traced_function(self, *args: Any, **kwargs: Any) -> TracedFunction:
        """What a call with these arguments runs, as it was traced: its graph, arguments and state."""
        return self._for(args, kwargs).traced

    def passes(self, *args: Any, **kwargs: Any) -> dict[str, Graph]:
        """The graph as it was traced, and after each pass of the compiler: print them with .text()."""
        made = self._for(args, kwargs)
        return {"traced": made.graph, **made.executable.passes()}

    def artifact(self, *args: Any, **kwargs: Any) -> Artifact:
        """What a call with these arguments runs, as a value: printed, compared, hashed. Nothing is compiled."""
        key, leaves = key_of(args, kwargs, self.static)
        made = self.programs.latest.get(key)
        function = made.traced if made is not None and made.fits() else self._trace(key, args, kwargs)
        aliases = function.aliases(leaves)
        if aliases is not None:
            function = self._trace(key, args, kwargs, aliases)
        return tracing.artifact.artifact_of(self.function, function)

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Compiled:
        key, leaves = key_of(args, kwargs, self.static)
        made = self.programs.latest.get(key)
        if made is None or not made.fits():
            made = self._compile(key, args, kwargs)
        aliases = made.traced.aliases(leaves)
        return made if aliases is None else self._compile(key, args, kwargs, aliases)

    # --- compiling ------------------------------------------------------------------------------------------------------

    def _compile(
        self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any], aliases: Aliases | None = None
    ) -> Compiled:
        if aliases is not None:
            key = (*key, aliases)
        with self.programs.lock:
            made = self.programs.find(key)
            if made is None:
                if knobs.debug:
                    self._say_why(key)
                name = getattr(self.function, "__name__", "function")
                with recorded(f"trace {name}", "compile"):
                    traced_function = self._trace(key, args, kwargs, aliases)
                with recorded(f"compile {name}", "compile"):
                    made = compiled(traced_function)
            self.programs.add(key, made, self.remember)
            return made

    def _trace(
        self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any], aliases: Aliases | None = None
    ) -> TracedFunction:
        options = CompileOptions.numbered(key[0])
        if self.narrow is not None:
            options = replace(options, precision=self.narrow.name)
        if self.memory_limit is not None:
            options = replace(options, memory=self.memory_limit)
        return traced(self.function, args, kwargs, self.static, options, self._follows(), aliases, donate=self.donate)

    def _say_why(self, key: Key) -> None:
        name = getattr(self.function, "__name__", "function")
        if not self.programs.latest:
            print(f"weft: jit traces {name} for the first time", file=sys.stderr)
        else:
            last = next(reversed(self.programs.latest))
            print(f"weft: jit traces {name} again: {difference(last, key)}", file=sys.stderr)


@overload
def jit(
    function: Callable[..., R],
    *,
    static: str | int | Sequence[str | int] = (),
    donate: str | int | Sequence[str | int] = (),
    remember: int = REMEMBERED,
    precision: DTypeLike | None = None,
    memory: int | str | None = None,
) -> Jit[R]: ...


@overload
def jit(
    *,
    static: str | int | Sequence[str | int] = (),
    donate: str | int | Sequence[str | int] = (),
    remember: int = REMEMBERED,
    precision: DTypeLike | None = None,
    memory: int | str | None = None,
) -> Callable[[Callable[..., R]], Jit[R]]: ...


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static: str | int | Sequence[str | int] = (),
    donate: str | int | Sequence[str | int] = (),
    remember: int = REMEMBERED,
    precision: DTypeLike | None = None,
    memory: int | str | None = None,
) -> Any:
    """The function compiled: the first call with arguments of new types traces it, the others run native code.

    Everything the function computes becomes one program: derivatives, the update of parameters, random numbers. Tensors from
    outside are found by tracing; those it assigns to are updated in place. `static` names arguments (by position or name) whose
    values are part of the program: a new value compiles again. `donate` names arguments whose memory results may take, as JAX's
    `donate_argnums` does: a result of the same shape and dtype is written over each, and a donated tensor cannot be used afterwards. At most `remember` programs are kept. With `precision` "bfloat16" or
    "float16", matrix products and convolutions work in that type and what they read is kept in it (see docs/precision.md). `memory` limits
    the bytes that a call takes, arguments, state and results included ("40GiB", or a number of bytes; default: the setting `memory`): values
    of the forward pass that do not fit are computed again in the backward pass, to the same bits (see docs/memory-and-data.md). A
    method is compiled for each object apart.

    >>> import weft
    >>> w = weft.asarray([1.0, 2.0])
    >>> @jit
    ... def step(x):
    ...     w.assign(w - 0.5 * x)
    ...     return (w * x).sum()
    >>> step(weft.asarray([1.0, 1.0])).item(), w.tolist()
    (2.0, [0.5, 1.5])

    A donated cache is not copied: only the row is written.

    >>> put = jit(lambda cache, i, row: cache.at[i].set(row), donate="cache")
    >>> cache = weft.zeros((3, 2))
    >>> for i in range(2):
    ...     cache = put(cache, i, weft.ones(2))
    >>> cache.tolist()
    [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    """
    if function is None:
        return functools.partial(
            jit, static=static, donate=donate, remember=remember, precision=precision, memory=memory
        )
    if not callable(function):
        raise UserError("jit", f"a function is required, got {function!r}.")
    if not isinstance(remember, int) or remember < 0:
        raise UserError("jit", f"remember is a whole number from 0, got {remember!r}.")
    is_static, is_donated = _named(function, static, "static"), _named(function, donate, "donated")
    if is_static & is_donated:
        raise UserError(
            "jit", f"an argument is static or donated, not both: {sorted(is_static & is_donated, key=str)}."
        )
    return Jit(function, is_static, remember, _narrow(precision), is_donated, _memory_limit(memory))


def _named(function: Callable[..., Any], named: str | int | Sequence[str | int], purpose: str) -> frozenset[str | int]:
    """These arguments by position and by name: a call may pass them either way."""
    wanted = (named,) if isinstance(named, str | int) else tuple(named)
    try:
        signature = inspect.signature(function) if wanted else inspect.Signature()
    except (TypeError, ValueError):  # some functions written in C do not say what they take
        return frozenset(wanted)
    found: set[str | int] = set()
    for argument in wanted:
        ways = _ways(signature, argument)
        if not ways:
            raise UserError(
                "jit", f"there is no argument {argument!r} that could be {purpose}: the function takes {signature}."
            )
        found |= ways
    return frozenset(found)


def _ways(signature: inspect.Signature, argument: str | int) -> set[str | int]:
    """The position and the name by which calls can pass this argument."""
    parameters = signature.parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for place, p in enumerate(places):
        if argument in (place, p.name):
            return {place} if p.kind is p.POSITIONAL_ONLY else {place, p.name}
    if isinstance(argument, str):
        taken = any(p.kind is p.VAR_KEYWORD or (p.kind is p.KEYWORD_ONLY and p.name == argument) for p in parameters)
    else:
        taken = argument >= 0 and any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return {argument} if taken else set()


def _narrow(precision: DTypeLike | None) -> DType | None:
    """The type of mixed precision; None and float32 mean that there is none."""
    dtype = float32 if precision is None else as_dtype(precision, "jit")
    if not (dtype is float32 or dtype.is_half):
        raise UserError("jit", f"the precision must be float16, bfloat16 or float32, got {dtype.name}.")
    return dtype if dtype.is_half else None


def _memory_limit(memory: int | str | None) -> int | None:
    """The limit in bytes, 0 for none; None: that of the settings."""
    if memory is None:
        return None
    try:
        if isinstance(memory, bool) or not isinstance(memory, int | str):
            raise ValueError("it must be a number of bytes, or a text such as '40GiB'")
        return memory_size(str(memory))
    except ValueError as error:
        raise UserError("jit", f"memory cannot be {memory!r}: {error}.") from None
