"""Recurrent cells and layers against a plain float64 writing of their formulas: a loop over sequences and times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import knobs, nn
from weft.dtypes import bfloat16, float16, float32, float64
from weft.errors import UserError
from weft.testing import check_grads, checks_run, close, counted

CELLS = {"RNN": nn.RNNCell, "LSTM": nn.LSTMCell, "GRU": nn.GRUCell}
LAYERS = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
KINDS = list(LAYERS)
BATCH, TIME, INPUTS, HIDDEN = 3, 4, 2, 3


# --- the formulas, in NumPy ------------------------------------------------------------------------------------------------


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def one_step(
    kind: str, w: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray, c: np.ndarray, bend: Any = np.tanh
) -> Any:
    """One step of one sequence: (h, c) of the next time; c is of use to long short-term memory alone."""
    given = w["weight_in"] @ x + w.get("bias_in", 0.0)
    hidden = w["weight_hidden"] @ h + w.get("bias_hidden", 0.0)
    if kind == "RNN":
        return bend(given + hidden), c
    if kind == "LSTM":
        i, f, g, o = np.split(given + hidden, 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    (rx, zx, nx), (rh, zh, nh) = np.split(given, 3), np.split(hidden, 3)
    r, z = sigmoid(rx + rh), sigmoid(zx + zh)
    return (1.0 - z) * np.tanh(nx + r * nh) + z * h, c


def weights_of(tensors: dict[str, np.ndarray], path: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(path): value for name, value in tensors.items() if name.startswith(path)}


def walked(kind: str, module: Any, x: np.ndarray, state: Any, lengths: list[int], bend: Any = np.tanh) -> Any:
    """(batch, time, features) through all layers: each sequence for itself, as long as it is."""
    tensors = {n: t.numpy().astype(np.float64) for n, t in module.named_tensors().items()}
    paths = ["forward_layers", "backward_layers"] if module.bidirectional else ["forward_layers"]
    walks, hidden = module.layers * len(paths), module.forward_layers[0].hidden
    last = np.zeros((2, walks, len(x), hidden)) if state is None else np.array(state, np.float64)
    for layer in range(module.layers):
        outputs = np.zeros((*x.shape[:2], hidden * len(paths)))
        for d, path in enumerate(paths):
            w, place = weights_of(tensors, f"{path}.{layer}."), layer * len(paths) + d
            for b, length in enumerate(lengths):
                h, c = last[:, place, b]
                for t in range(length)[:: 1 - 2 * d]:
                    h, c = one_step(kind, w, x[b, t], h, c, bend)
                    outputs[b, t, d * hidden : (d + 1) * hidden] = h
                last[:, place, b] = h, c
        x = outputs
    return x, last


def randoms(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def spread(module: Any, seed: int = 1) -> Any:
    """The module in float64, with larger parameters than it begins with: every gate matters."""
    rng = np.random.default_rng(seed)
    module.astype(float64)
    return module.load({n: rng.normal(size=t.shape) for n, t in module.named_tensors().items()})


def given_state(kind: str, walks: int, batch: int = BATCH) -> tuple[Any, np.ndarray]:
    both = randoms(2, walks, batch, HIDDEN, seed=5)
    return ((weft.asarray(both[0]), weft.asarray(both[1])) if kind == "LSTM" else weft.asarray(both[0])), both


def same_state(kind: str, state: Any, expected: np.ndarray) -> None:
    parts = state if kind == "LSTM" else (state,)
    for part, wanted in zip(parts, expected, strict=False):
        close(part.numpy(), wanted, float64)


# --- values ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_makes_one_step(kind: str, bias: bool) -> None:
    cell = spread(CELLS[kind](INPUTS, HIDDEN, bias=bias))
    w = {n: t.numpy() for n, t in cell.named_tensors().items()}
    x, (state, both) = randoms(BATCH, INPUTS), given_state(kind, 1)
    begun = tuple(part[0] for part in state) if kind == "LSTM" else state[0]
    for start, values in ((begun, both[:, 0]), (None, np.zeros((2, BATCH, HIDDEN)))):
        expected = [one_step(kind, w, x[b], values[0, b], values[1, b]) for b in range(BATCH)]
        same_state(kind, cell(weft.asarray(x), start), np.stack(expected, axis=1))
    assert set(w) == {"weight_in", "weight_hidden"} | ({"bias_in", "bias_hidden"} if bias else set())


def test_one_step_by_hand() -> None:
    """All weights 1, biases 0, x = 1, and the state 0 or 1."""
    x, one = weft.ones((1, 1)), weft.ones((1, 1))
    for cell in (nn.RNNCell(1, 1), nn.LSTMCell(1, 1), nn.GRUCell(1, 1)):
        for name, tensor in cell.named_tensors().items():
            tensor.assign(weft.full(tensor.shape, 1.0 if "weight" in name else 0.0))
        if isinstance(cell, nn.LSTMCell):
            h, c = cell(x, (one, one))  # sigmoid(2) = 0.880797, tanh(2) = 0.964028, tanh(c) = 0.939045
            close([h.item(), c.item()], [0.8271083, 1.7299098], float32)
        elif isinstance(cell, nn.GRUCell):
            cell.bias_hidden.assign(weft.asarray([0.0, 0.0, 1.0]))  # n = tanh(1 + 0.880797 * 2) = 0.992046
            close(cell(x, one).item(), 0.9990518, float32)
        else:
            close(cell(x, one).item(), 0.9640276, float32)
            close(cell(x).item(), 0.7615942, float32)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"bias": False, "lengths": [4, 2, 1]},
    {"layers": 2, "state": True},
    {"bidirectional": True, "lengths": [2, 4, 0], "state": True},
    {"layers": 2, "bidirectional": True, "lengths": [1, 4, 3]},
    {"layers": 2, "bidirectional": True, "batch_first": False, "lengths": [1, 4, 3], "state": True},
]


@pytest.mark.sweep("kind", share=0.3)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_walks_along(kind: str, options: dict[str, Any]) -> None:
    settings = dict(options)
    lengths, has_state = settings.pop("lengths", None), settings.pop("state", False)
    with knobs.set(device="reference"):
        module = spread(LAYERS[kind](INPUTS, HIDDEN, **settings))
        walks = module.layers * (1 + module.bidirectional)
        x, (state, both) = randoms(BATCH, TIME, INPUTS), given_state(kind, walks)
        outputs, last = module(
            weft.asarray(x if module.batch_first else x.swapaxes(0, 1)),
            state if has_state else None,
            None if lengths is None else weft.asarray(lengths),
        )
        expected = walked(kind, module, x, both if has_state else None, lengths or [TIME] * BATCH)
        close(outputs.numpy() if module.batch_first else outputs.numpy().swapaxes(0, 1), expected[0], float64)
        same_state(kind, last, expected[1])


@pytest.mark.parametrize(("activation", "bend"), [("relu", lambda v: np.maximum(v, 0.0)), (weft.sin, np.sin)])
def test_another_activation(activation: Any, bend: Any) -> None:
    module = spread(nn.RNN(INPUTS, HIDDEN, activation=activation))
    x = randoms(BATCH, TIME, INPUTS)
    outputs, last = module(weft.asarray(x))
    expected = walked("RNN", module, x, None, [TIME] * BATCH, bend)
    close(outputs.numpy(), expected[0], float64)
    same_state("RNN", last, expected[1])


def test_an_activation_with_parameters_is_trained_too() -> None:
    module = nn.RNN(INPUTS, HIDDEN, activation=nn.PReLU())
    slope = module.named_parameters()["forward_layers.0.activation.slope"]
    x = weft.asarray(
        randoms(32, 3, INPUTS), dtype=float32
    )  # enough for values on both sides of 0, whatever the weights are
    [found] = weft.gradients(weft.sum(module(x)[0]), [slope])
    assert np.abs(found.numpy()).max() > 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_behind_the_end_does_not_matter(kind: str) -> None:
    x = randoms(2, TIME, INPUTS).astype(np.float32)
    other = x.copy()
    other[0, 3:], other[1, 1:] = 100.0, -100.0
    with knobs.set(device="reference"):
        module, lengths = LAYERS[kind](INPUTS, HIDDEN, layers=2, bidirectional=True), weft.asarray([3, 1])
        first, second = (module(weft.asarray(v), lengths=lengths) for v in (x, other))
        for a, b in zip(weft.tree.flatten(first)[0], weft.tree.flatten(second)[0], strict=True):
            assert np.array_equal(a.numpy(), b.numpy())
            counted()
        assert not first[0].numpy()[1, 1:].any()
        shorter = module(weft.asarray(x[:, :3]), lengths=lengths)  # and how far the batch is padded does not either
        close(shorter[0].numpy(), first[0].numpy()[:, :3], float32)


# --- derivatives -----------------------------------------------------------------------------------------------------------


def with_values(module: Any, names: list[str], values: Any) -> None:
    """Put tensors in the place of parameters, by their paths."""
    parts = module.named_modules()
    for name, value in zip(names, values, strict=True):
        path, _, attribute = name.rpartition(".")
        setattr(parts[path], attribute, value)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_layers(kind: str) -> None:
    """By the input, the state and every parameter, with two layers, both directions and lengths."""
    with knobs.set(device="reference"):
        module = spread(LAYERS[kind](INPUTS, 2, layers=2, bidirectional=True))
        names = list(module.named_tensors())
        values = [t.numpy() for t in module.named_tensors().values()]
        states = [randoms(4, 2, 2, seed=s) for s in range(2 if kind == "LSTM" else 1)]

        def f(x: Any, *rest: Any) -> Any:
            with_values(module, names, rest[len(states) :])
            state = rest[: len(states)] if kind == "LSTM" else rest[0]
            outputs, last = module(x, state, weft.asarray([3, 1]))
            return weft.concat([weft.flatten(t) for t in weft.tree.flatten((outputs, last))[0]])

        before = checks_run()
        check_grads(f, [randoms(2, 3, INPUTS), *states, *values], rng=np.random.default_rng(3))
        assert checks_run() - before == 4


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_cells(kind: str) -> None:
    with knobs.set(device="reference"):
        cell = spread(CELLS[kind](2, 2))
        names, values = list(cell.named_tensors()), [t.numpy() for t in cell.named_tensors().values()]

        def f(x: Any, h: Any, *rest: Any) -> Any:
            with_values(cell, names, rest)
            new = cell(x, (h, h * h) if kind == "LSTM" else h)
            return weft.concat(list(new)) if kind == "LSTM" else new

        before = checks_run()
        check_grads(f, [randoms(2, 2), randoms(2, 2, seed=9), *values], rng=np.random.default_rng(4))
        assert checks_run() - before == 4


# --- compiled, other dtypes, settings --------------------------------------------------------------------------------------


def trained(module: Any, x: Any, lengths: Any) -> Any:
    """One step downhill; gives the loss."""
    loss = weft.mean(weft.square(module(x, lengths=lengths)[0] - 1.0))
    parameters = module.parameters()
    for p, g in zip(parameters, weft.gradients(loss, parameters), strict=True):
        p.assign(p - 0.1 * g)
    return loss


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_training_step(kind: str) -> None:
    """It does what the plain one does, and changes every parameter."""
    compiled = LAYERS[kind](INPUTS, HIDDEN, bidirectional=True, layers=1 + (kind == "LSTM"))
    before = {n: t.numpy().copy() for n, t in compiled.named_tensors().items()}
    x, lengths = randoms(BATCH, TIME, INPUTS).astype(np.float32), np.array([4, 2, 3])
    with knobs.set(device="reference"):
        plain = LAYERS[kind](INPUTS, HIDDEN, bidirectional=True, layers=compiled.layers).load(before)
        expected = trained(plain, weft.asarray(x), weft.asarray(lengths)).item()
        after = {n: t.numpy() for n, t in plain.named_tensors().items()}
    step = weft.jit(lambda x, lengths: trained(compiled, x, lengths))
    close(step(x, lengths).item(), expected, float32)
    for name, tensor in compiled.named_tensors().items():
        close(tensor.numpy(), after[name], float32)
        assert np.abs(tensor.numpy() - before[name]).max() > 0.0, name
    assert step(x, lengths).item() < expected


@pytest.mark.parametrize("dtype", [float16, bfloat16, float64], ids=lambda d: d.name)
@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes(kind: str, dtype: Any) -> None:
    with knobs.set(device="reference"):
        module = LAYERS[kind](INPUTS, HIDDEN, bidirectional=True).astype(dtype)
        x = weft.asarray(randoms(BATCH, TIME, INPUTS)).astype(dtype)
        outputs, last = module(x, lengths=weft.asarray([4, 1, 2]))
        expected = walked(kind, module, x.numpy().astype(np.float64), None, [4, 1, 2])
        assert outputs.dtype is dtype
        assert all(t.dtype is dtype for t in weft.tree.flatten(last)[0])
        close(outputs.numpy(), expected[0], dtype, slack=4.0)


def test_float16_compiled() -> None:
    module = nn.GRU(INPUTS, HIDDEN).astype(float16)
    x = weft.asarray(randoms(BATCH, TIME, INPUTS)).astype(float16)
    compiled = weft.jit(lambda x: module(x)[0])(x)
    assert compiled.dtype is float16
    close(compiled.numpy(), module(x)[0].numpy(), float16)


def test_a_state_of_another_dtype_is_taken() -> None:
    module = nn.RNN(INPUTS, HIDDEN)
    outputs, _ = module(weft.ones((1, 2, INPUTS)), weft.ones((1, 1, HIDDEN), dtype=float64))
    assert outputs.dtype is float32


def test_dropout_between_layers_and_nowhere_else() -> None:
    """Layers that hand on what they get: what comes out is what dropout made of it."""
    module = nn.RNN(8, 8, layers=2, dropout=0.5, bias=False, activation=None)
    for part in module.forward_layers:
        part.weight_in.assign(weft.eye(8))
        part.weight_hidden.assign(weft.zeros((8, 8)))
    x = weft.ones((4, 10, 8))
    weft.seed(1)
    outputs, state = module(x)
    kept = outputs.numpy() == 2.0
    assert np.all(kept | (outputs.numpy() == 0.0))
    assert 100 < kept.sum() < 220  # of 320
    assert np.array_equal(state[0].numpy(), np.ones((4, 8)))
    assert np.array_equal(module.eval()(x)[0].numpy(), np.ones((4, 10, 8)))
    alone = nn.RNN(2, 2, dropout=0.9)  # one layer: there is nothing between
    x = weft.ones((1, 3, 2))
    assert np.array_equal(alone(x)[0].numpy(), alone.eval()(x)[0].numpy())
    counted(5)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_found_at_the_first_call(kind: str) -> None:
    cell, layer = CELLS[kind](None, HIDDEN), LAYERS[kind](None, HIDDEN, layers=2, bidirectional=True)
    with pytest.raises(UserError, match="forward_layers.0.weight_in of shape .*, \\?\\] is not made yet"):
        layer.named_tensors()
    cell(weft.ones((1, INPUTS)), state=None)
    layer(weft.ones((1, 2, INPUTS)))
    known = LAYERS[kind](INPUTS, HIDDEN, layers=2, bidirectional=True)
    assert {n: t.shape for n, t in layer.named_tensors().items()} == {
        n: t.shape for n, t in known.named_tensors().items()
    }
    assert cell.weight_in.shape == known.forward_layers[0].weight_in.shape
    assert known.forward_layers[1].weight_in.shape[1] == 2 * HIDDEN
    counted(3)


def test_how_parameters_begin() -> None:
    """Uniform up to 1 / sqrt(hidden) on both sides."""
    weft.seed(2)
    for tensor in nn.LSTM(20, 25).named_tensors().values():
        assert 0.19 < np.abs(tensor.numpy()).max() <= 0.2
        counted()


def test_the_cost_of_a_layer_is_known() -> None:
    cost = nn.summary(nn.LSTM(INPUTS, HIDDEN), (BATCH, TIME, INPUTS))
    assert cost.macs == BATCH * TIME * 4 * HIDDEN * (INPUTS + HIDDEN)
    assert cost.parameters == 4 * HIDDEN * (INPUTS + HIDDEN + 2)
    counted(2)


# --- wrappers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, [4, 1, 3]])
def test_bidirectional_is_the_layer_with_both_directions(lengths: Any) -> None:
    with knobs.set(device="reference"):
        both = spread(nn.LSTM(INPUTS, HIDDEN, bidirectional=True))
        values = {n: t.numpy() for n, t in both.named_tensors().items()}
        one, other = nn.LSTM(INPUTS, HIDDEN).astype(float64), nn.LSTM(INPUTS, HIDDEN).astype(float64)
        one.load({n: values[n] for n in one.named_tensors()})
        other.load({n: values[n.replace("forward", "backward")] for n in other.named_tensors()})
        x, counts = weft.asarray(randoms(BATCH, TIME, INPUTS)), None if lengths is None else weft.asarray(lengths)
        (h, c), _ = given_state("LSTM", 2)
        expected, (last_h, last_c) = both(x, (h, c), counts)
        outputs, states = nn.Bidirectional(one, other)(x, ((h[:1], c[:1]), (h[1:], c[1:])), counts)
        close(outputs.numpy(), expected.numpy(), float64)
        for d, (end_h, end_c) in enumerate(states):
            close(end_h.numpy(), last_h.numpy()[d : d + 1], float64)
            close(end_c.numpy(), last_c.numpy()[d : d + 1], float64)


def test_the_same_module_at_each_time() -> None:
    linear = nn.Linear(INPUTS, HIDDEN)
    x = weft.asarray(randoms(BATCH, TIME, INPUTS), dtype=float32)
    y = nn.TimeDistributed(linear)(x)
    for t in range(TIME):
        close(y.numpy()[:, t], linear(x[:, t]).numpy(), float32)
    flat = nn.TimeDistributed(nn.Flatten())(weft.ones((2, 3, 4, 5)))
    assert flat.shape == (2, 3, 20)


ERRORS = [
    (lambda: nn.LSTM(2, 0), "[LSTM] the number of hidden features must be an int of 1 or more, got 0."),
    (lambda: nn.GRUCell(0, 3), "[GRU] the number of inputs must be an int of 1 or more, got 0."),
    (lambda: nn.RNN(2, 3, layers=0), "[RNN] the number of layers must be an int of 1 or more, got 0."),
    (lambda: nn.GRU(2, 3, dropout=1.0), "[GRU] a rate in [0, 1) is required, got 1.0."),
    (lambda: nn.RNN(2, 3, activation="tanhh"), "[activation] there is no activation 'tanhh'. Known: relu, "),
    (
        lambda: nn.LSTM(2, 3)(weft.ones((4, 2))),
        "[LSTM] an input of 3 axes (batch, time, features) is required, got (4, 2).",
    ),
    (
        lambda: nn.RNN(2, 3, batch_first=False)(weft.ones((4, 2))),
        "[RNN] an input of 3 axes (time, batch, features) is required, got (4, 2).",
    ),
    (lambda: nn.GRU(2, 3)(weft.ones((1, 4, 5))), "[GRU] an input with 2 features in the last dimension is required"),
    (
        lambda: nn.GRUCell(2, 3)(weft.ones((1, 4, 2))),
        "[GRUCell] an input (batch, features) is required, got (1, 4, 2).",
    ),
    (
        lambda: nn.LSTM(2, 3)(weft.ones((1, 4, 2)), weft.ones((1, 1, 3))),
        "[LSTM] a state h and c of shape (1, 1, 3) is required, got (1, 1, 3). None starts with zeros.",
    ),
    (
        lambda: nn.GRU(2, 3, layers=2)(weft.ones((1, 4, 2)), weft.ones((1, 1, 3))),
        "[GRU] a state h of shape (2, 1, 3) is required, got (1, 1, 3).",
    ),
    (
        lambda: nn.GRU(2, 3)(weft.ones((2, 4, 2)), lengths=weft.ones((2,))),
        "[GRU] lengths must be integers of shape (batch,) = (2,), got float32 (2,).",
    ),
    (
        lambda: nn.Bidirectional(nn.GRU(2, 3), nn.GRU(2, 3))(weft.ones((2, 4, 2)), lengths=weft.asarray([1])),
        "[Bidirectional] lengths must be integers of shape (batch,) = (2,), got int64 (1,).",
    ),
    (
        lambda: nn.Bidirectional(nn.GRU(2, 3), nn.GRU(2, 3, batch_first=False)),
        "[Bidirectional] layers with batch_first=True are required: the time is axis 1.",
    ),
    (
        lambda: nn.TimeDistributed(nn.Identity())(weft.ones((2,))),
        "[TimeDistributed] an input (batch, time, ...) is required, got (2,).",
    ),
]


@pytest.mark.parametrize(("call", "text"), ERRORS, ids=[text[:24] for _, text in ERRORS])
def test_wrong_settings_and_inputs(call: Any, text: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert text in str(caught.value)
    counted()
