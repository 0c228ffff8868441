"""The kit for layers, ours and a user's own: a `LayerCase` says what a layer should be, `check_layer` looks whether it is.

    case = LayerCase(lambda: nn.Linear(3, 2), [(4, 3)], (4, 2), lambda p, x: x @ p["weight"].T + p["bias"], parameters=8)
    check_layer(case)

One call looks at: values against a plain NumPy writing in float64, in all float dtypes; derivatives by inputs and parameters;
a compiled training step against a plain one; saving and loading; the modes; freezing; sizes found from the first input;
the counts of parameters and multiply-adds; its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import random
from ..derivatives import grad, gradients
from ..dtypes import DType, bfloat16, float16, float32, float64
from ..errors import UserError
from ..knobs import knobs
from ..nn.module import Module
from ..nn.summary import summary
from ..ops.convert import asarray
from ..ops.reduce import sum
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.jit import jit
from .checks import check_grads, close
from .counter import checks_run, counted, generator

Shape = tuple[int, ...]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class LayerCase:
    """What a layer should be. Leave out what is not known; the more is said, the more is checked."""

    make: Callable[[], Module]
    inputs: Sequence[Shape]  # with the batch
    output: Shape
    reference: Callable[..., Any] | None = None  # (its tensors by name, inputs...) -> the output in use, in float64
    parameters: int = 0  # numbers that are trained
    state: int = 0  # numbers that are not
    macs: int | None = None  # multiply-adds of one call
    sized: Callable[[], Module] | None = None  # the same layer with all sizes given, if `make` leaves some open
    below: int | None = None  # inputs are whole numbers from 0 on below this
    random: bool = False  # in training
    slack: float = 1.0  # how much less precise than one operation
    order: int = 1  # of the derivatives
    name: str = ""

    def __str__(self) -> str:
        return self.name or type(self.make()).__name__


def check_layer(case: LayerCase) -> int:
    """Check a layer, and give back how many single checks that were."""
    before, stream = checks_run(), random.default_generator.state
    rng = generator(f"layer {case}")
    try:
        with knobs.set(device="reference"):
            random.seed(7)  # also: the stream may stand on another device
            layer, inputs = _example(case, rng)
            for look in (_check_values, _check_modes, _check_counts, _check_saving):
                look(case, layer, inputs)
            _check_sizes(case, inputs)
            _check_text(case, layer)
            _check_derivatives(case, layer, inputs, rng)
        _check_training(case, inputs, layer.named_tensors())
    finally:
        random.default_generator.state = stream
    return checks_run() - before


def _example(case: LayerCase, rng: np.random.Generator) -> tuple[Module, list[np.ndarray]]:
    """A layer with values that hide nothing, where initial ones would be 0 or 1, and inputs for it."""
    inputs: list[np.ndarray] = [
        rng.integers(case.below, size=shape) if case.below else rng.normal(size=shape) for shape in case.inputs
    ]
    layer = _made(case, inputs)
    trained = layer.named_parameters()
    values = {n: rng.normal(size=t.shape) if n in trained else rng.uniform(0.5, 1.5, t.shape) for n, t in _all(layer)}
    return layer.load(values), inputs


def _made(case: LayerCase, inputs: Sequence[np.ndarray]) -> Module:
    layer = case.make().eval()
    layer(*_as(inputs, float32))  # unknown sizes become known
    return layer


def _all(layer: Module) -> list[tuple[str, Tensor]]:
    return list(layer.named_tensors().items())


def _as(inputs: Sequence[np.ndarray], dtype: DType) -> list[Tensor]:
    return [asarray(x, dtype=dtype) if x.dtype.kind == "f" else asarray(x) for x in inputs]


def _true(what: object, text: str) -> None:
    counted()
    assert what, text


# --- values ------------------------------------------------------------------------------------------------------------------


def _check_values(case: LayerCase, layer: Module, inputs: Sequence[np.ndarray]) -> None:
    """In every float dtype: the output's shape and dtype, and its values on the very numbers the dtype can hold."""
    for dtype in (bfloat16, float16, float32, float64):
        twin = _made(case, inputs).load(layer.named_tensors()).astype(dtype)
        _true(all(t.dtype is dtype for _, t in _all(twin)), f"{case}.astype({dtype.name}) left a tensor behind")
        given = _as(inputs, dtype)
        y = twin(*given)
        _true(y.shape == case.output, f"{case} gave shape {y.shape}, expected {case.output}")
        wanted = float32 if case.below and not case.parameters else dtype
        _true(y.dtype is wanted, f"{case} gave {y.dtype.name}, expected {wanted.name}")
        if case.reference is not None:
            wide = {n: t.numpy().astype(np.float64) for n, t in _all(twin)}
            expected = case.reference(
                wide, *(x.numpy().astype(x.numpy().dtype if case.below else np.float64) for x in given)
            )
            close(y.numpy(), expected, dtype, case.slack)


# --- what a module can do ------------------------------------------------------------------------------------------------------


def _check_modes(case: LayerCase, layer: Module, inputs: Sequence[np.ndarray]) -> None:
    given = _as(inputs, float32)
    in_use = layer(*given).numpy()
    _true(np.array_equal(layer(*given).numpy(), in_use), f"{case} in use gives other values each time")
    twin = _made(case, inputs).load(layer.named_tensors()).train()
    _true(all(m.training for m in twin.modules()), f"{case}.train() left a part behind")
    in_training = twin(*given)
    _true(in_training.shape == case.output, f"{case} in training gave shape {in_training.shape}")
    if case.random:
        _true(not np.array_equal(in_training.numpy(), in_use), f"{case} in training did nothing")
        _true(not np.array_equal(in_training.numpy(), twin(*given).numpy()), f"{case} in training does always the same")
    elif not case.state:
        _true(np.array_equal(in_training.numpy(), in_use), f"{case} gives other values in training")
    count = len(twin.parameters())
    _true(twin.freeze().parameters() == [], f"{case}.freeze() left a parameter behind")
    _true(len(twin.unfreeze().parameters()) == count, f"{case}.unfreeze() left a parameter behind")
    _true(not any(m.training for m in twin.eval().modules()), f"{case}.eval() left a part behind")


