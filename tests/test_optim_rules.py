"""The rule of every optimizer: against its writing in NumPy, in other dtypes, and on small problems."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optim_rules as rules
import weft
from weft import optim
from weft.knobs import knobs
from weft.testing import counted, generator

SHAPES = ((3, 4), (5,), (2, 3, 3, 3))
STEPS = 5
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
    ("sgd", {"momentum": 0.8, "dampening": 0.3}),
    ("signum", {"weight_decay": 0.1}),
    ("lion", {"weight_decay": 0.1}),
    ("rprop", {}),
    ("rprop", {"least": 0.9, "most": 1.1}),
    ("adagrad", {"start": 0.1, "weight_decay": 0.1}),
    ("rmsprop", {"weight_decay": 0.1}),
    ("rmsprop", {"momentum": 0.9, "centered": True, "decay": 0.5}),
    ("adadelta", {"weight_decay": 0.1}),
    ("sm3", {}),
    ("ftrl", {"l1": 0.2, "l2": 0.1}),
    ("adam", {}),
    ("adam", {"weight_decay": 0.1, "amsgrad": True, "b2": 0.5}),
    ("adamw", {"weight_decay": 0.1}),
    ("adamax", {"weight_decay": 0.1}),
    ("nadam", {"weight_decay": 0.1}),
    ("radam", {"weight_decay": 0.1}),
    ("radam", {"b2": 0.8}),
    ("yogi", {"weight_decay": 0.1}),
    ("adabelief", {"weight_decay": 0.1}),
    ("adan", {"weight_decay": 0.1}),
    ("lars", {"weight_decay": 0.1}),
    ("lars", {"trust": 0.0, "rate": 0.01}),
    ("lamb", {}),
    ("novograd", {"weight_decay": 0.1}),
    ("adafactor", {"weight_decay": 0.1}),
    ("adafactor", {"clip": 0.1, "rate": 0.1}),
    ("muon", {}),
    ("muon", {"nesterov": False, "orthogonalize": False}),
]
IDS = [f"{name}-{'-'.join(settings)}" for name, settings in ROWS]


@pytest.fixture
def reference() -> Iterator[None]:
    """Plain steps, computed by the definitions: nothing needs to be compiled."""
    with knobs.set(device="reference"):
        yield


def numbers(name: str) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Parameters, and gradients for each of some steps."""
    rng = generator(name)
    start = [rng.normal(size=s).astype(np.float32) for s in SHAPES]
    return start, [[rng.normal(size=s).astype(np.float32) for s in SHAPES] for _ in range(STEPS)]


def agree(parameters: list[weft.Tensor], expected: list[np.ndarray], tolerance: float = 2e-6) -> None:
    for p, e in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(p.numpy(), e, rtol=tolerance, atol=tolerance)
        counted()


def moved(name: str, settings: dict[str, Any]) -> list[np.ndarray]:
    start, gs = numbers(name)
    rule = getattr(rules, name)
    found = [rule(p.astype(float), [g[i].astype(float) for g in gs], **settings) for i, p in enumerate(start)]
    assert all(np.abs(f - p).max() > 1e-5 for f, p in zip(found, start, strict=True)), "nothing would be tested"
    return found


# --- rules --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "settings"), ROWS, ids=IDS)
def test_rule(name: str, settings: dict[str, Any], reference: None) -> None:
    start, gs = numbers(name)
    parameters = [weft.parameter(p) for p in start]
    optimizer = optim.find(name)(parameters, **settings)
    for g in gs:
        optimizer.step([weft.asarray(x) for x in g])
    agree(parameters, moved(name, settings))
    assert not any(t.requires_grad for t in optimizer.named_state().values())


@pytest.mark.sweep("name", share=0.0)
@pytest.mark.parametrize(("name", "settings"), ROWS, ids=IDS)
def test_rule_compiled(name: str, settings: dict[str, Any]) -> None:
    start, gs = numbers(name)
    parameters = [weft.parameter(p) for p in start]
    optimizer = optim.find(name)(parameters, **settings)
    step = weft.jit(lambda *g: optimizer.step(g))
    for g in gs:
        step(*g)
    agree(parameters, moved(name, settings))


