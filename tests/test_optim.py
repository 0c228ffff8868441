"""What all optimizers can do beside their rules: groups, clipping, accumulation, averages, saved state, skipped steps, errors."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.errors import UserError
from weft.knobs import knobs
from weft.testing import counted, generator


@pytest.fixture
def reference() -> Iterator[None]:
    """Plain steps, computed by the definitions: nothing needs to be compiled."""
    with knobs.set(device="reference"):
        yield


def agree(parameters: list[weft.Tensor], expected: list[np.ndarray], tolerance: float = 2e-6) -> None:
    for p, e in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(p.numpy(), e, rtol=tolerance, atol=tolerance)
        counted()


class Line(nn.Module):
    """y = w x + b"""

    def __init__(self) -> None:
        self.w, self.b = nn.parameter((2, 3), 0.5), nn.parameter((2, 1), 0.25)

    def forward(self, x: Any) -> Any:
        return self.w @ x + self.b


def loss_of(model: Line, x: Any) -> weft.Tensor:
    y = model(weft.asarray(x))
    return (y * y).mean()


def batches(number: int, seed: str = "batches") -> list[np.ndarray]:
    rng = generator(seed)
    return [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(number)]


def trained(make: Callable[[Line], optim.Optimizer], by: str = "minimize", steps: int = 4) -> tuple[Line, Any]:
    model = Line()
    optimizer = make(model)
    for x in batches(steps):
        if by == "minimize":
            optimizer.minimize(loss_of(model, x))
        elif by == "grad":
            loss_of(model, x).backward()
            optimizer.step()
            assert model.w.grad is None
        else:
            optimizer.step(weft.gradients(loss_of(model, x), optimizer.parameters))
    return model, optimizer


def same(a: Line, b: Line) -> None:
    assert np.array_equal(a.w.numpy(), b.w.numpy())
    assert np.array_equal(a.b.numpy(), b.b.numpy())
    counted(2)


@pytest.mark.parametrize("by", ["grad", "step"])
def test_ways_to_step_agree(by: str, reference: None) -> None:
    same(trained(optim.adam)[0], trained(optim.adam, by)[0])


WAYS: dict[str, Callable[[Line], Any]] = {
    "list": lambda m: [m.w, m.b],
    "tuple": lambda m: (m.w, m.b),
    "generator": lambda m: (p for p in (m.w, m.b)),
    "dict": lambda m: {"w": m.w, "b": m.b},
    "modules": lambda m: [m],
    "nested": lambda m: [{"all": [m.w, (m.b,)]}],
    "groups": lambda m: [{"parameters": m.w}, {"parameters": [m.b]}],
    "one group": lambda m: {"parameters": m},
    "mixed": lambda m: [{"parameters": m.w}, m.b],
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_give_parameters(way: str, reference: None) -> None:
    same(trained(optim.adam)[0], trained(lambda m: optim.adam(WAYS[way](m)))[0])


def test_groups_have_settings_of_their_own(reference: None) -> None:
    model, optimizer = trained(
        lambda m: optim.sgd(
            [{"parameters": m.w, "rate": 0.5, "momentum": 0.9}, {"parameters": m.b}], 0.1, weight_decay=0.1
        )
    )
    assert optimizer.rates() == [0.5, pytest.approx(0.1)]
    assert [g.settings for g in optimizer.groups] == [{"weight_decay": 0.1, "momentum": 0.9}, {"weight_decay": 0.1}]
    w, b = np.full((2, 3), 0.5), np.full((2, 1), 0.25)
    gs = []
    velocity = np.zeros_like(w)
    for x in batches(4):
        y = w @ x + b
        gs = [2 * y @ x.T / y.size + 0.1 * w, 2 * y.sum(axis=1, keepdims=True) / y.size + 0.1 * b]
        velocity = 0.9 * velocity + gs[0]
        w, b = w - 0.5 * velocity, b - 0.1 * gs[1]
    agree([model.w, model.b], [w, b])


def test_clipping(reference: None) -> None:
    gs = [np.array([3.0, -4.0], np.float32), np.array([12.0], np.float32)]  # of length 13 together

    def after(**common: float) -> list[Any]:
        ps = [weft.parameter([0.0, 0.0]), weft.parameter([0.0])]
        optim.sgd(ps, 1.0, **common).step([weft.asarray(g) for g in gs])
        return [p.tolist() for p in ps]

    assert after(clip_value=3.5) == [[-3.0, 3.5], [-3.5]]
    np.testing.assert_allclose(np.concatenate(after(clip_norm=6.5)), [-1.5, 2.0, -6.0], rtol=1e-6)
    assert after(clip_norm=14.0) == [[-3.0, 4.0], [-12.0]]
    assert after(clip_value=4.0, clip_norm=100.0) == [[-3.0, 4.0], [-4.0]]  # values first
    assert optim.norm([weft.asarray(g) for g in gs]).item() == 13.0
    assert (
        optim.norm([weft.asarray([300.0, 400.0]).astype("float16")]).item() == 500.0
    )  # whose square float16 cannot hold
    counted(6)


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_accumulate(compiled: bool) -> None:
    """Three calls are one step with the mean of their gradients, to the last bit."""
    rng = generator("accumulate")
    gs = [rng.normal(size=4).astype(np.float32) for _ in range(6)]
    with knobs.set(device="cpu" if compiled else "reference"):
        many, few = weft.parameter(np.ones(4, np.float32)), weft.parameter(np.ones(4, np.float32))
        accumulating, plain = optim.adam(many, 0.1, accumulate=3, clip_norm=0.5), optim.adam(few, 0.1, clip_norm=0.5)
        step = weft.jit(lambda g: accumulating.step([g])) if compiled else lambda g: accumulating.step([g])
        mean = weft.jit(lambda a, b, c: plain.step([(a + b + c) / 3.0])) if compiled else None
        for i, g in enumerate(gs):
            before = many.numpy().copy()
            step(weft.asarray(g))
            if i % 3 < 2:
                assert np.array_equal(many.numpy(), before)
                continue
            a, b, c = (weft.asarray(x) for x in gs[i - 2 : i + 1])
            mean(a, b, c) if mean else plain.step([(a + b + c) / 3.0])
            assert np.array_equal(many.numpy(), few.numpy())
            assert not np.array_equal(many.numpy(), before)
        assert (accumulating.steps.item(), accumulating.calls.item()) == (2, 0)
    counted(7)


def test_average(reference: None) -> None:
    p = weft.parameter([1.0, 2.0])
    optimizer = optim.sgd(p, 1.0, average=0.75)
    expected, now = np.array([1.0, 2.0]), np.array([1.0, 2.0])
    for g in ([1.0, 0.0], [2.0, -4.0]):
        optimizer.step([weft.asarray(g)])
        now = now - g
        expected = 0.75 * expected + 0.25 * now
    with optimizer.averaged():
        assert p.tolist() == expected.tolist()
        assert p.requires_grad
    assert p.tolist() == now.tolist()
    with pytest.raises(KeyError), optimizer.averaged():
        raise KeyError
    assert p.tolist() == now.tolist()
    counted(4)


def test_average_of_narrow_parameters_is_wide(reference: None) -> None:
    p = weft.parameter(weft.ones(1).astype("float16"))
    optimizer = optim.sgd(p, 0.5, average=0.9999)
    for _ in range(3):
        optimizer.step([weft.ones(1)])
    assert optimizer.averages[0].item() < 1.0  # float16 has nothing between 1 and 0.9995
    with optimizer.averaged():
        assert p.dtype is weft.float16
    assert p.item() == -0.5
    counted(3)


@pytest.mark.parametrize("name", ["sgd", "nadam", "adafactor", "muon"])
def test_going_on_from_a_saved_state(name: str) -> None:
    def make() -> tuple[Line, optim.Optimizer, Any]:
        model = Line()
        settings = {"momentum": 0.9} if name == "sgd" else {}
        optimizer = optim.find(name)(model, accumulate=2, average=0.9, **settings)

        @weft.jit
        def step(x: Any) -> None:
            optimizer.minimize(loss_of(model, x))

        return model, optimizer, step

    model, optimizer, step = make()
    xs = batches(9)
    for x in xs[:5]:
        step(x)
    saved = {n: t.numpy() for n, t in optimizer.named_state().items()}
    values = {n: t.numpy() for n, t in model.named_tensors().items()}
    other, fresh, again = make()
    for x in xs[:3]:
        again(x)  # it is somewhere else
    for x in xs[5:]:
        step(x)
    other.load(values)
    fresh.load(saved)
    for x in xs[5:]:
        again(x)
    same(model, other)
    for n, t in optimizer.named_state().items():
        assert np.array_equal(t.numpy(), fresh.named_state()[n].numpy()), n
        counted()


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_overflow_changes_nothing(compiled: bool, accumulate: int) -> None:
    """Of several calls that make one update, one that overflows spoils all."""
    with knobs.set(device="cpu" if compiled else "reference"):
        model, other, scale = Line(), Line(), weft.LossScale()
        careful, plain = (optim.adam(m, 0.1, accumulate=accumulate, average=0.5) for m in (model, other))

        def step(x: weft.Tensor) -> None:
            careful.minimize(loss_of(model, x), scale)

        run = weft.jit(step) if compiled else step
        for i, x in enumerate(batches(5)):
            if i == 2:
                before = {n: t.numpy().copy() for n, t in careful.named_state().items()}
                w = model.w.numpy().copy()
                for call in range(accumulate):
                    run(weft.asarray(x * np.float32(np.inf if call == 0 else 1.0)))
                assert np.array_equal(model.w.numpy(), w)
                after = {n: t.numpy() for n, t in careful.named_state().items() if not n.startswith("collected.")}
                assert all(np.array_equal(value, before[n]) for n, value in after.items())
            run(weft.asarray(x))
            plain.minimize(loss_of(other, x))
        assert scale.scale.item() == 2.0**14
        agree([model.w, model.b], [other.w.numpy(), other.b.numpy()])
        assert careful.steps.item() == plain.steps.item()
    counted(3)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_state_keeps_no_history(accumulate: int, reference: None) -> None:
    """Gradients can be differentiated again; a state that kept that would keep every step alive."""
    _, optimizer = trained(lambda m: optim.adamw(m, accumulate=accumulate, average=0.9))
    assert not any(t.requires_grad for t in optimizer.named_state().values())
    counted()


def test_rates_change_without_tracing_again() -> None:
    p, traces = weft.parameter([1.0]), []
    optimizer = optim.sgd(p, rate=optim.schedules.step(1.0, every=2, factor=0.5))

    @weft.jit
    def step(g: weft.Tensor) -> None:
        traces.append(1)
        optimizer.step([g])

    moves, one = [], weft.asarray([1.0])
    for i in range(6):
        if i == 4:
            optimizer.scale.assign(0.5)
        before = p.item()
        assert optimizer.rates() == [pytest.approx([1.0, 1.0, 0.5, 0.5, 0.125, 0.125][i])]
        step(one)
        moves.append(before - p.item())
    assert moves == pytest.approx([1.0, 1.0, 0.5, 0.5, 0.125, 0.125])
    assert len(traces) == 1
    counted(8)


def test_an_optimizer_of_ones_own(reference: None) -> None:
    class Half(optim.Transform):
        def apply(self, g: Any, p: Any, s: Any, t: Any) -> Any:
            return g * 0.5

    @optim.optimizer
    def halving(rate: Any = 1.0) -> list[optim.Transform]:
        return [Half()]

    try:
        p = weft.parameter([1.0])
        optim.find("halving")(p, rate=lambda t: 1.0 / (1.0 + t)).step([weft.asarray([1.0])])
        assert p.item() == 0.5
    finally:
        del optim.OPTIMIZERS["halving"]
    counted()


# --- errors -------------------------------------------------------------------------------------------------------------------


def param() -> weft.Tensor:
    return weft.parameter([1.0, 2.0])


ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: optim.find("sdg"), "[optim] there is no optimizer 'sdg'. Did you mean sgd?"),
    (lambda: optim.find("AdamW"), "[optim] there is no optimizer 'AdamW'. Did you mean adamw?"),
    (lambda: optim.find("unheard of"), "[optim] there is no optimizer 'unheard of'. Known: adabelief, adadelta, "),
    (
        lambda: optim.sgd(param(), speed=1),
        "[sgd] there is no setting 'speed'. Known: accumulate, average, axis, clip_norm, ",
    ),
    (lambda: optim.sgd(param(), lr=0.1), "[sgd] there is no setting 'lr'. Did you mean rate?"),
    (lambda: optim.sgd(param(), -0.1), "[sgd] a rate of 0 or more, or a schedule, is required, got -0.1."),
    (lambda: optim.sgd(param(), "fast"), "[sgd] a rate of 0 or more, or a schedule, is required, got 'fast'."),
    (lambda: optim.sgd([]), "[sgd] there are no parameters to train."),
    (lambda: optim.sgd(7), "[sgd] a module, tensors, or groups of them are required as parameters, got 7."),
    (lambda: optim.sgd([weft.zeros(1)]), "[sgd] parameters are required (weft.parameter, or unfreeze()), got Tensor("),
    (lambda: optim.sgd([p := param(), p]), "[sgd] a parameter is given twice."),
    (lambda: optim.sgd(param(), momentum=1.0), "[sgd] momentum must be a number in [0, 1), got 1.0."),
    (lambda: optim.sgd(param(), weight_decay=-1), "[sgd] weight_decay must be a number of 0 or more, got -1."),
    (
        lambda: optim.sgd(param(), nesterov=True),
        "[sgd] nesterov requires a momentum and no dampening, got momentum=0.0",
    ),
    (lambda: optim.adam(param(), eps=0.0), "[adam] eps must be a number greater than 0, got 0.0."),
    (lambda: optim.adam(param(), b2="0.9"), "[adam] b2 must be a number in [0, 1), got '0.9'."),
    (lambda: optim.rprop(param(), grow=0.9), "[rprop] grow > 1 and least <= 1 <= most are required, got grow=0.9"),
    (
        lambda: optim.ftrl(param(), lambda t: 1.0),
        "[ftrl] a number above 0 is required as the rate, not a schedule, got",
    ),
    (lambda: optim.muon(param(), rounds=0), "[muon] rounds must be an int of 1 or more, got 0."),
    (lambda: optim.sgd(param(), clip_norm=0), "[sgd] clip_norm must be greater than 0, got 0."),
    (
        lambda: optim.sgd(param(), accumulate=0),
        "[sgd] gradients are accumulated over 1 call or more, got accumulate=0.",
    ),
    (lambda: optim.sgd(param(), average=1.0), "[sgd] average must lie between 0 and 1, got 1.0."),
    (
        lambda: optim.sgd(param()).step(),
        "[sgd] no parameter has a gradient. Call loss.backward() first, or minimize(loss).",
    ),
    (lambda: optim.sgd(param()).step([]), "[sgd] 1 gradients are required, got 0."),
    (lambda: optim.sgd(param()).step([weft.zeros(1)]), "[sgd] a gradient of shape (2,) is required, got (1,)."),
    (
        lambda: optim.sgd(param()).averaged().__enter__(),
        "[sgd] no averages are kept. Pass average=0.999 when you create",
    ),
    (
        lambda: optim.sgd(param()).load({"steps": 1}),
        "[sgd] this is another optimizer's state. Missing: ['scale', 'calls']",
    ),
]


@pytest.mark.parametrize(("wrong", "text"), ERRORS, ids=[text[:40] for _, text in ERRORS])
def test_errors(wrong: Callable[[], Any], text: str) -> None:
    with pytest.raises(weft.UserError) as caught:
        wrong()
    assert text in str(caught.value)
    counted()


@pytest.mark.parametrize("settings", [{}, {"clip_norm": 1.0}, {"accumulate": 2}, {"average": 0.9}], ids=str)
def test_frozen_parameters_and_their_state_stay(settings: dict[str, Any]) -> None:
    """And the others move as if they were alone; after unfreeze() all move again, also in a compiled step."""

    def trained(body_frozen: bool, compiled: bool) -> Any:
        weft.seed(2)
        model = nn.Sequential(nn.Linear(3, 4, activation="tanh"), nn.Linear(4, 2))
        made = optim.adam([{"parameters": model[0], "rate": 0.01}, {"parameters": model[1]}], rate=0.1, **settings)
        x = weft.asarray(np.linspace(-1, 1, 15, dtype="float32").reshape(5, 3))

        def step(x: weft.Tensor) -> weft.Tensor:
            loss: weft.Tensor = (model(x) * model(x)).mean()
            made.minimize(loss)
            return loss

        run = weft.jit(step) if compiled else step
        if body_frozen:
            model[0].freeze()
        values = []
        for i in range(6):
            if i == 4:
                model[0].unfreeze()
            run(x)
            state = {n: t.numpy().copy() for n, t in made.named_state().items() if n.startswith("0.")}
            values.append((model[0].weight.numpy().copy(), model[1].weight.numpy().copy(), state))
        return values

    for compiled in (False, True):
        frozen = trained(True, compiled)
        for weight, _, state in frozen[:4]:
            np.testing.assert_array_equal(weight, frozen[0][0])
            assert all(not np.any(t) for t in state.values())
        assert np.any(frozen[3][1] != frozen[0][1])
        assert np.any(frozen[5][0] != frozen[0][0])
        counted(6)
    if "clip_norm" not in settings:  # the first step of the head knows nothing of the body
        np.testing.assert_array_equal(trained(False, True)[0][1], frozen[0][1])


def test_nothing_to_train() -> None:
    model = nn.Linear(2, 2)
    made = optim.sgd(model, rate=0.1)
    model.freeze()
    with pytest.raises(UserError, match="all parameters are frozen: there is nothing to train"):
        made.minimize(model(weft.zeros((1, 2))).sum())