def _check_sizes(case: LayerCase, inputs: Sequence[np.ndarray]) -> None:
    """Sizes that are found from the first input are those that would have been given."""
    if case.sized is None:
        case.make().named_tensors()  # or an error: sizes are unknown after all
        return
    try:
        case.make().named_tensors()
        raise AssertionError(f"{case} has no unknown sizes")
    except UserError as error:
        _true("is not made yet" in str(error), str(error))
    found = {n: t.shape for n, t in _all(_made(case, inputs))}
    given = {n: t.shape for n, t in _all(case.sized())}
    _true(found == given, f"{case} found {found}, expected {given}")


def _check_counts(case: LayerCase, layer: Module, inputs: Sequence[np.ndarray]) -> None:
    found = summary(layer, *_as(inputs, float32))
    _true(found.parameters == case.parameters, f"{case} has {found.parameters} parameters, expected {case.parameters}")
    _true(found.state == case.state, f"{case} has {found.state} numbers of state, expected {case.state}")
    if case.macs is not None:
        _true(found.macs == case.macs, f"{case} does {found.macs} multiply-adds, expected {case.macs}")


def _check_saving(case: LayerCase, layer: Module, inputs: Sequence[np.ndarray]) -> None:
    """What was saved by name and loaded into a new layer gives the same values, to the last bit."""
    saved = {n: np.array(t.numpy()) for n, t in _all(layer)}
    twin = _made(case, inputs).load(saved)
    given = _as(inputs, float32)
    _true(np.array_equal(twin(*given).numpy(), layer(*given).numpy()), f"{case} gives other values once loaded")


def _check_text(case: LayerCase, layer: Module) -> None:
    text = repr(layer)
    _true(text.startswith(f"{type(layer).__name__}("), text)
    _true(all(n.rsplit(".", 1)[-1] + ": [" in text for n, _ in _all(layer)), text)
    _true(bool(type(layer).__doc__), f"{case} has no docstring")


# --- derivatives and training --------------------------------------------------------------------------------------------------


def _check_derivatives(case: LayerCase, layer: Module, inputs: Sequence[np.ndarray], rng: np.random.Generator) -> None:
    """By the inputs and by the parameters, together: one random direction in both."""
    wide = _made(case, inputs).load(layer.named_tensors()).astype(float64)
    names = list(wide.named_parameters())
    floats = [x for x in inputs if x.dtype.kind == "f"]

    def f(*values: Tensor) -> Tensor:
        xs = iter(values)
        given = [next(xs) if x.dtype.kind == "f" else asarray(x) for x in inputs]
        with _replaced(wide, dict(zip(names, xs, strict=True))):
            return wide(*given)  # type: ignore[no-any-return]

    points = [*floats, *(t.numpy() for t in wide.named_parameters().values())]
    if points:
        check_grads(f, points, rng=rng, order=case.order)


@contextmanager
def _replaced(layer: Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, the layer computes with other tensors than its own."""
    parts = layer.named_modules()
    places = {name: (parts[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in tensors}
    own = {name: getattr(*place) for name, place in places.items()}
    try:
        for name, place in places.items():
            setattr(*place, tensors[name])
        yield
    finally:
        for name, place in places.items():
            setattr(*place, own[name])


def _check_training(case: LayerCase, inputs: Sequence[np.ndarray], values: Mapping[str, Any]) -> None:
    """A compiled training step does what a plain one does, and moves every parameter."""
    start = {n: np.array(t.numpy()) for n, t in values.items()}
    with knobs.set(device="reference"):
        plain = _Step(_made(case, inputs).load(start).train())
        random.seed(7)
        expected = [t.numpy() for t in plain.run(*_as(inputs, float32))]
        after = {n: t.numpy() for n, t in _all(plain.layer)}
    compiled = _Step(_made(case, inputs).load(start).train())
    random.seed(7)
    found = [t.numpy() for t in jit(compiled.run)(*_as(inputs, float32))]
    for actual, value in zip(found, expected, strict=True):
        close(actual, value, float32, 20.0 * case.slack)
    for name, tensor in _all(compiled.layer):
        close(tensor.numpy(), after[name], float32, 20.0 * case.slack)
        _true(not np.array_equal(tensor.numpy(), start[name]), f"a training step of {case} left {name} as it was")


@dataclass
class _Step:
    """A step of training: the parameters go against their gradients. Without parameters, the inputs' gradients."""

    layer: Module

    def run(self, *xs: Tensor) -> list[Tensor]:
        parameters = self.layer.parameters()
        if not parameters:
            floats = [i for i, x in enumerate(xs) if x.dtype.is_float]
            slopes = grad(lambda *ys: _loss(self.layer(*ys)), argnums=floats)(*xs) if floats else []
            return [self.layer(*xs), *slopes]
        y = self.layer(*xs)
        for parameter, slope in zip(parameters, gradients(_loss(y), parameters), strict=True):
            parameter.assign(parameter - 0.1 * slope)
        return [y]


def _loss(y: Tensor) -> Tensor:
    """Sums of squares alone would have no slope where a layer normalises."""
    weights = asarray(np.linspace(0.5, 1.5, y.size, dtype=np.float32).reshape(y.shape))
    return sum(weights * y * y + y)
