"""`weft.jit`: a Python function as one native call.

The first call with arguments of a new structure traces the function once and compiles what it did; the next calls only run
it. State is found by tracing: tensors from outside that the function reads become inputs, those that it changes are
updated in place, and random streams go on where they stood.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, MethodType
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from .arguments import Aliases, Arguments, refuse_other_content, type_of
from .compiled import Aliased, Compiled, given
from .compiler.passes.pipeline import can_compile
from .compiler.planning.memory import nbytes
from .dtypes import DType, DTypeLike, as_dtype, float32
from .errors import UserError, user_source
from .explain import Explanation, explain
from .forms import Forms, forms_for, has_room
from .graph import Graph
from .graph.graph import close
from .graph.node import DATA, VARIABLE, Node, toposort
from .knobs import knobs
from .options import CompileOptions
from .runtime import STATE_LOCK
from .runtime import device as find_device
from .runtime.device import Facts
from .scalars import NUMBERS, is_number
from .state import Settings, Watcher, in_memory_order, memory_of, states_of
from .tensor import WATCHED, Holder, Tensor, Watch, wrap
from .tracing import trace
from .tree import Structure, flatten, unflatten

REMEMBERED = 64  # compiled forms of one function
R = TypeVar("R")  # what a function gives


@dataclass
class _Planned:
    """A program that is planned but not written: it is only known what it would need."""

    graph: Graph
    facts: Facts


class Memory(NamedTuple):
    """The bytes that a call needs."""

    work: int  # that live during the call only, and what is prepared of constants
    state: int  # tensors from outside: parameters, moments, counts
    arguments: int
    results: int

    @property
    def total(self) -> int:
        return sum(self)


class Jit(Generic[R]):
    """A compiled function; see `jit`."""

    def __init__(
        self, function: Callable[..., R], static: Collection[str | int], remember: int, narrow: DType | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.function, self.static, self.remember, self.narrow = function, static, remember, narrow
        self._compiled, self._others, self._lock = Forms.none()
        first = function.__code__.co_varnames[:1] if isinstance(function, FunctionType) else ()
        self._is_method = first in (("self",), ("cls",))

    def __call__(self, *args: Any, **kwargs: Any) -> R:  # arrays and numbers will do where it says tensors
        if self._is_method and args and has_room(args[0]):  # by its class, or by a property
            return self.__get__(args[0])(*args[1:], **kwargs)
        if WATCHED.watch is not None:  # inside another traced function it is just a function
            self._tell_owner(WATCHED.watch)
            return self.function(*args, **kwargs)
        key, leaves = self._key(args, kwargs)
        for leaf in leaves:
            if type(leaf) is Tensor:
                node = leaf._node
                if node.abstract or (node.tracker is not None and node.tracked):
                    node = leaf._settled_node()
                    if node.abstract or node.tracked:
                        return self.function(*args, **kwargs)  # it is being traced or differentiated
        made = self._compiled.get(key)
        if made is None or not made.fits():
            made = self._compile(key, args, kwargs)
        elif len(self._compiled) > 1:
            with self._lock:  # another thread may let it go
                if key in self._compiled:
                    self._compiled.move_to_end(key)
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
        if not has_room(instance):
            raise UserError(
                "jit",
                f"objects of {type(instance).__name__} have no room for a compiled method: their __slots__ name neither "
                "'__dict__' nor '__weakref__', or they are tuples. Compile a function outside of the class.",
            )
        # A light one, made at every call: it holds the object, its programs do not.
        method: Jit[R] = object.__new__(Jit)
        method.__dict__.update(self.__dict__)
        method.__dict__["__wrapped__"] = method.function = MethodType(self.function, instance)
        method._compiled, method._others, method._lock = forms_for(instance, self)
        method._is_method = False
        if self.static:
            method.static = {s - 1 if isinstance(s, int) else s for s in self.static}
        return method

    def __deepcopy__(self, memo: Any) -> Jit[R]:
        """Of a method of an object that is copied: that of the copy. Programs are not copied."""
        return Jit(copy.deepcopy(self.function, memo), self.static, self.remember, self.narrow)

    def _tell_owner(self, watch: Watch) -> None:
        """What a method of a module does follows from its settings, and from those of its parts."""
        owner = getattr(self.function, "__self__", None)
        if isinstance(owner, Holder):
            for holder in owner.holders():
                watch.depends(holder)

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

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """What a call with these arguments does with its time and memory: print it. No state changes."""
        made = self._for(args, kwargs)
        _, leaves = self._key(args, kwargs)
        with STATE_LOCK:
            values = leaves if made.passed is None else made.passed(leaves)[0]
            passed = [
                made.executable.argument(i, given(v))
                for i, v in enumerate((*(s.offset for s in made.streams), *values))
            ]
            held = [memory_of(s, made.home) for s in made.states]
            return explain(made.executable, [*(address for _, address in passed), *map(made.home.address, held)])

    def memory(self, *args: Any, **kwargs: Any) -> Memory:
        """The memory that a call with these arguments needs. It is planned, not compiled: that is much quicker."""
        key, _ = self._key(args, kwargs)
        made = self._compiled.get(key)
        if made is None or not made.fits():
            made = self._traced(key[0], args, kwargs, planned=True)
        nodes = made.graph.inputs
        first = len(made.streams)
        given = sum(map(nbytes, nodes[first : first + made.arguments]))
        state = sum(map(nbytes, nodes)) - given
        facts = made.executable.facts
        return Memory(facts.arena + facts.kept, state, given, sum(map(nbytes, made.graph.outputs[made.first_result :])))

    def passes(self, *args: Any, **kwargs: Any) -> dict[str, Graph]:
        """The graph as it was traced, and after each pass of the compiler: print them with .text()."""
        made = self._for(args, kwargs)
        return {"traced": made.graph, **made.executable.passes()}

    def _for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Compiled:
        key, leaves = self._key(args, kwargs)
        made = self._compiled.get(key)
        if made is None or not made.fits():
            made = self._compile(key, args, kwargs)
        aliases = made.aliases(leaves)
        return made if aliases is None else self._compile(key, args, kwargs, aliases)

    # --- compiling ------------------------------------------------------------------------------------------------------

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Sequence[Any]]:
        """What the compiled form depends on, and the arguments that are values."""
        if not kwargs and not self.static:
            types = []
            for arg in args:
                if type(arg) is Tensor:
                    types.append(arg._node.type)
                elif type(arg) is np.ndarray or type(arg) in NUMBERS:
                    types.append(type_of(arg))
                else:
                    break
            else:
                known = _known  # read once: another thread may have other settings
                return (known[1] if known[0] == knobs.changes else _options(), tuple(types)), args
        every, structure = flatten((args, kwargs))
        fixed: list[Any] = []
        values: list[Any] = []
        kinds: list[Any] = []
        for name, leaf in zip(_names(structure), every, strict=True):
            if name not in self.static and _is_value(leaf):
                values.append(leaf)
                kinds.append(type_of(leaf))
            else:
                fixed.append(_hashable(leaf, name))
                kinds.append(None)
        if (
            not kwargs
            and not fixed
            and structure.children[0].leaves == len(args) == len(structure.children[0].children)
        ):
            return (_options(), tuple(kinds)), values  # plain values, as above
        return (_options(), structure, tuple(kinds), tuple(fixed)), values

    def _compile(
        self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], aliases: Aliases | None = None
    ) -> Compiled:
        if aliases is not None:
            key = (*key, aliases)
        with self._lock:
            made = self._compiled.get(key)
            if made is not None and made.fits():
                return made
            made = next((m for m in self._others.get(key, ()) if m.fits()), None)
            if made is None:
                if knobs.debug:
                    self._say_why(key)
                made = self._traced(key[0], args, kwargs, aliases)
                self._others.setdefault(key, []).append(made)
            self._compiled[key] = made
            self._compiled.move_to_end(key)
            self._make_room()
            return made

    def _make_room(self) -> None:
        """Let programs go until `remember` are left: first those of arguments that were not seen for longest."""
        while sum(map(len, self._others.values())) > self.remember:
            key, latest = next(iter(self._compiled.items()))
            spare = next((made for made in self._others[key] if made is not latest), None)
            if spare is None:
                del self._others[key], self._compiled[key]
            else:
                self._others[key].remove(spare)

    def _say_why(self, key: Any) -> None:
        name = getattr(self.function, "__name__", "function")
        if not self._compiled:
            print(f"weft: jit traces {name} for the first time", file=sys.stderr)
        else:
            last = next(reversed(self._compiled))
            print(f"weft: jit traces {name} again: {_difference(last, key)}", file=sys.stderr)

    def _traced(
        self,
        options: CompileOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        aliases: Aliases | None = None,
        planned: bool = False,
    ) -> Compiled:
        if self.narrow is not None:
            options = replace(options, precision=self.narrow.name)
        every, structure = flatten((args, kwargs))
        dynamic = [n not in self.static and _is_value(v) for n, v in zip(_names(structure), every, strict=True)]
        arguments = Arguments([leaf for leaf, d in zip(every, dynamic, strict=True) if d], aliases)
        types = arguments.types()
        watcher = Watcher()

        def function(stand_ins: Sequence[Any]) -> Any:
            rest = iter(stand_ins)
            given = [next(rest) if d else leaf for leaf, d in zip(every, dynamic, strict=True)]
            inner = unflatten(structure, given)
            result = self.function(*inner[0], **inner[1])
            refuse_other_content(inner, structure, given)
            return result

        def call(*tensors: Tensor) -> Any:
            return arguments.call(tensors, function, watcher)

        self._tell_owner(watcher)
        with STATE_LOCK:  # other threads must not see what tensors name meanwhile
            WATCHED.watch = watcher
            try:
                traced = trace(call, types, Structure(tuple, (), (Structure(None),) * len(types)), watched=True)
                new_values = [_content(t) for t in watcher.written]
                grads = [t for t, before in watcher.grads.items() if t.grad is not before]
                new_grads = [t.grad.node for t in grads if t.grad is not None]
                cleared = [t.grad is None for t in grads]
            finally:
                WATCHED.watch = None
                watcher.undo()
        numbers = iter(range(len(new_grads)))
        replaced = [(t, None if none else next(numbers)) for t, none in zip(grads, cleared, strict=True)]
        return self._closed(options, traced, arguments, watcher, new_values, replaced, new_grads, planned)

    def _closed(
        self,
        options: CompileOptions,
        traced: Any,
        arguments: Arguments,
        watcher: Watcher,
        new_values: list[Node],
        grads: list[tuple[Tensor, int | None]],
        new_grads: list[Node],
        planned: bool,
    ) -> Compiled:
        streams = list(traced.streams)
        found = [traced.streams[s][0] for s in streams]
        left = [traced.streams[s][1] for s in streams]
        outputs = [*left, *new_values, *new_grads, *traced.outputs]
        arguments.prune(set(toposort(outputs)))
        given = [*traced.inputs, *arguments.recorder.inputs.values()]
        inputs = [*found, *given, *watcher.nodes.values()]
        graph = close(inputs, outputs)
        stray = [n for n in graph.nodes if n.op in (DATA, VARIABLE)]
        if stray:  # values made while tracing, such as tables from NumPy arrays
            graph = close([*inputs, *stray], outputs)
        _refuse_unknown(graph)
        tensors = [*watcher.nodes, *(wrap(n) for n in stray)]
        states = states_of(tensors, len(found) + len(given), watcher, streams)
        position = {t: s.position for t, s in zip(tensors, states, strict=True)}
        updates = {len(left) + i: position[t] for i, t in enumerate(watcher.written)}
        begin = len(left) + len(new_values)
        home = find_device(options.device)
        graph = in_memory_order(graph, states, updates, home)
        constants = frozenset(s.position for s in states if not s.written)
        compile = (lambda *facts: _Planned(graph, home.planned(*facts))) if planned else home.executable
        return Compiled(
            graph, home, compile(graph, updates, options, constants), arguments, states, streams,
            len(given), [o.type for o in graph.outputs[begin:]], begin, grads,
            [(t, had is not None) for t, had in watcher.grads.items() if t._owns_parameter],
            [o.tracked for o in traced.outputs], user_source(), Settings(watcher.holders) if watcher.holders else None,
            watcher.values_seen(),
        )  # fmt: skip


def _refuse_unknown(graph: Graph) -> None:
    unknown = next((n for n in graph.nodes if not can_compile(n.op)), None)
    if unknown is not None:
        raise UserError(
            "jit",
            f"the op {unknown.op.name!r} has a definition in NumPy only and cannot be compiled. Write it with weft's "
            "functions, or call the function without jit.",
            unknown.source,
        )


def _content(tensor: Tensor) -> Node:
    """The value that a tensor was given."""
    node = tensor._node
    if node.op is VARIABLE and node.params[0].pending is not None:
        pending: Node = node.params[0].pending
        return pending
    return node


def _names(structure: Structure) -> list[str | int]:
    """For each leaf the argument it belongs to: a position or a name."""
    positional, named = structure.children
    result: list[str | int] = []
    for i, child in enumerate(positional.children):
        result += [i] * child.leaves
    for name, child in zip(named.keys, named.children, strict=True):
        result += [name] * child.leaves
    return result


def _is_value(leaf: Any) -> bool:
    """Whether an argument is a value, which the program does not depend on: a tensor, an array, a number."""
    return isinstance(leaf, Tensor | np.ndarray) or is_number(leaf)


def _hashable(leaf: Any, name: str | int) -> Any:
    try:
        hash(leaf)
    except TypeError:
        raise UserError(
            "jit",
            f"argument {name!r} is neither a value nor hashable: {type(leaf).__name__}. Static arguments must be hashable.",
        ) from None
    # Equal is not enough: 1, True and 1.0 are, and 0.0 and -0.0.
    return type(leaf), repr(leaf) if isinstance(leaf, float) else leaf


_known: tuple[Any, CompileOptions] = (None, CompileOptions(""))  # those that were last looked up, and when


def _options() -> CompileOptions:
    """The options that a program is compiled under if it is traced now; those of the function itself are added then."""
    global _known
    changes, options = knobs.changes, find_device().compile_options()
    _known = changes, options
    return options


def _difference(old: Any, new: Any) -> str:
    """Why two keys differ, in words."""
    if len(old) != len(new) or old[0] != new[0]:
        return "other kinds of arguments, or other settings"
    for a, b in zip(_flat(old[1:]), _flat(new[1:]), strict=False):
        if a != b:
            return f"an argument was {a}, now it is {b}"
    return "another number of arguments"


def _flat(value: Any) -> list[Any]:
    return (
        [v for part in value for v in (_flat(part) if type(part) is tuple else [part])]
        if type(value) is tuple
        else [value]
    )


@overload
def jit(
    function: Callable[..., R],
    *,
    static: str | int | Sequence[str | int] = (),
    remember: int = REMEMBERED,
    precision: DTypeLike | None = None,
) -> Jit[R]: ...


@overload
def jit(
    *, static: str | int | Sequence[str | int] = (), remember: int = REMEMBERED, precision: DTypeLike | None = None
) -> Callable[[Callable[..., R]], Jit[R]]: ...


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static: str | int | Sequence[str | int] = (),
    remember: int = REMEMBERED,
    precision: DTypeLike | None = None,
) -> Any:
    """The function compiled: the first call with arguments of new types traces it, the others run native code.

    Everything the function computes becomes one program: derivatives, the update of parameters, random numbers. Tensors from
    outside are found by tracing; those it assigns to are updated in place. `static` names arguments (by position or name) whose
    values are part of the program: a new value compiles again. At most `remember` programs are kept. With `precision` "bfloat16" or
    "float16", matrix products and convolutions work in that type and what they read is kept in it (see docs/precision.md). A method is
    compiled for each object apart.

    >>> import weft
    >>> w = weft.asarray([1.0, 2.0])
    >>> @jit
    ... def step(x):
    ...     w.assign(w - 0.5 * x)
    ...     return (w * x).sum()
    >>> step(weft.asarray([1.0, 1.0])).item(), w.tolist()
    (2.0, [0.5, 1.5])
    """
    if function is None:
        return functools.partial(jit, static=static, remember=remember, precision=precision)
    if not callable(function):
        raise UserError("jit", f"a function is required, got {function!r}.")
    if not isinstance(remember, int) or remember < 0:
        raise UserError("jit", f"remember is a whole number from 0, got {remember!r}.")
    wanted = (static,) if isinstance(static, str | int) else tuple(static)
    return Jit(function, _static(function, wanted), remember, _narrow(precision))


def _static(function: Callable[..., Any], wanted: Sequence[str | int]) -> frozenset[str | int]:
    """These arguments by position and by name: a call may pass them either way."""
    try:
        signature = inspect.signature(function) if wanted else inspect.Signature()
    except (TypeError, ValueError):  # some functions written in C do not say what they take
        return frozenset(wanted)
    found: set[str | int] = set()
    for argument in wanted:
        ways = _ways(signature, argument)
        if not ways:
            raise UserError(
                "jit", f"there is no argument {argument!r} that could be static: the function takes {signature}."
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
