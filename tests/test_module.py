"""Checks modules: what they are made of, modes, freezing, loading, unknown sizes, and that compiled functions follow them."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.errors import UserError
from weft.testing import counted

T = weft.Tensor


class Linear(nn.Module):
    """y = x Wᵀ + b"""

    def __init__(self, inputs: int | None, outputs: int) -> None:
        self.outputs = outputs
        self.weight = nn.parameter((outputs, inputs), "he_uniform")
        self.bias = nn.parameter(outputs)

    def sizes(self, x: T) -> dict[str, tuple[int, ...]]:
        return {"weight": (self.outputs, x.shape[-1])}

    def forward(self, x: T) -> T:
        return x @ self.weight.T + self.bias


class Net(nn.Module):
    """Two layers in a list, one in a dict, state, a setting, and something private."""

    def __init__(self, inputs: int | None = 4) -> None:
        self.layers = [Linear(inputs, 5), Linear(5, 3)]
        self.heads = {"a": Linear(3, 2)}
        self.seen = nn.state(())
        self.factor = 2.0
        self._private = weft.zeros(3)

    def forward(self, x: T) -> T:
        for layer in self.layers:
            x = weft.tanh(layer(x))
        if self.training:
            self.seen.assign(self.seen + 1.0)
            x = x * self.factor
        return self.heads["a"](x)


X = weft.asarray(np.random.default_rng(0).normal(size=(6, 4)).astype("float32"))
NAMES = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "heads.a.weight", "heads.a.bias"]


def test_what_it_is_made_of() -> None:
    net = Net()
    assert list(net.named_parameters()) == NAMES
    assert list(net.named_tensors()) == ["seen", *NAMES]
    assert list(net.named_state()) == ["seen"]
    assert list(net.named_modules()) == ["", "layers.0", "layers.1", "heads.a"]
    assert len(net.parameters()) == 6
    assert len(net.modules()) == 4


def test_what_is_shared_comes_once() -> None:
    net = Net()
    net.heads["b"] = net.heads["a"]
    net.layers[1].bias = net.heads["a"].weight
    assert "heads.b.weight" not in net.named_tensors()
    assert list(net.named_tensors()).count("heads.a.weight") == 0
    assert len(net.parameters()) == 5


def test_modes() -> None:
    net = Net()
    assert net.training
    trained = net(X)
    assert net.eval() is net
    assert [m.training for m in net.modules()] == [False] * 4
    assert net.seen.item() == 1.0
    assert not np.allclose(net(X).numpy(), trained.numpy())
    assert net.seen.item() == 1.0
    net.train()
    np.testing.assert_array_equal(net(X).numpy(), trained.numpy())


def test_freezing_and_unfreezing() -> None:
    net = Net()
    net.layers[0].freeze()
    net.layers[0].freeze()
    assert list(net.named_parameters()) == NAMES[2:]
    assert list(net.named_state()) == ["seen"]
    net(X).sum().backward()
    assert net.layers[0].weight.grad is None
    assert net.layers[1].weight.grad is not None
    net.unfreeze()
    assert list(net.named_parameters()) == NAMES
    assert list(net.freeze().named_parameters()) == []
    assert list(net.unfreeze().named_parameters()) == NAMES


# --- values ---------------------------------------------------------------------------------------------------------------------


def test_loading() -> None:
    net, other = Net(), Net()
    assert other.load(net.named_tensors()) is other
    for name, value in net.named_tensors().items():
        np.testing.assert_array_equal(other.named_tensors()[name].numpy(), value.numpy())
        counted()
    assert other.parameters()[0].requires_grad
    net.parameters()[0].assign(weft.zeros((5, 4)))
    assert other.parameters()[0].numpy().any()


def test_loading_lists_all_that_is_wrong_and_changes_nothing() -> None:
    net = Net()
    values = {name: t.numpy() + 1.0 for name, t in net.named_tensors().items()}
    before = net.layers[1].bias.numpy().copy()
    del values["seen"], values["layers.0.bias"]
    values |= {"strange": np.zeros(2), "heads.a.weight": np.zeros((7, 7))}
    message = (
        r"\[Net.load\] other shapes: heads.a.weight is \(2, 3\), got \(7, 7\). missing: seen, layers.0.bias. "
        r"not in this network: strange."
    )
    with pytest.raises(UserError, match=message):
        net.load(values)
    with pytest.raises(UserError, match="other shapes"):
        net.load(values, strict=False)
    np.testing.assert_array_equal(net.layers[1].bias.numpy(), before)
    del values["heads.a.weight"]
    net.load(values, strict=False)
    np.testing.assert_array_equal(net.layers[1].bias.numpy(), before + 1.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes(dtype: str) -> None:
    net = Net().astype(dtype)
    assert {t.dtype.name for t in net.named_tensors().values()} == {dtype}
    assert list(net.named_parameters()) == NAMES
    assert net(X.astype(dtype)).dtype.name == dtype


# --- unknown sizes --------------------------------------------------------------------------------------------------------------


def test_unknown_sizes_are_found_at_the_first_call() -> None:
    net = Net(None)
    assert "weight: [5, ?]" in repr(net)
    with pytest.raises(
        UserError, match=r"\[Linear\] layers.0.weight of shape \[5, \?\] is not made yet. Call the network"
    ):
        net.parameters()
    net(X)
    assert net.layers[0].weight.shape == (5, 4)
    assert "weight: [5, 4]" in repr(net)


def test_they_are_found_while_a_function_is_traced() -> None:
    weft.seed(3)
    plain = Net(None)
    plain(X)
    weft.seed(3)
    net = Net(None)
    step = weft.jit(lambda x: net(x))
    first = step(X)
    for name, value in plain.named_parameters().items():
        np.testing.assert_array_equal(net.named_parameters()[name].numpy(), value.numpy())
    plain.seen.assign(weft.asarray(0.0))
    np.testing.assert_allclose(first.numpy(), plain(X).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(step(X).numpy(), first.numpy())
    assert net.seen.item() == 2.0


def test_sizes_that_contradict() -> None:
    class Wrong(Linear):
        def sizes(self, x: T) -> dict[str, tuple[int, ...]]:
            return {"weight": (self.outputs + 1, x.shape[-1])}

    with pytest.raises(UserError, match=r"\[Wrong\] weight of shape \[5, \?\] is required, got \(6, 4\)."):
        Wrong(None, 5)(X)


# --- compiled functions ---------------------------------------------------------------------------------------------------------


def count_traces(net: nn.Module) -> tuple[Any, list[int]]:
    traces = []

    def call(x: T) -> T:
        traces.append(1)
        return net(x)

    return weft.jit(call), traces


def test_compiled_functions_follow_modes_and_settings() -> None:
    net = Net()
    run, traces = count_traces(net)
    trained = run(X).numpy()
    run(X)
    assert len(traces) == 1
    net.eval()
    used = run(X).numpy()
    assert len(traces) == 2
    assert not np.allclose(trained, used)
    net.train()
    np.testing.assert_array_equal(run(X).numpy(), trained)
    assert len(traces) == 2, "the first program is still there"
    net.factor = 5.0
    assert not np.allclose(run(X).numpy(), trained)
    net.factor = 2.0
    np.testing.assert_array_equal(run(X).numpy(), trained)
    assert len(traces) == 3
    other = Net()  # somebody else's settings are none of its business
    other.factor = 7.0
    run(X)
    assert len(traces) == 3


def test_a_setting_that_is_equal_and_not_the_same_is_another_one() -> None:
    """3, 3.0 and True give results of other types."""

    class Times(nn.Module):
        factor: Any = 1

        def forward(self, x: weft.Tensor) -> weft.Tensor:
            return x * self.factor

    net, x = Times(), weft.asarray([1, 2])
    run = weft.jit(lambda x: net(x))
    for factor in (1, 1.0, True, 1):
        net.factor = factor
        assert run(x).dtype is net(x).dtype
    assert (x * 1.0).dtype is not x.dtype  # else nothing is tested here


CHANGES = {
    "a part in a list": lambda net: net.layers.__setitem__(1, Linear(5, 3)),
    "a part in a dict": lambda net: net.heads.__setitem__("a", Linear(3, 2)),
    "a list": lambda net: setattr(net, "layers", [Linear(4, 5), Linear(5, 3)]),
    "a parameter": lambda net: setattr(net.layers[0], "bias", nn.parameter(5, "ones")),
    "one part more": lambda net: net.layers.append(Linear(3, 3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_compiled_functions_notice_parts_that_are_replaced(name: str) -> None:
    net = Net()
    run, traces = count_traces(net)
    run(X)
    CHANGES[name](net)
    np.testing.assert_allclose(run(X).numpy(), net(X).numpy(), rtol=1e-5, atol=1e-6)
    assert len(traces) == 2
    run(X)
    assert len(traces) == 2


def test_everything_public_is_exported() -> None:
    """Every layer and every function of the files of layers is in weft.nn."""
    folder = Path(nn.__file__).parent
    for path in sorted(folder.glob("[a-z]*.py")):
        module = importlib.import_module(f"weft.nn.{path.stem}")
        own = [n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__]
        layers = [n for n in own if issubclass(getattr(module, n), nn.Module) and not n.startswith("_")]
        missing = [n for n in layers if not hasattr(nn, n) and n not in INNER]
        assert not missing, f"{path.name}: {missing}"
        counted()


INNER = {
    "Weights",
    "Cell",
    "Recurrent",
    "RecurrentDirection",
    "TransformerLayer",
    "SelfAttentionLayer",
}  # what layers are made of


def test_compiled_training_follows_freezing() -> None:
    net = Net()

    def step(x: T) -> T:
        loss = (net(x) ** 2).mean()
        parameters = net.parameters()
        for p, g in zip(parameters, weft.gradients(loss, parameters), strict=True):
            p.assign(p - 0.1 * g)
        return loss

    compiled = weft.jit(step)
    compiled(X)
    net.layers[0].freeze()
    frozen, moving = net.layers[0].weight.numpy().copy(), net.layers[1].weight.numpy().copy()
    compiled(X)
    np.testing.assert_array_equal(net.layers[0].weight.numpy(), frozen)
    assert (net.layers[1].weight.numpy() != moving).any()
    net.unfreeze()
    compiled(X)
    assert (net.layers[0].weight.numpy() != frozen).any()


# --- for people -----------------------------------------------------------------------------------------------------------------


def test_it_prints_as_a_tree() -> None:
    assert repr(Net()) == (
        "Net(factor=2.0, seen: []\n"
        "  layers.0: Linear(outputs=5, weight: [5, 4], bias: [5])\n"
        "  layers.1: Linear(outputs=3, weight: [3, 5], bias: [3])\n"
        "  heads.a: Linear(outputs=2, weight: [2, 3], bias: [2])\n"
        ")"
    )


def test_the_summary() -> None:
    net = Net(None)
    found = nn.summary(net, (6, 4))
    assert net.training
    assert net.seen.item() == 0.0
    assert found.parameters == 5 * 4 + 5 + 3 * 5 + 3 + 2 * 3 + 2
    assert (found.trained, found.state) == (found.parameters, 1)
    assert found.macs == 6 * (4 * 5 + 5 * 3 + 3 * 2)
    lines = {line.name: line for line in found.lines}
    assert [(l.kind, l.depth) for l in found.lines] == [("Net", 0), ("Linear", 1), ("Linear", 1), ("Linear", 1)]
    assert (lines["layers.0"].macs, lines["layers.0"].parameters, lines["layers.0"].nbytes) == (120, 25, 120)
    assert lines[""].macs == 0
    assert found.nbytes == 4 * 6 * (5 + 3 + 2)
    net.layers[0].freeze()
    again = nn.summary(net, X)
    assert (again.parameters, again.trained) == (found.parameters, found.parameters - 25)
    assert "25 frozen" in str(again)
    assert str(found).splitlines()[0].split() == ["layer", "output", "parameters", "MACs", "bytes"]


def test_the_summary_counts_what_scans_and_convolutions_do() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            self.w = nn.parameter((3, 3), "normal")
            self.filter = nn.parameter((4, 2, 3, 3), "normal")

        def forward(self, x: T, image: T) -> Any:
            last, _ = weft.scan(lambda h, v: (weft.tanh(h @ self.w + v), None), weft.zeros((2, 3)), x)
            return last, weft.conv(image, self.filter, padding=1)

    found = nn.summary(Odd(), (5, 2, 3), (1, 2, 6, 6))
    assert found.macs == 5 * 2 * 3 * 3 + 4 * 6 * 6 * 2 * 9
    assert found.lines[0].output == "float32[2, 3], float32[1, 4, 6, 6]"


ERRORS = {
    "no forward": (lambda: nn.Module()(X), r"\[Module\] a module needs a method forward"),
    "negative size": (lambda: nn.parameter((2, -1)), "sizes of 0 or more are required, got"),
    "unknown start": (lambda: nn.parameter(2, "nothing"), "there is no initial value 'nothing'. Known: zeros, ones"),
    "summary of a text": (
        lambda: nn.summary(Net(), "x"),
        r"\[summary\] tensors, arrays or shapes are required, got 'x'",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, message = ERRORS[name]
    with pytest.raises(UserError, match=message):
        call()


# --- initial values -------------------------------------------------------------------------------------------------------------

SPREADS = {  # variance of a (64, 32, 3) weight: fan_in 96, fan_out 192
    "glorot_uniform": 1 / 144, "glorot_normal": 1 / 144, "he_uniform": 2 / 96, "he_normal": 2 / 96,
    "lecun_uniform": 1 / 96, "lecun_normal": 1 / 96, "fan_in_uniform": 1 / 288, "normal": 0.0025, "uniform": 0.01 / 12,
}  # fmt: skip


@pytest.mark.parametrize("name", SPREADS)
def test_initial_spread(name: str) -> None:
    weft.seed(5)
    values = nn.parameter((64, 32, 3), name).numpy().astype(np.float64)
    assert abs(values.mean()) < 4 * (SPREADS[name] / values.size) ** 0.5
    assert values.var() == pytest.approx(SPREADS[name], rel=0.06)
    if "normal" in name and name != "normal":
        assert abs(values).max() <= 2.0 * (SPREADS[name] ** 0.5) / 0.8796 * 1.0001


def test_orthogonal_and_identity() -> None:
    for shape in ((6, 4), (4, 6), (3, 2, 2)):
        q = nn.parameter(shape, "orthogonal").numpy().reshape(shape[0], -1).astype(np.float64)
        square = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
        np.testing.assert_allclose(square, np.eye(len(square)), atol=1e-5)
    np.testing.assert_array_equal(nn.parameter((3, 4), "identity").numpy(), np.eye(3, 4))
    image = np.random.default_rng(1).normal(size=(1, 2, 5, 5)).astype("float32")
    same = weft.conv(image, nn.parameter((2, 2, 3, 3), "identity"), padding=1)
    np.testing.assert_array_equal(same.numpy(), image)


def test_the_seed_decides() -> None:
    weft.seed(9)
    first = [p.numpy() for p in Net().parameters()]
    weft.seed(9)
    for a, b in zip(first, Net().parameters(), strict=True):
        np.testing.assert_array_equal(a, b.numpy())