@pytest.mark.sweep("name", "settings", share=0.3)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(("name", "settings"), ROWS, ids=IDS)
def test_rule_in_float64(name: str, settings: dict[str, Any], compiled: bool) -> None:
    """No constant of a rule, of a schedule or of the steps is rounded to float32 on the way to float64 parameters."""
    rng = generator(name)
    start = [rng.normal(size=s) for s in ((2, 3), (4,))]
    gs = [rng.normal(size=(8, *p.shape)) for p in start]
    parameters = [weft.parameter(p) for p in start]
    optimizer = optim.find(name)(parameters, **settings)
    step = weft.jit(optimizer.step) if compiled else optimizer.step
    for g in zip(*gs, strict=True):
        step([weft.asarray(x) for x in g])
    expected = [getattr(rules, name)(p, list(g), **settings) for p, g in zip(start, gs, strict=True)]
    agree(parameters, expected, tolerance=1e-13)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_schedules_and_common_settings_in_float64(compiled: bool) -> None:
    p = weft.parameter(np.array([1.0, -2.0]))
    schedule = optim.schedules.warmup(optim.schedules.multistep(0.1, [2, 4], factor=0.3), steps=2, start=0.01)
    optimizer = optim.sgd(p, rate=schedule, clip_norm=0.7, clip_value=0.6, average=0.9)
    step = weft.jit(optimizer.step) if compiled else optimizer.step
    expected = average = np.array([1.0, -2.0])
    for rate in (0.01, 0.055, 0.1, 0.1, 0.1 * 0.3, 0.1 * 0.3, 0.1 * 0.3**2):
        step([weft.asarray(np.array([0.9, 0.4]))])
        expected = expected - rate * np.array([0.6, 0.4]) * min(1.0, 0.7 / np.hypot(0.6, 0.4))
        average = average * 0.9 + expected * (1.0 - 0.9)
    agree([p, optimizer.averages[0]], [expected, average], tolerance=1e-13)


def test_every_optimizer_and_schedule_is_tested_and_documented() -> None:
    assert {name for name, _ in ROWS} == set(optim.OPTIMIZERS)
    page = (Path(__file__).resolve().parent.parent / "docs" / "optim.md").read_text(encoding="utf-8")
    for name in (*optim.OPTIMIZERS, *optim.SCHEDULES):
        assert f"| `{name}" in page, f"{name} is missing in docs/optim.md"
        counted()


