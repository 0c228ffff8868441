"""`Module`: an object whose attributes are its parameters, its state and its submodules.

There is no registration. A tensor attribute that requires gradients is a parameter, any other tensor is state (such as running
statistics), and modules in lists, tuples and dicts are submodules too. Attributes whose names begin with an underscore are
ignored. A new layer is a class with `__init__` and `forward`:

    class Scale(nn.Module):
        '''y = s x'''

        def __init__(self) -> None:
            self.s = nn.parameter((), "ones")

        def forward(self, x):
            return self.s * x
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from ..dtypes import DEFAULT_FLOAT, DType, DTypeLike, as_dtype
from ..errors import Scope, UserError, current_scope, in_scope
from ..graph.node import Type, placeholder
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..records import dataclass
from ..tensor import TRACING, Holder, Tensor, wrap
from ..tracing.context import outside
from . import init

M = TypeVar("M", bound="Module")
Size = int | None  # None: inferred from the first input
Sizes = tuple[Size, ...]
Init = str | float | Callable[[tuple[int, ...]], Any]  # a name (see init.py), a number, or a function of the shape


@dataclass(frozen=True)
class Unknown:
    """A parameter or state that is created at the first call, when the missing sizes are known."""

    shape: Sizes
    start: Init
    trained: bool

    def __str__(self) -> str:
        return f"[{', '.join('?' if n is None else str(n) for n in self.shape)}]"


def parameter(shape: int | Sequence[Size], start: Init = "zeros") -> Any:
    """A parameter of this shape: a tensor, created now, or at the first call of its module if a size is None."""
    return _made(shape, start, True)


def state(shape: int | Sequence[Size], start: Init = "zeros") -> Any:
    """A tensor that belongs to a module but is not trained, such as a running mean."""
    return _made(shape, start, False)


def _made(shape: int | Sequence[Size], start: Init, trained: bool) -> Any:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    known = tuple(n for n in sizes if n is not None)
    if any(n < 0 for n in known):
        raise UserError("parameter", f"sizes of 0 or more are required, got {sizes}.")
    if len(known) < len(sizes):
        return Unknown(sizes, start, trained)
    if _calls.valueless is not None:
        tensor = _valueless(known, DEFAULT_FLOAT, trained)
        if _calls.inits is not None:
            _calls.inits[tensor] = start
        return tensor
    with outside():
        value = asarray(init.values(start, known), dtype=DEFAULT_FLOAT)
        tensor = as_parameter(value) if trained else asarray(value, copy=True).realize()
    tensor.born = 0  # it existed before the function that is being traced
    return tensor


def without_value(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and dtype, trained or not, that has no value and takes no memory."""
    return _valueless(tensor.shape, tensor.dtype, tensor.requires_grad)


def _valueless(shape: tuple[int, ...], dtype: DType, trained: bool) -> Tensor:
    tensor = wrap(placeholder(object(), Type(shape, dtype)))
    return as_parameter(tensor) if trained else tensor


@contextmanager
def without_values() -> Iterator[None]:
    """Inside, parameters and state are created without values and memory: for networks that are traced but not run.

    Tensors that modules created at their first call become unknown again afterwards.
    """
    before, _calls.valueless = _calls.valueless, []
    try:
        yield
    finally:
        for module, name, unknown in _calls.valueless:
            setattr(module, name, unknown)
        _calls.valueless = before


@contextmanager
def recording_inits() -> Iterator[dict[Tensor, Init]]:
    """Inside, parameters are created without values; the initializer of each is recorded."""
    with without_values():
        before, _calls.inits = _calls.inits, {}
        try:
            yield _calls.inits
        finally:
            _calls.inits = before


class Listener(Protocol):
    """An observer of module calls and their results."""

    def begins(self, module: Module, args: tuple[Any, ...]) -> None: ...

    def ends(self, module: Module, result: Any) -> None: ...


AroundCall = Callable[["Module", Callable[[], Any]], Any]  # a module and its computation -> the result of the call


class _Calls(threading.local):
    listener: Listener | None = None
    valueless: list[tuple[Module, str, Unknown]] | None = None  # created without values, and their previous attribute
    inits: dict[Tensor, Init] | None = None  # of tensors without values, where that is recorded
    around: AroundCall | None = None  # what is called instead, if set
    paths: dict[int, str] | None = None  # of the parts of the module that is being called, by their ids, while tracing


_calls = _Calls()


