"""What a file cannot hold is rejected when it is saved, and what it holds does not change by saving: names, modes, frozen parameters."""

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.errors import Scope, in_scope
from weft.saved.dimensions import expression, sample_sizes


def round_trip(tmp_path, program, inputs, **options):
    weft.save(tmp_path / "net.weft", program, inputs, **options)
    return weft.load(tmp_path / "net.weft")


X = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * weft.asarray(np.float32(x.shape[0])),
        lambda x: x * weft.asarray([float(x.shape[0])]),
        lambda x: x * np.arange(x.shape[0], dtype=np.float32)[:, None],
    ],
    ids=["number", "list", "table"],
)
def test_arrays_that_depend_on_a_size_are_refused(tmp_path, function):
    with pytest.raises(weft.UserError, match=r"different arrays or tensors for batch=\d+ and batch=\d+"):
        weft.save(tmp_path / "f.weft", function, X)
    assert round_trip(tmp_path, function, X, dynamic=False)(X).tolist() == function(weft.asarray(X)).tolist()


def test_tensors_chosen_by_a_size_are_refused(tmp_path):
    tables = [weft.ones(3), weft.zeros(3)]
    with pytest.raises(weft.UserError, match="different arrays or tensors"):
        weft.save(tmp_path / "f.weft", lambda x: x * tables[x.shape[0] > 8], X)


def test_a_number_that_depends_on_a_size_is_no_result(tmp_path):
    with pytest.raises(weft.UserError, match="returns different numbers"):
        weft.save(tmp_path / "f.weft", lambda x: (x.sum(), x.shape[0]), X)
    again = round_trip(tmp_path, lambda x: (x.sum(), weft.full((), x.shape[0]), float("nan")), X)
    assert again(np.ones((9, 3), np.float32))[1].item() == 9


def test_sizes_that_are_clipped_are_refused(tmp_path):
    table = weft.ones((512, 3))
    for function in (lambda x: x[: min(x.shape[0], 512)], lambda x: x[:512] * 2.0):
        with pytest.raises(weft.UserError, match="cannot be saved for all sizes"):
            weft.save(tmp_path / "f.weft", function, X)
    with pytest.raises(weft.UserError, match=r"fails for batch=\d+: \[multiply\] .* If a size has a limit, name it"):
        weft.save(tmp_path / "f.weft", lambda x: x * table[: x.shape[0]], X)
    again = round_trip(tmp_path, lambda x: x * table[: x.shape[0]], weft.TensorSpec(("batch<=512", 3)))
    assert again(np.ones((512, 3), np.float32)).shape == (512, 3)


def test_means_over_free_and_fixed_sizes_are_found():
    one, two = sample_sizes({"n": None}), sample_sizes({"a": None, "b": None})
    for size in (49, 200, 3072, 65536):
        assert expression([repr(1 / (size * at["n"])) for at in one], one) == f"1 / ({size}*n)"
    assert expression([repr(1 / (64 * at["a"] * at["b"])) for at in two], two) == "1 / (64*a*b)"


def test_values_that_python_reads_must_not_change(tmp_path):
    count = weft.zeros(())

    def warm_up(x):
        count.assign(count + 1.0)
        return x * (2.0 if count.item() > 2 else 1.0)

    with pytest.raises(weft.UserError, match="Python reads the value of count"):
        weft.save(tmp_path / "f.weft", warm_up, X)


def test_gradients_that_add_up_over_calls_are_refused(tmp_path):
    w = weft.parameter(weft.ones(3))
    optimizer = optim.sgd([w], 0.1)

    def accumulate(x):
        (x * w).sum().backward()

    def step(x):
        w.grad = None
        (x * w).sum().backward()
        optimizer.step()
        return w + 0.0

    with pytest.raises(weft.UserError, match="adds to the .grad"):
        weft.save(tmp_path / "f.weft", accumulate, X)
    assert w.grad is None
    again = round_trip(tmp_path, step, X)
    x = weft.asarray(X)
    for _ in range(3):
        assert step(x).tolist() == again(x).tolist()


class Averaged(nn.Module):
    """Uses other tensors in evaluation than in training; the graphs have the same text."""

    def __init__(self):
        self.weight, self.average = weft.parameter(weft.ones(3)), weft.ones(3) * 5.0

    def forward(self, x):
        return x * (self.weight if self.training else self.average) + np.arange(3, dtype=np.float32)


def test_modes_that_differ_only_in_their_tensors_are_both_saved(tmp_path):
    net = Averaged()
    again = round_trip(tmp_path, net, X)
    for training in (True, False):
        assert again.train(training)(X).tolist() == net.train(training)(weft.asarray(X)).tolist()
    assert again.named_tensors().keys() == net.named_tensors().keys()
    assert len(again._tensors) == 3  # the constant is saved once


@pytest.mark.parametrize(
    "name", ["graph", "labels", "facts", "manifest", "constants", "_inner", "argument_types", "result_types"]
)
def test_parameters_may_have_any_name(tmp_path, name):
    class Net(nn.Module):
        def __init__(self):
            setattr(self, name, nn.Linear(3, 2))

        def forward(self, x):
            return getattr(self, name)(x)

    net = Net()
    again = round_trip(tmp_path, net, X, labels=["a", "b"])
    assert again(X).tolist() == net(weft.asarray(X)).tolist()
    assert again.named_parameters().keys() == net.named_parameters().keys()
    assert again.labels == ["a", "b"]