@pytest.mark.sweep("name", share=0.25)
@pytest.mark.parametrize("name", optim.OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(name: str, dtype: str, reference: None) -> None:
    """State of 16-bit parameters is float32: one step from the same numbers is the same step, rounded once."""
    start, gs = numbers(name)
    narrow = weft.parameter(weft.asarray(start[0]).astype(dtype))
    expected = weft.parameter(narrow.detach().astype("float64"))
    g = weft.asarray(gs[0][0]).astype(dtype)
    for p in (narrow, expected):
        optim.find(name)(p).step([g])
    assert narrow.dtype.name == dtype
    tolerance = {"float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(narrow.numpy().astype(float), expected.numpy(), rtol=tolerance, atol=tolerance)
    counted()


@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_gradients_of_zero_and_scalars(name: str, reference: None) -> None:
    """No division of 0 by 0, whatever the shape."""
    parameters = [weft.parameter(np.ones(s, np.float32)) for s in ((), (1,), (2, 2))]
    optimizer = optim.find(name)(parameters)
    for value in (0.0, 0.0, 1.0, 0.0):
        optimizer.step([weft.full(p.shape, value) for p in parameters])
    assert all(np.isfinite(p.numpy()).all() for p in parameters)
    counted()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", optim.OPTIMIZERS)
def test_averages_of_gradients_that_became_zero_are_not_subnormal(name: str, dtype: str, reference: None) -> None:
    """x86 CPUs take hundreds of cycles for an operation on a subnormal number, and decay alone never leaves that range."""
    settings = {"momentum": 0.9} if name in ("sgd", "rmsprop") else {}
    p = weft.parameter(np.ones((4, 4), dtype))
    optimizer = optim.find(name)([p], **settings)
    optimizer.step([weft.ones((4, 4), dtype=dtype)])
    smallest = weft.finfo(dtype).smallest_normal
    state = [t for t in optimizer.named_state().values() if t.dtype.name == dtype and t.size > 1]
    for t in state:
        t.assign(weft.full(t.shape, 1.05 * smallest, dtype=dtype))
    optimizer.step([weft.zeros((4, 4), dtype=dtype)])
    for t in state:
        values = np.abs(t.numpy())
        assert not ((values > 0) & (values < smallest)).any()
    counted()


def test_hand_computed(reference: None) -> None:
    p = weft.parameter([1.0])
    optimizer = optim.sgd(p, rate=0.5, momentum=0.5)
    values = []
    for _ in range(3):  # velocities 1, 1.5, 1.75
        optimizer.step([weft.asarray([1.0])])
        values.append(p.item())
    assert values == [0.5, -0.25, -1.125]
    q = weft.parameter([1.0, -2.0])
    optim.adam(q, rate=0.25).step([weft.asarray([5.0, -0.1])])  # the first step of Adam is the sign of the gradient
    np.testing.assert_allclose(q.numpy(), [0.75, -1.75], atol=1e-6)
    w = weft.parameter([3.0, -1.0])
    optim.ftrl(w, l1=100.0).step([weft.asarray([1.0, 1.0])])
    assert w.tolist() == [0.0, 0.0]  # exactly
    counted(3)


def test_muon_makes_steps_orthogonal(reference: None) -> None:
    rng = generator("muon")
    p = weft.parameter(np.zeros((6, 3), np.float32))
    optim.muon(p, rate=1.0).step([weft.asarray(rng.normal(size=(6, 3)).astype(np.float32))])
    values = np.linalg.svd(p.numpy() / (0.2 * 6**0.5), compute_uv=False)
    assert values.min() > 0.6
    assert values.max() < 1.3
    counted()


# --- problems -----------------------------------------------------------------------------------------------------------------

RATES = {
    "sgd": 0.05, "signum": 0.02, "lion": 0.02, "rprop": 0.05, "adagrad": 1.0, "rmsprop": 0.02, "adadelta": 30.0, "sm3": 1.0,
    "ftrl": 1.0, "adam": 0.1, "adamw": 0.1, "adamax": 0.1, "nadam": 0.1, "radam": 0.05, "yogi": 0.1, "adabelief": 0.1,
    "adan": 0.1, "lars": 5.0, "lamb": 0.05, "novograd": 0.05, "adafactor": 0.1, "muon": 0.2,
}  # fmt: skip


def bowl(p: weft.Tensor) -> weft.Tensor:
    curves = weft.asarray([[1.0, 3.0], [5.0, 2.0]])
    return (curves * (p - 1.0) * (p - 1.0)).sum()


def valley(p: weft.Tensor) -> weft.Tensor:
    """Rosenbrock's, less steep: a bent valley with its lowest point at ones."""
    x, y = p[:, 0], p[:, 1]
    return ((1.0 - x) * (1.0 - x) + 5.0 * (y - x * x) * (y - x * x)).sum()


@pytest.mark.sweep("name", share=0.3)
@pytest.mark.parametrize("name", optim.OPTIMIZERS)
@pytest.mark.parametrize("problem", [bowl, valley])
def test_converges(name: str, problem: Callable[[weft.Tensor], weft.Tensor]) -> None:
    p = weft.parameter([[-0.8, 0.4], [0.3, -0.5]])
    settings = {"weight_decay": 0.0} if name in ("adamw", "lamb", "muon") else {}
    optimizer = optim.find(name)(p, rate=RATES[name], **settings)

    @weft.jit
    def step() -> weft.Tensor:
        loss = problem(p)
        optimizer.minimize(loss)
        return loss

    first = step().item()
    for i in range(400):
        if i % 100 == 99:
            optimizer.scale.assign(optimizer.scale * 0.4)
        step()
    assert step().item() < 0.05 * first
    counted()