@contextmanager
def _layer(module: Module, number: int) -> Iterator[None]:
    """Inside, operations belong to a module, named by its path in the outermost one that is being called.

    That one is identified by its number in the trace: equal operations of two programs are one node, which keeps the scope of the first,
    and this is then the scope in the second as well.
    """
    outer, paths, kind = current_scope(), _calls.paths, type(module).__name__
    if paths is None or outer is None:
        path, root = "", number
        _calls.paths = {id(part): name for name, part in module.named_modules().items()}
    else:
        path, root = paths.get(id(module)) or _join(outer.path, kind), outer.root
    try:
        with in_scope(Scope(path, kind, root=root)):
            yield
    finally:
        _calls.paths = paths


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside, the listener is notified of every call of a module."""
    before, _calls.listener = _calls.listener, listener
    try:
        yield
    finally:
        _calls.listener = before


@contextmanager
def calls_through(around: AroundCall) -> Iterator[None]:
    """Inside, calls of modules go through a function, which may compute something else than they would."""
    before, _calls.around = _calls.around, around
    try:
        yield
    finally:
        _calls.around = before


class Symbol:
    """A symbolic value of the functional API; see functional_model.py."""

    def __init__(
        self, module: Module | None, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> None:
        self.module, self.args, self.kwargs = module, args, dict(kwargs or {})


class Module(Holder):
    """Base class of all layers and networks. Subclasses implement `__init__` and `forward`."""

    training: bool = True

    def __init__(self) -> None:
        """Does nothing: a subclass stores its settings and creates its parameters."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The computation of the module."""
        raise UserError(type(self).__name__, "a module needs a method forward(self, x) that says what it computes.")

    def sizes(self, *args: Any) -> Mapping[str, Sequence[int]]:
        """The shapes of the attributes that were created with unknown sizes, given the first input."""
        raise UserError(type(self).__name__, "a module with unknown sizes needs a method sizes(self, x).")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, Symbol) for a in args):
            return Symbol(self, args, kwargs)
        if TRACING.watch is None:
            return self._called(args, kwargs)
        number = TRACING.watch.depends(self)
        with _layer(self, number):
            return self._called(args, kwargs)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _calls.around is None:
            return self._computed(args, kwargs)
        return _calls.around(self, lambda: self._computed(args, kwargs))

    def _computed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        missing = {name: value for name, value in vars(self).items() if isinstance(value, Unknown)}
        if missing:
            self._make(missing, self.sizes(*args, **kwargs))
        listener = _calls.listener
        if listener is None:
            return self.forward(*args, **kwargs)
        listener.begins(self, args)
        result = self.forward(*args, **kwargs)
        listener.ends(self, result)
        return result

    def _make(self, missing: Mapping[str, Unknown], shapes: Mapping[str, Sequence[int]]) -> None:
        for name, unknown in missing.items():
            shape = tuple(shapes[name])
            fits = len(shape) == len(unknown.shape)
            if not fits or any(n not in (None, given) for n, given in zip(unknown.shape, shape, strict=True)):
                raise UserError(type(self).__name__, f"{name} of shape {unknown} is required, got {shape}.")
            if _calls.valueless is not None:
                _calls.valueless.append((self, name, unknown))
            setattr(self, name, _made(shape, unknown.start, unknown.trained))

    # --- settings --------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """The settings that its computation depends on: its attributes, and which of its parameters are frozen."""
        found = {n: v for n, v in vars(self).items() if not n.startswith("_")}
        return found | {"training": self.training, "frozen": self._frozen_names()}

    def train(self: M, mode: bool = True) -> M:
        """Switch it and its submodules to training mode: dropout is active, batch norm uses batch statistics."""
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self: M) -> M:
        """Switch to evaluation mode: nothing is random, running statistics are used."""
        return self.train(False)

    def freeze(self: M) -> M:
        """Freeze its parameters and those of its submodules: optimizers do not change them."""
        for module in self.modules():
            frozen = dict(vars(module).get("_frozen", {}))
            for name, tensor in own_tensors(module):
                if tensor.requires_grad:
                    tensor.requires_grad = False
                    frozen[name] = None
            module._frozen = frozen
        return self

    def unfreeze(self: M) -> M:
        """Unfreeze the parameters that `freeze` froze."""
        for module in self.modules():
            frozen = module._frozen_names()
            for name, tensor in own_tensors(module):
                if name in frozen:
                    tensor.requires_grad = True
            module._frozen = {}
        return self

    def _frozen_names(self) -> tuple[str, ...]:
        return tuple(vars(self).get("_frozen", ()))

    # --- submodules, tensors --------------------------------------------------------------------------------------------

    def named_modules(self) -> dict[str, Module]:
        """Itself (named "") and all submodules by path, such as "layers.0"; shared ones are listed once."""
        found: dict[Module, str] = {}
        waiting: list[tuple[str, Module]] = [("", self)]
        while waiting:
            path, module = waiting.pop()
            if module in found:
                continue
            found[module] = path
            waiting += reversed([(_join(path, n), v) for n, v in _parts(module) if isinstance(v, Module)])
        return {path: module for module, path in found.items()}

    def holders(self) -> list[Module]:
        """All modules whose settings its computation depends on."""
        return self.modules()

    def modules(self) -> list[Module]:
        """Itself and all submodules."""
        return list(self.named_modules().values())

    def named_tensors(self) -> dict[str, Tensor]:
        """All parameters and state by path, such as "layers.0.weight"; shared ones are listed once."""
        found: dict[Tensor, str] = {}
        for path, module in self.named_modules().items():
            for name, value in _parts(module):
                if isinstance(value, Unknown):
                    raise UserError(
                        type(module).__name__,
                        f"{_join(path, name)} of shape {value} is not made yet. Call the network once, on one example.",
                    )
                if isinstance(value, Tensor):
                    found.setdefault(value, _join(path, name))
        return {path: tensor for tensor, path in found.items()}

    def named_parameters(self) -> dict[str, Tensor]:
        """The trainable parameters by path, without frozen ones."""
        return {path: tensor for path, tensor in self.named_tensors().items() if tensor.requires_grad}

    def parameters(self) -> list[Tensor]:
        """The trainable parameters."""
        return list(self.named_parameters().values())

    def named_state(self) -> dict[str, Tensor]:
        """The state by path: tensors that are neither trainable nor frozen parameters, such as running statistics."""
        frozen = {_join(path, name) for path, module in self.named_modules().items() for name in module._frozen_names()}
        return {p: t for p, t in self.named_tensors().items() if not t.requires_grad and p not in frozen}

    # --- values ----------------------------------------------------------------------------------------------------------

    def load(self: M, values: Mapping[str, Any], *, strict: bool = True) -> M:
        """Load values by path. Strict: exactly the paths of `named_tensors`, or an error lists all differences.

        Nothing is changed unless all values fit.
        """
        own = self.named_tensors()
        missing, extra = [n for n in own if n not in values], [n for n in values if n not in own]
        new = {name: asarray(values[name]) for name in own if name in values}
        wrong = [f"{n} is {own[n].shape}, got {v.shape}" for n, v in new.items() if v.shape != own[n].shape]
        problems = [f"other shapes: {'; '.join(wrong)}"] if wrong else []
        if strict:
            problems += [f"missing: {', '.join(missing)}"] if missing else []
            problems += [f"not in this network: {', '.join(extra)}"] if extra else []
        if problems:
            raise UserError(f"{type(self).__name__}.load", ". ".join(problems) + ".")
        for name, value in new.items():
            own[name].assign(value.astype(own[name].dtype))
        return self

    def astype(self: M, dtype: DTypeLike) -> M:
        """Convert all float tensors to a dtype. Optimizers created before still refer to the old tensors."""
        wanted = as_dtype(dtype, "astype")
        for module in self.modules():
            for name, value in list(vars(module).items()):
                if not name.startswith("_"):
                    setattr(module, name, _converted(value, wanted))
        return self

    # --- printing ---------------------------------------------------------------------------------------------------------

    def details(self) -> str:
        """The text between the parentheses of `repr`: settings and shapes."""
        known = [
            f"{n}={v}"
            for n, v in vars(self).items()
            if n != "training" and v is not None and not n.startswith("_") and _is_plain(v)
        ]
        shapes = [f"{n}: {_shape_text(v)}" for n, v in _parts(self) if isinstance(v, Tensor | Unknown)]
        return ", ".join([*known, *shapes])

    def __repr__(self) -> str:
        parts = [(n, v) for n, v in _parts(self) if isinstance(v, Module)]
        head = f"{type(self).__name__}({self.details()}"
        if not parts:
            return head + ")"
        lines = [f"  {name}: {part!r}".replace("\n", "\n  ") for name, part in parts]
        return "\n".join([head, *lines, ")"])


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _parts(module: Module) -> list[tuple[str, Any]]:
    """The tensors, unknown tensors and submodules of a module with their names, including those in lists and dicts."""
    found: list[tuple[str, Any]] = []
    waiting = [(name, value) for name, value in reversed(vars(module).items()) if not name.startswith("_")]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Tensor | Unknown | Module):
            found.append((name, value))
        elif isinstance(value, list | tuple):
            waiting += reversed([(f"{name}.{i}", v) for i, v in enumerate(value)])
        elif isinstance(value, dict):
            waiting += reversed([(f"{name}.{k}", v) for k, v in value.items()])
    return found


def is_made(module: Module) -> bool:
    """Whether all its tensors exist and none waits for the first call."""
    return not any(isinstance(value, Unknown) for part in module.modules() for _, value in _parts(part))


def own_tensors(module: Module) -> list[tuple[str, Tensor]]:
    """The tensors of a module itself, without submodules, with their names."""
    return [(n, v) for n, v in _parts(module) if isinstance(v, Tensor)]


def _converted(value: Any, dtype: Any) -> Any:
    if isinstance(value, Tensor):
        if not value.dtype.is_float:
            return value
        new = value.detach().astype(dtype).realize()
        return as_parameter(new) if value.requires_grad else new
    if isinstance(value, list | tuple):
        return type(value)(_converted(v, dtype) for v in value)
    if isinstance(value, dict):
        return {k: _converted(v, dtype) for k, v in value.items()}
    return value


def _is_plain(value: Any) -> bool:
    """Whether a value is a setting: a number, string, bool, or a sequence of them."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _shape_text(value: Tensor | Unknown) -> str:
    return str(value) if isinstance(value, Unknown) else f"[{', '.join(map(str, value.shape))}]"