def test_variables_called_like_methods_and_keys_with_dots(tmp_path):
    parameters = {
        "a.b": weft.parameter(weft.ones(3)),
        "a": weft.parameter(weft.ones(3)),
        "ü x": weft.parameter(weft.ones(3)),
    }
    again = round_trip(tmp_path, lambda x: x * parameters["a.b"] + parameters["a"] * parameters["ü x"], X)
    assert again(X).tolist() == [[2.0] * 3] * 4
    assert sorted(again.named_parameters()) == ["parameters_.a", "parameters_.a.b", "parameters_.ü x"]
    assert len(again.parameters()) == 3


def test_tensors_of_a_program_cannot_be_replaced_in_silence(tmp_path):
    again = round_trip(tmp_path, Averaged(), X)
    with pytest.raises(weft.UserError, match="Change values with assign or load"):
        again.weight = weft.parameter(weft.zeros(3))
    with pytest.raises(weft.UserError, match="dtypes of a program in a file are fixed"):
        again.astype("float16")


def test_frozen_parameters_can_be_unfrozen_after_loading(tmp_path):
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm(2), nn.Linear(2, 2))
    net(weft.asarray(X))
    net.layers[0].freeze()
    again = round_trip(tmp_path, net, X)
    assert again.named_parameters().keys() == net.named_parameters().keys()
    assert again.named_state().keys() == net.named_state().keys()
    assert again.unfreeze().named_parameters().keys() == net.unfreeze().named_parameters().keys()


def test_facts_may_not_hide_what_loading_needs(tmp_path):
    with pytest.raises(weft.UserError, match="the manifest has functions, version already"):
        weft.save(tmp_path / "f.weft", lambda x: x, X, version="1.2", functions=3)


def test_a_size_that_a_program_cannot_have_is_no_damage_alone(tmp_path):
    again = round_trip(tmp_path, lambda x: x[1:] - x[:-1], X)
    with pytest.raises(weft.RunError, match=r"cannot be run with batch=0, or is damaged: .*\[slice\]"):
        again(np.ones((0, 3), np.float32))


class Positions(nn.Module):
    """All encodings of positions that have tables."""

    def __init__(self):
        self.rotary, self.alibi = nn.MultiHeadAttention(8, 2, rotary=True), nn.MultiHeadAttention(8, 2, alibi=True)
        self.sines = nn.PositionalEncoding()

    def forward(self, x):
        return self.alibi(self.rotary(self.sines(x)), causal=True)


def test_tables_of_positions_serve_every_length(tmp_path):
    net = Positions().eval()
    again = round_trip(tmp_path, net, weft.TensorSpec(("batch", "time", 8))).eval()
    weft.onnx.save(tmp_path / "net.onnx", net, weft.TensorSpec(("batch", "time", 8)))
    from_onnx = weft.onnx.load(tmp_path / "net.onnx")
    for time in (1, 2, 700):
        x = weft.random.normal((2, time, 8))
        expected = net(x).numpy()
        assert np.allclose(again(x).numpy(), expected, rtol=1e-6, atol=1e-6)
        assert np.allclose(from_onnx(x).numpy(), expected, rtol=1e-5, atol=1e-5)
    odd = round_trip(tmp_path, nn.PositionalEncoding(), weft.TensorSpec(("batch", "time", 5)))
    assert np.array_equal(odd(weft.zeros((1, 3000, 5))).numpy()[0], nn.sinusoidal(3000, 5).numpy())


def test_a_tensor_that_is_changed_is_passed_once(tmp_path):
    def add(a, b):
        a.assign(a + 1.0)
        return a + b

    again = round_trip(tmp_path, add, (weft.ones(2), weft.ones(2)))
    x, y = weft.ones(3), weft.zeros(3)
    assert again(x, y).tolist() == [2.0] * 3
    assert x.tolist() == [2.0] * 3
    with pytest.raises(weft.UserError, match="required once, got it as two arguments"):
        again(x, x)


@pytest.mark.parametrize(
    "constant", [lambda: weft.full(X.shape, 0.4375), lambda: weft.sqrt(weft.arange(3, dtype="float32") + 0.4375)]
)
def test_a_file_does_not_depend_on_what_else_is_alive(tmp_path, constant):
    """Equal constants are one node, and so is what is computed from them: a layer that was traced before gives none of this one its name."""

    class Shifted(nn.Module):
        def forward(self, x):
            return x + constant()

    def save():
        weft.save(tmp_path / "net.weft", nn.Sequential(Shifted()), X, dynamic=False)
        return weft.load(tmp_path / "net.weft").graph_text("eval")

    with in_scope(Scope(path="another", kind="Layer")):
        held = weft.make_graph(lambda x: x + constant(), X)
    text = save()
    assert "0.4375" in text
    assert "another" not in text
    assert "add(x0, v" in text
    assert "# float32[4, 3] @ layers.0 Shifted" in text
    del held
    assert save() == text
